"""A producer and a peer that opens, closes, acknowledges and asks for cookies as it likes.

The peer believes nothing: every message must belong to a stream that is open, changes stand inside
markers and ascend, lineages before their changes, nothing comes after an end or an accepted close,
a cookie after all it waits for, and the bytes unacknowledged are those counted here. In the end
every open stream has brought everything.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from millstream.model.limits import UINT64_MAX
from millstream.model.position import Position
from millstream.upr.core import shared_slices
from millstream.upr.core.messages import StreamRequest, encode_barrier, encode_stream_request
from millstream.upr.core.shared_slices import SharedSlices
from millstream.wire.mcbp import REQUEST, Opcode, Packet, Status, StreamFlag, request
from support.budget import budget
from support.streams.fake_source import FakePartition
from support.streams.stream_talk import Talk, packets_of

SEEDS_PER_TEST = 250
CHANGES = (Opcode.DCP_MUTATION, Opcode.DCP_DELETION)


@dataclass
class Heard:
    """What came of one stream."""

    partition_id: int
    seqno: int
    end: int
    complete: int
    start: int = 0
    described: bytes = b""
    is_fresh: bool = True
    is_over: bool = False


@pytest.fixture(autouse=True)
def _even_the_smallest_slices_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_slices, "SHARED_ITEMS_MIN", 1)


class Peer:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.parts = [FakePartition(p, chunk_items=rng.randint(1, 3)) for p in range(2)]
        self.is_extended = rng.random() < 0.7
        self.asks = self.is_extended and rng.random() < 0.5
        self.is_told = rng.random() < 0.5
        self.talk = Talk(*self.parts, is_extended=self.is_extended, has_json=rng.random() < 0.7)
        if seed % 2:
            self.talk.bucket.shared_slices = SharedSlices()
        self.streams: dict[int, Heard] = {}
        self.open: dict[int, int] = {}
        self.cookies: list[tuple[bytes, dict[int, int]]] = []
        self.count = self.unacked = 0
        window = rng.choice([1, 50, 120, 400, 0])
        for key, is_wanted in (
            ("enable_barriers", self.is_extended),
            ("enable_cycle_ends", self.is_extended and rng.random() < 0.5),
            ("document_meta", self.asks),
            ("send_stream_end_on_client_close_stream", self.is_told),
        ):
            if is_wanted:
                assert self.talk.control(key, "true") == Status.SUCCESS
        if window:
            self.talk.control("connection_buffer_size", str(window))

    # -- what it hears

    def take(self, packet: Packet) -> None:
        assert packet.magic == REQUEST
        self.unacked += 24 + len(packet.extras) + len(packet.key) + len(packet.value)
        if packet.opcode == Opcode.BARRIER_REACHED:
            cookie, awaited = self.cookies.pop(0)
            assert packet.key == cookie
            for opaque, seqno in awaited.items():
                assert self.streams[opaque].is_over or self.streams[opaque].complete >= seqno
        elif packet.opcode != Opcode.CYCLE_END:
            heard = self.streams[packet.opaque]
            assert packet.vbucket == heard.partition_id
            assert not heard.is_over, f"{packet} after the end"
            self.take_of(heard, packet)

    def take_of(self, heard: Heard, packet: Packet) -> None:
        first, opcode = int.from_bytes(packet.extras[:8], "big"), packet.opcode
        if heard.described:
            assert opcode in CHANGES
        if opcode == Opcode.DCP_STREAM_END:
            heard.is_over = True
            del self.open[heard.partition_id]
        elif opcode == Opcode.DOC_META:
            assert self.asks
            heard.described = packet.extras
        elif opcode == Opcode.DCP_SNAPSHOT_MARKER:
            end = int.from_bytes(packet.extras[8:16], "big")
            is_unfinished = heard.seqno < heard.end
            assert first == heard.start if is_unfinished else heard.is_fresh or first > heard.seqno
            assert end >= max(first, heard.end)
            heard.start, heard.end, heard.is_fresh = first, end, False
        else:
            assert opcode in CHANGES or (opcode == Opcode.DCP_SEQNO_ADVANCED and self.is_extended)
            if opcode in CHANGES:
                assert heard.described == (packet.extras[:8] if self.asks else b"")
            assert heard.seqno < first <= heard.end
            heard.seqno, heard.described = first, b""
            heard.complete = first if first == heard.end else heard.complete

    # -- what it does

    def write(self, part: FakePartition) -> None:
        for _ in range(self.rng.randint(1, 4)):
            value = self.rng.choice([None, b"", b"x", b"x" * 200])
            part.put(self.rng.choice([b"a", b"b", b"c"]), value)

    def ask(self, part: FakePartition) -> None:
        if part.partition_id in self.open:
            return
        self.count += 1
        start = self.rng.choice([0, part.high_seqno])
        end = self.rng.choice([UINT64_MAX, UINT64_MAX, start + self.rng.randint(0, 2)])
        flags = self.rng.choice([0, 0, StreamFlag.TO_LATEST])
        position = Position(part.failover_log[0].uuid, start, start, start)
        asked = StreamRequest(part.partition_id, position, end, flags)
        if self.talk.ask(encode_stream_request(asked, self.count))[0].status == Status.SUCCESS:
            self.open[part.partition_id] = self.count
            self.streams[self.count] = Heard(part.partition_id, start, start, start)

    def close(self, part: FakePartition) -> None:
        opaque = self.open.pop(part.partition_id, None)
        if opaque is None:
            return
        reply, *rest = self.talk.ask(
            request(Opcode.DCP_CLOSE_STREAM, vbucket=part.partition_id, opaque=99)
        )
        assert reply.status == Status.SUCCESS
        assert [packet.opaque for packet in rest] == [opaque] * self.is_told
        self.unacked += 28 * self.is_told
        self.streams[opaque].is_over = True

    def ask_cookie(self, _: FakePartition) -> None:
        self.count += 1
        cookie = b"%d" % self.count
        if self.talk.ask(encode_barrier(cookie))[0].status == Status.SUCCESS:
            highs = {opaque: self.parts[p].high_seqno for p, opaque in self.open.items()}
            self.cookies.append((cookie, highs))

    def acknowledge(self, _: FakePartition) -> None:
        acked = self.rng.randint(1, 500)
        self.talk.ask(request(Opcode.DCP_BUFFER_ACK, extras=acked.to_bytes(4, "big")))
        self.unacked = max(0, self.unacked - acked)

    def forget(self, part: FakePartition) -> None:
        part.forget_memory(self.rng.randint(0, part.high_seqno))

    def lose(self, part: FakePartition) -> None:
        part.lose_holds()

    def listen(self, _: FakePartition) -> None:
        self.talk.producer.on_news()
        for _turn in range(self.rng.randint(1, 4)):
            for packet in packets_of(self.talk.producer.produce() or b""):
                self.take(packet)
            if self.rng.random() < 0.7:
                self.talk.read_log(1)

    def run(self) -> None:
        steps = [self.write] * 6 + [self.listen] * 5 + [self.ask] * 2 + [self.acknowledge] * 2
        steps += [self.close, self.ask_cookie, self.forget, self.lose]
        for _ in range(self.rng.choice([30, 80])):
            self.rng.choice(steps)(self.rng.choice(self.parts))
            if self.talk.producer.settings.window_bytes:
                assert self.talk.producer.unacked_bytes == self.unacked
        self.talk.control("connection_buffer_size", "0")
        for _ in range(30):
            for packet in self.talk.packets():
                self.take(packet)
        assert not self.cookies
        for p, opaque in self.open.items():
            assert self.streams[opaque].complete == self.parts[p].high_seqno


@pytest.mark.parametrize("first_seed", range(0, budget(1000), SEEDS_PER_TEST))
def test_a_peer_that_believes_nothing_finds_nothing(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        try:
            Peer(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
