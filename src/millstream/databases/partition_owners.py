"""Where the partitions of a bucket are: here, on other nodes by the map, or unknown.

Invariants:
1. A partition that is active on this node counts as here, whatever the map says.
2. Each call reads the newest map.

Elsewhere: maps (`model.bucket_map`), requests to other nodes (`databases.remote_parts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.remote_parts import PartLink
from millstream.errors import MillstreamError, UnavailableError
from millstream.kv.core.bucket import Bucket
from millstream.model.partitions import PartitionState

__all__ = ["PAUSES_S", "BucketPlaces", "Plan", "is_elsewhere", "nowhere"]

PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 1.0, 1.0, 1.0)
"""Pauses before partitions that moved, or whose node is down, are requested again by the map."""
_ELSEWHERE: Final = ("not_my_partition", "node_failed")


class Plan(NamedTuple):
    """Which nodes to ask for which partitions."""

    own: list[int]
    by_node: dict[NodeAt, list[int]]
    nowhere: list[int]


class BucketPlaces:
    """The places of one bucket's partitions.

    Args:
        bucket: as it is served here.
        link_to: connects to another node for its partitions of this bucket.
    """

    def __init__(self, bucket: Bucket, link_to: Callable[[NodeAt], PartLink]) -> None:
        self.bucket = bucket
        self.link_to = link_to

    @property
    def is_shared(self) -> bool:
        """Return whether other nodes may have partitions."""
        return self.bucket.map is not None

    @property
    def is_whole(self) -> bool:
        """Return whether all partitions are active here."""
        return all(map(self._is_own, range(self.bucket.partition_count)))

    def _is_own(self, number: int) -> bool:
        partition = self.bucket.partitions[number]
        return partition.state is PartitionState.ACTIVE or partition.is_suspended

    def plan(self, numbers: Iterable[int]) -> Plan:
        """Return where these partitions are."""
        found = Plan([], {}, [])
        for number in numbers:
            node = self._node_of(number)
            if self._is_own(number):
                found.own.append(number)
            elif node is None:
                found.nowhere.append(number)
            else:
                found.by_node.setdefault(node, []).append(number)
        return found

    def others(self) -> set[NodeAt]:
        """Return all other nodes of the map."""
        bucket_map, this = self.bucket.map, self.bucket.node_name
        nodes = () if bucket_map is None else bucket_map.nodes
        return {NodeAt(node.host, node.http) for node in nodes if node.name != this}

    def _node_of(self, number: int) -> NodeAt | None:
        bucket_map = self.bucket.map
        name = None if bucket_map is None else bucket_map.active(number)
        if bucket_map is None or name is None or name == self.bucket.node_name:
            return None
        node = bucket_map.node(name)
        return NodeAt(node.host, node.http)


def is_elsewhere(error: MillstreamError) -> bool:
    """Return whether the error means that another node may have the partition: to be retried."""
    return error.code in _ELSEWHERE


def nowhere(numbers: Iterable[int]) -> UnavailableError:
    """Return the error for partitions without a known node."""
    return UnavailableError(
        f"no node is said to have partition {min(numbers)} now: ask again",
        code="not_my_partition",
        retry="refresh_map",
    )
