from typing import Any

import pytest
from msgspec import json

from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies import moves
from millstream.kv.core.copies.cluster_config import cluster_config
from millstream.model.bucket_map import MAP_REVISION_MAX, BucketMap, NodeAddress
from millstream.model.partitions import PartitionState
from millstream.wire.cluster_map import cluster_map_from
from support.kv.log_double import new_bucket


def test_the_one_node_owns_every_partition() -> None:
    config = json.decode(
        cluster_config(new_bucket(4), host="h", kv_port=1, http_port=2, revision=3)
    )
    server_map = config["vBucketServerMap"]
    assert server_map["vBucketMap"] == [[0], [0], [0], [0]]
    assert server_map["serverList"] == ["h:1"]
    assert (config["rev"], config["nodesExt"][0]["services"]) == (3, {"kv": 1, "mgmt": 2})


def test_what_is_not_active_here_has_no_owner_that_is_known() -> None:
    bucket = new_bucket(4)
    moves.rename(bucket.partitions[1], PartitionState.REPLICA)
    moves.rename(bucket.partitions[3], PartitionState.DEAD)
    config = json.decode(cluster_config(bucket, host="h", kv_port=1, http_port=2, revision=3))
    assert config["vBucketServerMap"]["vBucketMap"] == [[0], [-1], [0], [-1]]


def test_without_a_bucket_the_map_names_the_node() -> None:
    config = json.decode(cluster_config(None, host="h", kv_port=1, http_port=2, revision=1))
    assert "vBucketServerMap" not in config
    assert config["nodesExt"][0]["hostname"] == "h"


def test_without_a_bucket_the_newest_map_of_all_buckets_names_the_nodes() -> None:
    older, newer = new_bucket(4), new_bucket(4)
    older.set_map(BucketMap(2, (A, B), ROWS), "a")
    newer.set_map(BucketMap(3, (A, B), ROWS), "a")
    config = json.decode(
        cluster_config(
            None, host="h", kv_port=1, http_port=2, revision=9,
            others=[older, newer],
        )
    )  # fmt: skip
    assert [node["hostname"] for node in config["nodesExt"]] == ["db-a", "fd00::2"]
    assert (config["revEpoch"], config["rev"]) == (4, 3)
    assert "vBucketServerMap" not in config


@pytest.mark.parametrize("has_map", [False, True])
def test_a_node_that_lacks_a_bucket_of_this_one_is_not_named_without_a_bucket(
    has_map: bool,
) -> None:
    """SDKs open any bucket at any node that is named, and take its refusal for an answer."""
    both, here = new_bucket(4), new_bucket(4)
    both.set_map(BucketMap(3, (A, B), ROWS), "a")
    if has_map:
        here.set_map(BucketMap(2, (A,), (("a",),) * 4), "a")
    config = json.decode(
        cluster_config(None, host="h", kv_port=1, http_port=2, revision=9, others=[both, here])
    )
    assert [node["hostname"] for node in config["nodesExt"]] == ["db-a"]
    assert (config["revEpoch"], config["rev"]) == (4, 3)


def test_a_map_tells_what_the_sdks_look_for() -> None:
    config = json.decode(
        cluster_config(new_bucket(4), host="h", kv_port=1, http_port=2, revision=3)
    )
    assert (config["clusterCapabilitiesVer"], config["clusterCapabilities"]) == ([1, 0], {})
    assert "couchapi" in config["bucketCapabilities"]


A, B = NodeAddress("a", "db-a", 11210, 5984), NodeAddress("b", "fd00::2", 11211, 5985)
ROWS = (("a", "b"), ("b", "a"), ("b", None), (None, "a"))


def mapped(this: str, revision: int = 3, local_revision: int = 9) -> dict[str, Any]:
    bucket = new_bucket(4)
    bucket.set_map(BucketMap(revision, (A, B), ROWS), this)
    encoded = cluster_config(
        bucket, host="ignored", kv_port=1, http_port=2, revision=local_revision
    )
    config: dict[str, Any] = json.decode(encoded)
    return config


def test_a_map_is_shown_with_all_its_nodes_and_rows() -> None:
    config = mapped("b")
    server_map = config["vBucketServerMap"]
    assert server_map["serverList"] == ["db-a:11210", "[fd00::2]:11211"]
    assert server_map["vBucketMap"] == [[0, 1], [1, 0], [1, -1], [-1, 0]]
    assert server_map["numReplicas"] == 1
    assert config["nodesExt"] == [
        {"hostname": "db-a", "services": {"kv": 11210, "mgmt": 5984}},
        {"hostname": "fd00::2", "services": {"kv": 11211, "mgmt": 5985}, "thisNode": True},
    ]
    assert [node["hostname"] for node in config["nodes"]] == ["db-a:5984", "[fd00::2]:5985"]
    assert config["nodes"][1]["couchApiBase"] == "http://[fd00::2]:5985/b"


def test_all_nodes_show_the_same_map() -> None:
    shown = mapped("a", local_revision=5), mapped("b", local_revision=10**12)
    for config in shown:
        for node in config["nodesExt"]:
            node.pop("thisNode", None)
    assert shown[0] == shown[1]


def test_no_client_sees_a_map_go_back() -> None:
    def version(config: dict[str, Any]) -> tuple[int, int]:
        return config["revEpoch"], config["rev"]

    alone = json.decode(
        cluster_config(new_bucket(4), host="h", kv_port=1, http_port=2, revision=10**13)
    )
    assert version(alone) < version(mapped("a", 1)) < version(mapped("b", 2, local_revision=1))
    assert max(version(mapped("a", MAP_REVISION_MAX))) < 1 << 63, "SDKs read them so"


def test_clients_of_ours_read_it() -> None:
    bucket = new_bucket(4)
    bucket.set_map(BucketMap(3, (A, B), ROWS), "a")
    found = cluster_map_from(bucket_config(bucket), host="x", port=1)
    assert found.owners == (0, 1, 1, -1)
    assert [tuple(node) for node in found.nodes] == [("db-a", 11210), ("fd00::2", 11211)]


def bucket_config(bucket: Bucket) -> bytes:
    return cluster_config(bucket, host="h", kv_port=1, http_port=2, revision=3)


def test_the_epoch_of_a_managed_cluster_is_the_generation_and_no_client_goes_back() -> None:
    bucket = new_bucket(4)
    bucket.set_map(BucketMap(7, (A, B), ROWS), "a")
    before = json.decode(cluster_config(bucket, host="h", kv_port=1, http_port=2, revision=1))
    bucket.set_map(BucketMap(1, (A, B), ROWS, 9), "a")
    after = json.decode(cluster_config(bucket, host="h", kv_port=1, http_port=2, revision=1))
    assert (after["revEpoch"], after["rev"]) == (9, 1)
    assert (before["revEpoch"], before["rev"]) < (9, 1)
