"""Documents of a bucket that are active on other nodes, for the rows of a view's answer.

Invariants:
1. A document is requested from the node that has its partition active by the map. If that node
   says that it does not have it, the map is read again, `TRIES_MAX` times.
2. At most one answer of each node is buffered here; the node bounds its size.

Elsewhere: the requested page (`gateway.aio.peers.shared_pages`), rows
(`databases.documents.included_documents`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from millstream.cluster.cluster_state import NodeAt
from millstream.cluster.peers import ClusterPeers
from millstream.databases.documents.included_documents import OwnDocuments, document_key
from millstream.errors import MillstreamError, RoutingError, UnavailableError
from millstream.gateway.core.api.shared import AskedDocument
from millstream.model.partitions import partition_of

__all__ = ["DOCUMENTS_S_MAX", "PAUSE_S", "TRIES_MAX", "DocumentsElsewhere"]

DOCUMENTS_S_MAX: Final = 30.0
"""How long another node may take to answer with a batch of documents."""
TRIES_MAX: Final = 5
"""How often the node named by the newest map is asked until one has the document."""
PAUSE_S: Final = 0.2
"""Pause before a document is requested again from the node that the map then names."""


class _Answer(msgspec.Struct):
    documents: list[msgspec.Raw]


class DocumentsElsewhere:
    """The documents of one bucket on all nodes; see `included_documents.DocumentTexts`.

    Args:
        bucket: its name.
        partitions: its number of partitions.
        place_of: returns the node that has a partition active by the newest map; None: no such
            node is known.
        neighbours: sends requests to other nodes.
        own: the documents of this node, and their partitions; None: it has none.
    """

    def __init__(
        self,
        bucket: str,
        partitions: int,
        place_of: Callable[[int], NodeAt | None],
        neighbours: ClusterPeers,
        own: tuple[OwnDocuments, Callable[[int], bool]] | None = None,
    ) -> None:
        self._bucket, self._partitions = bucket, partitions
        self._place_of = place_of
        self._neighbours = neighbours
        self._own = own

    async def texts(self, asked: Sequence[AskedDocument]) -> AsyncGenerator[bytes | None, None]:
        """Yield the texts in order.

        Raises:
            UnavailableError: `not_my_partition`; `node_failed`, a node cannot be reached.
            MillstreamError: the error that a node answers.
        """
        fetched: dict[int, bytes | None] = {}
        for number in range(len(asked)):
            if number not in fetched:
                await self._fetch(asked, number, fetched)
            yield fetched.pop(number)

    async def _fetch(
        self, asked: Sequence[AskedDocument], number: int, fetched: dict[int, bytes | None]
    ) -> None:
        """Fetch a document, and later ones of the same node that fit into its answer."""
        for last in range(TRIES_MAX - 1, -1, -1):
            partition = self._partition(asked[number])
            if partition is None:
                fetched[number] = None
                return
            if self._is_own(partition):
                assert self._own is not None
                fetched[number] = await self._own[0].text(asked[number])
                return
            node = self._place_of(partition)
            if node is not None:
                together = [
                    later
                    for later in range(number, len(asked))
                    if later not in fetched and self._is_at(node, asked[later])
                ]
                try:
                    found = await self._asked(node, [asked[later] for later in together])
                    fetched.update(zip(together, found, strict=False))
                    return
                except RoutingError:
                    if not last:
                        raise
            if last:
                await asyncio.sleep(PAUSE_S)
        raise UnavailableError(
            f"no node is said to have document {asked[number].id!r} now: ask again, or without "
            "include_docs",
            code="not_my_partition",
            retry="refresh_map",
        )

    def _partition(self, asked: AskedDocument) -> int | None:
        key = document_key(asked.id)
        return None if key is None else partition_of(key, self._partitions)

    def _is_own(self, partition: int) -> bool:
        return self._own is not None and self._own[1](partition)

    def _is_at(self, node: NodeAt, asked: AskedDocument) -> bool:
        partition = self._partition(asked)
        return (
            partition is not None
            and not self._is_own(partition)
            and self._place_of(partition) == node
        )

    async def _asked(self, node: NodeAt, asked: list[AskedDocument]) -> list[bytes | None]:
        path = f"/_millstream/buckets/{quote(self._bucket, safe='')}/documents"
        try:
            async with asyncio.timeout(DOCUMENTS_S_MAX):
                text = await self._neighbours.node(node).ask("POST", path, {"documents": asked})
        except TimeoutError as error:
            raise _failed(node, "did not answer in time") from error
        try:
            found = msgspec.json.decode(text, type=_Answer).documents
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _failed(node, f"answers what nobody asked: {error}") from error
        if not found:
            raise _failed(node, "answers nothing")
        return [None if bytes(one) == b"null" else bytes(one) for one in found]


def _failed(node: NodeAt, what: str) -> MillstreamError:
    return UnavailableError(f"node {node} {what}: ask again", code="node_failed")
