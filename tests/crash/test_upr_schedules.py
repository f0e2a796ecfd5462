"""Producer and consumer joined by a bad line: whatever happens, the reader ends up equal.

Each schedule is a random sequence of writes, deletes, purges, lost memory, lost holds, fail-overs
with loss of history, disconnects in mid-frame, windows of a few bytes, and log reads that come
late. The reader keeps its state with its position and restores old ones exactly where it kept
them. Checked: every completed snapshot equals the source's state at that seqno in the history it
was read from; at rest the reader equals the source. A failing seed is in the test's name.
"""

import random

import pytest

from millstream.upr.core import shared_slices
from millstream.upr.core.shared_slices import SharedSlices
from support.budget import budget
from support.streams.fake_source import FakeBucket, FakePartition
from support.streams.stream_line import Line

SEEDS_PER_TEST = 250


@pytest.fixture(autouse=True)
def _even_the_smallest_slices_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_slices, "SHARED_ITEMS_MIN", 1)


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        count = self.rng.randint(1, 3)
        self.bucket = FakeBucket([FakePartition(number) for number in range(count)])
        if seed % 2:
            self.bucket.shared_slices = SharedSlices()
        self.keys = [b"k%d" % number for number in range(self.rng.randint(1, 6))]
        window_bytes = self.rng.choice([1, 30, 100, 400, 100_000])
        self.line = Line(self.rng, count, self.state_at, window_bytes)

    def connect(self) -> None:
        self.line.connect(self.bucket)

    def disconnect(self) -> None:
        self.line.disconnect()
        assert all(not partition.holds for partition in self.bucket.partitions)

    def state_at(self, number: int, seqno: int, branch: int) -> dict[bytes, bytes]:
        return self.bucket.partitions[number].state_at(seqno, branch)

    # -- what goes wrong

    def upset(self) -> None:
        rng = self.rng
        if self.line.consumer is not None:
            self.line.producer.on_news()
        partition = rng.choice(self.bucket.partitions)
        dice = rng.random()
        if dice < 0.55:
            for _ in range(rng.randint(1, 5)):
                value = b"%d" % rng.randrange(1000) if rng.random() < 0.7 else None
                partition.put(rng.choice(self.keys), value)
        elif dice < 0.65:
            partition.forget_memory(rng.randint(0, partition.high_seqno))
        elif dice < 0.72:
            partition.lose_holds()
        elif dice < 0.80:
            self.disconnect()
        elif dice < 0.90:
            partition.purge(rng.randint(0, self.line.purge_limit(partition)))
        else:
            partition.fail_over(rng.randint(partition.purge_seqno, partition.high_seqno))

    def run(self) -> None:
        rng = self.rng
        for _ in range(rng.choice([20, 60, 120])):
            if self.line.consumer is None and rng.random() < 0.5:
                self.connect()
            if rng.random() < 0.4:
                self.upset()
            for _ in range(rng.randint(0, 3)):
                self.line.exchange()
        self.settle()

    def settle(self) -> None:
        if self.line.consumer is None:
            self.connect()
        idle = 0
        for _ in range(20_000):
            idle = 0 if self.line.exchange() else idle + 1
            if idle == 3:
                break
        else:
            pytest.fail(f"no end: {[reader.position for reader in self.line.readers]}")
        for reader, partition in zip(self.line.readers, self.bucket.partitions, strict=True):
            assert reader.position.seqno == partition.high_seqno
            assert reader.position.is_closed
            assert reader.state == partition.state_at(partition.high_seqno)
            assert not partition.holds


@pytest.mark.parametrize("first_seed", range(0, budget(3000), SEEDS_PER_TEST))
def test_the_reader_ends_up_equal(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        try:
            World(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def test_a_first_load_that_pauses_comes_to_its_end() -> None:
    """Deletions were forgotten in most of what is loaded, and a connection brings few changes."""
    world = World(0)
    partition, reader = world.bucket.partitions[0], world.line.readers[0]
    for number in range(60):
        partition.put(b"k%d" % (number % 40), b"x" if number % 3 else None)
    partition.purge(55)
    world.line.window_bytes = 1
    connections = 0
    while reader.position.seqno < partition.high_seqno:
        connections += 1
        assert connections < 100, f"no end, at {reader.position}"
        world.connect()
        for _ in range(15):
            world.line.exchange()
        assert reader.position.purge_seqno in {55, None}
        world.disconnect()
    assert connections > 3
    assert reader.state == partition.state_at(partition.high_seqno)
