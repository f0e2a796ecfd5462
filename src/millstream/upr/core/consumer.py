"""One consumer connection without I/O: bytes in, events out, bytes to send back.

    core = ConsumerCore()
    core.start(b"name")                       # after HELLO, login and bucket selection
    core.follow(partition_id, position, failover_log)
    write(core.take_bytes())
    for event in core.receive_data(read()):   # then take_bytes() again, once they are handled
        ...

On `RollbackRequired` the reader undoes to the newest complete snapshot it can restore exactly that
is not above the seqno named (0 if none), then calls `undone_to`; the stream is asked for again.
Lost connection: make a new core and `follow` with the position and failover log stored.

Invariants:
1. Every event carries the position that holds once the reader has applied it; position and state
   are to be stored together.
2. `take_bytes` acknowledges what `receive_data` returned before: call it when that is handled, so
   that a slow reader slows the producer down. At most the window is unacknowledged.
3. Streams are asked for in the canonical profile with opaque = partition id, so that the producer
   sends shared frames. One stream per partition.
4. With `document_meta` every change comes right behind its lineage, or the connection is closed.
5. Opaques from 0x10000 to 0x7ffeffff are free for requests of the shell's own; their responses
   come back as `ReplyReceived`.

Elsewhere: the events (`upr.core.events`), positions (`upr.core.follower`), sockets and login
(`upr.aio.client`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

from millstream.errors import LocalProtocolError, RemoteProtocolError
from millstream.model.limits import FRAME_BYTES_MAX
from millstream.model.position import FailoverLog, Position
from millstream.upr.core.answers import Answers, StateRequested
from millstream.upr.core.descriptions import Run, cut_run, is_of_a_pair, needed_bytes
from millstream.upr.core.events import (
    BarrierReached,
    ChangesReceived,
    Event,
    ReplyReceived,
    RollbackRequired,
    SnapshotCompleted,
    SnapshotStarted,
    StreamEnded,
    StreamOpened,
    StreamRefused,
)
from millstream.upr.core.follower import Follower, FollowerState, StreamOptions
from millstream.upr.core.messages import (
    check_accepted,
    decode_barrier_reached,
    decode_branch_log,
    decode_failover_log,
    decode_high_and_purge,
    encode_acknowledgement,
    encode_barrier,
    encode_stream_request,
    with_branches,
)
from millstream.wire.mcbp import (
    HEADER,
    HEADER_BYTES,
    REQUEST,
    Opcode,
    OpenFlag,
    Packet,
    Status,
    StreamEndReason,
    StreamFlag,
    cut_packets,
    request,
    response,
)

__all__ = [
    "WINDOW_BYTES",
    "BarrierReached",
    "ChangesReceived",
    "ConsumerCore",
    "Event",
    "ReplyReceived",
    "RollbackRequired",
    "SnapshotCompleted",
    "SnapshotStarted",
    "StateRequested",
    "StreamEnded",
    "StreamOpened",
    "StreamRefused",
]

WINDOW_BYTES: Final = 8 * 1024 * 1024
"""Stream bytes that may be under way or unhandled; acknowledged at half of it."""

_MARKER: Final = Struct(">QQI")
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_HEAD_SEQNO: Final = Struct(">BBHBBHIIQQ")
_CHANGE_BODY_BYTES_MIN: Final = 18
_MUTATION: Final = int(Opcode.DCP_MUTATION)
_EXPIRATION: Final = int(Opcode.DCP_EXPIRATION)
_CONTROL_OPAQUE_MIN: Final = 0x7FFF0000
"""Opaques of OPEN, CONTROL and BARRIER; those of streams are partition ids, far below."""


class ConsumerCore:
    """Streams of many partitions on one connection.

    Args:
        window_bytes: flow control window, at least 1.
        has_extensions: HELLO granted the feature of our own: branch numbers are asked for, how
            far the source is, and the purge seqno that lets a first load go on after a pause.
        document_meta: bring each change's lineage; needs the extensions.
        durable_only: bring only what no stop of a machine can take away; needs the extensions.
    """

    def __init__(
        self,
        *,
        window_bytes: int = WINDOW_BYTES,
        has_extensions: bool = True,
        document_meta: bool = False,
        durable_only: bool = False,
    ) -> None:
        self._window_bytes = window_bytes
        self._has_extensions = has_extensions
        self._document_meta = document_meta
        self._durable_only = durable_only
        self._followers: dict[int, Follower] = {}
        self._branch_logs: dict[int, FailoverLog] = {}
        self._high_and_purge: dict[int, tuple[int, int]] = {}
        self._out: list[bytes] = []
        self._answers = Answers()
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._needed_bytes = HEADER_BYTES
        self._unacked_bytes = 0
        self._controls: dict[int, str] = {}
        self._has_barriers = False
        self.noops = 0
        """How many no-ops came; each is answered behind what was said before."""

    # -- what the reader does

    def start(
        self, name: bytes, *, noop_interval_s: float = 20, consumer_name: bytes = b""
    ) -> None:
        """Open the connection as a consumer.

        Args:
            name: 1..200 bytes, unique: an older connection of the same name is closed.
            noop_interval_s: seconds between the server's signs of life; fractions of a second
                are for our own servers, at least 0.1.
            consumer_name: of the node that keeps copies, for what it acknowledges.

        Raises:
            LocalProtocolError: `not_supported`: the server is none of ours.
        """
        if (self._document_meta or self._durable_only) and not self._has_extensions:
            message = (
                "this server has no document_meta and no durable_only: it is not a Millstream node"
            )
            raise LocalProtocolError(message, code="not_supported")
        flags = OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES
        self._ask("open", Opcode.DCP_OPEN, _U32.pack(0) + _U32.pack(flags), name, b"")
        self.configure(noop_interval_s=noop_interval_s, consumer_name=consumer_name)

    def configure(self, *, noop_interval_s: float = 20, consumer_name: bytes = b"") -> None:
        """Set the options of the streams of a connection that is open or being opened."""
        for key, value in (
            ("enable_noop", "true"),
            ("set_noop_interval", f"{noop_interval_s:g}"),
            ("connection_buffer_size", str(self._window_bytes)),
            ("enable_expiry_opcode", "true"),
        ):
            self._ask(key, Opcode.DCP_CONTROL, b"", key.encode(), value.encode())
        if consumer_name:
            key = "consumer_name"
            self._ask(key, Opcode.DCP_CONTROL, b"", key.encode(), consumer_name)
        if self._document_meta:
            self._ask("document_meta", Opcode.DCP_CONTROL, b"", b"document_meta", b"true")
        if self._durable_only:
            self._ask("durable_only", Opcode.DCP_CONTROL, b"", b"durable_only", b"true")

    def set_noop_interval(self, seconds: float) -> None:
        """Ask for signs of life so often from now on."""
        key = "set_noop_interval"
        value = f"{seconds:g}".encode()
        self._ask(key, Opcode.DCP_CONTROL, b"", key.encode(), value)

    def _ask(self, what: str, opcode: int, extras: bytes, key: bytes, value: bytes) -> None:
        opaque = self._new_opaque(what)
        self._out.append(request(opcode, opaque=opaque, extras=extras, key=key, value=value))

    def _new_opaque(self, what: str) -> int:
        opaque = max(self._controls, default=_CONTROL_OPAQUE_MIN - 1) + 1
        self._controls[opaque] = what
        return opaque

    def follow(
        self,
        partition_id: int,
        position: Position = Position(),  # noqa: B008 - immutable
        failover_log: FailoverLog = (),
        options: StreamOptions = StreamOptions(),  # noqa: B008 - immutable
    ) -> None:
        """Ask for the stream of a partition from `position` on.

        Args:
            partition_id: without a stream on this connection.
            position: where the reader stands; the default is the beginning.
            failover_log: as last received with that position; it saves a rollback to 0 where the
                source does not know the position's uuid.
            options: end, flags and lease.
        """
        known = self._followers.get(partition_id)
        if known is not None and known.state is not FollowerState.IDLE:
            message = f"partition {partition_id} has a stream on this connection"
            raise LocalProtocolError(message, code="bad_state")
        self._answers.forget(partition_id)
        self._followers[partition_id] = Follower(partition_id, position, failover_log, options)
        self._ask_for(self._followers[partition_id])

    def undone_to(self, partition_id: int, seqno: int) -> Position:
        """Go on after a rollback: the reader now holds the complete snapshot `seqno`.

        Returns:
            The position to store with that state.
        """
        follower = self._followers[partition_id]
        follower.undone_to(seqno)
        position = follower.position
        self._ask_for(follower)
        return position

    def give_up(self, partition_id: int) -> None:
        """Do not undo: there is no stream of the partition, `follow` may ask for another one."""
        self._followers[partition_id].on_refused()

    def is_open(self, partition_id: int) -> bool:
        """Return whether the partition has a stream, so that it can be closed."""
        follower = self._followers.get(partition_id)
        return follower is not None and follower.state is FollowerState.OPEN

    @property
    def unacked_bytes(self) -> int:
        """Number of bytes of stream messages that were not acknowledged to the source yet."""
        return self._unacked_bytes

    def count(self, size: int) -> None:
        """Acknowledge bytes that the source sent and that were not passed to the core."""
        self._unacked_bytes += size

    def acknowledge(self, partition_id: int, complete_end: int, persisted_end: int) -> None:
        """Tell the source how far this copy is complete, and complete and durable."""
        self._out.append(encode_acknowledgement(partition_id, complete_end, persisted_end))

    def close_stream(self, partition_id: int) -> None:
        """Stop the stream; ends with `StreamEnded`, nothing else comes from now on."""
        self._followers[partition_id].close()
        self._out.append(
            request(Opcode.DCP_CLOSE_STREAM, vbucket=partition_id, opaque=partition_id)
        )

    def ask_barrier(self, cookie: bytes) -> None:
        """Have `BarrierReached` come once the streams that are open have brought all there is now.

        Args:
            cookie: 1 to 64 bytes, none that waits already.

        Raises:
            LocalProtocolError: `not_supported`: the server has no barriers.
        """
        if not self._has_extensions:
            message = "this server sends no barrier cookies back: it is not a Millstream node"
            raise LocalProtocolError(message, code="not_supported")
        if not self._has_barriers:
            self._ask("enable_barriers", Opcode.DCP_CONTROL, b"", b"enable_barriers", b"true")
            self._has_barriers = True
        opaque = self._new_opaque("a barrier")
        self._out.append(encode_barrier(cookie, opaque=opaque))

    def answer_state(self, partition_id: int, status: int) -> None:
        """Answer `StateRequested`: the copy has that state, durably, or `status` says why not."""
        self._out.append(self._answers.to_state(partition_id, status))

    def position(self, partition_id: int) -> Position:
        """Return the position of the reader once it has applied all returned events."""
        return self._followers[partition_id].position

    def failover_log(self, partition_id: int) -> FailoverLog:
        """Return the log to store with the position; empty before the first stream."""
        return self._followers[partition_id].failover_log

    def _ask_for(self, follower: Follower) -> None:
        """Queue the request; before it what tells branches, the high and the purge point."""
        partition_id = follower.partition_id
        if self._has_extensions:
            self._out.append(request(Opcode.BRANCH_LOG, vbucket=partition_id, opaque=partition_id))
            value = partition_id.to_bytes(2, "big")
            self._out.append(request(Opcode.POSITIONS, opaque=partition_id, value=value))
        self._out.append(encode_stream_request(follower.ask(), partition_id))

    def take_bytes(self, *, is_handled: bool = True) -> bytes:
        """Return what is to be sent now, acknowledgements of everything received included.

        `is_handled`: it was; else nothing is acknowledged yet.
        """
        if is_handled and self._unacked_bytes * 2 >= self._window_bytes:
            self._out.append(request(Opcode.DCP_BUFFER_ACK, extras=_U32.pack(self._unacked_bytes)))
            self._unacked_bytes = 0
        answers = self._answers.take() if is_handled else ()
        data = b"".join((*self._out, *answers))
        self._out.clear()
        return data

    # -- what the server says

    def receive_data(self, data: bytes) -> list[Event]:
        """Take bytes off the wire; return what they say, in order.

        Raises:
            RemoteProtocolError: the server broke the protocol: close the connection.
            AccessError: the user may not stream this bucket.
        """
        self._pieces.append(data)
        self._pieces_bytes += len(data)
        if self._pieces_bytes < self._needed_bytes:  # a large frame is joined once, when whole
            return []
        data = data if len(self._pieces) == 1 else b"".join(self._pieces)
        events: list[Event] = []
        at = self._cut_described(data, events) if self._document_meta else self._cut(data, events)
        rest = data[at:]
        self._pieces = [rest] if rest else []
        self._pieces_bytes = len(rest)
        self._needed_bytes = needed_bytes(rest)
        return events

    def _cut(self, data: bytes, events: list[Event]) -> int:
        """Handle the whole frames in `data`; return the offset of what is left.

        Hot path: changes are cut here, one unpack each; everything else is rare.
        """
        unpack = _HEAD_SEQNO.unpack_from
        frames: list[bytes] = []
        follower: Follower | None = None
        at, end = 0, len(data)
        seqno = seqno_max = 0
        while end - at >= HEADER_BYTES + _U64.size:
            magic, opcode, key_bytes, _, _, partition_id, body, opaque, _, item = unpack(data, at)
            if not (magic == REQUEST and _MUTATION <= opcode <= _EXPIRATION):
                if frames:
                    self._deliver(follower, frames, events)
                follower, frames = None, []
                stop = self._cut_other(data, at, events)
                if stop == at:
                    return at
                at = stop
                continue
            stop = at + HEADER_BYTES + body
            if stop > end:
                self._check_size(body)
                break
            if follower is None or follower.partition_id != partition_id or opaque != partition_id:
                if frames:
                    self._deliver(follower, frames, events)
                frames, follower = [], self._open_follower(partition_id, opaque)
                if follower is None:
                    self._unacked_bytes += stop - at
                    at = stop
                    continue
                seqno, seqno_max = follower.position.seqno, follower.position.snap_end
            if not seqno < item <= seqno_max or body < _CHANGE_BODY_BYTES_MIN + key_bytes:
                raise _bad_change(partition_id, item, seqno, seqno_max, body)
            seqno = item
            frames.append(data[at:stop])
            at = stop
        else:
            if end - at >= HEADER_BYTES:  # too short for a change
                if frames:
                    self._deliver(follower, frames, events)
                frames = []
                at = self._cut_other(data, at, events)
        if frames:
            self._deliver(follower, frames, events)
        return at

    def _cut_described(self, data: bytes, events: list[Event]) -> int:
        """Do what `_cut` does where each change follows its description."""
        at, end = 0, len(data)
        while end - at >= HEADER_BYTES:
            if is_of_a_pair(data, at):
                run, stop = cut_run(data, at)
                if run.frames:
                    self._take_described(run, stop - at, events)
            else:
                stop = self._cut_other(data, at, events)
            if stop == at:
                break
            at = stop
        return at

    def _take_described(self, run: Run, size: int, events: list[Event]) -> None:
        follower = self._open_follower(run.partition_id, run.opaque)
        if follower is None:
            self._unacked_bytes += size
            return
        seqno, seqno_max = follower.position.seqno, follower.position.snap_end
        if not seqno < run.first <= run.last <= seqno_max:
            raise _bad_change(run.partition_id, run.last, seqno, seqno_max, size)
        self._unacked_bytes += size - sum(map(len, run.frames))
        self._deliver(follower, run.frames, events, run.sides)

    def _open_follower(self, partition_id: int, opaque: int) -> Follower | None:
        """Return whom a change is for; None: its stream is being closed."""
        follower = self._followers.get(partition_id)
        state = follower.state if follower and opaque == partition_id else FollowerState.IDLE
        if state is FollowerState.CLOSING:
            return None
        if state is not FollowerState.OPEN:
            message = f"a change of partition {partition_id}, which has no stream"
            raise RemoteProtocolError(message, code="unexpected_message")
        return follower

    def _deliver(
        self,
        follower: Follower | None,
        frames: list[bytes],
        events: list[Event],
        sides: Sequence[bytes] = (),
    ) -> None:
        """Hand over changes of one partition, all inside its snapshot, ascending."""
        assert follower is not None
        self._unacked_bytes += sum(map(len, frames))
        seqno: int = _U64.unpack_from(frames[-1], HEADER_BYTES)[0]
        is_complete = follower.on_advanced(seqno)
        position = follower.position
        events.append(ChangesReceived(follower.partition_id, position, frames, sides))
        if is_complete:
            self._complete(follower, events)

    def _complete(self, follower: Follower, events: list[Event]) -> None:
        events.append(SnapshotCompleted(follower.partition_id, follower.position))
        self._answers.on_complete(follower.partition_id)

    def _check_size(self, body: int) -> None:
        if body > FRAME_BYTES_MAX:
            raise RemoteProtocolError(f"body of {body} bytes is too long", code="too_large")

    def _cut_other(self, data: bytes, at: int, events: list[Event]) -> int:
        """Handle one frame that is no change; return the offset after it, `at` if it is cut."""
        body: int = HEADER.unpack_from(data, at)[6]
        self._check_size(body)
        stop = at + HEADER_BYTES + body
        packets, _ = cut_packets(data[at:stop], FRAME_BYTES_MAX)
        if not packets:
            return at
        packet = packets[0]
        if packet.magic != REQUEST:
            self._on_response(packet, events)
        elif packet.opcode == Opcode.DCP_NOOP:
            self.noops += 1
            self._out.append(response(Opcode.DCP_NOOP, Status.SUCCESS, packet.opaque))
        else:
            self._unacked_bytes += stop - at
            self._on_message(packet, events)
        return stop

    def _on_message(self, packet: Packet, events: list[Event]) -> None:
        if packet.opcode == Opcode.BARRIER_REACHED and self._has_barriers:
            events.append(BarrierReached(*decode_barrier_reached(packet)))
            return
        follower = self._followers.get(packet.vbucket)
        if follower is None or follower.state is FollowerState.IDLE:
            message = f"opcode 0x{packet.opcode:02x} for partition {packet.vbucket}, not streamed"
            raise RemoteProtocolError(message, code="unexpected_message")
        if follower.state is FollowerState.CLOSING:
            return
        partition_id = packet.vbucket
        if packet.opcode == Opcode.DCP_SNAPSHOT_MARKER and len(packet.extras) == _MARKER.size:
            start, end, flags = _MARKER.unpack(packet.extras)
            follower.on_marker(start, end)
            self._answers.on_marker(partition_id, flags)
            events.append(SnapshotStarted(partition_id, follower.position, flags))
        elif packet.opcode == Opcode.DCP_SEQNO_ADVANCED and len(packet.extras) == _U64.size:
            if follower.on_advanced(_U64.unpack(packet.extras)[0]):
                self._complete(follower, events)
        elif packet.opcode == Opcode.DCP_STREAM_END and len(packet.extras) == _U32.size:
            follower.on_ended()
            reason = _U32.unpack(packet.extras)[0]
            events.append(StreamEnded(partition_id, follower.position, reason))
        elif follower.options.flags & StreamFlag.TAKEOVER and len(packet.extras) == 1:
            events.append(self._answers.on_state(packet))
        else:
            message = f"opcode 0x{packet.opcode:02x} with {len(packet.extras)} bytes of extras"
            raise RemoteProtocolError(message, code="unexpected_message")

    def _on_response(self, packet: Packet, events: list[Event]) -> None:
        what = self._controls.pop(packet.opaque, None)
        if what is not None:
            check_accepted(what, packet.status)
            return
        follower = self._followers.get(packet.opaque)
        if follower is None or packet.opcode not in _REPLIES:
            events.append(ReplyReceived(packet))
            return
        if packet.opcode == Opcode.BRANCH_LOG:
            if packet.status == Status.SUCCESS:
                self._branch_logs[follower.partition_id] = decode_branch_log(packet.value)
        elif packet.opcode == Opcode.POSITIONS:
            if packet.status == Status.SUCCESS:
                self._high_and_purge[follower.partition_id] = decode_high_and_purge(packet.value)
        elif follower.state is not _REPLIES[packet.opcode]:
            message = f"an answer 0x{packet.opcode:02x} to nothing asked"
            raise RemoteProtocolError(message, code="unexpected_message")
        elif packet.opcode == Opcode.DCP_STREAM_REQ:
            self._on_stream_reply(follower, packet, events)
        elif packet.opcode == Opcode.DCP_GET_FAILOVER_LOG:
            self._on_failover_log(follower, packet, events)
        else:
            follower.on_ended()
            reason = StreamEndReason.CLOSED
            events.append(StreamEnded(follower.partition_id, follower.position, reason))

    def _on_stream_reply(self, follower: Follower, packet: Packet, events: list[Event]) -> None:
        partition_id = follower.partition_id
        branches = self._branch_logs.pop(partition_id, ())
        high, purge_seqno = self._high_and_purge.pop(partition_id, (None, None))
        if packet.status == Status.SUCCESS:
            log = with_branches(decode_failover_log(packet.value), branches)
            follower.on_opened(log, purge_seqno)
            if log[0].branch < max(bool(branches), follower.options.branch_min):
                # A source that was superseded; or history changed between the two answers.
                self.close_stream(partition_id)
                return
            events.append(StreamOpened(partition_id, follower.position, log, high))
        elif packet.status == Status.ROLLBACK and len(packet.value) == _U64.size:
            seqno = follower.on_rollback(_U64.unpack(packet.value)[0])
            if seqno is not None:
                events.append(RollbackRequired(partition_id, seqno, _newest(branches)))
                return
            self._branch_logs[partition_id] = branches
            self._out.append(
                request(Opcode.DCP_GET_FAILOVER_LOG, vbucket=partition_id, opaque=partition_id)
            )
        else:
            follower.on_refused()
            events.append(StreamRefused(partition_id, packet.status))

    def _on_failover_log(self, follower: Follower, packet: Packet, events: list[Event]) -> None:
        partition_id = follower.partition_id
        branch = _newest(self._branch_logs.pop(partition_id, ()))
        if packet.status == Status.SUCCESS:
            seqno = follower.on_failover_log(decode_failover_log(packet.value))
            events.append(RollbackRequired(partition_id, seqno, branch))
        else:
            follower.on_refused()
            events.append(StreamRefused(partition_id, packet.status))


_REPLIES: Final[Mapping[int, FollowerState]] = {
    Opcode.BRANCH_LOG: FollowerState.ASKING,
    Opcode.POSITIONS: FollowerState.ASKING,
    Opcode.DCP_STREAM_REQ: FollowerState.ASKING,
    Opcode.DCP_GET_FAILOVER_LOG: FollowerState.COMPARING,
    Opcode.DCP_CLOSE_STREAM: FollowerState.CLOSING,
}
"""The answers of streams, and the state in which each comes."""


def _newest(branches: FailoverLog) -> int:
    return branches[0].branch if branches else 0


def _bad_change(
    partition_id: int, item: int, seqno: int, seqno_max: int, body: int
) -> RemoteProtocolError:
    message = f"partition {partition_id}: a change of {body} bytes with seqno {item}"
    return RemoteProtocolError(
        f"{message}, expected {seqno} < seqno <= {seqno_max}", code="bad_order"
    )
