"""Which node has a document of this node's buckets: this node, or another one by the newest map.

Invariants:
1. A partition that this node has, is about to get or is about to give away counts as here, and its
   own state decides. Any other partition is where the map says.

Elsewhere: maps (`model.bucket_map`), requests to other nodes (`databases.documents.remote_nodes`).
"""

from __future__ import annotations

from typing import Final, Literal

from millstream.cluster.cluster_state import NodeAt
from millstream.errors import UnavailableError
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.active import place_of
from millstream.model.partitions import partition_of
from millstream.wire.mcbp import Status

__all__ = ["HERE", "LOCAL_PREFIX", "Place", "is_alone", "no_owner", "other_nodes", "place"]

HERE: Final = "here"
Place = NodeAt | Literal["here"] | None
"""None: no node is known to have it."""
LOCAL_PREFIX: Final = "_local/"
"""Prefix of the key that decides the node of a local document."""


def is_alone(bucket: Bucket) -> bool:
    """Return whether no other node has any part of a bucket."""
    return bucket.map is None or len(bucket.map.nodes) == 1


def place(bucket: Bucket, doc_id: str) -> Place:
    """Return the place of a document."""
    number = partition_of(doc_id.encode(), bucket.partition_count)
    bucket_map = bucket.map
    if bucket_map is None or bucket.partitions[number].refusal is not Status.NOT_MY_VBUCKET:
        return HERE
    name = bucket_map.active(number)
    if name is None or name == bucket.node_name:
        return None
    node = bucket_map.node(name)
    return NodeAt(node.host, node.http)


def other_nodes(bucket: Bucket) -> list[NodeAt]:
    """Return the other nodes of a bucket's map."""
    if bucket.map is None:
        return []
    return [NodeAt(one.host, one.http) for one in bucket.map.nodes if one.name != bucket.node_name]


def no_owner(bucket: Bucket, doc_id: str) -> UnavailableError:
    """Return the error for a document without a known owner: `not_my_partition`."""
    partition = bucket.partition_for(doc_id.encode())
    return UnavailableError(
        f"partition {partition.partition_id}, which has document {doc_id!r}, is not active on "
        f"this node, and no other one said that it has it: {place_of(bucket, partition)}",
        code="not_my_partition",
        retry="refresh_map",
    )
