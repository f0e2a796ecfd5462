"""Finds the active copy of a document, or the reason why it cannot be used here.

Elsewhere: the copies' states (`kv.core.partition.states`), changes of states (`kv.aio.copies`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from millstream.errors import UnavailableError
from millstream.kv.core.partition.partition import Partition
from millstream.wire.mcbp import Status

if TYPE_CHECKING:
    from millstream.kv.core.bucket import Bucket

__all__ = ["active_copy", "check_served", "check_writable", "isolated", "not_now", "place_of"]


def active_copy(bucket: Bucket, key: bytes) -> Partition:
    """Return the active copy of the partition that owns a key.

    Raises:
        UnavailableError: `not_my_partition`, the message names the node to ask;
            `temporarily_unavailable`; `isolated`: the copy is active and may not serve now.
    """
    partition = bucket.partition_for(key)
    if bucket.is_managed:
        bucket.look_at_rights()
        if partition.unserved == "all":
            raise isolated(partition)
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


def check_served(bucket: Bucket, numbers: Iterable[int], *, for_write: bool = False) -> None:
    """Raise `isolated` if a copy of these partitions is active here and may not serve now."""
    if bucket.is_managed:
        bucket.look_at_rights()
        for number in numbers if bucket.serving.isolated else ():
            partition = bucket.partitions[number]
            if partition.unserved == "all" or (for_write and partition.unserved):
                raise isolated(partition)


def check_writable(bucket: Bucket, partition: Partition) -> None:
    """Raise if an active copy takes no writes now: `isolated`, `temporarily_unavailable`."""
    check_served(bucket, (partition.partition_id,), for_write=True)
    if bucket.writes.refuses(partition.partition_id):
        raise not_now("writes are refused at the moment")


def isolated(partition: Partition) -> UnavailableError:
    """Return the error for requests that an active copy may not serve now."""
    what = "reads and writes" if partition.unserved == "all" else "writes"
    return UnavailableError(
        f"partition {partition.partition_id} is active on this node, which may not serve {what} "
        "now: it has neither a lease of the coordination service nor contact with a majority of "
        "the copies; ask another node, or again once this node is connected to the others",
        code="isolated",
        retry="refresh_map",
    )


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
