"""Plans a batch read: the range of each partition, its end fixed under a lease.

Invariants:
1. The ends are taken at planning, so that a count is exact while writers go on. No partition that
   has changes is left out.
2. A start that the history no longer has is an error that names partition and seqno.

Elsewhere: offsets of streams (`planner`), the executors (`reading`).
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.client.extensions import LeaseHold
from millstream.errors import RollbackRequiredError
from millstream.model.position import Position, entry_below, rollback_seqno
from millstream.pipelines.change_stream.control import NodeControl
from millstream.pipelines.change_stream.offsets import Offset, OffsetEntry
from millstream.pipelines.change_stream.options import Edge, SourceOptions
from millstream.pipelines.change_stream.pushdown import Pushed
from millstream.pipelines.change_stream.query import check_given
from millstream.pipelines.change_stream.ranges import RangeRead

__all__ = ["plan_batch"]


def plan_batch(options: SourceOptions, pushed: Pushed | None = None) -> list[RangeRead]:
    """Return the ranges of a batch read, each under a lease.

    Args:
        options: of the source.
        pushed: filters; what they cannot choose is not read, as far as that is cheap.

    Raises:
        RollbackRequiredError: invariant 2.
        UsageError: `other_bucket`.
        UnavailableError, AccessError: the node cannot be asked; `durable_unknown`.
    """
    pushed = pushed or Pushed()
    control = NodeControl(options)
    try:
        control.leave_out(lambda p, count: not pushed.reads_partition(p, count))
        given = {
            "startingOffsets": options.starting_offsets,
            "endingOffsets": options.ending_offsets,
        }
        for name, edge in given.items():
            if isinstance(edge, Offset):
                check_given(edge, name, options.bucket, control.bucket_uuid)
        leases = _leases_at(options.ending_offsets, control)
        reads = [
            _range(_entry(options.starting_offsets, p, lease), options.ending_offsets, lease)
            for p, lease in leases.items()
        ]
        for read in reads:
            _check_start(read, leases[read.partition_id], control, options.bucket)
        reads = [_narrowed(read, pushed, leases[read.partition_id], control) for read in reads]
    finally:
        control.close()
    return [read for read in reads if read.row_count_max]


def _leases_at(ends: Edge, control: NodeControl) -> Mapping[int, LeaseHold]:
    """Hold every partition at the end asked for, or where that cannot be read, at its high."""
    if not isinstance(ends, Offset):
        return control.open_whole_lease(control.partition_ids)
    seqnos = {p: ends.entry(p).seqno for p in control.partition_ids}
    wanted = {p: seqno for p, seqno in seqnos.items() if seqno}
    return control.open_lease_at(wanted) if wanted else {}


def _entry(starts: Edge, partition_id: int, lease: LeaseHold) -> OffsetEntry:
    if isinstance(starts, Offset):
        return starts.entry(partition_id)
    if starts == "earliest":
        return OffsetEntry()
    return OffsetEntry(lease.uuid, lease.at, lease.at, lease.at, lease.branch)


def _range(start: OffsetEntry, ends: Edge, lease: LeaseHold) -> RangeRead:
    end = ends.entry(lease.partition_id).seqno if isinstance(ends, Offset) else lease.at
    begin = start.seqno if start.is_closed else start.snap_start
    return RangeRead(
        lease.partition_id, begin, min(end, lease.at), start.uuid, begin, begin, lease.branch,
        lease_id=lease.lease_id,
    )  # fmt: skip


def _narrowed(
    read: RangeRead, pushed: Pushed, lease: LeaseHold, control: NodeControl
) -> RangeRead:
    """Leave out the ends of a range that filters leave out, where the node can begin there."""
    read = read._replace(end=min(read.end, pushed.seqno_max))
    begin = min(pushed.seqno_min - 1, read.end)
    if begin <= read.begin:
        return read
    log = control.failover_log(read.partition_id)
    uuid = entry_below(log, begin).uuid
    is_refused = rollback_seqno(
        Position(uuid, begin, begin, begin),
        log=log, high_seqno=lease.at, purge_seqno=lease.purge_seqno,
    )  # fmt: skip
    if is_refused is not None:
        return read  # tombstones after it are gone: what is left out is so by the filter
    return read._replace(begin=begin, uuid=uuid, snap_start=begin, snap_end=begin)


def _check_start(read: RangeRead, lease: LeaseHold, control: NodeControl, bucket: str) -> None:
    if not read.begin:
        return
    p, begin = read.partition_id, read.begin
    seqno = rollback_seqno(
        Position(read.uuid, begin, begin, begin),
        log=control.failover_log(p),
        high_seqno=max(lease.at, control.positions()[p].high_seqno),
        purge_seqno=lease.purge_seqno,
    )
    if seqno is not None:
        raise RollbackRequiredError(
            f"partition {p} of bucket {bucket!r}: startingOffsets begin at seqno {begin}, but "
            f"what was read up to there must be rolled back to seqno {seqno}: the node has lost "
            "or replaced that history, or purged tombstones after it. Read from earliest",
            partition_id=p,
            seqno=seqno,
        )
