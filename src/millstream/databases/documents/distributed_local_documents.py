"""Local documents of buckets that several nodes share.

The key `_local/ID` decides the partition, and thereby the node, of a local document. Its owner
sends every version to the other nodes, so that no checkpoint is lost when the partition moves.

Invariants:
1. Only the owner answers and writes durably. Other nodes store what it sends, for the time when
   they become owners.
2. An unreachable node delays a write by at most `GIVEN_S_MAX` and misses that version. It then has
   an older checkpoint or none, which costs time but loses no data.

Elsewhere: the store (`kv.aio.documents.local_store`), documents
(`databases.documents.distributed_documents`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.buckets import Buckets
from millstream.databases.documents.document_owners import HERE, LOCAL_PREFIX, other_nodes, place
from millstream.databases.documents.local_documents import Documents
from millstream.databases.documents.owner_calls import at_owner
from millstream.databases.documents.remote_nodes import NodesAsked
from millstream.errors import MillstreamError
from millstream.gateway.core.api.documents import LocalDocument
from millstream.gateway.core.api.stored import (
    Done,
    KeepLocal,
    ListLocals,
    LocalList,
    LocalVersion,
    ReadLocal,
    WriteLocal,
)
from millstream.kv.core.bucket import Bucket

__all__ = ["GIVEN_S_MAX", "DistributedLocalDocuments"]

_LOG = logging.getLogger(__name__)
GIVEN_S_MAX: Final = 2.0
"""How long other nodes may take to store what the owner wrote."""


class DistributedLocalDocuments:
    """The local documents of a node's buckets, on whatever node they are.

    Args:
        buckets: of the node.
        own: the documents of this node.
        nodes: sends requests to other nodes.
    """

    def __init__(self, buckets: Buckets, own: Documents, nodes: NodesAsked) -> None:
        self._buckets, self._own, self._nodes = buckets, own, nodes

    def _bucket(self, bucket: str) -> Bucket:
        return self._buckets.engine(bucket).bucket

    async def read(self, bucket: str, doc_id: str) -> LocalDocument | None:
        """Return one; see `DocumentApi.read_local`."""
        shared = self._bucket(bucket)

        async def there(node: NodeAt) -> LocalDocument | None:
            asked = ReadLocal(shared.uuid, doc_id)
            found = await self._nodes.ask(node, bucket, asked, LocalList)
            return found.documents[0] if found.documents else None

        return await at_owner(
            shared, LOCAL_PREFIX + doc_id,
            lambda: self._own.read_local(bucket, doc_id), there, is_harmless=True,
        )  # fmt: skip

    async def write(self, bucket: str, doc_id: str, body: bytes | None, rev: int | None) -> int:
        """Replace or delete one; see `DocumentApi.write_local`.

        Raises:
            UnavailableError: also `ambiguous`.
        """
        shared = self._bucket(bucket)

        async def there(node: NodeAt) -> int:
            asked = WriteLocal(shared.uuid, doc_id, body, rev)
            return (await self._nodes.ask(node, bucket, asked, Done)).number

        return await at_owner(
            shared, LOCAL_PREFIX + doc_id,
            lambda: self.write_own(bucket, doc_id, body, rev), there, is_harmless=False,
        )  # fmt: skip

    async def write_own(
        self, bucket: str, doc_id: str, body: bytes | None, rev: int | None
    ) -> int:
        """Replace or delete one that this node owns, and send it to the other nodes."""
        number = await self._own.write_local(bucket, doc_id, body, rev)
        running = self._buckets.engine(bucket)
        version = running.local.newest(doc_id)
        others = other_nodes(running.bucket)
        if others and version is not None:
            asked = KeepLocal(running.bucket.uuid, doc_id, LocalVersion(*version))
            await asyncio.gather(*(self._give(node, bucket, asked) for node in others))
        return number

    async def _give(self, node: NodeAt, bucket: str, asked: KeepLocal) -> None:
        try:
            async with asyncio.timeout(GIVEN_S_MAX):
                await self._nodes.ask(node, bucket, asked, Done)
        except (MillstreamError, TimeoutError) as error:
            _LOG.info("node %s does not keep _local/%s of %s: %s", node, asked.id, bucket, error)

    async def all(self, bucket: str) -> list[LocalDocument]:
        """Return all of them by id; raises as `DocumentApi`, and `node_failed`."""
        shared = self._bucket(bucket)
        own = await self._own.locals(bucket)
        others = other_nodes(shared)
        if not others:
            return own
        found = [one for one in own if place(shared, LOCAL_PREFIX + one.id) == HERE]
        for more in await asyncio.gather(*(self._list(shared, node) for node in others)):
            found += more
        by_id = {one.id: one for one in found}
        return [by_id[doc_id] for doc_id in sorted(by_id)]

    async def _list(self, shared: Bucket, node: NodeAt) -> list[LocalDocument]:
        found, is_last, after = list[LocalDocument](), False, ""
        try:
            while not is_last:
                asked = ListLocals(shared.uuid, after)
                part = await self._nodes.ask(node, shared.name, asked, LocalList)
                found += part.documents
                is_last = part.is_last or not part.documents
                after = found[-1].id if found else ""
        except MillstreamError as error:
            if error.code != "bucket_not_found":  # in the map, but without a part of it
                raise
        return found
