"""Take-over: the stream that moves the active copy of a partition to its reader.

It is a stream like any other until the reader has what the log has (`BACKFILLING`). From then on
every marker asks to be answered once its snapshot is applied (`SENDING`). When everything is sent
and answered, the reader is told to be pending (`ANNOUNCED`); it agrees, and the copy here is
stopped (`STOPPING`); what was written meanwhile follows (`SENDING_REST`); the reader is told to be
active (`CONFIRMING`), and its answer ends the stream with reason 0.

Invariants:
1. The reader is told to be active only by a source that is durably dead, and still promised to
   nobody else: there are never two active copies.
2. It is told so only after it has confirmed every change that was accepted here.
3. One stream takes a partition over at a time.
4. Whatever ends the stream before the copy is stopped leaves it as it was; writes held back are
   accepted again. After that it stays dead: whoever runs the cluster decides who goes on.
5. Writers cannot put a take-over off for ever: after `PATIENCE_MS` the reader may be told to be
   pending while it has still to answer for `UNANSWERED_SEQNOS_MAX` seqnos, and if it does not get
   there within `TAKE_OVER_SEND_MS_MAX`, new writes are refused until it does.
6. At most `UNANSWERED_MAX` snapshots are unanswered.

Elsewhere: snapshots and their order (`upr.core.stream`), flow control and replies
(`upr.core.producer`), stopping the copy (`kv.aio.copies`), the reader's side
(`upr.core.consumer`).

Source: the released protocol's take-over streams; docs/reference/wire/streams.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from millstream.model.partitions import PartitionState
from millstream.upr.core.decision import Grant
from millstream.upr.core.messages import RefusedError
from millstream.upr.core.profile import Profile
from millstream.upr.core.source import BucketSource, Hold, PartitionSource
from millstream.upr.core.stream import Stream
from millstream.wire.mcbp import (
    Opcode,
    Packet,
    SnapshotFlag,
    Status,
    StreamEndReason,
    request,
)

__all__ = [
    "PATIENCE_MS",
    "TAKE_OVER_SEND_MS_MAX",
    "TAKE_OVER_TICK_MS",
    "UNANSWERED_MAX",
    "UNANSWERED_SEQNOS_MAX",
    "Phase",
    "TakeOverStream",
    "TakeOvers",
]

TAKE_OVER_SEND_MS_MAX: Final = 60_000
"""How long the reader may lag behind the writers before those are held back."""
PATIENCE_MS: Final = 2000
"""How long a reader that keeps up is waited for to have answered everything at one moment."""
UNANSWERED_SEQNOS_MAX: Final = 10_000
"""What it may not have answered when it is told to be pending after that."""
UNANSWERED_MAX: Final = 100
"""Snapshots that the reader has not confirmed; no other one is begun."""
TAKE_OVER_TICK_MS: Final = 1000
"""How often a connection that takes a partition over looks at the time."""

_NOTHING: Final = (b"", 0)


class Phase(Enum):
    """How far a take-over is."""

    BACKFILLING = auto()
    SENDING = auto()
    ANNOUNCED = auto()
    STOPPING = auto()
    SENDING_REST = auto()
    CONFIRMING = auto()


_BEFORE_ANNOUNCED: Final = frozenset({Phase.BACKFILLING, Phase.SENDING})


class TakeOverStream(Stream):
    """The stream of one take-over; made by `TakeOvers.begin`."""

    __slots__ = (
        "_bucket", "_confirmed", "_is_holding_back", "_is_impatient", "_since_ms", "_unanswered",
        "phase",
    )  # fmt: skip

    def __init__(
        self,
        source: PartitionSource,
        grant: Grant,
        opaque: int,
        profile: Profile,
        *,
        has_advances: bool,
        bucket: BucketSource,
    ) -> None:
        super().__init__(
            source, grant, opaque, profile, has_advances=has_advances, skips_deletes=False
        )
        self.phase = Phase.BACKFILLING
        self._bucket = bucket
        self._unanswered: deque[int] = deque()
        """Ends of the snapshots whose marker the reader has still to answer."""
        self._confirmed = grant.start
        """What the reader has applied, or need not confirm."""
        self._since_ms: int | None = None
        self._is_holding_back = self._is_impatient = False

    # -- steps

    def is_ready(self) -> bool:
        """Return whether a step may do something."""
        if self.phase is Phase.STOPPING:
            return False
        if self.phase in (Phase.ANNOUNCED, Phase.CONFIRMING):
            return self.is_broken
        if len(self._unanswered) == UNANSWERED_MAX and self._hold is None:
            return self.is_broken
        return super().is_ready() or self._is_drained

    def step(self, bytes_max: int, items_max: int, *, may_backfill: bool) -> tuple[bytes, int]:
        """As `Stream.step`; asks the reader to change its state once there is nothing to send."""
        if not self.is_ready():
            return _NOTHING
        data, work = super().step(bytes_max, items_max, may_backfill=may_backfill)
        if data or work or not self._is_drained:
            return data, work
        return self._ask(), 1

    @property
    def _is_drained(self) -> bool:
        """Whether the reader has all there is, as far as it must to go on."""
        if self._hold is not None or self.sent < max(self.source.high_seqno, self._end_min):
            return False
        if not self._unanswered:
            return True
        is_near = self.sent - self._confirmed <= UNANSWERED_SEQNOS_MAX
        return is_near and self._is_impatient and self.phase is Phase.SENDING

    def _ask(self) -> bytes:
        """Ask the reader to change its state."""
        if self.source.last_branch > self.source.failover_log[0].branch:
            return self.end(StreamEndReason.STATE_CHANGED)  # another copy is being promoted
        is_first = self.phase in _BEFORE_ANNOUNCED
        self.phase = Phase.ANNOUNCED if is_first else Phase.CONFIRMING
        state = PartitionState.PENDING if is_first else PartitionState.ACTIVE
        self._accept_writes()
        return request(
            Opcode.DCP_SET_VBUCKET_STATE,
            vbucket=self.partition_id,
            opaque=self.opaque,
            extras=state.to_bytes(1, "big"),
        )

    def _open_hold(self, newest: int) -> Hold | None:
        if self.phase is Phase.SENDING_REST:
            return self.source.open_rest(self.sent)
        return super()._open_hold(newest)

    def _marker(self, before: int, first_item: int) -> bytes:
        if self.phase is Phase.BACKFILLING and not self._is_disk:
            self.phase, self._marker_flags = Phase.SENDING, SnapshotFlag.ACK
            self._confirmed = before
        return super()._marker(before, first_item)

    def _finish(self, before: int) -> bytes:
        data = super()._finish(before)
        if self._is_marked and self._marker_flags:  # one answer, however often it was continued
            self._unanswered.append(self.sent)
        return data

    def abandon(self) -> None:
        """Give everything up; nothing more is sent."""
        super().abandon()
        self._bucket.end_take_over(self.partition_id)

    # -- what the reader says

    def on_response(self, packet: Packet) -> bytes:
        """Take an answer; return the end of the stream if it is that."""
        is_asked = self.phase in (Phase.ANNOUNCED, Phase.CONFIRMING)
        if packet.opcode == Opcode.DCP_SNAPSHOT_MARKER:
            is_asked = bool(self._unanswered)
        if not is_asked:
            return b""
        if packet.status != Status.SUCCESS:
            return self.end(StreamEndReason.STATE_CHANGED)
        if packet.opcode == Opcode.DCP_SNAPSHOT_MARKER:
            self._confirmed = self._unanswered.popleft()
        elif self.phase is Phase.CONFIRMING:
            return self.end(StreamEndReason.OK)
        else:
            self.phase = Phase.STOPPING
        return b""

    # -- the copy here

    @property
    def epoch(self) -> int:
        """The epoch of the partition, as far as the stream follows it."""
        return self._epoch

    def on_stopped(self, *, has_stopped: bool) -> bytes:
        """Take the end of stopping the copy; return the end of the stream if it could not be."""
        source = self.source
        if self.phase is not Phase.STOPPING:
            return b""
        if not has_stopped or source.state is not PartitionState.DEAD:
            return self.end(StreamEndReason.STATE_CHANGED)
        self.phase = Phase.SENDING_REST
        self._marker_flags = SnapshotFlag.ACK
        self._epoch, self._role = source.epoch, source.state
        return b""

    # -- time

    def on_tick(self, now_ms: int) -> None:
        """Hold writes back if the reader does not catch up with them."""
        if self.phase is not Phase.SENDING:
            return
        if self._since_ms is None:
            self._since_ms = now_ms
        lasted_ms = now_ms - self._since_ms
        self._is_impatient = lasted_ms >= PATIENCE_MS
        if lasted_ms >= TAKE_OVER_SEND_MS_MAX and not self._is_holding_back:
            self._is_holding_back = True
            self._bucket.hold_back_writes(self.partition_id)

    def _accept_writes(self) -> None:
        if self._is_holding_back:
            self._is_holding_back = False
            self._bucket.accept_writes_again(self.partition_id)

    @property
    def status(self) -> str:
        """How far it is, in a word."""
        return f"takeover-{self.phase.name.lower().replace('_', '-')}"


class TakeOvers:
    """The take-overs of one connection."""

    def __init__(self, bucket: BucketSource, *, is_allowed: bool) -> None:
        self._bucket = bucket
        self._is_allowed = is_allowed
        self._streams: dict[int, TakeOverStream] = {}
        self._stops: list[TakeOverStream] = []

    def __len__(self) -> int:
        return len(self._streams)

    def begin(
        self,
        source: PartitionSource,
        grant: Grant,
        opaque: int,
        profile: Profile,
        *,
        has_advances: bool,
        reader: str,
    ) -> TakeOverStream:
        """Begin one that was judged already; `reader`: the name of its node.

        Raises:
            RefusedError: not allowed on this connection, the partition is not to move there, or it
                is being taken over.
        """
        if not self._is_allowed:
            raise RefusedError(Status.EACCESS, "only administrators take partitions over")
        if opaque in self._streams:
            raise RefusedError(Status.EINVAL, "answers name the stream by its opaque alone")
        if not self._bucket.may_hand_over(source.partition_id, reader):
            message = f"partition {source.partition_id} is not to be taken over by {reader!r} now"
            raise RefusedError(Status.ETMPFAIL, message)
        if not self._bucket.begin_take_over(source.partition_id, reader):
            message = f"partition {source.partition_id} is being taken over already"
            raise RefusedError(Status.EBUSY, message)
        stream = TakeOverStream(
            source, grant, opaque, profile, has_advances=has_advances, bucket=self._bucket
        )
        self._streams[opaque] = stream
        return stream

    def forget(self, stream: Stream) -> None:
        """A stream ended, of whatever kind."""
        if self._streams.get(stream.opaque) is stream:
            del self._streams[stream.opaque]

    def on_response(self, packet: Packet, on_end: Callable[[Stream, bytes], None]) -> bool:
        """Take an answer to a marker or a state; return whether it was to one of these.

        `on_end` is called if that was the last: with the message that ends the stream.
        """
        stream = self._streams.get(packet.opaque)
        if stream is None:
            return False
        before = stream.phase
        end = stream.on_response(packet)
        if end:
            on_end(stream, end)
        elif stream.phase is not before:
            self._stops.append(stream)
        return True

    def take_stops(self) -> list[TakeOverStream]:
        """Return the streams whose copy is to be stopped now."""
        stops, self._stops = self._stops, []
        return [stream for stream in stops if not stream.is_over]

    def on_tick(self, now_ms: int) -> None:
        """Look at the time."""
        for stream in self._streams.values():
            stream.on_tick(now_ms)
