"""The hash table of one partition: documents in memory, and access to those that were evicted.

Invariants:
1. `table[key]` has the newest change of the key, tombstones included. An absent key may be in the
   log, unless `is_complete`.
2. `ring` has each entry of the table once, in no order: the order of eviction's rounds.
3. `memory.table_bytes` counts each entry by `size_of`.
4. A record from the log is installed only if nothing newer is in memory. The log itself omits
   records that a later change or a rollback removed.
5. Evicted keys are in `departed`. If that is None, it is unknown which keys were evicted.
6. No entry has a sidecar unless `has_sidecars` is set.

Elsewhere: the choice of documents to evict (`eviction`), the changes in the table (`partition`),
reading the log without blocking the loop (`kv.aio.reading_back`).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from millstream import accelerated
from millstream.kv.core.partition.departed import Departed
from millstream.kv.core.partition.memory import Memory
from millstream.kv.core.queue.entry import ENTRY_BYTES, Entry, size_of
from millstream.kv.core.queue.log_reader import Fetched, LogReader
from millstream.model.sides import has_sidecar

__all__ = ["NoRoomYet", "NotInMemory", "Residents"]


_cut_seqno: Final = Struct(">24xQ").unpack_from
_MUTATION: Final = 0x57


def _nobody_asks() -> None: ...


class NotInMemory(Exception):
    """A document is on the disk; the caller calls `fetch` and retries once it is here.

    The call that raised it changed nothing.
    """

    def __init__(self, residents: Residents, key: bytes) -> None:
        super().__init__(residents, key)
        self._residents = residents
        self._key = key

    def fetch(self, done: Fetched) -> bool:
        """See `LogReader.fetch`."""
        return self._residents.fetch(self._key, done)


class NoRoomYet(Exception):
    """Memory is full for the moment; a write is retried after the delay.

    The call that raised it changed nothing.
    """


class Residents:
    """The documents of one partition that are in memory."""

    __slots__ = (
        "_log",
        "_partition_id",
        "departed",
        "has_sidecars",
        "is_complete",
        "memory",
        "on_sidecars",
        "read_back_total",
        "ring",
        "table",
    )

    def __init__(
        self, partition_id: int, log: LogReader, memory: Memory, *, is_complete: bool
    ) -> None:
        self._partition_id = partition_id
        self._log = log
        self.memory = memory
        self.is_complete = is_complete
        """The log has no key that is not in the table."""
        self.departed: Departed | None = None
        self.table: dict[bytes, Entry] = {}
        self.ring: list[Entry] = []
        self.read_back_total = 0
        self.has_sidecars = False
        """Some entries may have a sidecar; set with the first one."""
        self.on_sidecars: Callable[[], None] = _nobody_asks
        """Called when that becomes true."""

    def find(self, key: bytes) -> Entry | None:
        """Return the newest change of the key, tombstones included.

        Raises:
            NotInMemory: it has to be read from the disk first.
        """
        entry = self.table.get(key)
        if entry is not None:
            entry.is_used = True
        elif not self.lacks(key):
            try:
                entry = self._log.find(self._partition_id, key)
            except BlockingIOError:
                raise NotInMemory(self, key) from None
            if entry is not None:
                self._take(entry)
                if has_sidecar(entry.side):
                    self.expect_sidecars()
                self.read_back_total += 1
                if self.memory.is_high:
                    self.memory.on_high()
        return entry

    def lacks(self, key: bytes) -> bool:
        """Return whether a key that is not in the table is surely not in the log either."""
        departed = self.departed
        return self.is_complete or (departed is not None and not departed.may_have(key))

    def fetch(self, key: bytes, done: Fetched) -> bool:
        """See `LogReader.fetch`."""
        return self._log.fetch(self._partition_id, key, done)

    def keys(self) -> list[bytes]:
        """Return all keys, tombstones included; reads the log if needed."""
        if self.is_complete:
            return list(self.table)
        return list({**dict.fromkeys(self._log.keys(self._partition_id)), **self.table})

    # -- changing

    def add(self, key: bytes, frame: bytes, side: bytes) -> Entry:
        """Add a key that is neither here nor in the log."""
        entry = Entry(key, frame, side)
        self._take(entry)
        return entry

    def _take(self, entry: Entry) -> None:
        self.table[entry.key] = entry
        self.ring.append(entry)
        self.memory.table_bytes += size_of(entry)

    def replace(self, entry: Entry, frame: bytes, side: bytes) -> None:
        """Replace an entry by its next change."""
        grown = len(frame) - len(entry.frame) + len(side) - len(entry.side)
        self.memory.table_bytes += grown
        entry.frame, entry.side = frame, side

    def expect_sidecars(self) -> None:
        """A document with a sidecar is here, or about to be."""
        if not self.has_sidecars:
            self.has_sidecars = True
            self.on_sidecars()

    def evict(self, at: int) -> None:
        """Let the document at a place of the ring go; another one takes its place. O(1).

        The log must have it, and the queue must not be needed for it.
        """
        ring = self.ring
        entry, last = ring[at], ring.pop()
        if last is not entry:
            ring[at] = last
        del self.table[entry.key]
        self.memory.table_bytes -= size_of(entry)
        if self.is_complete:
            self.departed, self.is_complete = Departed(len(ring) + 1), False
        if self.departed is not None:
            self.departed.add(entry.key)

    def sweep(
        self, hand: int, steps: int, floor: int, left_at: int, low_bytes: int
    ) -> tuple[int, int, bool]:
        """Let documents go from a place of the ring on, while more than `low_bytes` are counted.

        Args:
            hand: the place.
            steps: how many documents are looked at, at most.
            floor: what is above stays: the queue needs it.
            left_at: mutations above stay this time: they are new.
            low_bytes: of the tables of all partitions.

        Returns:
            Where to go on, how many went, and whether any was at or below the floor.
        """
        ring, memory, count, may_go = self.ring, self.memory, 0, False
        while hand < len(ring) and steps > 0 and memory.table_bytes > low_bytes:
            steps -= 1
            entry = ring[hand]
            frame = entry.frame
            seqno = _cut_seqno(frame)[0]
            if seqno > floor:
                hand += 1
                continue
            may_go = True
            if frame[1] == _MUTATION and seqno > left_at:
                hand += 1
            elif frame[1] == _MUTATION and entry.is_used:
                entry.is_used = False
                hand += 1
            else:
                self.evict(hand)
                count += 1
        return hand, count, may_go

    @property
    def departed_bytes(self) -> int:
        """Return the memory of `departed`."""
        return 0 if self.departed is None else len(self.departed.bits)

    def forget(self, *, is_complete: bool) -> None:
        """Become empty: another history begins, and the log has all of it."""
        self.memory.table_bytes -= sum(map(size_of, self.ring))
        self.table, self.ring, self.is_complete = {}, [], is_complete
        self.departed = None

    def check(self) -> None:
        """Assert the invariants; for tests."""
        assert len(self.ring) == len(self.table)
        assert {id(entry) for entry in self.ring} == set(map(id, self.table.values()))
        assert all(key == entry.key for key, entry in self.table.items())
        assert self.has_sidecars or not any(has_sidecar(entry.side) for entry in self.ring)


accelerated.bind(
    Residents, "sweep", Entry, Memory, Departed, ENTRY_BYTES,
    also=(Residents.evict, Departed.add, size_of),
)  # fmt: skip
