"""Parts of the index: hand-over without a gap in what is shown, and lost owners."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from millstream.cluster.core.elements import Plan
from millstream.cluster.core.index_moving import IndexMoves, has_reached, may_answer
from millstream.cluster.core.memory import Stopped
from millstream.cluster.core.reports import PartReport
from millstream.cluster.core.settings import (
    FREEZE_WITHIN_SEQNOS,
    OUTSIDE_MS_MAX,
    OUTSIDE_TOLD_MS,
    PART_STOPPED_MS_MAX,
)
from millstream.model.cluster_maps import Floor, IndexMap, IndexRecord, MapKey, next_index_map
from millstream.model.position import FailoverEntry
from support.cluster.scene import ACTIVE, HERE, KEY, Scene, copy_report, kinds

FLOOR = Floor(1, 5)
OLD = MapKey(1, 1)


class IndexScene(Scene):
    """`a` owns the part; `b`, `c` are index nodes, too."""

    def __init__(self, owner: str | None = "a", building: str | None = None) -> None:
        super().__init__(("a", "b", "c"))
        for name in "abc":
            self.set_node(name, roles=("data", "index"))
        record = IndexRecord(KEY, owner, building, FLOOR)
        self.set(index={"u1": IndexMap(KEY, "u1", (record,))})
        self.hear("a", copy_report(ACTIVE, may_serve=True))
        for name in record.placed:
            self.index(name, state="active" if name == owner else "passive")

    @property
    def index_record(self) -> IndexRecord:
        return self.state.index["u1"].records[0]

    def index(self, name: str, seqno: int = 10, branch: int = 1, **others: Any) -> None:
        """Have a node report its part."""
        part = replace(PartReport("passive", Floor(branch, seqno), KEY), **others)
        report = self.memory.nodes[name]
        self.memory.hear(replace(report, parts={"u1": {0: part}}))

    def want(self, owner: str) -> IndexScene:
        rows = {"u1": (self.record.row,)}
        self.set(plan=Plan(1, "rebalance", self.state.basis, rows, {"u1": (owner,)}, 0))
        return self

    def tend(self) -> tuple[IndexRecord | None, list[tuple[str, str]]]:
        """Return the next record, and the orders about the index."""
        step = self.step()
        change = IndexMoves(step).tend(HERE, self.index_record)
        return (None if change is None else change.record), kinds(step.decision.orders)


def test_a_part_that_stays_needs_nothing() -> None:
    assert IndexScene().tend() == (None, [])


def test_nodes_are_told_of_the_record() -> None:
    scene = IndexScene(building="b")
    scene.index("a", at=OLD, state="active")
    scene.index("c", at=OLD, state="cleanup")
    scene.memory.parts["b"].clear()
    assert scene.want("b").tend()[1] == [("index", "a"), ("index", "b"), ("index", "c")]


def test_a_new_owner_builds_before_anything_else() -> None:
    record, orders = IndexScene().want("b").tend()
    assert record is not None
    assert (record.owner, record.building, orders) == ("a", "b", [])


def moving() -> IndexScene:
    return IndexScene(building="b").want("b")


def test_the_owner_freezes_when_the_new_part_is_near_and_stops_when_it_has_all() -> None:
    scene = moving()
    scene.index("a", 10 + FREEZE_WITHIN_SEQNOS + 1, state="active")
    assert scene.tend() == (None, [])
    scene.index("a", 10 + FREEZE_WITHIN_SEQNOS, state="active")
    assert scene.tend() == (None, [("freeze", "a")])
    scene.index("a", 10, state="active")
    assert scene.tend() == (None, [("stop", "a")])
    scene.index("b", 10, branch=2)
    assert scene.tend() == (None, [("stop", "a")])


def test_an_owner_that_froze_in_an_older_history_goes_on() -> None:
    scene = moving()
    scene.index("a", 21, state="active", is_frozen=True)
    scene.index("b", 20, branch=2)
    assert scene.tend() == (scene.index_record, [])


def waiting_for_spark(**coming: Any) -> IndexScene:
    """`b` has all of its own index, and not what a pipeline keeps."""
    scene = moving()
    scene.index("a", 9, state="active", designs="both", own_designs="own")
    others = {"designs": "own", "own_designs": "own", "own_reached": Floor(1, 9)} | coming
    scene.index("b", 0, outside_ms=0, **others)
    return scene


def test_views_that_spark_keeps_are_waited_for_while_a_pipeline_is_heard() -> None:
    scene = waiting_for_spark()
    for _ in range(3):
        assert scene.tend() == (None, [])
        scene.now_ms += OUTSIDE_MS_MAX
    scene.index("b", 9, designs="both", outside_ms=0)
    assert scene.tend() == (None, [("stop", "a")])
    assert not scene.memory.outside


@pytest.mark.parametrize("own", [Floor(1, 9), None])
def test_without_a_pipeline_a_part_is_handed_over_and_its_floor_stays(own: Floor | None) -> None:
    coming = {"designs": "other", "own_designs": "own", "own_reached": own}
    scene = waiting_for_spark(**coming)
    assert scene.tend() == (None, [])
    scene.index("b", 0, outside_ms=OUTSIDE_MS_MAX, **coming)
    assert scene.tend() == (None, []), "this orchestrator has not waited yet"
    scene.now_ms += OUTSIDE_MS_MAX
    step = scene.step()
    IndexMoves(step).tend(HERE, scene.index_record)
    assert kinds(step.decision.orders) == [("stop", "a")]
    scene.memory.stopped[HERE] = Stopped(KEY, Floor(1, 9), scene.now_ms)
    record, _ = scene.tend()
    assert record is not None
    assert (record.owner, record.floor) == ("b", Floor(1, 9))


def test_a_hand_over_that_waits_for_a_silent_pipeline_says_so() -> None:
    scene = waiting_for_spark()
    scene.tend()
    scene.now_ms += OUTSIDE_TOLD_MS
    coming = {"designs": "own", "own_designs": "own", "outside_ms": OUTSIDE_TOLD_MS}
    scene.index("b", 0, **coming)
    step = scene.step()
    IndexMoves(step).tend(HERE, scene.index_record)
    assert any("pipeline" in note for note in step.decision.notes)


def test_indexes_of_the_node_itself_are_waited_for_though_a_pipeline_is_gone() -> None:
    for coming in ({"own_reached": Floor(1, 8)}, {"own_designs": "none"}):
        scene = waiting_for_spark(**coming)
        scene.index("a", 9, state="active", designs="both", own_designs="own", is_frozen=True)
        scene.tend()
        scene.now_ms += OUTSIDE_MS_MAX
        others = {"designs": "own", "own_designs": "own", "own_reached": Floor(1, 9)} | coming
        scene.index("b", 0, outside_ms=OUTSIDE_MS_MAX, **others)
        assert ("stop", "a") not in scene.tend()[1]


def test_parts_of_other_design_documents_are_not_equal() -> None:
    scene = moving()
    scene.index("b", designs="d1")
    assert scene.tend() == (None, [])


def test_the_map_names_the_new_owner_once_it_has_what_the_old_one_stopped_at() -> None:
    scene = moving()
    scene.memory.stopped[HERE] = Stopped(KEY, Floor(1, 12), scene.now_ms)
    assert scene.tend() == (None, [])
    scene.index("b", 12)
    record, _ = scene.tend()
    assert record is not None
    assert (record.owner, record.building, record.floor) == ("b", None, Floor(1, 12))


def test_a_stop_counts_for_the_record_under_which_it_was_given() -> None:
    scene = moving()
    scene.memory.stopped[HERE] = Stopped(OLD, Floor(1, 9), scene.now_ms)
    assert scene.tend() == (None, [("stop", "a")])


def test_if_the_new_part_does_not_catch_up_the_owner_goes_on() -> None:
    scene = moving()
    scene.memory.stopped[HERE] = Stopped(KEY, Floor(1, 12), scene.now_ms)
    scene.now_ms += PART_STOPPED_MS_MAX + 1
    record, _ = scene.tend()
    assert record == scene.index_record
    assert next_index_map(scene.state.index["u1"], {0: record}).records[0].at > KEY


@pytest.mark.parametrize("held", [{"state": "passive"}, {"state": "active", "is_frozen": True}])
def test_an_owner_that_was_held_for_a_move_that_is_over_goes_on(held: dict[str, Any]) -> None:
    scene = IndexScene()
    scene.index("a", **held)
    assert scene.tend()[0] == scene.index_record
    scene.index("a", at=OLD, **held)
    assert scene.tend()[0] is None, "it has not heard of the record yet"


def test_a_floor_that_is_handed_over_never_falls() -> None:
    scene = moving()
    scene.memory.stopped[HERE] = Stopped(KEY, Floor(1, 2), scene.now_ms)
    record, _ = scene.tend()
    assert record is not None
    assert record.floor == FLOOR


# ---- lost owners


def lost(building: str | None = "b") -> IndexScene:
    scene = IndexScene(building=building)
    scene.set_node("a", roles=("index",))
    scene.set_record(rows=(("b", "c"),), active="b")
    scene.lose("a")
    scene.hear("b", copy_report(ACTIVE, end=20, may_serve=True))
    scene.index("b", 3)
    return scene


def test_a_lost_owner_is_replaced_by_the_passive_part_with_the_floor_of_who_serves() -> None:
    scene = lost()
    step = scene.step()
    change = IndexMoves(step).tend(HERE, scene.index_record)
    assert change is not None
    assert (change.record.owner, change.record.floor, change.lost) == ("b", Floor(1, 20), "a")


def test_without_a_passive_part_one_is_built_first() -> None:
    record, _ = lost(building=None).tend()
    assert record is not None
    assert (record.owner, record.building) == ("a", "b")


def test_the_floor_comes_from_a_copy_that_may_serve_and_answers_now() -> None:
    scene = lost()
    scene.hear("b", copy_report(ACTIVE, end=20, may_serve=False))
    scene.index("b", 3)
    assert scene.tend()[0] is None
    old = lost()
    old.is_fresh = False
    assert old.tend()[0] is None


def test_a_floor_counts_for_the_session_that_was_lost() -> None:
    scene = lost()
    scene.memory.floors[HERE] = (KEY, 1, Floor(1, 15))
    record, _ = scene.tend()
    assert record is not None
    assert record.floor == Floor(1, 15)
    scene.set(boots={"a": 2, "b": 1, "c": 1})
    record, _ = scene.tend()
    assert record is not None
    assert record.floor == Floor(1, 20)


def test_a_part_without_an_owner_gets_one() -> None:
    scene = IndexScene(owner=None)
    record, _ = scene.tend()
    assert record is not None
    assert record.building == "a"


def test_with_no_index_node_nothing_is_written() -> None:
    scene = IndexScene()
    for name in "abc":
        scene.set_node(name, roles=("data",))
    scene.set(live={})
    assert scene.tend()[0] is None


def test_a_passive_part_is_kept_if_the_bucket_wants_one() -> None:
    scene = IndexScene()
    bucket = replace(scene.state.buckets["u1"], index_replicas=1)
    scene.set(buckets={"u1": bucket})
    record, _ = scene.tend()
    assert record is not None
    assert (record.owner, record.building) == ("a", "b")
    kept = IndexScene(building="c")
    kept.set(buckets={"u1": bucket})
    assert kept.tend() == (None, [])
    kept.set(buckets={"u1": replace(bucket, index_replicas=0)})
    record, _ = kept.tend()
    assert record is not None
    assert record.building is None


# ---- what a node answers

LOG = (FailoverEntry(3, 8, 3), FailoverEntry(2, 4, 2), FailoverEntry(1, 0, 1))
"""Branch 2 began after 4 changes, branch 3 after 8."""


@pytest.mark.parametrize(
    ("seqno", "floor", "reached"),
    [
        (9, Floor(3, 9), True),
        (8, Floor(3, 9), False),
        (8, Floor(2, 20), True),
        (7, Floor(2, 20), False),
        (7, Floor(2, 7), True),
        (4, Floor(1, 20), True),
        (3, Floor(1, 20), False),
        (99, Floor(4, 1), False),
    ],
)
def test_a_part_has_reached_a_floor_up_to_where_the_histories_part(
    seqno: int, floor: Floor, reached: bool
) -> None:
    assert has_reached(LOG, seqno, floor) == reached


@given(st.integers(0, 20), st.integers(1, 4), st.integers(0, 20), st.integers(0, 5))
def test_who_has_reached_a_floor_stays_there(seqno: int, branch: int, at: int, more: int) -> None:
    if has_reached(LOG, seqno, Floor(branch, at)):
        assert has_reached(LOG, seqno + more, Floor(branch, at))


RECORD = IndexRecord(KEY, "a", "b", FLOOR)
PART = PartReport("active", Floor(1, 9), KEY)


def test_an_owner_answers_by_a_record_that_is_not_older_than_what_it_is_asked_by() -> None:
    newer = replace(RECORD, at=MapKey(1, 9))
    assert may_answer("a", RECORD, RECORD, PART)
    assert may_answer("a", replace(RECORD, at=OLD), RECORD, PART)
    assert not may_answer("a", newer, RECORD, PART)
    assert not may_answer("b", RECORD, RECORD, PART)
    assert not may_answer("a", RECORD, None, PART)
    assert not may_answer("a", RECORD, RECORD, None)


@pytest.mark.parametrize(
    "changes", [{"state": "passive"}, {"state": "cleanup"}, {"has_floor": False}, {"at": OLD}]
)
def test_a_part_that_is_not_active_or_below_its_floor_does_not_answer(
    changes: dict[str, Any],
) -> None:
    assert not may_answer("a", RECORD, RECORD, replace(PART, **changes))
