"""The cluster map in the terse JSON form that Couchbase SDKs read.

Invariants:
1. (epoch, revision) of the maps a client sees only grows.
2. Only capabilities that are real are listed.

Source: docs/reference/wire/cluster-map.md.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from msgspec import json

from millstream.kv.core.bucket import Bucket
from millstream.model.partitions import PartitionState

__all__ = ["cluster_config"]

_CAPABILITIES = ["dcp", "cbhello", "touch", "cccp", "nodesExt", "durableWrite"]


def cluster_config(
    bucket: Bucket | None, *, host: str, kv_port: int, http_port: int, revision: int
) -> bytes:
    """Return the map of a bucket, or without one the node alone.

    `host` is what clients should connect to. Partitions that are not active on this node have no
    owner: it knows of no other node.
    """
    services: dict[str, int] = {"kv": kv_port, "mgmt": http_port}
    config: dict[str, Any] = {
        "rev": revision,
        "revEpoch": 1,
        "nodesExt": [{"hostname": host, "thisNode": True, "services": services}],
    }
    if bucket is not None:
        config |= _bucket_part(bucket, host, kv_port, http_port)
    return json.encode(config)


def _bucket_part(bucket: Bucket, host: str, kv_port: int, http_port: int) -> dict[str, Any]:
    return {
        "name": bucket.name,
        "uuid": bucket.uuid,
        "nodeLocator": "vbucket",
        "nodes": [
            {
                "hostname": f"{host}:{http_port}",
                "ports": {"direct": kv_port},
                "couchApiBase": f"http://{host}:{http_port}/{quote(bucket.name, safe='')}",
            }
        ],
        "vBucketServerMap": {
            "hashAlgorithm": "CRC",
            "numReplicas": 0,
            "serverList": [f"{host}:{kv_port}"],
            "vBucketMap": [
                [0 if partition.state is PartitionState.ACTIVE else -1]
                for partition in bucket.partitions
            ],
        },
        "bucketCapabilities": _CAPABILITIES,
    }
