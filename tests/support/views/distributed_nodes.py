"""Nodes that share a bucket, for tests in one loop: real parts, a false net between them.

A node's pages are called as HTTP would call them, through bytes. Tests let nodes die, refuse, send
nonsense, break off, and move partitions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.documents.copied_locals import CopiedLocals
from millstream.databases.documents.distributed_documents import DistributedDocuments
from millstream.databases.documents.local_documents import Documents
from millstream.databases.documents.local_node import LocalNode
from millstream.databases.purges import Purges
from millstream.databases.remote_node import RemoteNode
from millstream.databases.routing import HereNode
from millstream.databases.scans.feeds import NodeChanges
from millstream.errors import UnavailableError
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.partitions import PartitionState
from support.http.sharing_nodes import Pages
from support.streams.changing_bucket import ChangingBucket

BUCKET = "orders"


class FalseRunning:
    """What is asked of a bucket that runs, around one in plain lists."""

    def __init__(self, count: int) -> None:
        self.bucket: Any = ChangingBucket(count)
        self.purge_epoch = 0

    async def count_purge(self) -> None:
        self.purge_epoch += 1


class Node:
    """One node, and what the net does to what it is asked."""

    def __init__(self, nodes: DistributedNodes, name: str, running: Any) -> None:
        self.name, self.running, self.bucket = name, running, running.bucket
        self.is_dead = False
        self.asked: list[str] = []
        """Kinds of requests that came."""
        self.on_chunk: Callable[[str, bytes], bytes | None] = lambda kind, data: data
        """What becomes of a piece of an answer; None: it breaks off there."""
        self.clock = 0.0
        purges = Purges(self.engine, lambda: self.clock)
        self.changes = NodeChanges(
            self.engine, lambda name: HereNode(name, self.stored), nodes.link_to, purges
        )
        own = Documents(self, self.changes)  # type: ignore[arg-type]
        self.documents = DistributedDocuments(self, own, self.changes)  # type: ignore[arg-type]
        self.stored = LocalNode(
            self, own, self.changes, purges,  # type: ignore[arg-type]
            CopiedLocals(self.engine, own, self.changes.router), lambda: 10**18,
        )  # fmt: skip

    def engine(self, name: str) -> Any:
        assert name in (BUCKET, self.bucket.name)
        return self.running

    # -- hooks of `Pages`

    async def arrives(self, asked: Any) -> None:
        self._check_alive()
        self.asked.append(type(asked).__name__)

    async def leaves(self, asked: Any) -> None:
        self._check_alive()

    def sends(self, asked: Any, data: bytes) -> bytes | None:
        self._check_alive()
        return self.on_chunk(type(asked).__name__, data)

    def _check_alive(self) -> None:
        if self.is_dead:
            raise UnavailableError(f"node {self.name} cannot be reached", code="node_failed")


class DistributedNodes:
    """Some nodes; `owners` has the name of each partition's, a letter each."""

    def __init__(self, running: Mapping[str, Any], owners: str) -> None:
        self.nodes = {name: Node(self, name, one) for name, one in running.items()}
        self.owners = list(owners)
        self.revision = 0
        self.tell_map()

    @classmethod
    def false(cls, owners: str) -> DistributedNodes:
        """Nodes with buckets in plain lists."""
        made = cls({name: FalseRunning(len(owners)) for name in sorted(set(owners))}, owners)
        for name, node in made.nodes.items():
            for number, owner in enumerate(owners):
                if owner != name:
                    node.bucket.partitions[number].state = PartitionState.ABSENT
        return made

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def link_to(self, bucket: str, at: NodeAt) -> RemoteNode:
        return RemoteNode(bucket, at, Pages(self.nodes[at.host]))  # type: ignore[arg-type]

    def tell_map(self, owners: Sequence[str] | None = None) -> None:
        """Give all nodes a map."""
        self.revision += 1
        nodes = tuple(NodeAddress(name, name, 1, 2) for name in self.nodes)
        rows = tuple((owner,) for owner in owners or self.owners)
        for name, node in self.nodes.items():
            node.bucket.map = BucketMap(self.revision, nodes, rows)
            node.bucket.node_name = name
            if isinstance(node.bucket, ChangingBucket):
                node.bucket.changed()

    def marks(self) -> list[int]:
        """Up to where each partition is durable."""
        owned = enumerate(self.owners)
        return [self[name].bucket.partitions[number].durable_mark() for number, name in owned]

    def write(self, number: int, keys: str) -> None:
        """One write per letter into a partition, at its owner."""
        self.nodes[self.owners[number]].bucket.write(number, keys)

    def move(self, number: int, to: str, *, loses: int = 0, is_told: bool = True) -> None:
        """Another node has a partition now, perhaps without its last changes."""
        before = self.nodes[self.owners[number]].bucket.partitions[number]
        copy = dataclasses.replace(
            before, writes=list(before.writes), marks=list(before.marks), holds={}, readers=[],
            logged_holds={}, histories={k: list(v) for k, v in before.histories.items()},
        )  # fmt: skip
        copy.fail_over(copy.high_seqno - loses)
        copy.marks.append(copy.high_seqno)
        before.state = PartitionState.DEAD
        before.lose_holds()
        copy.state = PartitionState.ACTIVE
        self.nodes[to].bucket.partitions[number] = copy
        self.nodes[self.owners[number]].bucket.flush()
        self.nodes[to].bucket.flush()
        self.owners[number] = to
        if is_told:
            self.tell_map()
