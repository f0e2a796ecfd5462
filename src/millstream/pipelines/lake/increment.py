"""Decides what a backup reads of a partition: its parent's position, judged by the node's history.

Invariants:
1. A position is judged by the one rollback rule, and an answer R again, as any reader does.
2. Everything is read as of one lease, so a part is the exact state at its position: a branched
   part takes the versions below R that are valid again from the same lease, not from a later read.
3. Of every key of which the chain has a version that was undone, a branched part has a row: the
   version valid again, or a deletion where the node knows nothing of it.
4. Where the chain may lack deletions above R, or the node may lack those above the parent's
   position, the partition is copied whole.

Elsewhere: manifests (`manifest`), how the rows are put together again (`chain`), who reads
(`backup`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from millstream.client.columns import Columns
from millstream.client.extensions import LeaseHold
from millstream.model.position import (
    FailoverLog,
    Position,
    entry_below,
    rollback_seqno,
)
from millstream.pipelines.lake.manifest import DataFile, Part, PartKind

__all__ = ["PartPlan", "Selection", "by_lease", "plan_part"]


class PartPlan(NamedTuple):
    """What is to be read of one partition.

    `begin`: the position to go on from; for a branched part `rollback_to`, in the new history.
    """

    kind: PartKind
    begin: Position
    lease: LeaseHold
    log: FailoverLog
    purge_seqno: int
    rollback_to: int | None = None

    @property
    def is_unchanged(self) -> bool:
        """Whether there is nothing to read and nothing to undo."""
        return self.kind == "changes" and self.begin.seqno == self.lease.at

    def part(self, files: Iterable[DataFile]) -> Part:
        """Return what the manifest says when everything was read."""
        at = self.lease.at
        return Part(
            partition=self.lease.partition_id, kind=self.kind,
            position=Position(entry_below(self.log, at).uuid, at, at, at),
            branch=self.lease.branch, purge_seqno=self.purge_seqno, failover_log=self.log,
            rollback_to=self.rollback_to, files=tuple(files),
        )  # fmt: skip


def plan_part(parent: Part | None, lease: LeaseHold, log: FailoverLog) -> PartPlan:
    """Return what to read of a partition.

    Args:
        parent: what the newest backup has of it; None for a full backup.
        lease: which the partition is held by.
        log: its histories, newest first; of the lease's branch.
    """
    assert log[0].branch == lease.branch
    full = PartPlan("full", Position(), lease, log, lease.purge_seqno)
    if parent is None:
        return full
    begin = parent.position
    undo_to = _judged(begin, lease, log)
    if undo_to is None:
        purge_seqno = parent.purge_seqno if begin.seqno else lease.purge_seqno
        return PartPlan("changes", begin, lease, log, purge_seqno)
    again = Position(log[0].uuid, undo_to, undo_to, undo_to)
    if undo_to == 0 or undo_to < parent.purge_seqno or _judged(again, lease, log) is not None:
        return full
    return PartPlan("branched", again, lease, log, parent.purge_seqno, undo_to)


def by_lease(leases: Mapping[int, LeaseHold]) -> dict[int, list[int]]:
    """Return lease id -> partitions held by it."""
    found: dict[int, list[int]] = {}
    for p, lease in leases.items():
        found.setdefault(lease.lease_id, []).append(p)
    return found


def _judged(position: Position, lease: LeaseHold, log: FailoverLog) -> int | None:
    return rollback_seqno(position, log=log, high_seqno=lease.at, purge_seqno=lease.purge_seqno)


class Selection:
    """Picks the rows of a branched part from a read of the whole partition.

    Args:
        rollback_to: rows above it are all wanted.
        wanted: keys, in their text form, of which the chain has a version that was undone.
    """

    def __init__(self, rollback_to: int, wanted: Iterable[str]) -> None:
        self._rollback_to = rollback_to
        self._missing = set(wanted)

    def rows(self, columns: Columns) -> list[int]:
        """Return the indices of the rows to keep; each row of the partition is shown once."""
        missing, rollback_to = self._missing, self._rollback_to
        found = []
        for index, (key, seqno) in enumerate(zip(columns.key, columns.seqno, strict=True)):
            is_wanted = key in missing
            if is_wanted:
                missing.discard(key)
            if is_wanted or seqno > rollback_to:
                found.append(index)
        return found

    @property
    def unknown(self) -> list[str]:
        """Keys that the node knows nothing of, when all rows were shown: they were never born."""
        return sorted(self._missing)
