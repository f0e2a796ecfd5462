"""A step: who is waited for too long loses its session, unless the orchestrator is cut off."""

from __future__ import annotations

from millstream.cluster.core.settings import UNREACHED_MS_MAX
from support.cluster.scene import HERE, TOKEN, Scene


def ended_after(scene: Scene, ms: int) -> list[str]:
    for now_ms in (scene.now_ms, scene.now_ms + ms):
        scene.now_ms = now_ms
        step = scene.step()
        step.wait_for(["b"])
        step.end_sessions()
    return [end.node for end in step.decision.ends]


def test_a_session_is_ended_after_it_was_waited_for() -> None:
    scene = Scene()
    scene.silence("b")
    assert ended_after(scene, UNREACHED_MS_MAX - 1) == []
    assert ended_after(scene, UNREACHED_MS_MAX) == ["b"]


def test_the_wait_begins_anew_when_the_node_answers() -> None:
    scene = Scene()
    scene.silence("b")
    assert ended_after(scene, UNREACHED_MS_MAX - 1) == []
    scene.answered.add("b")
    scene.step().end_sessions()
    scene.answered.discard("b")
    assert ended_after(scene, UNREACHED_MS_MAX - 1) == []


def test_an_orchestrator_that_reaches_no_majority_ends_no_session() -> None:
    scene = Scene()
    scene.silence("b", "c")
    assert ended_after(scene, 2 * UNREACHED_MS_MAX) == []
    alone = Scene()
    alone.silence("b")
    alone.is_fresh = False
    assert ended_after(alone, 2 * UNREACHED_MS_MAX) == []


def test_a_node_without_a_session_is_not_waited_for() -> None:
    scene = Scene()
    scene.lose("b")
    assert ended_after(scene, 2 * UNREACHED_MS_MAX) == []


def test_orders_carry_cluster_token_and_record_and_a_note_is_made_once() -> None:
    scene = Scene()
    step = scene.step()
    step.order("promise", "b", HERE, scene.record, branch=9)
    (order,) = step.decision.orders
    assert (order.cluster, order.token, order.record, order.branch) == (
        "c1", TOKEN, scene.record, 9,
    )  # fmt: skip
    step.note("why")
    step.note("why")
    assert step.decision.notes == ["why"]
