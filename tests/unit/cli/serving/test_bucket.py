"""Buckets by command, on a real node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.gateway.aio.databases import making
from millstream.node.embedded import EmbeddedNode
from support.cluster_double import ClusterDouble


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    path: Path = tmp_path_factory.mktemp("buckets") / "d"
    with EmbeddedNode(path, buckets=["b:4"]) as node:
        yield node


@pytest.fixture
def run(node: EmbeddedNode, call: Any) -> Any:
    def run(*words: str, **options: Any) -> Any:
        return call("bucket", *words, "--connect", str(node.kv), **options)

    return run


def test_a_bucket_is_made_listed_shown_and_dropped(run: Any) -> None:
    assert run("create", "new", "--partitions", "8").code == 0
    assert run("list").out.decode().split() == ["b", "new"]
    assert json.loads(run("info", "new", "--json").out)["partitions"] == 8
    assert "ready" in run("info", "new").out.decode()
    assert run("drop", "new", "--yes").code == 0
    assert run("list").out.decode().split() == ["b"]


def test_a_bucket_is_dropped_only_if_that_is_confirmed(run: Any) -> None:
    outcome = run("drop", "b")
    assert outcome.code == 2
    assert "--yes" in outcome.err
    assert run("list").out.decode().split() == ["b"]


@pytest.mark.parametrize(
    "words", [("info", "none"), ("drop", "none", "--yes"), ("create", "b"), ("create", "a/b c")]
)
def test_what_the_node_refuses_is_one_line(run: Any, words: tuple[str, ...]) -> None:
    outcome = run(*words)
    assert outcome.code in (1, 2)
    assert outcome.err.count("\n") == 1


@pytest.fixture
def cluster(node: EmbeddedNode) -> Iterator[ClusterDouble]:
    made = ClusterDouble()
    node._node.engine.cluster = made
    yield made
    node._node.engine.cluster = None


def test_copies_of_a_bucket_are_set_in_a_cluster(run: Any, cluster: ClusterDouble) -> None:
    moves = {"partitions": 4, "copies": 4, "active": 0, "index": 0, "fewer": 0, "one_zone": 0}
    cluster.answer = {"replicas": 1, "replicas_wanted": 2, "moves": moves}
    said = run("set", "b", "--replicas", "2", "--index-replicas", "1").out.decode()
    assert "replicas 1: there are too few data nodes for 2" in said
    assert "4 copies to build" in said
    assert cluster.asked == [("set_bucket", {"name": "b", "replicas": 2, "index_replicas": 1}, "")]
    cluster.answer = {"replicas": 1}
    assert run("set", "b", "--memory-quota", str(1 << 30)).out == b"bucket b: set, replicas 1\n"
    assert cluster.asked[-1][1]["settings"] == {"memory_quota_bytes": 1 << 30}


def test_a_node_alone_has_no_copies_elsewhere_and_nothing_to_set_is_wrong(run: Any) -> None:
    outcome = run("set", "b", "--replicas", "1")
    assert outcome.code == 1
    assert "cluster init" in outcome.err
    assert run("create", "c", "--replicas", "1").code == 1
    for words in (("set", "b"), ("set", "b", "--strict"), ("set", "b", "--replicas", "4")):
        assert run(*words).code == 2


def test_a_bucket_that_is_not_served_or_not_gone_yet_is_told_of(
    run: Any, cluster: ClusterDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "SERVED_S", 0.0)
    cluster.answer = {"uuid": "x", "replicas": 1, "replicas_wanted": 1}
    made = run("create", "far", "--partitions", "4", "--replicas", "1")
    assert made.out == b"bucket far: made, 4 partitions, replicas 1\n"
    assert "not served here" in made.err
    dropped = run("drop", "far", "--yes")
    assert dropped.code == 1
    assert "being dropped" in dropped.err
