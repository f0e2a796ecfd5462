"""Streams with a condition: the documents that match, from memory and log, whatever happens."""

import asyncio
import random
import threading

import pytest

from millstream.errors import UsageError
from millstream.model.position import Position
from millstream.upr.aio.server import StreamSession
from millstream.upr.core.messages import StreamRequest, encode_stream_request
from millstream.upr.core.selecting import SELECTOR_BYTES_MAX, Condition
from millstream.wire.mcbp import Opcode, Packet, Status, cut_packets, request
from support.streams.fake_source import FakeBucket, FakePartition

JUDGED_IN: set[str] = set()


def conditions(text: bytes) -> Condition:
    if text != b"even":
        raise UsageError("no such condition", code="bad_arg")

    def is_even(_: bytes, value: bytes) -> bool:
        JUDGED_IN.add(threading.current_thread().name)
        return int(value) % 2 == 0

    return is_even


class Reader:
    """A reader that keeps what it is sent."""

    def __init__(self, partition: FakePartition, flags: int = 0x21) -> None:
        self.bucket = FakeBucket([partition])
        self.is_paused = False
        self.data = b""
        self.seen: list[Packet] = []
        self.changed = asyncio.Event()
        self.session = StreamSession(
            self, self.bucket, "me", flags, is_extended=True, has_json=True, conditions=conditions
        )

    def write(self, data: bytes) -> None:
        packets, self.data = cut_packets(self.data + data, 1 << 25)
        self.seen += packets
        self.changed.set()

    def close(self) -> None:
        raise AssertionError("the connection was closed")

    def send(self, data: bytes) -> None:
        for packet in cut_packets(data, 1 << 25)[0]:
            self.session.on_packet(packet)

    def control(self, key: bytes, value: bytes) -> int:
        self.send(request(Opcode.DCP_CONTROL, key=key, value=value))
        return self.seen[-1].status

    def stream(self, end: int) -> None:
        self.send(encode_stream_request(StreamRequest(0, Position(), end), 0))

    async def to_end(self) -> None:
        async with asyncio.timeout(60):
            while all(packet.opcode != Opcode.DCP_STREAM_END for packet in self.seen):
                self.changed.clear()
                await self.changed.wait()
        self.session.close()

    def state(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for packet in self.seen:
            if packet.opcode == Opcode.DCP_MUTATION:
                found[packet.key] = packet.value
            elif packet.opcode in (Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION):
                found.pop(packet.key, None)
        return found


def reached(reader: Reader) -> int:
    """Return the end that the reader knows to be complete."""
    ends = [0]
    for packet in reader.seen:
        if packet.opcode == Opcode.DCP_SEQNO_ADVANCED:
            ends.append(int.from_bytes(packet.extras, "big"))
        elif packet.opcode in (Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION):
            ends.append(int.from_bytes(packet.extras[:8], "big"))
    assert ends == sorted(ends)
    return ends[-1]


@pytest.mark.parametrize("seed", range(60))
async def test_the_documents_that_match_are_sent(seed: int) -> None:
    chance = random.Random(seed)
    partition = FakePartition(0)
    partition.fill("".join(chance.choice("abcdefghABC") for _ in range(chance.randint(1, 40))))
    partition.forget_memory(chance.randint(0, partition.high_seqno))
    partition.chunk_items = chance.randint(1, 4)
    reader = Reader(partition)
    if chance.random() < 0.5:
        reader.control(b"document_meta", b"true")
    assert reader.control(b"selector", b"even") == Status.SUCCESS
    end = partition.high_seqno
    reader.stream(end)
    if chance.random() < 0.5:
        await asyncio.sleep(0)
        partition.lose_holds()
        reader.bucket.changed()
    await reader.to_end()
    matching = {k: v for k, v in partition.state_at(end).items() if int(v) % 2 == 0}
    assert reader.state() == matching
    assert all(int(p.value) % 2 == 0 for p in reader.seen if p.opcode == Opcode.DCP_MUTATION)
    assert reached(reader) == end
    assert not partition.holds


async def test_conditions_are_worked_out_in_one_thread_of_their_own() -> None:
    JUDGED_IN.clear()
    partition = FakePartition(0)
    partition.fill("abcdefgh")
    partition.forget_memory(4)
    reader = Reader(partition, flags=0x21 | 0x40)
    reader.control(b"selector", b"even")
    reader.stream(8)
    await reader.to_end()
    assert list(reader.state()) == [b"b", b"d", b"f", b"h"]
    assert set(reader.state().values()) == {b""}
    assert {"stream-selectors_0"} == JUDGED_IN


async def test_conditions_that_are_none_are_refused() -> None:
    reader = Reader(FakePartition(0))
    for text in (b"odd", b"", b"e" * (SELECTOR_BYTES_MAX + 1), b"\xff"):
        assert reader.control(b"selector", text) == Status.EINVAL
    reader.session.close()
