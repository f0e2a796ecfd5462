"""Decides the next step of the cluster: state and reports in, orders and at most one write out.

    decision = decide(view, memory)

The shell reads the state linearizably, asks all nodes for reports, and calls this. It sends the
orders, executes the write, ends sessions, and begins anew. Nothing is resumed: each step compares
what is with what should be. So the death of an orchestrator costs the promotions it had begun,
which the next one begins again in a larger branch.

Invariants:
1. A step writes at most one map, or members and plan together.
2. Fail-over comes first: who serves is written before members and plans, these before moves, and
   data before the index. Only an index part for which nobody answers comes before members, plans
   and moves.
3. Nothing is done with a state that carries another orchestrator's token, nor with one that was
   restored, before it is rebuilt (`cluster.core.recovery`).
4. A bucket that is being dropped is decided about by nobody else (`cluster.core.dropping`).

Elsewhere: promotions (`cluster.core.fail_over`), moves (`cluster.core.moving`), the index
(`cluster.core.index_moving`), members and plans (`cluster.core.members`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from millstream.cluster.core.dropping import finish_drop
from millstream.cluster.core.elements import NOT_RECOVERED
from millstream.cluster.core.fail_over import (
    admit,
    is_heard_above,
    must_leave,
    promote,
    serving,
)
from millstream.cluster.core.index_moving import IndexChange, IndexMoves
from millstream.cluster.core.members import tend_members
from millstream.cluster.core.memory import Memory
from millstream.cluster.core.moving import Moves
from millstream.cluster.core.orders import Place
from millstream.cluster.core.progress import stalled
from millstream.cluster.core.step import Decision, Step, View
from millstream.cluster.core.writes import Txn, put_data_map, put_index_map
from millstream.model.cluster_maps import (
    DataMap,
    DataRecord,
    IndexMap,
    next_data_map,
    next_index_map,
)

__all__ = ["decide"]


class _Change(NamedTuple):
    """Changed records of a bucket."""

    data_map: DataMap
    records: dict[int, DataRecord]

    @property
    def is_urgent(self) -> bool:
        """Whether the write decides who serves a partition."""
        before = self.data_map.records
        return any(
            (new.active, new.branch) != (before[partition].active, before[partition].branch)
            for partition, new in self.records.items()
        )


def decide(view: View, memory: Memory) -> Decision:
    """Return what to do now; changes `memory`."""
    whole = view.state
    step = Step(view._replace(state=whole.without_dropped()), memory)
    view = step.view
    if view.state.token != view.token:
        step.decision.is_deposed = True
        return step.decision
    if view.state.is_forked:
        memory.forget()  # what was begun belongs to records that are older than the rebuilt ones
        step.note(NOT_RECOVERED)
        return step.decision
    moves = Moves(step)
    changes = [
        change
        for _, data_map in sorted(view.state.data.items())
        if (change := _tend_bucket(step, moves, data_map)).records
    ]
    for name in sorted(view.state.live):
        admit(step, name)
    members = tend_members(step)
    index = _index_write(step)
    write = _first_write(step, changes, members, index)
    step.decision.write = write or finish_drop(step, whole)
    step.decision.stalled = stalled(step)
    step.end_sessions()
    return step.decision


def _tend_bucket(step: Step, moves: Moves, data_map: DataMap) -> _Change:
    changed = {}
    for partition, record in enumerate(data_map.records):
        new = _tend(step, moves, Place(data_map.bucket, partition), record)
        if new is not None:
            changed[partition] = new
    return _Change(data_map, changed)


def _tend(step: Step, moves: Moves, place: Place, record: DataRecord) -> DataRecord | None:
    memory = step.memory
    chosen = serving(step, place, record)
    replaces_active = chosen is not None and (
        is_heard_above(memory, place, chosen) or must_leave(step, place, record, chosen)
    )
    was_begun = place in memory.begun
    if chosen is None or replaces_active or was_begun:
        given_up = promote(step, place, record, replaces_active=replaces_active)
        is_over = was_begun and place not in memory.begun and not replaces_active
        if chosen is None or not is_over:
            return given_up
    return moves.tend(place, record, chosen)


def _first_write(
    step: Step, changes: list[_Change], members: Txn | None, index: _IndexWrite | None
) -> Txn | None:
    urgent = [change for change in changes if change.is_urgent]
    if urgent:
        return _write(step, urgent[0])
    if index is not None and index.is_awaited:
        return index.txn
    if members is not None:
        return members
    if changes:
        return _write(step, changes[0])
    return None if index is None else index.txn


class _IndexWrite(NamedTuple):
    txn: Txn
    is_awaited: bool
    """Nobody answers for a part before it is written."""


def _index_write(step: Step) -> _IndexWrite | None:
    """Return the write of the first bucket whose index map changes; give orders to all."""
    moves, found = IndexMoves(step), []
    for bucket, index_map in sorted(step.state.index.items()):
        changed: dict[int, IndexChange] = {}
        for partition, record in enumerate(index_map.records):
            change = moves.tend(Place(bucket, partition), record)
            if change is not None:
                changed[partition] = change
        if changed:
            found.append((index_map, changed))
    if not found:
        return None
    awaited = [(one, changed) for one, changed in found if _is_awaited(step, one, changed)]
    index_map, changed = (awaited or found)[0]
    records = {partition: change.record for partition, change in changed.items()}
    lost = {change.lost for change in changed.values() if change.lost is not None}
    txn = put_index_map(step.state, next_index_map(index_map, records), lost)
    return _IndexWrite(txn, bool(awaited))


def _is_awaited(step: Step, index_map: IndexMap, changed: Mapping[int, IndexChange]) -> bool:
    """Return whether an owner that has stopped, or is lost, is replaced, or goes on."""
    stopped = step.memory.stopped
    for partition, change in changed.items():
        known = stopped.get(Place(index_map.bucket, partition))
        is_stopped = known is not None and known.at == index_map.records[partition].at
        if is_stopped or change.lost is not None:
            return True
    return False


def _write(step: Step, change: _Change) -> Txn:
    return put_data_map(step.state, next_data_map(change.data_map, change.records))
