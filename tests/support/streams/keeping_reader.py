"""A reader that keeps a state of its own, joined to a real producer by a bad line, and killed.

Every effect is durable by itself, and the reader may be killed before any of them; it starts again
from what was written. What a source does beside `fake_source`: another copy that never purged, or
one that lags, takes over; history changes again while the reader is still undoing.
"""

import random
from collections.abc import Callable, Sequence

from millstream.model.position import FailoverEntry, with_new_entry
from millstream.upr.core.bookkeeper import (
    Answer,
    Apply,
    Bookkeeper,
    Document,
    Effect,
    Forget,
    Keep,
    Question,
    Remember,
    Restore,
    Rewind,
    Sweep,
)
from millstream.upr.core.consumer import (
    ChangesReceived,
    Event,
    RollbackRequired,
    SnapshotCompleted,
    SnapshotStarted,
    StreamEnded,
    StreamOpened,
)
from millstream.upr.core.kept import Kept, Recent, kept_from_json, kept_to_json
from support.streams.fake_source import FakeBucket, FakePartition
from support.streams.stream_line import Line


class KilledError(Exception):
    """The reader is gone; what it wrote stays."""


class MovedError(Exception):
    """The history asked about is not the source's any more."""


class Store:
    """What survives of one partition: documents with their load, ring, kept place."""

    def __init__(self) -> None:
        self.documents: dict[bytes, tuple[bytes, int]] = {}
        self.ring: set[Recent] = set()
        self.kept = b""

    @property
    def values(self) -> dict[bytes, bytes]:
        return {key: value for key, (value, _) in self.documents.items()}

    def perform(self, effect: Effect) -> None:
        match effect:
            case Remember(_, entries):
                self.ring |= set(entries)
            case Apply(_, load, _, _, changes):
                for change in changes:
                    self.put(change.key, None if change.is_deleted else change.value, load)
            case Restore(_, load, documents):
                for document in documents:
                    self.put(document.key, document.value, load)
            case Sweep(_, load):
                self.documents = {k: d for k, d in self.documents.items() if d[1] >= load}
            case Keep(_, kept):
                self.kept = kept_to_json(kept)
            case Forget(_, entries):
                self.ring -= set(entries)
            case Rewind():
                pass

    def put(self, key: bytes, value: bytes | None, load: int) -> None:
        if value is None:
            self.documents.pop(key, None)
        else:
            self.documents[key] = value, load


class KeepingLine(Line):
    """`Line` with a bookkeeper for each partition; `upset` stands for the world going on."""

    def __init__(
        self, rng: random.Random, count: int, window_bytes: int, upset: Callable[[int], None]
    ) -> None:
        super().__init__(rng, count, lambda *_: {}, window_bytes)
        self.upset = upset
        self.stores = [Store() for _ in range(count)]
        self.bookkeepers: list[Bookkeeper] = []
        self.kills = rng.choice([0.0, 0.02, 0.1])
        self.ring_changes = rng.choice([2, 4, 20])
        self.make: Callable[..., Bookkeeper] = Bookkeeper
        self.order: Callable[[list[Effect]], Sequence[Effect]] = list
        self.start()

    def start(self) -> None:
        """Begin with what was written, as after a kill."""
        self.bookkeepers = []
        for number, store in enumerate(self.stores):
            kept = kept_from_json(store.kept, name="store") if store.kept else Kept()
            made = self.make(number, kept, store.ring, ring_changes=self.ring_changes)
            self.bookkeepers.append(made)

    def follow(self, number: int) -> None:
        assert self.consumer is not None
        self.consumer.follow(number, *self.bookkeepers[number].start_again())

    def exchange(self) -> bool:
        try:
            return super().exchange()
        except KilledError:
            self.disconnect()
            self.start()
        except MovedError:
            self.disconnect()
        return True

    def handle(self, event: Event) -> None:
        bookkeeper = self.bookkeepers[event.partition_id]  # type: ignore[union-attr]
        match event:
            case RollbackRequired(number, seqno):
                assert self.consumer is not None
                self.consumer.undone_to(number, bookkeeper.on_rollback(seqno))
            case StreamOpened(number, position, log):
                self.write(number, bookkeeper.on_opened(position, log))
                while (question := bookkeeper.question) is not None:
                    self.write(number, bookkeeper.on_answer(self.fetch(number, question)))
            case ChangesReceived(number, position, frames):
                self.write(number, bookkeeper.on_changes(frames, position))
            case SnapshotCompleted(number, position):
                self.write(number, bookkeeper.on_moved(position))
            case StreamEnded(number):
                self.follow(number)
            case _:
                assert isinstance(event, SnapshotStarted), event

    def write(self, number: int, effects: list[Effect]) -> None:
        for effect in self.order(effects):
            if self.rng.random() < self.kills:
                raise KilledError
            self.stores[number].perform(effect)

    def fetch(self, number: int, question: Question) -> Answer:
        partition = self.partition(number)
        assert isinstance(partition, FakePartition)
        documents = []
        for key in question.keys:
            if self.rng.random() < 0.15:
                self.upset(number)
            newest = max((w for w in partition.writes if w.key == key), default=None)
            seqno = partition.high_seqno if newest is None else newest.seqno
            documents.append(Document(key, newest.value if newest else None, seqno))
        if partition.failover_log[0].uuid != question.uuid:
            raise MovedError
        return Answer(tuple(documents), partition.high_seqno)


class World:
    """A random schedule; at its end the reader's state equals the source's."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        count = rng.randint(1, 2)
        self.bucket = FakeBucket([FakePartition(number) for number in range(count)])
        self.keys = [b"k%d" % number for number in range(rng.randint(2, 6))]
        window_bytes = rng.choice([1, 100, 400, 100_000])
        self.line = KeepingLine(rng, count, window_bytes, self.upset_partition)

    def upset_partition(self, number: int) -> None:
        """What may happen at any moment, an undo included."""
        partition = self.bucket.partitions[number]
        if self.rng.random() < 0.5:
            self.write_to(partition)
        else:
            self.fail_over(partition)

    def write_to(self, partition: FakePartition) -> None:
        for _ in range(self.rng.randint(1, 4)):
            value = b"%d" % self.rng.randrange(10**9) if self.rng.random() < 0.6 else None
            partition.put(self.rng.choice(self.keys), value)

    def fail_over(self, partition: FakePartition) -> None:
        """A copy takes over that lost a little, or that has only an old and unpurged part."""
        high, rng = partition.high_seqno, self.rng
        if rng.random() < 0.7:
            partition.fail_over(rng.randint(max(partition.purge_seqno, high - 4, 0), high))
            return
        partition.fail_over(rng.randint(0, high))
        branch = partition.failover_log[0].branch
        partition.writes = list(partition.histories[branch])
        partition.purge_seqno = 0

    def switch(self, partition: FakePartition) -> None:
        """A copy takes over that still has what an earlier one had lost."""
        branch = self.rng.choice(list(partition.histories))
        kept = partition.histories[branch]
        log = tuple(e for e in partition.failover_log if e.branch <= branch)
        if not log or log[0].branch != branch:
            return
        newest = max(partition.histories) + 1
        high = kept[-1].seqno if kept else 0
        partition.fail_over(0)
        del partition.histories[newest]
        partition.histories[newest] = list(kept)
        partition.writes, partition.high_seqno, partition.purge_seqno = list(kept), high, 0
        entry = FailoverEntry(0xA000 + newest, high, newest)
        partition.failover_log = with_new_entry(log, entry)

    def empty(self, partition: FakePartition) -> None:
        """All copies lost everything."""
        partition.fail_over(0)
        partition.writes, partition.purge_seqno = [], 0

    def step(self) -> None:
        rng, line = self.rng, self.line
        if line.consumer is not None:
            line.producer.on_news()
        partition = rng.choice(self.bucket.partitions)
        dice = rng.random()
        if dice < 0.50:
            self.write_to(partition)
        elif dice < 0.58:
            partition.forget_memory(rng.randint(0, partition.high_seqno))
        elif dice < 0.62:
            partition.lose_holds()
        elif dice < 0.70:
            line.disconnect()
        elif dice < 0.76:
            line.disconnect()
            line.start()
        elif dice < 0.84:
            partition.purge(rng.randint(0, self.line.purge_limit(partition)))
        elif dice < 0.94:
            self.fail_over(partition)
        elif dice < 0.98:
            self.switch(partition)
        else:
            self.empty(partition)

    def run(self) -> None:
        rng, line = self.rng, self.line
        for _ in range(rng.choice([20, 60, 120])):
            if line.consumer is None and rng.random() < 0.6:
                line.connect(self.bucket)
            if rng.random() < 0.4:
                self.step()
            for _ in range(rng.randint(0, 3)):
                line.exchange()
        self.end_badly()
        self.settle()

    def end_badly(self) -> None:
        """Endings that chance finds too seldom; nothing hides afterwards what they do."""
        rng, line, partition = self.rng, self.line, self.bucket.partitions[0]
        ending = rng.random()
        if ending < 0.3:  # history changes again between an undo and what comes next
            line.disconnect()
            self.lose(partition, rng.randint(1, 4))
            for _ in range(3):
                partition.put(rng.choice(self.keys), b"%d" % rng.randrange(10**9))
            line.connect(self.bucket)
            for _ in range(rng.randint(5, 25)):
                line.exchange()
            line.disconnect()
            self.lose(partition, rng.randint(1, 4))
        elif ending < 0.6:  # a first load from a purged copy, then one that never was takes over
            line.disconnect()
            partition.purge(partition.high_seqno)
            line.stores[0] = Store()
            line.start()
            line.connect(self.bucket)
            for _ in range(rng.randint(20, 60)):
                line.exchange()
            line.disconnect()
            self.fail_over(partition)
        elif ending < 0.8:  # left behind by the purge point twice, in one history
            for _ in range(2):
                line.disconnect()
                self.write_to(partition)
                self.write_to(partition)
                partition.purge(partition.high_seqno)
                line.connect(self.bucket)
                for _ in range(rng.randint(30, 60)):
                    line.exchange()

    def lose(self, partition: FakePartition, count: int) -> None:
        """Fail over with a loss of up to `count` changes."""
        partition.fail_over(max(partition.high_seqno - count, partition.purge_seqno))

    def settle(self) -> None:
        """Nothing goes wrong any more; then one more change, after which no ring is too long."""
        self.line.kills, self.line.upset = 0.0, lambda _: None
        self.come_to_rest()
        for partition in self.bucket.partitions:
            partition.put(b"last", b"1")
        self.come_to_rest()
        for store, partition in zip(self.line.stores, self.bucket.partitions, strict=True):
            passed = [entry for entry in store.ring if entry.seqno <= partition.high_seqno]
            assert len(passed) <= self.line.ring_changes, store.ring

    def come_to_rest(self) -> None:
        line, idle = self.line, 0
        for _ in range(5_000):
            if line.consumer is None:
                line.connect(self.bucket)
            line.producer.on_news()
            idle = 0 if line.exchange() else idle + 1
            if idle == 3:
                break
        else:
            raise AssertionError(f"no end: {[b.kept for b in line.bookkeepers]}")
        for store, partition in zip(line.stores, self.bucket.partitions, strict=True):
            kept = kept_from_json(store.kept, name="store")
            assert kept.position.seqno == partition.high_seqno, (kept, partition.high_seqno)
            truth = partition.state_at(partition.high_seqno)
            assert store.values == truth, f"holds {store.values}, source {truth}"
