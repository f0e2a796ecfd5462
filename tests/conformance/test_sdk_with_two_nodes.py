"""The official Couchbase Python SDK on a bucket that two nodes share by a map."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from millstream.model.partitions import partition_of
from support.kv.nodes_with_map import activate_first, ask, give_map
from support.node.node_process import NodeProcess

pytest.importorskip("couchbase", reason="the couchbase SDK is not installed")

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions, ClusterTimeoutOptions, UpsertOptions
from couchbase.transcoder import RawBinaryTranscoder

LOGIN = ("ada", "lovelace and more")
PARTITIONS = 16
ROWS = [["a", "b"], ["b", "a"]] * (PARTITIONS // 2)
KEYS = [f"sdk-{number}" for number in range(200)]
Nodes = dict[str, NodeProcess]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = {
        name: NodeProcess(tmp_path / name, "--no-memcached", "--user", ":".join(LOGIN))
        for name in "ab"
    }
    try:
        for node in made.values():
            node.start()
        give_map(made, "shared", ROWS, login=LOGIN)
        activate_first(made, "shared", ROWS, login=LOGIN)
        yield made
    finally:
        for node in made.values():
            node.kill()


@pytest.fixture
def connect() -> Iterator[Callable[[NodeProcess], Cluster]]:
    made: list[Cluster] = []

    def connected(node: NodeProcess) -> Cluster:
        limit = timedelta(seconds=60)
        timeouts = ClusterTimeoutOptions(
            bootstrap_timeout=limit, connect_timeout=limit, kv_timeout=limit
        )
        options = ClusterOptions(PasswordAuthenticator(*LOGIN), timeout_options=timeouts)
        cluster = Cluster.connect("couchbase://{}:{}".format(*node.kv), options)
        made.append(cluster)
        return cluster

    yield connected
    for cluster in made:
        cluster.close()


def held_by(node: NodeProcess) -> dict[int, int]:
    """High seqnos of the active copies that have changes."""
    _, answer = ask(node, "GET", "/buckets/shared/partitions", login=LOGIN)
    return {
        copy["partition"]: copy["high_seqno"]
        for copy in answer["partitions"]
        if copy["state"] == "active" and copy["high_seqno"]
    }


@pytest.mark.parametrize("seed", ["a", "b"])
def test_writes_reach_the_node_that_has_the_partition(
    nodes: Nodes, connect: Callable[[NodeProcess], Cluster], seed: str
) -> None:
    collection = connect(nodes[seed]).bucket("shared").default_collection()
    for key in KEYS:
        collection.upsert(key, key.encode(), UpsertOptions(transcoder=RawBinaryTranscoder()))
    wanted: dict[str, dict[int, int]] = {name: {} for name in nodes}
    for key in KEYS:
        number = partition_of(key.encode(), PARTITIONS)
        counted = wanted[str(ROWS[number][0])]
        counted[number] = counted.get(number, 0) + 1
    assert {name: held_by(node) for name, node in nodes.items()} == wanted
    for key in KEYS:
        assert collection.exists(key).exists


def test_a_client_goes_where_a_newer_map_says(
    nodes: Nodes, connect: Callable[[NodeProcess], Cluster]
) -> None:
    collection = connect(nodes["a"]).bucket("shared").default_collection()
    key = next(key for key in KEYS if partition_of(key.encode(), PARTITIONS) == 0)
    collection.upsert(key, {"at": "a"})
    place = "/buckets/shared/partitions/0"
    for name, state in (("a", "dead"), ("b", "active")):
        status, answer = ask(nodes[name], "PUT", place, {"state": state}, login=LOGIN)
        assert status == 200, answer
    give_map(nodes, "shared", [["b", None], *ROWS[1:]], revision=2, login=LOGIN)
    collection.upsert(key, {"at": "b"})
    assert collection.get(key).content_as[dict] == {"at": "b"}
    assert held_by(nodes["b"])[0] >= 1
    assert 0 not in held_by(nodes["a"])


def test_a_client_of_one_node_learns_of_the_second(
    nodes: Nodes, connect: Callable[[NodeProcess], Cluster]
) -> None:
    a, b = nodes.values()
    status, made = ask(a, "PUT", "/buckets/alone", {"partitions": PARTITIONS}, login=LOGIN)
    assert status == 201
    collection = connect(a).bucket("alone").default_collection()
    key = next(key for key in KEYS if partition_of(key.encode(), PARTITIONS) == 3)
    collection.upsert(key, {"n": 1})
    give_map(nodes, "alone", [["a", "b"]] * PARTITIONS, uuid=made["uuid"], login=LOGIN)
    collection.upsert(key, {"n": 2})
    for node, state in ((a, "dead"), (b, "active")):
        place = "/buckets/alone/partitions/3"
        status, answer = ask(node, "PUT", place, {"state": state}, login=LOGIN)
        assert status == 200, answer
    rows = [["b", "a"] if number == 3 else ["a", "b"] for number in range(PARTITIONS)]
    give_map(nodes, "alone", rows, uuid=made["uuid"], revision=2, login=LOGIN)
    collection.upsert(key, {"n": 3})
    assert collection.get(key).content_as[dict] == {"n": 3}
    assert ask(b, "GET", "/buckets/alone/partitions/3", login=LOGIN)[1]["high_seqno"] >= 1


def test_a_replica_is_read(nodes: Nodes, connect: Callable[[NodeProcess], Cluster]) -> None:
    """What `a` has written becomes a replica's, as if it had been sent."""
    collection = connect(nodes["b"]).bucket("shared").default_collection()
    key = next(key for key in KEYS if partition_of(key.encode(), PARTITIONS) == 0)
    collection.upsert(key, {"n": 1})
    place = "/buckets/shared/partitions/0"
    status, answer = ask(nodes["a"], "PUT", place, {"state": "replica"}, login=LOGIN)
    assert status == 200, answer
    give_map(nodes, "shared", [["b", "a"], *ROWS[1:]], revision=2, login=LOGIN)
    collection = connect(nodes["b"]).bucket("shared").default_collection()  # with the newer map
    found = collection.get_any_replica(key)
    assert (found.content_as[dict], found.is_replica) == ({"n": 1}, True)
