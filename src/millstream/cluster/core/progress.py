"""What a plan moves, how far it is, and what it waits for.

Invariants:
1. What nobody has reported is counted as unknown, never as nothing.
2. Waiting for its turn is no lack of progress: builds are bounded.

Elsewhere: the plan (`cluster.core.members`), its moves (`cluster.core.moving`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from millstream.cluster.core.elements import ClusterState, Plan
from millstream.cluster.core.fail_over import serving
from millstream.cluster.core.memory import Memory
from millstream.cluster.core.moving import valid_plan
from millstream.cluster.core.orders import Place
from millstream.cluster.core.quorums import serving_copy
from millstream.cluster.core.settings import OUTSIDE_TOLD_MS, STALLED_AFTER_MS
from millstream.cluster.core.step import Step
from millstream.model.cluster_maps import DataRecord, IndexRecord, MapKey
from millstream.model.rows import Row, named

__all__ = ["ESTIMATE_MS", "Progress", "Sample", "left_s", "moves_of", "progress_of", "stalled"]

ESTIMATE_MS: Final = 60_000
"""The rate of this last time says how long the rest takes."""


def moves_of(state: ClusterState, plan: Plan, memory: Memory | None = None) -> dict[str, Any]:
    """Return how much a plan moves; `bytes` of the copies to build, None: somebody did not say.

    Args:
        state: in which the plan is made, with its members.
        plan: of open buckets.
        memory: with the last reports.
    """
    copied_bytes: int | None = 0
    zones = {name: node.zone for name, node in state.nodes.items()}
    has_zones = len(set(state.members("data").values())) > 1
    found = {"partitions": 0, "copies": 0, "active": 0, "index": 0, "fewer": 0, "one_zone": 0}
    for uuid, rows in plan.rows.items():
        for partition, (record, row) in enumerate(
            zip(state.data[uuid].records, rows, strict=True)
        ):
            names = {name for name in row if name is not None}
            new = len(names - set(record.voters))
            found["partitions"] += 1
            found["copies"] += new
            if new and copied_bytes is not None:
                size = _bytes_of(memory, Place(uuid, partition), record)
                copied_bytes = None if size is None else copied_bytes + new * size
            found["active"] += record.active is not None and record.active != row[0]
            found["fewer"] += named(row) < named(record.row)
            found["one_zone"] += (
                has_zones and len(names) > 1 and len({zones[name] for name in names}) == 1
            )
        owners = zip(state.index[uuid].records, plan.index[uuid], strict=True)
        found["index"] += sum(owner is not None and one.owner != owner for one, owner in owners)
    return {**found, "bytes": copied_bytes}


def _bytes_of(memory: Memory | None, place: Place, record: DataRecord) -> int | None:
    """Return how large a copy is; None: nobody says."""
    copies = () if memory is None else (memory.copy(name, place) for name in record.voters)
    sizes = [one.log_bytes for one in copies if one is not None and one.log_bytes is not None]
    return max(sizes, default=None)


class Progress(NamedTuple):
    """How far a plan is."""

    partitions: int
    done: int
    """Partitions whose copies are where the plan wants them."""
    index_parts: int
    index_done: int
    copied: int
    """Changes that wanted copies have."""
    total: int
    """Changes that they will have."""
    unknown: int
    """Partitions of which nobody has reported how many changes they have."""


class Sample(NamedTuple):
    """A progress at a time."""

    at_ms: int
    copied: int
    total: int


def progress_of(state: ClusterState, plan: Plan, memory: Memory) -> Progress:
    """Return how far a plan is, by the last reports."""
    done = copied = total = unknown = partitions = index_parts = index_done = 0
    for uuid, rows in plan.rows.items():
        if uuid not in state.data:
            continue
        for partition, record in enumerate(state.data[uuid].records):
            row = rows[partition]
            partitions += 1
            done += _is_placed(record, row)
            found = _changes(memory, Place(uuid, partition), record, row)
            if found is None:
                unknown += 1
            else:
                copied += found[0]
                total += found[1]
        for one, owner in zip(state.index[uuid].records, plan.index[uuid], strict=True):
            index_parts += owner is not None
            index_done += owner is not None and one.owner == owner
    return Progress(partitions, done, index_parts, index_done, copied, total, unknown)


def _is_placed(record: DataRecord, row: Row) -> bool:
    return record.rows == (row,) and record.active == row[0] and not record.building


def _changes(memory: Memory, place: Place, record: DataRecord, row: Row) -> tuple[int, int] | None:
    """Return how many changes the wanted copies have, of how many; None: nobody says."""
    chosen = serving_copy(record, memory.answers(place, record.voters))
    mine = None if chosen is None else memory.copy(chosen, place)
    if mine is None:
        return None
    high, copied = mine.standing.complete_end, 0
    for name in row:
        if name is None:
            continue
        copy = memory.copy(name, place)
        is_new = name not in record.voters
        reached = 0 if copy is None or not copy.is_there else copy.standing.complete_end
        copied += min(reached, high) if is_new else high
    return copied, high * named(row)


def left_s(samples: Sequence[Sample]) -> int | None:
    """Return how many seconds copying will take by the rate of the last minute.

    None: unknown, or everything is copied.

    Args:
        samples: in the order of their times.
    """
    recent = [one for one in samples if samples[-1].at_ms - one.at_ms <= ESTIMATE_MS]
    if len(recent) < 2:
        return None
    first, last = recent[0], recent[-1]
    passed_ms, copied = last.at_ms - first.at_ms, last.copied - first.copied
    rest = last.total - last.copied
    if passed_ms <= 0 or copied <= 0 or rest <= 0:
        return None
    return max(1, round(rest * passed_ms / copied / 1000))


# ---- stalled parts


def stalled(step: Step) -> dict[Place, str]:
    """Return the partitions of the plan that do not get on, and why; notes where each is."""
    memory, now_ms = step.memory, step.view.now_ms
    marks: dict[Place, tuple[object, int]] = {}
    found: dict[Place, str] = {}
    for place, mark in _waiting(step):
        before = memory.marks.get(place)
        since_ms = before[1] if before is not None and before[0] == mark else now_ms
        marks[place] = (mark, since_ms)
        if now_ms - since_ms >= STALLED_AFTER_MS:
            found[place] = mark[1]
    memory.marks = marks
    return found


def _waiting(step: Step) -> Iterator[tuple[Place, tuple[MapKey, str]]]:
    """Yield partitions of the plan that wait for something: under which record, and why."""
    plan, state = valid_plan(step.state), step.state
    if plan is None:
        return
    for uuid in plan.rows.keys() & state.data.keys():
        rows = zip(state.data[uuid].records, plan.rows[uuid], strict=True)
        told = set[int]()
        for partition, (record, row) in enumerate(rows):
            place = Place(uuid, partition)
            why = _why(step, place, record, row)
            if why is not None:
                told.add(partition)
                yield place, (record.at, why)
        owners = zip(state.index[uuid].records, plan.index[uuid], strict=False)
        for partition, (part, owner) in enumerate(owners):
            place = Place(uuid, partition)
            why = _why_index(step, place, part, owner)
            if why is not None and partition not in told:
                yield place, (part.at, why)


def _why(step: Step, place: Place, record: DataRecord, row: Row) -> str | None:
    """Return what the move of a partition waits for; None: for nothing, or for its turn."""
    if _is_placed(record, row):
        return None
    chosen = serving(step, place, record)
    if chosen is None:
        missing = [name for name in record.voters if name not in step.view.answered]
        return f"lost: nobody serves it; {_names(step, missing)} missing"
    new = [name for name in row if name is not None and name not in record.voters]
    if new:
        return _why_not_built(step, place, record, new, chosen)
    if record.is_moving and chosen != record.row[0] and record.row[0] is not None:
        return f"{_names(step, [record.row[0]])} has not taken it over"
    knows = {
        name
        for name in record.voters
        if (copy := step.memory.copy(name, place)) is not None and copy.at >= record.since
    }
    rest = [name for name in record.voters if name not in knows]
    return f"{_names(step, rest)} do not know the new row" if rest else "it is not confirmed"


def _why_not_built(
    step: Step, place: Place, record: DataRecord, new: list[str], chosen: str
) -> str | None:
    memory = step.memory
    full = [
        name
        for name in new
        if (report := memory.nodes.get(name)) is not None and not report.has_space
    ]
    if full:
        return f"no_space: the disk of {_names(step, full)} is full"
    if not set(new) <= set(record.building):
        return None
    source = memory.copy(chosen, place)
    high = 0 if source is None else source.standing.complete_end
    for name in new:
        copy = memory.copy(name, place)
        if copy is None:
            return f"{_names(step, [name])} does not answer"
        if copy.standing.complete_end < high or copy.at < record.at:
            return f"{_names(step, [name])} has {copy.standing.complete_end} of {high} changes"
    return "the new copies are not whole"


def _why_index(step: Step, place: Place, part: IndexRecord, owner: str | None) -> str | None:
    if owner is None or part.owner == owner:
        return None
    coming = step.memory.parts.get(owner, {}).get(place)
    if coming is not None and (coming.outside_ms or 0) >= OUTSIDE_TOLD_MS:
        return f"its index on {_names(step, [owner])} waits for the pipeline of views on Spark"
    reached = "nothing" if coming is None else f"changes up to {coming.reached.seqno}"
    return f"its index on {_names(step, [owner])} has {reached}"


def _names(step: Step, ids: list[str]) -> str:
    nodes = step.state.nodes
    return ", ".join(nodes[one].name if one in nodes else one for one in ids)
