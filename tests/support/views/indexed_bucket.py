"""A node in the test's loop, indexes of one of its buckets, and what they should have.

`right_rows` recomputes from the documents; the mapper shares no code with it.
"""

import asyncio
import shutil
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import msgspec

from millstream.access.kv_login import Login
from millstream.client.kv import Client, Durability, connect
from millstream.node.embedded import Node
from millstream.trees.core.shapes import NO_REDUCER
from millstream.upr.aio.link import TIMEOUT_S, Link
from millstream.views.aio.indexing.index_mapping import MappedChanges
from millstream.views.aio.indexing.index_source import IndexerSpec
from millstream.views.aio.indexing.index_sources import Source
from millstream.views.aio.indexing.indexing import BucketIndexer
from millstream.views.core.design.documents import Changes
from millstream.views.core.index.header import DocumentRows, MapFailure
from millstream.views.core.index.index import Index, IndexShape
from millstream.views.core.rows import pairs_of, split_row_key
from millstream.wire.frames import change_of
from support.views.memory_index_store import MemoryIndexStore

BUCKET = "docs"
PARTITIONS = 8


class TestMapper:
    """Emits (member `k`, id) for each element of `k`; fails where `k` is "bad"."""

    __test__ = False

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.given: list[Changes] = []
        self.is_closed = False
        self.busy_s = 0.0

    def map(self, changes: Changes) -> MappedChanges:
        assert len(changes.frames) == len(changes.sides)
        self.calls.append(len(changes.frames))
        self.given.append(changes)
        documents, failures = [], []
        for frame in changes.frames:
            change = change_of(frame)
            rows = []
            if not change.is_deleted:
                keys = msgspec.json.decode(change.value)["k"]
                if keys == "bad":
                    failure = MapFailure(0, change.key.decode(), "it is bad")
                    failures.append((change.partition_id, failure))
                    keys = []
                rows = [
                    (0, b"%06d\x01" % key, b"%d" % key, msgspec.json.encode(change.key.decode()))
                    for key in keys
                ]
            documents.append(DocumentRows(change.partition_id, change.key, rows))
        return MappedChanges(documents, failures)

    def close(self) -> None:
        self.is_closed = True

    def stop(self) -> None:
        """Nothing runs for long."""

    def resume(self) -> None:
        """Nothing was stopped."""


class IndexedBucket:
    """A node with one bucket, and an indexer of it."""

    def __init__(self, folder: Path, **node: Any) -> None:
        self.folder = folder
        self.node_folder = folder / "node"
        self._options = node
        self.executor = ThreadPoolExecutor(2)
        self.indexes: dict[str, Index] = {}
        self.mappers: dict[str, TestMapper] = {}
        self.stores: dict[str, MemoryIndexStore] = {}
        """Kept when an indexer ends, like a disk."""
        self.documents: dict[str, object] = {}
        """Key -> its member `k`."""

    async def __aenter__(self) -> Self:
        await self.start_node()
        await self.start_indexer()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_indexer()
        await self.stop_node()
        self.executor.shutdown()

    async def start_node(self) -> None:
        self.node = Node(
            self.node_folder, buckets=[f"{BUCKET}:{PARTITIONS}"], http=None, **self._options
        )
        await self.node.start()
        assert self.node.kv
        host, _, port = self.node.kv.rpartition(":")
        self.host, self.port = host, int(port)
        self.client: Client = await asyncio.to_thread(connect, self.node.kv, bucket=BUCKET)

    async def stop_node(self) -> None:
        # asyncio leaks what it accepts in the very moment in which a listener closes.
        self.port = 1
        await asyncio.sleep(0.01)
        await asyncio.to_thread(self.client.close)
        await self.node.stop()

    def link(self) -> Link:
        address = f"{self.host}:{self.port}"
        login = Login(address, None, "", BUCKET)
        return Link(login, self.host, self.port, tls=None, timeout_s=TIMEOUT_S)

    async def start_indexer(self) -> None:
        spec = IndexerSpec(BUCKET, self.node.bucket(BUCKET).uuid, self.folder)
        self.indexer = BucketIndexer(spec, [Source("test", lambda: self.link())], self.executor)
        await self.indexer.start()
        await self.indexer.set_partitions(range(PARTITIONS))

    async def stop_indexer(self) -> None:
        await self.indexer.stop()

    async def add(self, signature: str = "one", *, is_automatic: bool = True) -> Index:
        store = self.stores.setdefault(signature, MemoryIndexStore())
        index = Index(store, IndexShape(signature, "test", (NO_REDUCER,), ((),)), 0)
        self.indexes[signature] = index
        self.mappers[signature] = TestMapper()
        await self.indexer.add(index, self.mappers[signature], is_automatic=is_automatic)
        return index

    # -- writing

    async def put(
        self, documents: Mapping[str, object], durability: Durability = "memory"
    ) -> None:
        self.documents |= documents
        encoded = {key: msgspec.json.encode({"k": k}) for key, k in documents.items()}
        await asyncio.to_thread(
            lambda: self.client.upsert_many(encoded, durability=durability).raise_first()
        )

    async def lose(self) -> None:
        """Kill the node in effect: it begins anew from what is on the disk now."""
        rest = self.folder / f"node {len(list(self.folder.iterdir()))}"
        await asyncio.to_thread(
            shutil.copytree, self.node_folder, rest, ignore=shutil.ignore_patterns("*.sock")
        )
        await self.stop_node()
        self.node_folder = rest
        await self.start_node()

    async def reload(self, keys: Collection[str]) -> None:
        """Learn from the node which of these documents there are."""
        found = await asyncio.to_thread(self.client.get_many, keys)
        self.documents = {
            key: msgspec.json.decode(found[key].value)["k"] for key in keys if key in found
        }

    async def remove(self, keys: Collection[str]) -> None:
        for key in keys:
            del self.documents[key]

        def work() -> None:
            for key in keys:
                self.client.remove(key)

        await asyncio.to_thread(work)

    # -- checking

    async def updated(
        self, signature: str = "one", partitions: Collection[int] = range(PARTITIONS)
    ) -> None:
        await self.indexer.updated(signature, partitions, 20.0)

    def rows(self, signature: str = "one") -> list[tuple[int, str]]:
        """(key, document id) in the order of the tree."""
        found = []
        with self.indexes[signature].snapshot(0) as snapshot:
            wanted = snapshot.header.countable
            for leaf in snapshot.tree(0).scan(None, None, wanted=wanted):
                for key, value in zip(leaf.keys, leaf.values, strict=True):
                    doc_id = split_row_key(key)[1].decode()
                    found += [(int(pair[0]), doc_id) for pair in pairs_of(value)]
        return found

    def right_rows(self, partitions: Collection[int] = range(PARTITIONS)) -> list[tuple[int, str]]:
        return sorted(
            (key, doc_id)
            for doc_id, keys in self.documents.items()
            if keys != "bad" and self.client.partition_of(doc_id) in partitions
            for key in keys  # type: ignore[attr-defined]
        )

    def check(self, signature: str = "one") -> None:
        assert self.rows(signature) == self.right_rows()
