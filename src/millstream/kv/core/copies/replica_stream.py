"""Applies what one connection to a source sends to the copies of a bucket that follow it.

    feed.follow(partition_id)               # it is a replica here, and active over there
    feed.receive(data)
    while feed.step(): ...                  # yield to others in between
    for effect in feed.take_effects(): ...  # in order: send, read, undo, wait

A copy is a reader like any other: its position, failover log and rollback point are stored in its
log (`kv.core.partition.replica`). The shell reports completed effects by `on_read`, `on_undone`,
`on_not_undone`, `on_waited`, and by `on_durable` after a commit. After a lost connection a new
feed is created.

Invariants:
1. Changes are applied in order. While one waits for the disk, the later ones wait behind it.
2. If a copy has changed since its stream was requested (another state or history, a rollback, a
   promise that excludes this source), its stream is ended before anything more is applied or
   acknowledged.
3. A copy is rolled back only for a source of a branch that it may follow, and only in the epoch in
   which the rollback was requested. `Undo` contains both, and they are checked again when nothing
   else is running.
4. Only an active copy is followed. Another copy may lack changes that were acknowledged to its
   source, for example one that was active and was killed; following it would undo them.
5. Only complete ends are acknowledged, and for durability only ends that are durable with their
   range, of the history in which the source accepted the copy.
6. A copy that promises a larger branch closes its stream before anything later is answered. A copy
   that has accepted its source says so with its first acknowledgement, even if it is empty.
7. An answer to a no-op is contact with the source only of copies that have accepted it. A node
   that was asked for a stream and does not serve is no source.
8. While more than `UNFLUSHED_BYTES_MAX` are not in the log, or the bucket refuses writes, the feed
   `is_full`: it gets no bytes, and acknowledges none to the source's flow control.

Elsewhere: the stream (`upr.core.consumer`), sockets, timers and the choice of sources
(`kv.aio.replicator`).

Source: docs/design/0006-copies.md.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from struct import Struct
from typing import Final, NamedTuple

from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.feed_effects import (
    Effect,
    Read,
    Send,
    Undo,
    Wait,
)
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.partition.replica import Replica
from millstream.kv.core.partition.residents import NotInMemory
from millstream.kv.core.partition.states import FOLLOWING
from millstream.model.limits import UINT64_MAX
from millstream.model.partitions import PartitionState
from millstream.model.pauses import Pauses
from millstream.model.serving_rights import NOOP_INTERVAL_MS
from millstream.upr.core.consumer import (
    WINDOW_BYTES,
    ChangesReceived,
    ConsumerCore,
    Event,
    ReplyReceived,
    RollbackRequired,
    SnapshotCompleted,
    SnapshotStarted,
    StreamEnded,
    StreamOpened,
    StreamRefused,
)
from millstream.upr.core.follower import StreamOptions
from millstream.wire.mcbp import Opcode, Packet, SnapshotFlag, Status, StreamFlag, request

__all__ = ["FULL_WAIT_S", "Feed", "FeedFigures", "Line", "Stage"]

UNFLUSHED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Unflushed changes of one source beyond which no more are received."""
STEP_CHANGES_MAX: Final = 500
"""Changes applied in one step, during which the loop is blocked."""
FULL_WAIT_S: Final = 0.1
"""How often a full feed checks whether writes are accepted again."""
PAUSE_S_MIN: Final = 0.1
"""Pause before a refused or ended stream is requested again; doubled each time."""
PAUSE_S_MAX: Final = 2.0
_HIGHS_OPAQUE: Final = 0x10000
_FROM_ACTIVE: Final = StreamOptions(flags=StreamFlag.ACTIVE_ONLY)
_NOTHING_YET: Final = (-1, -1)
"""Ends before the first acknowledgement."""
_SEQNO: Final = Struct(">HQ")
_STATE: Final = Struct(">I")


class FeedFigures(NamedTuple):
    """Progress of the copies that follow one source."""

    following: int
    """Copies that should have a stream."""
    streams: int
    """Copies that have one."""
    behind: int
    """Copies that lack changes, as far as is known."""
    lag: int
    """Seqnos that all of them lack, by the last report of the source."""
    unflushed_bytes: int
    changes_total: int
    rollbacks_total: int


class Stage(Enum):
    """Life cycle of one partition's stream."""

    RESTING = auto()
    """No request is open; a copy that should follow waits for its pause to end."""
    AGREEING = auto()
    """Records are exchanged with the source before the request (`agreeing_stream`)."""
    ASKED = auto()
    UNDOING = auto()
    OPEN = auto()
    MOVING = auto()
    """The copy is changing to the state that the source wants (`takeover_stream`)."""
    CLOSING = auto()


_ACCEPTED: Final = frozenset((Stage.OPEN, Stage.MOVING, Stage.CLOSING))
"""Stages in which the source may count this copy as a follower that answers."""


class Line:
    """One partition on this connection."""

    __slots__ = (
        "acknowledged",
        "branch",
        "epoch",
        "failure",
        "is_awaited",
        "is_wanted",
        "partition",
        "pauses",
        "source_high",
        "stage",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.stage = Stage.RESTING
        self.is_wanted = True
        self.epoch = 0
        """Epoch of the copy when the stream was requested, or after it was opened."""
        self.branch = 0
        """Newest branch of the source of the stream."""
        self.acknowledged = _NOTHING_YET
        self.is_awaited = False
        """A write at the source waits until this copy has the open snapshot on disk."""
        self.failure = ""
        """Why the last request for a stream failed."""
        self.source_high = 0
        self.pauses = Pauses(PAUSE_S_MIN, PAUSE_S_MAX)

    @property
    def may_follow(self) -> bool:
        """Return whether the copy takes changes now."""
        partition = self.partition
        return partition.state in FOLLOWING and not partition.is_suspended

    @property
    def is_stale(self) -> bool:
        """Return whether the copy has changed since the request, or has promised not to follow."""
        is_other = self.partition.epoch != self.epoch or not self.may_follow
        return is_other or self.is_fenced

    @property
    def is_fenced(self) -> bool:
        """Return whether the copy has promised not to follow this source."""
        return self.partition.last_branch > self.branch

    @property
    def replica(self) -> Replica:
        """Return the replica part of the copy; only where it may follow."""
        replica = self.partition.replica
        assert replica is not None
        return replica


class Feed:
    """The copies of one bucket that follow one source.

    Args:
        bucket: of the copies.
        name: of the connection.
        node_name: of the node that has the copies.
        window_bytes: flow control window.
    """

    def __init__(
        self, bucket: Bucket, name: bytes, node_name: str, *, window_bytes: int = WINDOW_BYTES
    ) -> None:
        self._bucket = bucket
        self._core = self._new_core(name, node_name.encode(), window_bytes)
        self._lines: dict[int, Line] = {}
        self._events: deque[Event] = deque()
        self._taken = 0
        """Number of applied changes of the first event."""
        self._is_reading = False
        self._has_news = False
        self._has_short_noops = False
        self._unflushed: deque[tuple[Partition, int, int, int]] = deque()
        """(partition, its epoch, seqno, bytes up to there since the entry before)."""
        self._unflushed_bytes = 0
        self._effects: list[Effect] = []
        self._asks_highs = False
        self._changes_total = self._rollbacks_total = 0

    def _new_core(self, name: bytes, node_name: bytes, window_bytes: int) -> ConsumerCore:
        core = ConsumerCore(window_bytes=window_bytes, document_meta=True)
        core.start(name, consumer_name=node_name)
        return core

    # -- calls of the shell

    def follow(self, partition_id: int) -> None:
        """Keep the copy following; a resting copy requests its stream at once."""
        if self._bucket.is_managed and not self._has_short_noops:
            self._has_short_noops = True  # they keep the source serving
            self._core.set_noop_interval(NOOP_INTERVAL_MS / 1000)
        line = self._lines.get(partition_id)
        if line is None:
            line = self._lines[partition_id] = Line(self._bucket.partitions[partition_id])
        line.is_wanted = True
        if line.stage is Stage.RESTING:
            line.pauses.restart()
            self._ask(line)

    def leave(self, partition_id: int) -> None:
        """Stop following this source."""
        line = self._lines.get(partition_id)
        if line is None:
            return
        line.is_wanted = False
        if line.stage is Stage.OPEN:
            self._close(line)
        elif line.stage is Stage.RESTING:
            del self._lines[partition_id]

    def look(self, partition_id: int) -> None:
        """The copy has changed: check whether its stream may go on."""
        line = self._lines.get(partition_id)
        if line is not None and (
            (line.stage is Stage.OPEN and line.is_stale)
            or (line.stage is Stage.MOVING and line.is_fenced)
        ):
            self._close(line)

    def ask_highs(self) -> None:
        """Ask for the source's high seqnos, for statistics; one request at a time."""
        if not self._asks_highs:
            self._asks_highs = True
            extras = _STATE.pack(PartitionState.ACTIVE)
            data = request(Opcode.GET_ALL_VB_SEQNOS, opaque=_HIGHS_OPAQUE, extras=extras)
            self._effects.append(Send(data))

    # -- data of the source

    @property
    def is_full(self) -> bool:
        """Return whether no more bytes should be received now."""
        bucket = self._bucket
        return (
            self._unflushed_bytes > UNFLUSHED_BYTES_MAX
            or bucket.writes.is_delaying
            or bool(bucket.writes.refusals)
        )

    @property
    def is_busy(self) -> bool:
        """Return whether received data is not applied yet."""
        return bool(self._events)

    def receive(self, data: bytes, now_ms: int | None = None) -> None:
        """Receive bytes; `step` applies them. With the time (monotonic) answers are noted.

        Raises:
            RemoteProtocolError: the source broke the protocol: close the connection.
            AccessError: the user may not stream this bucket.
        """
        before = self._core.noops
        self._events += self._core.receive_data(data)
        if now_ms is not None and self._core.noops != before:
            heard = (number for number, line in self._lines.items() if line.stage in _ACCEPTED)
            self._bucket.serving.answered(heard, now_ms)

    def step(self) -> bool:
        """Apply a part of the received data; return whether there is more to do at once.

        Raises:
            LocalProtocolError: the source's data does not fit the copy's.
        """
        left, has_changes = STEP_CHANGES_MAX, False
        while self._events and left > 0 and not self._is_reading:
            event = self._events[0]
            if isinstance(event, ChangesReceived):
                before = self._changes_total
                is_whole = self._take_changes(event, left)
                left -= self._changes_total - before
                has_changes = True
                if not is_whole:
                    continue
                self._taken = 0
            else:
                self._on_event(event)
            self._events.popleft()
        if has_changes or self._has_news:
            self._bucket.changed()
        return bool(self._events) and not self._is_reading

    def take_effects(self) -> list[Effect]:
        """Return the pending effects, in order."""
        if self._has_news:
            self._has_news = False
            for line in list(self._lines.values()):
                if line.stage is Stage.OPEN:
                    self._acknowledge(line)
        data = self._core.take_bytes(is_handled=not self._events and not self.is_full)
        effects, self._effects = self._effects, []
        if data:
            effects.append(Send(data))
        return effects

    # -- completed effects

    def on_read(self) -> None:
        """The requested document can be read now: its change is applied before this returns.

        Raises:
            LocalProtocolError: as `step`.
        """
        self._is_reading = False
        event = self._events[0]
        assert isinstance(event, ChangesReceived)
        if self._take_changes(event, 1):
            self._taken = 0
            self._events.popleft()
        self._bucket.changed()

    def on_undone(self, partition_id: int, seqno: int) -> None:
        """The copy is now at the complete end `seqno`."""
        self._rollbacks_total += 1
        line = self._lines[partition_id]
        partition = line.partition
        is_there = partition.queue.high_seqno == partition.high_seqno == seqno
        if line.is_wanted and line.may_follow and is_there:
            line.stage, line.epoch = Stage.ASKED, partition.epoch
            self._core.undone_to(partition_id, seqno)
        else:
            self.on_not_undone(partition_id)

    def on_not_undone(self, partition_id: int) -> None:
        """The copy could not be rolled back, or has changed since the request."""
        self._core.give_up(partition_id)
        self._rest(self._lines[partition_id])

    def on_waited(self, partition_id: int) -> None:
        """The pause is over."""
        line = self._lines.get(partition_id)
        if line is not None and line.stage is Stage.RESTING:
            self._ask(line)

    def on_durable(self) -> None:
        """Changes became durable: fewer are unflushed, and more can be acknowledged."""
        self._has_news = True
        unflushed = self._unflushed
        while unflushed:
            partition, epoch, seqno, count = unflushed[0]
            if partition.epoch == epoch and partition.queue.persisted_seqno < seqno:
                return
            unflushed.popleft()
            self._unflushed_bytes -= count

    def figures(self) -> FeedFigures:
        """Return the progress of the copies."""
        wanted = [line for line in self._lines.values() if line.is_wanted]
        lags = [max(0, line.source_high - line.partition.high_seqno) for line in wanted]
        return FeedFigures(
            following=len(wanted),
            streams=sum(line.stage is Stage.OPEN for line in wanted),
            behind=sum(map(bool, lags)),
            lag=sum(lags),
            unflushed_bytes=self._unflushed_bytes,
            changes_total=self._changes_total,
            rollbacks_total=self._rollbacks_total,
        )

    def is_streaming(self, partition_id: int) -> bool:
        """Return whether the copy has a stream now."""
        line = self._lines.get(partition_id)
        return line is not None and line.stage is Stage.OPEN

    def failure(self, partition_id: int) -> str:
        """Return why it has none, as far as is known."""
        line = self._lines.get(partition_id)
        return line.failure if line is not None and line.stage is not Stage.OPEN else ""

    # -- streams

    def _ask(self, line: Line) -> None:
        """Request the stream from the copy's position, or rest if it cannot follow now."""
        if not line.may_follow:
            self._rest(line)
            return
        partition = line.partition
        line.stage, line.epoch = Stage.ASKED, partition.epoch
        self._core.follow(
            partition.partition_id, line.replica.position, partition.failover_log,
            self._options(line),
        )  # fmt: skip

    def _options(self, line: Line) -> StreamOptions:
        return _FROM_ACTIVE

    def _rest(self, line: Line) -> None:
        """Request again after a pause, or forget the stream if it is not needed."""
        partition_id = line.partition.partition_id
        line.stage = Stage.RESTING
        if line.is_wanted:
            self._effects.append(Wait(partition_id, line.pauses.next()))
        else:
            del self._lines[partition_id]

    def _close(self, line: Line) -> None:
        """Close the stream; ignore what still arrives until its end."""
        line.stage = Stage.CLOSING
        partition_id = line.partition.partition_id
        if self._core.is_open(partition_id):  # else its end is on the way already
            self._core.close_stream(partition_id)

    def _on_event(self, event: Event) -> None:
        match event:
            case SnapshotStarted(partition_id, position, flags):
                line = self._open_line(partition_id)
                if line is not None:
                    line.is_awaited |= bool(flags & SnapshotFlag.AWAITED)
                    line.replica.apply_marker(position.snap_start + 1, position.snap_end)
            case SnapshotCompleted(partition_id, position):
                line = self._open_line(partition_id)
                if line is not None and line.partition.queue.high_seqno < position.seqno:
                    line.replica.apply_advance(position.seqno)
                if line is not None and line.is_awaited:
                    line.is_awaited = False
                    self._bucket.hurry()
                self._has_news = True
            case StreamOpened():
                self._on_opened(event)
            case RollbackRequired(partition_id, seqno, branch):
                self._on_rollback(self._lines[partition_id], seqno, branch)
            case StreamEnded(partition_id):
                self._rest(self._lines[partition_id])
            case StreamRefused(partition_id, status):
                line = self._lines[partition_id]
                line.failure = f"the node refuses the stream with status 0x{status:02x}"
                self._rest(line)
            case ReplyReceived(packet):
                self._on_reply(packet)

    def _open_line(self, partition_id: int) -> Line | None:
        """Return the partition if its stream goes on; a stale stream is closed."""
        line = self._lines[partition_id]
        if line.stage is Stage.OPEN and line.is_stale:
            self._close(line)
        return line if line.stage is Stage.OPEN else None

    def _on_opened(self, event: StreamOpened) -> None:
        line, log = self._lines[event.partition_id], event.failover_log
        partition = line.partition
        high = UINT64_MAX if event.source_high is None else event.source_high
        is_same = line.may_follow and partition.epoch == line.epoch
        if not (line.is_wanted and is_same and self._accepts(line, log[0].branch)):
            self._close(line)
            return
        line.replica.on_opened(log, event.position.purge_seqno or 0, high)
        line.source_high = max(event.source_high or 0, event.position.seqno)
        line.stage, line.epoch, line.branch = Stage.OPEN, partition.epoch, log[0].branch
        line.acknowledged, line.failure = _NOTHING_YET, ""
        self._has_news = True

    def _on_rollback(self, line: Line, seqno: int, branch: int) -> None:
        partition = line.partition
        is_same = line.may_follow and partition.epoch == line.epoch
        if line.is_wanted and is_same and self._accepts(line, branch):
            line.stage = Stage.UNDOING
            self._effects.append(Undo(partition.partition_id, seqno, line.epoch, branch))
        else:
            self._core.give_up(partition.partition_id)
            self._rest(line)

    @staticmethod
    def _accepts(line: Line, branch: int) -> bool:
        """Return whether the copy may follow, or be rolled back for, a source of that branch."""
        promised = line.partition.last_branch
        if branch >= promised:
            return True
        line.failure = f"the node's history, branch {branch}, is older than {promised}"
        return False

    def _on_reply(self, packet: Packet) -> None:
        if packet.opaque == _HIGHS_OPAQUE:
            self._asks_highs = False
            is_whole = len(packet.value) % _SEQNO.size == 0
            if packet.status == Status.SUCCESS and is_whole:
                for partition_id, seqno in _SEQNO.iter_unpack(packet.value):
                    if partition_id in self._lines:
                        self._lines[partition_id].source_high = seqno

    # -- changes

    def _take_changes(self, event: ChangesReceived, most: int) -> bool:
        """Apply at most `most` changes; return whether the event is finished."""
        line, frames = self._open_line(event.partition_id), event.frames
        if line is None:
            return True
        first, stop = self._taken, min(self._taken + most, len(frames))
        apply, count = line.replica.apply_change, 0
        try:
            for frame, side in zip(frames[first:stop], event.sides[first:stop], strict=True):
                apply(frame, side)
                count += 1
        except NotInMemory as absent:
            self._is_reading = True
            self._effects.append(Read(absent))
        if count:
            self._taken += count
            self._changes_total += count
            self._count_unflushed(line.partition, frames[first : first + count])
        return self._taken == len(frames)

    def _count_unflushed(self, partition: Partition, frames: list[bytes]) -> None:
        count = sum(map(len, frames))
        entry = (partition, partition.epoch, partition.queue.high_seqno, count)
        self._unflushed.append(entry)
        self._unflushed_bytes += count

    def _acknowledge(self, line: Line) -> None:
        partition = line.partition
        ends = (partition.high_seqno, partition.persisted_seqno)
        if ends == line.acknowledged:
            return
        if line.is_stale:
            self._close(line)
            return
        if line.acknowledged == _NOTHING_YET:  # the source may have been answered until now
            partition_id, bucket = partition.partition_id, self._bucket
            bucket.serving.answered((partition_id,), bucket.now_ms())
        line.acknowledged = ends
        line.pauses.restart()
        line.source_high = max(line.source_high, ends[0])
        self._core.acknowledge(partition.partition_id, *ends)
