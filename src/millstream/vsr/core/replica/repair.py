"""The missing entries of a log whose end is known by its hash, and what to ask for next.

Invariants:
1. Entries are taken by hash only, from the known end downwards. So they are the right ones,
   whoever sent them.
2. The same question is asked again only after an answer could have come. Else needless requests
   fill the line and delay those that matter.
3. The own log is not changed. The result is one step: keep the log up to an LSN and append
   entries, or begin at a snapshot and append entries.
4. Holes in the part that is kept are filled, too.

Elsewhere: whose end it is (`log_choice`, a StartView, a closed epoch), doing the step (`storage`).

Source: Alagappan et al., "Protocol-Aware Recovery for Consensus-Based Storage", 2018.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from millstream.vsr.core.entries import Entry
from millstream.vsr.core.log import Log
from millstream.vsr.core.snapshots import Snapshot

__all__ = ["AGAIN_MS", "AGAIN_MS_MAX", "Asking", "NewEnd", "Repair", "Wanted"]

AGAIN_MS: Final = 100.0
"""After this time without an answer the same may be asked for again."""
AGAIN_MS_MAX: Final = 1000.0
"""Longest time between two requests. It doubles with every try, from twice the last answer time.
"""


class Asking:
    """When to ask, for one thing after the other."""

    def __init__(self) -> None:
        self._question: object = None
        self._since_ms = self._asked_ms = 0.0
        self._again_ms = AGAIN_MS

    def is_due(self, question: object, now_ms: float) -> bool:
        """Return whether to ask this now. If so, it counts as asked."""
        if question != self._question:
            took_ms = now_ms - self._since_ms if self.waits(now_ms) else 0.0
            self._again_ms = min(max(2 * took_ms, AGAIN_MS), AGAIN_MS_MAX)
            self._question, self._since_ms = question, now_ms
        elif self.waits(now_ms):
            return False
        else:
            self._again_ms = min(2 * self._again_ms, AGAIN_MS_MAX)
        self._asked_ms = now_ms
        return True

    def waits(self, now_ms: float) -> bool:
        """Return whether an answer may still come."""
        return self._question is not None and now_ms - self._asked_ms < self._again_ms

    def forget(self) -> None:
        """Make the next request due now."""
        self._question = None


class Wanted(NamedTuple):
    """An entry that is missing, and how many entries up to it."""

    lsn: int
    hash: bytes
    number: int


class NewEnd(NamedTuple):
    """How a log is to be changed: keep it up to an LSN, or begin at `snapshot`; then `suffix`."""

    keep_lsn: int
    suffix: tuple[Entry, ...]
    snapshot: Snapshot | None = None


class Repair:
    """The way from `log` to one that ends in (`lsn`, `digest`).

    `spare` has entries that were fetched on the way to other ends: views may change faster than
    entries arrive. What is fetched here is put there, too.
    """

    def __init__(
        self, log: Log, lsn: int, digest: bytes, spare: dict[int, Entry] | None = None
    ) -> None:
        self._log = log
        self.lsn = lsn
        self.hash = digest
        self.asking = Asking()
        self._found: dict[int, Entry] = {}
        self._spare = {} if spare is None else spare
        self._next = (lsn, digest)
        self._snapshot: Snapshot | None = None

    def use(self, snapshot: Snapshot) -> None:
        """Replace everything up to the LSN of a snapshot of this log by the snapshot."""
        assert snapshot.id.lsn <= self.lsn
        self._snapshot, self._next = snapshot, (self.lsn, self.hash)
        self.asking.forget()

    @property
    def _floor_lsn(self) -> int:
        return self._log.base.lsn if self._snapshot is None else self._snapshot.id.lsn

    def _is_known(self, lsn: int, digest: bytes) -> bool:
        if self._snapshot is not None and lsn == self._floor_lsn:
            return digest == self._snapshot.id.link.hash
        return self._log.hash_at(lsn) == digest

    @property
    def snapshot_lsn(self) -> int | None:
        """The LSN of the snapshot that the result begins at; None if there is none."""
        return None if self._snapshot is None else self._snapshot.id.lsn

    @property
    def is_of_another_log(self) -> bool:
        """Whether the fetched entries lead down to something else than the required beginning.

        The beginning is the snapshot, or what the own log begins behind. Nothing more is wanted
        then, and there is no result.
        """
        lsn, digest = self._meet()
        return lsn <= self._floor_lsn and not self._is_known(lsn, digest)

    def hash_at(self, lsn: int) -> bytes | None:
        """Return the hash at an LSN of the result.

        None if it is unknown or below the beginning.
        """
        if lsn < self._floor_lsn:
            return None
        if self._snapshot is not None and lsn == self._floor_lsn:
            return self._snapshot.id.link.hash
        entry = self._found.get(lsn)
        return self._log.hash_at(lsn) if entry is None else entry.header.hash

    def offer(self, entries: Iterable[Entry]) -> None:
        """Take the wanted entries of a chain, its end first."""
        for entry in reversed(tuple(entries)):
            wanted = self.wanted
            if wanted is None:
                return
            if entry.lsn == wanted.lsn and entry.header.hash == wanted.hash:
                self._found[entry.lsn] = self._spare[entry.lsn] = entry

    @property
    def wanted(self) -> Wanted | None:
        """What to ask for next, None once nothing is missing."""
        lsn, digest = self._meet()
        if not self._is_known(lsn, digest):
            if lsn <= self._floor_lsn:
                return None
            return Wanted(lsn, digest, lsn - self._floor_lsn)
        for hole in self._log.holes:
            if self._floor_lsn < hole <= lsn:
                missing = self._log.hash_at(hole)
                assert missing is not None
                if self._fetched(hole, missing) is None:
                    return Wanted(hole, missing, 1)
        return None

    def _fetched(self, lsn: int, digest: bytes) -> Entry | None:
        spare = self._spare.get(lsn)
        if lsn not in self._found and spare is not None and spare.header.hash == digest:
            self._found[lsn] = spare
        return self._found.get(lsn)

    def _meet(self) -> tuple[int, bytes]:
        """Return where the entries found so far lead down to."""
        lsn, digest = self._next
        while not self._is_known(lsn, digest):
            entry = self._fetched(lsn, digest) if lsn > self._floor_lsn else None
            if entry is None:
                break
            lsn, digest = lsn - 1, entry.header.prev_hash
        self._next = lsn, digest
        return self._next

    def result(self) -> NewEnd:
        """Return how the log is to be changed."""
        assert self.wanted is None
        assert not self.is_of_another_log
        met, _ = self._meet()
        holes = self._log.holes
        keep_lsn = min(met, holes[0] - 1) if holes else met
        if self._snapshot is not None:
            keep_lsn = self._floor_lsn
        suffix = []
        for lsn in range(keep_lsn + 1, self.lsn + 1):
            entry = self._found.get(lsn) or self._log.entry_at(lsn)
            assert entry is not None
            suffix.append(entry)
        return NewEnd(keep_lsn, tuple(suffix), self._snapshot)
