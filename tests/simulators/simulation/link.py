"""One connection of a reader to a node: bytes both ways, late, in pieces, cut at any moment.

On the one side whoever reads, on the other what the kv port answers itself, and the real producer.
Threads that read the log, and copies that are stopped for a take-over, are the schedule's.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from millstream.errors import MillstreamError
from millstream.kv.core.copies.record_exchange import exchange_from_json
from millstream.kv.core.session.introspection import _position
from millstream.kv.core.session.record_commands import _news, _reply
from millstream.upr.core.messages import encode_branch_log
from millstream.upr.core.producer import Producer
from millstream.upr.core.stream import LogRead
from millstream.upr.core.takeover import TakeOverStream
from millstream.wire.mcbp import Opcode, OpenFlag, Packet, Status, cut_packets, response

if TYPE_CHECKING:
    from simulators.simulation.node import Node

UNDER_WAY_MAX = 5000
"""Bytes to the consumer that wait: a producer is not asked for more."""
IDLE_MAX = 3
"""Exchanges that moved nothing, after which nothing is under way."""
EXCHANGES_MAX = 80
"""Of one run: who waits for a pause to be over is never idle."""


class End(Protocol):
    """The reader's end of a connection."""

    def receive(self, data: bytes) -> int:
        """Take bytes; return how many events were handled. It may cut the link."""

    def take_bytes(self) -> bytes:
        """What it has to send."""

    def work(self) -> bool:
        """Go on with what waits for something else; return whether there is more."""


class Link:
    """From one end to a node."""

    def __init__(self, source: Node, end: End) -> None:
        self.source, self.end = source, end
        self.rng, self.bucket = source.world.rng, source.bucket
        self.producer = Producer(
            self.bucket, 0x21, is_extended=True, has_json=True, may_take_over=True
        )
        self.to_consumer = self.to_producer = b""
        self.reads: list[LogRead] = []
        self.stops: list[TakeOverStream] = []
        self.is_cut = False
        self.is_heard = self.is_told = True
        """Whether bytes arrive at the reader, and at the node."""
        source.served.add(self)

    def cut(self, *, is_server_gone: bool = False) -> None:
        """Nothing that is under way arrives; harmless if it is cut already."""
        if not self.is_cut:
            self.is_cut = True
            self.source.served.discard(self)
            if not is_server_gone:
                self.producer.close()

    def run(self, events_max: int) -> None:
        """Let some events arrive, or all there are."""
        idle = 0
        for _ in range(EXCHANGES_MAX):
            if events_max <= 0 or idle == IDLE_MAX or self.is_cut:
                return
            moved, events = self.exchange()
            idle = 0 if moved else idle + 1
            events_max -= events

    def exchange(self) -> tuple[bool, int]:
        """Move some bytes both ways; return whether anything moved, and the events handled."""
        rng, events = self.rng, 0
        size = rng.choice((7, 60, 200, 10_000, 10_000))
        size *= self.is_heard
        part, self.to_consumer = self.to_consumer[:size], self.to_consumer[size:]
        if part:
            events = self.end.receive(part)
        is_busy = not self.is_cut and self.end.work()
        if self.is_cut:
            return True, events
        sent = self.end.take_bytes()
        self.to_producer += sent
        if self.to_producer and self.is_told:
            size = rng.choice((30, 10_000, 10_000))
            self._serve(size)
        made = self._produce() or self._stop()
        waits = self.to_producer and self.is_told
        moved = bool(part or sent or waits or made or self.reads or self.stops)
        return moved or is_busy, events

    def _serve(self, size: int) -> None:
        """What the kv port does: cut packets, answer some itself, hand the rest on."""
        packets, rest = cut_packets(self.to_producer[:size], 1 << 25)
        self.to_producer = rest + self.to_producer[size:]
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
            value = _position(self.bucket.partitions[int.from_bytes(packet.value, "big")])
            return response(packet.opcode, Status.SUCCESS, packet.opaque, value=value)
        if packet.opcode == Opcode.EXCHANGE_RECORDS:
            return self._exchanged(packet)
        if packet.opcode == Opcode.GET_ALL_VB_SEQNOS:
            return response(packet.opcode, Status.SUCCESS, packet.opaque)
        self.producer.on_packet(packet)
        assert not self.producer.wants_close, f"the producer gave up at {packet}"
        return self.producer.take_replies()

    def _exchanged(self, packet: Packet) -> bytes:
        """Records of a managed cluster; a node that dies meanwhile answers nothing."""
        told = exchange_from_json(packet.value)
        for number, branch in told.branches.items():
            self.bucket.hear(number, branch)
        news, adopt = _news(self.bucket, told), self.bucket.adopt
        if news:
            assert adopt is not None
            with self.source.may_crash(self.source.world.crashes):
                try:
                    done(adopt(news))
                except MillstreamError:
                    return response(packet.opcode, Status.ETMPFAIL, packet.opaque)
        return b"" if self.is_cut else _reply(packet, self.bucket, told)

    def _produce(self) -> bool:
        producer, data = self.producer, None
        if len(self.to_consumer) < UNDER_WAY_MAX:
            producer.on_news()
            data = producer.produce()
            self.to_consumer += data or b""
        self.reads += producer.take_reads()
        has_read = bool(self.reads) and self.rng.random() < 0.5
        if has_read:
            read = self.reads.pop(self.rng.randrange(len(self.reads)))
            producer.on_chunk(read, next(read.chunks, None))
        if self.rng.random() < 0.1:
            producer.on_tick(self.source.now_ms())
            self.to_consumer += producer.take_replies()
        return data is not None or has_read

    def _stop(self) -> bool:
        """A copy is stopped that is handed over, sooner or later."""
        self.stops += self.producer.take_stops()
        if not self.stops or self.rng.random() < 0.3:
            return False
        stream, world = self.stops.pop(0), self.source.world
        has_stopped = True
        with self.source.may_crash(world.crashes):
            try:
                done(self.bucket.stop_copy(stream.partition_id, stream.epoch))
            except MillstreamError:
                has_stopped = False
        if not self.is_cut:
            self.producer.on_stopped(stream, has_stopped=has_stopped)
        return True


def done(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that never has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")
