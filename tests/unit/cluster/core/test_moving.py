"""Moves of a partition: each step under its condition, back and forth, within bounds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from millstream.cluster.core.elements import Plan
from millstream.cluster.core.moving import Moves, valid_plan
from millstream.cluster.core.reports import no_copy
from millstream.cluster.core.settings import HAND_OVER_MS, TAKE_OVERS_MAX, Settings
from millstream.model.cluster_maps import ROWS_MAX, DataMap, DataRecord, MapKey
from millstream.model.rows import Row
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

OLD = MapKey(1, 4)
JOINT = {"since": KEY, "active": "a"}


def planned(scene: Scene, *rows: Row, **others: Any) -> Scene:
    plan = Plan(1, "rebalance", scene.state.basis, {"u1": rows}, {"u1": (None,) * len(rows)}, 0)
    scene.set(plan=replace(plan, **others))
    return scene


def written(scene: Scene) -> DataRecord | None:
    return record_in(scene.decide().write)


def test_new_copies_are_built_before_they_count() -> None:
    record = written(planned(Scene(("a", "b"), nodes="abcd"), ("c", "d")))
    assert record is not None
    assert (record.rows, record.building) == ((("a", "b"),), ("c", "d"))


@pytest.mark.parametrize(
    "changes",
    [{"is_intact": False}, {"is_whole": False}, {"branch": 0, "last_branch": 0}, {"at": OLD}],
)
def test_a_copy_joins_once_it_has_what_it_owes_and_knows_the_record(
    changes: dict[str, Any],
) -> None:
    scene = planned(Scene(("a", "b"), building=("c",)), ("c", "a"))
    scene.hear("c", copy_report(**changes))
    assert written(scene) is None
    scene.hear("c", copy_report())
    record = written(scene)
    assert record is not None
    assert record.rows == (("a", "b"), ("c", "a"))
    assert (record.building, record.since) == ((), MapKey(1, 6))


def test_the_wanted_node_is_ordered_to_take_over_and_then_the_record_says_so() -> None:
    scene = planned(Scene(("a", "b"), ("b", "a"), **JOINT), ("b", "a"))
    assert kinds(scene.decide().orders) == [("take_over", "b")]
    scene.hear("a", copy_report(DEAD))
    scene.hear("b", copy_report(ACTIVE))
    decision = scene.decide()
    record = record_in(decision.write)
    assert record is not None
    assert (record.active, record.rows) == ("b", (("a", "b"), ("b", "a")))
    scene.set_record(active="b")
    assert ("fence", "a") in kinds(scene.decide().orders), "a dead copy follows"


def left(scene: Scene, **copy: Any) -> DataRecord | None:
    scene.hear("b", copy_report(ACTIVE, is_confirmed=True, **copy))
    return written(scene)


def joint() -> Scene:
    rows: tuple[Row, ...] = (("a", "c", "d"), ("b", "c", "d"))
    return planned(Scene(*rows, nodes="abcd", since=KEY, active="b"), rows[1])


def test_the_old_row_is_left_when_its_copies_know_and_the_new_one_has_everything() -> None:
    record = left(joint())
    assert record is not None
    assert (record.rows, record.since) == ((("b", "c", "d"),), MapKey(0, 0))


def test_the_old_row_stays_until_the_new_one_is_confirmed() -> None:
    scene = joint()
    scene.hear("b", copy_report(ACTIVE))
    assert written(scene) is None
    assert left(joint(), at=OLD) is None


@pytest.mark.parametrize("changes", [{"at": OLD}, {"last_branch": 5}])
def test_the_old_row_stays_while_a_majority_of_it_may_follow_another(
    changes: dict[str, Any],
) -> None:
    scene = joint()
    scene.set_record(branch=1)
    for name in "ac":
        scene.hear(name, copy_report(**changes))
    scene.lose("a", "c")
    assert left(scene) is None


def test_a_copy_that_does_not_know_must_have_no_session() -> None:
    scene = joint()
    scene.hear("a", copy_report(at=OLD))
    assert left(scene) is None
    scene.lose("a")
    scene.set(settings=Settings(auto_failover=False))
    assert left(scene) is not None


def test_copies_that_no_record_places_are_removed_after_the_row_was_left() -> None:
    moving = joint()
    assert ("remove", "a") not in kinds(moving.decide().orders)
    scene = Scene(("b", "c"), active="b")
    scene.hear("a", copy_report())
    assert kinds(scene.decide().orders) == [("remove", "a")]


def test_another_target_adds_another_row() -> None:
    rows: tuple[Row, ...] = (("a", "b"), ("b", "c"))
    scene = planned(Scene(*rows, nodes="abc", **JOINT), ("a", "c"))
    record = written(scene)
    assert record is not None
    assert record.rows == (*rows, ("a", "c"))


def test_more_replicas_are_another_row() -> None:
    scene = planned(Scene(("a", "b"), building=("c",)), ("a", "b", "c"))
    scene.hear("c", copy_report())
    record = written(scene)
    assert record is not None
    assert record.rows == (("a", "b"), ("a", "b", "c"))


def handed() -> Scene:
    """`b` was asked to take the partition over from `a`, and nobody serves it now."""
    scene = planned(Scene(("a", "b"), ("b", "a"), **JOINT), ("b", "a"))
    assert kinds(scene.decide().orders) == [("take_over", "b")]
    scene.hear("a", copy_report(DEAD))
    return scene


def test_a_take_over_under_way_is_no_reason_for_a_promotion() -> None:
    scene = handed()
    assert scene.decide().orders == []
    scene.hear("b", copy_report(ACTIVE))
    record = written(scene)
    assert record is not None
    assert (record.active, record.branch) == ("b", 1)


def test_a_take_over_that_lasts_or_has_lost_a_node_ends_in_a_promotion() -> None:
    scene = handed()
    scene.now_ms += HAND_OVER_MS
    assert kinds(scene.decide().orders) == [("promise", "a"), ("promise", "b")]
    scene = handed()
    scene.lose("a")
    scene.set_node("a", state="failed", by="hard", boots=1)
    scene.set(settings=Settings(auto_failover_allow_loss=True))
    assert ("promise", "b") in kinds(scene.decide().orders)


def test_rows_in_force_are_bounded() -> None:
    pairs = [(first, second) for first in "abcde" for second in "abcde" if first < second]
    rows: tuple[Row, ...] = (*pairs[: ROWS_MAX - 1], ("b", "a"))
    scene = planned(Scene(*rows, nodes="abcde", **JOINT), ("a", "e"))
    assert written(scene) is None
    assert kinds(scene.decide().orders) == [("take_over", "b")]


def test_rows_that_demand_nothing_more_are_left_out_when_one_is_added() -> None:
    rows: tuple[Row, ...] = (("a", "b"), ("b", "a"), ("b", "c"))
    record = written(planned(Scene(*rows, **JOINT), ("a", "c")))
    assert record is not None
    assert record.rows == (("a", "b"), ("b", "c"), ("a", "c"))
    assert record.since == record.at


def test_a_cancelled_move_adds_the_first_row_led_by_who_serves() -> None:
    rows: tuple[Row, ...] = (("a", "b"), ("b", "c"))
    scene = Scene(*rows, **JOINT)
    record = written(scene)
    assert record is not None
    assert record.rows == (*rows, ("a", "b"))
    done = Scene(*rows, since=KEY, active="b")
    done.hear("b", copy_report(ACTIVE))
    record = written(done)
    assert record is not None
    assert record.rows[-1] == ("b", "a")


def test_a_cancelled_plan_counts_as_none_before_it_is_removed() -> None:
    rows: tuple[Row, ...] = (("a", "b"), ("b", "c"))
    scene = planned(Scene(*rows, **JOINT), ("b", "c"), is_cancelled=True)
    new = Moves(scene.step()).tend(HERE, scene.record, "a")
    assert new is not None
    assert new.rows == (*rows, ("a", "b"))


def test_a_cancelled_move_adds_its_row_once() -> None:
    rows: tuple[Row, ...] = (("a", "b"), ("b", "c"), ("b", "a"))
    scene = Scene(*rows, **JOINT)
    assert written(scene) is None
    assert kinds(scene.decide().orders) == [("take_over", "b")]


def test_without_a_plan_a_promoted_copy_stays_the_one_that_serves() -> None:
    scene = Scene(("a", "b"), active="b")
    assert kinds(scene.decide().orders) == []
    assert written(scene) is None


def test_without_a_plan_copies_being_built_are_left_to_be_removed() -> None:
    scene = Scene(("a", "b"), building=("c",))
    record = written(scene)
    assert record is not None
    assert record.building == ()


def test_a_plan_of_other_members_moves_nothing() -> None:
    scene = planned(Scene(("a", "b")), ("b", "c"), basis={"a": "data@x"})
    assert valid_plan(scene.state) is None
    moves = Moves(scene.step())
    assert moves.tend(HERE, scene.record, "a") is None
    cancelled = planned(Scene(("a", "b")), ("b", "c"), is_cancelled=True)
    assert valid_plan(cancelled.state) is None


def test_copies_are_told_of_the_record_and_of_the_branch_they_do_not_know() -> None:
    scene = Scene(nodes="abcd")
    scene.set_record(branch=5)
    scene.hear("a", copy_report(ACTIVE, branch=5))
    scene.hear("b", copy_report(at=OLD))
    scene.hear("d", no_copy(0, OLD))
    orders = scene.decide().orders
    assert kinds(orders) == [("adopt", "b"), ("fence", "c")]
    assert next(one.branch for one in orders if one.kind == "fence") == 5


def test_given_up_copies_become_empty_places_once_another_serves() -> None:
    scene = Scene(("a", "b", "c"), ("b", "a", "c"), since=KEY, active="b")
    scene.hear("b", copy_report(ACTIVE))
    scene.lose("a")
    scene.set_node("a", state="failed", by="force", boots=1, since_ms=1_000_000)
    record = written(scene)
    assert record is not None
    assert record.rows == (("b", "c", None), ("b", None, "c"))
    alone = Scene(("a",), ("b",), since=KEY, active="b")
    alone.hear("b", copy_report(ACTIVE))
    alone.lose("a")
    alone.set_node("a", state="failed", by="force", boots=1, since_ms=1_000_000)
    record = written(alone)
    assert record is not None
    assert record.rows == (("b",),)


def many(count: int, nodes: str = "abcd", **others: Any) -> Scene:
    """Return a scene of so many partitions, all on `a` and `b`."""
    scene = Scene(("a", "b"), nodes=nodes, **others)
    record = scene.record
    scene.set(
        data={"u1": DataMap(KEY, "u1", (record,) * count)},
        buckets={"u1": replace(scene.state.buckets["u1"], partitions=count)},
    )
    for name in nodes:
        copy = copy_report(ACTIVE if name == record.active else REPLICA)
        if name not in record.placed:
            copy = no_copy(0, KEY)
        report = scene.memory.nodes[name]
        scene.memory.hear(replace(report, copies={"u1": dict.fromkeys(range(count), copy)}))
    return scene


def test_builds_are_bounded_per_node_in_and_out() -> None:
    scene = planned(many(8), *[("c", "d")] * 8)
    step = scene.step()
    moves, built = Moves(step), 0
    for partition in range(8):
        new = moves.tend(HERE._replace(partition=partition), scene.record, "a")
        built += new is not None and new.building == ("c", "d")
    assert built == Settings().moves
    busy = dataclasses.replace(
        scene.state,
        data={"u1": DataMap(KEY, "u1", (replace(scene.record, building=("c",)),) * 2)},
    )
    scene.set(data=busy.data)
    moves = Moves(scene.step())
    assert (moves.coming, moves.going) == ({"c": 2}, {"a": 2})


def test_copies_that_are_not_wanted_any_more_hold_nobody_up() -> None:
    scene = many(2)
    scene.set(settings=Settings(moves=1))
    records = tuple(replace(scene.record, building=(name,)) for name in "cd")
    scene.set(data={"u1": DataMap(KEY, "u1", records)})
    planned(scene, ("a", "d"), ("a", "c"))
    moves = Moves(scene.step())
    for partition in (0, 1):
        new = moves.tend(HERE._replace(partition=partition), records[partition], "a")
        assert new is not None
        assert new.building != records[partition].building


def test_take_overs_are_bounded_per_node() -> None:
    rows: tuple[Row, ...] = (("a", "b"), ("b", "a"))
    scene = many(9)
    scene.set(data={"u1": DataMap(KEY, "u1", (replace(scene.record, rows=rows, since=KEY),) * 9)})
    planned(scene, *[rows[1]] * 9)
    orders = scene.decide().orders
    assert [order.kind for order in orders] == ["take_over"] * TAKE_OVERS_MAX


def test_a_node_without_space_builds_nothing_and_it_is_said() -> None:
    scene = planned(Scene(("a", "b")), ("a", "c"))
    scene.hear("c", no_copy(0, KEY), has_space=False)
    decision = scene.decide()
    assert decision.write is None
    assert any(note.startswith("no_space") for note in decision.notes)
