"""Nodes in this process that share a bucket, real but for a network that can be made to fail."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from millstream.cluster.cluster_state import NodeAt
from millstream.data_directory.bucket_files import BucketRecord
from millstream.databases.documents.distributed_documents import DistributedDocuments
from millstream.databases.documents.local_documents import Documents
from millstream.databases.documents.peer_requests import StoredDocuments
from millstream.errors import (
    ConditionError,
    MillstreamError,
    OutcomeUnknownError,
    UnavailableError,
)
from millstream.gateway.core.api.stored import (
    Asked,
    Refused,
    decode_answer,
    decode_asked,
    encode,
    error_of,
    refused,
)
from millstream.kv.aio.engine import BucketEngine
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.partitions import PartitionState, partition_of
from support.kv.running_bucket import changes_here

BUCKET, UUID, PARTITIONS = "b", "00", 4
Hook = Callable[[str, Asked], Awaitable[None]]


class SpreadNode:
    """One node; it is also what its parts ask of `databases.buckets`."""

    def __init__(self, name: str, running: BucketEngine, network: Network) -> None:
        self.name, self.running = name, running
        self.is_served = True
        self.own = Documents(self, changes_here(running))  # type: ignore[arg-type]
        self.spread = DistributedDocuments(self, self.own, network)  # type: ignore[arg-type]
        self.stored = StoredDocuments(
            self, self.own, self.spread.local_documents.write_own  # type: ignore[arg-type]
        )  # fmt: skip

    def engine(self, bucket: str) -> BucketEngine:
        if bucket != BUCKET or not self.is_served:
            raise ConditionError("none", code="bucket_not_found")
        return self.running

    def records(self) -> list[BucketRecord]:
        return [BucketRecord(BUCKET, UUID, PARTITIONS, "2026-01-02T03:04:05+00:00", "", None)]


class Network:
    """Has the shape of `databases.documents.remote_nodes.NodesAsked`.

    What is sent is encoded and decoded.

    `before` is awaited with each request that arrives, `after` once it was answered: what they
    raise comes to who asked. Nodes in `down` cannot be reached.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, SpreadNode] = {}
        self.asked: list[tuple[str, Asked]] = []
        self.down: set[str] = set()
        self.before: Hook = _nothing
        self.after: Hook = _nothing
        self.answers: dict[str, Any] = {}
        """Node -> what it answers to everything."""

    async def ask(self, node: NodeAt, bucket: str, asked: Asked, kind: type[Any]) -> Any:
        name = node.host
        self._reach(name)
        self.asked.append((name, asked))
        await self.before(name, asked)
        try:
            answer: Any = await self.nodes[name].stored.answer(bucket, decode_asked(encode(asked)))
        except MillstreamError as error:
            answer = refused(error)
        await self.after(name, asked)
        answer = decode_answer(encode(self.answers.get(name, answer)))
        if isinstance(answer, Refused):
            raise error_of(answer)
        if not isinstance(answer, kind):
            raise OutcomeUnknownError("nonsense", code="node_failed")
        return answer

    async def give_blob(
        self, node: NodeAt, bucket: str, sha256: bytes, pieces: AsyncIterator[bytes]
    ) -> None:
        self._reach(node.host)
        kept = await self.nodes[node.host].stored.put_blob(bucket, pieces)
        assert kept.sha256 == sha256

    async def open_blob(
        self, node: NodeAt, bucket: str, sha256: bytes, begin: int, end: int
    ) -> AsyncGenerator[bytes, None]:
        self._reach(node.host)
        async for piece in self.nodes[node.host].stored.open_blob(bucket, sha256, begin, end):
            yield piece

    def _reach(self, name: str) -> None:
        if name in self.down:
            raise UnavailableError(f"{name} is down", code="node_failed")

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


class SpreadNodes:
    """The nodes; partition p is active on node `rows[p]`."""

    def __init__(self) -> None:
        self.network = Network()
        self.rows = ""
        self.revision = 0

    def __getitem__(self, name: str) -> SpreadNode:
        return self.network.nodes[name]

    @property
    def all(self) -> list[SpreadNode]:
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

    def owner(self, doc_id: str) -> str:
        return self.rows[partition_of(doc_id.encode(), PARTITIONS)]

    def id_at(self, name: str, prefix: str = "k") -> str:
        """Return an id of a document that a node has."""
        ids = (f"{prefix}{number}" for number in range(1000))
        return next(doc_id for doc_id in ids if self.owner(doc_id) == name)


@asynccontextmanager
async def sharing_nodes(path: Path, rows: str = "abab", names: str = "ab") -> AsyncIterator[Any]:
    """Open nodes, give them the map, and make active what is to be."""
    nodes = SpreadNodes()
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
            nodes.network.nodes[name] = SpreadNode(name, running, nodes.network)
        for partition, name in enumerate(rows):
            await nodes.set_state(name, partition, PartitionState.ACTIVE)
        yield nodes
