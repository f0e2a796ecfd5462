"""A producer of a bucket in plain lists, joined to who reads it: for tests of indexers."""

from struct import Struct

from millstream.upr.core.messages import encode_branch_log
from millstream.upr.core.producer import Producer
from millstream.wire.mcbp import Opcode, Packet, Status, cut_packets, response
from support.streams.fake_source import FakeBucket

POSITIONS = Struct(">HB5x8Q")


class FeedLine:
    """One connection: `send` what the reader says, `receive` what it is sent."""

    def __init__(self, bucket: FakeBucket) -> None:
        self.bucket = bucket
        self.producer = Producer(bucket, 0x21, is_extended=True, has_json=True)
        self._replies: list[bytes] = []
        self._rest = b""

    def send(self, data: bytes) -> None:
        packets, rest = cut_packets(data, 1 << 25)
        assert not rest
        self._replies += map(self._answer, packets)

    def _answer(self, packet: Packet) -> bytes:
        if packet.opcode == Opcode.DCP_OPEN:
            return response(packet.opcode, Status.SUCCESS, packet.opaque)
        if packet.opcode == Opcode.BRANCH_LOG:
            value = encode_branch_log(self.bucket.partitions[packet.vbucket].failover_log)
            return response(packet.opcode, Status.SUCCESS, packet.opaque, value=value)
        if packet.opcode == Opcode.POSITIONS:
            number = int.from_bytes(packet.value, "big")
            partition = self.bucket.partitions[number]
            value = POSITIONS.pack(
                number, 1, 0, 0, partition.high_seqno, 0, 0, 0, 0, partition.purge_seqno
            )
            return response(packet.opcode, Status.SUCCESS, packet.opaque, value=value)
        self.producer.on_packet(packet)
        return self.producer.take_replies()

    def receive(self, bytes_max: int = 1 << 20) -> bytes:
        """Return what there is to be sent now, at most so many bytes of it."""
        if len(self._rest) < bytes_max:
            self.producer.on_news()
            self._rest += b"".join(self._replies) + (self.producer.produce() or b"")
            self._replies = []
            for read in self.producer.take_reads():
                self.producer.on_chunk(read, next(read.chunks, None))
        data, self._rest = self._rest[:bytes_max], self._rest[bytes_max:]
        return data

    def close(self) -> None:
        self.producer.close()
