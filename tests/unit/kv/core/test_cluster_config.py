from log_double import new_bucket
from msgspec import json

from millstream.kv.core import moves
from millstream.kv.core.cluster_config import cluster_config
from millstream.model.partitions import PartitionState


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
