"""The clocks of a group's members, so that no single clock decides the time of entries.

Invariants:
1. An entry shows at most `AHEAD_MS_MAX` more than the median of a quorum's clocks. While fewer
   clocks are known, it shows at most that much more than the last entry of the log.
2. The time is for people. No decision depends on the time of an entry.

Elsewhere: that times in a log never fall (`entries`), who reports its clock (acknowledgements and
votes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["AHEAD_MS_MAX", "Clocks"]

AHEAD_MS_MAX: Final = 10_000
"""How far the primary's clock may be ahead of the median."""


class Clocks:
    """How far each member's clock is ahead of this process's monotonic clock."""

    def __init__(self) -> None:
        self._ahead_ms: dict[bytes, float] = {}
        self._median_ms: float | None = None
        self._floor_ms = 0

    def hear(self, member: bytes, wall_ms: int, now_ms: float) -> None:
        """Note the time that a member's clock shows now."""
        self._ahead_ms[member] = wall_ms - now_ms

    def compare(self, members: Sequence[bytes], ended_ms: int | None = None) -> None:
        """Take the median of the clocks of these members, and forget the others.

        `ended_ms`: the time of the last entry of the log.
        """
        kept = {member: self._ahead_ms[member] for member in members if member in self._ahead_ms}
        self._ahead_ms, known = kept, sorted(kept.values())
        is_quorum = len(known) > len(members) // 2
        self._median_ms = known[(len(known) - 1) // 2] if is_quorum else None
        if ended_ms is not None:
            self._floor_ms = ended_ms

    def stamp_ms(self, wall_ms: int, now_ms: float) -> int:
        """Return the time of a new entry if this process's clock shows `wall_ms`."""
        median = self._median_ms
        believed = self._floor_ms if median is None else int(median + now_ms)
        return min(wall_ms, believed + AHEAD_MS_MAX)
