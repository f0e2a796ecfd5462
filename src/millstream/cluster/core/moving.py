"""Moves a partition from its rows in force to the wanted row, one map write or order at a time.

| step | map write | condition |
| --- | --- | --- |
| build | `building` = new copies | the bounds of builds |
| join | the wanted row is added | each new copy follows, owes nothing, and knows this record |
| take over | none: an order | the serving copy is not the first of the last row |
| leave | the last row only | it has everything, and nobody can act by an earlier row |
| remove | none: orders | copies that no record places |

Rows are only added, then collapsed. A row is never taken back, because a take-over may be on its
way. Another target, or a cancelled plan, adds another row.

Invariants:
1. A copy counts only once it has adopted the record in which it is being built.
2. The old rows are left only if so many of their copies know the last row that no majority and no
   promotion is possible by the old ones alone, and the rest have no session.
3. Builds are bounded per node, in and out. What is begun is counted in the map, so the bound also
   holds after the death of an orchestrator. A copy that is not wanted any more is not waited for.

Elsewhere: the plan (`cluster.core.members`), promotions (`cluster.core.fail_over`).
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from millstream.cluster.core.elements import ClusterState, Plan
from millstream.cluster.core.fail_over import given_up
from millstream.cluster.core.orders import Place
from millstream.cluster.core.quorums import needed_rows
from millstream.cluster.core.reports import CopyReport
from millstream.cluster.core.settings import TAKE_OVERS_MAX
from millstream.cluster.core.step import Step
from millstream.model.cluster_maps import ROWS_MAX, DataRecord
from millstream.model.partitions import PartitionState
from millstream.model.rows import Row, spare

__all__ = ["Moves", "valid_plan"]


def valid_plan(state: ClusterState) -> Plan | None:
    """Return the plan, if it is not cancelled and was made from the present members."""
    plan = state.plan
    if plan is None or plan.is_cancelled or plan.basis != state.basis:
        return None
    return plan


class Moves:
    """All moves of a step; counts what is under way on each node."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.plan = valid_plan(step.state)
        plan = step.state.plan
        self.is_stale = plan is not None and not plan.is_cancelled and self.plan is None
        self.moves = step.state.settings.moves
        self.coming: Counter[str] = Counter()
        self.going: Counter[str] = Counter()
        self.take_overs: Counter[str] = Counter()
        for data_map in step.state.data.values():
            for record in data_map.records:
                self._count(record, +1)

    def tend(self, place: Place, record: DataRecord, chosen: str) -> DataRecord | None:
        """Return the next record of a partition that `chosen` serves; None: no write is needed.

        Orders go to the step.
        """
        mine = self.step.memory.copy(chosen, place)
        assert mine is not None, "a serving copy without a report"
        corrected = self._corrected(record, chosen, mine)
        if corrected is not None:
            return corrected
        self._spread(place, record, mine)
        rows = self._without_lost(record, chosen)
        if rows is not None:
            return replace(record, rows=rows)
        return self._move(place, record, chosen, mine)

    @staticmethod
    def _corrected(record: DataRecord, chosen: str, mine: CopyReport) -> DataRecord | None:
        branch = mine.standing.branch
        if (record.active, record.branch) == (chosen, branch):
            return None
        return replace(record, active=chosen, branch=branch)

    def _spread(self, place: Place, record: DataRecord, mine: CopyReport) -> None:
        """Tell copies of the record, and of the branch that is served."""
        branch = mine.standing.branch
        for name, copy in self.step.memory.told(place):
            is_placed = name in record.placed
            if not (copy.is_there or is_placed):
                continue
            standing = copy.standing
            if copy.at < record.at:
                self.step.order("adopt", name, place, record)
            elif (
                is_placed
                and copy.is_there
                and (standing.last_branch < branch or standing.state is PartitionState.DEAD)
            ):
                self.step.order("fence", name, place, record, branch=branch)

    def _without_lost(self, record: DataRecord, chosen: str) -> tuple[Row, ...] | None:
        """Return the rows without copies that the operator gave up, each still led by somebody."""
        lost = given_up(self.step, record)
        if not lost:
            return None
        rows = []
        for row in record.rows:
            new = [None if name in lost else name for name in row]
            if row[0] in lost:
                new.sort(key=lambda name: (name is None, name != chosen))
            rows.append(tuple(new))
        return needed_rows(rows)

    # ---- the steps of a move

    def _move(
        self, place: Place, record: DataRecord, chosen: str, mine: CopyReport
    ) -> DataRecord | None:
        target = self._target(place, record, chosen)
        if target is not None and len(record.rows) < ROWS_MAX:
            is_led = record.is_moving or chosen == target[0]
            if target != record.row or not is_led:
                return self._towards(place, record, target, chosen, mine)
        if record.is_moving:
            return self._settle(place, record, chosen, mine)
        if record.building:
            return replace(record, building=())
        for name, copy in self.step.memory.told(place):
            if copy.is_there and name not in record.placed:
                self.step.order("remove", name, place, record)
        return None

    def _target(self, place: Place, record: DataRecord, chosen: str) -> Row | None:
        """Return the wanted row; None: what is under way is finished.

        Without a plan a move goes back to the first row, led by whoever serves. A plan that is to
        be made anew wants nothing.
        """
        if self.plan is not None:
            rows = self.plan.rows.get(place.bucket)
            return None if rows is None else rows[place.partition]
        if self.is_stale or not record.is_moving or chosen not in record.rows[0]:
            return None
        if set(record.row) == set(record.rows[0]):
            return None
        return (chosen, *(name for name in record.rows[0] if name != chosen))

    def _towards(
        self, place: Place, record: DataRecord, target: Row, chosen: str, mine: CopyReport
    ) -> DataRecord | None:
        new = tuple(name for name in target if name is not None and name not in record.voters)
        if not set(new) <= set(record.building):
            kept = tuple(name for name in new if name in record.building)
            self._count(record, -1)
            made = replace(record, building=new if self._has_room(new, kept, chosen) else kept)
            self._count(made, +1)
            return made if made != record else None
        if all(self._is_ready(place, record, name, mine) for name in new):
            return replace(record, rows=needed_rows((*record.rows, target)), building=())
        return None

    def _has_room(self, new: tuple[str, ...], kept: tuple[str, ...], chosen: str) -> bool:
        """Return whether copies may be built; those of this partition are not counted yet."""
        coming = [name for name in new if name not in kept]
        full = [name for name in coming if not self._has_space(name)]
        for name in full:
            self.step.note(f"no_space: the disk of {name} is full, so it builds no copies")
        return (
            not full
            and all(self.coming[name] < self.moves for name in new)
            and self.going[chosen] < self.moves
        )

    def _has_space(self, name: str) -> bool:
        report = self.step.memory.nodes.get(name)
        return report is None or report.has_space

    def _count(self, record: DataRecord, by: int) -> None:
        """Count the copies that a record builds: at their nodes, and where they come from."""
        for name in record.building:
            self.coming[name] += by
        if record.building and record.active is not None:
            self.going[record.active] += by

    def _is_ready(self, place: Place, record: DataRecord, name: str, mine: CopyReport) -> bool:
        """Return whether a copy that is being built may count from now on."""
        copy = self.step.memory.copy(name, place)
        return (
            copy is not None
            and copy.is_there
            and copy.standing.is_intact
            and copy.standing.is_whole
            and copy.standing.branch == mine.standing.branch
            and copy.at >= record.at
        )

    def _settle(
        self, place: Place, record: DataRecord, chosen: str, mine: CopyReport
    ) -> DataRecord | None:
        first = record.row[0]
        if chosen != first:
            if first is not None and self.take_overs[first] < TAKE_OVERS_MAX:
                self.take_overs[first] += 1
                self.step.order("take_over", first, place, record)
                self.step.memory.handed[place] = self.step.view.now_ms
            return None
        if self._may_leave(place, record, mine):
            return replace(record, rows=record.rows[-1:])
        return None

    def _may_leave(self, place: Place, record: DataRecord, mine: CopyReport) -> bool:
        """Return whether the earlier rows can be forgotten; see the table of the module."""
        if not mine.is_confirmed or mine.at < record.since:
            return False
        live, is_free = self.step.state.live, True
        for row in record.rows[:-1]:
            knows = {
                name for name in row if name is None or self._knows(place, record, name, mine)
            }
            count = len(knows - {None}) + row.count(None)
            rest = {name for name in row if name is not None and name not in knows}
            if rest & live.keys():
                self.step.wait_for(rest & live.keys())
                is_free = False
            is_free &= count > spare(row)
        return is_free

    def _knows(self, place: Place, record: DataRecord, name: str, mine: CopyReport) -> bool:
        """Return whether a copy has adopted the last row, and promised nothing that is newer."""
        copy = self.step.memory.copy(name, place)
        return (
            copy is not None
            and copy.at >= record.since
            and copy.standing.last_branch == mine.standing.branch
        )
