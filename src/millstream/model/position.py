"""Positions, failover logs, and the one rule that judges a position.

Invariants:
1. `Position` is the only form of "where a reader stands"; no plane has a rule of its own.
2. A failover log is newest first, never empty, seqnos descending, at most 25 entries.
3. All three seqnos of a position are equal when the reader holds a complete snapshot.
4. `uuid` of a position is that of the newest entry whose seqno is below `snap_end`.
5. `branch` numbers only grow within a partition.

Source: UPR design paper, "Failover Log", and the released protocol's rollback test, worked out in
docs/concepts/rollback.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from millstream.model.limits import FAILOVER_ENTRIES_MAX

__all__ = [
    "BRANCH_NOISE_BITS",
    "FailoverEntry",
    "FailoverLog",
    "Position",
    "branch_by_clock",
    "common_end",
    "entry_below",
    "position_at",
    "position_from_json",
    "position_to_json",
    "rollback_seqno",
    "undone_log",
    "upper_of",
    "with_new_entry",
]


class FailoverEntry(NamedTuple):
    """One history branch: its random id, the seqno where it began, its growing number."""

    uuid: int
    seqno: int
    branch: int


FailoverLog = tuple[FailoverEntry, ...]
"""Newest first."""
BRANCH_NOISE_BITS: Final = 12
"""What keeps two nodes apart that choose a branch in the same millisecond."""
_MILLISECOND_NS: Final = 1_000_000


def branch_by_clock(now_ns: int, noise: int) -> int:
    """Return a branch that copies which cannot see each other do not take as well; below 2^53.

    Args:
        now_ns: Unix time.
        noise: `BRANCH_NOISE_BITS` random bits.
    """
    return now_ns // _MILLISECOND_NS << BRANCH_NOISE_BITS | noise


class Position(NamedTuple):
    """Where a reader of one partition stands, and which snapshot it is inside of.

    `purge_seqno` is the fifth member: set only inside a reader's first snapshot, to the purge
    point in force at its first request.
    """

    uuid: int = 0
    seqno: int = 0
    snap_start: int = 0
    snap_end: int = 0
    purge_seqno: int | None = None

    @property
    def is_closed(self) -> bool:
        """Whether the reader holds a complete snapshot."""
        return self.seqno == self.snap_end == self.snap_start


def position_to_json(position: Position) -> list[str | int]:
    """Return `["<12 hex digits>", seqno, snap_start, snap_end]`, plus the fifth if set."""
    form: list[str | int] = [f"{position.uuid:012x}", *position[1:4]]
    return form if position.purge_seqno is None else [*form, position.purge_seqno]


def position_from_json(form: Sequence[str | int]) -> Position:
    """Reverse `position_to_json`.

    Raises:
        ValueError: not four or five members, a negative number or a bad uuid.
    """
    if not 4 <= len(form) <= 5 or not isinstance(form[0], str):
        raise ValueError(f"not a position: {form!r}")
    numbers = [int(member) for member in form[1:]]
    uuid = int(form[0], 16)
    if min(uuid, *numbers) < 0:
        raise ValueError(f"negative number in position {form!r}")
    return Position(uuid, *numbers)


def entry_below(log: FailoverLog, seqno: int) -> FailoverEntry:
    """Return the entry in whose history `seqno` was written (the oldest if none is below)."""
    if log[0].seqno < seqno:  # mostly so, and asked of all partitions at once
        return log[0]
    return next((entry for entry in log if entry.seqno < seqno), log[-1])


def position_at(
    log: FailoverLog, seqno: int, snap_start: int, snap_end: int, purge_seqno: int | None = None
) -> Position:
    """Return the position with the uuid that invariant 4 demands."""
    return Position(entry_below(log, snap_end).uuid, seqno, snap_start, snap_end, purge_seqno)


def upper_of(log: FailoverLog, uuid: int, high_seqno: int) -> int | None:
    """Return the seqno up to which `uuid` is common history; None if the log lacks it."""
    upper = high_seqno
    for entry in log:
        if entry.uuid == uuid:
            return upper
        upper = min(entry.seqno, high_seqno)
    return None


def common_end(own: FailoverLog, own_high: int, other: FailoverLog, other_high: int) -> int:
    """Return the seqno up to which two copies have the same history."""
    end = own_high
    for entry in own:
        upper = upper_of(other, entry.uuid, other_high)
        if upper is not None:
            return min(end, upper)
        end = min(end, entry.seqno)
    return 0


def rollback_seqno(
    position: Position,
    *,
    log: FailoverLog,
    high_seqno: int,
    purge_seqno: int,
    ignore_purge: bool = False,
    strict_uuid: bool = False,
) -> int | None:
    """Judge a position: None to go on from it, else the seqno to undo to.

    Args:
        position: `snap_start <= seqno <= snap_end`, checked by the caller.
        log: of the copy asked, newest first.
        high_seqno: of the copy; on a replica partition, the end of its last complete snapshot.
        purge_seqno: below it tombstones may be gone.
        ignore_purge: the stream request's flag 0x80.
        strict_uuid: flag 0x20: a non-zero uuid is checked even at seqno 0.

    Source: the released protocol's rule, steps 5a to 5h.
    """
    uuid, seqno, snap_start, snap_end, asked_purge = position
    if seqno == 0 and not (strict_uuid and uuid):
        return None
    purge = 0 if ignore_purge else purge_seqno
    if 0 != seqno < purge and asked_purge != purge:
        return 0
    upper = upper_of(log, uuid, high_seqno)
    if upper is None:
        return 0
    if seqno == snap_start:
        snap_end = seqno  # nothing of that snapshot was received
    if snap_end <= upper:
        return None
    if seqno == snap_end:
        snap_start = seqno  # that snapshot is complete
    return min(upper, snap_start)


def with_new_entry(log: FailoverLog, entry: FailoverEntry) -> FailoverLog:
    """Return the log with `entry` in front; entries above its seqno are dropped first."""
    kept = tuple(old for old in log if old.seqno <= entry.seqno)
    return (entry, *kept)[:FAILOVER_ENTRIES_MAX]


def undone_log(log: FailoverLog, seqno: int) -> FailoverLog:
    """Return the log of a copy that went back to `seqno`; the oldest entry always stays."""
    return tuple(entry for entry in log if entry.seqno <= seqno) or log[-1:]
