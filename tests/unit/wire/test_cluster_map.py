import json
from typing import Any

import pytest

from millstream.errors import RemoteProtocolError
from millstream.wire.cluster_map import NodeAddress, cluster_map_from

CONFIG: dict[str, Any] = {
    "rev": 7,
    "revEpoch": 2,
    "uuid": "3f0c5a",
    "nodesExt": [
        {"thisNode": True, "services": {"kv": 11210, "mgmt": 8091}},
        {"hostname": "10.0.0.2", "services": {"kv": 11220}},
        {"hostname": "$HOST", "services": {}},
    ],
    "vBucketServerMap": {
        "serverList": ["$HOST:11210"],
        "vBucketMap": [[0, 1], [1, -1], [-1], []],
    },
    "bucketCapabilities": ["dcp"],
}


def test_nodes_and_owners() -> None:
    found = cluster_map_from(json.dumps(CONFIG).encode(), host="db", port=1)
    assert found.nodes == (
        NodeAddress("db", 11210),
        NodeAddress("10.0.0.2", 11220),
        NodeAddress("db", 1),
    )
    assert found.owners == (0, 1, -1, -1)
    assert found.partition_count == 4
    assert found.version == (2, 7)
    assert found.bucket_uuid == "3f0c5a"
    assert found.services["mgmt"] == 8091
    assert found.here == found.nodes[0]


@pytest.mark.parametrize(
    "config",
    [
        b"",
        b"[]",
        b"{}",
        json.dumps(CONFIG | {"nodesExt": []}).encode(),
        json.dumps(CONFIG | {"vBucketServerMap": {"vBucketMap": []}}).encode(),
        json.dumps(CONFIG | {"vBucketServerMap": {"vBucketMap": [[3]]}}).encode(),
    ],
)
def test_what_is_no_map(config: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as failed:
        cluster_map_from(config, host="db", port=1)
    assert failed.value.code == "bad_map"
