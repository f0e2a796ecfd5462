"""Requests of people: what they change, that they can be repeated, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from millstream.cluster.core.elements import (
    PLAN,
    SETTINGS,
    NodeRecord,
    Plan,
    Request,
    node_path,
)
from millstream.cluster.core.requests import outcome_of, txn_of
from millstream.cluster.core.settings import settings_from_json
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


def named(scene: Scene, node: str) -> None:
    record = replace(scene.state.nodes[node], name="north")
    scene.set(nodes={**scene.state.nodes, node: record})


def test_a_node_is_named_by_id_name_or_the_only_beginning_of_an_id() -> None:
    scene = Scene(("ab1", "ab2"), active="ab1", nodes=("ab1", "ab2", "c3"))  # type: ignore[arg-type]
    named(scene, "c3")
    for text in ("c3", "north", "c", "C"):
        assert member(ask(scene, "rebalance", remove=[text]), "c3").state == "leaving"
    with pytest.raises(UsageError, match="can mean ab1") as caught:
        ask(scene, "rebalance", remove=["ab"])
    assert caught.value.code == "unknown_node"
    with pytest.raises(UsageError, match="only ab1, ab2, north"):
        ask(scene, "rebalance", remove=[""])
    named(scene, "ab1")
    scene.set_node("ab1", state="out")  # a removed node may have had the name
    assert member(ask(scene, "rebalance", remove=["north"]), "c3").state == "leaving"


def test_a_trial_tells_what_would_move_and_changes_nothing() -> None:
    scene = Scene(("a", "b"))
    outcome = outcome_of(
        scene.state, Request("r", "rebalance", {"remove": ["a"], "trial": True}), 5
    )
    assert outcome.txn is None
    moves = outcome.answer["moves"]
    assert (moves["partitions"], moves["copies"], moves["active"]) == (1, 1, 1)
    assert outcome.answer["leaving"] == ["a"]
    request = Request("r", "failover", {"node": "a", "mode": "hard", "trial": True})
    assert outcome_of(scene.state, request, 5, scene.memory) == (
        None, {"node": "a", "name": "a", "mode": "hard", "partitions": 1,
               "at_risk": []},
    )  # fmt: skip


def test_a_removal_of_a_dead_node_fails_it_over_and_it_stays_away() -> None:
    scene = Scene()
    assert member(ask(scene, "remove", nodes=["b"]), "b").state == "leaving"
    scene.lose("b")
    dead = member(ask(scene, "remove", nodes=["b"], now=True), "b")
    assert (dead.state, dead.by, dead.leaves) == ("failed", "hard", True)
    scene.set_node("b", state="failed", by="hard", leaves=True)
    with pytest.raises(ConditionError, match="has not come back") as caught:
        ask(scene, "rebalance", add=["b"])
    assert caught.value.code == "node_failed"
    scene.set_node("b", state="failed", leaves=False)
    assert member(ask(scene, "remove", nodes=["b"]), "b").leaves


def test_a_failed_node_that_came_back_is_added_again_and_a_removed_one_is_not() -> None:
    scene = Scene()
    scene.set_node("b", state="failed", by="auto", boots=0)
    assert member(ask(scene, "rebalance", add=["b"]), "b").state == "in"
    scene.set_node("b", state="out")
    with pytest.raises(ConditionError) as caught:
        ask(scene, "rebalance", add=["b"])
    assert caught.value.code == "removed"


def test_a_hard_fail_over_that_would_lose_acknowledged_writes_is_refused() -> None:
    scene = Scene(("a", "b"))
    scene.lose("a", "b")
    request = Request("r", "failover", {"node": "a", "mode": "hard"})
    with pytest.raises(ConditionError, match="majority and persisted") as caught:
        outcome_of(scene.state, request, 5, scene.memory)
    assert caught.value.code == "unsafe"
    forced = Request("r", "failover", {"node": "a", "mode": "force"})
    outcome = outcome_of(scene.state, forced, 5, scene.memory)
    assert outcome.txn is not None
    assert outcome.answer["at_risk"] == ["majority", "persisted"]
    scene = Scene()
    scene.lose("a")
    assert outcome_of(scene.state, request, 5, scene.memory).answer["at_risk"] == []


def test_settings_are_merged_and_a_bad_one_is_refused() -> None:
    scene = Scene()
    outcome = outcome_of(scene.state, Request("r", "settings", {"moves": 4}), 5)
    assert (outcome.answer["moves"], outcome.answer["auto_failover_max"]) == (4, 1)
    data = written(outcome.txn, SETTINGS)
    assert data is not None
    assert settings_from_json(data).moves == 4
    assert ask(scene, "settings", moves=2) is None
    for wrong in ({"moves": 0}, {"speed": 1}):
        with pytest.raises(UsageError) as caught:
            ask(scene, "settings", **wrong)
        assert caught.value.code == "bad_cluster_setting"
