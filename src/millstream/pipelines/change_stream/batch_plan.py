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
from millstream.model.position import Position, rollback_seqno
from millstream.pipelines.change_stream.control import NodeControl
from millstream.pipelines.change_stream.offsets import Offset, OffsetEntry
from millstream.pipelines.change_stream.options import Edge, SourceOptions
from millstream.pipelines.change_stream.planner import closed_entry
from millstream.pipelines.change_stream.query import check_given
from millstream.pipelines.change_stream.ranges import RangeRead
from millstream.pipelines.change_stream.timestamps import seqnos_before

__all__ = ["plan_batch"]


def plan_batch(options: SourceOptions) -> list[RangeRead]:
    """Return the ranges of a batch read, each under a lease.

    Args:
        options: of the source.

    Raises:
        RollbackRequiredError: invariant 2.
        UsageError: `other_bucket`.
        UnavailableError, AccessError: the node cannot be asked; `durable_unknown`.
    """
    control = NodeControl(options)
    try:
        given = {
            "startingOffsets": options.starting_offsets,
            "endingOffsets": options.ending_offsets,
        }
        for name, edge in given.items():
            if isinstance(edge, Offset):
                check_given(edge, name, options.bucket, control.bucket_uuid)
        leases = _leases_at(options.ending_offsets, control)
        starts = _starts(options, control, leases)
        reads = [_range(starts[p], options.ending_offsets, lease) for p, lease in leases.items()]
        for read in reads:
            _check_start(read, leases[read.partition_id], control, options.bucket)
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


def _starts(
    options: SourceOptions, control: NodeControl, leases: Mapping[int, LeaseHold]
) -> Mapping[int, OffsetEntry]:
    if options.starting_ns is None:
        return {p: _entry(options.starting_offsets, p, lease) for p, lease in leases.items()}
    return {
        p: closed_entry(control.failover_log(p), at, leases[p].branch) if at else OffsetEntry()
        for p, at in seqnos_before(options, leases, options.starting_ns).items()
    }


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
