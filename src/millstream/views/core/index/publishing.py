"""Decides, partition by partition, which parts of a commit are published.

A part is published if and only if
1. the partition is active or passive here;
2. it was read to the end under its lease;
3. the rollback rule accepts the end of the part, and the position of the index;
4. it joins: its start is the position of the index, or not above that position's snap_start;
5. it adds changes: the seqno of the index is below the end of the part.
Otherwise its rows are left out, the position stays, and the partition is read again from there.

The reason for "not above snap_start" in 4: inside a snapshot the index is complete only up to
snap_start. A part that starts above it would give the index a snap_start that its rows below do
not reach.

Elsewhere: the fencing number, which is checked for the whole commit (`views.core.index.index`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from millstream.model.position import Position
from millstream.views.core.index.header import Header, Judged, PartRead

__all__ = ["LeftOut", "why_left_out"]

LeftOut = Literal[
    "not_indexed", "not_judged", "lease_lost", "end_refused", "position_refused", "not_joined",
    "nothing_new",
]  # fmt: skip


def why_left_out(
    header: Header, partition: int, part: PartRead, judged: Mapping[int, Judged]
) -> LeftOut | None:
    """Return why a part is not published; None: it is.

    Args:
        header: the newest one.
        partition: whose part it is.
        part: what was read.
        judged: how the sources judge now; a partition that is not named is not published.
    """
    here = header.positions.get(partition)
    if here is None:
        return "not_indexed"
    judge = judged.get(partition)
    if judge is None:
        return "not_judged"
    if not part.is_whole:
        return "lease_lost"
    if not judge.accepts(part.end):
        return "end_refused"
    if not judge.accepts(here):
        return "position_refused"
    return _why_not_joined(here, part)


def _why_not_joined(here: Position, part: PartRead) -> LeftOut | None:
    if part.start != here and part.start.seqno > here.snap_start:
        return "not_joined"
    return None if here.seqno < part.end.seqno else "nothing_new"
