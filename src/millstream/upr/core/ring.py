"""The ring: which keys a reader of one partition changed recently, and by which seqno.

Invariants:
1. Entries ascend by (seqno, key), and none occurs twice.
2. What is above the reader's stored position never leaves by age: until then only the ring knows
   which keys a crash or another history may have left wrong.
3. Beyond `changes_max` the oldest go, so the ring holds at most that many at or below the
   position, and above it what was received or fetched since.

Elsewhere: when it is written, and what for (`upr.core.bookkeeper`).

Source: UPR design paper, "Client and Ringbuffer".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

__all__ = ["RING_CHANGES_DEFAULT", "RING_CHANGES_MAX", "Recent", "Ring"]

RING_CHANGES_DEFAULT: Final = 1000
"""Changes of a partition that a reader can undo without reading it anew."""
RING_CHANGES_MAX: Final = 1_000_000


class Recent(NamedTuple):
    """A change that the reader applied, or is about to."""

    seqno: int
    key: bytes


class Ring:
    """Recent changes of one partition.

    Args:
        entries: as stored, in any order.
        changes_max: 1 to `RING_CHANGES_MAX`.
    """

    def __init__(
        self, entries: Iterable[Recent] = (), *, changes_max: int = RING_CHANGES_DEFAULT
    ) -> None:
        assert 1 <= changes_max <= RING_CHANGES_MAX
        self._entries = sorted(set(entries))
        self._changes_max = changes_max

    @property
    def entries(self) -> Sequence[Recent]:
        """All of them, oldest first."""
        return self._entries

    def add(self, entries: Sequence[Recent]) -> None:
        """Take entries in; what is known already changes nothing."""
        if entries and (not self._entries or self._entries[-1] < entries[0]):
            self._entries.extend(entries)  # a stream's changes ascend
            return
        for entry in entries:
            at = bisect_left(self._entries, entry)
            if at == len(self._entries) or self._entries[at] != entry:
                insort(self._entries, entry)

    def above(self, seqno: int) -> Sequence[Recent]:
        """Return the entries with a larger seqno."""
        return self._entries[bisect_right(self._entries, seqno, key=_seqno) :]

    def surplus(self, through: int) -> Sequence[Recent]:
        """Return the oldest entries that are too many, none of them above `through`."""
        too_many = len(self._entries) - self._changes_max
        if too_many <= 0:
            return ()
        return self._entries[: min(too_many, bisect_right(self._entries, through, key=_seqno))]

    def drop(self, entries: Iterable[Recent]) -> None:
        """Let go of entries."""
        gone = set(entries)
        self._entries = [entry for entry in self._entries if entry not in gone]


def _seqno(entry: Recent) -> int:
    return entry.seqno
