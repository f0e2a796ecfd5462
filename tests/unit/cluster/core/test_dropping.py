"""The end of dropped buckets: nobody has any of them, then nobody knows them."""

from __future__ import annotations

from msgspec.structs import replace

from millstream.cluster.core.elements import bucket_path, name_path
from millstream.cluster.core.reports import NodeReport, PartReport
from millstream.model.cluster_maps import NO_FLOOR
from support.cluster.scene import Scene


def dropping() -> Scene:
    scene = Scene()
    bucket = replace(scene.state.buckets["u1"], state="dropping")
    scene.set(buckets={"u1": bucket})
    return scene


def forgotten(scene: Scene) -> bool:
    write = scene.decide().write
    if write is None:
        return False
    paths = {words[1].decode() for words in write.changes if words[0] == b"DELETE"}
    return {bucket_path("u1"), name_path("b")} <= paths


def gone(scene: Scene, *names: str) -> None:
    for name in names:
        scene.memory.hear(NodeReport(name, 1, True, {}))
        scene.answered.add(name)


def test_a_bucket_is_forgotten_once_no_node_with_a_session_has_any_of_it() -> None:
    scene = dropping()
    assert not forgotten(scene)
    gone(scene, "a", "b")
    assert not forgotten(scene)
    assert any("c may still have some" in note for note in scene.decide().notes)
    part = PartReport("active", NO_FLOOR)
    scene.memory.hear(NodeReport("c", 1, True, {}, {"u1": {0: part}}))
    assert not forgotten(scene)
    gone(scene, "c")
    assert forgotten(scene)


def test_a_node_with_a_session_that_does_not_answer_is_waited_for_a_dead_one_is_not() -> None:
    scene = dropping()
    gone(scene, "a", "b")
    scene.silence("c")
    assert not forgotten(scene)
    scene.lose("c")
    scene.set_node("c", state="failed")
    assert forgotten(scene)
    scene.is_fresh = False
    assert not forgotten(scene)


def test_nothing_else_is_decided_about_a_dropped_bucket() -> None:
    scene = dropping()
    scene.lose("a")
    scene.set_node("a", state="failed")
    decision = scene.decide()
    assert decision.orders == []
    assert not scene.memory.begun
