"""Producer and consumer joined by a bad line: whatever happens, the reader ends up equal.

Each schedule is a random sequence of writes, deletes, purges, lost memory, lost holds, fail-overs
with loss of history, disconnects in mid-frame, windows of a few bytes, and log reads that come
late. The reader keeps its state with its position and restores old ones exactly where it kept
them. Checked: every completed snapshot equals the source's state at that seqno in the history it
was read from; at rest the reader equals the source. A failing seed is in the test's name.
"""

import random
from struct import Struct
from typing import NamedTuple

import pytest

from fake_source import FakeBucket, FakePartition
from millstream.model.position import FailoverLog, Position
from millstream.upr.core.consumer import (
    ChangesReceived,
    ConsumerCore,
    Event,
    RollbackRequired,
    SnapshotCompleted,
    SnapshotStarted,
    StreamEnded,
    StreamOpened,
    StreamRefused,
)
from millstream.upr.core.messages import encode_branch_log
from millstream.upr.core.producer import Producer
from millstream.upr.core.stream import LogRead
from millstream.wire.frames import change_of
from millstream.wire.mcbp import Opcode, OpenFlag, Packet, Status, cut_packets, response

SEEDS_PER_TEST = 250
POSITIONS = Struct(">HB5x8Q")


class Kept(NamedTuple):
    """A state the reader can restore exactly, and its seqno."""

    seqno: int
    state: dict[bytes, bytes]


class Reader:
    """State, position and failover log of one partition, changed together."""

    def __init__(self) -> None:
        self.state: dict[bytes, bytes] = {}
        self.position = Position()
        self.failover_log: FailoverLog = ()
        self.kept: list[Kept] = []

    def apply(self, frames: list[bytes]) -> None:
        for frame in frames:
            change = change_of(frame)
            if change.is_deleted:
                self.state.pop(change.key, None)
            else:
                self.state[change.key] = change.value

    def undo(self, seqno: int) -> int:
        self.kept = [kept for kept in self.kept if kept.seqno <= seqno]
        point = self.kept[-1] if self.kept else Kept(0, {})
        self.state = dict(point.state)
        return point.seqno


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        count = self.rng.randint(1, 3)
        self.bucket = FakeBucket([FakePartition(number) for number in range(count)])
        self.readers = [Reader() for _ in range(count)]
        self.keys = [b"k%d" % number for number in range(self.rng.randint(1, 6))]
        self.window_bytes = self.rng.choice([1, 30, 100, 400, 100_000])
        self.is_canonical = True
        self.consumer: ConsumerCore | None = None
        self.producer: Producer
        self.to_consumer = b""
        self.to_producer = b""
        self.reads: list[LogRead] = []

    # -- the line

    def connect(self) -> None:
        self.consumer = ConsumerCore(window_bytes=self.window_bytes, has_extensions=True)
        self.producer = Producer(self.bucket, 0x21, is_extended=True, has_json=True)
        self.consumer.start(b"reader", noop_interval_s=1)
        self.to_consumer = self.to_producer = b""
        self.reads = []
        for number in range(len(self.readers)):
            self.follow(number)

    def follow(self, number: int) -> None:
        reader = self.readers[number]
        assert self.consumer is not None
        self.consumer.follow(number, reader.position, reader.failover_log)

    def disconnect(self) -> None:
        if self.consumer is not None:
            self.producer.close()
            self.consumer = None
            assert all(not partition.holds for partition in self.bucket.partitions)

    def serve(self) -> None:
        """What the kv port does: cut packets, answer some itself, hand the rest on."""
        packets, self.to_producer = cut_packets(self.to_producer, 1 << 25)
        for packet in packets:
            self.to_consumer += self.answer(packet)

    def answer(self, packet: Packet) -> bytes:
        if packet.opcode == Opcode.DCP_OPEN:
            assert packet.extras[7] == OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES
            return response(packet.opcode, Status.SUCCESS, packet.opaque)
        if packet.opcode == Opcode.BRANCH_LOG:
            value = encode_branch_log(self.bucket.partitions[packet.vbucket].failover_log)
            return response(packet.opcode, Status.SUCCESS, packet.opaque, value=value)
        if packet.opcode == Opcode.POSITIONS:
            number = int.from_bytes(packet.value, "big")
            purge = self.bucket.partitions[number].purge_seqno
            value = POSITIONS.pack(number, 1, 0, 0, 0, 0, 0, 0, 0, purge)
            return response(packet.opcode, Status.SUCCESS, packet.opaque, value=value)
        self.producer.on_packet(packet)
        return self.producer.take_replies()

    def exchange(self) -> bool:
        """Move some bytes both ways; return whether anything moved."""
        rng, consumer = self.rng, self.consumer
        if consumer is None:
            return False
        size = rng.choice([1, 40, 200, 10_000])
        part, self.to_consumer = self.to_consumer[:size], self.to_consumer[size:]
        for event in consumer.receive_data(part) if part else ():
            self.handle(event)
        sent = consumer.take_bytes()
        self.to_producer += sent
        self.serve()
        data = None
        if len(self.to_consumer) < 5000:
            data = self.producer.produce()
            self.to_consumer += data or b""
        self.reads += self.producer.take_reads()
        has_read = bool(self.reads) and rng.random() < 0.3
        if has_read:
            read = self.reads.pop(rng.randrange(len(self.reads)))
            self.producer.on_chunk(read, next(read.chunks, None))
        return bool(part or sent or data is not None or has_read or self.reads)

    # -- the reader

    def handle(self, event: Event) -> None:
        assert not isinstance(event, StreamRefused), event
        number = event.partition_id
        reader = self.readers[number]
        if isinstance(event, RollbackRequired):
            point = reader.undo(event.seqno)
            assert self.consumer is not None
            reader.position = self.consumer.undone_to(number, point)
            return
        if isinstance(event, StreamEnded):
            reader.position = event.position
            self.follow(number)
            return
        if isinstance(event, ChangesReceived):
            reader.apply(event.frames)
        elif isinstance(event, StreamOpened):
            reader.failover_log = event.failover_log
            assert event.failover_log[0].branch > 0
        elif isinstance(event, SnapshotCompleted):
            seqno, branch = event.position.seqno, reader.failover_log[0].branch
            truth = self.bucket.partitions[number].state_at(seqno, branch)
            assert reader.state == truth, f"partition {number} at {event.position}"
            if self.rng.random() < 0.7:
                reader.kept.append(Kept(seqno, dict(reader.state)))
        else:
            assert isinstance(event, SnapshotStarted)
        reader.position = event.position

    # -- what goes wrong

    def upset(self) -> None:
        rng = self.rng
        if self.consumer is not None:
            self.producer.on_news()
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
            partition.purge(rng.randint(0, self.purge_limit(partition)))
        else:
            partition.fail_over(rng.randint(partition.purge_seqno, partition.high_seqno))

    def purge_limit(self, partition: FakePartition) -> int:
        """Never past what an open stream or hold has still to read."""
        limits = [partition.high_seqno, *partition.holds.values()]
        if self.consumer is not None:
            stream = self.producer._streams.get(partition.partition_id)
            limits += [stream.sent] if stream else []
        return min(limits)

    def run(self) -> None:
        rng = self.rng
        for _ in range(rng.choice([20, 60, 120])):
            if self.consumer is None and rng.random() < 0.5:
                self.connect()
            if rng.random() < 0.4:
                self.upset()
            for _ in range(rng.randint(0, 3)):
                self.exchange()
        self.settle()

    def settle(self) -> None:
        if self.consumer is None:
            self.connect()
        idle = 0
        for _ in range(20_000):
            idle = 0 if self.exchange() else idle + 1
            if idle == 3:
                break
        else:
            pytest.fail(f"no end: {[reader.position for reader in self.readers]}")
        for reader, partition in zip(self.readers, self.bucket.partitions, strict=True):
            assert reader.position.seqno == partition.high_seqno
            assert reader.position.is_closed
            assert reader.state == partition.state_at(partition.high_seqno)
            assert not partition.holds


@pytest.mark.parametrize("first_seed", range(0, 3000, SEEDS_PER_TEST))
def test_the_reader_ends_up_equal(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        try:
            World(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def test_a_first_load_that_pauses_comes_to_its_end() -> None:
    """Deletions were forgotten in most of what is loaded, and a connection brings few changes."""
    world = World(0)
    partition, reader = world.bucket.partitions[0], world.readers[0]
    for number in range(60):
        partition.put(b"k%d" % (number % 40), b"x" if number % 3 else None)
    partition.purge(55)
    world.window_bytes = 1
    connections = 0
    while reader.position.seqno < partition.high_seqno:
        connections += 1
        assert connections < 100, f"no end, at {reader.position}"
        world.connect()
        for _ in range(15):
            world.exchange()
        assert reader.position.purge_seqno in {55, None}
        world.disconnect()
    assert connections > 3
    assert reader.state == partition.state_at(partition.high_seqno)
