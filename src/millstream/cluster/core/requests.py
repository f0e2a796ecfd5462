"""What people ask of a cluster, as changes of its state.

| op | arguments | makes it so that |
| --- | --- | --- |
| rebalance | add, remove: nodes | copies are balanced over the members; removed ones leave |
| failover | node, mode: graceful, hard, force | the node serves nothing and is failed |
| reset | | automatic fail-over counts from 0 |
| cancel | | the plan ends where it is |

Invariants:
1. A request is repeated if its orchestrator dies before the effect is written, so an effect that
   is there already is no error.
2. A refused request changes nothing.

Elsewhere: the queue of requests and the results (`cluster.core.elements`), what follows from the
changes (`cluster.core.members`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from millstream.cluster.core.elements import PLAN, ClusterState, NodeRecord, Plan, Request, Role
from millstream.cluster.core.members import failed_record, make_plan
from millstream.cluster.core.writes import Txn, cancel_plan, put_members, reset_failovers
from millstream.errors import ConditionError, UsageError

__all__ = ["FailOverArgs", "RebalanceArgs", "txn_of"]

_NEEDED: Final[tuple[Role, ...]] = ("data", "index")
"""Roles that some member must have."""


class RebalanceArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of `rebalance`."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


class FailOverArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of `failover`."""

    node: str
    mode: Literal["graceful", "hard", "force"] = "graceful"


def txn_of(state: ClusterState, request: Request, unix_ms: int) -> Txn | None:
    """Return the change that a request asks for; None: it is so.

    Raises:
        UsageError: `unknown_request`, `bad_request`, `unknown_node`, `too_few_nodes`.
        ConditionError: `unsafe`: a graceful fail-over of a node that has the only copy.
    """
    try:
        if request.op == "rebalance":
            return _rebalance(
                state, msgspec.convert(request.args, RebalanceArgs), request, unix_ms
            )
        if request.op == "failover":
            return _fail_over(state, msgspec.convert(request.args, FailOverArgs), request, unix_ms)
    except msgspec.ValidationError as error:
        raise UsageError(f"request {request.op}: {error}", code="bad_request") from error
    if request.op == "reset":
        return reset_failovers(state) if state.failover_count else None
    if request.op == "cancel":
        is_running = state.plan is not None and not state.plan.is_cancelled
        return cancel_plan(state) if is_running else None
    raise UsageError(f"there is no request {request.op!r}", code="unknown_request")


def _rebalance(
    state: ClusterState, args: RebalanceArgs, request: Request, unix_ms: int
) -> Txn | None:
    _check_known(state, (*args.add, *args.remove))
    changed: dict[str, NodeRecord] = {}
    for name in args.remove:
        if state.nodes[name].state in ("in", "joining"):
            changed[name] = replace(state.nodes[name], state="leaving", since_ms=unix_ms)
    for name in args.add:
        if state.nodes[name].state == "leaving" and name not in args.remove:
            changed[name] = replace(state.nodes[name], state="in", since_ms=unix_ms)
    after = dataclasses.replace(state, nodes={**state.nodes, **changed})
    for role in _NEEDED:
        _check_some_left(state, after, role)
    plan = make_plan(after, "rebalance", _next_id(state), unix_ms, request.by)
    if plan is None:
        raise UsageError("no data node is left: add one", code="too_few_nodes")
    if not changed and _is_same(state.plan, plan):
        return None
    return put_members(state, plan, changed, f"rebalance asked for by {request.by}")


def _fail_over(
    state: ClusterState, args: FailOverArgs, request: Request, unix_ms: int
) -> Txn | None:
    _check_known(state, (args.node,))
    node = state.nodes[args.node]
    if args.mode == "graceful":
        return _graceful(state, args.node, request, unix_ms)
    if node.state == "out" or (node.state == "failed" and node.by in (args.mode, "force")):
        return None
    failed = failed_record(state, args.node, args.mode, unix_ms)
    return put_members(state, state.plan, {args.node: failed}, f"{args.mode} fail-over")


def _graceful(state: ClusterState, name: str, request: Request, unix_ms: int) -> Txn | None:
    node = state.nodes[name]
    if node.state in ("failed", "out") or (state.plan is not None and name in state.plan.failing):
        return None
    if node.state != "in" or name not in state.live:
        raise ConditionError(
            f"{node.name} is {node.state} and cannot hand its partitions over: use --hard",
            code="unsafe",
        )
    plan = make_plan(state, "failover", _next_id(state), unix_ms, request.by, (name,))
    every = () if plan is None else tuple(row for rows in plan.rows.values() for row in rows)
    stuck = sum(row[0] == name for row in every)
    if plan is None or stuck:
        raise ConditionError(
            f"{stuck} partitions have their only copy on {node.name}: add replicas, or use "
            "`cluster remove`",
            code="unsafe",
        )
    return put_members(state, plan, {}, f"graceful fail-over of {node.name}")


def _check_known(state: ClusterState, names: Iterable[str]) -> None:
    for name in names:
        if name not in state.nodes:
            raise UsageError(f"there is no node {name!r} in the cluster", code="unknown_node")


def _check_some_left(before: ClusterState, after: ClusterState, role: Role) -> None:
    if before.members(role) and not after.members(role):
        raise UsageError(
            f"the last {role} node cannot be removed: add another one first", code="too_few_nodes"
        )


def _next_id(state: ClusterState) -> int:
    return state.version(PLAN).lsn + 1


def _is_same(plan: Plan | None, wanted: Plan) -> bool:
    """Return whether the running plan wants the same."""
    return plan is not None and not plan.is_cancelled and plan.rows == wanted.rows
