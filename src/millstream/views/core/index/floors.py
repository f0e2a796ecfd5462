"""How far indexes are in a partition, compared with the floor that its owner must reach.

A floor is a position of the history: a branch and a seqno. An index that becomes the owner of a
partition must not show less than the owner before it. So it answers once it has reached the floor.

Invariants:
1. Which history an index follows is said by its source, if the source accepts its position. It
   may be a newer one than that of the last commit.
2. Inside a snapshot an index has everything up to the start of the snapshot only. What it can have
   shown goes further.

Elsewhere: the rule (`model.cluster_maps.has_reached`), who asks (`views.aio.serving.owned_parts`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from millstream.model.cluster_maps import NO_FLOOR, Floor, has_reached
from millstream.model.limits import UINT64_MAX
from millstream.model.position import FailoverLog
from millstream.views.core.index.header import Header, Judged

__all__ = ["PartPosition", "below_floor", "digest_of", "position_in"]


class PartPosition(NamedTuple):
    """How far all indexes of a bucket are in one partition."""

    least: Floor
    """What all complete indexes have."""
    shown: Floor
    """The most that one which has reached the floor can have shown; `NO_FLOOR`: nothing."""
    has_floor: bool
    """Whether all complete indexes have reached the floor. Without any it is false."""
    can_have_shown: bool
    """Whether any index has reached the floor."""


def position_in(
    partition: int,
    complete: Collection[Header],
    others: Iterable[Header],
    judged: Judged | None,
    floor: Floor,
) -> PartPosition:
    """Return how far indexes are in a partition.

    Args:
        partition: of a bucket.
        complete: headers of indexes whose first build is over.
        others: of other indexes.
        judged: how the source of the partition judges, if that is known.
        floor: of the partition.
    """
    able = [one for one in (*complete, *others) if _is_there(one, partition, judged, floor)]
    return PartPosition(
        min((_whole(one, partition, judged) for one in complete), default=NO_FLOOR),
        max((_shown(one, partition, judged) for one in able), default=NO_FLOOR),
        bool(complete) and all(one in able for one in complete),
        bool(able),
    )


def below_floor(
    header: Header,
    floors: Mapping[int, Floor],
    judged: Mapping[int, Judged],
    partitions: Iterable[int],
) -> list[int]:
    """Return the partitions in which an index has not reached the floor.

    Args:
        header: the commit that is answered from.
        floors: by partition; `NO_FLOOR` if it is missing.
        judged: how the sources judge, as far as that is known.
        partitions: which.
    """
    return [
        partition
        for partition in partitions
        if (floor := floors.get(partition, NO_FLOOR)) != NO_FLOOR
        and not _is_there(header, partition, judged.get(partition), floor)
    ]


def digest_of(signatures: Iterable[str]) -> str:
    """Return the digest of the complete indexes of a bucket."""
    return blake2b("\n".join(sorted(signatures)).encode(), digest_size=16).hexdigest()


def _is_there(header: Header, partition: int, judged: Judged | None, floor: Floor) -> bool:
    if partition not in header.positions:
        return False
    if floor == NO_FLOOR:
        return True
    seqno = _whole(header, partition, judged).seqno
    return has_reached(_history(header, partition, judged), seqno, floor)


def _whole(header: Header, partition: int, judged: Judged | None) -> Floor:
    """Return up to where an index has everything."""
    position = header.positions.get(partition)
    if position is None:
        return NO_FLOOR
    seqno = position.seqno if position.is_closed else position.snap_start
    return Floor(_branch(_history(header, partition, judged)), seqno)


def _shown(header: Header, partition: int, judged: Judged | None) -> Floor:
    branch = _branch(_history(header, partition, judged))
    return Floor(branch, header.positions[partition].seqno)


def _branch(log: FailoverLog) -> int:
    return log[0].branch if log else 0


def _history(header: Header, partition: int, judged: Judged | None) -> FailoverLog:
    """Return the log of the history that an index follows."""
    if judged is not None:
        # A position above what the source had when it was asked is not refused.
        source = Judged(judged.log, UINT64_MAX, judged.purge_seqno)
        if source.accepts(header.positions[partition]):
            return judged.log
    return header.failover_logs.get(partition, ())
