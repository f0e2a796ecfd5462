"""This node, as it answers other nodes that share a bucket.

Invariants:
1. A bucket of the requested name with another uuid is not the requested bucket.
2. Only documents and partitions that are active here are read and written. A request for a
   partition that is not active here is refused, or its answer ends with an error.
3. A change is written only if the document still has the version on which the change was decided,
   and if the bytes of newly named attachments are durable here.
4. Only the owner of a local document answers and writes it durably. It sends every version to the
   other nodes, so that none is lost when the partition moves. An unreachable node delays a write
   by at most `GIVEN_S_MAX` and misses that version. It gets it before it answers as the owner
   (`databases.documents.copied_locals`).
5. An answer with documents is bounded by the requested size and one more document. A stream holds
   one step of changes, or documents of about `FOUND_BYTES` and one more.

Elsewhere: the forms (`gateway.core.api.stored`, `gateway.core.bucket_parts`), the page
(`gateway.aio.peers.stored_pages`), the requesting side (`databases.remote_node`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final

from millstream.databases.buckets import Buckets
from millstream.databases.documents.copied_locals import CopiedLocals
from millstream.databases.documents.local_documents import Documents
from millstream.databases.purges import Purges
from millstream.databases.remote_node import RemoteNode
from millstream.databases.routing import HERE, LOCAL_PREFIX, nowhere
from millstream.databases.scans.bucket_view import own_histories
from millstream.databases.scans.feeds import NodeChanges
from millstream.databases.scans.local_scan import Range, scanned
from millstream.documents.sent import checked_id
from millstream.documents.stored import Packed, blobs_of, is_sidecar
from millstream.documents.tokens import Vector, is_position
from millstream.errors import ConditionError, MillstreamError, UsageError
from millstream.gateway.core.api import stored
from millstream.gateway.core.api.documents import LocalDocument
from millstream.gateway.core.api.stored import (
    PORTION_BYTES,
    Answer,
    Asked,
    Change,
    Changed,
    Done,
    KeepSettings,
    Lacking,
    LocalList,
    OldList,
    Placed,
    ReadOld,
    ReadStored,
    Refused,
    Stored,
    StoredList,
    Streamed,
    WriteStored,
    WrittenList,
    refused,
)
from millstream.gateway.core.bucket_parts import (
    Ended,
    Failed,
    Found,
    Histories,
    PartChanges,
    PartMessage,
    Reached,
    WantedChanges,
    WantedDocuments,
    WantedFigures,
    WantedHistories,
    WantedPart,
    framed,
)
from millstream.kv.aio.documents.changes import Changes
from millstream.kv.aio.documents.local_store import Version
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.active import check_served
from millstream.model.partitions import partition_of
from millstream.model.position import Position
from millstream.model.sides import split

__all__ = ["FOUND_BYTES", "GIVEN_S_MAX", "WAIT_S_MAX", "LocalNode"]

_LOG = logging.getLogger(__name__)
FOUND_BYTES: Final = 256 * 1024
"""Size of the documents in one message of a stream."""
WAIT_S_MAX: Final = 60.0
"""How long another node may make this one wait for new changes."""
GIVEN_S_MAX: Final = 2.0
"""How long other nodes may take to store a local document that this node owns and wrote."""


class LocalNode:
    """Implements `gateway.core.api.stored.StoredApi`.

    Args:
        buckets: of the node.
        own: the documents of this node.
        changes: of the node's buckets.
        purges: of the node.
        copied: the `_local` documents that other nodes have, too.
        now_ns: Unix time.
    """

    def __init__(
        self,
        buckets: Buckets,
        own: Documents,
        changes: NodeChanges,
        purges: Purges,
        copied: CopiedLocals,
        now_ns: Callable[[], int],
    ) -> None:
        self._buckets, self._own, self._changes = buckets, own, changes
        self._purges, self._copied, self._now_ns = purges, copied, now_ns
        self.put_blob, self.open_blob = own.put_blob, own.open_blob

    async def answer(self, bucket: str, asked: Asked) -> Answer:
        """Answer another node; see `StoredApi`."""
        running = self._running(bucket, asked.uuid)
        match asked:
            case ReadStored():
                return await _read(running, asked)
            case ReadOld(id=doc_id, revs=revs):
                key, lists_all = doc_id.encode(), asked.lists_all
                return OldList(await running.old.find(key, revs, lists_all=lists_all))
            case WriteStored():
                return await _write(running, asked)
            case WantedHistories():
                return await self._histories(running.bucket, asked)
            case WantedFigures(partitions=numbers):
                self._check(running.bucket, asked)
                figures = await self._own.figures(bucket, numbers)
                self._check_active(running.bucket, numbers)  # one that left counts as empty
                return figures
            case stored.ReadLocal(id=doc_id):
                await self._check_owner(bucket, doc_id)
                found = await self._own.read_local(bucket, doc_id)
                return LocalList([] if found is None else [found])
            case stored.WriteLocal():
                return Done(await self._write_local(running, asked))
            case stored.KeepLocal(id=doc_id, version=version):
                await running.local.keep(doc_id, [Version(*version)])
                return Done()
            case stored.ListLocals(after=after):
                every = range(running.bucket.partition_count)
                own = self._changes.router(bucket).plan(every).own
                check_served(running.bucket, own)
                await self._copied.learn(bucket, own)
                found_all = await self._own.locals(bucket)
                is_alone = self._changes.router(bucket).is_alone
                owned = (o for o in found_all if is_alone or self._owns(bucket, o.id))
                return _portion([one for one in owned if one.id > after])
            case stored.CopyLocals(partitions=numbers):
                self._check_numbers(running.bucket, numbers)
                return await self._copied.stored(bucket, asked)
        return await self._settings(bucket, asked)

    async def _settings(self, bucket: str, asked: Asked) -> Answer:
        """Answer what concerns a whole database."""
        match asked:
            case stored.AskSettings():
                return KeepSettings(asked.uuid, self._own.shared_settings(bucket))
            case KeepSettings(settings=settings):
                await self._own.keep_settings(bucket, settings)
            case stored.AskPurges():
                return stored.Purges(await self._own.purges(bucket))
            case stored.LimitPurges(limit=limit):
                await self._own.set_purged_infos_limit(bucket, limit)
            case stored.CountPurge(is_made=is_made):
                await (self._purges.end(bucket) if is_made else self._purges.begin(bucket))
            case stored.Commit():
                await self._own.commit(bucket)
            case stored.Compact():
                await self._own.compact(bucket)
        return Done()

    async def stream(self, bucket: str, asked: Streamed) -> AsyncGenerator[bytes, None]:
        """Yield changes or documents as messages; see `StoredApi`."""
        try:
            found = self._running(bucket, asked.uuid).bucket
            self._check(found, asked)
            made: AsyncGenerator[PartMessage, None]
            if isinstance(asked, WantedChanges):
                made = self._sent(found, asked)
            else:
                made = self._found(found, asked)
            async with aclosing(made) as messages:
                async for message in messages:
                    yield framed(message)
        except MillstreamError as error:
            yield framed(Failed(error.code, str(error)))

    # -- local documents

    async def _write_local(self, running: BucketEngine, asked: stored.WriteLocal) -> int:
        """Replace or delete one that this node owns, and send it to the other nodes."""
        name = running.bucket.name
        await self._check_owner(name, asked.id, for_write=True)
        number = await self._own.write_local(name, asked.id, asked.body, asked.rev)
        version = running.local.newest(asked.id)
        if version is not None:
            kept = stored.KeepLocal(asked.uuid, asked.id, stored.LocalVersion(*version))
            router = self._changes.router(name)
            others = map(router.link_to, router.others())
            await asyncio.gather(*(_give(node, name, kept) for node in others))
        return number

    def _owns(self, bucket: str, local_id: str) -> bool:
        return self._changes.router(bucket).place((LOCAL_PREFIX + local_id).encode()) == HERE

    async def _check_owner(self, bucket: str, local_id: str, *, for_write: bool = False) -> None:
        """Refuse what this node does not own; return once it has what other nodes have of it."""
        router, key = self._changes.router(bucket), (LOCAL_PREFIX + local_id).encode()
        number = partition_of(key, router.bucket.partition_count)
        check_served(router.bucket, (number,), for_write=for_write)
        await self._copied.learn(bucket, (number,))
        check_served(router.bucket, (number,), for_write=for_write)
        if not self._owns(bucket, local_id):
            raise router.no_owner(key)

    # -- whole partitions

    async def _sent(
        self, bucket: Bucket, wanted: WantedChanges
    ) -> AsyncGenerator[PartMessage, None]:
        """Yield changes, then the reader's position after them."""
        name = bucket.name
        walk = self._walk(bucket, wanted, wanted.positions, restarts=wanted.restarts)
        try:
            async with aclosing(walk.pieces()) as pieces:
                async for snapshot, frames, covered in pieces:
                    branch = bucket.partitions[snapshot.partition_id].failover_log[0].uuid
                    said = self._purges.said(name)
                    yield PartChanges(*snapshot, covered, branch, said, frames)
            yield Reached(list(walk.positions.items()), self._purges.said(name))
        finally:
            walk.close()

    async def _found(
        self, bucket: Bucket, wanted: WantedDocuments
    ) -> AsyncGenerator[PartMessage, None]:
        """Yield documents by id."""
        asked = Range(wanted.start, wanted.end, wanted.descending, wanted.after, wanted.of_kv)
        held, size = list[bytes](), 0
        documents = scanned(bucket, wanted.partitions, asked, self._now_ns)
        async with aclosing(documents):
            async for _, change in documents:
                held.append(change)
                size += len(change)
                if size >= FOUND_BYTES:
                    yield Found(held)
                    held, size = [], 0
        self._check_active(bucket, wanted.partitions)
        if held:
            yield Found(held)
        yield Ended()

    async def _histories(self, bucket: Bucket, wanted: WantedHistories) -> Histories:
        self._check(bucket, wanted)
        if wanted.positions and wanted.wait_s > 0:
            walk = self._walk(bucket, wanted, wanted.positions, restarts=False)
            try:
                await walk.wait(min(wanted.wait_s, WAIT_S_MAX))
            finally:
                walk.close()
        await self._changes.of(bucket.name).known()
        self._check_active(bucket, wanted.partitions)  # after all waits: none has left
        return own_histories(bucket, wanted.partitions, self._purges.said(bucket.name))

    def _walk(
        self, bucket: Bucket, wanted: WantedPart, positions: Sequence[Position], *, restarts: bool
    ) -> Changes:
        """Return a walk over partitions from given positions on."""
        if len(positions) != len(wanted.partitions):
            raise UsageError("must be as many positions as partitions")
        if not all(map(is_position, positions)):
            raise UsageError("a position is impossible")
        database = self._changes.of(bucket.name)
        everywhere = list(database.latest().positions)
        for number, position in zip(wanted.partitions, positions, strict=True):
            everywhere[number] = position
        start = Vector(database.origin, tuple(everywhere))
        return database.open(start, restarts=restarts, numbers=wanted.partitions)

    # -- checks

    def _running(self, bucket: str, uuid: str) -> BucketEngine:
        running = self._buckets.engine(bucket)
        if running.bucket.uuid != uuid:
            raise ConditionError(f"bucket {bucket!r} is another one here", code="bucket_not_found")
        return running

    @staticmethod
    def _check_numbers(bucket: Bucket, numbers: Sequence[int]) -> None:
        """Refuse a request that names impossible partitions."""
        count = bucket.partition_count
        if not numbers or not all(0 <= n < count for n in numbers):
            raise UsageError(f"partitions are 0 to {count - 1}, and at least one is asked for")

    def _check(self, bucket: Bucket, wanted: WantedPart) -> None:
        """Refuse a request that names impossible partitions, or ones that are not active here."""
        self._check_numbers(bucket, wanted.partitions)
        if len(set(wanted.partitions)) < len(wanted.partitions):
            raise UsageError("a partition is asked for twice")
        self._check_active(bucket, wanted.partitions)

    def _check_active(self, bucket: Bucket, numbers: Sequence[int]) -> None:
        check_served(bucket, numbers)
        missing = set(numbers) - set(self._changes.router(bucket.name).plan(numbers).own)
        if missing:
            raise nowhere(missing)


async def _give(node: RemoteNode, bucket: str, asked: stored.KeepLocal) -> None:
    """Send a local document; a node that does not get it misses this version."""
    try:
        async with asyncio.timeout(GIVEN_S_MAX):
            await node.ask(asked, Done)
    except (MillstreamError, TimeoutError) as error:
        _LOG.info("node %s does not keep a local document of %s: %s", node.at, bucket, error)


async def _read(running: BucketEngine, asked: ReadStored) -> StoredList:
    """Return documents, also those that nodes keep for themselves under ids with an underscore."""
    found, size = list[Stored | Refused | None](), 0
    for doc_id in asked.ids:
        try:
            kept = await running.documents.kept(doc_id.encode(), is_durable=asked.is_durable)
        except MillstreamError as error:
            found.append(refused(error))
            continue
        if kept is None:
            found.append(None)
            continue
        found.append(Stored(kept.frame, kept.side))
        size += len(kept.frame) + len(kept.side)
        if size >= min(asked.bytes_max, PORTION_BYTES):
            break
    return StoredList(found)


async def _write(running: BucketEngine, asked: WriteStored) -> WrittenList:
    done: list[Placed | Changed | Lacking | Refused | None] = [None] * len(asked.changes)
    for at, change in enumerate(asked.changes):
        try:
            lacking = await _lacking(running, change)
        except MillstreamError as error:
            done[at] = refused(error)
        else:
            done[at] = Lacking(lacking) if lacking else None
    left = [at for at, one in enumerate(done) if one is None]
    changes = [asked.changes[at] for at in left]
    made = await running.documents.replace(
        [(one.id.encode(), one.version, Packed(one.value, one.sidecar)) for one in changes],
        is_durable=asked.is_durable,
    )
    for at, one in zip(left, made, strict=True):
        if isinstance(one, MillstreamError):
            done[at] = refused(one)
        else:
            done[at] = Placed(one.seqno) if one.seqno else Changed()
    return WrittenList([one for one in done if one is not None])


async def _lacking(running: BucketEngine, change: Change) -> list[bytes]:
    """Return the attachment bytes that must be here before a change can be made.

    Attachments that the document already names are left out: they are not part of the change.

    Raises:
        UsageError: it is no change of a document.
    """
    key = checked_id(change.id).encode()
    if not is_sidecar(change.sidecar):
        raise UsageError(f"the content of document {change.id!r} cannot be read")
    named = blobs_of(change.sidecar)
    if not named:
        return []
    kept = await running.documents.kept(key, is_durable=False)
    sidecar = b"" if kept is None else split(kept.side)[1]
    known = blobs_of(sidecar) if sidecar else frozenset[bytes]()
    return [name for name in sorted(named - known) if not running.blobs.has(name)]


def _portion(documents: list[LocalDocument]) -> LocalList:
    found, size = list[LocalDocument](), 0
    for one in documents:
        found.append(one)
        size += len(one.body)
        if size >= PORTION_BYTES:
            break
    return LocalList(found, len(found) == len(documents))
