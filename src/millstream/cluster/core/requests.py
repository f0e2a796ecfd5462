"""What people ask of a cluster, as changes of its state.

| op | arguments | makes it so that |
| --- | --- | --- |
| rebalance | add, remove: nodes; trial | copies are balanced over the members that stay |
| remove | nodes; now; trial | the nodes leave; now: those that are dead are failed over first |
| failover | node, mode: graceful, hard, force; trial | the node serves nothing and is failed |
| reset | | automatic fail-over counts from 0 |
| cancel | | the plan ends where it is |
| settings | settings of the cluster | these have the given values, the others stay |
| create_bucket | name, partitions, replicas, ...; strict | the bucket is there |
| set_bucket | name, replicas, ...; strict | the bucket has these numbers of copies and settings |
| drop_bucket | name or uuid | the bucket and all that it holds is removed |

A node is named by its id, by its name, or by a beginning of its id that no other id has.

Invariants:
1. A request is repeated if its orchestrator dies before the effect is written, so an effect that
   is there already is no error.
2. A refused request changes nothing. Neither does a trial, which only tells what would be done.

Elsewhere: the queue of requests and the results (`cluster.core.elements`), what follows from the
changes (`cluster.core.members`), requests about buckets (`cluster.core.bucket_requests`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from millstream.cluster.core.bucket_requests import (
    CreateBucketArgs,
    DropBucketArgs,
    SetBucketArgs,
    create_bucket,
    drop_bucket,
    set_bucket,
)
from millstream.cluster.core.elements import PLAN, ClusterState, NodeRecord, Plan, Request, Role
from millstream.cluster.core.members import failed_record, make_plan
from millstream.cluster.core.memory import Memory
from millstream.cluster.core.orders import Place
from millstream.cluster.core.progress import moves_of
from millstream.cluster.core.quorums import judge_rows
from millstream.cluster.core.settings import settings_from_json
from millstream.cluster.core.writes import (
    Txn,
    cancel_plan,
    put_members,
    put_settings,
    reset_failovers,
)
from millstream.errors import ConditionError, UsageError

__all__ = ["FailOverArgs", "Outcome", "RebalanceArgs", "RemoveArgs", "outcome_of", "txn_of"]

_NEEDED: Final[tuple[Role, ...]] = ("data", "index")
"""Roles that some member must have."""
_Args = TypeVar("_Args")


class RebalanceArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of `rebalance`."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    trial: bool = False


class RemoveArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of `remove`."""

    nodes: tuple[str, ...]
    now: bool = False
    """Fail the nodes over first, which does not need them."""
    trial: bool = False


class FailOverArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of `failover`."""

    node: str
    mode: Literal["graceful", "hard", "force"] = "graceful"
    trial: bool = False


class Outcome(NamedTuple):
    """What is done for a request."""

    txn: Txn | None
    """The change; None: it is so, or it was a trial."""
    answer: dict[str, Any]
    """For whoever asked, JSON."""


class _Asked(NamedTuple):
    state: ClusterState
    request: Request
    unix_ms: int
    memory: Memory | None


def txn_of(state: ClusterState, request: Request, unix_ms: int) -> Txn | None:
    """Return only the change; see `outcome_of`."""
    return outcome_of(state, request, unix_ms).txn


def outcome_of(
    state: ClusterState, request: Request, unix_ms: int, memory: Memory | None = None
) -> Outcome:
    """Return what is done for a request.

    Args:
        state: as read.
        request: from the queue.
        unix_ms: now.
        memory: reports of the nodes, by which a hard fail-over is judged; None: it is not judged.

    Raises:
        UsageError: `unknown_request`, `bad_request`, `unknown_node`, `too_few_nodes`,
            `bad_cluster_setting`, `bad_bucket_name`, `bad_partitions`, `bad_memory_quota`.
        ConditionError: `unsafe`, `removed`, `node_failed`, `bucket_exists`, `bucket_not_found`,
            `bucket_dropping`.
    """
    opened = state.without_dropped()
    asked = _Asked(opened, request, unix_ms, memory)
    match request.op:
        case "rebalance":
            return _rebalance(asked, _args(request, RebalanceArgs))
        case "remove":
            return _remove(asked, _args(request, RemoveArgs))
        case "failover":
            return _fail_over(asked, _args(request, FailOverArgs))
        case "reset":
            count = state.failover_count
            return Outcome(reset_failovers(state) if count else None, {"was": count})
        case "cancel":
            is_running = state.plan is not None and not state.plan.is_cancelled
            plan = state.plan.id if is_running and state.plan is not None else None
            return Outcome(cancel_plan(state) if is_running else None, {"plan": plan})
        case "settings":
            return _settings(state, request.args)
        case "create_bucket":
            return Outcome(*create_bucket(state, request, _args(request, CreateBucketArgs)))
        case "set_bucket":
            args = _args(request, SetBucketArgs)
            return Outcome(*set_bucket(opened, request, args, _next_id(state), unix_ms, memory))
        case "drop_bucket":
            return Outcome(*drop_bucket(state, _args(request, DropBucketArgs)))
    raise UsageError(f"there is no request {request.op!r}", code="unknown_request")


def _args(request: Request, kind: type[_Args]) -> _Args:
    try:
        return msgspec.convert(request.args, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"request {request.op}: {error}", code="bad_request") from error


# ---- members and plans


def _rebalance(asked: _Asked, args: RebalanceArgs) -> Outcome:
    state = asked.state
    removed, added = _resolved(state, args.remove), _resolved(state, args.add)
    changed: dict[str, NodeRecord] = {}
    for name in removed:
        changed |= _leaving(asked, name)
    for name in added:
        if name not in removed:
            changed |= _added(asked, name)
    return _planned(asked, changed, is_trial=args.trial, why="rebalance")


def _remove(asked: _Asked, args: RemoveArgs) -> Outcome:
    changed: dict[str, NodeRecord] = {}
    if not args.nodes:
        raise UsageError("name the nodes to remove", code="bad_request")
    for name in _resolved(asked.state, args.nodes):
        node = asked.state.nodes[name]
        if args.now and node.state in ("in", "joining", "leaving"):
            _check_safe(asked, name)
            failed = failed_record(asked.state, name, "hard", asked.unix_ms)
            changed[name] = replace(failed, leaves=True)
        else:
            changed |= _leaving(asked, name)
    return _planned(asked, changed, is_trial=args.trial, why="removal")


def _leaving(asked: _Asked, name: str) -> dict[str, NodeRecord]:
    """Return the changed record of a node that is to leave."""
    node = asked.state.nodes[name]
    if node.state in ("in", "joining"):
        return {name: replace(node, state="leaving", since_ms=asked.unix_ms)}
    if node.state == "failed" and not node.leaves:
        return {name: replace(node, leaves=True)}
    return {}


def _added(asked: _Asked, name: str) -> dict[str, NodeRecord]:
    """Return the changed record of a node that is to stay, or to be a member again.

    Raises:
        ConditionError: `removed`; `node_failed`: it has opened no session since it failed.
    """
    node, live = asked.state.nodes[name], asked.state.live.get(name)
    if node.state == "out":
        raise ConditionError(
            f"{node.name} was removed: empty its directory and join it anew", code="removed"
        )
    if node.state == "failed":
        if live is None or live.boots <= node.boots:
            raise ConditionError(
                f"{node.name} is failed and has not come back: start it, then add it",
                code="node_failed",
            )
        return {
            name: replace(node, state="in", by="", boots=0, leaves=False, since_ms=asked.unix_ms)
        }
    if node.state == "leaving":
        return {name: replace(node, state="in", since_ms=asked.unix_ms)}
    return {}


def _planned(
    asked: _Asked, changed: Mapping[str, NodeRecord], *, is_trial: bool, why: str
) -> Outcome:
    """Return the outcome of changed members, with a plan for those that are left."""
    state, request = asked.state, asked.request
    after = dataclasses.replace(state, nodes={**state.nodes, **changed})
    for role in _NEEDED:
        _check_some_left(state, after, role)
    plan = make_plan(after, "rebalance", _next_id(state), asked.unix_ms, request.by)
    if plan is None:
        raise UsageError("no data node is left: add one", code="too_few_nodes")
    gone = sorted(name for name, one in changed.items() if one.state != "in")
    answer = {"moves": moves_of(after, plan, asked.memory), "leaving": gone, "plan": None}
    if is_trial:
        return Outcome(None, answer)
    if not changed and _is_same(state.plan, plan):
        assert state.plan is not None
        return Outcome(None, answer | {"plan": state.plan.id})
    asker = f" asked for by {request.by}" if request.by else ""
    txn = put_members(state, plan, changed, why + asker)
    return Outcome(txn, answer | {"plan": plan.id})


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


# ---- fail-over


def _fail_over(asked: _Asked, args: FailOverArgs) -> Outcome:
    state = asked.state
    (name,) = _resolved(state, (args.node,))
    node = state.nodes[name]
    partitions, at_risk = _risk(asked, name)
    answer: dict[str, Any] = {
        "node": name,
        "name": node.name,
        "mode": args.mode,
        "partitions": partitions,
        "at_risk": at_risk if args.mode != "graceful" else [],
    }
    if args.mode == "graceful":
        txn = _graceful(asked, name)
    elif node.state == "out" or (node.state == "failed" and node.by in (args.mode, "force")):
        txn = None
    else:
        if args.mode == "hard" and not args.trial:
            _check_safe(asked, name)
        failed = failed_record(state, name, args.mode, asked.unix_ms)
        txn = put_members(state, state.plan, {name: failed}, f"{args.mode} fail-over")
    return Outcome(None if args.trial else txn, answer)


def _graceful(asked: _Asked, name: str) -> Txn | None:
    state, node = asked.state, asked.state.nodes[name]
    if node.state in ("failed", "out") or (state.plan is not None and name in state.plan.failing):
        return None
    if node.state != "in" or name not in state.live:
        raise ConditionError(
            f"{node.name} is {node.state} and cannot hand its partitions over: use --hard",
            code="unsafe",
        )
    number, by = _next_id(state), asked.request.by
    plan = make_plan(state, "failover", number, asked.unix_ms, by, (name,))
    every = () if plan is None else tuple(row for rows in plan.rows.values() for row in rows)
    stuck = sum(row[0] == name for row in every)
    if plan is None or stuck:
        raise ConditionError(
            f"{stuck} partitions have their only copy on {node.name}: add replicas, or use "
            "`cluster remove`",
            code="unsafe",
        )
    return put_members(state, plan, {}, f"graceful fail-over of {node.name}")


def _risk(asked: _Asked, name: str) -> tuple[int, list[str]]:
    """Return how many partitions a node serves, and of which levels writes may be lost without it.

    Nothing is at risk as far as nobody has reported.
    """
    memory, count, at_risk = asked.memory, 0, set[str]()
    for bucket, data_map in asked.state.data.items():
        for partition, record in enumerate(data_map.records):
            if record.active != name:
                continue
            count += 1
            if memory is not None:
                others = [voter for voter in record.voters if voter != name]
                answers = memory.answers(Place(bucket, partition), others)
                at_risk |= set(judge_rows(record.rows, answers).at_risk)
    return count, sorted(at_risk)


def _check_safe(asked: _Asked, name: str) -> None:
    """Refuse a fail-over that the rule of promotion would never finish.

    Raises:
        ConditionError: `unsafe`.
    """
    _, at_risk = _risk(asked, name)
    if at_risk:
        node = asked.state.nodes[name].name
        raise ConditionError(
            f"without {node} writes that were acknowledged at level {' and '.join(at_risk)} may "
            "be lost: start it or the other nodes again, or use --force",
            code="unsafe",
        )


# ---- settings


def _settings(state: ClusterState, args: Mapping[str, Any]) -> Outcome:
    before: dict[str, Any] = msgspec.to_builtins(state.settings)
    wanted = settings_from_json({**before, **args})
    txn = None if wanted == state.settings else put_settings(state, wanted)
    return Outcome(txn, msgspec.to_builtins(wanted))


# ---- names of nodes


def _resolved(state: ClusterState, texts: Iterable[str]) -> tuple[str, ...]:
    """Return the ids of the nodes that people name.

    Raises:
        UsageError: `unknown_node`: no node, or several, can be meant.
    """
    return tuple(dict.fromkeys(_node_like(state.nodes, text) for text in texts))


def _node_like(nodes: Mapping[str, NodeRecord], text: str) -> str:
    if text in nodes:
        return text
    ways: tuple[Callable[[str], bool], ...] = (
        lambda one: nodes[one].name == text and nodes[one].state != "out",
        lambda one: nodes[one].name == text,
        lambda one: bool(text) and one.startswith(text.lower()),
    )
    for is_meant in ways:
        found = [one for one in nodes if is_meant(one)]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(f"{one} ({nodes[one].name})" for one in found)
            raise UsageError(
                f"{text!r} can mean {names}: give more of the id", code="unknown_node"
            )
    known = ", ".join(sorted(one.name for one in nodes.values() if one.state != "out"))
    raise UsageError(
        f"there is no node {text!r} in the cluster, only {known}", code="unknown_node"
    )
