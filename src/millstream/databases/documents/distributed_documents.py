"""The documents of a node's databases, wherever their partitions are active.

For a bucket that is on this node only, calls go straight to `databases.documents.local_documents`.
For a bucket that is spread over nodes, each node answers for all documents and asks the other
nodes for those that it does not have.

Invariants:
1. Documents of this node are read and changed on this node.
2. Answers about a document come from the node where its partition is active.
3. The bytes of an attachment that are not here are passed on from a node that has them.

Elsewhere: lists and feeds over nodes (`databases.scans`); many documents at once
(`databases.documents.distributed_reads`, `databases.documents.distributed_updates`), local
documents (`databases.documents.distributed_local_documents`), settings
(`databases.documents.distributed_settings`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TypeVar

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.buckets import Buckets
from millstream.databases.documents.distributed_local_documents import DistributedLocalDocuments
from millstream.databases.documents.distributed_reads import DistributedReads
from millstream.databases.documents.distributed_settings import DistributedSettings
from millstream.databases.documents.distributed_updates import DistributedUpdate
from millstream.databases.documents.document_owners import is_alone, other_nodes
from millstream.databases.documents.local_documents import Documents
from millstream.databases.documents.remote_nodes import NodesAsked
from millstream.documents.purge_list import Purged, PurgeList
from millstream.documents.stored import StoredDocument
from millstream.errors import MillstreamError
from millstream.gateway.core.api.documents import (
    Blob,
    DatabaseInfo,
    Decide,
    LocalDocument,
    Settings,
    Written,
)
from millstream.gateway.core.api.stored import Asked, AskPurges, Commit, Done, LimitPurges, Purges
from millstream.kv.core.bucket import Bucket

__all__ = ["DistributedDocuments"]

_A = TypeVar("_A")


class DistributedDocuments:
    """Implements `gateway.core.api.documents.DocumentApi`.

    Args:
        buckets: of the node.
        own: the documents of this node.
        nodes: sends requests to other nodes.
    """

    def __init__(self, buckets: Buckets, own: Documents, nodes: NodesAsked) -> None:
        self._buckets, self._own, self._nodes = buckets, own, nodes
        self._settings = DistributedSettings(buckets, own, nodes)
        self.local_documents = DistributedLocalDocuments(buckets, own, nodes)

    async def info(self, bucket: str) -> DatabaseInfo:
        """Return information about a database."""
        await self._settings.learn(bucket)
        return await self._own.info(bucket)

    async def total(self, bucket: str) -> int | None:
        """Return the number of documents; see `DocumentApi`."""
        return await self._own.total(bucket)

    def drop(self, bucket: Bucket) -> None:
        """A bucket is no longer served."""
        self._own.drop(bucket)
        self._settings.drop(bucket)

    async def stop(self) -> None:
        """Stop all background work; called when the node stops."""
        await self._own.stop()

    def scan(
        self, bucket: str, start: bytes, end: bytes, *, descending: bool
    ) -> AsyncGenerator[tuple[str, StoredDocument], None]:
        """Return documents by id, without deleted ones."""
        return self._own.scan(bucket, start, end, descending=descending)

    def keys(self, bucket: str, start: bytes, end: bytes) -> AsyncGenerator[bytes, None]:
        """Return all keys in a range; see `DocumentApi`."""
        return self._own.keys(bucket, start, end)

    # -- documents

    async def read(
        self, bucket: str, doc_id: str, *, is_durable: bool = False
    ) -> StoredDocument | None:
        """Return a document; None if there was never one."""
        shared = self._buckets.engine(bucket).bucket
        if is_alone(shared):
            return await self._own.read(bucket, doc_id, is_durable=is_durable)
        async for found in self.read_all(bucket, [doc_id], is_durable=is_durable):
            if isinstance(found, MillstreamError):
                raise found
            return found
        raise AssertionError("one is asked for, one is answered")

    async def read_all(
        self, bucket: str, doc_ids: Sequence[str], *, is_durable: bool = False
    ) -> AsyncGenerator[StoredDocument | MillstreamError | None, None]:
        """Yield documents in order; an unreadable one is yielded as its error."""
        shared = self._buckets.engine(bucket).bucket
        if is_alone(shared):
            found = self._own.read_all(bucket, doc_ids, is_durable=is_durable)
        else:
            limit = (await self.settings(bucket)).revs_limit
            reads = DistributedReads(shared, self._own, self._nodes, limit, is_durable=is_durable)
            found = reads.read_all(doc_ids)
        async with aclosing(found):
            async for one in found:
                yield one

    async def update(
        self, bucket: str, edits: Sequence[tuple[str, Decide]], *, is_durable: bool
    ) -> list[Written | MillstreamError]:
        """Change documents; return the result of each."""
        shared = self._buckets.engine(bucket).bucket
        if is_alone(shared):
            return await self._own.update(bucket, edits, is_durable=is_durable)
        limit = (await self.settings(bucket)).revs_limit
        updating = DistributedUpdate(shared, self._own, self._nodes, limit, is_durable=is_durable)
        return await updating.update(edits)

    async def commit(self, bucket: str) -> None:
        """Return once everything accepted before is durable on all nodes."""
        uuid = self._buckets.engine(bucket).bucket.uuid
        await asyncio.gather(
            self._own.commit(bucket), self._ask_others(bucket, Commit(uuid), Done)
        )

    async def _ask_others(self, bucket: str, asked: Asked, kind: type[_A]) -> list[_A]:
        """Return the answers of the other nodes of the map that have parts of the bucket."""

        async def there(node: NodeAt) -> _A | None:
            try:
                return await self._nodes.ask(node, bucket, asked, kind)
            except MillstreamError as error:
                if error.code == "bucket_not_found":  # in the map, but without a part of it
                    return None
                raise

        others = other_nodes(self._buckets.engine(bucket).bucket)
        found = await asyncio.gather(*map(there, others))
        return [one for one in found if one is not None]

    # -- attachments

    async def put_blob(self, bucket: str, pieces: AsyncIterator[bytes]) -> Blob:
        """Store bytes durably here; the owner of the document gets them with the change."""
        return await self._own.put_blob(bucket, pieces)

    async def open_blob(
        self, bucket: str, sha256: bytes, begin: int, end: int
    ) -> AsyncGenerator[bytes, None]:
        """Yield a range of bytes from a node that has them."""
        shared = self._buckets.engine(bucket).bucket
        has_begun = False
        try:
            async for piece in self._own.open_blob(bucket, sha256, begin, end):
                has_begun = True
                yield piece
            return
        except MillstreamError as error:
            if has_begun or error.code != "blob_missing":
                raise
            missing = error
        for node in other_nodes(shared):
            source = self._nodes.open_blob(node, bucket, sha256, begin, end)
            try:
                async with aclosing(source):
                    async for piece in source:
                        has_begun = True
                        yield piece
                return
            except MillstreamError as error:
                if has_begun or error.code not in ("blob_missing", "node_failed"):
                    raise
                if error.code == "node_failed":  # it may have the bytes
                    missing = error
        raise missing

    # -- local documents

    async def read_local(self, bucket: str, doc_id: str) -> LocalDocument | None:
        """Return a document that is not replicated."""
        return await self.local_documents.read(bucket, doc_id)

    async def write_local(
        self, bucket: str, doc_id: str, body: bytes | None, rev: int | None
    ) -> int:
        """Replace or delete one durably; return the number of its revision."""
        return await self.local_documents.write(bucket, doc_id, body, rev)

    async def locals(self, bucket: str) -> list[LocalDocument]:
        """Return all local documents, by id."""
        return await self.local_documents.all(bucket)

    # -- settings

    async def settings(self, bucket: str) -> Settings:
        """Return the settings of a database."""
        await self._settings.learn(bucket)
        return await self._own.settings(bucket)

    async def set_revs_limit(self, bucket: str, limit: int) -> None:
        """Set the number of generations kept from the next change on, on all nodes."""
        await self._settings.set_revs_limit(bucket, limit)

    async def purges(self, bucket: str) -> PurgeList:
        """Return the latest purges on all nodes."""
        uuid = self._buckets.engine(bucket).bucket.uuid
        others = await self._ask_others(bucket, AskPurges(uuid), Purges)
        found = await self._own.purges(bucket)
        return found._replace(
            infos=(*found.infos, *(info for other in others for info in other.found.infos))
        )

    async def note_purges(self, bucket: str, purged: Sequence[Purged]) -> None:
        """Add purges to this node's list durably."""
        await self._own.note_purges(bucket, purged)

    async def set_purged_infos_limit(self, bucket: str, limit: int) -> None:
        """Set the number of purges that each node remembers."""
        uuid = self._buckets.engine(bucket).bucket.uuid
        await self._ask_others(bucket, LimitPurges(uuid, limit), Done)
        await self._own.set_purged_infos_limit(bucket, limit)

    async def set_security(self, bucket: str, content: bytes) -> None:
        """Replace `_security`, on all nodes."""
        await self._settings.set_security(bucket, content)
