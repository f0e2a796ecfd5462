"""A bucket that this node indexes and does not have: what is told to the index process of it.

Invariants:
1. All partitions are answered for from here; each is read at the node that has it active.
2. Documents are asked of the nodes that have them.
3. What was not heard yet is not said to be missing.

Elsewhere: what is known and from whom (`node.learned`), telling (`node.indexes`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.cluster.cluster_state import Learned, NodeAt
from millstream.cluster.peers import Neighbours
from millstream.databases.documents.included_documents import WithDocuments
from millstream.databases.documents.remote_documents import DocumentsElsewhere
from millstream.gateway.core.api.node import ViewAnswer
from millstream.kv.core.revisions.design_documents import StoredDesign
from millstream.node.indexes import not_heard
from millstream.views.core.design.design_documents import told_designs

__all__ = ["FollowedBucket"]


class FollowedBucket:
    """Has the shape of `node.indexes.ToldBucket`.

    Args:
        learned: what is known of the bucket.
        neighbours: through which nodes are asked for documents.
    """

    def __init__(self, learned: Learned, neighbours: Neighbours) -> None:
        self.learned = learned
        self.name, self.uuid = learned.name, learned.uuid
        self._neighbours = neighbours
        self._on_change: Callable[[], None] = lambda: None

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` when something of it is not as it was told."""
        self._on_change = callback

    def close(self) -> None:
        """Nobody wants to know any more."""
        self._on_change = lambda: None

    def take(self, learned: Learned) -> None:
        """Something else was learned."""
        self.learned = learned
        self._on_change()

    def warm(self, partition: int, *, is_wanted: bool) -> None:
        """Do nothing: there are no copies here."""

    def lacks_designs(self) -> bool:
        """Whether there may be design documents that no owner of their partition has said yet."""
        return self.learned.lacks_designs()

    async def order(self) -> dict[str, Any]:
        """Return what the index process is to be told now."""
        known = self.learned
        return {
            "uuid": self.uuid,
            "name": self.name,
            "partition_count": known.partitions,
            "active": list(range(known.partitions)),
            "passive": [],
            "resting": [],
            "designs": told_designs({one.name: one.document for one in known.designs}),
            "follows": [
                {"host": place.host, "kv": place.kv, "partitions": place.partitions}
                for place in known.places
            ],
        }

    def with_documents(self, answer: ViewAnswer, *, attachments: bool = False) -> ViewAnswer:
        """Return an answer with the document beside each row."""
        return WithDocuments(
            answer,
            DocumentsElsewhere(
                self.name, self.learned.partitions, self._place_of, self._neighbours
            ),
            attachments=attachments,
        )

    def design(self, name: str) -> StoredDesign | None:
        """Return a design document as pages show it; None if there is none.

        Raises:
            RoutingError: `design_differs`: no owner has said yet whether there is.
        """
        found = next((one for one in self.learned.designs if one.name == name), None)
        if found is None and not self.learned.has_heard(name):
            raise not_heard()
        return None if found is None else found.stored(self.learned.partitions)

    def designs(self) -> list[StoredDesign]:
        """Return the design documents as pages show them, by name.

        Raises:
            RoutingError: `design_differs`: there may be some that no owner has said yet.
        """
        if self.lacks_designs():
            raise not_heard()
        return [design.stored(self.learned.partitions) for design in self.learned.designs]

    def node_for(self, partition: int = 0) -> NodeAt | None:
        """Return a node to ask what this one cannot say."""
        return self._place_of(partition) or next(
            (place.node for place in self.learned.places), None
        )

    def _place_of(self, partition: int) -> NodeAt | None:
        for place in self.learned.places:
            if partition in place.partitions:
                return place.node
        return None
