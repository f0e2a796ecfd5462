"""A bucket in plain lists, for tests of streams: slow, obviously right, and easy to upset.

A partition keeps every change it ever accepted, so its state as of any seqno is recomputed from
nothing. Tests move the memory floor, lose holds, purge tombstones and fail over as they like.
Whoever reads as of a seqno that is not held misses what was superseded since, as in earnest.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.errors import MillstreamError
from millstream.model.lineage import born
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry, FailoverLog, with_new_entry
from millstream.upr.core.shared_slices import SharedSlices
from millstream.upr.core.source import Hold, Peer, Reader
from millstream.wire.frames import deletion, described, mutation, seqno_of

UUID_BASE = 0xA000


def lineage_of(partition_id: int, seqno: int) -> bytes:
    return born(partition_id + 1, seqno)


class Write(NamedTuple):
    seqno: int
    key: bytes
    value: bytes | None  # None: a tombstone


@dataclass(eq=False)
class FakePartition:
    partition_id: int
    state: PartitionState = PartitionState.ACTIVE
    failover_log: FailoverLog = (FailoverEntry(UUID_BASE + 1, 0, 1),)
    high_seqno: int = 0
    persisted_seqno: int = 0
    purge_seqno: int = 0
    awaited_seqno: int = 0
    memory_floor: int = 0
    chunk_items: int = 2
    writes: list[Write] = field(default_factory=list)
    holds: dict[int, int] = field(default_factory=dict)
    logged_holds: dict[int, int] = field(default_factory=dict)
    hold_count: int = 0
    readers: list[Reader] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    """Seqnos that the log can be read as of."""
    histories: dict[int, list[Write]] = field(default_factory=lambda: {1: []})
    """Branch -> everything ever written in it, purged or not; seen by checks only."""

    is_suspended: bool = False
    unserved: str = ""
    last_branch: int = 0

    @property
    def epoch(self) -> int:
        return hash((self.state, self.failover_log[0]))

    # -- what a test does

    def put(self, key: bytes, value: bytes | None) -> int:
        self.high_seqno += 1
        for known in (self.writes, self.histories[self.failover_log[0].branch]):
            known.append(Write(self.high_seqno, key, value))
        return self.high_seqno

    def fill(self, keys: str) -> None:
        """One write per letter, its value is its seqno; a capital letter deletes."""
        for letter in keys:
            value = None if letter.isupper() else b"%d" % (self.high_seqno + 1)
            self.put(letter.lower().encode(), value)

    def lose_holds(self) -> None:
        self.holds.clear()
        self.logged_holds.clear()

    def forget_memory(self, seqno: int) -> None:
        """Everything at or below `seqno` is in the log only."""
        self.persisted_seqno = max(self.persisted_seqno, seqno)
        self.memory_floor = max(self.memory_floor, seqno)

    def fail_over(self, seqno: int) -> None:
        """History above `seqno` is lost, and another one begins."""
        branch = max(self.histories) + 1
        old = self.histories[self.failover_log[0].branch]
        self.histories[branch] = [write for write in old if write.seqno <= seqno]
        self.writes = [write for write in self.writes if write.seqno <= seqno]
        self.high_seqno = seqno
        self.memory_floor = min(self.memory_floor, seqno)
        self.persisted_seqno = min(self.persisted_seqno, seqno)
        entry = FailoverEntry(UUID_BASE + branch, seqno, branch)
        self.failover_log = with_new_entry(self.failover_log, entry)
        self.marks = [mark for mark in self.marks if mark <= seqno]
        self.lose_holds()

    def purge(self, seqno: int) -> None:
        """Drop tombstones at or below `seqno`, with what they hide."""
        self.purge_seqno = max(self.purge_seqno, seqno)
        gone = {w.key: w.seqno for w in self.writes if w.value is None and w.seqno <= seqno}
        self.writes = [w for w in self.writes if w.seqno > gone.get(w.key, 0)]

    def state_at(self, seqno: int, branch: int | None = None) -> dict[bytes, bytes]:
        history = self.histories[branch or self.failover_log[0].branch]
        newest = {write.key: write.value for write in history if write.seqno <= seqno}
        return {key: value for key, value in newest.items() if value is not None}

    # -- the shape of a partition source

    def open_hold(self, at: int | None = None, start: int | None = None) -> Hold | None:
        at = self.high_seqno if at is None else at
        is_frozen = at == self.high_seqno or at in self.holds.values()
        if not is_frozen and (at not in self.marks or at > self.persisted_seqno):
            return None
        self.hold_count += 1
        known = self.holds if is_frozen else self.logged_holds
        known[self.hold_count] = at
        return Hold(self.hold_count, at, not is_frozen)

    def open_rest(self, start: int) -> Hold | None:
        assert self.state is PartitionState.DEAD
        return self.open_hold(None, start)

    def release_hold(self, hold: Hold) -> None:
        self.holds.pop(hold.hold_id, None)
        self.logged_holds.pop(hold.hold_id, None)

    def is_held(self, hold: Hold) -> bool:
        return hold.hold_id in self.holds or hold.hold_id in self.logged_holds

    awaits_majority, is_durable_known = False, True

    def may_be_known(self, now_ns: int) -> bool:
        return False

    def check_durable(self) -> None:
        pass

    def durable_mark(self) -> int:
        return max((mark for mark in self.marks if mark <= self.persisted_seqno), default=0)

    def add_reader(self, reader: Reader) -> None:
        self.readers.append(reader)

    def remove_reader(self, reader: Reader) -> None:
        if reader in self.readers:
            self.readers.remove(reader)

    def memory_slice(
        self, after: int, at: int, bytes_max: int, items_max: int
    ) -> tuple[list[bytes], int] | None:
        assert bytes_max >= 1
        assert items_max >= 1
        assert at not in self.marks or at == self.high_seqno or at in self.holds.values()
        if after < self.memory_floor:
            return None
        last = min(at, after + items_max)
        frames: list[bytes] = []
        for write in self._as_of(at):
            if after < write.seqno <= last:
                frame = self.frame(write)
                if frames and sum(map(len, frames)) + len(frame) > bytes_max:
                    return frames, write.seqno - 1
                frames.append(frame)
        return frames, last

    def slots(self, after: int, at: int, items_max: int) -> tuple[list[bytes], int, int] | None:
        if after < self.memory_floor:
            return None
        frames = [b""] * (at + 1)
        for write in self._as_of(at):
            frames[write.seqno] = self.frame(write)
        return frames, after + 1, min(at, after + items_max) + 1

    def described_slice(
        self, after: int, at: int, bytes_max: int, items_max: int
    ) -> tuple[list[bytes], int] | None:
        found = self.memory_slice(after, at, max(1, bytes_max // 2), items_max)
        return found and (list(map(self.described, found[0])), found[1])

    def backfill(
        self, after: int, at: int, *, is_logged: bool = False, is_described: bool = False
    ) -> Iterator[tuple[list[bytes], int]]:
        upto = at if is_logged else min(at, self.memory_floor)
        found = [write for write in self._as_of(at) if after < write.seqno <= upto]
        chunks = self._chunks(found, at)
        if is_described:
            return ((list(map(self.described, frames)), last) for frames, last in chunks)
        return chunks

    def _chunks(self, found: list[Write], at: int) -> Iterator[tuple[list[bytes], int]]:
        for begin in range(0, len(found), self.chunk_items):
            part = found[begin : begin + self.chunk_items]
            kept = set(self._as_of(at))
            yield [self.frame(write) for write in part if write in kept], part[-1].seqno

    def _as_of(self, at: int) -> list[Write]:
        is_held = at == self.high_seqno or at in self.holds.values() or at in self.marks
        newest = {w.key: w for w in self.writes if not is_held or w.seqno <= at}
        return sorted(write for write in newest.values() if write.seqno <= at)

    def described(self, frame: bytes) -> bytes:
        return described(frame, lineage_of(self.partition_id, seqno_of(frame)))

    def frame(self, write: Write) -> bytes:
        seqno, key, value = write
        if value is None:
            return deletion(self.partition_id, key, seqno, seqno, seqno, 1_700_000_000)
        return mutation(self.partition_id, key, value, seqno, seqno, seqno, 0, 0, 1)


@dataclass(eq=False)
class FakeBucket:
    partitions: list[FakePartition]
    name: str = "fake"
    leases: dict[tuple[int, int], Hold] = field(default_factory=dict)
    callbacks: list[Callable[[], None]] = field(default_factory=list)
    durable_callbacks: list[Callable[[], None]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    """What producers said of copies that follow."""
    take_overs: set[int] = field(default_factory=set)
    held_back: set[int] = field(default_factory=set)
    stop_error: MillstreamError | None = None
    shared_slices: SharedSlices | None = None

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    def partition(self, partition_id: int) -> FakePartition | None:
        return self.partitions[partition_id] if partition_id < len(self.partitions) else None

    def subscribe(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def subscribe_durable(self, callback: Callable[[], None]) -> None:
        self.durable_callbacks.append(callback)

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        for callbacks in (self.callbacks, self.durable_callbacks):
            if callback in callbacks:
                callbacks.remove(callback)

    def changed(self) -> None:
        for callback in tuple(self.callbacks):
            callback()

    def lease_hold(self, lease_id: int, partition_id: int, start: int) -> Hold | None:
        hold = self.leases.get((lease_id, partition_id))
        return hold if hold and self.partitions[partition_id].is_held(hold) else None

    def on_joined(self, name: str, partition_id: int, stream: object) -> None:
        self.told.append(f"{name} joined {partition_id}")

    def on_acknowledged(
        self, name: str, partition_id: int, stream: object, complete_end: int, persisted_end: int
    ) -> None:
        self.told.append(f"{name} has {complete_end} {persisted_end} of {partition_id}")

    def on_accepted(self, peer: Peer, partition_id: int, stream: object) -> None:
        self.heard.append(f"{peer.name} accepts {partition_id}")

    def on_heard(self, peer: Peer) -> None:
        self.heard.append(f"{peer.name} answers {peer.sent_ms}")

    def on_left(self, name: str, partition_id: int, stream: object) -> None:
        self.told.append(f"{name} left {partition_id}")

    def may_hand_over(self, partition_id: int, reader: str) -> bool:
        return True

    def begin_take_over(self, partition_id: int, reader: str) -> bool:
        is_first = partition_id not in self.take_overs
        self.take_overs.add(partition_id)
        return is_first

    def end_take_over(self, partition_id: int) -> None:
        self.take_overs.discard(partition_id)
        self.held_back.discard(partition_id)

    def hold_back_writes(self, partition_id: int) -> None:
        self.held_back.add(partition_id)

    def accept_writes_again(self, partition_id: int) -> None:
        self.held_back.discard(partition_id)

    async def stop_copy(self, partition_id: int, epoch: int) -> None:
        if self.stop_error is not None:
            raise self.stop_error
        partition = self.partitions[partition_id]
        assert (partition.state, partition.epoch) == (PartitionState.ACTIVE, epoch)
        partition.state = PartitionState.DEAD
        self.changed()
