"""Compares a bucket's map, or adopted records, with the copies on this node, for operators.

Invariants:
1. It only compares. Resolving a difference is left to an operator or a promotion.

Elsewhere: what a node does by itself with a map (`kv.aio.copies.Copies.take_places`).
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.kv.core.bucket import Bucket
from millstream.model.partitions import PartitionState

__all__ = ["Places", "left_over", "places_of"]


class Places(NamedTuple):
    """Group `map`."""

    revision: int
    nodes: int
    not_active: int
    not_first: int
    missing: int
    left_over: int


def places_of(bucket: Bucket) -> Places:
    """Return the statistics of a bucket; all 0 if it is on this node only."""
    if bucket.map is None:
        return Places(0, 0, 0, 0, 0, 0)
    this, not_active, not_first, missing = bucket.node_name, 0, 0, 0
    for partition in bucket.partitions:
        is_active = partition.state is PartitionState.ACTIVE
        is_first = bucket.active_node(partition.partition_id) == this
        not_active += is_first and not is_active
        not_first += is_active and not is_first
        is_missing = partition.state is PartitionState.ABSENT
        missing += is_missing and bucket.is_placed(partition.partition_id)
    return Places(
        bucket.map.revision, len(bucket.map.nodes), not_active, not_first, missing,
        len(left_over(bucket)),
    )  # fmt: skip


def left_over(bucket: Bucket) -> list[int]:
    """Return the partitions that have a copy here and no place for it."""
    if bucket.map is None:
        return []
    return [
        partition.partition_id
        for partition in bucket.partitions
        if partition.state is not PartitionState.ABSENT
        and not bucket.is_placed(partition.partition_id)
    ]
