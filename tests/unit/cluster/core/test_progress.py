"""What a plan moves, how far it is, and what it waits for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from millstream.cluster.core.elements import Plan
from millstream.cluster.core.members import make_plan
from millstream.cluster.core.orders import Place
from millstream.cluster.core.progress import (
    ESTIMATE_MS,
    Progress,
    Sample,
    left_s,
    moves_of,
    progress_of,
    stalled,
)
from millstream.cluster.core.settings import STALLED_AFTER_MS
from support.cluster.scene import HERE, REPLICA, Scene, copy_report


def plan_of(scene: Scene) -> Plan:
    plan = make_plan(scene.state, "rebalance", 1, 0)
    assert plan is not None
    return plan


def leaving(scene: Scene, name: str) -> Plan:
    scene.set_node(name, state="leaving")
    plan = plan_of(scene)
    scene.set(plan=plan)
    return plan


def test_moves_count_copies_active_ones_and_partitions_with_fewer_copies() -> None:
    scene = Scene(("a", "b"))
    assert moves_of(scene.state, leaving(scene, "a")) == {
        "partitions": 1, "copies": 1, "active": 1, "index": 0, "fewer": 0, "one_zone": 0,
        "bytes": None,
    }  # fmt: skip
    scene = Scene(("a", "b"), nodes="ab")
    assert moves_of(scene.state, leaving(scene, "b"))["fewer"] == 1


def test_moves_tell_the_bytes_of_copies_to_build_unless_nobody_knows_them() -> None:
    scene = Scene(("a", "b"))
    assert moves_of(scene.state, plan_of(scene), scene.memory)["bytes"] == 0
    plan = leaving(scene, "b")
    assert moves_of(scene.state, plan, scene.memory)["bytes"] is None
    scene.hear("b", copy_report(REPLICA, log_bytes=300))
    assert moves_of(scene.state, plan, scene.memory)["bytes"] == 300
    scene.hear("a", copy_report(HERE, log_bytes=400))
    assert moves_of(scene.state, plan, scene.memory)["bytes"] == 400


def test_rows_that_stay_in_one_zone_are_counted_where_there_are_several() -> None:
    scene = Scene(("a", "b"))
    scene.set_node("c", zone="y")
    made = replace(plan_of(scene), rows={"u1": (("a", "b"),)})
    assert moves_of(scene.state, made)["one_zone"] == 1


def test_progress_is_copied_changes_of_those_that_wanted_copies_will_have() -> None:
    scene = Scene(("a", "b"))
    plan = leaving(scene, "b")  # c is to have a copy
    assert progress_of(scene.state, plan, scene.memory) == Progress(1, 0, 0, 0, 10, 20, 0)
    scene.hear("c", copy_report(REPLICA, end=4))
    assert progress_of(scene.state, plan, scene.memory).copied == 14
    scene.set_record(rows=(("a", "c"),))
    assert progress_of(scene.state, plan, scene.memory) == Progress(1, 1, 0, 0, 20, 20, 0)


def test_a_partition_that_nobody_reports_is_unknown_and_not_done_with_nothing() -> None:
    scene = Scene(("a", "b"))
    plan = leaving(scene, "b")
    scene.silence("a", "b")
    assert progress_of(scene.state, plan, scene.memory) == Progress(1, 0, 0, 0, 0, 0, 1)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([(0, 0, 100)], None),
        ([(0, 0, 100), (1000, 10, 100)], 9),
        ([(0, 10, 100), (1000, 10, 100)], None),
        ([(0, 99, 100), (1000, 100, 100)], None),
        ([(0, 0, 100), (ESTIMATE_MS, 10, 100), (ESTIMATE_MS + 1000, 30, 100)], 4),
    ],
)
def test_the_estimate_is_by_the_rate_of_the_last_minute(
    samples: list[tuple[int, int, int]], expected: int | None
) -> None:
    assert left_s([Sample(*one) for one in samples]) == expected


def why(scene: Scene) -> str:
    """Return why the partition is stalled after the longest wait; not a moment before."""
    assert stalled(scene.step()) == {}
    scene.now_ms += STALLED_AFTER_MS - 1
    assert stalled(scene.step()) == {}
    scene.now_ms += 1
    found = stalled(scene.step())
    assert found.keys() <= {HERE}
    return found.get(Place("u1", 0), "")


def test_a_full_disk_a_slow_copy_and_a_silent_node_are_told_as_the_reason() -> None:
    scene = Scene(("a", "b"))
    leaving(scene, "b")
    scene.hear("c", copy_report(REPLICA, end=4), has_space=False)
    assert "no_space: the disk of c" in why(scene)
    scene = Scene(("a", "b"), building=("c",))
    leaving(scene, "b")
    scene.hear("c", copy_report(REPLICA, end=4))
    assert why(scene) == "c has 4 of 10 changes"
    scene.silence("c")
    assert stalled(scene.step()) == {}  # a new reason begins a new wait
    assert why(scene) == "c does not answer"


def test_a_partition_without_copies_is_lost_and_names_who_is_missing() -> None:
    scene = Scene(("a", "b"))
    leaving(scene, "b")
    scene.lose("a", "b")
    assert why(scene) == "lost: nobody serves it; a, b missing"


def test_waiting_for_a_turn_is_not_stalled_and_a_take_over_that_does_not_come_is() -> None:
    scene = Scene(("a", "b"))
    leaving(scene, "b")
    assert why(scene) == ""
    scene = Scene(("a", "b"), ("c", "b"))
    leaving(scene, "a")
    assert why(scene) == "c has not taken it over"


def test_what_gets_on_is_not_stalled() -> None:
    scene = Scene(("a", "b"), building=("c",))
    leaving(scene, "b")
    for end in range(4):
        scene.hear("c", copy_report(REPLICA, end=end))
        scene.now_ms += STALLED_AFTER_MS
        assert stalled(scene.step()) == {}
