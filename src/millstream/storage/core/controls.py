"""Which records that are no changes compaction may leave out.

Records that are no changes (controls) build the summary of their partition when they are read in
log order. One may go if the summary is the same without it; a rollback, in addition, only if no
older segment holds anything that it killed.

Invariants:
1. What is left of a partition's controls builds the same failover log, last branch, state, low
   points, end of range and debt as all of them did.
2. A kind that is not known here is kept.

Elsewhere: changes and marks (`compaction`), building summaries (`recovery`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from millstream.model.limits import UINT64_MAX
from millstream.storage.core.records import Kind, Record
from millstream.storage.core.recovery import content_of, take_in
from millstream.storage.core.summary import PartitionSummary

__all__ = ["ControlRecord", "control_of", "kept_controls"]


class ControlRecord(NamedTuple):
    """A record that is no change, as read back; `content` as in its payload, None if unknown."""

    segment: int
    kind: int
    partition_id: int
    content: Any
    data: bytes


def control_of(segment: int, found: Record) -> ControlRecord:
    """Return a record that an index named."""
    data = found.buffer[found.at : found.at + found.length]
    content = content_of(found.kind, found.payload)
    return ControlRecord(segment, found.kind, found.partition_id, content, data)


_SUBJECT_TO_ROLLBACK: Final[dict[int, Callable[[Any], int]]] = {
    Kind.ENTRY: lambda entry: int(entry.seqno),
    Kind.HISTORY: lambda log: int(log[0].seqno),
    Kind.LOW_POINTS: lambda points: int(points.history_seqno),
    Kind.RANGE: lambda _: UINT64_MAX,
}
"""Kind -> the seqno above which a rollback must go to leave it in force."""


def kept_controls(
    controls: Sequence[ControlRecord], run: Collection[int], older_top: int
) -> list[ControlRecord]:
    """Return what a compacted run must keep of one partition's controls.

    Args:
        controls: all of the partition, in log order.
        run: the segments that are rewritten as one.
        older_top: the newest seqno of a change or mark in the segments before the run, dead ones
            included, 0 if there is none.
    """
    final = _built(controls)
    newest = {control.kind: index for index, control in enumerate(controls)}
    left: list[ControlRecord] = []
    for index, control in enumerate(controls):
        if control.segment not in run:
            left.append(control)
        elif control.kind == Kind.ROLLBACK:
            if older_top > control.content or _reach(left) > control.content:
                left.append(control)
        elif _is_needed(control, index, newest, final):
            left.append(control)
    if _built(left) != final:
        left = list(controls)
    return [control for control in left if control.segment in run]


class _Built(NamedTuple):
    failover_log: Any
    last_branch: int
    state: int
    low_points: Any
    range_end: int
    owed: Any


def _built(controls: Sequence[ControlRecord]) -> _Built:
    summary = PartitionSummary()
    for control in controls:
        if control.kind == Kind.ROLLBACK:
            summary.on_rollback(control.segment, control.content)
        elif control.content is not None:
            take_in(summary, control.kind, control.content)
    return _Built(
        summary.failover_log, summary.last_branch, summary.state, summary.low_points,
        summary.range_end, summary.owed,
    )  # fmt: skip


def _reach(controls: Sequence[ControlRecord]) -> int:
    """Return the highest seqno that a rollback behind these would have to go below to kill one."""
    return max(
        (
            _SUBJECT_TO_ROLLBACK[control.kind](control.content)
            for control in controls
            if control.kind in _SUBJECT_TO_ROLLBACK
        ),
        default=0,
    )


def _is_needed(control: ControlRecord, index: int, newest: dict[int, int], final: _Built) -> bool:
    kind, content = control.kind, control.content
    if kind == Kind.CLEAN_STOP:
        return False
    if kind == Kind.ENTRY:
        is_in_force = index > newest.get(Kind.HISTORY, -1) and content in final.failover_log
        return is_in_force or content.branch == final.last_branch
    is_newest = index == newest[kind]
    if kind == Kind.HISTORY:
        return is_newest or content[0].branch == final.last_branch
    if kind == Kind.BRANCH:
        return bool(content == final.last_branch)
    if kind == Kind.LOW_POINTS:
        return is_newest and content == final.low_points and max(content) > 0
    if kind == Kind.RANGE:
        return is_newest and content == final.range_end and content > 0
    return is_newest or kind not in (Kind.STATE, Kind.OWED)
