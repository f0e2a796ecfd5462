"""A bucket that this node only indexes, as it is described to the index process.

Invariants:
1. This node answers for all partitions; each is read at the node that has it active.
2. Documents are requested from the nodes that have them.
3. A design document that no owner has reported on is not called missing.

Elsewhere: the known state and its sources (`cluster.cluster_state`), sending the description
(`node.indexes`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.cluster.cluster_state import BucketState, NodeAt
from millstream.cluster.peers import ClusterPeers
from millstream.databases.design_reading import known_design
from millstream.databases.documents.included_documents import DistributedTexts, WithDocuments
from millstream.databases.remote_node import RemoteNode
from millstream.databases.routing import KnownPlace, Node, nowhere
from millstream.errors import UnavailableError
from millstream.gateway.core.api.node import ViewAnswer
from millstream.kv.core.revisions.design_documents import StoredDesign
from millstream.model.partitions import partition_of
from millstream.node.indexes import not_heard
from millstream.views.core.design.design_documents import told_designs

__all__ = ["FollowedBucket"]


class FollowedBucket:
    """Implements `node.indexes.ToldBucket`.

    Args:
        learned: the known state of the bucket.
        neighbours: sends requests for documents to other nodes.
    """

    def __init__(self, learned: BucketState, neighbours: ClusterPeers) -> None:
        self.learned = learned
        self.name, self.uuid = learned.name, learned.uuid
        self._neighbours = neighbours
        self._on_change: Callable[[], None] = lambda: None

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the description has changed."""
        self._on_change = callback

    def close(self) -> None:
        """Remove the subscription."""
        self._on_change = lambda: None

    def take(self, learned: BucketState) -> None:
        """Store a new known state."""
        self.learned = learned
        self._on_change()

    def warm(self, partition: int, *, is_wanted: bool) -> None:
        """Do nothing: there are no copies here."""

    def lacks_designs(self) -> bool:
        """Return whether there may be design documents that no owner has reported yet."""
        return self.learned.lacks_designs()

    async def order(self) -> dict[str, Any]:
        """Return the current description for the index process."""
        known = self.learned
        return {
            "uuid": self.uuid,
            "name": self.name,
            "partition_count": known.partitions,
            "active": list(range(known.partitions)),
            "passive": [],
            "resting": [],
            "designs": told_designs(
                {
                    one.name: (await known_design(self.uuid, one.stored(known.partitions))).told
                    for one in known.designs
                }
            ),
            "follows": [
                {"host": place.host, "kv": place.kv, "partitions": place.partitions}
                for place in known.places
            ],
        }

    def with_documents(self, answer: ViewAnswer, *, attachments: bool = False) -> ViewAnswer:
        """Return an answer with the document beside each row."""
        return WithDocuments(answer, DistributedTexts(self), attachments=attachments)

    # -- as `databases.documents.distributed_reads.Places`

    is_shared = True
    is_managed = False

    def node(self, place: KnownPlace) -> Node:
        """Return the node at a place; this node has no documents."""
        assert isinstance(place, NodeAt), "only other nodes have documents"
        return RemoteNode(self.name, place, self._neighbours.node(place))

    def place(self, key: bytes) -> NodeAt | None:
        """Return the node that has a document; None: none is known."""
        return self._place_of(partition_of(key, self.learned.partitions))

    def no_owner(self, key: bytes) -> UnavailableError:
        """Return the error for a document without a known owner."""
        return nowhere([partition_of(key, self.learned.partitions)])

    def design(self, name: str) -> StoredDesign | None:
        """Return a design document as pages show it; None if there is none.

        Raises:
            RoutingError: `design_differs`: no owner has reported on it yet.
        """
        found = next((one for one in self.learned.designs if one.name == name), None)
        if found is None and not self.learned.has_heard(name):
            raise not_heard()
        return None if found is None else found.stored(self.learned.partitions)

    def designs(self) -> list[StoredDesign]:
        """Return the design documents as pages show them, by name.

        Raises:
            RoutingError: `design_differs`: there may be some that no owner has reported yet.
        """
        if self.lacks_designs():
            raise not_heard()
        return [design.stored(self.learned.partitions) for design in self.learned.designs]

    def node_for(self, partition: int = 0) -> NodeAt | None:
        """Return a node that can answer requests that this node cannot."""
        return self._place_of(partition) or next(
            (place.node for place in self.learned.places), None
        )

    def _place_of(self, partition: int) -> NodeAt | None:
        for place in self.learned.places:
            if partition in place.partitions:
                return place.node
        return None
