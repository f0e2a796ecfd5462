"""Reads documents of a bucket in order, on whatever nodes they are.

Invariants:
1. Nodes are asked concurrently. Each is asked for as many of the next documents as fit into one
   answer. At most one answer of each node is buffered here.
2. An unreadable document is returned as an error in its place.
3. If a node says that it does not have a document, the map is read again.

Elsewhere: the answering side (`databases.documents.peer_requests`), changes
(`databases.documents.distributed_updates`).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, Sequence

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.documents.document_owners import HERE, no_owner, place
from millstream.databases.documents.local_documents import Documents
from millstream.databases.documents.owner_calls import PAUSE_S, TRIES_MAX, has_moved
from millstream.databases.documents.remote_nodes import NodesAsked
from millstream.documents.stored import StoredDocument, load
from millstream.errors import MillstreamError, OutcomeUnknownError, UnavailableError
from millstream.gateway.core.api.stored import (
    IDS_MAX,
    ReadStored,
    Refused,
    Stored,
    StoredList,
    error_of,
)
from millstream.kv.core.bucket import Bucket
from millstream.wire.frames import head_of

__all__ = ["DistributedReads", "loaded", "nonsense", "read_stored"]

_Read = StoredDocument | MillstreamError | None


class DistributedReads:
    """One read of many documents of one bucket.

    Args:
        bucket: to read from.
        own: the documents of this node.
        nodes: sends requests to other nodes.
        revs_limit: number of generations computed for documents that kv wrote.
        is_durable: wait until the returned versions can no longer be lost.
    """

    def __init__(
        self,
        bucket: Bucket,
        own: Documents,
        nodes: NodesAsked,
        revs_limit: int,
        *,
        is_durable: bool,
    ) -> None:
        self._bucket, self._own, self._nodes = bucket, own, nodes
        self._revs_limit, self._is_durable = revs_limit, is_durable
        self._lost = set[NodeAt]()
        """Nodes whose connection was lost once."""

    async def read_all(self, doc_ids: Sequence[str]) -> AsyncGenerator[_Read, None]:
        """Yield documents in order; an unreadable one is yielded as its error."""
        for begin in range(0, len(doc_ids), IDS_MAX):
            wanted = doc_ids[begin : begin + IDS_MAX]
            fetched: dict[int, _Read] = {}
            for at in range(len(wanted)):
                if at not in fetched:
                    await self._fetch(wanted, at, fetched)
                yield fetched.pop(at)

    async def _fetch(self, wanted: Sequence[str], at: int, fetched: dict[int, _Read]) -> None:
        """Fetch a document, and some later ones from other nodes."""
        for last in range(TRIES_MAX - 1, -1, -1):
            where = place(self._bucket, wanted[at])
            if where == HERE:
                try:
                    fetched[at] = await self._own.read(
                        self._bucket.name, wanted[at], is_durable=self._is_durable
                    )
                except MillstreamError as error:
                    fetched[at] = error
                found = fetched[at]
                if not (isinstance(found, MillstreamError) and has_moved(found) and last):
                    return
                del fetched[at]
            elif where is not None:
                await self._ask_all(wanted, at, fetched)
                if at in fetched:
                    return
            if last:
                await asyncio.sleep(PAUSE_S)
        fetched[at] = no_owner(self._bucket, wanted[at])

    async def _ask_all(self, wanted: Sequence[str], at: int, fetched: dict[int, _Read]) -> None:
        """Ask all nodes from which no answer is buffered."""
        by_node: dict[NodeAt, list[int]] = {}
        waiting = set[NodeAt]()
        for number in range(at, len(wanted)):
            where = place(self._bucket, wanted[number])
            if where is None or where == HERE:
                continue
            if number in fetched:
                waiting.add(where)
            else:
                by_node.setdefault(where, []).append(number)
        asking = [
            self._ask(node, wanted, numbers, fetched)
            for node, numbers in by_node.items()
            if node not in waiting or at in numbers
        ]
        await asyncio.gather(*asking)

    async def _ask(
        self, node: NodeAt, wanted: Sequence[str], numbers: list[int], fetched: dict[int, _Read]
    ) -> None:
        ids = [wanted[number] for number in numbers]
        try:
            found = await read_stored(self._nodes, node, self._bucket, ids, self._is_durable)
        except OutcomeUnknownError as error:
            if node in self._lost:
                fetched.update(dict.fromkeys(numbers, error))
            self._lost.add(node)
            return
        except MillstreamError as error:
            if not has_moved(error):
                fetched.update(dict.fromkeys(numbers, error))
            return
        for number, one in zip(numbers, found, strict=False):
            read = loaded(self._bucket, wanted[number], one, self._revs_limit, node)
            if not (isinstance(read, MillstreamError) and has_moved(read)):
                fetched[number] = read


async def read_stored(
    nodes: NodesAsked, node: NodeAt, bucket: Bucket, ids: Sequence[str], is_durable: bool
) -> list[Stored | Refused | None]:
    """Return a node's version of the first documents, at least one; raises as `NodesAsked.ask`."""
    asked = ReadStored(bucket.uuid, list(ids), is_durable)
    try:
        found = (await nodes.ask(node, bucket.name, asked, StoredList)).documents
    except MillstreamError as error:
        if error.code == "bucket_not_found":  # it does not know the bucket (yet)
            raise UnavailableError(str(error), code="not_my_partition") from error
        raise
    if not 1 <= len(found) <= len(ids):
        raise nonsense(node)
    return found


def loaded(
    bucket: Bucket, doc_id: str, found: Stored | Refused | None, revs_limit: int, node: NodeAt
) -> StoredDocument | MillstreamError | None:
    """Return a document from a node's answer, or why it cannot be read."""
    if found is None:
        return None
    if isinstance(found, Refused):
        return error_of(found)
    key = doc_id.encode()
    try:
        if head_of(found.frame).key != key:
            return nonsense(node)
        return load(bucket.uuid, key, found.frame, found.side, revs_limit)
    except MillstreamError as error:
        return error
    except (ValueError, IndexError, struct.error):
        return nonsense(node)


def nonsense(node: NodeAt) -> UnavailableError:
    """Return the error for an unexpected response of a node."""
    return UnavailableError(
        f"node {node} answered with documents that were not requested", code="node_failed"
    )
