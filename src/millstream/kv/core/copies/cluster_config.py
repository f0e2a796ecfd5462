"""The cluster map in the terse JSON form that Couchbase SDKs read.

Invariants:
1. A client sees (epoch, revision) of a bucket's maps only grow, whatever nodes it asks. With a
   bucket map, all content except the answering node depends on that map alone.
2. Only supported capabilities are listed.

Source: docs/reference/wire/cluster-map.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from msgspec import Struct, json

from millstream.kv.core.bucket import Bucket
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.partitions import PartitionState

__all__ = ["MapVersion", "cluster_config", "version_of"]

_CAPABILITIES: Final = [
    "dcp", "cbhello", "touch", "cccp", "nodesExt", "durableWrite", "couchapi",
]  # fmt: skip
"""Capabilities of every bucket. Without `couchapi` the Java SDK treats a bucket as ephemeral."""
_CLUSTER_CAPABILITIES_VERSION: Final = [1, 0]
_EPOCH_ALONE: Final = 1
"""Epoch of a bucket that is on one node only; a map of revision N made by hand has this plus N."""
_NOBODY: Final = -1


class MapVersion(NamedTuple):
    """What maps are ordered by."""

    epoch: int
    revision: int


class _Versioned(Struct):
    rev: int
    revEpoch: int  # the name in the JSON


def version_of(config: bytes) -> MapVersion:
    """Return the version of a map as `cluster_config` returned it."""
    found = json.decode(config, type=_Versioned)
    return MapVersion(found.revEpoch, found.rev)


def cluster_config(
    bucket: Bucket | None,
    *,
    host: str,
    kv_port: int,
    http_port: int,
    revision: int,
    others: Iterable[Bucket] = (),
) -> bytes:
    """Return the map of a bucket, or of the nodes if there is no bucket.

    Args:
        bucket: a bucket with a map is shown with its nodes and rows. In a bucket without one,
            partitions that are not active on this node have no owner: it knows of no other node.
        host: address for clients, where no map names one.
        kv_port: the same.
        http_port: the same.
        revision: of buckets that are on this node only.
        others: without a bucket: the buckets of this node. Those nodes of their newest map are
            listed that have all of them, since SDKs open any bucket at any node.
    """
    if bucket is not None and bucket.map is not None:
        return json.encode(_mapped(bucket, bucket.map))
    all_here = tuple(others)
    mapped = [(one.map, one.node_name) for one in all_here if one.map is not None]
    if bucket is None and mapped:
        newest, this = max(mapped, key=lambda pair: pair[0].key)
        nodes = tuple(
            node for node in newest.nodes
            if node.name == this
            or all(one.map is not None and node in one.map.nodes for one in all_here)
        )  # fmt: skip
        return json.encode(
            _nodes_part(nodes, this, epoch=_epoch(newest), revision=newest.revision)
        )
    alone = (NodeAddress("", host, kv_port, http_port),)
    config = _nodes_part(alone, "", epoch=_EPOCH_ALONE, revision=revision)
    if bucket is not None:
        states = [partition.state for partition in bucket.partitions]
        rows = [[0 if state is PartitionState.ACTIVE else _NOBODY] for state in states]
        config |= _bucket_part(bucket, alone, rows)
    return json.encode(config)


def _epoch(bucket_map: BucketMap) -> int:
    """Return the generation; it is larger than every epoch of the maps made by hand before it."""
    return bucket_map.generation or _EPOCH_ALONE + bucket_map.revision


def _mapped(bucket: Bucket, bucket_map: BucketMap) -> dict[str, Any]:
    """Return the map's rows unchanged: copies in another state will follow it soon or are dead."""
    nodes = bucket_map.nodes
    indexes: dict[str | None, int] = {node.name: index for index, node in enumerate(nodes)}
    rows = [[indexes.get(name, _NOBODY) for name in row] for row in bucket_map.rows]
    config = _nodes_part(
        nodes, bucket.node_name, epoch=_epoch(bucket_map), revision=bucket_map.revision
    )
    return config | _bucket_part(bucket, nodes, rows)


def _nodes_part(
    nodes: tuple[NodeAddress, ...], this: str, *, epoch: int, revision: int
) -> dict[str, Any]:
    shown = []
    for node in nodes:
        services: dict[str, int] = {"kv": node.kv, "mgmt": node.http}
        entry: dict[str, Any] = {"hostname": node.host, "services": services}
        shown.append(entry | {"thisNode": True} if node.name == this else entry)
    return {
        "rev": revision,
        "revEpoch": epoch,
        "nodesExt": shown,
        "clusterCapabilitiesVer": _CLUSTER_CAPABILITIES_VERSION,
        "clusterCapabilities": {},
    }


def _bucket_part(
    bucket: Bucket, nodes: tuple[NodeAddress, ...], rows: list[list[int]]
) -> dict[str, Any]:
    path = quote(bucket.name, safe="")
    return {
        "name": bucket.name,
        "uuid": bucket.uuid,
        "nodeLocator": "vbucket",
        "nodes": [
            {
                "hostname": _address(node.host, node.http),
                "ports": {"direct": node.kv},
                "couchApiBase": f"http://{_address(node.host, node.http)}/{path}",
            }
            for node in nodes
        ],
        "vBucketServerMap": {
            "hashAlgorithm": "CRC",
            "numReplicas": len(rows[0]) - 1,
            "serverList": [_address(node.host, node.kv) for node in nodes],
            "vBucketMap": rows,
        },
        "bucketCapabilitiesVer": "",
        "bucketCapabilities": _CAPABILITIES,
    }


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
