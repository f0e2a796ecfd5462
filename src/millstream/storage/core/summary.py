"""What is in force in one partition: failover log, marks, low points, and what rollbacks killed.

Built by passing over the log's records in order, and kept in the by-id map's transaction so that a
start needs only the records since.

Invariants:
1. A rollback kills every record of its partition before it and above its target.
2. `mark` is the newest live mark; `top` the newest live seqno. `mark < top` on a copy that is
   inside a snapshot of its source, which ends at `range_end >= top`; else only while a batch is
   torn, before an unclean start has killed its records.
3. `kills` is ascending by segment and by target: an older rollback with a higher target adds
   nothing for the segments before it.
4. `last_branch` only grows, and is never below the branch of an entry.
5. The failover log is never empty once it had an entry: a rollback leaves the oldest one.

Elsewhere: the records (`records`), reading what is live (`live`).
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from millstream.model.limits import UINT64_MAX
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry, FailoverLog, undone_log, with_new_entry
from millstream.storage.core.records import NOTHING_OWED, LowPoints, Owed

__all__ = ["Kill", "PartitionSummary", "RecoveredPartition"]

_FIXED: Final = Struct(">QQQQQQBHI")
_ENTRY: Final = Struct(">QQQ")
_KILL: Final = Struct(">IQ")
_OWED: Final = Struct(">QQ")


class Kill(NamedTuple):
    """Records above `seqno` in segments before `segment` are dead."""

    segment: int
    seqno: int


class RecoveredPartition(NamedTuple):
    """The durable state of a partition; `high_seqno` is its newest mark.

    `top_seqno`: the newest record; above the mark only on a copy that is inside a snapshot of its
    source, which ends at `range_end`. `owed`: what it must have again before it counts.
    """

    failover_log: FailoverLog
    high_seqno: int
    purge_seqno: int
    history_seqno: int
    last_branch: int
    state: PartitionState
    top_seqno: int
    range_end: int
    owed: Owed = NOTHING_OWED

    @property
    def is_empty(self) -> bool:
        """Whether the partition has no records."""
        return self.high_seqno == 0


class PartitionSummary:
    """The state of one partition at one place of the log."""

    __slots__ = (
        "failover_log",
        "kills",
        "last_branch",
        "low_points",
        "mark",
        "owed",
        "range_end",
        "state",
        "top",
    )

    def __init__(self) -> None:
        self.state = PartitionState.ACTIVE
        self.failover_log: FailoverLog = ()
        self.last_branch = 0
        self.mark = 0
        self.top = 0
        self.range_end = 0
        self.low_points = LowPoints(0, 0)
        self.owed = NOTHING_OWED
        self.kills: list[Kill] = []

    def on_change(self, seqno: int, *, is_mark: bool) -> None:
        """A change was appended."""
        self.top = seqno
        if is_mark:
            self.mark = seqno

    def on_mark(self, seqno: int) -> None:
        """A mark whose change is gone."""
        self.mark = max(self.mark, seqno)
        self.top = max(self.top, seqno)

    def on_entry(self, entry: FailoverEntry) -> None:
        """A new history branch began: this copy follows no other one in it."""
        self.range_end = 0
        self.failover_log = with_new_entry(self.failover_log, entry)
        self.last_branch = max(self.last_branch, entry.branch)

    def on_branch(self, branch: int) -> None:
        """A later branch is known than any in the log."""
        self.last_branch = max(self.last_branch, branch)

    def on_history(self, log: FailoverLog) -> None:
        """The failover log of a source was taken over."""
        self.failover_log = log
        self.last_branch = max(self.last_branch, log[0].branch)

    def on_low_points(self, points: LowPoints) -> None:
        """The low points moved."""
        self.low_points = points

    def on_rollback(self, segment: int, seqno: int) -> None:
        """Everything above `seqno` is dead; `segment` holds the rollback record."""
        self.mark = min(self.mark, seqno)
        self.top = min(self.top, seqno)
        self.range_end = 0
        self.failover_log = undone_log(self.failover_log, seqno)
        if self.low_points.history_seqno > seqno:
            self.low_points = LowPoints(0, 0)
        self.kills = [kill for kill in self.kills if kill.seqno < seqno]
        self.kills.append(Kill(segment, seqno))

    def limit(self, segment: int) -> int:
        """Return the newest seqno that is live in a segment, as far as later ones know."""
        return next((kill.seqno for kill in self.kills if kill.segment > segment), UINT64_MAX)

    def recovered(self) -> RecoveredPartition:
        """Return what a start makes of it."""
        history_seqno, purge_seqno = self.low_points
        return RecoveredPartition(
            self.failover_log, self.mark, purge_seqno, history_seqno, self.last_branch,
            self.state, self.top, self.range_end, self.owed,
        )  # fmt: skip

    def encode(self) -> bytes:
        """Return the form kept in the by-id map."""
        return b"".join(
            (
                _FIXED.pack(
                    self.last_branch, self.mark, self.top, self.range_end, *self.low_points,
                    self.state, len(self.failover_log), len(self.kills),
                ),
                *(_ENTRY.pack(*entry) for entry in self.failover_log),
                *(_KILL.pack(*kill) for kill in self.kills),
                _OWED.pack(*self.owed),
            )
        )  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> PartitionSummary:
        """Reverse `encode`.

        Raises:
            struct.error: it has a wrong length than it says.
        """
        summary = cls()
        (
            summary.last_branch, summary.mark, summary.top, summary.range_end, history_seqno,
            purge_seqno, state, entries, kills,
        ) = _FIXED.unpack_from(data)  # fmt: skip
        at = _FIXED.size
        stop = at + entries * _ENTRY.size
        end = stop + kills * _KILL.size
        if len(data) not in (end, end + _OWED.size):  # the shorter form is of older programs
            raise StructError(f"a summary of {len(data)} bytes")
        summary.state = PartitionState(state)
        summary.low_points = LowPoints(history_seqno, purge_seqno)
        summary.failover_log = tuple(map(FailoverEntry._make, _ENTRY.iter_unpack(data[at:stop])))
        summary.kills = list(map(Kill._make, _KILL.iter_unpack(data[stop:end])))
        if len(data) > end:
            summary.owed = Owed(*_OWED.unpack_from(data, end))
        return summary
