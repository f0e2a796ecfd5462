"""The time in which this process worked: a pause of the process is not silence of the others.

A core measures how long others were silent. When the process was stopped, or its loop stood still,
messages of the others wait unread. So the core's clock must stop with the process. Otherwise a
member that wakes asks for another primary before it has read what the current one sent.

Invariants:
1. The clock never goes back.
2. It goes no further than `LATE_MS_MAX` past the moment for which the core asked to be woken. It
   goes on once the core has been woken and has asked for the next time.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

__all__ = ["LATE_MS_MAX", "WorkingClock"]

LATE_MS_MAX: Final = 100.0
"""How late a timer may be. A longer delay is a pause of the process."""


class WorkingClock:
    """The clock of one core.

    Args:
        time_s: the clock of the event loop.
    """

    def __init__(self, time_s: Callable[[], float]) -> None:
        self._time_s = time_s
        self._shown_ms = 0.0
        self._due_ms = inf
        self._paused_ms = 0.0

    def now_ms(self) -> float:
        """Return the time without pauses."""
        now_ms = self._time_s() * 1000 - self._paused_ms
        pause_ms = now_ms - (self._due_ms + LATE_MS_MAX)
        if pause_ms > 0:
            self._paused_ms += pause_ms
            now_ms -= pause_ms
        self._shown_ms = max(self._shown_ms, now_ms)
        return self._shown_ms

    def wake_after(self, after_ms: float) -> None:
        """Note that the core has asked to be woken after some time."""
        self._due_ms = self.now_ms() + after_ms
