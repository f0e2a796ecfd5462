"""The changes between two logged offsets: stream requests of each partition, and extra rows.

Invariants:
1. Everything is derived from the two offsets, so a replay asks for the same.
2. A rollback row comes before all other rows of its partition, exactly if branch or load change. A
   sweep row comes with the offset that confirms the end of a load's first snapshot, or at once if
   the partition was empty.
3. A logged range whose lease is lost delivers what is left of the common history. That is not an
   error, because Spark would ask for the same range at every restart. The next plan judges it.
4. The change rows of a range have begin < seqno <= end.

Elsewhere: who logs offsets (`planner`), bytes to columns (`columns`), sockets (`control`,
`reading`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from millstream.client.bulk import Range
from millstream.client.extensions import LeaseHold
from millstream.errors import RollbackRequiredError, RoutingError, StreamError
from millstream.model.position import FailoverLog, Position, upper_of
from millstream.pipelines.change_stream.offsets import Offset, OffsetEntry
from millstream.wire.frames import iter_frames, seqno_of
from millstream.wire.mcbp import Opcode

__all__ = [
    "RangeRead",
    "RangeSource",
    "range_between",
    "ranges_between",
    "read_committed",
    "spread",
]

_ROWS: Final = frozenset(
    (Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION, Opcode.DOC_META)
)
"""Changes, and the description in front of each, which has the same seqno."""


class RangeRead(NamedTuple):
    """One partition's share of a batch; travels to the executors.

    `rollback_to` and `sweep_seqno`: seqnos of the extra rows, None for no such row.
    """

    partition_id: int
    begin: int
    end: int
    uuid: int
    snap_start: int
    snap_end: int
    branch: int
    load: int = 1
    lease_id: int | None = None
    purge_seqno: int | None = None
    rollback_to: int | None = None
    sweep_seqno: int | None = None

    @property
    def row_count_max(self) -> int:
        """Bound of the change rows: one for each seqno."""
        return max(0, self.end - self.begin)

    @property
    def request(self) -> Range:
        """The stream to ask for, under its lease."""
        position = Position(
            self.uuid, self.begin, self.snap_start, self.snap_end, self.purge_seqno
        )
        return Range(self.partition_id, position, self.end, self.lease_id)

    def as_of(self, lease: LeaseHold) -> RangeRead:
        """Return the same range of another lease, up to its end.

        One that ends before the range begins is for the node to judge, as any position.
        """
        end = max(self.begin, lease.at)
        return self._replace(end=end, snap_end=end, branch=lease.branch, lease_id=lease.lease_id)


class RangeSource(Protocol):
    """What the reader of ranges asks of a node."""

    def stream(self, ranges: Sequence[Range]) -> Iterator[bytes]:
        """Yield the frames of ranges in chunks; nothing for no range.

        Raises:
            RollbackRequiredError: the rollback rule refused a position.
            StreamError: `lease_lost`, or a stream that ended before its end.
            RoutingError: the partition moved.
        """

    def failover_log(self, partition_id: int) -> tuple[FailoverLog, int]:
        """Return the histories of a partition, newest first, and its high seqno."""

    def release_lease(self, lease_id: int, partition_id: int) -> None:
        """Give up a lease on a partition; one that is not held is no error."""


def range_between(partition_id: int, start: OffsetEntry, end: OffsetEntry) -> RangeRead | None:
    """Return what one partition's batch holds; None if it did not move."""
    if start == end:
        return None
    is_same = (start.lease_id, start.snap_start) == (end.lease_id, end.snap_start)
    begin = start.seqno if is_same else end.snap_start
    has_changed = (start.branch, start.load) != (end.branch, end.load)
    rollback_to = end.rollback_to if has_changed else None
    if rollback_to is not None:
        begin = rollback_to
    is_empty_load = rollback_to == begin == end.seqno == 0
    is_confirmed = start.snap_start == 0 < start.seqno == start.snap_end == end.snap_start
    read = RangeRead(
        partition_id, begin, end.seqno, end.uuid, end.snap_start, end.snap_end,
        end.branch, end.load, end.lease_id, end.purge_seqno, rollback_to,
        end.seqno if is_empty_load or is_confirmed else None,
    )  # fmt: skip
    has_rows = read.row_count_max or rollback_to is not None or read.sweep_seqno is not None
    return read if has_rows else None


def ranges_between(start: Offset, end: Offset) -> list[RangeRead]:
    """Return the ranges of all partitions that moved."""
    found = (range_between(p, start.entry(p), entry) for p, entry in end.entries.items())
    return [read for read in found if read is not None]


def spread(reads: Iterable[RangeRead], task_count: int) -> list[list[RangeRead]]:
    """Group ranges into at most `task_count` tasks of about equal row counts."""
    tasks: list[list[RangeRead]] = [[] for _ in range(task_count)]
    weights = [0] * task_count
    for read in sorted(reads, key=lambda read: read.row_count_max, reverse=True):
        lightest = min(range(task_count), key=lambda task: (weights[task], len(tasks[task])))
        tasks[lightest].append(read)
        weights[lightest] += read.row_count_max
    return [task for task in tasks if task]


def read_committed(reads: Sequence[RangeRead], source: RangeSource) -> Iterator[bytes]:
    """Yield the frames of logged ranges, or what there still is of them (invariant 3).

    Rows may come twice where a lease turns out to be lost half way.

    Raises:
        StreamError, UnavailableError: the node could not be asked, or the stream broke off.
    """
    wanted = [read for read in reads if read.row_count_max]
    try:
        yield from source.stream([read.request for read in wanted])
    except (StreamError, RoutingError):
        # One refused range ends the streams of all others: ask for each alone.
        for read in wanted:
            yield from _read_alone(read, source)


def _read_alone(read: RangeRead, source: RangeSource) -> Iterator[bytes]:
    try:
        yield from source.stream([read.request])
    except StreamError:
        if read.lease_id is not None:
            # Without the lease the next plan cannot take this range for complete.
            source.release_lease(read.lease_id, read.partition_id)
        yield from _read_rest(read, source)


def _read_rest(read: RangeRead, source: RangeSource) -> Iterator[bytes]:
    """Yield what the present history has of a range whose lease is lost."""
    log, high_seqno = source.failover_log(read.partition_id)
    end = min(read.end, upper_of(log, read.uuid, high_seqno) or 0)
    if read.begin >= end:
        return
    closed = Position(read.uuid, read.begin, read.begin, read.begin, read.purge_seqno)
    try:
        for chunk in source.stream([Range(read.partition_id, closed, end)]):
            yield _up_to(chunk, end)
    except RollbackRequiredError:
        return  # purged, or rolled back between the two requests: nothing more to deliver


def _up_to(chunk: bytes, end: int) -> bytes:
    """Return the frames of changes up to seqno `end`, and of their descriptions."""
    rows = (frame for frame in iter_frames(chunk) if frame[1] in _ROWS)
    return b"".join(frame for frame in rows if seqno_of(frame) <= end)
