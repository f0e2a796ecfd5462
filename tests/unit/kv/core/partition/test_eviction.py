from __future__ import annotations

import gc

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream.kv.core.partition import eviction
from millstream.kv.core.partition.eviction import Evictor
from millstream.kv.core.partition.memory import Memory
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.partition.residents import NotInMemory
from millstream.wire.frames import change_of, seqno_of
from support.budget import budget
from support.kv.log_double import NOW, SECOND, LogDouble, new_partition, persist


class ReaderDouble:
    """A stream that has still to read what is above `sent`."""

    def __init__(self, sent: int) -> None:
        self.sent = self.memory_after = sent


def filled(
    count: int, *, share: float = 0.5, partitions: int = 1
) -> tuple[list[Partition], Memory, Evictor]:
    """Documents 0 .. count-1, not persisted, and a quota whose high mark is a share of them."""
    memory = Memory()
    made = [new_partition(i, memory=memory) for i in range(partitions)]
    for n in range(count):
        put(made[n % partitions], n)
    memory.low_bytes = memory.high_bytes = int(memory.table_bytes * share)
    return made, memory, Evictor(made, memory)


def put(partition: Partition, n: int, value: bytes = b"value" * 20) -> None:
    key = b"key%05d" % n
    partition.store(key, key + value, 0, 0, 0, NOW)


def run(evictor: Evictor) -> int:
    """Evict until the mark is reached or nothing may go; return the number of steps."""
    steps = 0
    while evictor._memory.is_high and evictor.step():
        steps += 1
    return steps


def resident(partitions: list[Partition]) -> set[int]:
    return {int(key[3:]) for partition in partitions for key in partition.table}


def test_documents_go_down_to_the_low_mark() -> None:
    partitions, memory, evictor = filled(400, partitions=4)
    for partition in partitions:
        persist(partition)
    size = memory.table_bytes // 400
    run(evictor)
    assert memory.low_bytes - size < memory.table_bytes <= memory.low_bytes
    assert len(resident(partitions)) == 200
    assert evictor.evicted_total == 200
    assert evictor.evicted_bytes == 200 * size
    for n in range(400):
        frame = partitions[n % 4].newest(b"key%05d" % n)
        assert change_of(frame).value == b"value" * 20


def test_nothing_goes_that_is_not_persisted() -> None:
    partitions, memory, evictor = filled(100, share=0)
    assert run(evictor) == 1
    assert not evictor.step()
    assert len(resident(partitions)) == 100
    persist(partitions[0])
    put(partitions[0], 7)
    put(partitions[0], 200)
    partitions[0].delete(b"key00008", 0, NOW)
    run(evictor)
    assert resident(partitions) == {7, 8, 200}
    assert not evictor.step()
    assert memory.is_high
    persist(partitions[0])
    run(evictor)
    assert resident(partitions) == set()
    assert memory.table_bytes == 0
    assert change_of(partitions[0].newest(b"key00008")).is_deleted


def test_what_was_read_stays_longer() -> None:
    partitions, _, evictor = filled(200, share=0.7)
    persist(partitions[0])
    hot = set(range(0, 200, 4))
    for _ in range(4):
        for n in hot:
            partitions[0].newest(b"key%05d" % n)
        run(evictor)
        put(partitions[0], 1000 + _)
        persist(partitions[0])
        assert hot <= resident(partitions)
    for n in range(2000, 2200):
        put(partitions[0], n)
    persist(partitions[0])
    run(evictor)
    assert not hot <= resident(partitions)


def test_what_was_written_lately_stays_longer() -> None:
    partitions, _, evictor = filled(200)
    persist(partitions[0])
    run(evictor)  # the hand has been round: all of these are old now
    old = resident(partitions)
    new = set(range(300, 340))
    for n in new:
        put(partitions[0], n)
    persist(partitions[0])
    run(evictor)
    assert new <= resident(partitions)
    assert len(old & resident(partitions)) < len(old)


def test_the_first_round_lets_the_older_half_go() -> None:
    """Else memory would have to wait for a whole round before anything can go."""
    partitions, _, evictor = filled(200, share=0.6)
    persist(partitions[0])
    evictor.step()
    assert resident(partitions) < set(range(200))
    assert set(range(100, 200)) <= resident(partitions)


def test_tombstones_go_first() -> None:
    partitions, _, evictor = filled(100, share=0.9)
    partition = partitions[0]
    for n in range(0, 100, 2):
        partition.delete(b"key%05d" % n, 0, NOW)
        partition.newest(b"key%05d" % n)
    for n in range(1, 100, 2):
        partition.newest(b"key%05d" % n)
    persist(partition)
    evictor._memory.low_bytes = evictor._memory.high_bytes = 1 + evictor._memory.table_bytes // 2
    run(evictor)
    assert all(n % 2 for n in resident(partitions))
    assert len(resident(partitions)) > 20


def test_a_step_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "STEP_DOCUMENTS", 10)
    partitions, _, evictor = filled(105, share=0)
    persist(partitions[0])
    before = 105
    evictor._left_at[0] = 200
    while before:
        assert evictor.step()
        left = len(resident(partitions))
        assert before - 10 <= left < before
        before = left
    assert not evictor._memory.is_high


def test_readers_keep_what_they_have_still_to_read_until_pressed() -> None:
    partitions, _, evictor = filled(100, share=0)
    partition = partitions[0]
    partition.add_reader(ReaderDouble(40))
    persist(partition)
    run(evictor)
    assert {seqno_of(entry.frame) for entry in partition.table.values()} == set(range(41, 101))
    assert partition.memory_slice(40, 100, 1 << 20, 1000) is not None
    assert evictor.press()
    run(evictor)
    assert not partition.table
    assert partition.memory_slice(40, 100, 1 << 20, 1000) is None
    assert not evictor.press()


def test_a_fruitless_partition_is_left_alone_until_something_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partitions, _, evictor = filled(100, share=0, partitions=2)
    swept: list[int] = []
    sweep = evictor._sweep
    monkeypatch.setattr(evictor, "_sweep", lambda at: swept.append(at) or sweep(at))
    run(evictor)
    assert swept == [0, 1]
    for _ in range(3):
        assert not evictor.step()
    persist(partitions[1])
    swept.clear()
    run(evictor)
    assert set(swept) == {1}
    assert not partitions[1].table
    swept.clear()
    partitions[1].newest(b"key00001")
    run(evictor)
    assert set(swept) == {1}


def test_a_table_that_was_forgotten_meanwhile_is_begun_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eviction, "STEP_DOCUMENTS", 10)
    partitions, _, evictor = filled(100, share=0)
    partition = partitions[0]
    persist(partition)
    evictor.step()
    evictor.step()
    partition.residents.forget(is_complete=False)
    partition.table = partition.residents.table
    for n in range(5):
        assert partition.newest(b"key%05d" % n)
    run(evictor)
    assert not partition.table


class Evicting(RuleBasedStateMachine):
    """Table, eviction and log against a dict of what each key is."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        self.partitions = [new_partition(i, memory=self.memory) for i in range(2)]
        self.evictor = Evictor(self.partitions, self.memory)
        self.truth: dict[int, tuple[bytes | None, int]] = {}  # value, revision
        self.now = NOW

    def log(self, partition: Partition) -> LogDouble:
        log = partition._log
        assert isinstance(log, LogDouble)
        return log

    def calling(self, partition: Partition, call):  # type: ignore[no-untyped-def]
        """Do as a session: what is on the disk is fetched, then everything begins again."""
        before = partition.high_seqno
        found: list[object] = []
        try:
            return call()
        except NotInMemory as error:
            absent = error
        assert partition.high_seqno == before
        assert absent.fetch(lambda _: found.append(call()))
        self.log(partition).bring()
        return found[0]

    @rule(n=st.integers(0, 9), value=st.binary(max_size=200))
    def put(self, n: int, value: bytes) -> None:
        partition, key = self.partitions[n % 2], b"key%d" % n
        self.now += SECOND
        frame = self.calling(
            partition, lambda: partition.store(key, key + value, 0, 0, 0, self.now)
        )
        rev = self.truth.get(n, (None, 0))[1] + 1
        assert change_of(frame).rev == rev
        assert change_of(frame).cas == self.now
        self.truth[n] = value, rev

    @rule(n=st.integers(0, 9))
    def delete(self, n: int) -> None:
        partition = self.partitions[n % 2]
        result = self.calling(partition, lambda: partition.delete(b"key%d" % n, 0, self.now))
        value, rev = self.truth.get(n, (None, 0))
        assert isinstance(result, bytes) == (value is not None)
        if value is not None:
            self.truth[n] = None, rev + 1

    @rule(n=st.integers(0, 9))
    def count(self, n: int) -> None:
        partition = self.partitions[n % 2]
        value, rev = self.truth.get(n, (None, 0))
        if value is None or (value.isdigit() and len(value) < 10):
            number = 5 if value is None else int(value) + 1
            result = self.calling(
                partition, lambda: partition.count(b"key%d" % n, 1, 5, 0, 0, self.now)
            )
            assert result[1] == number
            self.truth[n] = b"%d" % number, rev + 1

    @rule(n=st.integers(0, 11))
    def get(self, n: int) -> None:
        partition = self.partitions[n % 2]
        frame = self.calling(partition, lambda: partition.live(b"key%d" % n, self.now))
        value = self.truth.get(n, (None, 0))[0]
        assert (None if frame is None else change_of(frame).value) == value

    @rule(which=st.integers(0, 1))
    def flush(self, which: int) -> None:
        persist(self.partitions[which])

    @rule(share=st.floats(0, 1), steps=st.integers(1, 4))
    def evict(self, share: float, steps: int) -> None:
        self.memory.low_bytes = int(self.memory.table_bytes * share)
        for _ in range(steps):
            self.evictor.step()

    @rule(is_cold=st.booleans())
    def cool(self, is_cold: bool) -> None:
        for partition in self.partitions:
            self.log(partition).is_cold = is_cold

    @precondition(lambda self: len(self.partitions[0].queue.readers) < 3)
    @rule(which=st.integers(0, 1), share=st.floats(0, 1))
    def read_slowly(self, which: int, share: float) -> None:
        partition = self.partitions[which]
        partition.add_reader(ReaderDouble(int(partition.high_seqno * share)))

    @rule(which=st.integers(0, 1))
    def stop_reading(self, which: int) -> None:
        self.partitions[which].queue.readers.clear()

    @rule()
    def press(self) -> None:
        self.evictor.press()

    @rule(which=st.integers(0, 1))
    def stream_everything(self, which: int) -> None:
        """From 0, as a stream: log first, then memory."""
        partition = self.partitions[which]
        at, after, frames = partition.high_seqno, 0, list[bytes]()
        while after < at:
            taken = partition.memory_slice(after, at, 1 << 20, 1000)
            chunks = [taken] if taken is not None else list(partition.backfill(after, at))
            for chunk, upto in chunks:
                frames, after = frames + chunk, upto
        changes = [change_of(frame) for frame in frames]
        seqnos = [change.seqno for change in changes]
        assert seqnos == sorted(seqnos)
        assert {(c.key, None if c.is_deleted else c.value, c.rev) for c in changes} == {
            (b"key%d" % n, value, rev) for n, (value, rev) in self.truth.items() if n % 2 == which
        }

    @invariant()
    def everything_is_somewhere(self) -> None:
        for partition in self.partitions:
            partition.residents.check()
            partition.queue.check()
            keys = {change_of(item[0]).key for item in self.log(partition).items}
            known = {b"key%d" % n for n in self.truth if n % 2 == partition.partition_id}
            assert keys | set(partition.table) == known
            dirty = {k for k, e in partition.table.items() if k not in keys}
            assert partition.residents.is_complete <= (known == set(partition.table))
            assert all(seqno_of(partition.table[k].frame) > 0 for k in dirty)


Evicting.TestCase.settings = settings(
    max_examples=budget(60), stateful_step_count=40, deadline=None
)
TestEvicting = Evicting.TestCase


def test_a_step_takes_about_a_millisecond() -> None:
    """Here with room for slow machines; the figure is in docs/design/0005-memory.md."""
    from time import process_time

    _, _, evictor = filled(20_000, share=0)
    persist(evictor._partitions[0])
    evictor._left_at[0] = 1 << 40
    longest = 0.0
    gc.collect()
    while evictor._memory.is_high:
        began = process_time()
        evictor.step()
        longest = max(longest, process_time() - began)
    assert longest < 0.05
