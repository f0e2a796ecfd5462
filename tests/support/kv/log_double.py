"""An in-memory log with the shape of `LogReader`, for tests of partitions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from millstream.kv.core.bucket import Bucket
from millstream.kv.core.collaborators import Collaborators
from millstream.kv.core.partition.memory import Memory
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.queue.log_reader import Fetched
from millstream.kv.core.queue.mutation_queue import Entry
from millstream.model.position import FailoverEntry
from millstream.model.sides import side_of, split
from millstream.storage.core.segment_files import Sizes
from millstream.storage.core.store import FlushBatch
from millstream.wire.frames import change_of, described, seqno_of

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND
BRANCH = 7 << 40


Item = tuple[bytes, int, bytes]
"""Frame, previous seqno, side."""


def items_of(frozen: FlushBatch) -> list[Item]:
    assert list(frozen.seqnos) == [seqno_of(frame) for frame in frozen.frames]
    assert list(frozen.keys) == [change_of(frame).key for frame in frozen.frames]
    sidecars = frozen.sidecars or repeat(b"", len(frozen.frames))
    sides = map(side_of, frozen.lineages, sidecars)
    return list(zip(frozen.frames, frozen.previous_seqnos, sides, strict=True))


class LogDouble:
    """Records in flush order; while it is `cold`, reading needs `fetch` and `bring`."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.marks: list[int] = []
        self.history_seqno = 0
        self.is_cold = False
        self.finds = 0
        self.fetching: list[tuple[bytes, Fetched]] = []
        self.fetching_max = 1000
        self._offered: bytes | None = None

    def take(self, partition: Partition) -> None:
        """Flush a partition."""
        items = items_of(partition.freeze())
        self.items += items
        mark = partition.queue.frozen_seqno
        if items:
            self.marks.append(mark)
        partition.persisted(mark)

    def find(self, partition_id: int, key: bytes) -> Entry | None:
        self.finds += 1
        if self.is_cold and key != self._offered and key in self.keys(partition_id):
            raise BlockingIOError
        for item in reversed(self.items):
            if change_of(item[0]).key == key:
                return Entry(key, item[0], item[2])
        return None

    def newest_seqno(self, partition_id: int, key: bytes) -> int:
        found = self.find(partition_id, key)
        return seqno_of(found.frame) if found else 0

    def fetch(self, partition_id: int, key: bytes, done: Fetched) -> bool:
        if len(self.fetching) >= self.fetching_max:
            return False
        self.fetching.append((key, done))
        return True

    def bring(self, error: Exception | None = None) -> None:
        """The disk has read what was asked for first."""
        self._offered, done = self.fetching.pop(0)
        done(error)
        self._offered = None

    def backfill(
        self,
        partition_id: int,
        after: int,
        upto: int,
        at: int,
        superseded: set[int],
        *,
        is_described: bool = False,
    ) -> Iterator[tuple[list[bytes], int]]:
        items = [item for item in self.items if after < seqno_of(item[0]) <= upto]
        gone = superseded | {item[1] for item in self.items if seqno_of(item[0]) <= at}
        for item in items:
            seqno = seqno_of(item[0])
            frame = described(item[0], *split(item[2])) if is_described else item[0]
            yield [frame] if seqno not in gone else [], seqno
        yield [], upto

    def sizes(
        self, partition_id: int, after: int, upto: int, at: int, superseded: set[int]
    ) -> Iterator[Sizes]:
        for frames, last in self.backfill(partition_id, after, upto, at, superseded):
            yield [seqno_of(frame) for frame in frames], list(map(len, frames)), last

    def newest_mark(self, partition_id: int, seqno: int) -> int:
        readable = [mark for mark in self.marks if self.history_seqno <= mark <= seqno]
        return max(readable, default=0)

    def forget(self, history_seqno: int, purge_seqno: int = 0) -> None:
        """Drop versions whose successor, and deletions that are, at or below a seqno."""
        self.history_seqno = max(self.history_seqno, history_seqno)
        newer: dict[bytes, int] = {}
        kept = []
        for item in reversed(self.items):
            change = change_of(item[0])
            is_replaced = newer.get(change.key, self.history_seqno + 1) <= self.history_seqno
            if not is_replaced and not (change.is_deleted and change.seqno <= purge_seqno):
                kept.append(item)
            newer[change.key] = change.seqno
        self.items = kept[::-1]

    def keys(self, partition_id: int) -> Iterator[bytes]:
        for item in self.items:
            yield change_of(item[0]).key

    def page(
        self, partition_id: int, low: bytes, high: bytes, count: int, *, descending: bool
    ) -> list[bytes]:
        keys = {key for key in self.keys(partition_id) if low <= key < high}
        return sorted(keys, reverse=descending)[:count]


def new_partition(
    partition_id: int = 0, *, log: LogDouble | None = None, memory: Memory | None = None
) -> Partition:
    log = log or LogDouble()
    return Partition(
        partition_id,
        failover_log=(FailoverEntry(0xABC, 0, BRANCH),),
        high_seqno=0,
        purge_seqno=0,
        is_resident=not log.items,
        log=log,
        memory=memory,
    )


def persist(partition: Partition) -> None:
    """Flush everything to the partition's log double."""
    batch = partition.freeze()
    log = partition._log
    assert isinstance(log, LogDouble)
    log.items += items_of(batch)
    if batch.seqnos:
        log.marks.append(batch.seqnos[-1])
    partition.persisted(partition.queue.frozen_seqno)


def new_bucket(
    partition_count: int = 4,
    name: str = "b",
    *,
    memory: Memory | None = None,
    collaborators: Collaborators | None = None,
) -> Bucket:
    ids = iter(range(1, 1_000_000))
    return Bucket(
        name,
        "ab" * 16,
        [new_partition(i, memory=memory) for i in range(partition_count)],
        new_lease_id=lambda: next(ids),
        now_ns=lambda: NOW,
        monotonic_ns=lambda: 0,
        collaborators=lambda _: collaborators or Collaborators(),
    )
