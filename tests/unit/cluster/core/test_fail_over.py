"""Promotions: what they wait for, what they never do, and when a returning node is admitted."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.cluster.core.fail_over import (
    given_up,
    is_allowed,
    is_heard_above,
    must_leave,
    serving,
)
from millstream.cluster.core.memory import Promotion
from millstream.cluster.core.orders import Order, Reply
from millstream.cluster.core.quorums import judge_rows
from millstream.cluster.core.reports import no_copy
from millstream.cluster.core.settings import BRANCH_TRY_MS, Settings
from millstream.model.cluster_maps import MapKey
from support.cluster.scene import (
    ACTIVE,
    DEAD,
    HERE,
    KEY,
    REPLICA,
    Scene,
    copy_report,
    kinds,
    record_in,
)

WINDOW_MS = Settings().contact_window_ms


def of_kind(scene: Scene, kind: str) -> list[Order]:
    return [order for order in scene.decide().orders if order.kind == kind]


def failed(**others: Any) -> Scene:
    """`a` served, died and was failed over."""
    scene = Scene(**others)
    scene.lose("a")
    scene.set_node("a", state="failed", by="auto", boots=1)
    return scene


def promise(scene: Scene, *names: str, quiet_ms: int | None = 1200, **others: Any) -> None:
    """Have nodes give the promise that they are asked for."""
    promotion = scene.memory.promotions[HERE]
    for name in names:
        copy = copy_report(last_branch=promotion.branch, quiet_ms=quiet_ms, **others)
        order = Order("promise", "c1", name, scene.view().token, HERE, branch=promotion.branch)
        scene.memory.take(order, Reply("promised", copy, promotion.branch), scene.now_ms)


def test_all_voters_are_asked_for_one_branch_above_all_that_are_known() -> None:
    scene = failed()
    scene.hear("c", copy_report(last_branch=77, heard=99))
    orders = of_kind(scene, "promise")
    assert kinds(orders) == [("promise", "a"), ("promise", "b"), ("promise", "c")]
    assert {order.branch for order in orders} == {4096 | 7}
    assert of_kind(scene, "promise") == [], "a branch is asked for once"


def test_the_furthest_copy_is_activated_and_the_order_says_what_is_kept() -> None:
    scene = failed()
    scene.decide()
    promise(scene, "b", end=10)
    assert of_kind(scene, "activate") == [], "c has a session and may be serving"
    promise(scene, "c", end=12)
    (order,) = of_kind(scene, "activate")
    assert (order.to, order.end, order.kept) == ("c", 12, ("majority", "persisted"))


def test_nothing_is_begun_without_a_fresh_read() -> None:
    scene = failed()
    scene.is_fresh = False
    assert scene.decide().orders == []
    assert scene.memory.begun == {}


def test_nothing_is_asked_if_the_rule_cannot_be_met() -> None:
    scene = failed()
    scene.lose("c")
    decision = scene.decide()
    assert decision.orders == []
    assert any("not enough copies" in note for note in decision.notes)


def test_a_silent_node_is_not_replaced_before_it_was_failed_over() -> None:
    scene = Scene()
    scene.lose("a")
    scene.set(settings=Settings(auto_failover=False))
    decision = scene.decide()
    assert decision.orders == []
    assert "a is silent and was not failed over" in decision.notes


def test_a_node_that_answers_without_serving_is_replaced_at_once() -> None:
    scene = Scene()
    scene.hear("a", copy_report(REPLICA, is_intact=False))
    assert len(of_kind(scene, "promise")) == 3


def test_a_voter_with_a_session_that_is_not_reached_is_waited_for() -> None:
    scene = failed()
    scene.silence("c")
    assert of_kind(scene, "promise") == []
    assert set(scene.memory.unreached) == {"c"}


@pytest.mark.parametrize("quiet_ms", [None, 0, 200])
def test_the_contact_of_who_did_not_promise_is_waited_for(quiet_ms: int | None) -> None:
    scene = failed()
    scene.decide()
    promise(scene, "b", "c", quiet_ms=quiet_ms)
    scene.now_ms += WINDOW_MS - (quiet_ms or 0) - 1
    assert of_kind(scene, "activate") == []
    scene.now_ms += 1
    assert len(of_kind(scene, "activate")) == 1


def test_contact_is_not_waited_for_if_it_ended_long_ago_or_all_have_promised() -> None:
    scene = failed()
    scene.decide()
    promise(scene, "b", "c", quiet_ms=WINDOW_MS)
    assert len(of_kind(scene, "activate")) == 1
    every = Scene()
    every.hear("a", copy_report(REPLICA))
    every.decide()
    promise(every, "a", "b", "c", quiet_ms=0)
    assert len(of_kind(every, "activate")) == 1


def test_a_branch_is_given_to_one_copy_whoever_promises_later() -> None:
    scene = failed()
    scene.decide()
    promise(scene, "b", "c", end=10)
    (first,) = of_kind(scene, "activate")
    promise(scene, "a", end=99)
    (second,) = of_kind(scene, "activate")
    assert (second.to, second.end) == (first.to, first.end) == ("b", 10)


def test_a_stalled_promotion_is_repeated_in_a_larger_branch_and_stays_begun() -> None:
    scene = failed()
    scene.decide()
    branch = scene.memory.promotions[HERE].branch
    scene.now_ms += BRANCH_TRY_MS + WINDOW_MS + 1
    scene.decide()
    assert HERE in scene.memory.begun
    orders = of_kind(scene, "promise")
    assert len(orders) == 3
    assert orders[0].branch > branch
    assert scene.memory.promotions[HERE].try_ms == 2 * BRANCH_TRY_MS


def test_a_promotion_of_another_record_is_begun_again() -> None:
    scene = failed()
    scene.decide()
    scene.set_record(at=MapKey(1, 6))
    scene.decide()
    assert HERE not in scene.memory.promotions
    assert HERE in scene.memory.begun


def test_a_promotion_is_over_when_a_copy_serves_in_its_branch() -> None:
    scene = failed()
    scene.decide()
    branch = scene.memory.promotions[HERE].branch
    scene.hear("b", copy_report(ACTIVE, branch=branch))
    scene.hear("c", copy_report(last_branch=branch))
    decision = scene.decide()
    assert decision.orders == []
    assert (scene.memory.promotions, scene.memory.begun) == ({}, {})
    assert scene.memory.made == {HERE: branch}
    record = record_in(decision.write)
    assert record is not None
    assert (record.active, record.branch) == ("b", branch)


def test_what_was_begun_is_finished_though_the_old_copy_serves_again() -> None:
    scene = failed()
    scene.decide()
    scene.memory.promotions.clear()
    scene.set(live=Scene().state.live)
    scene.hear("a", copy_report(ACTIVE))
    assert len(of_kind(scene, "promise")) == 3


def test_a_reader_of_a_larger_branch_makes_the_serving_copy_promoted_afresh() -> None:
    scene = Scene()
    scene.hear("a", copy_report(ACTIVE, heard=5))
    assert is_heard_above(scene.memory, HERE, "a")
    assert len(of_kind(scene, "promise")) == 3


def test_copies_that_have_not_heard_of_the_record_are_told() -> None:
    scene = Scene(("b", "c", None), active="a")
    scene.set_record(active=None)
    for name in "bc":
        scene.hear(name, no_copy(0, MapKey(1, 1)))
    assert kinds(scene.decide().orders) == [("adopt", "b"), ("adopt", "c")]


# ---- force


def given_up_nodes(scene: Scene, *names: str) -> None:
    scene.lose(*names)
    for name in names:
        scene.set_node(name, state="failed", by="force", boots=1)


def test_force_replaces_given_up_copies_and_waits_for_the_others() -> None:
    scene = Scene()
    given_up_nodes(scene, "a", "b")
    assert given_up(scene.step(), scene.record) == {"a", "b"}
    assert len(of_kind(scene, "promise")) == 3
    other = Scene()
    given_up_nodes(other, "a")
    other.lose("b")
    assert of_kind(other, "promise") == [], "b was not given up"


def test_what_force_risks_is_told_to_the_copy() -> None:
    scene = Scene()
    given_up_nodes(scene, "a", "b")
    scene.decide()
    promise(scene, "c", quiet_ms=9000)
    assert of_kind(scene, "activate") == [], "the full window is waited for"
    scene.now_ms += WINDOW_MS
    (order,) = of_kind(scene, "activate")
    assert (order.to, order.kept) == ("c", ())


def test_nothing_is_kept_once_all_copies_that_counted_were_given_up() -> None:
    """The copy that begins anew is a whole row by itself; what it lacks was never asked of it."""
    scene = Scene(("c",), active=None)
    scene.decide()
    promise(scene, "c", quiet_ms=9000)
    scene.now_ms += WINDOW_MS
    (order,) = of_kind(scene, "activate")
    assert (order.to, order.kept) == ("c", ())


def test_a_given_up_node_that_has_a_session_is_not_given_up() -> None:
    scene = Scene()
    scene.set_node("a", state="failed", by="force", boots=0)
    assert given_up(scene.step(), scene.record) == frozenset()


def test_if_all_copies_that_count_are_given_up_the_furthest_other_one_begins_anew() -> None:
    scene = Scene(("a", "b"), nodes="abcd")
    given_up_nodes(scene, "a", "b")
    scene.hear("c", copy_report(end=5))
    scene.hear("d", copy_report(end=7))
    record = record_in(scene.decide().write)
    assert record is not None
    assert (record.rows, record.active, record.branch) == ((("d", None),), None, 1)
    scene.silence("c")
    assert record_in(scene.decide().write) is None, "c may have more"


def test_with_nothing_left_over_an_empty_copy_begins_anew() -> None:
    scene = Scene(("a",), nodes="abc")
    given_up_nodes(scene, "a")
    record = record_in(scene.decide().write)
    assert record is not None
    assert record.rows == (("b",),)


def test_loss_may_be_allowed_if_a_quorum_answers() -> None:
    scene = failed()
    scene.hear("b", copy_report(is_intact=False, is_whole=False))
    answers = scene.memory.answers(HERE, "bc")
    verdict = judge_rows(scene.record.rows, answers)
    assert not is_allowed(scene.step(), scene.record, answers, verdict)
    scene.set(settings=Settings(auto_failover_allow_loss=True))
    assert is_allowed(scene.step(), scene.record, answers, verdict)


def test_a_copy_of_a_failed_node_is_replaced_though_it_serves() -> None:
    scene = Scene()
    scene.set_node("a", state="failed", by="hard", boots=0)
    assert must_leave(scene.step(), HERE, scene.record, "a")
    assert len(of_kind(scene, "promise")) == 3
    promise(scene, "a", end=99)
    promise(scene, "b", "c")
    (order,) = of_kind(scene, "activate")
    assert order.to == "b", "not the failed one, though it is further"


def test_what_is_kept_is_judged_by_the_copies_that_may_win() -> None:
    scene = Scene()
    scene.set(settings=Settings(auto_failover_allow_loss=True))
    scene.set_node("a", state="failed", by="hard", boots=0)
    scene.decide()
    promise(scene, "a")
    promise(scene, "b", is_intact=False)
    promise(scene, "c")
    (order,) = of_kind(scene, "activate")
    assert order.kept == ("persisted",)


def test_a_failed_node_keeps_what_nobody_else_can_serve() -> None:
    scene = Scene(("a",), nodes="abc")
    scene.set_node("a", state="failed", by="hard", boots=0)
    assert not must_leave(scene.step(), HERE, scene.record, "a")
    assert of_kind(scene, "promise") == []


# ---- admission


def returned(scene: Scene, name: str = "a", **copy: Any) -> Scene:
    """A node has lost its session and has a new one."""
    scene.hear(name, copy_report(**copy), is_admitted=False)
    return scene


def test_a_node_is_admitted_if_its_copies_cannot_have_been_replaced() -> None:
    (order,) = of_kind(returned(Scene(), state=ACTIVE), "admit")
    assert (order.to, order.boots) == ("a", 1)
    replica = returned(Scene(), "b", state=REPLICA)
    assert kinds(of_kind(replica, "admit")) == [("admit", "b")]


def test_a_node_is_judged_in_the_session_that_it_reports() -> None:
    scene = Scene()
    scene.hear("a", copy_report(ACTIVE), is_admitted=False, boots=2)
    assert of_kind(scene, "admit") == []


def test_a_copy_that_was_replaced_is_fenced_before_its_node_is_admitted() -> None:
    scene = returned(Scene(), state=ACTIVE)
    scene.set_record(branch=6, active="b")
    scene.hear("b", copy_report(ACTIVE, branch=6))
    orders = scene.decide().orders
    assert ("fence", "a") in kinds(orders)
    assert ("admit", "a") not in kinds(orders)
    left = returned(Scene(("b", "c", None), active="b"), state=ACTIVE, branch=3)
    assert ("fence", "a") in kinds(left.decide().orders)


def test_without_the_answers_of_a_majority_it_is_promoted_afresh_or_not_at_all() -> None:
    scene = returned(Scene(), state=ACTIVE)
    scene.lose("b", "c")
    assert of_kind(scene, "admit") == []
    other = returned(Scene(), state=ACTIVE)
    other.hear("b", copy_report(last_branch=9))
    other.hear("c", copy_report(last_branch=9))
    orders = other.decide().orders
    assert ("admit", "a") not in kinds(orders)
    assert ("promise", "a") in kinds(orders)


def test_a_node_is_admitted_with_what_this_orchestrator_promoted() -> None:
    scene = returned(Scene(), state=ACTIVE)
    scene.lose("b", "c")
    scene.memory.made[HERE] = 1
    assert len(of_kind(scene, "admit")) == 1


def test_a_failed_node_is_not_admitted() -> None:
    scene = returned(Scene(), "b", state=REPLICA)
    scene.set_node("b", state="failed", by="hard", boots=0, since_ms=1_010_000)
    scene.set_record(active="b")
    assert of_kind(scene, "admit") == []


def test_no_node_is_admitted_while_its_partition_is_being_promoted() -> None:
    scene = returned(Scene(), state=ACTIVE)
    scene.memory.begun[HERE] = 1
    scene.memory.promotions[HERE] = Promotion(9, KEY, 2000, scene.now_ms)
    assert of_kind(scene, "admit") == []


def test_who_serves_is_known_from_reports() -> None:
    scene = Scene()
    assert serving(scene.step(), HERE, scene.record) == "a"
    scene.hear("a", copy_report(DEAD))
    assert serving(scene.step(), HERE, scene.record) is None
