"""The documents of a node's databases, wherever their partitions are active.

Each node that serves a bucket answers for all its documents, and asks the other nodes for those
that it does not have. A bucket that is on this node only is the case without other nodes.

Invariants:
1. Documents of this node are read and changed on this node.
2. Answers about a document come from the node where its partition is active.
3. The bytes of an attachment that are not here are passed on from a node that has them.

Elsewhere: where partitions are (`databases.routing`), the documents of this node
(`databases.documents.local_documents`), lists and feeds over nodes (`databases.scans`), many
documents at once (`databases.documents.distributed_reads`,
`databases.documents.distributed_updates`), settings (`databases.documents.distributed_settings`),
how a node keeps local documents (`databases.documents.local_node`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, TypeVar

from millstream.databases.buckets import Buckets
from millstream.databases.documents.distributed_reads import DistributedReads, loaded
from millstream.databases.documents.distributed_settings import DistributedSettings
from millstream.databases.documents.distributed_updates import DistributedUpdate
from millstream.databases.documents.local_documents import Documents
from millstream.databases.remote_node import NotServedError, RemoteNode
from millstream.databases.routing import (
    LOCAL_PREFIX,
    KnownPlace,
    Node,
    Router,
    at_owner,
    nowhere,
    together,
)
from millstream.databases.scans.distributed_scans import (
    DistributedScan,
    FoundDocument,
    scan_everywhere,
    total_figures,
)
from millstream.databases.scans.feeds import NodeChanges
from millstream.databases.scans.local_scan import Range
from millstream.documents.purge_list import Purged, PurgeList
from millstream.documents.stored import StoredDocument, load
from millstream.errors import MillstreamError
from millstream.gateway.core.api.documents import (
    Blob,
    DatabaseInfo,
    Decide,
    LocalDocument,
    OldDocuments,
    Settings,
    Written,
)
from millstream.gateway.core.api.stored import (
    Asked,
    AskPurges,
    Commit,
    Compact,
    Done,
    LimitPurges,
    ListLocals,
    LocalList,
    OldList,
    Purges,
    ReadLocal,
    ReadOld,
    Stored,
    WriteLocal,
)
from millstream.kv.core.bucket import Bucket
from millstream.runtime.pace import Turns

__all__ = ["COMPACT_S_MAX", "DistributedDocuments"]

_LOG = logging.getLogger(__name__)
COMPACT_S_MAX: Final = 5.0
"""How long another node may take to begin a compaction; then it is left out."""
_A = TypeVar("_A")
_EPOCH_US: Final = 1_000_000_000_000_000
_SPAN_US: Final = 1_000_000_000_000_000


class DistributedDocuments:
    """Implements `gateway.core.api.documents.DocumentApi`.

    Args:
        buckets: of the node.
        own: the documents of this node.
        changes: the feeds of its buckets.
    """

    def __init__(self, buckets: Buckets, own: Documents, changes: NodeChanges) -> None:
        self._buckets, self._own, self._changes = buckets, own, changes
        self._settings = DistributedSettings(own, changes.router)

    async def info(self, bucket: str) -> DatabaseInfo:
        """Return information about a database."""
        await self._settings.learn(bucket)
        router = self._changes.router(bucket)
        if router.is_shared:
            found = await total_figures(router)
        else:
            found = await self._own.figures(bucket, range(router.bucket.partition_count))
        database = await self._changes.whole(bucket)
        turns = Turns()
        latest = database.latest()
        await turns.give()
        return DatabaseInfo(
            bucket, router.uuid, router.bucket.partition_count, found.live, found.deleted,
            latest.text(), found.purge_seqno,
            found.file_bytes, found.active_bytes, found.active_bytes, found.is_compacting,
            _start_time(router.uuid),
            tuple(history.log[0].uuid for history in database.histories()),
            database.purge_epoch(),
        )  # fmt: skip

    async def total(self, bucket: str) -> int | None:
        """Return the number of documents; see `DocumentApi`."""
        if self._changes.router(bucket).is_shared:
            return (await self.info(bucket)).document_count
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
        router = self._changes.router(bucket)
        limit = self._own.revs_limit(self._buckets.engine(bucket))

        def made(found: FoundDocument) -> StoredDocument:
            return load(router.uuid, *found, limit)

        own = partial(self._own.scan, bucket)
        return scan_everywhere(router, Range(start, end, descending), own, made, time.time_ns)

    async def keys(self, bucket: str, start: bytes, end: bytes) -> AsyncGenerator[bytes, None]:
        """Yield all keys in a range, including keys that only kv clients use."""
        scan = DistributedScan(self._changes.router(bucket), time.time_ns)
        async with aclosing(scan.documents(Range(start, end, of_kv=True))) as found:
            async for one in found:
                yield one.key

    # -- documents

    async def read(
        self, bucket: str, doc_id: str, *, is_durable: bool = False
    ) -> StoredDocument | None:
        """Return a document; None if there was never one."""
        if self._changes.router(bucket).is_alone:
            return await self._own.read(bucket, doc_id, is_durable=is_durable)
        async for found in self.read_all(bucket, [doc_id], is_durable=is_durable):
            if isinstance(found, MillstreamError):
                raise found
            return found
        raise AssertionError("one is asked for, one is answered")

    async def old(
        self, bucket: str, doc_id: str, revs: Sequence[str], *, lists_all: bool
    ) -> OldDocuments:
        """Return the contents of replaced revisions, from the log of the owner of a document."""
        router, key = self._changes.router(bucket), doc_id.encode()
        asked = ReadOld(router.uuid, doc_id, [*revs], lists_all)
        found = (await at_owner(router, key, asked, OldList, is_harmless=True)).found
        documents = [
            (load(router.uuid, key, one.frame, one.side, revs_limit=1), one.revs)
            for one in found.changes
        ]
        return OldDocuments(documents, found.revs)

    async def read_all(
        self, bucket: str, doc_ids: Sequence[str], *, is_durable: bool = False
    ) -> AsyncGenerator[StoredDocument | MillstreamError | None, None]:
        """Yield documents in order; an unreadable one is yielded as its error."""
        router = self._changes.router(bucket)
        found: AsyncGenerator[StoredDocument | MillstreamError | None, None]
        if router.is_alone:
            found = self._own.read_all(bucket, doc_ids, is_durable=is_durable)
        else:
            limit = (await self.settings(bucket)).revs_limit

            async def made(number: int, _: Node, one: Stored | None) -> StoredDocument | None:
                return await loaded(router.uuid, doc_ids[number].encode(), one, limit)

            found = DistributedReads(router, made, is_durable=is_durable).read_all(doc_ids)
        async with aclosing(found):
            async for one in found:
                yield one

    async def update(
        self, bucket: str, edits: Sequence[tuple[str, Decide]], *, is_durable: bool
    ) -> list[Written | MillstreamError]:
        """Change documents; return the result of each."""
        router = self._changes.router(bucket)
        if router.is_alone:
            return await self._own.update(bucket, edits, is_durable=is_durable)
        limit = (await self.settings(bucket)).revs_limit
        updating = DistributedUpdate(router, self._own, limit, is_durable=is_durable)
        return await updating.update(edits)

    async def commit(self, bucket: str) -> None:
        """Return once everything accepted before is durable on all nodes."""
        router = self._changes.router(bucket)
        await _ask_all(router, Commit(router.uuid), Done)

    async def compact(self, bucket: str) -> None:
        """Compact on this node, and on the others as far as they answer, also if it fails here."""
        router = self._changes.router(bucket)
        failure: MillstreamError | None = None
        try:
            await self._own.compact(bucket)
        except MillstreamError as error:
            failure = error
        nodes = [router.link_to(other) for other in router.others()]
        asked = (_try_to_compact(bucket, node, router.uuid) for node in nodes)
        await asyncio.gather(*asked)
        if failure is not None:
            raise failure

    # -- attachments

    async def put_blob(self, bucket: str, pieces: AsyncIterator[bytes]) -> Blob:
        """Store bytes durably here; the owner of the document gets them with the change."""
        return await self._own.put_blob(bucket, pieces)

    async def open_blob(
        self, bucket: str, sha256: bytes, begin: int, end: int
    ) -> AsyncGenerator[bytes, None]:
        """Yield a range of bytes from a node that has them."""
        router = self._changes.router(bucket)
        missing: MillstreamError | None = None
        for place in router.places():
            has_begun = False
            try:
                async with aclosing(router.node(place).open_blob(sha256, begin, end)) as pieces:
                    async for piece in pieces:
                        has_begun = True
                        yield piece
                return
            except MillstreamError as error:
                if has_begun or error.code not in ("blob_missing", "node_failed"):
                    raise
                if missing is None or error.code == "node_failed":  # it may have the bytes
                    missing = error
        assert missing is not None, "this node is asked"
        raise missing

    # -- local documents

    async def read_local(self, bucket: str, doc_id: str) -> LocalDocument | None:
        """Return a document that is not replicated."""
        router = self._changes.router(bucket)
        asked = ReadLocal(router.uuid, doc_id)
        found = await at_owner(router, _local_key(doc_id), asked, LocalList, is_harmless=True)
        return found.documents[0] if found.documents else None

    async def write_local(
        self, bucket: str, doc_id: str, body: bytes | None, rev: int | None
    ) -> int:
        """Replace or delete one durably; return the number of its revision."""
        router = self._changes.router(bucket)
        asked = WriteLocal(router.uuid, doc_id, body, rev)
        key = _local_key(doc_id)
        return (await at_owner(router, key, asked, Done, is_harmless=False)).number

    async def locals(self, bucket: str) -> list[LocalDocument]:
        """Return all local documents, by id."""
        router = self._changes.router(bucket)
        found = await _of_all(router, lambda place: _locals_of(router.uuid, router.node(place)))
        by_id = {one.id: one for one in found}
        return [by_id[doc_id] for doc_id in sorted(by_id)]

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
        router = self._changes.router(bucket)
        found = [one.found for one in await _ask_all(router, AskPurges(router.uuid), Purges)]
        return found[0]._replace(infos=tuple(info for one in found for info in one.infos))

    async def note_purges(self, bucket: str, purged: Sequence[Purged]) -> None:
        """Add purges to this node's list durably."""
        await self._own.note_purges(bucket, purged)

    async def set_purged_infos_limit(self, bucket: str, limit: int) -> None:
        """Set the number of purges that each node remembers."""
        router = self._changes.router(bucket)
        await _ask_all(router, LimitPurges(router.uuid, limit), Done)

    async def set_security(self, bucket: str, content: bytes) -> None:
        """Replace `_security`, on all nodes."""
        await self._settings.set_security(bucket, content)


async def _try_to_compact(bucket: str, node: RemoteNode, uuid: str) -> None:
    try:
        async with asyncio.timeout(COMPACT_S_MAX):
            await node.ask(Compact(uuid), Done)
    except (MillstreamError, TimeoutError) as error:
        _LOG.warning("bucket %s is not compacted on node %s: %s", bucket, node.at, error)


async def _ask_all(router: Router, asked: Asked, kind: type[_A]) -> list[_A]:
    """Return the answers of this node, and of the others that have parts of the bucket."""

    async def answers(place: KnownPlace) -> list[_A]:
        return [await router.node(place).ask(asked, kind)]

    return await _of_all(router, answers)


async def _of_all(
    router: Router, ask: Callable[[KnownPlace], Awaitable[list[_A]]]
) -> list[_A]:  # fmt: skip
    """Return what all nodes of a bucket answer.

    A node of the map that has no active partition need not have the bucket.

    Raises:
        UnavailableError: `not_my_partition`: an owner of partitions does not serve the bucket.
    """

    async def answers(place: KnownPlace) -> list[_A]:
        try:
            return await ask(place)
        except NotServedError as error:
            owned = router.plan(range(router.bucket.partition_count)).by_node
            if place in owned:
                raise nowhere(owned[place]) from error
            return []

    found = await together(map(answers, router.places()))
    return [one for some in found for one in some]


async def _locals_of(uuid: str, node: Node) -> list[LocalDocument]:
    """Return the local documents that a node owns."""
    found, is_last, after = list[LocalDocument](), False, ""
    while not is_last:
        part = await node.ask(ListLocals(uuid, after), LocalList)
        found += part.documents
        is_last = part.is_last or not part.documents
        after = found[-1].id if found else ""
    return found


def _local_key(doc_id: str) -> bytes:
    return (LOCAL_PREFIX + doc_id).encode()


def _start_time(uuid: str) -> str:
    """Return what tells databases of one name apart; the same on all nodes of a database.

    It looks like microseconds since the epoch, as clients expect. They only compare it.
    """
    return str(_EPOCH_US + int(uuid, 16) % _SPAN_US)
