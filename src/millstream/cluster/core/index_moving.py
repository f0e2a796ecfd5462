"""Moves parts of the index between nodes, and replaces owners that are lost.

Hand-over from X to Y: Y builds -> Y is near: X freezes -> Y has all that X has: X stops, and says
where -> Y has that: the map names Y, with that as the floor. Loss of X: Y builds -> the serving
data copy says how far it is -> the map names Y, with that as the floor. Y answers once it has
reached the floor.

Invariants:
1. At most one node answers for a partition: X has stopped, durably, or has no session and had none
   when the map was written.
2. What was shown stays shown: the floor is not below anything that an owner can have shown. It
   never falls.
3. The floor after a loss comes from a copy that may serve itself, asked after the session of the
   owner had ended. Another one may be a branch below what the owner followed.
4. A stop counts for the index record under which it was given.
5. Indexes that a pipeline keeps on Spark are waited for while one is heard, and `OUTSIDE_MS_MAX`
   longer. Without them the part is handed over all the same: the floor stays, so they answer only
   once they have what was shown before.

Elsewhere: where parts belong (`cluster.core.planner`), moves of data (`cluster.core.moving`).
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from millstream.cluster.core.elements import Plan
from millstream.cluster.core.fail_over import serving
from millstream.cluster.core.moving import valid_plan
from millstream.cluster.core.orders import Place
from millstream.cluster.core.reports import PartReport
from millstream.cluster.core.settings import (
    FREEZE_WITHIN_SEQNOS,
    OUTSIDE_MS_MAX,
    OUTSIDE_TOLD_MS,
    PART_STOPPED_MS_MAX,
)
from millstream.cluster.core.step import Step
from millstream.model.cluster_maps import Floor, IndexRecord, has_reached

__all__ = ["IndexChange", "IndexMoves", "has_reached", "may_answer"]


class IndexChange(NamedTuple):
    """The next record of a part."""

    record: IndexRecord
    lost: str | None = None
    """The owner that is replaced because it has no session."""


def may_answer(
    node: str, asked: IndexRecord, own: IndexRecord | None, part: PartReport | None
) -> bool:
    """Return whether a node that is in step answers a query for a partition.

    Args:
        node: that is asked.
        asked: the record by which the gateway chose the node.
        own: the newest index record that the node has adopted.
        part: its part of the index.
    """
    return (
        own is not None
        and part is not None
        and own.at >= asked.at
        and own.owner == node
        and part.state == "active"
        and part.at == own.at
        and part.has_floor
    )


class IndexMoves:
    """All index parts in a step."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.plan: Plan | None = valid_plan(step.state)

    def tend(self, place: Place, record: IndexRecord) -> IndexChange | None:
        """Return the next record of a part; None: no write is needed. Orders go to the step."""
        self._spread(place, record)
        wanted = self._wanted(place, record)
        if wanted is None:
            return None
        if wanted == record.owner:
            return self._keep(place, record)
        if record.building != wanted:
            return IndexChange(replace(record, building=wanted))
        if not self.step.view.is_fresh:
            return None
        coming = self._part(wanted, place)
        if coming is None:
            return None
        if self._is_lost(record.owner):
            return self._replace_lost(place, record, wanted)
        assert record.owner is not None
        return self._hand_over(place, record, record.owner, wanted, coming)

    def _spread(self, place: Place, record: IndexRecord) -> None:
        for name in sorted(self.step.memory.nodes):
            part = self.step.memory.parts[name].get(place)
            known = None if part is None else part.at
            if (known is None and name in record.placed) or (
                known is not None and known < record.at
            ):
                self.step.order("index", name, place, None, index=record)

    def _is_lost(self, owner: str | None) -> bool:
        state = self.step.state
        if owner is None or owner not in state.live:
            return True
        node = state.nodes.get(owner)
        return node is None or node.state == "out"

    def _wanted(self, place: Place, record: IndexRecord) -> str | None:
        """Return the wanted owner, None if no node can be the owner."""
        owner = record.owner
        if self.plan is not None and place.bucket in self.plan.index:
            owner = self.plan.index[place.bucket][place.partition] or owner
        if owner is not None and not self._is_lost(owner):
            return owner
        alive = self._alive()
        if record.building in alive:
            return record.building
        return alive[place.partition % len(alive)] if alive else None

    def _alive(self) -> list[str]:
        state = self.step.state
        return sorted(name for name in state.members("index") if name in state.live)

    def _keep(self, place: Place, record: IndexRecord) -> IndexChange | None:
        """The owner stays: at most a passive part beside it is made, or left."""
        passive = self._passive(place, record)
        if record.building != passive:
            return IndexChange(replace(record, building=passive))
        assert record.owner is not None
        part = self._part(record.owner, place)
        if part is None or part.at != record.at:
            return None
        is_held = part.is_frozen or part.state == "passive"
        return IndexChange(record) if is_held else None  # for a move that is over: it goes on

    def _passive(self, place: Place, record: IndexRecord) -> str | None:
        """Return the node that keeps a passive part, if the bucket wants one."""
        if not self.step.state.buckets[place.bucket].index_replicas:
            return None
        others = [name for name in self._alive() if name != record.owner]
        if record.building in others or not others:
            return record.building if record.building in others else None
        return others[place.partition % len(others)]

    def _part(self, name: str, place: Place) -> PartReport | None:
        """Return what a node said in this step of its part."""
        if name not in self.step.view.answered:
            return None
        return self.step.memory.parts[name].get(place)

    def _hand_over(
        self, place: Place, record: IndexRecord, owner: str, wanted: str, coming: PartReport
    ) -> IndexChange | None:
        memory, now_ms = self.step.memory, self.step.view.now_ms
        stopped, going = memory.stopped.get(place), self._part(owner, place)
        coming = self._without_outside(place, record, going, coming)
        if stopped is not None and stopped.at == record.at:
            if _is_at(coming, stopped.floor):
                floor = max(stopped.floor, record.floor)
                return IndexChange(replace(record, owner=wanted, building=None, floor=floor))
            if now_ms - stopped.since_ms > PART_STOPPED_MS_MAX:
                self.step.note(f"{place.partition}: the index of {wanted} does not catch up")
                return IndexChange(record)  # under a new key: the owner goes on
            return None
        if going is None or going.designs != coming.designs:
            return None
        if _is_at(coming, going.reached):
            self.step.order("stop", owner, place, None, key=record.at)
        elif going.is_frozen and going.reached.branch < coming.reached.branch:
            return IndexChange(record)  # it must follow the newer history first
        elif _is_near(coming, going.reached):
            self.step.order("freeze", owner, place, None, key=record.at)
        return None

    def _without_outside(
        self, place: Place, record: IndexRecord, going: PartReport | None, coming: PartReport
    ) -> PartReport:
        """Return the new part as it counts: indexes that nobody writes any more count no more."""
        memory, now_ms = self.step.memory, self.step.view.now_ms
        if going is None or coming.outside_ms is None:
            return coming
        if going.designs == coming.designs and _is_at(coming, going.reached):
            memory.outside.pop(place, None)
            return coming
        at, since_ms = memory.outside.get(place, (record.at, now_ms))
        if at != record.at:
            since_ms = now_ms
        memory.outside[place] = record.at, since_ms
        if min(now_ms - since_ms, coming.outside_ms) < OUTSIDE_MS_MAX:
            if min(now_ms - since_ms, coming.outside_ms) >= OUTSIDE_TOLD_MS:
                self.step.note("index parts wait for views that Spark keeps: no pipeline is heard")
            return coming
        if going.own_designs != coming.own_designs:
            return coming
        reached = coming.own_reached
        if reached is None:  # all its indexes are kept outside
            stopped = memory.stopped.get(place)
            reached = going.reached if stopped is None else max(going.reached, stopped.floor)
        return replace(coming, designs=going.designs, reached=reached)

    def _replace_lost(self, place: Place, record: IndexRecord, wanted: str) -> IndexChange | None:
        memory, owner = self.step.memory, record.owner
        boots = self.step.state.boots.get(owner, 0) if owner is not None else 0
        floor = memory.floors.get(place)
        if floor is None or floor[:2] != (record.at, boots):
            found = self._floor(place)
            if found is None:
                return None
            floor = memory.floors[place] = (record.at, boots, found)
        least = max(floor[2], record.floor)
        return IndexChange(replace(record, owner=wanted, building=None, floor=least), owner)

    def _floor(self, place: Place) -> Floor | None:
        """Return how far the copy is that serves, if it may; asked in this step."""
        record = self.step.state.data[place.bucket].records[place.partition]
        chosen = serving(self.step, place, record)
        if chosen is None or chosen not in self.step.view.answered:
            return None
        copy = self.step.memory.copy(chosen, place)
        if copy is None or not copy.may_serve:
            return None
        return Floor(copy.standing.branch, copy.standing.complete_end)


def _is_at(part: PartReport, floor: Floor) -> bool:
    return part.reached.branch >= floor.branch and part.reached.seqno >= floor.seqno


def _is_near(part: PartReport, floor: Floor) -> bool:
    is_same = part.reached.branch == floor.branch
    return is_same and floor.seqno - part.reached.seqno <= FREEZE_WITHIN_SEQNOS
