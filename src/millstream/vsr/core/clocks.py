"""The clocks of a group's members, so that no single one decides what time entries show.

Invariants:
1. An entry shows at most `AHEAD_MS_MAX` more than the median of what a quorum's clocks showed
   last; while so many are not known, than the entry that the log ended in.
2. This is for people. No decision looks at the time that an entry shows.

Elsewhere: that times in a log never fall (`entries`), who tells its clock (acknowledgements and
votes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["AHEAD_MS_MAX", "Clocks"]

AHEAD_MS_MAX: Final = 10_000
"""So far the primary's clock may be ahead of the median and still be believed."""


class Clocks:
    """How far each member's clock is ahead of the clock that only this process has."""

    def __init__(self) -> None:
        self._ahead_ms: dict[bytes, float] = {}
        self._median_ms: float | None = None
        self._floor_ms = 0

    def hear(self, member: bytes, wall_ms: int, now_ms: float) -> None:
        """Note what a member's clock shows now."""
        self._ahead_ms[member] = wall_ms - now_ms

    def compare(self, members: Sequence[bytes], ended_ms: int | None = None) -> None:
        """Take the median of what these showed, and forget the others.

        `ended_ms`: what the last entry of the log shows.
        """
        kept = {member: self._ahead_ms[member] for member in members if member in self._ahead_ms}
        self._ahead_ms, known = kept, sorted(kept.values())
        is_quorum = len(known) > len(members) // 2
        self._median_ms = known[(len(known) - 1) // 2] if is_quorum else None
        if ended_ms is not None:
            self._floor_ms = ended_ms

    def stamp_ms(self, wall_ms: int, now_ms: float) -> int:
        """Return what a new entry shows, if this process's clock shows `wall_ms`."""
        median = self._median_ms
        believed = self._floor_ms if median is None else int(median + now_ms)
        return min(wall_ms, believed + AHEAD_MS_MAX)
