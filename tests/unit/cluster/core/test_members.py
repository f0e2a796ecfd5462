"""Members: who fails and who returns, the limits of automatic fail-over, and plans."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from millstream.cluster.core.elements import (
    FAILOVER_COUNT,
    FAILOVERS,
    PLAN,
    NodeRecord,
    NodeState,
    Plan,
    node_path,
)
from millstream.cluster.core.members import (
    failed_record,
    is_done,
    is_silent,
    make_plan,
    tend_members,
)
from millstream.cluster.core.settings import FAILED_MS_MIN, SESSION_MS_MAX, Settings
from millstream.cluster.core.step import Decision, Step
from support.cluster.scene import Scene, copy_report, written

MINUTES_10 = 600_000


def member(decision: Decision, name: str) -> NodeRecord | None:
    data = written(decision.write, node_path(name))
    return None if data is None else msgspec.json.decode(data, type=NodeRecord)


def plan_in(decision: Decision) -> Plan | None:
    data = written(decision.write, PLAN)
    return msgspec.json.decode(data, type=Plan) if data else None


def states(decision: Decision, name: str = "a") -> NodeState | None:
    found = member(decision, name)
    return None if found is None else found.state


def replaced(scene: Scene, name: str, **changes: Any) -> Scene:
    scene.set_node(name, **changes)
    return scene


def test_a_silent_node_is_failed_over_counted_and_listed() -> None:
    scene = Scene()
    scene.lose("a")
    decision = scene.decide()
    found = member(decision, "a")
    assert found is not None
    assert (found.state, found.by, found.boots) == ("failed", "auto", 1)
    assert decision.write is not None
    words = [words[:4] for words in decision.write.changes]
    assert (b"COUNTER", b"INC", b"1", b"/.system/failover_count") in words
    assert any(
        word[:2] == (b"LIST", b"APPEND") and word[2] == FAILOVERS.encode() for word in words
    )


def test_a_time_out_above_that_of_sessions_is_waited_for() -> None:
    scene = Scene()
    scene.set(settings=Settings(session_ttl_ms=SESSION_MS_MAX + 20_000))
    scene.lose("a")
    begun = scene.view().now_ms
    for passed, wanted in ((0, None), (19_999, None), (20_000, "failed")):
        step = Step(scene.view()._replace(now_ms=begun + passed), scene.memory)
        txn = tend_members(step)
        assert (txn is not None) == (wanted is not None), passed
    assert scene.memory.silent == {"a": begun}
    tend_members(Step(Scene().view(), scene.memory))
    assert scene.memory.silent == {}, "it is heard again"


@pytest.mark.parametrize(
    ("settings", "count", "note"),
    [
        (Settings(auto_failover=False), 0, "auto_failover is off"),
        (Settings(), 1, "limit: a is silent, and 1 nodes were failed over"),
    ],
)
def test_the_limits_of_automatic_fail_over(settings: Settings, count: int, note: str) -> None:
    scene = Scene()
    scene.lose("a")
    scene.set(settings=settings, failover_count=count)
    decision = scene.decide()
    assert decision.write is None
    assert note in decision.notes


def test_after_a_start_of_all_nodes_nobody_is_failed_over_for_being_late() -> None:
    scene = Scene()
    scene.lose("a")
    step = Step(scene.view()._replace(starting=frozenset("a")), scene.memory)
    assert tend_members(step) is None
    assert any("just started" in note for note in step.decision.notes)
    heard = Step(scene.view()._replace(starting=frozenset("x")), scene.memory)
    assert tend_members(heard) is not None


def test_without_answers_of_a_majority_nobody_is_failed_over() -> None:
    scene = Scene(("a",), nodes="abc")
    scene.lose("b", "c")
    decision = scene.decide()
    assert decision.write is None
    assert "limit: no majority of the data nodes answers" in decision.notes


def test_nothing_about_members_is_decided_without_a_fresh_read() -> None:
    scene = Scene()
    scene.lose("a")
    scene.is_fresh = False
    assert scene.decide().write is None


def test_a_node_of_which_a_partition_cannot_be_promoted_is_left_alone() -> None:
    scene = Scene(("a", "b"), nodes="abc")
    scene.lose("a")
    scene.hear("b", copy_report(is_intact=False))
    decision = scene.decide()
    assert decision.write is None
    assert "unsafe: a is silent, and partition 0 needs it" in decision.notes
    scene.set(settings=Settings(auto_failover_allow_loss=True))
    assert states(scene.decide()) == "failed"


def test_a_node_whose_streams_are_heard_only_lost_coordination() -> None:
    scene = Scene()
    scene.lose("a")
    for name in "bc":
        scene.hear(name, copy_report(), broken={"a": name == "b"})
    assert not is_silent(scene.step(), "a")
    scene.hear("c", copy_report(), broken={"a": True})
    assert is_silent(scene.step(), "a")


def test_a_zone_that_fails_together_counts_once_if_it_may() -> None:
    scene = Scene(("c", "d", "e"), active="c", nodes="abcdef")
    for name in "ab":
        scene.set_node(name, zone="y")
    scene.lose("a", "b")
    assert [states(scene.decide(), name) for name in "ab"] == ["failed", None]
    scene.set(settings=Settings(auto_failover_zones=True))
    decision = scene.decide()
    assert [states(decision, name) for name in "ab"] == ["failed", "failed"]
    assert decision.write is not None
    assert (b"COUNTER", b"INC", b"1", FAILOVER_COUNT.encode()) in decision.write.changes


def test_a_zone_counts_once_though_its_nodes_fail_one_after_the_other() -> None:
    scene = Scene(("c", "d", "e"), active="c", nodes="abcdef")
    for name in "ab":
        scene.set_node(name, zone="y")
    scene.set_node("a", state="failed", by="auto", boots=1)
    scene.lose("a", "b")
    scene.set(failover_count=1)
    assert states(scene.decide(), "b") is None
    scene.set(settings=Settings(auto_failover_zones=True))
    assert states(scene.decide(), "b") == "failed"
    scene.set_node("f", zone="y")
    assert states(scene.decide(), "b") is None, "the zone is not gone"
    scene.set_node("f", zone="z")
    scene.set_node("a", by="hard")
    assert states(scene.decide(), "b") is None, "what an operator did was not counted"
    for name in "ab":
        scene.set_node(name, zone="", by="auto")
    assert states(scene.decide(), "b") is None, "no zone is no zone of all that have none"


def test_a_failed_node_returns_with_a_session_that_it_opened_later() -> None:
    scene = replaced(Scene(("b", "c"), active="b"), "a", state="failed", by="auto", boots=0)
    assert states(scene.decide()) == "in"
    scene.set(settings=Settings(rejoin="manual"))
    assert states(scene.decide()) is None
    old = replaced(Scene(("b", "c"), active="b"), "a", state="failed", by="hard", boots=1)
    decision = old.decide()
    assert states(decision) is None
    assert [(end.node, end.boots) for end in decision.ends] == [("a", 1)]


def test_a_failed_node_is_not_taken_back_before_its_partitions_were_promoted() -> None:
    scene = Scene(("a",), nodes="abc")
    scene.set_node("a", state="failed", by="hard", boots=0, since_ms=1_010_000)
    assert states(scene.decide()) is None
    scene.now_ms += FAILED_MS_MIN
    assert states(scene.decide()) == "in", "nobody else could serve them"


def test_a_node_that_joins_is_in_once_it_has_a_session() -> None:
    scene = replaced(Scene(("b", "c"), active="b"), "a", state="joining")
    assert states(scene.decide()) == "in"
    scene.lose("a")
    assert states(scene.decide()) is None


def test_a_leaving_node_is_out_when_nothing_names_it_and_it_has_nothing() -> None:
    scene = replaced(Scene(("b", "c"), active="b"), "a", state="leaving")
    assert states(scene.decide()) == "out"
    scene.hear("a", copy_report())
    assert states(scene.decide()) is None
    scene.silence("a")
    assert states(scene.decide()) is None, "it may have a copy that nobody was told of"


def test_a_leaving_node_is_not_out_while_it_may_be_of_the_group_that_has_the_state() -> None:
    scene = replaced(
        Scene(("b", "c"), active="b"), "a", state="leaving", roles=("data", "coord")
    )  # fmt: skip
    told = "a leaves once other nodes coordinate in its place"
    for group, note in (
        (None, "a leaves once it is known which nodes coordinate"),
        (frozenset("a"), told), (frozenset("abcde"), told),
    ):  # fmt: skip
        scene.coordinators = group
        decision = scene.decide()
        assert states(decision) is None
        assert note in decision.notes


def test_a_node_leaves_a_group_of_three_that_nobody_else_can_join() -> None:
    scene = Scene(("b", "c"), active="b")
    for name in "abc":
        scene = replaced(scene, name, roles=("data", "coord"))
    scene = replaced(scene, "a", state="leaving")
    scene.coordinators = frozenset("bcd")
    assert states(scene.decide()) == "out", "it coordinates no more"
    scene.coordinators = frozenset("abc")
    assert states(scene.decide()) == "out"
    scene.lose("b")
    assert states(scene.decide()) is None, "the others are no majority without it"


def test_a_failed_node_that_was_asked_to_leave_is_not_out_while_its_vote_is_needed() -> None:
    """Who is out may be switched off: with its vote the group would lose its majority."""
    scene = Scene(("b", "c"), active="b")
    for name in "abc":
        scene = replaced(scene, name, roles=("data", "coord"))
    scene = replaced(scene, "a", state="failed", by="auto", boots=1, leaves=True)
    scene.lose("a")
    scene.coordinators = frozenset("abd")
    assert states(scene.decide()) is None
    scene.coordinators = frozenset("bcd")
    assert states(scene.decide()) == "out"


def test_a_given_up_node_is_out_when_nothing_names_it() -> None:
    scene = replaced(Scene(("b", "c"), active="b"), "a", state="failed", by="force", boots=1)
    scene.lose("a")
    assert states(scene.decide()) == "out"
    scene.set_node("a", by="auto", since_ms=1_010_000)
    assert states(scene.decide()) is None, "it may return"


# ---- plans


def test_a_leaving_node_is_planned_away() -> None:
    scene = replaced(Scene(("a", "b"), nodes="abc"), "a", state="leaving")
    plan = plan_in(scene.decide())
    assert plan is not None
    assert (plan.kind, plan.id, plan.rows) == ("rebalance", 4, {"u1": (("b", "c"),)})
    assert plan.basis == {"b": "data@x", "c": "data@x"}


def test_copies_of_a_failed_node_are_made_anew_after_a_delay() -> None:
    scene = replaced(
        Scene(("b", "a"), active="b"), "a", state="failed", boots=1, since_ms=1_010_000
    )
    scene.lose("a")
    assert plan_in(scene.decide()) is None
    scene.now_ms += MINUTES_10
    plan = plan_in(scene.decide())
    assert plan is not None
    assert (plan.kind, plan.rows["u1"]) == ("replace", (("b", "c"),))
    scene.set(settings=Settings(replace_after_s=0))
    assert plan_in(scene.decide()) is None


def test_places_that_became_empty_are_filled_when_the_failed_node_returns() -> None:
    """A rebalance had left it out, and the others were too few."""
    scene = replaced(Scene(("b", None), active="b"), "a", state="failed", by="auto", boots=0)
    scene.set_node("c", state="failed", by="auto", boots=1)
    scene.lose("c")
    decision = scene.decide()
    assert states(decision) == "in"
    plan = plan_in(decision)
    assert plan is not None
    assert (plan.kind, plan.rows["u1"]) == ("replace", (("b", "a"),))
    scene.set(settings=Settings(replace_after_s=0))
    assert plan_in(scene.decide()) is None
    full = replaced(Scene(("b", "c"), active="b"), "a", state="failed", by="auto", boots=0)
    assert plan_in(full.decide()) is None, "nothing is missing"


def with_plan(scene: Scene, **changes: Any) -> Scene:
    made = make_plan(scene.state, "rebalance", 7, 5, "ann")
    assert made is not None
    scene.set(plan=replace(made, **changes))
    return scene


def test_a_plan_of_other_members_is_made_anew_before_anything_else() -> None:
    scene = with_plan(Scene(("a", "b")), basis={"a": "data@x", "z": "data@x"})
    plan = plan_in(scene.decide())
    assert plan is not None
    assert (plan.id, plan.kind, plan.started_ms, plan.by) == (8, "rebalance", 5, "ann")
    assert plan.basis == scene.state.basis


def test_a_plan_ends_when_every_partition_is_where_it_belongs() -> None:
    scene = with_plan(Scene(("a", "b", "c")))
    scene.set(failover_count=1)
    decision = scene.decide()
    assert written(decision.write, PLAN) == b""
    assert decision.write is not None
    assert (b"COUNTER", b"RESET", b"/.system/failover_count") in decision.write.changes


def test_the_count_is_not_reset_while_a_member_is_away() -> None:
    scene = with_plan(Scene(("a", "b", "c"), nodes="abcd"))
    scene.lose("d")
    scene.set(settings=Settings(auto_failover=False))
    decision = scene.decide()
    assert written(decision.write, PLAN) == b""
    assert decision.write is not None
    assert not any(words[:2] == (b"COUNTER", b"RESET") for words in decision.write.changes)


def test_a_plan_is_not_done_while_something_moves() -> None:
    scene = with_plan(Scene(("a", "b", "c")))
    assert scene.state.plan is not None
    for changes in ({"active": "b"}, {"building": ("z",)}, {"rows": (("a", "b"), ("a", "b"))}):
        other = Scene(("a", "b", "c"))
        other.set_record(**changes)
        assert not is_done(other.state, scene.state.plan)
    index = scene.state.index["u1"]
    moved = index._replace(records=(replace(index.records[0], owner="z"),))
    assert not is_done(dataclasses.replace(scene.state, index={"u1": moved}), scene.state.plan)


def test_a_cancelled_plan_ends_at_once_and_leaving_nodes_stay() -> None:
    scene = replaced(Scene(("a", "b"), nodes="abc"), "a", state="leaving")
    with_plan(scene, is_cancelled=True)
    decision = scene.decide()
    assert written(decision.write, PLAN) == b""
    assert states(decision) == "in"


def test_a_graceful_fail_over_ends_with_a_failed_node() -> None:
    scene = Scene(("b", "a"), active="b")
    made = make_plan(scene.state, "failover", 7, 5, "ann", ("a",))
    scene.set(plan=made)
    found = member(scene.decide(), "a")
    assert found is not None
    assert (found.state, found.by, found.boots) == ("failed", "graceful", 1)


def test_no_plan_is_made_without_data_nodes() -> None:
    scene = Scene(nodes="abc")
    for name in "abc":
        scene.set_node(name, state="leaving")
    assert make_plan(scene.state, "rebalance", 1, 0) is None


def test_index_parts_are_planned_over_index_nodes_only() -> None:
    scene = Scene(("a", "b"))
    for name, roles in (("b", ("data", "index")), ("c", ("index",))):
        scene.set_node(name, roles=roles)
    plan = make_plan(scene.state, "rebalance", 1, 0)
    assert plan is not None
    assert plan.index == {"u1": ("b",)}
    graceful = make_plan(scene.state, "failover", 1, 0, "", ("b",))
    assert graceful is not None
    assert graceful.index == {"u1": ("c",)}


def test_a_failed_record_names_the_session_it_failed_in() -> None:
    scene = Scene()
    scene.set(boots={"a": 5, "b": 1, "c": 1})
    assert failed_record(scene.state, "a", "hard", 9).boots == 1, "that which it has"
    scene.lose("a")
    assert failed_record(scene.state, "a", "hard", 9).boots == 5, "its last one"
