"""The queue, its holds and a log against a list of all changes, in random schedules.

Readers work as streams do: they freeze a state, read it from memory and log in pieces between
other steps, and begin again when their hold was lost. What a reader finished must be exactly the
newest change of each key at or below its seqno, each with the side it was accepted with, if
that was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.documents.stored import load, pack
from millstream.kv.core.partition.revision_changes import write_document
from millstream.kv.core.queue.holds import with_kept
from millstream.kv.core.queue.mutation_queue import Entry, MutationQueue
from millstream.model.limits import QUEUE_SECONDS_MAX
from millstream.model.position import FailoverEntry
from millstream.model.sides import split
from millstream.upr.core.source import Hold
from millstream.wire.frames import (
    change_of,
    described,
    description_bytes,
    mutation,
    seqno_of,
)
from support.budget import budget
from support.http.revised_documents import signature, with_leaf
from support.kv.log_double import NOW, LogDouble, items_of, new_partition

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])


class Reading:
    """One reader: reads (sent, at] of a hold in pieces."""

    def __init__(self, machine: QueueMachine, hold: Hold, start: int, owns_hold: bool) -> None:
        self.machine, self.hold, self.start, self.owns_hold = machine, hold, start, owns_hold
        self.is_described = bool((hold.hold_id + start) & 1)
        self.sent = start
        self.found: list[bytes] = []
        self.chunks: Iterator[tuple[list[bytes], int]] | None = None
        self.upto = 0
        machine.partition.add_reader(self)

    @property
    def memory_after(self) -> int:
        return max(self.sent, self.upto)

    def step(self, bytes_max: int, items_max: int) -> None:
        """Read one piece, as a stream does."""
        partition, at, is_logged = self.machine.partition, self.hold.at, self.hold.is_logged
        if self.chunks is not None:
            chunk = next(self.chunks, None)
            if chunk is None:
                self.chunks, self.sent = None, max(self.sent, self.upto)
                return
        else:
            in_memory = None
            if not is_logged:
                take = partition.described_slice if self.is_described else partition.memory_slice
                in_memory = take(self.sent, at, bytes_max, items_max)
            if in_memory is None:
                self.upto = at if is_logged else min(at, partition.memory_floor)
                self.chunks = partition.backfill(
                    self.sent, at, is_logged=is_logged, is_described=self.is_described
                )
                return
            chunk = in_memory
            assert len(chunk[0]) < 2 or sum(map(len, chunk[0])) <= bytes_max
        frames, last = chunk
        if self.is_described:
            frames = list(map(self.machine.without_side, frames))
        assert all(self.sent < seqno_of(frame) <= last for frame in frames)
        self.found += frames
        self.sent = last

    def close(self) -> None:
        self.machine.partition.remove_reader(self)
        if self.owns_hold:
            self.machine.partition.release_hold(self.hold)


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.log = LogDouble()
        self.partition = new_partition(log=self.log)
        self.history: list[tuple[bytes, bytes]] = []  # (key, frame), seqno n at n - 1
        self.in_flight: tuple[list, int] | None = None
        self.sides: list[bytes] = []
        self.holds: list[Hold] = []
        self.readings: list[Reading] = []
        self.clock = 0.0
        self.finished = 0

    @initialize(bytes_max=st.sampled_from([800, 3_000, 20_000, 1 << 30]))
    def bound(self, bytes_max: int) -> None:
        self.partition.queue.bytes_max = bytes_max

    # -- the mutator

    def accepted(self, key: bytes, frame: object) -> None:
        if isinstance(frame, bytes):
            self.history.append((key, frame))
            self.sides.append(self.partition.table[key].side)
            assert seqno_of(frame) == len(self.history) == self.partition.high_seqno

    def without_side(self, item: bytes) -> bytes:
        """Return the frame of a described one, whose side is the one it was accepted with."""
        frame = item[description_bytes(item) :]
        assert item == described(frame, *split(self.sides[seqno_of(frame) - 1]))
        return frame

    @rule(keys=st.lists(KEYS, min_size=1, max_size=3))
    def write_in_a_new_branch(self, keys: list[bytes]) -> None:
        """Lineages grow, and the versions before that are still read keep theirs."""
        newest = self.partition.failover_log[0]
        entry = FailoverEntry(newest.uuid + 1, self.partition.high_seqno, newest.branch + 1)
        self.partition.replace_log((entry, newest))
        self.partition.begin_branch()
        self.put_many(keys, 1)

    @rule(key=KEYS, size=st.integers(0, 60))
    def put(self, key: bytes, size: int) -> None:
        self.accepted(key, self.partition.put(key, b"1" * size, 0, 0, 0, 0, NOW))

    @rule(key=KEYS, rev=st.integers(1, 5), is_deleted=st.booleans())
    def write_a_revision(self, key: bytes, rev: int, is_deleted: bool) -> None:
        """The key has a sidecar from now on."""
        entry = self.partition.entry(key)
        document = None if entry is None else load("", key, entry.frame, entry.side)
        one = f"{rev}-{signature(len(self.history))}"
        packed = pack(with_leaf(document, one, b'{"a":%d}' % rev, is_deleted=is_deleted))
        self.accepted(key, write_document(self.partition, key, *packed, NOW))

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        self.accepted(key, self.partition.delete(key, 0, NOW))

    @rule(key=KEYS, times=st.sampled_from([1, 1, 2, 3, 700]))
    def count(self, key: bytes, times: int) -> None:
        for _ in range(times):
            counted = self.partition.count(key, 1, 0, 0, 0, NOW)
            if not isinstance(counted, tuple):
                self.accepted(key, self.partition.put(key, b"1", 0, 0, 0, 0, NOW))
                return
            self.accepted(key, counted[0])

    @rule(keys=st.lists(KEYS, min_size=1, max_size=40), times=st.sampled_from([1, 1, 1, 30]))
    def put_many(self, keys: list[bytes], times: int) -> None:
        for key in keys * times:
            self.put(key, 3)

    # -- the flusher

    @precondition(lambda self: self.in_flight is None)
    @rule()
    def freeze(self) -> None:
        items = items_of(self.partition.freeze())
        self.in_flight = (items, self.partition.queue.frozen_seqno)

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def persist(self) -> None:
        assert self.in_flight is not None
        items, mark = self.in_flight
        self.in_flight = None
        self.log.items += items
        if items:
            assert seqno_of(items[-1][0]) == mark
            self.log.marks.append(mark)
        self.partition.persisted(mark)

    @rule()
    def flush(self) -> None:
        for step in (self.persist, self.freeze, self.persist):
            if (self.in_flight is None) == (step == self.freeze):
                step()

    @rule(share=st.floats(0, 1))
    def compact(self, share: float) -> None:
        """Forget versions that nobody reads."""
        newest_mark = max(self.log.marks, default=0)
        limit = min(self.partition.history_limit(), newest_mark)
        self.log.forget(int(limit * share))

    @precondition(lambda self: self.in_flight is None)
    @rule(key=KEYS)
    def evict(self, key: bytes) -> None:
        """What is durable, and no longer in the queue, need not be in memory."""
        entry = self.partition.table.get(key)
        if entry is not None and seqno_of(entry.frame) <= self.partition.queue.floor:
            residents = self.partition.residents
            residents.evict(next(i for i, e in enumerate(residents.ring) if e is entry))

    # -- readers

    @rule(choice=st.integers(0, 1000), kind=st.sampled_from(["now", "held", "mark", "old", "any"]))
    def open_hold(self, choice: int, kind: str) -> None:
        partition = self.partition
        some = {
            "now": [None],
            "held": [hold.at for hold in self.holds if partition.is_held(hold)],
            "mark": [mark for mark in self.log.marks if mark >= self.log.history_seqno],
            "old": [mark for mark in self.log.marks if mark < self.log.history_seqno],
            "any": list(range(1, partition.high_seqno + 1)),
        }[kind]
        if not some:
            return
        at = some[choice % len(some)]
        hold = partition.open_hold(at)
        if hold is None:
            assert kind in ("old", "any")
            return
        assert kind != "old" or partition.queue.holds.is_frozen(at)
        assert hold.at == (partition.high_seqno if at is None else at)
        self.holds.append(hold)

    @precondition(lambda self: self.holds)
    @rule(choice=st.integers(0, 1000))
    def release_hold(self, choice: int) -> None:
        hold = self.holds.pop(choice % len(self.holds))
        self.partition.release_hold(hold)
        for reading in [r for r in self.readings if r.hold is hold]:
            reading.close()
            self.readings.remove(reading)

    @precondition(lambda self: self.holds)
    @rule(choice=st.integers(0, 1000), start=st.floats(0, 1))
    def read_held(self, choice: int, start: float) -> None:
        hold = self.holds[choice % len(self.holds)]
        self.readings.append(Reading(self, hold, int(hold.at * start), owns_hold=False))

    @rule(lag=st.integers(0, 30))
    def read_now(self, lag: int) -> None:
        hold = self.partition.open_hold(None)
        assert hold is not None
        start = max(0, hold.at - lag)
        self.readings.append(Reading(self, hold, start, owns_hold=True))

    @rule(lag=st.integers(0, 2000), bytes_max=st.sampled_from([1, 200, 100_000]))
    def read_at_once(self, lag: int, bytes_max: int) -> None:
        self.read_now(lag)
        reading = self.readings[-1]
        while reading.sent < reading.hold.at or reading.chunks is not None:
            reading.step(bytes_max, 1024)

    @precondition(lambda self: self.readings)
    @rule(
        choice=st.integers(0, 1000), steps=st.integers(1, 6),
        bytes_max=st.sampled_from([1, 200, 100_000]), items_max=st.sampled_from([1, 3, 1024]),
    )  # fmt: skip
    def read(self, choice: int, steps: int, bytes_max: int, items_max: int) -> None:
        reading = self.readings[choice % len(self.readings)]
        for _ in range(steps):
            if reading.sent < reading.hold.at or reading.chunks is not None:
                if not self.partition.is_held(reading.hold):
                    break  # nothing of it is believed
                reading.step(bytes_max, items_max)

    @rule(seconds=st.sampled_from([1.0, QUEUE_SECONDS_MAX, 3.0 * QUEUE_SECONDS_MAX]))
    def pass_time(self, seconds: float) -> None:
        self.clock += seconds
        self.partition.queue.age(self.clock)

    # -- what must be true

    @invariant()
    def queue_is_whole(self) -> None:
        self.partition.queue.check()

    @invariant()
    def readings_are_exact(self) -> None:
        for reading in list(self.readings):
            is_held = self.partition.is_held(reading.hold)
            if is_held and (reading.sent < reading.hold.at or reading.chunks is not None):
                continue
            if is_held:
                self.finished += 1
                assert list(map(change_of, reading.found)) == self.state(
                    reading.start, reading.hold.at
                )
            reading.close()
            self.readings.remove(reading)

    def state(self, after: int, at: int) -> list:
        newest = dict(self.history[:at])
        frames = sorted((f for f in newest.values() if seqno_of(f) > after), key=seqno_of)
        return list(map(change_of, frames))

    def teardown(self) -> None:
        """Everything still held can be read to its end; then nothing is kept for anybody."""
        self.holds = [hold for hold in self.holds if self.partition.is_held(hold)]
        for hold in self.holds:
            self.readings.append(Reading(self, hold, 0, owns_hold=False))
        while self.readings:
            self.readings_are_exact()
            for reading in self.readings:
                reading.step(1000, 1024)
        for hold in self.holds:
            self.partition.release_hold(hold)
        queue = self.partition.queue
        assert not queue.holds.kept
        assert queue.holds.bytes_kept == 0
        newest = {key: seqno_of(frame) for key, frame in self.history}
        live = [s for s in newest.values() if s > queue.floor]
        in_queue = [seqno_of(f) for b in queue.blocks.values() for f in b.frames if f]
        in_queue += [s for items in queue.counters.values() for s in items]
        assert sorted(in_queue) == sorted(live)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=budget(50), stateful_step_count=60, deadline=None)


class ReplicaQueueMachine(RuleBasedStateMachine):
    """A queue that follows another: changes far apart, snapshots, flushes in the middle of them.

    As of the newest complete end it must read what the source had there, from memory and log
    together; the log alone must have the state of every end that it was told of as a mark.
    """

    def __init__(self) -> None:
        super().__init__()
        self.queue = MutationQueue(0, 1 << 20)
        self.queue.settle(0)
        self.log = LogDouble()
        self.newest: dict[bytes, tuple[int, bytes, Entry]] = {}
        self.history: list[tuple[bytes, bytes]] = []
        self.ends = [0]
        self.in_flight: tuple[list, int, int] | None = None

    @initialize(bytes_max=st.sampled_from([2_000, 20_000, 1 << 30]))
    def bound(self, bytes_max: int) -> None:
        self.queue.bytes_max = bytes_max

    @rule(
        keys=st.lists(KEYS, min_size=1, max_size=5, unique=True),
        gaps=st.lists(st.sampled_from([1, 1, 2, 20, 3000]), min_size=5, max_size=5),
        is_complete=st.booleans(),
    )
    def snapshot(self, keys: list[bytes], gaps: list[int], is_complete: bool) -> None:
        """Take a snapshot, or a part of one that is gone on with later."""
        queue = self.queue
        for key, gap in zip(keys, gaps, strict=False):
            seqno = queue.high_seqno + gap
            frame = mutation(0, key, b"%d" % seqno, seqno, 1, NOW, 0, 0, 0)
            old_seqno, old, entry = self.newest.get(key, (0, b"", Entry(key, b"", b"lineage")))
            queue.pass_over(seqno - 1)
            (queue.append_counter if gap > 16 else queue.append)(entry, frame, old_seqno, old)
            entry.frame = frame
            self.newest[key] = (seqno, frame, entry)
            self.history.append((key, frame))
        if is_complete:
            queue.settle(queue.high_seqno)
            self.ends.append(queue.high_seqno)

    @precondition(lambda self: self.in_flight is None)
    @rule()
    def freeze(self) -> None:
        items = items_of(self.queue.freeze().batch(0, has_sidecars=False))
        self.in_flight = (items, self.queue.frozen_seqno, self.ends[-1])

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def persist(self) -> None:
        assert self.in_flight is not None
        items, frozen, end = self.in_flight
        self.in_flight = None
        self.log.items += items
        self.log.marks.append(end)
        self.queue.trim(frozen)

    @rule()
    def collect(self) -> None:
        self.queue.collect(0)

    @invariant()
    def the_newest_complete_end_is_read(self) -> None:
        queue, at = self.queue, self.ends[-1]
        queue.check()
        opened = queue.open_hold(None)
        if opened is None:
            return  # lost for want of memory: until the next end
        assert opened[1] == at
        upto = min(at, queue.floor)
        chunks = self.log.backfill(0, 0, upto, at, queue.superseded_in_log(at))
        found = [f for part, _ in with_kept(chunks, queue.kept_below(0, upto, at)) for f in part]
        after = upto
        while after < at:
            chunk = queue.memory_slice(after, at, 300, 1024)
            assert chunk is not None
            found += chunk[0]
            after = chunk[1]
        queue.release_hold(opened[0])
        assert found == self.state(at)

    @invariant()
    def the_log_has_the_state_at_each_mark(self) -> None:
        for mark in self.log.marks[-2:]:
            found = [f for part, _ in self.log.backfill(0, 0, mark, mark, set()) for f in part]
            assert found == self.state(mark)

    def state(self, at: int) -> list[bytes]:
        newest = {key: frame for key, frame in self.history if seqno_of(frame) <= at}
        return sorted(newest.values(), key=seqno_of)


TestReplicaQueue = ReplicaQueueMachine.TestCase
TestReplicaQueue.settings = settings(
    max_examples=budget(40), stateful_step_count=30, deadline=None
)
