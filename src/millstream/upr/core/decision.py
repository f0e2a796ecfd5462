"""The answer to a stream request: granted with which range, rolled back to where, or refused.

Invariants:
1. Every plane's position is judged by `model.position.rollback_seqno` and by nothing else.
2. What is granted can be read: 0 <= start <= high seqno, start <= end.

Source: the released protocol's decision, steps 1 to 8, worked out in docs/concepts/rollback.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millstream.model.limits import UINT64_MAX
from millstream.model.partitions import PartitionState
from millstream.model.position import Position, rollback_seqno
from millstream.upr.core.messages import RefusedError, StreamRequest
from millstream.upr.core.source import BucketSource, Hold, PartitionSource
from millstream.wire.mcbp import Status, StreamFlag

__all__ = ["Grant", "RollbackError", "decide"]

_FLAGS: Final = int(
    StreamFlag.TAKEOVER
    | StreamFlag.DISK_ONLY
    | StreamFlag.TO_LATEST
    | StreamFlag.ACTIVE_ONLY
    | StreamFlag.STRICT_UUID
    | StreamFlag.FROM_LATEST
    | StreamFlag.IGNORE_PURGE
    | StreamFlag.CACHE_TRANSFER
)
_PARTIAL: Final = StreamFlag.DISK_ONLY | StreamFlag.TO_LATEST | StreamFlag.FROM_LATEST
"""What no take-over may ask for."""


class RollbackError(RefusedError):
    """History diverged: the consumer must undo to `seqno`."""

    default_code = "rollback_required"

    def __init__(self, seqno: int) -> None:
        super().__init__(Status.ROLLBACK, f"undo to {seqno}, then ask again")
        self.seqno = seqno


class Grant(NamedTuple):
    """What a stream may read: (start, end], the snapshot in progress, and as of what.

    `snap_end` is above `start` only inside a snapshot of which something was received; the first
    snapshot sent reaches at least to it. `hold`: a fixed view to read, else the present one;
    `owns_hold`: it is released with the stream. `wanted_at`: where the first snapshot should
    end if that can be read. `is_durable_only`: nothing is sent that a stop of the machine
    could take away. `is_take_over`: the stream moves the active copy to its reader.
    """

    start: int
    end: int
    snap_start: int
    snap_end: int
    hold: Hold | None = None
    owns_hold: bool = False
    wanted_at: int | None = None
    is_durable_only: bool = False
    is_take_over: bool = False


def decide(
    asked: StreamRequest,
    bucket: BucketSource,
    *,
    is_streaming: bool,
    is_durable_only: bool = False,
) -> Grant:
    """Judge a stream request.

    Args:
        asked: as decoded.
        bucket: whose partition is asked for.
        is_streaming: the connection already has a stream of that partition.
        is_durable_only: the connection wants nothing that may be undone.

    Raises:
        RefusedError: any status but success; `RollbackError` with the seqno to undo to.
    """
    source = _source_of(asked, bucket)
    if asked.flags & StreamFlag.TAKEOVER:
        _check_take_over(asked, source, is_durable_only=is_durable_only)
    latest = source.durable_mark() if is_durable_only else source.high_seqno
    position = _position_of(asked, source, latest)
    _, start, snap_start, snap_end, _ = position
    if start > asked.end:
        raise RefusedError(Status.ERANGE, f"start {start} is beyond the end {asked.end}")
    if not snap_start <= start <= snap_end:
        message = f"start {start} is outside its snapshot [{snap_start}, {snap_end}]"
        raise RefusedError(Status.ERANGE, message)
    if is_streaming:
        message = f"partition {asked.partition_id} is streamed on this connection"
        raise RefusedError(Status.KEY_EEXISTS, message)
    back_to = rollback_seqno(
        position,
        log=source.failover_log,
        high_seqno=source.high_seqno,
        purge_seqno=source.purge_seqno,
        ignore_purge=bool(asked.flags & StreamFlag.IGNORE_PURGE),
        strict_uuid=bool(asked.flags & StreamFlag.STRICT_UUID),
    )
    if back_to is not None:
        raise RollbackError(back_to)
    if is_durable_only and latest < start and asked.flags & StreamFlag.TO_LATEST:
        message = f"it is not known yet that what is up to {start} is durable, ask again"
        raise RefusedError(Status.ETMPFAIL, message)
    end = _end_of(asked, source, latest)
    if start > end or start > source.high_seqno:
        raise RefusedError(Status.ERANGE, f"start {start} is beyond the end {end}")
    if start == snap_start:
        snap_end = start  # nothing of that snapshot was received, it need not be finished
    is_bounded = asked.flags & (StreamFlag.DISK_ONLY | StreamFlag.TO_LATEST)
    wanted_at = end if is_bounded else None
    grant = Grant(
        start, end, snap_start, snap_end, wanted_at=wanted_at, is_durable_only=is_durable_only,
        is_take_over=bool(asked.flags & StreamFlag.TAKEOVER),
    )  # fmt: skip
    return _with_hold(grant, asked, bucket, source)


def _source_of(asked: StreamRequest, bucket: BucketSource) -> PartitionSource:
    """Return the partition if this copy may be streamed."""
    source = bucket.partition(asked.partition_id)
    states = {PartitionState.ACTIVE}
    if not asked.flags & (StreamFlag.ACTIVE_ONLY | StreamFlag.TAKEOVER):
        states.add(PartitionState.REPLICA)
    if source is None or source.state not in states:
        message = f"partition {asked.partition_id} is not streamed from here"
        raise RefusedError(Status.NOT_MY_VBUCKET, message)
    if source.is_suspended:
        message = f"partition {asked.partition_id} is about to change, ask again"
        raise RefusedError(Status.ETMPFAIL, message)
    if asked.flags & ~_FLAGS:
        raise RefusedError(Status.EINVAL, f"unknown stream flags 0x{asked.flags:x}")
    if asked.flags & StreamFlag.CACHE_TRANSFER:
        raise RefusedError(Status.NOT_SUPPORTED, "the transfer of caches is not supported")
    return source


def _check_take_over(
    asked: StreamRequest, source: PartitionSource, *, is_durable_only: bool
) -> None:
    """A take-over brings everything: it has no end of its own and reads the present."""
    is_partial = asked.flags & _PARTIAL or asked.end != UINT64_MAX or is_durable_only
    if is_partial or asked.lease is not None or asked.as_of is not None:
        raise RefusedError(Status.EINVAL, "a take-over has no end, and no part of its own")
    if source.last_branch > source.failover_log[0].branch:
        message = f"partition {asked.partition_id} was promised to another history"
        raise RefusedError(Status.ETMPFAIL, message)


def _position_of(asked: StreamRequest, source: PartitionSource, latest: int) -> Position:
    if not asked.flags & StreamFlag.FROM_LATEST:
        return asked.position
    uuid = asked.position.uuid or source.failover_log[0].uuid
    return Position(uuid, latest, latest, latest)


def _end_of(asked: StreamRequest, source: PartitionSource, latest: int) -> int:
    if asked.flags & StreamFlag.DISK_ONLY:
        return source.persisted_seqno
    return latest if asked.flags & StreamFlag.TO_LATEST else asked.end


def _with_hold(
    grant: Grant, asked: StreamRequest, bucket: BucketSource, source: PartitionSource
) -> Grant:
    """Fix the view to read where a lease or a seqno was named.

    A range of a lease ends where asked, be it inside the snapshot; its snapshot ends at the
    lease's `at`.
    """
    if asked.end_uuid is not None and asked.end_uuid != source.failover_log[0].uuid:
        raise RefusedError(Status.LEASE_LOST, "the history in which the range ends is gone")
    if asked.lease is None and asked.as_of is None:
        return grant
    if asked.lease is not None:
        hold = bucket.lease_hold(asked.lease, asked.partition_id, grant.start)
    else:
        hold = source.open_hold(asked.as_of, grant.start)
    if hold is None or asked.as_of not in (None, hold.at):
        raise RefusedError(Status.LEASE_LOST, "the lease is not held: open another")
    if grant.is_durable_only and not (hold.is_logged or hold.at == source.durable_mark()):
        _give_back(asked, source, hold)
        message = (
            f"as of {hold.at} is no durable state: lease a mark, or stream without durable_only"
        )
        raise RefusedError(Status.LEASE_LOST, message)
    end = min(grant.end, hold.at)
    if grant.start > end or grant.snap_end > hold.at:
        _give_back(asked, source, hold)
        message = f"start {grant.start} is beyond what is read, {end} as of {hold.at}"
        raise RefusedError(Status.ERANGE, message)
    return grant._replace(end=end, hold=hold, owns_hold=asked.lease is None)


def _give_back(asked: StreamRequest, source: PartitionSource, hold: Hold) -> None:
    if asked.lease is None:
        source.release_hold(hold)
