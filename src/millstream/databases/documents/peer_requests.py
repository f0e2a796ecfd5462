"""Answers requests of other nodes that share a bucket: reads, and changes decided there.

Invariants:
1. Only documents whose partition is active here are read and written.
2. A change is written only if the document still has the version on which the change was decided,
   and if the bytes of newly named attachments are durable here.
3. An answer with documents is bounded by `PORTION_BYTES` and one more document.

Elsewhere: the page (`gateway.aio.peers.stored_pages`), the requesting side
(`databases.documents.distributed_documents`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from millstream.databases.buckets import Buckets
from millstream.databases.documents.document_owners import HERE, LOCAL_PREFIX, no_owner, place
from millstream.databases.documents.local_documents import Documents
from millstream.documents.sent import checked_id
from millstream.documents.stored import Packed, blobs_of, is_sidecar
from millstream.errors import ConditionError, MillstreamError, UsageError
from millstream.gateway.core.api.documents import Blob, LocalDocument
from millstream.gateway.core.api.stored import (
    PORTION_BYTES,
    Answer,
    Asked,
    AskPurges,
    AskSettings,
    Change,
    Changed,
    Commit,
    Done,
    KeepLocal,
    KeepSettings,
    Lacking,
    LimitPurges,
    ListLocals,
    LocalList,
    Placed,
    Purges,
    ReadLocal,
    ReadStored,
    Refused,
    Stored,
    StoredList,
    WriteLocal,
    WriteStored,
    WrittenList,
    refused,
)
from millstream.kv.aio.documents.local_store import Version
from millstream.kv.aio.engine import BucketEngine
from millstream.model.sides import split

__all__ = ["StoredDocuments", "WriteOwnLocal"]

WriteOwnLocal = Callable[[str, str, bytes | None, int | None], Awaitable[int]]
"""Writes a local document that this node owns: bucket, id, body, revision."""


class StoredDocuments:
    """Implements `gateway.core.api.stored.StoredApi`.

    Args:
        buckets: of the node.
        own: the documents of this node.
        write_local: writes a local document that this node owns.
    """

    def __init__(self, buckets: Buckets, own: Documents, write_local: WriteOwnLocal) -> None:
        self._buckets, self._own = buckets, own
        self._write_local = write_local
        self.put_blob: Callable[[str, AsyncIterator[bytes]], Awaitable[Blob]] = own.put_blob
        self.open_blob = own.open_blob

    async def answer(self, bucket: str, asked: Asked) -> Answer:
        """Answer another node; see `StoredApi`."""
        running = self._running(bucket, asked.uuid)
        match asked:
            case ReadStored():
                return await self._read(running, asked)
            case WriteStored():
                return await self._write(running, asked)
            case ReadLocal(id=doc_id):
                _check_here(running, doc_id)
                found = await self._own.read_local(bucket, doc_id)
                return LocalList([] if found is None else [found])
            case WriteLocal(id=doc_id, body=body, rev=rev):
                _check_here(running, doc_id)
                return Done(await self._write_local(bucket, doc_id, body, rev))
            case KeepLocal(id=doc_id, version=version):
                await running.local.keep(doc_id, Version(*version))
            case ListLocals(after=after):
                found_all = await self._own.locals(bucket)
                return _portion([o for o in found_all if o.id > after and _is_here(running, o.id)])
            case AskSettings():
                return KeepSettings(asked.uuid, self._own.shared_settings(bucket))
            case KeepSettings(settings=settings):
                await self._own.keep_settings(bucket, settings)
            case AskPurges():
                return Purges(await self._own.purges(bucket))
            case LimitPurges(limit=limit):
                await self._own.set_purged_infos_limit(bucket, limit)
            case Commit():
                await self._own.commit(bucket)
        return Done()

    def _running(self, bucket: str, uuid: str) -> BucketEngine:
        running = self._buckets.engine(bucket)
        if running.bucket.uuid != uuid:
            raise ConditionError(f"bucket {bucket!r} is another one here", code="bucket_not_found")
        return running

    async def _read(self, running: BucketEngine, asked: ReadStored) -> StoredList:
        found, size = list[Stored | Refused | None](), 0
        for doc_id in asked.ids:
            try:
                kept = await running.documents.kept(
                    checked_id(doc_id).encode(), is_durable=asked.is_durable
                )
            except MillstreamError as error:
                found.append(refused(error))
                continue
            if kept is None:
                found.append(None)
                continue
            found.append(Stored(kept.frame, kept.side))
            size += len(kept.frame) + len(kept.side)
            if size >= PORTION_BYTES:
                break
        return StoredList(found)

    async def _write(self, running: BucketEngine, asked: WriteStored) -> WrittenList:
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


def _is_here(running: BucketEngine, local_id: str) -> bool:
    return place(running.bucket, LOCAL_PREFIX + local_id) == HERE


def _check_here(running: BucketEngine, local_id: str) -> None:
    if not _is_here(running, local_id):
        raise no_owner(running.bucket, LOCAL_PREFIX + local_id)


def _portion(documents: list[LocalDocument]) -> LocalList:
    found, size = list[LocalDocument](), 0
    for one in documents:
        found.append(one)
        size += len(one.body)
        if size >= PORTION_BYTES:
            break
    return LocalList(found, len(found) == len(documents))
