"""Decides how far the next micro-batch reads: the rules behind `latestOffset`, without sockets.

Invariants:
1. Every batch of a snapshot is read as of the snapshot's end, under a lease whose id is in the
   offset. Without the lease, de-duplication would lose keys of the range.
2. The offset that reaches `snap_end` is not complete yet. The next call continues from there only
   if the lease is still held and the branch is still the newest. Otherwise it returns to
   `snap_start`: rows repeat, and none is missed.
3. The one rollback rule judges positions, in their closed form. An answer R is judged again,
   because R may be below the purge point.
4. `uuid` of an entry is that of the newest failover entry below `snap_end`. `branch` says whether
   a history is still the newest.
5. If a history lost rows that this query may have delivered, that is an error with partition and
   seqno, unless the consumer repairs itself. It is never ignored. So that an offset tells what was
   delivered, a partition that goes back is read up to there in one batch, whatever the limit.
6. A query of durable changes ends its snapshots at the newest durable mark of the log, and
   continues when there is a later one. Positions are judged by the high seqno. A new history may
   know less to be durable than the one before (nothing, until its copies acknowledge). Then a
   partition that goes back waits until it can be read again as far as before.
7. With "available now" each partition has a leased goal, taken at the start, and is done when it
   is closed there.
8. With a least number of rows, what is new waits until there are so many, by seqnos. Meanwhile
   snapshots that were read are closed and their leases given up. What goes back does not wait.

Elsewhere: limits of a batch (`batch_sizes`), the form of offsets (`offsets`), what a range holds
(`ranges`), sockets (`control`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from millstream.client.extensions import LeaseHold, PartitionPosition
from millstream.client.measuring import Piece
from millstream.errors import MillstreamError, RollbackRequiredError, UnavailableError
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverLog, Position, entry_below, rollback_seqno
from millstream.pipelines.change_stream.batch_sizes import BatchSizes, Limits
from millstream.pipelines.change_stream.offsets import OffsetEntry

__all__ = ["Planner", "PlanningSource", "closed_entry"]

Entries = Mapping[int, OffsetEntry]


class PlanningSource(Protocol):
    """What the planner asks of a node."""

    def positions(self) -> Mapping[int, PartitionPosition]:
        """Return the position of every partition to be read."""

    def failover_log(self, partition_id: int) -> FailoverLog:
        """Return the histories of a partition, newest first."""

    def open_lease(self, partition_ids: Sequence[int]) -> Mapping[int, LeaseHold]:
        """Hold partitions (not none) as of their present high, or of their newest durable mark.

        A partition that has no durable mark is left out.
        """

    def renew_lease(self, lease_id: int, partition_ids: Sequence[int]) -> Mapping[int, LeaseHold]:
        """Extend a lease on partitions (not none); return those still held."""

    def release_lease(self, lease_id: int, partition_ids: Sequence[int]) -> None:
        """Give up a lease on partitions (not none); one that is not held is no error."""

    def measure_lease(
        self, lease_id: int, after: Mapping[int, int], rows_max: int, bytes_max: int
    ) -> Mapping[int, Sequence[Piece]]:
        """Return the pieces of what a lease shows above seqnos; see `client.measuring`."""


class _Next(NamedTuple):
    """A partition that has left its snapshot: where it goes on, and what has to be undone."""

    partition_id: int
    start: OffsetEntry
    position: PartitionPosition
    log: FailoverLog
    begin: int
    load: int
    rollback_to: int | None

    @property
    def goes_back(self) -> bool:
        """Whether something that was read is read again."""
        return self.begin < self.start.seqno

    def has_to_wait(self, lease: LeaseHold | None) -> bool:
        """Whether what it goes back on, and still is, lies beyond what `lease` can show."""
        until = min(self.start.seqno, self.position.high_seqno)
        return self.begin < until and (lease is None or lease.at < until)

    def closed(self) -> OffsetEntry:
        """Return the entry of a reader that holds all there is."""
        has_moved = self.rollback_to is not None or self.start.seqno != self.begin
        if self.start.is_closed and self.start.branch == self.position.branch and not has_moved:
            return self.start
        entry = closed_entry(self.log, self.begin, self.position.branch)
        return entry._replace(load=self.load, rollback_to=self.rollback_to)

    def inside(self, lease: LeaseHold) -> OffsetEntry:
        """Return the entry at the beginning of the snapshot that `lease` holds."""
        return OffsetEntry(
            uuid=entry_below(self.log, lease.at).uuid,
            seqno=self.begin,
            snap_start=self.begin,
            snap_end=lease.at,
            branch=lease.branch,
            lease_id=lease.lease_id,
            load=self.load,
            purge_seqno=None if self.begin else lease.purge_seqno,
            rollback_to=self.rollback_to,
        )


def closed_entry(log: FailoverLog, seqno: int, branch: int) -> OffsetEntry:
    """Return the entry of a reader that holds everything up to `seqno` of `branch`."""
    return OffsetEntry(entry_below(log, seqno).uuid, seqno, seqno, seqno, branch)


class Planner:
    """The planner of one query; lives as long as the query's source process.

    Args:
        source: the node.
        bucket: name of the bucket, for messages.
        repairs: whether the consumer handles rollback rows. If not, a rollback is an error.
        is_durable_only: the leases of `source` end at durable marks (invariant 6).
    """

    def __init__(
        self,
        source: PlanningSource,
        bucket: str,
        *,
        repairs: bool = False,
        is_durable_only: bool = False,
    ) -> None:
        self._source = source
        self._bucket = bucket
        self._repairs = repairs
        self._is_durable_only = is_durable_only
        self._sizes = BatchSizes(source.measure_lease)
        self._logs: dict[int, FailoverLog] = {}
        self._goals: dict[int, LeaseHold | None] | None = None
        self._done: set[int] = set()
        self._planned: Entries = {}
        self._left: list[tuple[int, int]] = []  # leases given up once `_planned` is logged

    def begin_available_now(self) -> None:
        """Take the present ends as the goal of this run (invariant 7)."""
        partition_ids = sorted(self._source.positions())
        self._goals = dict(self._source.open_lease(partition_ids))
        self._done.clear()

    @property
    def is_available_now(self) -> bool:
        """Whether this run has a goal, and so an end."""
        return self._goals is not None

    def leases_in_use(self) -> dict[int, list[int]]:
        """Return lease id -> partitions of what the newest offset and the goals rely on."""
        goals = {p: hold for p, hold in dict(self._goals or {}).items() if p not in self._done}
        in_use = [(hold.lease_id, p) for p, hold in goals.items() if hold is not None]
        in_use += [(e.lease_id, p) for p, e in self._planned.items() if e.lease_id is not None]
        return _by_lease(in_use)

    def plan(
        self,
        start: Entries,
        rows_max: int | None,
        bytes_max: int | None = None,
        *,
        rows_min: int = 0,
    ) -> dict[int, OffsetEntry]:
        """Return the offset that the next batch reads up to; equal to `start` if nothing is new.

        Args:
            start: the newest logged offset.
            rows_max: rows in the batch, None for no limit; see `batch_sizes`.
            bytes_max: their bytes, as the nodes store them.
            rows_min: with fewer changes than these no snapshot begins (invariant 8).

        Raises:
            RollbackRequiredError: invariant 5.
            UnavailableError: `partition_inactive`.
        """
        self._release_left(start)
        try:
            self._planned = self._next(start, Limits(rows_max, bytes_max), rows_min)
        except MillstreamError:
            self._left = []  # what `start` still names: the next call judges it again
            raise
        return self._planned

    def _next(self, start: Entries, limits: Limits, rows_min: int) -> dict[int, OffsetEntry]:
        positions = self._source.positions()
        held = self._held(start, positions)
        end = {p: start.get(p, OffsetEntry()) for p in sorted({*start, *positions})}
        moving: dict[int, OffsetEntry] = {}
        leaving: list[_Next] = []
        for p, position in positions.items():
            entry = end[p]
            if position.state != PartitionState.ACTIVE:
                raise _inactive(position)
            if p in self._done and entry.is_closed:
                continue
            is_held = p in held and entry.branch == position.branch
            if is_held and entry.seqno < entry.snap_end:
                moving[p] = entry._replace(rollback_to=None)
            else:
                following = self._judge(position, entry, is_held)
                if following is not None:
                    leaving.append(following)
        waiting = sum(max(0, self._end_of(one.position) - one.begin) for one in leaving)
        is_early = self._goals is None and waiting < rows_min and not moving
        self._leave(leaving, end, moving, is_early=is_early)
        ends = self._sizes.ends(moving, limits)
        for p, entry in moving.items():
            delivered = 0 if self._repairs or p not in start else start[p].seqno
            end[p] = entry._replace(seqno=max(ends.get(p, entry.seqno), delivered))
        return end

    def _held(
        self, start: Entries, positions: Mapping[int, PartitionPosition]
    ) -> dict[int, LeaseHold]:
        """Renew the leases that `start` names, and the goals; return those of `start` held."""
        wanted = [
            (entry.lease_id, p)
            for p, entry in start.items()
            if entry.lease_id is not None and p in positions
        ]
        held: dict[int, LeaseHold] = {}
        for lease_id, partition_ids in _by_lease(wanted).items():
            held.update(self._source.renew_lease(lease_id, partition_ids))
        if self._goals is not None:
            self._renew_goals(self._goals)
        return held

    def _renew_goals(self, goals: dict[int, LeaseHold | None]) -> None:
        waiting = [(g.lease_id, p) for p, g in goals.items() if g and p not in self._done]
        for lease_id, partition_ids in _by_lease(waiting).items():
            renewed = self._source.renew_lease(lease_id, partition_ids)
            goals.update({p: None for p in partition_ids if p not in renewed})

    def _judge(
        self, position: PartitionPosition, entry: OffsetEntry, is_held: bool
    ) -> _Next | None:
        """Return where a partition goes on (invariants 2, 3, 5). None: ask again later."""
        p = position.partition_id
        log = self._log(position)
        if log is None:
            return None
        is_complete = is_held and entry.seqno == entry.snap_end
        begin = entry.seqno if is_complete or entry.is_closed else entry.snap_start
        undo_to = _judged(position, log, Position(entry.uuid, begin, begin, begin))
        if undo_to is not None:
            again = Position(log[0].uuid, undo_to, undo_to, undo_to)
            begin = undo_to if _judged(position, log, again) is None else 0
        seqno, purge_seqno = entry.seqno, entry.purge_seqno
        delivered = Position(entry.uuid, seqno, seqno, seqno, purge_seqno)
        if not self._repairs and (
            undo_to is not None or _judged(position, log, delivered) is not None
        ):
            raise self._rollback_required(p, entry, begin)
        load = entry.load + (begin == 0 < seqno)
        has_changed = (load, position.branch) != (entry.load, entry.branch)
        is_marked = has_changed and entry.branch != 0  # of branch 0 there is nothing to undo
        return _Next(p, entry, position, log, begin, load, begin if is_marked else None)

    def _log(self, position: PartitionPosition) -> FailoverLog | None:
        """Return the failover log that goes with `position`; None if it has moved since."""
        log = self._logs.get(position.partition_id)
        if log is None or log[0].branch != position.branch:
            log = self._source.failover_log(position.partition_id)
            self._logs[position.partition_id] = log
        return log if log[0].branch == position.branch else None

    def _leave(
        self,
        leaving: Sequence[_Next],
        end: dict[int, OffsetEntry],
        moving: dict[int, OffsetEntry],
        *,
        is_early: bool,
    ) -> None:
        """Open the next snapshot of each partition, or close it where nothing is new.

        `is_early`: only partitions that go back (invariant 8).
        """
        leases = self._leases_for([one for one in leaving if one.goes_back or not is_early])
        for following in leaving:
            p, start = following.partition_id, following.start
            lease = leases.get(p)
            if self._is_durable_only and following.has_to_wait(lease):
                self._give_up(p, lease)
                continue
            if lease is not None and self._is_durable_only and lease.at <= following.begin:
                # Durable up to here, but no mark beyond: there is nothing to read as of it yet.
                self._source.release_lease(lease.lease_id, [p])
                lease = None
            if lease is None:
                end[p] = following.closed()
                if self._goals is not None:
                    self._done.add(p)
                    self._leave_goal(p)
            elif lease.branch != following.position.branch or (
                0 < following.begin < lease.purge_seqno
            ):
                # It moved while the lease was opened: it is judged again at the next call.
                if self._goals is None:
                    self._source.release_lease(lease.lease_id, [p])
                continue
            else:
                moving[p] = following.inside(lease)
            if start.lease_id is not None:
                self._left.append((start.lease_id, p))

    def _leases_for(self, leaving: Sequence[_Next]) -> dict[int, LeaseHold]:
        """Return a lease for each partition that has something new to read."""
        found: dict[int, LeaseHold] = {}
        wanted: list[int] = []
        for following in leaving:
            p, begin, goal = following.partition_id, following.begin, None
            if self._goals is not None:
                goal = self._goals.get(p)
                if goal is not None and goal.branch == following.position.branch:
                    if goal.at > begin:
                        found[p] = goal
                    continue
            if self._end_of(following.position) > begin:
                wanted.append(p)
        opened = self._source.open_lease(wanted) if wanted else {}
        if self._goals is not None:
            self._goals.update(opened)
        return found | dict(opened)

    def _give_up(self, partition_id: int, lease: LeaseHold | None) -> None:
        """Release a lease that ends too early, and the goal: the next call takes later ones."""
        goal = self._goals.get(partition_id) if self._goals is not None else None
        for lease_id in {hold.lease_id for hold in (lease, goal) if hold is not None}:
            self._source.release_lease(lease_id, [partition_id])
        if self._goals is not None:
            self._goals[partition_id] = None

    def _end_of(self, position: PartitionPosition) -> int:
        return position.durable_seqno if self._is_durable_only else position.high_seqno

    def _leave_goal(self, partition_id: int) -> None:
        assert self._goals is not None
        goal = self._goals.get(partition_id)
        if goal is not None:
            self._left.append((goal.lease_id, partition_id))

    def _release_left(self, start: Entries) -> None:
        """Release what the logged offset no longer needs; before it is logged a restart would."""
        if self._left and dict(start) == dict(self._planned):
            for lease_id, partition_ids in _by_lease(set(self._left)).items():
                self._source.release_lease(lease_id, partition_ids)
        self._left = []

    def _rollback_required(
        self, partition_id: int, entry: OffsetEntry, seqno: int
    ) -> RollbackRequiredError:
        return RollbackRequiredError(
            f"partition {partition_id} of bucket {self._bucket!r} must be rolled back to seqno "
            f"{seqno}: this query has read it up to seqno {entry.seqno} of branch {entry.branch}, "
            "and the node has lost or replaced a part of that (it was killed or failed over, or "
            "tombstones were purged). Rows already written to the sink may not exist any more: "
            "begin again with a new checkpoint and an empty sink",
            partition_id=partition_id,
            seqno=seqno,
        )


def _judged(position: PartitionPosition, log: FailoverLog, reader: Position) -> int | None:
    return rollback_seqno(
        reader, log=log, high_seqno=position.high_seqno, purge_seqno=position.purge_seqno
    )


def _by_lease(pairs: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for lease_id, partition_id in sorted(pairs):
        found.setdefault(lease_id, []).append(partition_id)
    return found


def _inactive(position: PartitionPosition) -> UnavailableError:
    return UnavailableError(
        f"partition {position.partition_id} is {position.state.name.lower()} on this node and "
        "cannot be read; wait until it is active, or name its node in the option hosts",
        code="partition_inactive",
    )
