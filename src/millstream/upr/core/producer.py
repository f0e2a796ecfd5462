"""One producer connection without I/O: packets in, bytes to write out.

    producer.on_packet(packet); write(producer.take_replies())
    while (data := producer.produce()) is not None: write(data)   # yield to others in between
    for read in producer.take_reads(): ...                        # in a thread, then on_chunk
    producer.on_news()                                            # the bucket changed

Invariants:
1. Streams take turns in rounds, in partition order; one write has at most
   `STREAM_STEP_ITEMS_MAX` changes and `STREAM_STEP_BYTES_MAX` bytes, whichever is reached first.
2. While `unacked >= window` no stream message is sent; the last one may overshoot. What a step
   made beyond that is held back, message by message; the description of a change and the change
   count as one. Replies and no-ops are never counted and
   never wait, nor does the end of a stream that the peer closes.
3. Every message of a stream carries the opaque of its request.
4. At most `BACKFILLS_MAX` streams of a connection read the log at a time; a read that was given
   up counts until it is done.
5. One no-op is outstanding at most.
6. An acknowledgement that is impossible closes the connection.
7. A barrier's cookie goes behind every message that it waits for, and is counted as they are.

Elsewhere: the judgement of requests (`upr.core.decision`), snapshots (`upr.core.stream`), what a
barrier waits for (`upr.core.barriers`), copies that are fed (`upr.core.fed_copies`), sockets,
threads and timers (`upr.aio.server`), OPEN (the kv port, which makes the producer).

Source: UPR design paper, "How ep-engine sends snapshots to UPR clients"; the released protocol.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from typing import Final, NamedTuple

from millstream.model.limits import STREAM_STEP_BYTES_MAX, STREAM_STEP_ITEMS_MAX
from millstream.model.partitions import PartitionState
from millstream.model.position import entry_below
from millstream.upr.core.barriers import Barriers
from millstream.upr.core.control import Settings
from millstream.upr.core.decision import Grant, RollbackError, decide
from millstream.upr.core.fed_copies import FedCopies
from millstream.upr.core.messages import (
    RefusedError,
    check_layout,
    decode_barrier,
    decode_stream_request,
    encode_failover_log,
)
from millstream.upr.core.profile import DescribedProfile, Profile
from millstream.upr.core.selecting import Conditions, no_conditions
from millstream.upr.core.source import BucketSource, PartitionSource
from millstream.upr.core.stream import Chunk, LogRead, Stream, StreamState
from millstream.upr.core.takeover import TAKE_OVER_TICK_MS, TakeOvers, TakeOverStream
from millstream.wire.frames import item_end, iter_items, stream_end
from millstream.wire.mcbp import (
    RESPONSE,
    Datatype,
    Opcode,
    OpenFlag,
    Packet,
    Status,
    StreamEndReason,
    request,
    response,
)

__all__ = ["BACKFILLS_MAX", "IDLE_MS_MAX", "STUCK_MS_MAX", "Producer", "Rollback", "StreamFigures"]

BACKFILLS_MAX: Final = 4
"""Streams of one connection that read the log at a time; each keeps at most two chunks."""
IDLE_MS_MAX: Final = 360_000
"""A peer that was asked for signs of life and gave none for so long is dead."""
STUCK_MS_MAX: Final = 600_000
"""A consumer that acknowledges nothing for so long while its window is full is cut off."""
_TICK_MS_MAX: Final = 60_000
_UNLIMITED: Final = 1 << 62
_MARKER_BYTES: Final = 44
"""Size of a snapshot marker of version 1, which may precede the changes of a step."""
_REST_ITEMS: Final = STREAM_STEP_ITEMS_MAX // 4
_REST_BYTES: Final = STREAM_STEP_BYTES_MAX // 4
"""A rest of a write that is too small for the turn of one more stream, which it would cut short.
"""
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")

_PRODUCER_ONLY: Final = frozenset(
    {
        Opcode.DCP_STREAM_END,
        Opcode.DCP_SNAPSHOT_MARKER,
        Opcode.DCP_MUTATION,
        Opcode.DCP_DELETION,
        Opcode.DCP_EXPIRATION,
        Opcode.DCP_SET_VBUCKET_STATE,
        Opcode.DCP_SYSTEM_EVENT,
        Opcode.DCP_PREPARE,
        Opcode.DCP_COMMIT,
        Opcode.DCP_ABORT,
        Opcode.DCP_SEQNO_ADVANCED,
        Opcode.DCP_OSO_SNAPSHOT,
    }
)
"""Messages that only a producer sends: whoever sends them here closes the connection."""
_OWN_PRODUCER_ONLY: Final = frozenset({Opcode.BARRIER_REACHED, Opcode.CYCLE_END, Opcode.DOC_META})


class StreamFigures(NamedTuple):
    """How far the streams of one connection are."""

    streams: int
    backfilling: int
    """Number of streams that read the log."""
    lag: int
    """Seqnos that the one farthest behind has still to be sent."""
    unacked_bytes: int
    sent_bytes: int
    is_stuck: bool
    """Cut off because it acknowledged nothing."""
    is_dead: bool
    """Cut off because it gave no sign of life."""


class Rollback(NamedTuple):
    """A reader was told to undo changes, or its stream ended since they were undone here."""

    partition: int
    from_seqno: int
    """Where the reader was."""
    to_seqno: int
    at_ms: int
    """Unix."""


class Producer:
    """The streams of one connection.

    Args:
        bucket: what is streamed.
        flags: of DCP_OPEN, already checked.
        is_extended: HELLO granted the feature of our own.
        has_json: HELLO granted the JSON bit.
        may_take_over: the peer may make copies here dead, in favour of its own, and say what its
            own have.
        config: returns the cluster map, for who asks the wrong node.
        conditions: makes conditions on documents, for who wants only some.
    """

    def __init__(
        self,
        bucket: BucketSource,
        flags: int,
        *,
        is_extended: bool,
        has_json: bool,
        may_take_over: bool = False,
        config: Callable[[], bytes] = bytes,
        conditions: Conditions = no_conditions,
    ) -> None:
        self.settings = Settings(is_extended=is_extended, conditions=conditions)
        self.unacked_bytes = 0
        self.acked_bytes_total = 0
        self.sent_bytes_total = 0
        self.wants_close = False
        """The peer broke the protocol, is stuck or dead: write the replies, then close."""
        self.is_stuck = self.is_dead = False
        self.last_rollback: tuple[int, int, int] | None = None
        """The last that a reader was told of: partition, where it was, the seqno to undo to."""
        self._bucket = bucket
        self._flags = flags
        self._has_json = has_json
        self._config = config
        self._streams: dict[int, Stream] = {}
        self._order: list[int] = []
        self._round: list[Stream] = []
        self._is_dirty = True
        self._backfilling: dict[int, Stream] = {}
        self._reads_under_way = 0
        self._held_back: deque[tuple[Stream, bytes]] = deque()
        """Messages that the window had no room for, the rest of one step at most."""
        self._barriers = Barriers()
        self._fed = FedCopies(bucket)
        self._may_acknowledge = may_take_over
        self._take_overs = TakeOvers(bucket, is_allowed=may_take_over)
        self._replies: list[bytes] = []
        self._has_asked = False
        self._has_heard = True
        self._heard_ms = 0
        self._noop_ms: int | None = None
        self._is_noop_out = False
        self._noop_opaque = 0
        self._full_since_ms: int | None = None

    # -- packets

    def on_packet(self, packet: Packet) -> None:
        """Take a request of the stream protocol, or a response to a request of ours."""
        self._has_heard = True
        if packet.magic == RESPONSE:
            if packet.opcode == Opcode.DCP_NOOP:
                self._on_noop_answered(packet)
            elif self._take_overs.on_response(packet, self._end):
                self._is_dirty = True
            return
        is_own = self.settings.is_extended and packet.opcode in _OWN_PRODUCER_ONLY
        if packet.opcode in _PRODUCER_ONLY or is_own:
            self.wants_close = True
            return
        handler = _HANDLERS.get(packet.opcode)
        if handler is None:
            known = packet.opcode == Opcode.DCP_OPEN or packet.opcode == Opcode.DCP_ADD_STREAM
            self._reply(packet, Status.EINVAL if known else Status.UNKNOWN_COMMAND)
            return
        try:
            check_layout(packet)
            handler(self, packet)
        except RefusedError as error:
            value = _U64.pack(error.seqno) if isinstance(error, RollbackError) else b""
            self._reply(packet, error.status, value)

    def _reply(self, packet: Packet, status: int, value: bytes = b"") -> None:
        datatype = 0
        if status == Status.NOT_MY_VBUCKET:
            value, datatype = self._config(), Datatype.JSON
        self._replies.append(
            response(packet.opcode, status, packet.opaque, value=value, datatype=datatype)
        )

    def take_replies(self) -> bytes:
        """Return what must be written at once: replies, no-ops, ends of closed streams."""
        data = b"".join(self._replies)
        self._replies.clear()
        return data

    def _on_stream_request(self, packet: Packet) -> None:
        asked = decode_stream_request(packet, is_extended=self.settings.is_extended)
        try:
            grant = decide(
                asked,
                self._bucket,
                is_streaming=asked.partition_id in self._streams,
                is_durable_only=self.settings.is_durable_only,
            )
        except RollbackError as error:
            self.last_rollback = (asked.partition_id, asked.position.seqno, error.seqno)
            raise
        source = self._bucket.partition(asked.partition_id)
        assert source is not None
        stream = self._begin(source, grant, packet.opaque)
        self._streams[asked.partition_id] = stream
        insort(self._order, asked.partition_id)
        self._has_asked = self._is_dirty = True
        if self.settings.consumer_name:
            stream.tells_awaited = self.settings.is_extended
            self._fed.join(self.settings.consumer_name, stream)
        self._reply(packet, Status.SUCCESS, encode_failover_log(source.failover_log))

    def _begin(self, source: PartitionSource, grant: Grant, opaque: int) -> Stream:
        kind = DescribedProfile if self.settings.has_document_meta else Profile
        profile = kind(
            self._flags,
            has_json=self._has_json,
            has_expiry_opcode=self.settings.has_expiry_opcode,
            marker_version=self.settings.marker_version,
        )
        has_advances = self.settings.is_extended
        if grant.is_take_over:
            return self._take_overs.begin(
                source, grant, opaque, profile, has_advances=has_advances,
                reader=self.settings.consumer_name,
            )  # fmt: skip
        skips = bool(self._flags & OpenFlag.SKIP_DELETES_IN_BACKFILL)
        return Stream(
            source, grant, opaque, profile,
            has_advances=has_advances, skips_deletes=skips, bucket=self._bucket,
            condition=self.settings.condition,
        )  # fmt: skip

    def _on_close_stream(self, packet: Packet) -> None:
        partition_id = packet.vbucket
        held_back = (
            stream for stream, _ in self._held_back if stream.partition_id == partition_id
        )
        stream = self._streams.get(partition_id) or next(held_back, None)
        if stream is None:
            raise RefusedError(Status.KEY_ENOENT, f"partition {partition_id} is not streamed")
        if not stream.is_over:
            stream.abandon()
            self._forget(stream)
        end = stream_end(partition_id, stream.opaque, StreamEndReason.CLOSED)
        self._held_back = deque(one for one in self._held_back if one[0] is not stream)
        self._reply(packet, Status.SUCCESS)
        if self.settings.sends_end_on_close:
            self._count(end)
            self._replies.append(end)

    def _on_barrier(self, packet: Packet) -> None:
        if not self.settings.has_barriers:
            raise RefusedError(Status.UNKNOWN_COMMAND, "barriers were not enabled")
        cookie, named = decode_barrier(packet)
        if named is None:
            named = self._order
        elif not self._streams.keys() >= set(named):
            raise RefusedError(Status.KEY_ENOENT, "a partition named is not streamed here")
        self._barriers.add(cookie, packet.opaque, (self._streams[p] for p in named))
        self._is_dirty = True
        self._reply(packet, Status.SUCCESS)

    def _on_failover_log(self, packet: Packet) -> None:
        source = self._bucket.partition(packet.vbucket)
        if source is None or source.state is PartitionState.ABSENT:
            raise RefusedError(Status.NOT_MY_VBUCKET, f"no partition {packet.vbucket} here")
        self._reply(packet, Status.SUCCESS, encode_failover_log(source.failover_log))

    def _on_buffer_ack(self, packet: Packet) -> None:
        acked = min(_U32.unpack(packet.extras)[0], self.unacked_bytes)
        self.unacked_bytes -= acked
        self.acked_bytes_total += acked
        if acked:
            self._full_since_ms = None

    def _on_control(self, packet: Packet) -> None:
        if packet.key == b"consumer_name" and not self._may_acknowledge:
            raise RefusedError(Status.EACCESS, "only nodes say what their copies have")
        self._reply(packet, self.settings.set(packet.key, packet.value))
        if not self.settings.window_bytes:
            self.unacked_bytes = 0  # nobody will acknowledge it

    def _on_noop(self, packet: Packet) -> None:
        self._reply(packet, Status.SUCCESS)

    def _on_seqno_acknowledged(self, packet: Packet) -> None:
        """Take what a copy has by now. Not answered."""
        if not self._fed.on_acknowledged(packet, is_extended=self.settings.is_extended):
            self.wants_close = True

    # -- stream messages

    @property
    def room_bytes(self) -> int:
        """What flow control lets pass now; 0 or less: nothing."""
        window_bytes = self.settings.window_bytes
        return window_bytes - self.unacked_bytes if window_bytes else _UNLIMITED

    def on_news(self) -> None:
        """The bucket changed: streams that had nothing to send are to be looked at again."""
        self._is_dirty = True

    def produce(self) -> bytes | None:
        """Return the next write of stream messages; None: there is nothing to send now.

        Empty bytes: work was done, call again. After None, news of the bucket, an
        acknowledgement, a chunk or a request may change that.
        """
        parts: list[bytes] = []
        bytes_left, items_left = STREAM_STEP_BYTES_MAX, STREAM_STEP_ITEMS_MAX
        while self._held_back and self.room_bytes > 0:
            parts.append(self._held_back.popleft()[1])
            self._count(parts[-1])
        if self._barriers.is_due:
            parts += self._take_due()
        while items_left > _REST_ITEMS and bytes_left > _REST_BYTES:
            room = min(bytes_left, self.room_bytes)
            if room <= 0 or not (self._round or self._begin_round()):
                break
            bytes_max = max(1, room - _MARKER_BYTES)  # so that it seldom is too much with a marker
            data, work = self._step(self._round.pop(), bytes_max, items_left)
            if data:
                parts.append(data)
                bytes_left -= len(data)
            items_left -= work
            if self._barriers.is_due:
                parts += self._take_due()
        did_work = parts or items_left < STREAM_STEP_ITEMS_MAX
        return b"".join(parts) if did_work else None

    def _take_due(self) -> list[bytes]:
        """Return cookies and ends of cycles that are due, as far as the window has room.

        While it has, nothing is held back.
        """
        due: list[bytes] = []
        while self._barriers.is_due and self.room_bytes > 0:
            due.append(self._barriers.take())
            self._count(due[-1])
        return due

    def _begin_round(self) -> bool:
        """Line up the streams that may have something to send; False: none has."""
        if self._is_dirty:
            self._is_dirty = False
            streams = self._streams
            self._round = [streams[p] for p in reversed(self._order) if streams[p].is_ready()]
            if self.settings.has_cycle_ends:
                self._barriers.begin_cycle(streams.values())
        return bool(self._round)

    def _step(self, stream: Stream, bytes_max: int, items_max: int) -> tuple[bytes, int]:
        """Give one stream its turn."""
        if self._streams.get(stream.partition_id) is not stream:  # closed since the round began
            return b"", 0
        may_backfill = len(self._backfilling) < BACKFILLS_MAX
        data, work = stream.step(bytes_max, items_max, may_backfill=may_backfill)
        if not self._barriers.is_idle:
            self._barriers.on_step(stream)
        if stream.is_over:
            if stream.is_undone:
                to_seqno = stream.source.high_seqno
                self.last_rollback = (stream.partition_id, stream.sent, to_seqno)
            self._forget(stream)
        elif stream.state is StreamState.BACKFILLING:
            self._backfilling[stream.partition_id] = stream
        elif self._backfilling:
            self._backfilling.pop(stream.partition_id, None)
        if work:
            self._is_dirty = True  # it may have more in the next round
            if len(data) > self.room_bytes:
                data = self._hold_back(stream, data)
            self._count(data)
        return data, work

    def _hold_back(self, stream: Stream, data: bytes) -> bytes:
        """Return the messages that the window lets pass, keep the others for later."""
        room, at = self.room_bytes, 0
        while at < room:
            at = item_end(data, at)
        self._held_back.extend((stream, message) for message in iter_items(data[at:]))
        return data[:at]

    def _count(self, data: bytes) -> None:
        self.sent_bytes_total += len(data)
        if self.settings.window_bytes:
            self.unacked_bytes += len(data)

    def _forget(self, stream: Stream) -> None:
        """Take a stream that ended out of the turns."""
        partition_id = stream.partition_id
        del self._streams[partition_id]
        self._backfilling.pop(partition_id, None)
        self._order.remove(partition_id)
        self._take_overs.forget(stream)
        self._barriers.on_end(partition_id)
        self._fed.leave(partition_id)
        self._is_dirty = True  # its turn at the log is free

    # -- the log

    def take_reads(self) -> list[LogRead]:
        """Return the reads to start now, each in a worker thread."""
        reads: list[LogRead] = []
        for stream in self._backfilling.values():
            if self._reads_under_way == BACKFILLS_MAX:
                break
            read = stream.take_read()
            if read is not None:
                reads.append(read)
                self._reads_under_way += 1
        return reads

    def on_chunk(self, read: LogRead, chunk: Chunk | None) -> None:
        """Take the end of a read: what was read, None at the end of the log."""
        self._reads_under_way -= 1
        read.stream.on_chunk(read, chunk)
        self._is_dirty = True

    def on_read_failed(self, read: LogRead) -> None:
        """Take the end of a read: it failed, the stream ends."""
        self._reads_under_way -= 1
        end = read.stream.on_read_failed(read)
        if end:
            self._end(read.stream, end)

    def _end(self, stream: Stream, end: bytes) -> None:
        """A stream ended between two steps: its last message is sent in its turn."""
        self._forget(stream)
        self._held_back.append((stream, end))

    # -- take-overs

    def take_stops(self) -> list[TakeOverStream]:
        """Return the streams whose copy is to be made dead now; `on_stopped` ends each."""
        return self._take_overs.take_stops()

    def on_stopped(self, stream: TakeOverStream, *, has_stopped: bool) -> None:
        """Take the end of that: the copy is durably dead, or it is what it was."""
        if stream.is_over:
            return
        end = stream.on_stopped(has_stopped=has_stopped)
        if end:
            self._end(stream, end)
        self._is_dirty = True

    # -- time

    @property
    def tick_ms(self) -> int:
        """How long after a tick the next is due."""
        settings = self.settings
        if self._take_overs:
            return min(settings.noop_interval_ms, TAKE_OVER_TICK_MS)
        return min(settings.noop_interval_ms, _TICK_MS_MAX) if settings.has_noop else _TICK_MS_MAX

    def on_tick(self, now_ms: int) -> None:
        """Look at the time: signs of life, dead and stuck peers."""
        if self._has_heard:
            self._has_heard, self._heard_ms = False, now_ms
        if self.room_bytes > 0:
            self._full_since_ms = None
        elif self._full_since_ms is None:
            self._full_since_ms = now_ms
        elif now_ms - self._full_since_ms >= STUCK_MS_MAX:
            self.wants_close = self.is_stuck = True
        self._take_overs.on_tick(now_ms)
        if self.settings.has_noop and self._has_asked:
            self._send_noop(now_ms)

    def _on_noop_answered(self, packet: Packet) -> None:
        if self._is_noop_out and packet.opaque == self._noop_opaque:
            assert self._noop_ms is not None
            self._fed.heard(self._noop_ms)
        self._is_noop_out = False

    def _send_noop(self, now_ms: int) -> None:
        asked_ms = self._noop_ms
        if self._is_noop_out and asked_ms is not None:  # only who was asked can be silent
            silent_ms = now_ms - max(self._heard_ms, asked_ms)
            if silent_ms >= IDLE_MS_MAX:
                self.wants_close = self.is_dead = True
        wait_ms = self.settings.noop_interval_ms * 9 // 10  # a tick may come a little early
        is_due = self._noop_ms is None or now_ms - self._noop_ms >= wait_ms
        if is_due and not self._is_noop_out:
            self._noop_ms, self._is_noop_out = now_ms, True
            self._noop_opaque = self._noop_opaque + 1 & 0x7FFFFFFF
            self._replies.append(request(Opcode.DCP_NOOP, opaque=self._noop_opaque))

    # -- the end

    def close(self) -> None:
        """Close all streams. Nothing is written any more."""
        for stream in self._streams.values():
            stream.abandon()
            self._fed.leave(stream.partition_id)
        self._streams.clear()
        self._order.clear()
        self._round.clear()
        self._backfilling.clear()
        self._held_back.clear()
        self._barriers.clear()

    def figures(self) -> StreamFigures:
        """Return how far the streams of this connection are."""
        streams = self._streams.values()
        return StreamFigures(
            streams=len(streams),
            backfilling=len(self._backfilling),
            lag=max((stream.lag for stream in streams), default=0),
            unacked_bytes=self.unacked_bytes,
            sent_bytes=self.sent_bytes_total,
            is_stuck=self.is_stuck,
            is_dead=self.is_dead,
        )

    def progress(self, partition_id: int) -> tuple[str, int] | None:
        """Return the state and position of a partition's stream; None if it has none."""
        stream = self._streams.get(partition_id)
        return (stream.status, stream.sent) if stream else None

    def positions(self) -> Iterator[tuple[int, str, int, int, int, int | None]]:
        """Yield partition, state, seqno, its branch, lag and oldest unsent change of streams."""
        for partition, stream in sorted(self._streams.items()):
            uuid = entry_below(stream.source.failover_log, stream.sent).uuid
            yield partition, stream.status, stream.sent, uuid, stream.lag, stream.unsent_ns()

    def statistics(self) -> list[tuple[str, str]]:
        """Return name and value of what STAT `dcp` shows of this connection."""
        figures = self.figures()
        return [
            ("max_buffer_bytes", str(self.settings.window_bytes)),
            ("unacked_bytes", str(self.unacked_bytes)),
            ("total_acked_bytes", str(self.acked_bytes_total)),
            ("total_bytes_sent", str(self.sent_bytes_total)),
            ("flow_control", "enabled" if self.settings.window_bytes else "disabled"),
            ("num_streams", str(figures.streams)),
            ("num_running_backfills", str(figures.backfilling)),
            ("worst_lag", str(figures.lag)),
            ("num_barriers", str(len(self._barriers))),
        ]


_HANDLERS: Final[Mapping[int, Callable[[Producer, Packet], None]]] = {
    Opcode.DCP_STREAM_REQ: Producer._on_stream_request,
    Opcode.DCP_CLOSE_STREAM: Producer._on_close_stream,
    Opcode.DCP_GET_FAILOVER_LOG: Producer._on_failover_log,
    Opcode.DCP_BUFFER_ACK: Producer._on_buffer_ack,
    Opcode.DCP_CONTROL: Producer._on_control,
    Opcode.DCP_NOOP: Producer._on_noop,
    Opcode.DCP_SEQNO_ACKNOWLEDGED: Producer._on_seqno_acknowledged,
    Opcode.BARRIER: Producer._on_barrier,
}
