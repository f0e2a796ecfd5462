"""Getting a log whose end is known by its hash: what of it is missing here, and what to ask for.

Invariants:
1. Entries are taken by hash only, from the known end downwards, so whoever sent them, they are
   the ones.
2. The own log is left alone. The result is one step: keep so much, put this behind it.
3. Holes of the part that is kept are filled, too.

Elsewhere: whose end it is (`choosing`, a StartView, a closed epoch), doing the step (`member`).

Source: Alagappan et al., "Protocol-Aware Recovery for Consensus-Based Storage", 2018.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millstream.coordination.core.entries import Entry
from millstream.coordination.core.log import Log

__all__ = ["Repair", "Wanted"]


class Wanted(NamedTuple):
    """An entry that is missing, and how many up to it."""

    lsn: int
    hash: bytes
    number: int


class Repair:
    """The way from `log` to one that ends in (`lsn`, `digest`)."""

    def __init__(self, log: Log, lsn: int, digest: bytes) -> None:
        self._log = log
        self.lsn = lsn
        self.hash = digest
        self._found: dict[int, Entry] = {}
        self._next = (lsn, digest)

    def offer(self, entries: Iterable[Entry]) -> None:
        """Take what is wanted of a chain of entries, its end first."""
        for entry in reversed(tuple(entries)):
            wanted = self.wanted
            if wanted is None:
                return
            if entry.lsn == wanted.lsn and entry.header.hash == wanted.hash:
                self._found[entry.lsn] = entry

    @property
    def wanted(self) -> Wanted | None:
        """What to ask for next, None once nothing is missing."""
        lsn, digest = self._meet()
        if self._log.hash_at(lsn) != digest:
            assert lsn > self._log.base.lsn
            return Wanted(lsn, digest, lsn - self._log.base.lsn)
        for hole in self._log.holes:
            if hole <= lsn and hole not in self._found:
                missing = self._log.hash_at(hole)
                assert missing is not None
                return Wanted(hole, missing, 1)
        return None

    def _meet(self) -> tuple[int, bytes]:
        """Return where the entries found so far come down to."""
        lsn, digest = self._next
        while self._log.hash_at(lsn) != digest and (entry := self._found.get(lsn)):
            lsn, digest = lsn - 1, entry.header.prev_hash
        self._next = lsn, digest
        return self._next

    def result(self) -> tuple[int, tuple[Entry, ...]]:
        """Return how much of the log to keep, and what to put behind it."""
        assert self.wanted is None
        met, _ = self._meet()
        holes = self._log.holes
        keep_lsn = min(met, holes[0] - 1) if holes else met
        suffix = []
        for lsn in range(keep_lsn + 1, self.lsn + 1):
            entry = self._found.get(lsn) or self._log.entry_at(lsn)
            assert entry is not None
            suffix.append(entry)
        return keep_lsn, tuple(suffix)
