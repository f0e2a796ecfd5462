"""The status of a cluster: what is known, and what is not."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from msgspec.structs import replace

from millstream.cluster.core.elements import FailOver, Leader
from millstream.cluster.core.members import make_plan
from millstream.cluster.core.progress import Sample
from millstream.cluster.core.status import status_of
from millstream.model.cluster_maps import IndexMap, IndexRecord
from support.cluster.scene import ACTIVE, HERE, KEY, TOKEN, Scene, copy_report


def status(scene: Scene, **others: Any) -> dict[str, Any]:
    found = status_of(scene.state, scene.memory, **others)
    assert json.loads(json.dumps(found)) == found
    return found


def node(scene: Scene, name: str) -> dict[str, Any]:
    return next(one for one in status(scene)["nodes"] if one["id"] == name)


def serving() -> Scene:
    scene = Scene()
    scene.hear("a", copy_report(ACTIVE, may_serve=True))
    return scene


def test_a_whole_cluster_is_served_with_all_copies() -> None:
    scene = serving()
    scene.set(leader=Leader("a", "host:1"))
    found = status(scene, coordinators=["a", "b", "c"])
    assert found["orchestrator"] == {"node": "a", "name": "a", "token": TOKEN.text.decode()}
    assert found["coordination"] == {"members": ["a", "b", "c"], "may_fail": 1}
    (bucket,) = found["buckets"]
    assert (bucket["served"], bucket["whole"], bucket["moving"]) == (1, 1, 0)
    assert (bucket["generation"], bucket["revision"]) == (1, 5)
    assert node(scene, "a")["active"] == 1
    assert node(scene, "b")["replica"] == 1
    assert (found["plan"], found["failovers"]["count"]) == (None, 0)


def test_who_answers_for_the_index_of_a_partition() -> None:
    scene = Scene(("a", "b"), ("b", "c"), ("c", "a"))
    records = tuple(IndexRecord(KEY, owner) for owner in ("b", None, "b"))
    scene.set(index={"u1": IndexMap(KEY, "u1", records)})
    (bucket,) = status(scene)["buckets"]
    assert (bucket["indexed"], bucket["indexed_by"]) == (2, {"b": [0, 2]})


def test_what_a_silent_node_has_is_not_known_and_not_nothing() -> None:
    scene = serving()
    scene.lose("a")
    found = status(scene)
    (bucket,) = found["buckets"]
    assert (bucket["served"], bucket["unknown"], bucket["unserved"]) == (0, [0], [])
    assert bucket["whole"] == 0
    silent = node(scene, "a")
    assert (silent["active"], silent["replica"], silent["index"]) == (None, None, None)
    assert (silent["answers"], silent["has_session"], silent["note"]) == (
        False, False, "it has no session",
    )  # fmt: skip
    assert status(scene)["coordination"] is None


def test_an_active_copy_that_may_not_serve_is_not_served() -> None:
    scene = Scene()
    (bucket,) = status(scene)["buckets"]
    assert (bucket["served"], bucket["unserved"], bucket["unknown"]) == (0, [0], [])


def test_a_copy_that_does_not_follow_yet_or_is_missing_is_not_whole() -> None:
    scene = serving()
    scene.hear("c", copy_report(branch=0))
    assert status(scene)["buckets"][0]["whole"] == 0
    scene = serving()
    scene.set(buckets={"u1": replace(scene.state.buckets["u1"], replicas=3)})
    assert status(scene)["buckets"][0]["whole"] == 0
    scene = serving()
    scene.set_record(rows=(("a", "b", "c"), ("a", "b")))
    assert status(scene)["buckets"][0]["moving"] == 1


def test_leaving_and_given_up_nodes_say_so() -> None:
    scene = serving()
    scene.set_node("b", state="leaving")
    assert node(scene, "b")["note"].startswith("not yet")
    scene.set_node("b", state="failed", by="force")
    assert node(scene, "b")["note"] == "given up"
    scene.set_node("b", state="failed", by="auto", leaves=True)
    assert node(scene, "b")["leaves"]


def test_a_plan_tells_its_progress_its_estimate_and_what_stands_still() -> None:
    scene = serving()
    scene.set_node("b", state="leaving")
    plan = make_plan(scene.state, "rebalance", 7, 5, "ann")
    scene.state = dataclasses.replace(scene.state, plan=plan, failover_count=1)
    found = status(
        scene,
        stalled={HERE: "no_space: the disk of c is full"},
        samples=[Sample(0, 10, 20), Sample(1000, 15, 20)],
        notes=["auto_failover is off"],
        failovers=[FailOver("b", 9, "silent", 3)],
    )
    assert (found["plan"]["id"], found["plan"]["by"], found["plan"]["partitions"]) == (7, "ann", 1)
    assert found["plan"]["left_s"] == 1
    assert found["plan"]["stalled"] == [
        {"bucket": "b", "partition": 0, "why": "no_space: the disk of c is full"}
    ]
    assert found["failovers"]["last"][0]["node"] == "b"
    assert found["notes"] == ["auto_failover is off"]
    assert status(scene)["plan"]["stalled"] is None
