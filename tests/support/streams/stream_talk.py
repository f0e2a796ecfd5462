"""A producer over a bucket of plain lists, and the peer that talks to it: for tests on bytes."""

from typing import Any

from millstream.model.position import Position
from millstream.upr.core.messages import StreamRequest, encode_stream_request
from millstream.upr.core.producer import Producer
from millstream.wire.mcbp import (
    Opcode,
    OpenFlag,
    Packet,
    SnapshotFlag,
    cut_packets,
    request,
)
from support.streams.fake_source import FakeBucket, FakePartition

OPAQUE = 0x1000
BEGINNING = Position()


def packets_of(data: bytes) -> list[Packet]:
    found, rest = cut_packets(data, 1 << 25)
    assert rest == b""
    return found


def words(packet: Packet) -> str:
    """A stream message in a few words."""
    if packet.opcode == Opcode.DCP_SNAPSHOT_MARKER:
        start, end = (int.from_bytes(packet.extras[at : at + 8], "big") for at in (0, 8))
        flags = SnapshotFlag(int.from_bytes(packet.extras[16:], "big"))
        names = "+".join(str(flag.name).lower() for flag in flags)
        return f"[{start},{end}] {names}"
    if packet.opcode == Opcode.DCP_STREAM_END:
        return f"end {packet.extras[3]}"
    if packet.opcode == Opcode.DCP_SEQNO_ADVANCED:
        return f"at {int.from_bytes(packet.extras, 'big')}"
    seqno = int.from_bytes(packet.extras[:8], "big")
    if packet.opcode == Opcode.DCP_MUTATION:
        return f"{packet.key.decode()}{seqno}"
    return f"{packet.key.decode().upper()}{seqno}"


class Talk:
    """A producer and the peer that talks to it."""

    def __init__(self, *partitions: FakePartition, flags: int = 0x21, **options: Any) -> None:
        self.bucket = FakeBucket(list(partitions) or [FakePartition(0)])
        options = {"is_extended": False, "has_json": True, **options}
        self.producer = Producer(self.bucket, OpenFlag.PRODUCER | flags, **options)

    @property
    def partition(self) -> FakePartition:
        return self.bucket.partitions[0]

    def ask(self, data: bytes) -> list[Packet]:
        self.producer.on_packet(packets_of(data)[0])
        return packets_of(self.producer.take_replies())

    def control(self, key: str, value: str) -> int:
        data = request(Opcode.DCP_CONTROL, key=key.encode(), value=value.encode())
        return self.ask(data)[0].status

    def stream(
        self,
        partition_id: int = 0,
        at: Position = BEGINNING,
        opaque: int = OPAQUE,
        **options: int,
    ) -> Packet:
        asked = StreamRequest(partition_id, at, **options)
        replies = self.ask(encode_stream_request(asked, opaque))
        assert len(replies) == 1
        return replies[0]

    def read_log(self, turns: int = 99) -> None:
        for _ in range(turns):
            reads = self.producer.take_reads()
            for read in reads:
                self.producer.on_chunk(read, next(read.chunks, None))
            if not reads:
                return

    def packets(self) -> list[Packet]:
        """Everything it has to send, the log included."""
        found: list[Packet] = []
        idle = 0
        self.producer.on_news()
        while idle < 2:
            data = self.producer.produce()
            self.read_log()
            idle = 0 if data else idle + 1
            found += packets_of(data or b"")
        return found

    def sent(self) -> str:
        return " ".join(words(packet) for packet in self.packets())


def filled(keys: str, partition_id: int = 0) -> FakePartition:
    partition = FakePartition(partition_id)
    partition.fill(keys)
    return partition
