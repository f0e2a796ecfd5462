"""Nodes that share a bucket, for tests in one loop: real parts, a false net between them.

A node's pages are called as HTTP would call them, through JSON and bytes. Tests let nodes die,
refuse, send nonsense, break off, and move partitions.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.documents.local_documents import Documents
from millstream.databases.documents.local_parts import OwnParts
from millstream.databases.purges import Purges
from millstream.databases.remote_parts import HttpPartLink
from millstream.databases.scans.feeds import NodeChanges
from millstream.errors import MillstreamError, RoutingError, UnavailableError
from millstream.gateway.core.bucket_parts import (
    WantedChanges,
    WantedDocuments,
    WantedHistories,
    WantedPart,
)
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.partitions import PartitionState
from support.streams.changing_bucket import ChangingBucket

BUCKET = "orders"
_FORMS = {
    "histories": WantedHistories,
    "changes": WantedChanges,
    "documents": WantedDocuments,
    "figures": WantedPart,
}


class FalseRunning:
    """What is asked of a bucket that runs, around one in plain lists."""

    def __init__(self, count: int) -> None:
        self.bucket: Any = ChangingBucket(count)
        self.purge_epoch = 0

    async def count_purge(self) -> None:
        self.purge_epoch += 1


class Node:
    """One node, and what the net does to what it is asked."""

    def __init__(self, nodes: SpreadNodes, name: str, running: Any) -> None:
        self.name, self.running, self.bucket = name, running, running.bucket
        self.is_dead = False
        self.asked: list[str] = []
        """Pages that it was asked for."""
        self.on_chunk: Callable[[str, bytes], bytes | None] = lambda page, data: data
        """What becomes of a piece of an answer; None: it breaks off there."""
        self.clock = 0.0
        find = self._find
        purges = Purges(find, lambda: self.clock)
        self.changes = NodeChanges(find, lambda _, at: HttpPartLink(BUCKET, at, nodes.at), purges)
        self.documents = Documents(self, self.changes)  # type: ignore[arg-type]
        self.parts = OwnParts(self.changes, self.documents, purges, lambda: 10**18)

    def _find(self, name: str) -> Any:
        assert name == BUCKET
        return self.running

    def engine(self, name: str) -> Any:
        return self.running

    # -- as `HttpNode`

    async def ask(self, method: str, path: str, content: Any) -> bytes:
        page, data = self._request(path, content)
        if page == "purges":
            await self.parts.count_purge(BUCKET, **msgspec.json.decode(data))
            return b"{}"
        wanted = msgspec.json.decode(data, type=_FORMS[page])
        try:
            found = msgspec.json.encode(await getattr(self.parts, page)(BUCKET, wanted))
        except MillstreamError as error:
            raise _over_http(error) from error
        self._check_alive()
        changed = self.on_chunk(page, found)
        if changed is None:
            raise UnavailableError(f"node {self.name} broke off", code="node_failed")
        return changed

    async def opened(self, method: str, path: str, content: Any) -> Any:
        page, data = self._request(path, content)
        wanted = msgspec.json.decode(data, type=_FORMS[page])
        pieces = getattr(self.parts, page)(BUCKET, wanted)
        try:
            first = await anext(pieces, b"")
        except MillstreamError as error:
            raise _over_http(error) from error
        return _Response(self, page, first, pieces)

    def failed(self, what: str) -> UnavailableError:
        return UnavailableError(f"node {self.name} {what}", code="node_failed")

    def _request(self, path: str, content: Any) -> tuple[str, bytes]:
        self._check_alive()
        page = path.rsplit("/", 1)[1]
        self.asked.append(page)
        return page, msgspec.json.encode(content)

    def _check_alive(self) -> None:
        if self.is_dead:
            raise self.failed("cannot be reached")


def _over_http(error: MillstreamError) -> MillstreamError:
    if error.code in ("not_my_partition", "bucket_not_found"):
        return RoutingError(str(error), code="not_my_partition")
    return error


class _Response:
    def __init__(self, node: Node, page: str, first: bytes, pieces: Any) -> None:
        self._node, self._page, self._first, self._pieces = node, page, first, pieces
        self.headers: dict[str, str] = {}
        self.content = self

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        try:
            for_each = self._first
            while for_each:
                self._node._check_alive()
                changed = self._node.on_chunk(self._page, for_each)
                if changed is None:
                    return
                yield changed
                for_each = await anext(self._pieces, b"")
        finally:
            await self._pieces.aclose()

    def close(self) -> None:
        """Let the node stop reading, as one does whose connection ends."""
        self._closing = asyncio.ensure_future(self._pieces.aclose())


class SpreadNodes:
    """Some nodes; `owners` has the name of each partition's, a letter each."""

    def __init__(self, running: Mapping[str, Any], owners: str) -> None:
        self.nodes = {name: Node(self, name, one) for name, one in running.items()}
        self.owners = list(owners)
        self.revision = 0
        self.tell_map()

    @classmethod
    def false(cls, owners: str) -> SpreadNodes:
        """Nodes with buckets in plain lists."""
        made = cls({name: FalseRunning(len(owners)) for name in sorted(set(owners))}, owners)
        for name, node in made.nodes.items():
            for number, owner in enumerate(owners):
                if owner != name:
                    node.bucket.partitions[number].state = PartitionState.ABSENT
        return made

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def at(self, place: NodeAt) -> Any:
        return self.nodes[place.host]

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
