"""Nodes in this process that share a bucket, real but for a network that can be made to fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from millstream.cluster.cluster_state import NodeAt
from millstream.data_directory.bucket_files import BucketRecord
from millstream.databases.documents.copied_locals import CopiedLocals
from millstream.databases.documents.distributed_documents import DistributedDocuments
from millstream.databases.documents.local_documents import Documents
from millstream.databases.documents.local_node import LocalNode
from millstream.databases.purges import Purges
from millstream.databases.remote_node import RemoteNode
from millstream.databases.routing import HereNode
from millstream.databases.scans.feeds import NodeChanges
from millstream.errors import (
    ConditionError,
    MillstreamError,
    OutcomeUnknownError,
    UnavailableError,
)
from millstream.gateway.core.api.stored import Asked, decode_asked, encode, refused
from millstream.kv.aio.engine import BucketEngine
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.cluster_maps import DataRecord, MapKey
from millstream.model.partitions import PartitionState, partition_of

BUCKET, UUID, PARTITIONS = "b", "00", 4
Hook = Callable[[str, Asked], Awaitable[None]]


class Pages:
    """The pages of a node as `HttpNode` calls them; everything sent passes through bytes.

    Args:
        node: has `stored` and the hooks `arrives` (a request), `leaves` (after it), `sends` (a
            piece of an answer, or None to break off there).
    """

    def __init__(self, node: Any) -> None:
        self._node = node

    async def ask(self, method: str, path: str, *, data: Any) -> bytes:
        bucket, page = path.split("/")[3:5]
        if page == "blobs":
            await self._node.arrives(None)
            kept = await self._node.stored.put_blob(bucket, data)
            assert path.endswith(kept.sha256.hex())
            return b""
        asked = decode_asked(data)
        await self._node.arrives(asked)
        try:
            answer: Any = await self._node.stored.answer(bucket, asked)
        except MillstreamError as error:
            answer = refused(error)
        await self._node.leaves(asked)
        found: bytes | None = self._node.sends(asked, encode(answer))
        if found is None:
            raise self.failed("broke off")
        return found

    async def opened(self, method: str, path: str, *, data: bytes | None = None) -> Any:
        bucket, _, *rest = path.split("/")[3:]
        asked = None if data is None else decode_asked(data)
        await self._node.arrives(asked)
        if asked is None:
            name, query = rest[0].split("?")
            begin, end = [int(one.split("=")[1]) for one in query.split("&")]
            pieces = self._node.stored.open_blob(bucket, bytes.fromhex(name), begin, end)
        else:
            pieces = self._node.stored.stream(bucket, asked)
        first = await anext(pieces, b"")
        return _Response(self._node, asked, first, pieces)

    def failed(self, what: str) -> UnavailableError:
        return UnavailableError(f"node {self._node.name} {what}", code="node_failed")


class _Response:
    def __init__(self, node: Any, asked: Any, first: bytes, pieces: Any) -> None:
        self._node, self._asked, self._first, self._pieces = node, asked, first, pieces
        self.headers: dict[str, str] = {}
        self.content = self

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        try:
            piece = self._first
            while piece:
                changed = self._node.sends(self._asked, piece)
                if changed is None:
                    return
                yield changed
                piece = await anext(self._pieces, b"")
        finally:
            await self._pieces.aclose()

    def close(self) -> None:
        """Let the node stop reading, as one does whose connection ends."""
        self._closing = asyncio.ensure_future(self._pieces.aclose())


class SharingNode:
    """One node; it is also what its parts ask of `databases.buckets`."""

    def __init__(self, name: str, running: BucketEngine, network: Network) -> None:
        self.name, self.running, self._network = name, running, network
        self.is_served = True
        purges = Purges(self.engine, time.monotonic)
        changes = NodeChanges(
            self.engine, lambda name: HereNode(name, self.stored), network.link_to, purges
        )
        self.route = changes.router
        self.own = Documents(self, changes)  # type: ignore[arg-type]
        self.distributed = DistributedDocuments(self, self.own, changes)  # type: ignore[arg-type]
        self.copied = CopiedLocals(self.engine, self.own, changes.router)
        self.stored = LocalNode(
            self, self.own, changes, purges, self.copied, time.time_ns,  # type: ignore[arg-type]
        )  # fmt: skip

    def engine(self, bucket: str) -> BucketEngine:
        if bucket != BUCKET or not self.is_served:
            raise ConditionError("none", code="bucket_not_found")
        return self.running

    def records(self) -> list[BucketRecord]:
        return [BucketRecord(BUCKET, UUID, PARTITIONS, "2026-01-02T03:04:05+00:00", "", None)]

    # -- hooks of `Pages`

    async def arrives(self, asked: Asked | None) -> None:
        network = self._network
        if self.name in network.down:
            raise UnavailableError(f"{self.name} is down", code="node_failed")
        if asked is not None:
            network.asked.append((self.name, asked))
            await network.before(self.name, asked)

    async def leaves(self, asked: Asked) -> None:
        await self._network.after(self.name, asked)

    def sends(self, asked: Asked | None, data: bytes) -> bytes:
        answers = self._network.answers
        return encode(answers[self.name]) if asked is not None and self.name in answers else data


class Network:
    """Connects nodes.

    `before` is awaited with each request that arrives, `after` once it was answered: what they
    raise comes to who asked. Nodes in `down` cannot be reached.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, SharingNode] = {}
        self.asked: list[tuple[str, Asked]] = []
        self.down: set[str] = set()
        self.before: Hook = _nothing
        self.after: Hook = _nothing
        self.answers: dict[str, Any] = {}
        """Node -> what it answers to everything."""

    def link_to(self, bucket: str, at: NodeAt) -> RemoteNode:
        return RemoteNode(bucket, at, Pages(self.nodes[at.host]))  # type: ignore[arg-type]

    def requests(self, *kinds: type[Any]) -> list[str]:
        """Return which nodes were asked for something of these kinds, in order."""
        return [name for name, asked in self.asked if isinstance(asked, kinds)]


async def _nothing(name: str, asked: Asked) -> None:
    return


def lost(*kinds: type[Any], times: int = 1) -> Hook:
    """Return a hook that loses so many connections with requests of these kinds."""
    left = times

    async def hook(name: str, asked: Asked) -> None:
        nonlocal left
        if left and isinstance(asked, kinds):
            left -= 1
            raise OutcomeUnknownError("broke off", code="node_failed")

    return hook


class SharingNodes:
    """The nodes; partition p is active on node `rows[p]`."""

    def __init__(self) -> None:
        self.network = Network()
        self.rows = ""
        self.revision = 0

    def __getitem__(self, name: str) -> SharingNode:
        return self.network.nodes[name]

    @property
    def all(self) -> list[SharingNode]:
        return list(self.network.nodes.values())

    def give_map(self, rows: str, names: str | None = None) -> None:
        """Tell nodes who is to have what."""
        addresses = tuple(NodeAddress(name, name, 1, 1) for name in self.network.nodes)
        self.revision += 1
        placed = BucketMap(self.revision, addresses, tuple((name,) for name in rows))
        for name in names or self.network.nodes:
            self[name].running.bucket.set_map(placed, name)
        self.rows = rows

    async def set_state(self, name: str, partition: int, state: PartitionState) -> None:
        await self[name].running.copies.set_state(partition, state)

    async def move(self, partition: int, to: str) -> None:
        """Have another node have a partition, empty, and tell all nodes."""
        before = self.rows[partition]
        self.give_map(self.rows[:partition] + to + self.rows[partition + 1 :])
        await self.set_state(before, partition, PartitionState.DEAD)
        await self.set_state(to, partition, PartitionState.ACTIVE)

    def isolate(self, name: str) -> None:
        """Have a node serve by rights from now on, and give it none."""
        record = DataRecord(MapKey(2, 1), name, 1, ((name, "away"),))
        self[name].running.bucket.manage(name, lambda _: record)

    def owner(self, doc_id: str) -> str:
        return self.rows[partition_of(doc_id.encode(), PARTITIONS)]

    def id_at(self, name: str, prefix: str = "k") -> str:
        """Return an id of a document that a node has."""
        ids = (f"{prefix}{number}" for number in range(1000))
        return next(doc_id for doc_id in ids if self.owner(doc_id) == name)


@asynccontextmanager
async def sharing_nodes(path: Path, rows: str = "abab", names: str = "ab") -> AsyncIterator[Any]:
    """Open nodes, give them the map, and make active what is to be."""
    nodes = SharingNodes()
    failures: list[Exception] = []
    addresses = tuple(NodeAddress(name, name, 1, 1) for name in names)
    placed = BucketMap(1, addresses, tuple((name,) for name in rows))
    nodes.rows, nodes.revision = rows, 1
    async with AsyncExitStack() as stack:
        for name in names:
            running = await BucketEngine.open(
                path / name, name=BUCKET, uuid=UUID, partition_count=PARTITIONS,
                flush_interval_ms=1, bucket_map=placed, node_name=name,
                on_persisted=lambda: None, on_fatal=failures.append, on_corrupt=failures.append,
            )  # fmt: skip
            stack.push_async_callback(running.stop)
            nodes.network.nodes[name] = SharingNode(name, running, nodes.network)
        for partition, name in enumerate(rows):
            await nodes.set_state(name, partition, PartitionState.ACTIVE)
        yield nodes
