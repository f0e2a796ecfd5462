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
from collections.abc import Callable
from typing import Final

from millstream.databases.buckets import Buckets
from millstream.databases.documents.local_documents import Documents
from millstream.databases.remote_node import NotServedError, RemoteNode
from millstream.databases.routing import LOCAL_PREFIX, Node, Router, at_owner
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

__all__ = ["GIVEN_S_MAX", "DistributedLocalDocuments"]

_LOG = logging.getLogger(__name__)
GIVEN_S_MAX: Final = 2.0
"""How long other nodes may take to store what the owner wrote."""


class DistributedLocalDocuments:
    """The local documents of a node's buckets, on whatever node they are.

    Args:
        buckets: of the node.
        own: the documents of this node.
        route: returns the router of a bucket.
    """

    def __init__(
        self, buckets: Buckets, own: Documents, route: Callable[[str], Router]
    ) -> None:  # fmt: skip
        self._buckets, self._own, self._route = buckets, own, route

    async def read(self, bucket: str, doc_id: str) -> LocalDocument | None:
        """Return one; see `DocumentApi.read_local`."""
        router = self._route(bucket)
        asked = ReadLocal(router.uuid, doc_id)
        found = await at_owner(router, _key(doc_id), asked, LocalList, is_harmless=True)
        return found.documents[0] if found.documents else None

    async def write(self, bucket: str, doc_id: str, body: bytes | None, rev: int | None) -> int:
        """Replace or delete one; see `DocumentApi.write_local`.

        Raises:
            UnavailableError: also `ambiguous`.
        """
        router = self._route(bucket)
        asked = WriteLocal(router.uuid, doc_id, body, rev)
        return (await at_owner(router, _key(doc_id), asked, Done, is_harmless=False)).number

    async def write_own(
        self, bucket: str, doc_id: str, body: bytes | None, rev: int | None
    ) -> int:
        """Replace or delete one that this node owns, and send it to the other nodes."""
        number = await self._own.write_local(bucket, doc_id, body, rev)
        running = self._buckets.engine(bucket)
        version = running.local.newest(doc_id)
        router = self._route(bucket)
        if version is not None:
            asked = KeepLocal(router.uuid, doc_id, LocalVersion(*version))
            others = map(router.link_to, router.others())
            await asyncio.gather(*(self._give(node, bucket, asked) for node in others))
        return number

    async def _give(self, node: RemoteNode, bucket: str, asked: KeepLocal) -> None:
        try:
            async with asyncio.timeout(GIVEN_S_MAX):
                await node.ask(asked, Done)
        except (MillstreamError, TimeoutError) as error:
            _LOG.info(
                "node %s does not keep _local/%s of %s: %s", node.at, asked.id, bucket, error
            )

    async def all(self, bucket: str) -> list[LocalDocument]:
        """Return all of them by id; raises as `DocumentApi`, and `node_failed`."""
        router = self._route(bucket)
        lists = (_list(router.uuid, router.node(place)) for place in router.places())
        by_id = {one.id: one for found in await asyncio.gather(*lists) for one in found}
        return [by_id[doc_id] for doc_id in sorted(by_id)]


async def _list(uuid: str, node: Node) -> list[LocalDocument]:
    found, is_last, after = list[LocalDocument](), False, ""
    try:
        while not is_last:
            part = await node.ask(ListLocals(uuid, after), LocalList)
            found += part.documents
            is_last = part.is_last or not part.documents
            after = found[-1].id if found else ""
    except NotServedError:  # in the map, but without a part of the bucket
        pass
    return found


def _key(doc_id: str) -> bytes:
    return (LOCAL_PREFIX + doc_id).encode()
