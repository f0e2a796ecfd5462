"""Streams over a real queue: whatever memory forgets meanwhile, readers see states that were.

Each schedule is a random sequence of writes, deletions, counters, flushes that take their time,
bounds of memory, lost holds, new branches, eviction, compaction up to what readers allow, and log
reads that come late. Three readers follow, of which one wants only what is durable, and one
lineages, too. Checked at every snapshot's end: the reader's state is the partition's at that
seqno; the durable one's is that of a mark. Every lineage is the one that the change was accepted
with. A failing seed is in the message.
"""

from __future__ import annotations

import random

import pytest

from millstream.model.limits import QUEUE_SECONDS_MAX
from millstream.model.position import FailoverEntry
from millstream.upr.core import shared_slices
from millstream.wire.frames import change_of, seqno_of
from support.budget import budget
from support.kv.log_double import NOW, Item, LogDouble, items_of, new_bucket, new_partition
from support.streams.stream_line import Line

SEEDS_PER_TEST = 50


@pytest.fixture(autouse=True)
def _even_the_smallest_slices_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_slices, "SHARED_ITEMS_MIN", 1)


class World:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.log = LogDouble()
        self.bucket = new_bucket(1)
        if seed % 2:
            # Others stream, too: slices are shared.
            self.bucket.streams.by_name |= dict.fromkeys("ab")
        self.partition = self.bucket.partitions[0] = new_partition(log=self.log)
        self.partition.queue.bytes_max = rng.choice([600, 3000, 1 << 20])
        self.keys = [b"k%d" % number for number in range(rng.randint(1, 6))]
        self.history: list[tuple[bytes, bytes | None]] = []
        self.in_flight: tuple[list[Item], int] | None = None
        self.clock_s = 0.0
        window_bytes = rng.choice([1, 100, 100_000])
        self.lines = [
            Line(rng, 1, self.state_at, window_bytes),
            Line(rng, 1, self.durable_state_at, window_bytes),
            Line(rng, 1, self.state_at, window_bytes),
        ]
        self.lineages: dict[bytes, bytes] = {}
        self.lines[2].lineage_of = self.lineages.__getitem__

    def state_at(self, _: int, seqno: int, branch: int = 0) -> dict[bytes, bytes]:
        newest = dict(self.history[:seqno])
        return {key: value for key, value in newest.items() if value is not None}

    def durable_state_at(self, number: int, seqno: int, branch: int) -> dict[bytes, bytes]:
        assert seqno == 0 or seqno in self.log.marks, f"{seqno} is no mark"
        return self.state_at(number, seqno)

    def connect(self, line: Line) -> None:
        line.connect(self.bucket)
        line.producer.settings.is_durable_only = line is self.lines[1]

    # -- what happens

    def write(self) -> None:
        key, dice = self.rng.choice(self.keys), self.rng.random()
        if dice < 0.3:
            changed = self.partition.delete(key, 0, NOW)
        elif dice < 0.6:
            counted = self.partition.count(key, 1, 0, 0, 0, NOW)
            changed = counted[0] if isinstance(counted, tuple) else counted
        else:
            value = b"%d" % self.rng.randrange(1000)
            changed = self.partition.put(key, value, 0, 0, 0, 0, NOW)
        if isinstance(changed, bytes):
            change = change_of(changed)
            self.history.append((key, None if change.is_deleted else change.value))
            self.lineages[changed] = self.partition.table[key].side

    def begin_branch(self) -> None:
        """What comes now is written in another branch, wherever readers are."""
        newest = self.partition.failover_log[0]
        entry = FailoverEntry(newest.uuid + 1, self.partition.high_seqno, newest.branch + 1)
        self.partition.replace_log((entry, newest))
        self.partition.begin_branch()

    def evict(self) -> None:
        """What the queue does not have leaves memory: keys whose deletion is purged begin anew."""
        residents, floor = self.partition.residents, self.partition.queue.floor
        for at in reversed(range(len(residents.ring))):
            if seqno_of(residents.ring[at].frame) <= floor:
                residents.evict(at)

    def flush(self) -> None:
        """Freeze, or make durable what was frozen."""
        if self.in_flight is None:
            self.in_flight = items_of(self.partition.freeze()), self.partition.queue.frozen_seqno
            return
        (items, mark), self.in_flight = self.in_flight, None
        self.log.items += items
        if items:
            self.log.marks.append(mark)
        self.partition.persisted(mark)

    def compact(self) -> None:
        rng, partition = self.rng, self.partition
        history = min(partition.history_limit(), max(self.log.marks, default=0))
        history = max(self.log.history_seqno, rng.randint(0, history))
        purge = min(history, partition.purge_limit())
        partition.purge_seqno = max(partition.purge_seqno, rng.randint(0, purge))
        self.log.forget(history, partition.purge_seqno)

    def upset(self) -> None:
        dice, queue = self.rng.random(), self.partition.queue
        if dice < 0.45:
            for _ in range(self.rng.randint(1, 8)):
                self.write()
        elif dice < 0.65:
            self.flush()
        elif dice < 0.72:
            queue.collect(self.rng.choice([0, 300]))
        elif dice < 0.77:
            queue.holds.lose_oldest()
        elif dice < 0.82:
            self.clock_s += self.rng.choice([1.0, QUEUE_SECONDS_MAX])
            queue.age(self.clock_s)
        elif dice < 0.86:
            self.begin_branch()
        elif dice < 0.9:
            self.evict()
        elif dice < 0.95:
            self.compact()
        else:
            self.rng.choice(self.lines).disconnect()

    def run(self) -> None:
        rng = self.rng
        for _ in range(rng.choice([20, 60, 120])):
            if rng.random() < 0.5:
                self.upset()
            for line in self.lines:
                if line.consumer is None and rng.random() < 0.4:
                    self.connect(line)
                if line.consumer is not None:
                    line.producer.on_news()
                    for _ in range(rng.randint(0, 3)):
                        line.exchange()
        self.settle()

    def settle(self) -> None:
        """Everything is durable: both readers have it all, and nothing is kept for them."""
        for _ in range(3):
            self.flush()
        if self.in_flight is not None:
            self.flush()
        for line in self.lines:
            if line.consumer is None:
                self.connect(line)
            idle = 0
            for _ in range(20_000):
                line.producer.on_news()
                idle = 0 if line.exchange() else idle + 1
                if idle == 3:
                    break
            else:
                pytest.fail(f"no end: {line.readers[0].position}")
            assert line.readers[0].position.seqno == self.partition.high_seqno
            assert line.readers[0].state == self.state_at(0, self.partition.high_seqno)
            line.disconnect()
        queue = self.partition.queue
        assert (len(queue.holds), queue.retained_bytes, queue.readers) == (0, 0, [])
        assert self.partition.purge_limit() == self.partition.high_seqno


@pytest.mark.parametrize("first_seed", range(0, budget(200), SEEDS_PER_TEST))
def test_readers_see_states_that_were(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        try:
            World(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def test_the_log_double_forgets_what_it_may() -> None:
    log, partition = LogDouble(), new_partition()
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", b"2")):
        partition.put(key, value, 0, 0, 0, 0, NOW)
        log.take(partition)
    partition.delete(b"b", 0, NOW)
    log.take(partition)
    log.forget(3)
    assert [seqno_of(item[0]) for item in log.items] == [2, 3, 4]
    log.forget(4, 4)
    assert [seqno_of(item[0]) for item in log.items] == [3]
