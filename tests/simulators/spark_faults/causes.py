"""What may make a pipeline fail, and whom a fault may kill: whatever else does is wrong.

Invariants:
1. A cause counts from when it comes, until all pipelines have brought over what was written after
   it without being started again.
2. A fault kills once: a second death of the same process is its own.
"""

from __future__ import annotations

from simulators.spark_faults.points import Points


class Causes:
    """Those of one schedule."""

    def __init__(self, points: Points) -> None:
        self._points = points
        self._victims: dict[int, str] = {}
        self._over: set[int] = set()
        self._before: set[int] = set()
        self._is_shaken = False

    def armed(self, number: int, victim: str) -> None:
        """A fault is armed; `victim`: driver, the name of a node, or nobody."""
        self._victims[number] = victim

    def shaken(self) -> None:
        """A node was taken away, or brought back, on purpose."""
        self._is_shaken = True

    @property
    def is_any(self) -> bool:
        """Whether a pipeline may fail just now."""
        return self._is_shaken or bool(self._fired() - self._over)

    def begin(self) -> None:
        """All pipelines are to bring over what there is."""
        self._before = self._fired()

    def settled(self) -> None:
        """They have, and none was started again."""
        self._over |= self._before
        self._is_shaken = False

    def check_deaths(self, victim: str, found: int, log: str) -> None:
        """Fail if somebody died more often than faults killed it."""
        killed = sum(self._victims[number] == victim for number in self._fired())
        assert found <= killed, f"{victim} died {found} times, {killed} of them by a fault: {log}"

    def _fired(self) -> set[int]:
        return {number for number in self._victims if self._points.has_fired(number)}
