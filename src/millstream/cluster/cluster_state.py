"""What a node learns of a bucket from other nodes: active partitions and design documents.

Every node reports which partitions of a bucket are active on it, the design documents of those
partitions, and its map. This module combines the reports of several nodes.

Invariants:
1. A design document is taken from the node that has its partition active by the newest map, if
   that node reports it as active, too. Until then the known version stays, so that no index is
   dropped because a partition is moving.
2. The combined state has everything that an index process is told, so it can be kept in a file.
3. The places of partitions are never taken from a map older than the known one: the node with the
   newest map may be silent for a while, and older maps be reported meanwhile.
4. A design document counts as missing only if an owner of its partition has ever reported which
   ones it has.

Elsewhere: requests (`cluster.peers`), what other nodes are told (`databases.shared_answers`), the
files (`node.index_node`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from millstream.kv.core.revisions.design_documents import StoredDesign
from millstream.model.bucket_map import BucketMap, bucket_map_from_json
from millstream.model.partitions import DESIGN_PREFIX, partition_of

__all__ = [
    "BucketState",
    "ListedBucket",
    "NodeAt",
    "Place",
    "SharedBucket",
    "SharedDesign",
    "SharedList",
    "Told",
    "designs_of",
    "learn",
    "owners",
    "places_of",
]


class NodeAt(NamedTuple):
    """Address of the pages of a node."""

    host: str
    """IPv6 without brackets."""
    http: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.http}" if ":" in self.host else f"{self.host}:{self.http}"


class SharedDesign(msgspec.Struct, frozen=True):
    """A design document that is persisted."""

    name: str
    rev: str
    document: msgspec.Raw
    """JSON without `_id` and `_rev`."""

    def partition(self, partitions: int) -> int:
        """Return the partition that has it, of so many."""
        return _partition_of_design(self.name, partitions)

    def stored(self, partitions: int) -> StoredDesign:
        """Return it as pages show it."""
        body = bytes(self.document)
        partition = self.partition(partitions)
        return StoredDesign(self.name, self.rev, body, False, partition, 0, True)


class ListedBucket(msgspec.Struct, frozen=True):
    """A bucket in a node's list."""

    name: str
    uuid: str
    partitions: int
    revision: str
    """Changes each time the node's report of it changes; empty: the bucket is not served."""


class SharedList(msgspec.Struct, frozen=True):
    """The report of a node about itself."""

    uuid: str
    kv: int
    """Port of the kv listener; 0 if it is closed."""
    buckets: list[ListedBucket]


class SharedBucket(msgspec.Struct, frozen=True):
    """The report of a node about a bucket."""

    name: str
    uuid: str
    partitions: int
    revision: str
    this: str
    """Name of the node in the map."""
    map: dict[str, Any] | None
    active: list[int]
    designs: list[SharedDesign]
    """Design documents whose partition is active there."""

    def bucket_map(self) -> BucketMap | None:
        """Return the map, None if there is none."""
        return None if self.map is None else bucket_map_from_json(self.map)


class Told(NamedTuple):
    """A report, and the node that made it."""

    node: NodeAt
    kv: int
    bucket: SharedBucket


class Place(msgspec.Struct, frozen=True):
    """A node, and the partitions that are active there."""

    name: str
    host: str
    kv: int
    http: int
    partitions: list[int]

    @property
    def node(self) -> NodeAt:
        """Return the address of its pages."""
        return NodeAt(self.host, self.http)


class BucketState(msgspec.Struct, frozen=True):
    """The known state of a bucket."""

    name: str
    uuid: str
    partitions: int
    places: list[Place]
    designs: list[SharedDesign]
    revision: int = 0
    """Revision of the map that the places come from; 0: there was none."""
    heard: list[int] = []
    """The partitions whose design documents some owner has reported."""
    generation: int = 0
    """Generation of that map."""

    @property
    def key(self) -> tuple[int, int]:
        """Return the age of the map that the places come from."""
        return self.generation, self.revision

    def lacks_designs(self) -> bool:
        """Return whether there may be design documents that no owner has reported yet."""
        return len(self.heard) < self.partitions

    def has_heard(self, name: str) -> bool:
        """Return whether the partition of the design document of this name is in `heard`."""
        return _partition_of_design(name, self.partitions) in self.heard


def learn(told: Sequence[Told], before: BucketState | None = None) -> BucketState:
    """Combine the reports of nodes about one bucket.

    Args:
        told: at least one; without a map the first one counts.
        before: the known state; its places stay if only older maps are reported.

    Raises:
        UsageError: an invalid map.
    """
    one = told[0].bucket
    bucket_map = newest_map(told)
    key = (0, 0) if bucket_map is None else bucket_map.key
    if before is not None and key < before.key:
        key, places = before.key, before.places
    elif bucket_map is None:
        places = [
            Place(
                "", told[0].node.host, told[0].kv, told[0].node.http, list(range(one.partitions))
            )
        ]
    else:
        places = places_of(bucket_map)
    owned = owners(told, places)
    known = (before.designs, before.heard) if before is not None else ((), ())
    return BucketState(
        one.name,
        one.uuid,
        one.partitions,
        places,
        designs_of(owned, one.partitions, known[0]),
        key[1],
        sorted(owned.keys() | set(known[1])),
        key[0],
    )


def _partition_of_design(name: str, partitions: int) -> int:
    return partition_of(DESIGN_PREFIX + name.encode(errors="surrogatepass"), partitions)


def newest_map(told: Sequence[Told]) -> BucketMap | None:
    """Return the newest map that any of the nodes has."""
    maps = [found for each in told if (found := each.bucket.bucket_map()) is not None]
    return max(maps, key=lambda one: one.key, default=None)


def places_of(bucket_map: BucketMap) -> list[Place]:
    """Return the nodes that have active partitions, by name."""
    active: dict[str, list[int]] = {}
    for partition in range(len(bucket_map.rows)):
        name = bucket_map.active(partition)
        if name is not None:
            active.setdefault(name, []).append(partition)
    nodes = map(bucket_map.node, sorted(active))
    return [Place(node.name, node.host, node.kv, node.http, active[node.name]) for node in nodes]


def owners(told: Sequence[Told], places: Sequence[Place]) -> dict[int, SharedBucket]:
    """Return partition -> report of its owner, if the owner reports it as active."""
    by_name = {each.bucket.this: each.bucket for each in reversed(told)}
    return {
        partition: owner
        for place in places
        if (owner := by_name.get(place.name)) is not None
        for partition in set(place.partitions) & set(owner.active)
    }


def designs_of(
    owned: Mapping[int, SharedBucket], partitions: int, before: Collection[SharedDesign]
) -> list[SharedDesign]:
    """Return the design documents by name, each as its owner has it.

    Args:
        owned: partition -> report of its owner, as `owners` returns it.
        partitions: number of partitions of the bucket.
        before: the known ones; they stay where no owner reports.
    """
    found = {one.name: one for one in before if one.partition(partitions) not in owned}
    for partition, owner in owned.items():
        for design in owner.designs:
            if design.partition(partitions) == partition:
                found[design.name] = design
    return [found[name] for name in sorted(found)]
