"""What a consumer's connection says, one event after the other.

Invariants:
1. Every event about a stream carries the position that holds once the reader has applied it.

Elsewhere: what a reader does about each of them (`upr.core.consumer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millstream.model.position import FailoverLog, Position
from millstream.upr.core.answers import StateRequested
from millstream.upr.core.messages import Reached
from millstream.wire.mcbp import Packet

__all__ = [
    "BarrierReached",
    "ChangesReceived",
    "Event",
    "ReplyReceived",
    "RollbackRequired",
    "SnapshotCompleted",
    "SnapshotStarted",
    "StreamEnded",
    "StreamOpened",
    "StreamRefused",
]


class StreamOpened(NamedTuple):
    """The position was accepted. `failover_log[0].branch` is the branch of what follows.

    `source_high`: the source's high seqno just before, None where it does not say.
    """

    partition_id: int
    position: Position
    failover_log: FailoverLog
    source_high: int | None = None


class SnapshotStarted(NamedTuple):
    """A snapshot was opened or continued; the reader's state is consistent only at its end."""

    partition_id: int
    position: Position
    flags: int


class ChangesReceived(NamedTuple):
    """Whole frames in order, `wire.frames.change_of` cuts one; all of the snapshot announced.

    `sides`: of each frame, empty where they were not asked for.
    """

    partition_id: int
    position: Position
    frames: list[bytes]
    sides: Sequence[bytes] = ()


class SnapshotCompleted(NamedTuple):
    """All of the snapshot was received: the position is closed."""

    partition_id: int
    position: Position


class RollbackRequired(NamedTuple):
    """History diverged: undo to `seqno` or below, then call `undone_to`, or `give_up`.

    `branch`: the newest of the source, 0 where it does not say.
    """

    partition_id: int
    seqno: int
    branch: int = 0


class StreamEnded(NamedTuple):
    """The stream has ended (`reason`: a StreamEndReason). The position stays."""

    partition_id: int
    position: Position
    reason: int


class StreamRefused(NamedTuple):
    """The request was refused with `status`, for another reason than history."""

    partition_id: int
    status: int


class BarrierReached(NamedTuple):
    """A cookie came back: everything accepted before it was sent has been returned.

    `reached`: by partition how far; who is not named had ended its stream before.
    """

    cookie: bytes
    reached: dict[int, Reached]


class ReplyReceived(NamedTuple):
    """A response to a request that the core did not send."""

    packet: Packet


Event = (
    StreamOpened
    | SnapshotStarted
    | ChangesReceived
    | SnapshotCompleted
    | RollbackRequired
    | StreamEnded
    | StreamRefused
    | BarrierReached
    | StateRequested
    | ReplyReceived
)
