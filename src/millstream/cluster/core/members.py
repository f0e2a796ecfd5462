"""States of members, automatic fail-over of nodes, and the plan of a rebalance.

| from | to | when |
| --- | --- | --- |
| joining | in | it has a session |
| in, leaving | failed | its session is gone, its streams are broken, and the limits allow it |
| failed | in | it has a session that was opened later, and its partitions were promoted |
| failed | leaving | the same, of a node that was asked to leave |
| leaving | out | no map names it, and it reports that it has no copies |
| failed | out | it was given up, has no session, and no map names it |
| failed | out | the same, of a node that was asked to leave and does not coordinate |

Invariants:
1. A plan is made from the members that are `in`. If these change, the plan is made anew before
   anything else is done.
2. Automatic fail-over needs a fresh read, the answers of a majority of the data nodes and of the
   own node, and counts each node.
3. After a start of the whole cluster nobody is failed over for being late: a node that has just
   started (`cluster.core.settings.STARTING_MS`) fails over only whom it has heard since.
4. A node of which one partition could not be promoted by the rule is left alone.
5. Places that became empty while a node had failed are filled when it returns. That plan is made
   with the return only, so an administrator who cancels it is not overruled.

Elsewhere: layouts (`cluster.core.planner`), what people ask for (`cluster.core.requests`).
"""

from __future__ import annotations

import dataclasses
from typing import Final

from msgspec.structs import replace

from millstream.cluster.core.elements import (
    PLAN,
    ClusterState,
    FailedBy,
    FailOver,
    NodeRecord,
    NodeState,
    Plan,
    PlanKind,
)
from millstream.cluster.core.fail_over import is_allowed, serving
from millstream.cluster.core.orders import Place
from millstream.cluster.core.planner import plan_index, plan_rows, rows_led_by_others
from millstream.cluster.core.quorums import judge_rows
from millstream.cluster.core.settings import FAILED_MS_MIN, SESSION_MS_MAX
from millstream.cluster.core.step import EndSession, Step
from millstream.cluster.core.writes import Txn, put_members
from millstream.vsr.core.configuration import SIZES

__all__ = ["failed_record", "is_done", "is_silent", "make_plan", "tend_members"]

_FAILED: Final = ("failed", "auto")


def tend_members(step: Step) -> Txn | None:
    """Return the write that brings members and plan up to date; None: they are."""
    if not step.view.is_fresh:
        return None
    state = step.state
    _end_old_sessions(step)
    changed, why = _next_members(step), "members"
    failovers: list[FailOver] = []
    for name, failover in _failing(step):
        changed[name] = failed_record(state, name, "auto", step.view.unix_ms)
        failovers.append(failover)
        why = f"fail over {state.nodes[name].name}: {failover.why}"
    after = dataclasses.replace(state, nodes={**state.nodes, **changed})
    plan, ended = _next_plan(step, after)
    resets = False
    if ended:
        after = dataclasses.replace(state, nodes={**after.nodes, **ended})
        changed = {**changed, **ended}
    if state.plan is not None and plan is None:
        why = "the plan is done"
        resets = all(
            node.state == "out" or (node.state == "in" and name in state.live)
            for name, node in after.nodes.items()
        )
    if not changed and plan == state.plan:
        return None
    if plan is not None and plan != state.plan:
        why = f"{why}; plan {plan.id}: {plan.kind}"
    return put_members(state, plan, changed, why, failovers, resets=resets)


def is_silent(step: Step, name: str) -> bool:
    """Return whether a node has no session, and those it streams with do not hear it either."""
    if name in step.state.live or name in step.view.answered:
        return False
    told = [
        report.broken[name]
        for other, report in step.memory.nodes.items()
        if other in step.view.answered and name in report.broken
    ]
    return not told or 2 * sum(told) > len(told)


def _end_old_sessions(step: Step) -> None:
    for name, node in step.state.nodes.items():
        live = step.state.live.get(name)
        if node.state == "failed" and live is not None and live.boots <= node.boots:
            end = EndSession(name, live.boots, f"{node.name} was failed over")
            step.decision.ends.append(end)


def _next_members(step: Step) -> dict[str, NodeRecord]:
    state, changed = step.state, dict[str, NodeRecord]()
    now_ms = step.view.unix_ms
    for name, node in state.nodes.items():
        live = state.live.get(name)
        if node.state == "joining" and live is not None:
            changed[name] = replace(node, state="in", since_ms=now_ms)
        elif _has_returned(step, name, node):
            back: NodeState = "leaving" if node.leaves else "in"
            changed[name] = replace(
                node, state=back, by="", boots=0, leaves=False, since_ms=now_ms
            )
        elif _is_over(step, name, node):
            changed[name] = replace(node, state="out", since_ms=now_ms)
    return changed


def _has_returned(step: Step, name: str, node: NodeRecord) -> bool:
    """Return whether a failed node is a member again.

    Its partitions have been promoted elsewhere, or could not be for a while.
    """
    state, live = step.state, step.state.live.get(name)
    if node.state != "failed" or live is None or live.boots <= node.boots:
        return False
    if state.settings.rejoin == "manual" and not node.leaves:
        return False
    is_active = any(record.active == name for one in state.data.values() for record in one.records)
    return not is_active or step.view.unix_ms - node.since_ms >= FAILED_MS_MIN


def _is_over(step: Step, name: str, node: NodeRecord) -> bool:
    is_gone = name not in step.state.live and not step.state.is_named(name)
    if node.is_given_up:
        return is_gone
    if node.state == "failed" and node.leaves:
        return is_gone and not _coordinates(step, name, node)
    if node.state != "leaving" or not _is_empty(step, name):
        return False
    return not _coordinates(step, name, node)


def _coordinates(step: Step, name: str, node: NodeRecord) -> bool:
    """Return whether a node may be of the group that has the state, so it is still needed.

    Where nobody can take its place in a group of three, it may go once both others are there.
    """
    group, nodes = step.view.coordinators, step.state.nodes
    if "coord" not in node.roles or (group is not None and name not in group):
        return False
    if group is None:
        step.note(f"{node.name} leaves once it is known which nodes coordinate")
        return True
    others = [one for one in group if one != name and one in step.state.live]
    is_replaced = any(
        one.state == "in" and "coord" in one.roles and other not in group
        for other, one in nodes.items()
    )
    if len(group) == len(others) + 1 == SIZES[0] and not is_replaced:
        return False
    step.note(f"{node.name} leaves once other nodes coordinate in its place")
    return True


def _is_empty(step: Step, name: str) -> bool:
    """Return whether a node can be taken away: nothing names it, and it has nothing."""
    report = step.memory.nodes.get(name)
    if step.state.is_named(name) or report is None or name not in step.view.answered:
        return False
    copies = (copy for every in report.copies.values() for copy in every.values())
    return not any(copy.is_there for copy in copies) and not any(report.parts.values())


def failed_record(state: ClusterState, name: str, by: FailedBy, unix_ms: int) -> NodeRecord:
    """Return the record of a member that is failed over now."""
    live = state.live.get(name)
    boots = state.boots.get(name, 0) if live is None else live.boots
    node = state.nodes[name]
    leaves = node.leaves or node.state == "leaving"
    return replace(node, state="failed", by=by, boots=boots, since_ms=unix_ms, leaves=leaves)


# ---- automatic fail-over


def _failing(step: Step) -> list[tuple[str, FailOver]]:
    """Return the nodes to fail over now, within the limits."""
    state, settings = step.state, step.state.settings
    gone = [
        name
        for name, node in sorted(state.nodes.items())
        if node.state in ("in", "leaving") and is_silent(step, name)
    ]
    gone = _silent_for_long(step, gone)
    if step.view.starting.intersection(gone):
        step.note("this node has just started: silent nodes may be starting, too")
        gone = [name for name in gone if name not in step.view.starting]
    if not gone:
        return []
    if not settings.auto_failover:
        step.note("auto_failover is off")
        return []
    if not step.reaches_most():
        step.note("limit: no majority of the data nodes answers")
        return []
    count, found = state.failover_count, list[tuple[str, FailOver]]()
    # Sessions of one machine do not end at the same moment: some may have failed before.
    counted = {node.zone for node in state.nodes.values() if (node.state, node.by) == _FAILED}
    for name in gone:
        node = state.nodes[name]
        is_counted = not (node.zone in counted and _is_zone_gone(state, node.zone, gone))
        if count + is_counted > settings.auto_failover_max:
            step.note(f"limit: {node.name} is silent, and {count} nodes were failed over")
            continue
        failover = _judge(step, name)
        if failover is not None:
            count += is_counted
            counted.add(node.zone)
            found.append((name, replace(failover, is_counted=is_counted)))
    return found


def _silent_for_long(step: Step, gone: list[str]) -> list[str]:
    """Return the nodes that are silent for longer than the time-out that is set."""
    now_ms, memory = step.view.now_ms, step.memory
    memory.silent = {name: memory.silent.get(name, now_ms) for name in gone}
    patience_ms = step.state.settings.session_ttl_ms - SESSION_MS_MAX
    late = [name for name in gone if now_ms - memory.silent[name] >= patience_ms]
    for name in sorted(set(gone) - set(late)):
        step.note(f"{step.state.nodes[name].name} is silent; `session_ttl_ms` is waited for")
    return late


def _is_zone_gone(state: ClusterState, zone: str, gone: list[str]) -> bool:
    """Return whether a zone counts as one, and no data node of it is left."""
    if not state.settings.auto_failover_zones or not zone:
        return False
    return all(
        name in gone or node.state in ("failed", "out") or "data" not in node.roles
        for name, node in state.nodes.items()
        if node.zone == zone
    )


def _judge(step: Step, name: str) -> FailOver | None:
    """Return the fail-over of a node; None if some partition could not be promoted."""
    state, partitions, at_risk = step.state, 0, set[str]()
    for bucket, data_map in state.data.items():
        for partition, record in enumerate(data_map.records):
            place = Place(bucket, partition)
            if record.active != name or serving(step, place, record) is not None:
                continue
            there = [voter for voter in record.voters if voter in step.view.answered]
            answers = step.memory.answers(place, there)
            verdict = judge_rows(record.rows, answers)
            if not is_allowed(step, record, answers, verdict):
                node = state.nodes[name].name
                step.note(f"unsafe: {node} is silent, and partition {partition} needs it")
                return None
            partitions += 1
            at_risk |= set(verdict.at_risk)
    return FailOver(name, step.view.unix_ms, "silent", partitions, tuple(sorted(at_risk)))


# ---- plans


def _next_plan(step: Step, after: ClusterState) -> tuple[Plan | None, dict[str, NodeRecord]]:
    """Return the plan that should be there, and members that change as one ends."""
    plan, view = after.plan, step.view
    if plan is None:
        kind = _wanted_kind(step, after)
        if kind is None and _lacks_returned(step.state, after):
            kind = "replace"
        if kind is None:
            return None, {}
        made = make_plan(after, kind, _next_id(step), view.unix_ms)
        return (None if made is None or is_done(after, made) else made), {}
    if plan.is_cancelled:
        stays = {
            name: replace(
                node,
                state="in" if node.state == "leaving" else node.state,
                leaves=False,
                since_ms=view.unix_ms,
            )
            for name, node in after.nodes.items()
            if node.state == "leaving" or node.leaves
        }
        return None, stays
    if plan.basis != after.basis:
        failing = tuple(name for name in plan.failing if name in after.basis)
        if plan.kind == "failover" and not failing:
            return None, {}
        made = make_plan(after, plan.kind, plan.id + 1, plan.started_ms, plan.by, failing)
        return made or plan, {}
    if not is_done(after, plan):
        return plan, {}
    return None, {
        name: failed_record(after, name, "graceful", view.unix_ms) for name in plan.failing
    }


def _wanted_kind(step: Step, after: ClusterState) -> PlanKind | None:
    delay_ms = after.settings.replace_after_s * 1000
    for name, node in after.nodes.items():
        if not after.is_named(name):
            continue
        if node.state == "leaving" or node.leaves:
            return "rebalance"
        is_late = step.view.unix_ms - node.since_ms >= delay_ms > 0
        if node.state == "failed" and is_late:
            return "replace"
    return None


def _lacks_returned(before: ClusterState, after: ClusterState) -> bool:
    """Return whether a data node returns in this step, and rows have places that nobody fills.

    A rebalance while it had failed has taken its places away, and nobody was left to fill them.
    """
    returned = any(
        node.state == "in" and before.nodes[name].state == "failed" and "data" in node.roles
        for name, node in after.nodes.items()
    )
    return (
        returned
        and after.settings.replace_after_s > 0
        and any(None in record.row for one in after.data.values() for record in one.records)
    )


def _next_id(step: Step) -> int:
    """Return a number for a plan that none had before: the version of the element grows."""
    return step.state.version(PLAN).lsn + 1


def make_plan(
    state: ClusterState,
    kind: PlanKind,
    number: int,
    started_ms: int,
    by: str = "",
    failing: tuple[str, ...] = (),
) -> Plan | None:
    """Return the plan for the present members; None if there is no data node among them.

    Args:
        state: as it is when the plan is written.
        kind: of the plan.
        number: its id.
        started_ms: Unix time.
        by: who asked for it.
        failing: nodes that give up what they serve, and keep their copies.
    """
    zones = state.members("data")
    owners = sorted(set(state.members("index")) - set(failing))
    if not zones:
        return None
    is_near = set(zones) <= set(owners)
    rows, index = {}, {}
    for uuid, bucket in state.buckets.items():
        records = state.data[uuid].records
        before = tuple(record.row for record in records)
        if failing:
            rows[uuid] = rows_led_by_others(before, frozenset(failing))
        else:
            rows[uuid] = plan_rows(before, zones, bucket.replicas)
        actives = tuple(row[0] for row in rows[uuid]) if is_near else ()
        present = tuple(record.owner for record in state.index[uuid].records)
        index[uuid] = plan_index(present, owners, actives) if owners else present
    return Plan(number, kind, state.basis, rows, index, started_ms, by, failing=failing)


def is_done(state: ClusterState, plan: Plan) -> bool:
    """Return whether every partition and every index part is where the plan wants it.

    And no part is being made on a node that is no member.
    """
    for uuid, rows in plan.rows.items():
        if uuid in state.data and not all(
            record.rows == (row,) and record.active == row[0] and not record.building
            for record, row in zip(state.data[uuid].records, rows, strict=True)
        ):
            return False
    return all(
        uuid not in state.index
        or all(
            record.owner == owner and (record.building is None or record.building in plan.basis)
            for record, owner in zip(state.index[uuid].records, owners, strict=True)
        )
        for uuid, owners in plan.index.items()
    )
