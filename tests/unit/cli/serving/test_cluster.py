"""`millstream cluster` on a node whose cluster is a double: what is asked and printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.serving import cluster_asking
from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.node.embedded import EmbeddedNode
from support.cluster_double import ClusterDouble, bucket_shown, node_shown

MOVES = {"partitions": 64, "copies": 16, "active": 5, "index": 1, "fewer": 0, "one_zone": 0,
    "bytes": 1024}  # fmt: skip
PLAN = {
    "id": 7, "kind": "rebalance", "by": "", "started_ms": 0, "is_cancelled": False,
    "partitions": 64, "done": 12, "index_parts": 64, "index_done": 60, "copied": 45,
    "total": 100, "unknown": 0, "left_s": 80, "stalled": [],
}  # fmt: skip


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    path: Path = tmp_path_factory.mktemp("cluster") / "d"
    with EmbeddedNode(path, buckets=["b:4"]) as node:
        yield node


@pytest.fixture
def cluster(node: EmbeddedNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterDouble]:
    monkeypatch.setattr(cluster_asking, "POLL_S", 0.0)
    made = ClusterDouble()
    node._node.engine.cluster = made
    made.answer = {"changed": True, "moves": dict(MOVES)}
    yield made
    node._node.engine.cluster = None


@pytest.fixture
def run(node: EmbeddedNode, call: Any) -> Any:
    def run(*words: str, **options: Any) -> Any:
        return call("cluster", *words, "--connect", str(node.kv), **options)

    return run


def text(outcome: Any) -> str:
    assert outcome.code == 0, outcome.err
    return outcome.out.decode()


def test_a_cluster_is_made_and_joined(run: Any, cluster: ClusterDouble) -> None:
    cluster.is_managed = False
    said = text(run("init", "--name", "f", "--coordinators", "5"))
    assert said.startswith("this node is n1 of cluster f 5c1e0000;")
    said = text(run("join", "10.0.0.1:5984", "--zone", "x", "--roles", "data,index"))
    assert "cluster rebalance" in said
    assert "16 copies to build" in text(run("join", "10.0.0.1:5984", "--rebalance"))
    assert cluster.asked == [
        ("init", "f", 5),
        ("join", "10.0.0.1:5984", "x", ("data", "index")),
        ("join", "10.0.0.1:5984", "", ()),
        ("rebalance", {}, ""),
    ]
    assert json.loads(run("init", "--json").out)["name"] == "flights"
    cluster.has_nothing = False
    assert "cluster rebalance" not in text(run("join", "10.0.0.1:5984")), "it has joined before"


def test_a_status_shows_members_buckets_and_what_stands_still(
    run: Any, cluster: ClusterDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    failed = node_shown(
        "n3", state="failed", has_session=False, answers=False, is_admitted=None, active=None,
        replica=None, index=None, zone="rack2",
    )  # fmt: skip
    cluster.shown["nodes"].append(failed)
    cluster.shown["buckets"] = [bucket_shown("orders", whole=15, moving=1)]
    stalled = [{"bucket": "orders", "partition": 3, "why": "no_space: the disk of n1 is full"}]
    cluster.shown["plan"] = PLAN | {"stalled": stalled}
    cluster.shown["failovers"]["count"] = 1
    cluster.shown["notes"] = ["limit: n2 is silent, and 1 nodes were failed over"]
    lines = text(run("status")).splitlines()
    assert max(map(len, lines)) <= 80
    words = [line.split() for line in lines]
    assert lines[0] == "cluster flights 5c1e0000  generation 2"
    assert lines[1] == "orchestrator n1 (token 3:1:884)  coordination n1 n2, no node may fail"
    assert ["n1", "data,index", "in", "8", "8", "8", "ok"] in words
    assert ["n3", "rack2", "data,index", "failed", "?", "?", "?", "-"] in words
    assert (
        "bucket orders  map 2/41  1 replica  16 partitions, 15 with all copies, 1 moving" in lines
    )
    said = "rebalance 7: 12 of 64 partitions, 60 of 64 index parts, 45 % copied, 80 s left"
    assert said in lines
    assert "! bucket orders partition 3: no_space: the disk of n1 is full" in lines
    assert any(line.startswith("fail-overs 1 of 1: no more until") for line in lines)
    assert "! limit: n2 is silent, and 1 nodes were failed over" in lines
    assert json.loads(run("status", "--json").out) == cluster.shown


@pytest.mark.parametrize(
    ("bad", "said"),
    [({"served": 15, "unserved": [3]}, "1 partitions of"), ({"unknown": [1, 2]}, "2 partitions")],
)
def test_what_is_not_served_or_not_known_makes_a_status_fail(
    run: Any, cluster: ClusterDouble, bad: dict[str, Any], said: str
) -> None:
    cluster.shown["buckets"] = [bucket_shown("orders", **bad)]
    outcome = run("status")
    assert outcome.code == 1
    assert said in outcome.err
    assert b"bucket orders" in outcome.out


def test_a_wait_for_what_stands_still_fails_and_says_why(run: Any, cluster: ClusterDouble) -> None:
    stalled = [{"bucket": "orders", "partition": 3, "why": "n2 does not answer"}]
    cluster.shown["plan"] = PLAN | {"stalled": stalled}
    outcome = run("rebalance", "--wait")
    assert outcome.code == 1
    assert "partition 3: n2 does not answer" in outcome.err


def test_a_rebalance_is_tried_before_it_is_asked_for(run: Any, cluster: ClusterDouble) -> None:
    said = text(run("rebalance", "--add", "n3", "--remove", "n1", "--plan"))
    assert said == (
        "64 partitions: 16 copies to build (1 KiB), 5 active copies move, 1 index part moves\n"
    )
    args = {"add": ["n3"], "remove": ["n1"]}
    assert cluster.asked == [("rebalance", args | {"trial": True}, "")]
    text(run("rebalance", "--add", "n3", "--remove", "n1", "--wait"))
    assert cluster.asked[-1] == ("rebalance", args, "")
    assert text(run("rebalance", "--cancel")) == "the rebalance ends\n"
    assert cluster.asked[-1] == ("cancel", {}, "")
    cluster.answer = {"moves": MOVES | {"copies": 0, "active": 0, "index": 0, "one_zone": 2}}
    said = text(run("rebalance", "--plan"))
    assert said == "64 partitions: nothing to move; 2 partitions with all copies in one zone\n"


@pytest.mark.parametrize("words", [("rebalance", "--remove", "n1"), ("remove", "n1")])
def test_fewer_copies_are_only_made_if_that_is_confirmed(
    run: Any, cluster: ClusterDouble, words: tuple[str, ...]
) -> None:
    cluster.answer["moves"] = MOVES | {"fewer": 9}
    outcome = run(*words)
    assert outcome.code == 2
    assert "9 partitions would have fewer copies" in outcome.err
    assert [args.get("trial") for _, args, _ in cluster.asked] == [True]
    assert "9 partitions with fewer copies" in text(run(*words, "--yes"))
    assert cluster.asked[-1][1].get("trial") is None


def test_a_node_is_removed(run: Any, cluster: ClusterDouble) -> None:
    assert "n1 leave" in text(run("remove", "n1", "--now"))
    assert cluster.asked[-1] == ("remove", {"nodes": ["n1"], "now": True}, "")


def test_a_fail_over_says_what_may_be_lost_before_it_is_forced(
    run: Any, cluster: ClusterDouble
) -> None:
    cluster.answer = {"name": "n1", "partitions": 21, "at_risk": ["majority"]}
    assert text(run("failover", "n1")) == "n1: graceful fail-over of 21 partitions\n"
    text(run("failover", "n1", "--hard"))
    outcome = run("failover", "n1", "--force")
    assert "level majority may be lost in 21 partitions" in outcome.err
    assert [(op, args["mode"], args.get("trial")) for op, args, _ in cluster.asked] == [
        ("failover", "graceful", None), ("failover", "hard", None),
        ("failover", "force", True), ("failover", "force", None),
    ]  # fmt: skip
    text(run("failover", "--reset"))
    assert cluster.asked[-1] == ("reset", {}, "")


@pytest.mark.parametrize(
    "words",
    [
        ("init", "--coordinators", "2"),
        ("join",),
        ("join", "10.0.0.1:5984", "--roles", "king"),
        ("rebalance", "--cancel", "--plan"),
        ("rebalance", "--plan", "--wait"),
        ("remove",),
        ("failover",),
        ("failover", "n1", "--hard", "--force"),
        ("failover", "n1", "--reset"),
    ],
)
def test_a_command_that_is_used_wrongly_asks_nobody(
    run: Any, cluster: ClusterDouble, words: tuple[str, ...]
) -> None:
    assert run(*words).code == 2
    assert cluster.asked == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConditionError("n3 has data", code="has_data"), 1),
        (ConditionError("a member of f", code="other_cluster"), 1),
        (UsageError("no node z", code="unknown_node"), 2),
        (UnavailableError("no quorum", code="no_quorum"), 1),
    ],
)
def test_what_is_refused_is_one_line(
    run: Any, cluster: ClusterDouble, error: Exception, code: int
) -> None:
    cluster.refusal = error
    outcome = run("join", "10.0.0.1:5984")
    assert (outcome.code, outcome.err.count("\n")) == (code, 1)
    assert str(error) in outcome.err


def test_a_recovery_is_only_told_unless_it_is_confirmed(run: Any, cluster: ClusterDouble) -> None:
    outcome = run("recover", "--without", "n1")
    assert outcome.code == 2
    assert "give --yes" in outcome.err
    said = outcome.out.decode()
    assert "would be rebuilt: generation 3" in said
    assert "n1  h:1  given up" in said
    assert "! bucket orders: some" in said
    said = text(run("recover", "--from-nodes", "--yes"))
    assert "is rebuilt" in said
    assert "may be lost" not in said
    assert cluster.asked == [("recover", ("n1",), False, True), ("recover", (), True, False)]
    assert json.loads(run("recover", "--yes", "--json").out)["is_done"]


def test_a_node_in_no_cluster_says_what_to_do(
    run: Any, node: EmbeddedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node._node.engine, "cluster", None)
    outcome = run("status")
    assert outcome.code == 1
    assert "coordination" in outcome.err


def test_a_promotion_by_hand_is_refused_in_a_cluster(run: Any, cluster: ClusterDouble) -> None:
    outcome = run("promote", "b")
    assert outcome.code == 1
    assert "cluster failover NODE" in outcome.err
    cluster.is_managed = False
    assert "cluster failover" not in run("promote", "b").err
