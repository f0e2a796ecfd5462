"""Exchange of bucket descriptions between this node and the others.

A design document is in one partition, and a node may have no copy of that partition. It then asks
the node that has it active, so that every node knows all design documents of a bucket and can
index it.

Invariants:
1. Only nodes are asked that have active a partition of which no copy is here.
2. Reports about a partition are forgotten once a copy is here. When that copy has gone again, old
   reports are not used.

Elsewhere: requests (`cluster.peers`), what other nodes are told (`databases.shared_answers`,
`databases.own_bucket`).
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.cluster.cluster_state import NodeAt, designs_of, owners, places_of
from millstream.cluster.peers import ClusterPeers
from millstream.databases.buckets import Buckets
from millstream.databases.own_bucket import OwnBucket
from millstream.databases.remote_node import RemoteNode
from millstream.databases.routing import Router
from millstream.databases.shared_answers import Shared
from millstream.kv.aio.engine import BucketEngine
from millstream.node.indexes import Indexes
from millstream.views.aio.serving.gathering import NodeAccess

__all__ = ["OtherNodes"]


class OtherNodes:
    """The other nodes, for one engine; ended by `stop`.

    Args:
        access: how other nodes are reached and authenticated.
        indexes: describes buckets to the index process.
    """

    def __init__(self, access: NodeAccess, indexes: Indexes) -> None:
        self._indexes = indexes
        self.own: dict[str, OwnBucket] = {}
        """The served buckets, by uuid."""
        self.neighbours = ClusterPeers(access, self._wants, self._heard)
        self.stop = self.neighbours.stop

    def shared(self, uuid: str, buckets: Buckets, kv_port: Callable[[], int]) -> Shared:
        """Return what other nodes are told."""
        return Shared(uuid, buckets, self.own, kv_port)

    def link_to(self, bucket: str, node: NodeAt) -> RemoteNode:
        """Return another node, to be asked about a bucket."""
        return RemoteNode(bucket, node, self.neighbours.node(node))

    def bucket_up(self, running: BucketEngine, index_replicas: bool, router: Router) -> None:
        """A bucket is about to be served, or the indexing of its replicas has changed."""
        uuid = running.bucket.uuid
        if uuid in self.own:
            self.own[uuid].set_index_replicas(index_replicas)
            return
        own = self.own[uuid] = OwnBucket(running, index_replicas, router)
        running.bucket.published.add("index", lambda: self._indexes.figures(uuid))
        self._indexes.bucket_up(own)
        own.subscribe(self._look_round)
        self._look_round()

    async def bucket_gone(self, uuid: str) -> None:
        """A bucket was stopped for good; its files may be removed afterwards."""
        self.own.pop(uuid, None)
        self._look_round()
        await self._indexes.bucket_gone(uuid)

    def _wants(self, uuid: str) -> bool:
        return uuid in self.own and bool(self._lacking(self.own[uuid]))

    def _lacking(self, own: OwnBucket) -> dict[NodeAt, frozenset[int]]:
        """Return the nodes that have active partitions without a copy here."""
        bucket_map = own.bucket.map
        lacking = frozenset[int]() if bucket_map is None else own.lacking()
        if bucket_map is None or not lacking:
            return {}
        return {
            place.node: here
            for place in places_of(bucket_map)
            if place.name != own.bucket.node_name and (here := lacking & set(place.partitions))
        }

    def _look_round(self) -> None:
        """Maps or copies may have changed: update the set of nodes to ask."""
        self.neighbours.watch({node for own in self.own.values() for node in self._lacking(own)})
        self._heard()

    def _heard(self) -> None:
        for uuid, own in list(self.own.items()):
            told = self.neighbours.told_of(uuid)
            places = [] if own.bucket.map is None else places_of(own.bucket.map)
            heard = owners(told, places)
            count, lacking = own.bucket.partition_count, own.lacking()
            before = [one for one in own.elsewhere.values() if one.partition(count) in lacking]
            known = designs_of(heard, count, before)
            own.set_elsewhere({design.name: design for design in known}, heard.keys())
