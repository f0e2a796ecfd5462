"""What is read next for an index that a pipeline keeps: from its header, nothing else.

Invariants:
1. A partition is read from the header's position as it is, under the lease it was held under, or,
   where that is not held any more, from the seqno up to which the index is complete.
2. What is read of a partition ends above the header's seqno: else it would never be published.
3. `rows_max` bounds what is read of all partitions together, but for one seqno of each and what is
   read again of snapshots whose leases are lost: that is at most `AGAIN_CHANGES_MAX`, and
   partitions for which nothing of it is left wait for a later commit.
4. A partition of which more than that would be read again is never read in pieces: only building
   the index anew brings it on (`is_past_pieces`).

Elsewhere: the rule by which parts are published (`views.core.index.publishing`), the cycle
(`writer`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from millstream.client.bulk import Range
from millstream.client.extensions import LeaseHold
from millstream.model.position import FailoverLog, Position, position_at

__all__ = [
    "AGAIN_CHANGES_MAX",
    "Held",
    "PartPlan",
    "complete_of",
    "is_past_pieces",
    "plan_parts",
    "wants_lease",
]

AGAIN_CHANGES_MAX: Final = 250_000
"""Changes that one commit reads again, all partitions together, since leases were lost inside
snapshots: half of the documents that a commit may have."""


class Held(NamedTuple):
    """A partition held under a lease, and how far it was read under it."""

    lease: LeaseHold
    log: FailoverLog
    """The partition's failover log when the lease was opened."""
    read_to: Position | None = None


class PartPlan(NamedTuple):
    """What is read of one partition: (start, end], as of the lease."""

    partition: int
    start: Position
    end: Position
    lease_id: int

    @property
    def rows_max(self) -> int:
        """How many changes that may be."""
        return self.end.seqno - self.start.seqno

    @property
    def range(self) -> Range:
        """What is asked of the node."""
        return Range(self.partition, self.start, self.end.seqno, self.lease_id)


def complete_of(position: Position) -> int:
    """Return the seqno up to which everything is there."""
    return position.seqno if position.is_closed else position.snap_start


def wants_lease(here: Position, held: Held | None, high_seqno: int) -> bool:
    """Return whether a partition is to be read and is not held for it."""
    if held is not None and (held.read_to is None or held.read_to == here):
        return held.lease.at <= complete_of(here) < high_seqno
    return complete_of(here) < high_seqno


def is_past_pieces(
    positions: Mapping[int, Position], held: Mapping[int, Held], partitions: Collection[int]
) -> bool:
    """Return whether a partition can be brought on by building the index anew alone.

    Args:
        positions: the header's.
        held: under leases.
        partitions: that can be read now.
    """
    if any(here.seqno and p not in partitions for p, here in positions.items()):
        return False  # rows would be lost: a build waits for all of them
    return any(
        _again(here, held.get(p)) > AGAIN_CHANGES_MAX
        for p, here in positions.items()
        if p in partitions
    )


def plan_parts(
    positions: Mapping[int, Position], held: Mapping[int, Held], rows_max: int | None
) -> list[PartPlan]:
    """Return what to read.

    Args:
        positions: the header's.
        held: under leases; others are not read.
        rows_max: changes of all partitions together; None: all there are.
    """
    wanted: dict[int, Position] = {}
    left = AGAIN_CHANGES_MAX
    for partition, here in positions.items():
        if partition in held and (again := _again(here, held[partition])) <= left:
            wanted[partition] = _start(here, held[partition])
            left -= again
    lags = {p: held[p].lease.at - start.seqno for p, start in wanted.items()}
    total = sum(lag for lag in lags.values() if lag > 0)
    plans = []
    for partition, start in wanted.items():
        lag, at = lags[partition], held[partition].lease.at
        if lag <= 0:
            continue
        share = lag if rows_max is None or total <= rows_max else rows_max * lag // total
        least = positions[partition].seqno + 1
        seqno = min(at, max(start.seqno + share, least))
        if seqno < least:
            continue  # the index was ahead of what this lease has: the source is judged anew
        end = _end(start, seqno, held[partition])
        plans.append(PartPlan(partition, start, end, held[partition].lease.lease_id))
    return plans


def _again(here: Position, held: Held | None) -> int:
    """Return how many changes would be read that the index has already."""
    goes_on = held is not None and held.read_to == here
    return 0 if goes_on else here.seqno - complete_of(here)


def _start(here: Position, held: Held) -> Position:
    if here.is_closed or held.read_to == here:
        return here
    seqno = here.snap_start
    return Position(here.uuid, seqno, seqno, seqno) if seqno else Position()


def _end(start: Position, seqno: int, held: Held) -> Position:
    at = held.lease.at
    if seqno == at:
        return position_at(held.log, at, at, at)
    snap_start = complete_of(start)
    purge = None if snap_start else held.lease.purge_seqno
    if start.seqno and not start.is_closed:
        purge = start.purge_seqno
    return position_at(held.log, seqno, snap_start, at, purge)
