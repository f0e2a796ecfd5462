"""What one connection to a source brings into the copies of a bucket that follow it.

    feed.follow(partition_id)               # it is a replica here, and active over there
    feed.receive(data)
    while feed.step(): ...                  # yield to others in between
    for effect in feed.take_effects(): ...  # in order: send, read, undo, wait

A copy is a reader like any other: position, failover log and the point to undo to are those that
its log keeps (`kv.core.partition.replica`). What the shell did is told by `on_read`, `on_undone`,
`on_not_undone`, `on_waited`, and `on_durable` after a commit. A lost connection: make a new feed.

Invariants:
1. Changes are applied one after the other; while one waits for the disk, the others wait behind.
2. Whatever else happened to a copy since it asked (another state or history, a rollback, a promise
   to follow no source that old) ends its stream before anything more is applied or acknowledged.
3. A copy is undone only for a source of a branch that it may follow, in the state in which it was
   told to (`Undo` says both: whoever undoes checks them again once nothing else is under way).
4. Only an active copy is followed. Another may lack what was acknowledged to its source, as one
   does that was active and was killed, and would have that undone.
5. What is acknowledged is a complete end, and one that is durable with its range, of the history
   in which the source accepted the copy.
6. While more than `UNFLUSHED_BYTES_MAX` are not in the log, or the bucket refuses writes, the feed
   `is_full`: it is given no bytes, and acknowledges none to the source's flow control.

Elsewhere: the stream (`upr.core.consumer`), sockets, timers and which partitions follow whom
(`kv.aio.replicator`).

Source: docs/design/0006-copies.md.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from struct import Struct
from typing import Final, NamedTuple

from millstream.kv.core.bucket import Bucket
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.partition.replica import Replica
from millstream.kv.core.partition.residents import NotInMemory
from millstream.kv.core.partition.states import FOLLOWING
from millstream.model.limits import UINT64_MAX
from millstream.model.partitions import PartitionState
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

__all__ = [
    "FULL_WAIT_S",
    "ChangeState",
    "Effect",
    "Feed",
    "FeedFigures",
    "Line",
    "Read",
    "Send",
    "Stage",
    "TakenOver",
    "Undo",
    "Wait",
]

UNFLUSHED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of changes that one source brought and the log has not, beyond which nothing more is taken."""
STEP_CHANGES_MAX: Final = 500
"""Changes applied in one step: the loop is busy meanwhile."""
FULL_WAIT_S: Final = 0.1
"""How often a feed that takes no more looks whether writes are accepted again."""
PAUSE_S_MIN: Final = 0.1
"""Before a stream that was refused or ended is asked for again; doubled each time."""
PAUSE_S_MAX: Final = 2.0
_HIGHS_OPAQUE: Final = 0x10000
_FROM_ACTIVE: Final = StreamOptions(flags=StreamFlag.ACTIVE_ONLY)
_SEQNO: Final = Struct(">HQ")
_STATE: Final = Struct(">I")


class Send(NamedTuple):
    """Bytes for the source."""

    data: bytes


class Read(NamedTuple):
    """Bring a document from the disk: nothing is applied until `on_read`.

    That is called where `absent.fetch` calls back, or later if too many wait.
    """

    absent: NotInMemory


class Undo(NamedTuple):
    """Roll the copy back to `seqno` or below; then `on_undone`.

    Only if its epoch is still this one, and it may follow a source of `branch`; else
    `on_not_undone`.
    """

    partition_id: int
    seqno: int
    epoch: int
    branch: int


class Wait(NamedTuple):
    """Call `on_waited` after `pause_s` seconds."""

    partition_id: int
    pause_s: float


class ChangeState(NamedTuple):
    """Give the copy that state, durably, if its epoch is still this one; then `on_state_changed`.

    Active by a hand-over, in the history that it has. Wanted by a `taking_feed.TakingFeed` only.
    """

    partition_id: int
    state: PartitionState
    epoch: int


class TakenOver(NamedTuple):
    """A take-over has ended; `failure`: why the copy is not active, empty if it is."""

    partition_id: int
    failure: str


Effect = Send | Read | Undo | Wait | ChangeState | TakenOver


class FeedFigures(NamedTuple):
    """How far the copies that follow one source are."""

    following: int
    """Copies that should have a stream."""
    streams: int
    """Those that have one."""
    behind: int
    """Those that lack something, as far as is known."""
    lag: int
    """Seqnos that all of them lack, by what the source said last."""
    unflushed_bytes: int
    changes_total: int
    rollbacks_total: int


class Stage(Enum):
    """Life of one partition's stream."""

    RESTING = auto()
    """Nothing is asked; whoever is wanted waits for its time."""
    ASKED = auto()
    UNDOING = auto()
    OPEN = auto()
    MOVING = auto()
    """The copy is being given the state that the source wants (`taking_feed`)."""
    CLOSING = auto()


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
        "pause_s",
        "source_high",
        "stage",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.stage = Stage.RESTING
        self.is_wanted = True
        self.epoch = 0
        """Of the copy when it asked, or as the stream's opening made it."""
        self.branch = 0
        """The newest of the source that the stream belongs to."""
        self.acknowledged = (0, 0)
        self.is_awaited = False
        """Somebody at the source waits until this copy has the open snapshot on disk."""
        self.failure = ""
        """Why there was no stream when it was asked for last."""
        self.source_high = 0
        self.pause_s = PAUSE_S_MIN

    @property
    def may_follow(self) -> bool:
        """Whether the copy takes changes now."""
        partition = self.partition
        return partition.state in FOLLOWING and not partition.is_suspended

    @property
    def is_stale(self) -> bool:
        """Whether the copy became another since it asked, or promised not to follow the source."""
        partition = self.partition
        is_other = partition.epoch != self.epoch or not self.may_follow
        return is_other or partition.last_branch > self.branch

    @property
    def replica(self) -> Replica:
        """The part of the copy that takes changes; only where it may follow."""
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
        """Changes of the first event that were applied."""
        self._is_reading = False
        self._has_news = False
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

    # -- what the shell wants

    def follow(self, partition_id: int) -> None:
        """Keep the copy following; one that rests asks now: what it waits for may have come."""
        line = self._lines.get(partition_id)
        if line is None:
            line = self._lines[partition_id] = Line(self._bucket.partitions[partition_id])
        line.is_wanted = True
        if line.stage is Stage.RESTING:
            line.pause_s = PAUSE_S_MIN
            self._ask(line)

    def leave(self, partition_id: int) -> None:
        """Let the copy follow this source no longer."""
        line = self._lines.get(partition_id)
        if line is None:
            return
        line.is_wanted = False
        if line.stage is Stage.OPEN:
            self._close(line)
        elif line.stage is Stage.RESTING:
            del self._lines[partition_id]

    def look(self, partition_id: int) -> None:
        """Something happened to the copy: see whether its stream may go on."""
        line = self._lines.get(partition_id)
        if line is not None and line.stage is Stage.OPEN and line.is_stale:
            self._close(line)

    def ask_highs(self) -> None:
        """Ask how far the source is, for the figures; once at a time."""
        if not self._asks_highs:
            self._asks_highs = True
            extras = _STATE.pack(PartitionState.ACTIVE)
            data = request(Opcode.GET_ALL_VB_SEQNOS, opaque=_HIGHS_OPAQUE, extras=extras)
            self._effects.append(Send(data))

    # -- what the source says

    @property
    def is_full(self) -> bool:
        """Whether no more bytes are to be taken now."""
        bucket = self._bucket
        return (
            self._unflushed_bytes > UNFLUSHED_BYTES_MAX
            or bucket.writes.is_delaying
            or bool(bucket.writes.refusals)
        )

    @property
    def is_busy(self) -> bool:
        """Whether something received is not applied yet."""
        return bool(self._events)

    def receive(self, data: bytes) -> None:
        """Take bytes off the wire; `step` applies them.

        Raises:
            RemoteProtocolError: the source broke the protocol: close the connection.
            AccessError: the user may not stream this bucket.
        """
        self._events += self._core.receive_data(data)

    def step(self) -> bool:
        """Apply a part of what was received; return whether there is more to do at once.

        Raises:
            LocalProtocolError: what the source sent cannot follow what the copy has.
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
        """Return what is to be done now, in order."""
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

    # -- what the shell did

    def on_read(self) -> None:
        """The document that was wanted can be had now: its change is applied before this returns.

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
        """The copy is at the complete end `seqno` now."""
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
        """The copy could not be undone, or is no longer what was to be undone."""
        self._core.give_up(partition_id)
        self._rest(self._lines[partition_id])

    def on_waited(self, partition_id: int) -> None:
        """The pause is over."""
        line = self._lines.get(partition_id)
        if line is not None and line.stage is Stage.RESTING:
            self._ask(line)

    def on_durable(self) -> None:
        """Changes became durable: less is unflushed, and more may be acknowledged."""
        self._has_news = True
        unflushed = self._unflushed
        while unflushed:
            partition, epoch, seqno, count = unflushed[0]
            if partition.epoch == epoch and partition.queue.persisted_seqno < seqno:
                return
            unflushed.popleft()
            self._unflushed_bytes -= count

    def figures(self) -> FeedFigures:
        """Return how far the copies are."""
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
        """Ask for the stream from where the copy stands, or rest if it cannot follow now."""
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
        """Ask again after a pause, or forget it if it is not wanted."""
        partition_id = line.partition.partition_id
        line.stage = Stage.RESTING
        if line.is_wanted:
            self._effects.append(Wait(partition_id, line.pause_s))
            line.pause_s = min(2 * line.pause_s, PAUSE_S_MAX)
        else:
            del self._lines[partition_id]

    def _close(self, line: Line) -> None:
        """Have the stream ended; what still comes is passed over, its end is waited for."""
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
        """Return the partition if its stream goes on; one that is stale is closed."""
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
        line.acknowledged, line.failure = (0, 0), ""
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
        """Return whether the copy may follow a source of that branch, or be undone for it."""
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
        """Apply changes, `most` of them; return whether that was the rest of the event."""
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
        line.acknowledged, line.pause_s = ends, PAUSE_S_MIN
        line.source_high = max(line.source_high, ends[0])
        self._core.acknowledge(partition.partition_id, *ends)
