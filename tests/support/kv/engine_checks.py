"""What can be read of a bucket, compared with the model.

Invariants, each an assertion:
1. A look-up gives the exact frame and lineage of the newest change, in memory or not; what is in
   memory is counted.
2. A read as of a hold, or of a mark that can be restored, gives the newest of each key, each
   once, seqnos ascending; only tombstones that compaction may purge can be missing. Every other
   reader asks for lineages: each is what the document had when the change was accepted.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from millstream.kv.core.bucket import Bucket
from millstream.kv.core.partition.memory import Memory
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.partition.states import STREAMED
from millstream.kv.core.queue.entry import Entry, size_of
from millstream.model.partitions import PartitionState
from millstream.model.sides import side_of
from millstream.storage.core.store import LogStore, StoredChange
from millstream.upr.core.source import Hold
from millstream.wire.frames import Change, change_of, description_bytes, seqno_of
from support.kv.engine_model import Made, PartitionModel, described_bytes, side_bytes

KEYS: Final = (b"a", b"b", b"c", b"dd")


@dataclass(eq=False)
class Read:
    """A reader on its way: as of a hold, from the log and from memory."""

    partition_id: int
    hold: Hold
    after: int
    purge_seqno: int
    """When it began: what it has still to read is not forgotten meanwhile."""
    sent: int
    upto: int = 0
    chunks: Iterator[tuple[list[bytes], int]] | None = None
    frames: list[bytes] = field(default_factory=list)

    @property
    def asks(self) -> bool:
        """Whether it asks for lineages."""
        return bool(self.hold.hold_id & 1)

    @property
    def memory_after(self) -> int:
        return max(self.sent, self.upto)


class EngineChecks:
    """The half of a simulated engine that looks."""

    rng: random.Random
    models: list[PartitionModel]
    bucket: Bucket
    store: LogStore
    memory: Memory
    holds: list[tuple[int, Hold]]
    reads: list[Read]

    def step_read(self, read: Read) -> None:
        """One chunk further; what is complete is checked."""
        partition, hold = self.bucket.partitions[read.partition_id], read.hold
        if not partition.is_held(hold):
            self._end_read(read)
        elif read.chunks is not None:
            chunk = next(read.chunks, None)
            if chunk is None:
                read.chunks, read.sent = None, max(read.sent, read.upto)
            else:
                self._take(read, *chunk)
        elif read.sent < hold.at:
            chunk = None
            if not hold.is_logged:
                take = partition.described_slice if read.asks else partition.memory_slice
                chunk = take(read.sent, hold.at, 150, 3)
            if chunk is None:
                read.upto = hold.at if hold.is_logged else min(hold.at, partition.memory_floor)
                read.chunks = partition.backfill(
                    read.sent, hold.at, is_logged=hold.is_logged, is_described=read.asks
                )
            else:
                self._take(read, *chunk)
        else:
            self._end_read(read)
            p, after = read.partition_id, read.after
            self.check_frames(p, read.frames, after, hold.at, read.purge_seqno)

    def _end_read(self, read: Read) -> None:
        self.reads.remove(read)
        self.bucket.partitions[read.partition_id].remove_reader(read)
        self.bucket.partitions[read.partition_id].release_hold(read.hold)

    def check(self) -> None:
        """Everything that is quick; and readers go on."""
        if self.reads:
            self.step_read(self.rng.choice(self.reads))
        self._check_memory()
        for p, model in enumerate(self.models):
            partition = self.bucket.partitions[p]
            partition.queue.check()
            assert partition.high_seqno == model.shown
            assert partition.queue.high_seqno == model.high
            assert partition.state is model.state
            assert (partition.refusal is None) == (model.state is PartitionState.ACTIVE)
            assert partition.failover_log == tuple(reversed(model.entries))
            assert partition.last_cas == model.last_cas
            for key in KEYS:
                self._check_key(partition, model, key)
            self._check_read(p, self.rng.randint(0, model.shown))
        self.holds = [
            (p, hold) for p, hold in self.holds if self.bucket.partitions[p].is_held(hold)
        ]
        if self.holds:
            p, hold = self.rng.choice(self.holds)
            after = self.rng.choice((0, self.rng.randint(0, hold.at)))
            self.check_frames(p, self._read_all(p, after, hold), after, hold.at)

    def _check_memory(self) -> None:
        tables = [partition.residents for partition in self.bucket.partitions]
        for residents in tables:
            residents.check()
        sizes = (size_of(entry) for residents in tables for entry in residents.ring)
        assert self.memory.table_bytes == sum(sizes)

    def _check_key(self, partition: Partition, model: PartitionModel, key: bytes) -> None:
        """What has left memory is looked at where it is: it stays there."""
        made, residents = model.newest(key), partition.residents
        entry: Entry | StoredChange | None = residents.table.get(key)
        if entry is None and not residents.is_complete:
            entry = self.store.find(partition.partition_id, key)
        if made is None or entry is None:
            assert entry is None
            assert made is None or model.may_be_gone(made), f"{key!r}: {made} is gone"
            return
        assert entry.frame == made.frame, f"{change_of(entry.frame)}, right is {made}"
        kept = entry.side if isinstance(entry, Entry) else side_of(entry.lineage, entry.sidecar)
        assert kept == side_bytes(made), f"{key!r}: side of {made}"

    def _check_read(self, p: int, after: int) -> None:
        partition = self.bucket.partitions[p]
        hold = partition.open_hold(start=0)
        if hold is None:  # inside a snapshot too little memory may have lost its beginning
            assert partition.state not in STREAMED or partition.high_seqno < self.models[p].high
            return
        for begin in (0, after):
            self.check_frames(p, self._read_all(p, begin, hold), begin, hold.at)
        partition.release_hold(hold)

    def _read_all(self, p: int, after: int, hold: Hold) -> list[bytes]:
        read = Read(p, hold, after, 0, after)
        partition, at = self.bucket.partitions[p], hold.at
        while read.sent < at:
            chunk = None
            if not hold.is_logged:
                take = partition.described_slice if read.asks else partition.memory_slice
                chunk = take(read.sent, at, 150, 1000)
            if chunk is not None:
                self._take(read, *chunk)
                continue
            for frames, last in partition.backfill(
                read.sent, at, is_logged=hold.is_logged, is_described=read.asks
            ):
                self._take(read, frames, last)
        return read.frames

    def check_frames(
        self, p: int, frames: list[bytes], after: int, at: int, purge_seqno: int | None = None
    ) -> None:
        model = self.models[p]
        seqnos = [seqno_of(frame) for frame in frames]
        assert seqnos == sorted(set(seqnos))
        found = dict(zip(seqnos, frames, strict=True))
        right = {made.seqno: made for made in model.as_of(at, after)}
        wrong = [f for s, f in found.items() if s not in right or not _is_right(f, right[s])]
        gone = [m for s, m in right.items() if s not in found]
        gone = [made for made in gone if not model.may_be_gone(made, purge_seqno)]
        assert not wrong, f"p{p} ({after}, {at}]: sent {[_told(frame) for frame in wrong]}"
        assert not gone, f"p{p} ({after}, {at}]: not sent {gone}"

    def check_marks(self) -> None:
        """As of every mark that can be restored, by the log alone; and the keys it has."""
        store = self.store
        for p, model in enumerate(self.models):
            known = self.bucket.partitions[p].persisted_seqno  # an append may not be absorbed yet
            for at in sorted(model.marks):
                if model.history_seqno <= at <= known:
                    skip = store.superseded(p, 0, at)
                    frames = [c.frame for chunk in store.scan(p, 0, at, skip) for c in chunk]
                    self.check_frames(p, frames, 0, at)
            keys = set(store.keys(p))
            right = {made.key: made for made in model.history[:known] if made is not None}
            above = model.history[known:] if model.complete_end is not None else []
            more = {made.key for made in above if made is not None}
            # A by-id map of before a power loss may still name what compaction took away since.
            left = [key for key in keys - {*right, *more} if store.find(p, key) is not None]
            assert not left, f"p{p}: keys {keys}, found {left}"
            assert all(model.may_be_gone(m) for key, m in right.items() if key not in keys)

    @staticmethod
    def _take(read: Read, frames: list[bytes], last: int) -> None:
        assert all(read.sent < seqno_of(frame) <= last for frame in frames)
        read.frames += frames
        read.sent = last


def _is_right(item: bytes, made: Made) -> bool:
    is_described = bool(description_bytes(item))
    return item == (described_bytes(made) if is_described else made.frame)


def _told(item: bytes) -> tuple[bytes, Change]:
    size = description_bytes(item)
    return item[:size], change_of(item[size:])
