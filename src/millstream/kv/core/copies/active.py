"""Finds the active copy of a document, or the reason why it cannot be used here.

Elsewhere: the copies' states (`kv.core.partition.states`), changes of states (`kv.aio.copies`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import UnavailableError
from millstream.kv.core.partition.partition import Partition
from millstream.wire.mcbp import Status

if TYPE_CHECKING:
    from millstream.kv.core.bucket import Bucket

__all__ = ["active_copy", "not_now", "place_of"]


def active_copy(bucket: Bucket, key: bytes) -> Partition:
    """Return the active copy of the partition that owns a key.

    Raises:
        UnavailableError: `not_my_partition`, the message names the node to ask;
            `temporarily_unavailable`.
    """
    partition = bucket.partition_for(key)
    refusal = partition.refusal
    if refusal is Status.NOT_MY_VBUCKET:
        raise UnavailableError(
            f"partition {partition.partition_id}, which has this document, is not active on this "
            f"node: {place_of(bucket, partition)}",
            code="not_my_partition",
            retry="refresh_map",
        )
    if refusal is not None:
        raise not_now(f"partition {partition.partition_id} changes its state")
    return partition


def place_of(bucket: Bucket, partition: Partition) -> str:
    """Return a text that says which node to ask for a partition."""
    bucket_map = bucket.map
    name = bucket.active_node(partition.partition_id)
    if bucket_map is None or name is None:
        return "no node is said to have it"
    if name == bucket.node_name:
        return "this node is to have it, and has not yet"
    if not bucket_map.has_node(name):
        return f"node {name} is to have it, and its address is not known here yet"
    node = bucket_map.node(name)
    return f"ask node {name} at {node.host}:{node.http}"


def not_now(why: str) -> UnavailableError:
    """Return the error of a request that may be retried soon."""
    return UnavailableError(
        f"the document cannot be changed or read now: {why}; try again",
        code="temporarily_unavailable",
    )
