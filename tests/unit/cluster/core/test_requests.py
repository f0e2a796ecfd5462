"""Requests of people: what they change, that they can be repeated, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream.cluster.core.elements import PLAN, NodeRecord, Plan, Request, node_path
from millstream.cluster.core.requests import txn_of
from millstream.cluster.core.writes import Txn
from millstream.errors import ConditionError, UsageError
from support.cluster.scene import Scene, written


def ask(scene: Scene, op: str, **args: Any) -> Txn | None:
    return txn_of(scene.state, Request("r1", op, args, "ann"), 5000)


def plan_in(txn: Txn | None) -> Plan:
    data = written(txn, PLAN)
    assert data
    return msgspec.json.decode(data, type=Plan)


def member(txn: Txn | None, name: str) -> NodeRecord:
    data = written(txn, node_path(name))
    assert data
    return msgspec.json.decode(data, type=NodeRecord)


def test_a_rebalance_spreads_over_the_members_and_is_the_same_if_repeated() -> None:
    scene = Scene(("a", "b"))
    txn = ask(scene, "rebalance", remove=["a"])
    assert member(txn, "a").state == "leaving"
    plan = plan_in(txn)
    assert (plan.rows, plan.by, plan.started_ms) == ({"u1": (("b", "c"),)}, "ann", 5000)
    scene.set_node("a", state="leaving")
    scene.set(plan=plan)
    assert ask(scene, "rebalance", remove=["a"]) is None
    assert member(ask(scene, "rebalance", add=["a"]), "a").state == "in"


def test_a_second_rebalance_amends_the_plan() -> None:
    scene = Scene(("a", "b"), nodes="abcd")
    scene.set_node("a", state="leaving")
    scene.set(plan=plan_in(ask(Scene(("a", "b")), "rebalance", remove=["a"])))
    plan = plan_in(ask(scene, "rebalance", remove=["b"]))
    assert plan.rows == {"u1": (("c", "d"),)}


@pytest.mark.parametrize(
    ("op", "args", "code"),
    [
        ("rebalance", {"remove": ["z"]}, "unknown_node"),
        ("rebalance", {"remove": ["a", "b", "c"]}, "too_few_nodes"),
        ("rebalance", {"nodes": ["a"]}, "bad_request"),
        ("failover", {"node": "z"}, "unknown_node"),
        ("failover", {"node": "a", "mode": "soon"}, "bad_request"),
        ("dance", {}, "unknown_request"),
    ],
)
def test_a_request_that_cannot_be_is_refused_and_says_why(
    op: str, args: dict[str, Any], code: str
) -> None:
    with pytest.raises(UsageError) as caught:
        ask(Scene(), op, **args)
    assert caught.value.code == code


def test_a_graceful_fail_over_is_a_plan_that_moves_no_copy() -> None:
    scene = Scene(("a", "b"))
    plan = plan_in(ask(scene, "failover", node="a"))
    assert (plan.kind, plan.failing, plan.rows) == ("failover", ("a",), {"u1": (("b", "a"),)})
    scene.set(plan=plan)
    assert ask(scene, "failover", node="a") is None


def test_a_node_with_the_only_copy_or_without_a_session_cannot_hand_over() -> None:
    with pytest.raises(ConditionError, match="their only copy on a") as caught:
        ask(Scene(("a",), nodes="ab"), "failover", node="a")
    assert caught.value.code == "unsafe"
    scene = Scene(("a", "b"))
    scene.lose("a")
    with pytest.raises(ConditionError, match="use --hard"):
        ask(scene, "failover", node="a")


def test_hard_and_forced_fail_overs_are_not_counted_and_force_outweighs() -> None:
    scene = Scene(("a", "b"))
    for mode in ("hard", "force"):
        txn = ask(scene, "failover", node="a", mode=mode)
        assert (member(txn, "a").state, member(txn, "a").by) == ("failed", mode)
        assert txn is not None
        assert not [words for words in txn.changes if words[0] == b"COUNTER"]
    scene.set_node("a", state="failed", by="hard")
    assert ask(scene, "failover", node="a", mode="hard") is None
    assert member(ask(scene, "failover", node="a", mode="force"), "a").by == "force"
    scene.set_node("a", by="force")
    assert ask(scene, "failover", node="a", mode="hard") is None


def test_a_reset_and_a_cancel_are_done_once() -> None:
    scene = Scene()
    assert ask(scene, "reset") is None
    assert ask(scene, "cancel") is None
    scene.set(failover_count=1, plan=plan_in(ask(Scene(("a", "b")), "rebalance", remove=["a"])))
    assert ask(scene, "reset") is not None
    cancelled = plan_in(ask(scene, "cancel"))
    assert cancelled.is_cancelled
    scene.set(plan=cancelled)
    assert ask(scene, "cancel") is None
