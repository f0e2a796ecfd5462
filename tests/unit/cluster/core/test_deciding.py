"""Steps of a whole cluster: what comes first, and schedules with faults that end well."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from millstream.cluster.core.elements import (
    NOT_RECOVERED,
    PLAN,
    Plan,
    index_map_path,
    node_path,
)
from millstream.cluster.core.memory import Stopped
from millstream.cluster.core.reports import PartReport
from millstream.model.cluster_maps import DataMap, Floor, IndexMap, IndexRecord
from millstream.vsr.core.versions import Version
from simulators.cluster.plants import planted
from simulators.cluster.schedules import Schedule, run
from support.cluster.scene import (
    ACTIVE,
    HERE,
    KEY,
    REPLICA,
    Scene,
    copy_report,
    record_in,
    written,
)

SEEDS, STEPS = 12, 300


def test_a_state_with_the_token_of_another_orchestrator_is_not_acted_upon() -> None:
    scene = Scene()
    scene.lose("a")
    scene.set(token=Version(1, 1, 10))
    decision = scene.decide()
    assert decision.is_deposed
    assert (decision.orders, decision.write, decision.ends) == ([], None, [])


def test_a_state_that_was_restored_is_not_acted_upon_and_begun_promotions_are_forgotten() -> None:
    scene = Scene()
    scene.lose("a")
    scene.set_node("a", state="failed")
    scene.decide()
    assert scene.memory.begun
    scene.set(epoch=1 << 16)
    decision = scene.decide()
    assert (decision.orders, decision.write, decision.ends) == ([], None, [])
    assert decision.notes == [NOT_RECOVERED]
    assert not scene.memory.begun
    assert not scene.memory.promotions


def test_a_healthy_cluster_needs_nothing() -> None:
    decision = Scene().decide()
    assert (decision.orders, decision.write, decision.ends, decision.notes) == ([], None, [], [])


def unsettled() -> Scene:
    """All kinds of writes are wanted: `b` serves, `d` returns, the plan moves a copy."""
    scene = Scene(("a", "b"), nodes="abcd")
    scene.set_node("d", state="failed", by="auto", boots=0)
    basis = dict.fromkeys("abcd", "data@x")
    scene.set(plan=Plan(1, "rebalance", basis, {"u1": (("a", "c"),)}, {"u1": (None,)}, 0))
    return scene


def test_who_serves_is_written_before_members_and_these_before_moves() -> None:
    scene = unsettled()
    scene.hear("a", copy_report())
    scene.hear("b", copy_report(ACTIVE))
    first = scene.decide().write
    record = record_in(first)
    assert record is not None
    assert (record.active, record.building) == ("b", ())
    second = unsettled().decide().write
    assert record_in(second) is None
    assert written(second, node_path("d")) is not None
    last = unsettled()
    last.set_node("d", state="in", by="")
    third = last.decide().write
    assert written(third, PLAN) is None
    record = record_in(third)
    assert record is not None
    assert record.building == ("c",)


def test_an_index_part_that_nobody_answers_for_comes_before_members_and_moves() -> None:
    scene = unsettled()
    for name in "abc":
        scene.set_node(name, roles=("data", "index"))
    scene.set(index={"u1": IndexMap(KEY, "u1", (IndexRecord(KEY, "a", "b"),))})
    scene.set(plan=replace(scene.state.plan, basis=scene.state.basis, index={"u1": ("b",)}))
    for name, state in (("a", "passive"), ("b", "passive")):
        part = PartReport(state, Floor(1, 9), KEY)
        scene.hear(name, copy_report(ACTIVE if name == "a" else REPLICA), parts={"u1": {0: part}})
    path = index_map_path("u1")
    assert written(scene.decide().write, path) is None, "the part may still answer"
    scene.memory.stopped[HERE] = Stopped(KEY, Floor(1, 9), scene.now_ms)
    assert written(scene.decide().write, path) is not None
    scene.hear("a", copy_report())
    scene.hear("b", copy_report(ACTIVE))
    assert record_in(scene.decide().write) is not None, "who serves comes first"


def test_one_write_changes_any_number_of_records_of_one_bucket() -> None:
    scene = Scene(("a", "b"))
    record = scene.record
    maps = {
        uuid: DataMap(KEY, uuid, tuple(replace(record, active=None) for _ in range(3)))
        for uuid in ("u1", "u2")
    }
    index = {uuid: IndexMap(KEY, uuid, scene.state.index["u1"].records * 3) for uuid in maps}
    buckets = dict.fromkeys(maps, replace(scene.state.buckets["u1"], partitions=3))
    scene.state = dataclasses.replace(scene.state, data=maps, index=index, buckets=buckets)
    for name in "ab":
        copy = copy_report(ACTIVE) if name == "a" else copy_report()
        report = scene.memory.nodes[name]
        copies = {uuid: dict.fromkeys(range(3), copy) for uuid in maps}
        scene.memory.hear(replace(report, copies=copies))
    write = scene.decide().write
    assert write is not None
    assert len(write.changes) == 1
    assert (written(write) or b"").count(b'"active":0') == 3


def test_whatever_happens_nothing_is_lost_and_the_cluster_is_whole_again() -> None:
    seen: set[str] = set()
    for seed in range(SEEDS):
        schedule = Schedule(seed)
        schedule.run(STEPS)
        seen |= set(schedule.world.counts)
    assert {"promise", "activate", "take_over", "taken over", "remove", "admit", "fence"} <= seen


@pytest.mark.parametrize(
    "name",
    [
        "a row is replaced in one step",
        "the copy of a branch is chosen anew",
        "a copy is removed without a look at the record",
    ],
)
def test_a_planted_mistake_is_found(name: str) -> None:
    with planted(name) as seed:
        assert run(seed) is not None
    assert run(seed) is None, "it is the mistake that was found"
