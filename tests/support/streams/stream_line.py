"""Producer and consumer of the stream, joined by a bad line.

The reader keeps its state with its position and restores old ones exactly where it kept them.

Invariants, each an assertion:
1. Every completed snapshot equals the source's state at that seqno, in the history it was read
   from: `truth` says which that is.
2. Who asks for lineages is brought one for each change, the one that `lineage_of` tells.
3. No request is refused but by a rollback, or where nothing is streamed from: then the reader
   waits. No opened history is nameless.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from millstream.kv.core.partition.states import STREAMED
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
from millstream.upr.core.source import BucketSource, PartitionSource
from millstream.upr.core.stream import LogRead
from millstream.wire.frames import change_of
from millstream.wire.mcbp import Opcode, OpenFlag, Packet, Status, cut_packets, response
from support.streams.fake_source import FakePartition

POSITIONS = Struct(">HB5x8Q")
Truth = Callable[[int, int, int], dict[bytes, bytes]]
"""(partition, seqno, branch) -> the documents."""


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


class Line:
    """One connection after the other; a reader for each of `count` partitions."""

    def __init__(self, rng: random.Random, count: int, truth: Truth, window_bytes: int) -> None:
        self.rng, self.truth, self.window_bytes = rng, truth, window_bytes
        self.lineage_of: Callable[[bytes], bytes] | None = None
        """Of a frame; None: this reader does not ask for lineages."""
        self.readers = [Reader() for _ in range(count)]
        self.refused: set[int] = set()
        self.consumer: ConsumerCore | None = None
        self.producer: Producer
        self.bucket: BucketSource
        self.to_consumer = b""
        self.to_producer = b""
        self.reads: list[LogRead] = []

    def connect(self, bucket: BucketSource) -> None:
        self.bucket = bucket
        self.consumer = ConsumerCore(
            window_bytes=self.window_bytes, document_meta=self.lineage_of is not None
        )
        self.producer = Producer(bucket, 0x21, is_extended=True, has_json=True)
        self.consumer.start(b"reader", noop_interval_s=1)
        self.to_consumer = self.to_producer = b""
        self.reads, self.refused = [], set()
        for number in range(len(self.readers)):
            self.follow(number)

    def partition(self, number: int) -> PartitionSource:
        partition = self.bucket.partition(number)
        assert partition is not None
        return partition

    def follow(self, number: int) -> None:
        reader = self.readers[number]
        assert self.consumer is not None
        self.consumer.follow(number, reader.position, reader.failover_log)

    def ask_again(self) -> None:
        """Follow what was refused, if it is streamed now."""
        for number in sorted(self.refused):
            if self.partition(number).state in STREAMED:
                self.refused.discard(number)
                self.follow(number)

    def disconnect(self) -> None:
        """Leave; harmless if nobody is there."""
        if self.consumer is not None:
            self.producer.close()
            self.consumer = None

    def cut(self) -> None:
        """The server is gone, with all it had."""
        self.consumer = None

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
            value = encode_branch_log(self.partition(packet.vbucket).failover_log)
            return response(packet.opcode, Status.SUCCESS, packet.opaque, value=value)
        if packet.opcode == Opcode.POSITIONS:
            number = int.from_bytes(packet.value, "big")
            purge = self.partition(number).purge_seqno
            value = POSITIONS.pack(number, 1, 0, 0, 0, 0, 0, 0, 0, purge)
            return response(packet.opcode, Status.SUCCESS, packet.opaque, value=value)
        self.producer.on_packet(packet)
        return self.producer.take_replies()

    def purge_limit(self, partition: FakePartition) -> int:
        """Return up to where may be purged: what a stream or a hold has still to read stays."""
        limits = [partition.high_seqno, *partition.holds.values()]
        if self.consumer is not None:
            stream = self.producer._streams.get(partition.partition_id)
            limits += [stream.sent] if stream else []
        return min(limits)

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

    def handle(self, event: Event) -> None:
        number = event.partition_id
        if isinstance(event, StreamRefused):
            assert event.status in (Status.NOT_MY_VBUCKET, Status.ETMPFAIL), event
            self.refused.add(number)
            return
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
            right = map(self.lineage_of, event.frames) if self.lineage_of else ()
            assert list(event.sides) == list(right)
        elif isinstance(event, StreamOpened):
            reader.failover_log = event.failover_log
            assert event.failover_log[0].branch > 0
        elif isinstance(event, SnapshotCompleted):
            seqno, branch = event.position.seqno, reader.failover_log[0].branch
            truth = self.truth(number, seqno, branch)
            assert reader.state == truth, f"partition {number} at {event.position}"
            if self.rng.random() < 0.7:
                reader.kept.append(Kept(seqno, dict(reader.state)))
        else:
            assert isinstance(event, SnapshotStarted)
        reader.position = event.position
