"""The documents of a node's databases whose partitions are active on this node.

Invariants:
1. A setting of a database is in its companion store, and durable once it is acknowledged.
2. A `_local` document is stored with the durable position of the database at its write.

Elsewhere: the documents (`kv.aio.documents.revision_store`), feeds (`databases.scans.feeds`),
buckets (`databases.buckets`), documents of other nodes
(`databases.documents.distributed_documents`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from time import thread_time
from typing import Final

import msgspec

from millstream.databases.buckets import Buckets
from millstream.databases.scans.feeds import NodeChanges
from millstream.databases.scans.local_scan import Range, ordered_keys
from millstream.documents.purge_list import Purged, PurgeList
from millstream.documents.stored import REVS_LIMIT_DEFAULT, StoredDocument
from millstream.errors import MillstreamError
from millstream.gateway.core.api.documents import (
    Blob,
    Decide,
    LocalDocument,
    Settings,
    Written,
)
from millstream.gateway.core.api.stored import Numbered, SharedSettings
from millstream.gateway.core.bucket_parts import Figures
from millstream.kv.aio.documents.document_counts import DocumentCounts
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.core.bucket import Bucket
from millstream.model.partitions import PartitionState
from millstream.replication.core.logs import held_body
from millstream.replication.core.places import Present
from millstream.runtime.pace import Pace

__all__ = ["Documents"]

_REVS_LIMIT: Final = "revs_limit"
_SECURITY: Final = "security"
_PURGED_INFOS: Final = "purged_infos"
_LOG_MARK: Final = b'"target_uuid"'
"""Found in the log of one of our replications."""
_NO_SECURITY: Final = b'{"members":{"roles":["_admin"]},"admins":{"roles":["_admin"]}}'


class Documents:
    """This node's part of `gateway.core.api.documents.DocumentApi`; raises as that does.

    Args:
        buckets: of the node.
        changes: the feeds of its buckets.
    """

    def __init__(self, buckets: Buckets, changes: NodeChanges) -> None:
        self._buckets = buckets
        self._changes = changes
        self._counts: dict[str, tuple[BucketEngine, DocumentCounts]] = {}
        self._limits: dict[str, int] = {}
        """Number of revisions kept, by bucket uuid."""
        self._purge_turn = asyncio.Lock()

    # -- information about a database

    async def figures(self, bucket: str, numbers: Sequence[int]) -> Figures:
        """Return the document count of partitions of this node, and the size of the bucket.

        Raises:
            UnavailableError: `not_my_partition`.
        """
        running = self._buckets.engine(bucket)
        found = await self._counts_of(bucket).count(numbers)
        file_bytes = await asyncio.to_thread(_disk_bytes, running)
        return Figures(
            found.live, found.deleted,
            sum(running.bucket.partitions[number].purge_seqno for number in numbers),
            file_bytes, max(0, file_bytes - running.compactor.statistics().dead_bytes),
            running.compactor.is_running,
        )  # fmt: skip

    async def total(self, bucket: str) -> int | None:
        """Return the number of documents here; the last count if counting now takes long."""
        found = await self._counts_of(bucket).recent()
        return None if found is None else found.live

    def _counts_of(self, bucket: str) -> DocumentCounts:
        engine = self._buckets.engine(bucket)
        known = self._counts.get(engine.bucket.uuid)
        if known is None or known[0] is not engine:  # the bucket was opened anew
            counts = DocumentCounts(self._changes.of(bucket), engine.flusher.follow)
            known = self._counts[engine.bucket.uuid] = engine, counts
        return known[1]

    def drop(self, bucket: Bucket) -> None:
        """A bucket is no longer served."""
        self._counts.pop(bucket.uuid, None)
        self._limits.pop(bucket.uuid, None)

    async def stop(self) -> None:
        """Stop counting in the background."""
        for _, counts in self._counts.values():
            await counts.stop()

    # -- documents

    async def read(
        self, bucket: str, doc_id: str, *, is_durable: bool = False
    ) -> StoredDocument | None:
        """Return a document; None if there was never one."""
        running = self._buckets.engine(bucket)
        found = await running.documents.read(
            doc_id.encode(), self.revs_limit(running), is_durable=is_durable
        )
        return None if found is None else found.document

    async def read_all(
        self, bucket: str, doc_ids: Iterable[str], *, is_durable: bool = False
    ) -> AsyncGenerator[StoredDocument | MillstreamError | None, None]:
        """Yield documents in order; an unreadable one is yielded as its error."""
        pace = Pace(thread_time)
        for doc_id in doc_ids:
            await pace.breathe(0)
            try:
                yield await self.read(bucket, doc_id, is_durable=is_durable)
            except MillstreamError as error:
                yield error

    async def update(
        self, bucket: str, edits: Sequence[tuple[str, Decide]], *, is_durable: bool
    ) -> list[Written | MillstreamError]:
        """Change documents; return the result of each."""
        running = self._buckets.engine(bucket)
        keyed = [(doc_id.encode(), decide) for doc_id, decide in edits]
        made = await running.documents.update(
            keyed, self.revs_limit(running), is_durable=is_durable
        )
        return [
            one if isinstance(one, MillstreamError)
            else Written(one.partition, one.seqno, one.document)
            for one in made
        ]  # fmt: skip

    async def commit(self, bucket: str) -> None:
        """Return once everything accepted before is durable, and shown by feeds."""
        running = self._buckets.engine(bucket)
        waits = [
            running.until_shown(partition.partition_id, partition.high_seqno)
            for partition in running.bucket.partitions
            if partition.state is PartitionState.ACTIVE
            and partition.durable_mark() < partition.high_seqno
        ]
        await asyncio.gather(*waits)

    async def compact(self, bucket: str) -> None:
        """Compact the log; what is replaced by now is not read any more."""
        running = self._buckets.engine(bucket)
        running.compactor.ask()  # first: on a full disk the next line fails
        await running.old.forget()

    async def scan(
        self, bucket: str, wanted: Range
    ) -> AsyncGenerator[tuple[bytes, StoredDocument], None]:
        """Yield documents by id, without deleted ones, if all partitions are here."""
        running = self._buckets.engine(bucket)
        numbers = range(running.bucket.partition_count)
        limit, pace = self.revs_limit(running), Pace(thread_time)
        async with aclosing(ordered_keys(running.bucket, numbers, wanted, pace)) as keys:
            async for key in keys:
                found = await running.documents.read(key, limit, is_durable=False)
                await pace.breathe(0)
                if found is None or not found.document.exists or found.document.winner.is_deleted:
                    continue
                yield key, found.document

    # -- attachments

    async def put_blob(self, bucket: str, pieces: AsyncIterator[bytes]) -> Blob:
        """Store bytes durably."""
        put = await self._buckets.engine(bucket).blobs.put(pieces)
        return Blob(put.sha256, put.md5, put.length)

    def open_blob(
        self, bucket: str, sha256: bytes, begin: int, end: int
    ) -> AsyncGenerator[bytes, None]:
        """Return a range of bytes in pieces."""
        return self._buckets.engine(bucket).blobs.read(sha256, begin, end)

    # -- local documents

    async def read_local(self, bucket: str, doc_id: str) -> LocalDocument | None:
        """Return a document that is not replicated."""
        found = self._buckets.engine(bucket).local.read(doc_id)
        if found is None:
            return None
        body = found.body
        if _LOG_MARK in body:
            held = _held(body, await self._present(bucket))
            if held is None:
                return None
            body = held
        return LocalDocument(doc_id, found.rev, body)

    async def _present(self, bucket: str) -> Present:
        """Return the current state of the database over all its nodes."""
        database = await self._changes.whole(bucket)
        return Present(database.uuid, tuple(database.histories()), database.purge_epoch())

    async def write_local(
        self, bucket: str, doc_id: str, body: bytes | None, rev: int | None
    ) -> int:
        """Replace or delete one durably; return the number of its revision."""
        changes = self._changes.of(bucket)
        await changes.known()
        stamp = changes.latest().text()
        return await self._buckets.engine(bucket).local.write(doc_id, body, rev, stamp)

    async def locals(self, bucket: str) -> list[LocalDocument]:
        """Return all local documents, by id."""
        found = await asyncio.to_thread(self._buckets.engine(bucket).local.all)
        present = None
        if any(_LOG_MARK in one.body for _, one in found):
            present = await self._present(bucket)
        held = [
            (doc_id, one.rev, one.body if present is None else _held(one.body, present))
            for doc_id, one in found
        ]
        return [LocalDocument(doc_id, rev, body) for doc_id, rev, body in held if body is not None]

    # -- settings

    async def settings(self, bucket: str) -> Settings:
        """Return the settings of a database."""
        running = self._buckets.engine(bucket)
        security = _numbered(running.local.setting(_SECURITY)).value or _NO_SECURITY
        return Settings(self.revs_limit(running), security, running.bucket.uuid)

    def revs_limit(self, running: BucketEngine) -> int:
        """Return the number of generations kept of each branch, as this node knows it."""
        uuid = running.bucket.uuid
        if uuid not in self._limits:
            value = _numbered(running.local.setting(_REVS_LIMIT)).value
            self._limits[uuid] = int(value) if value else REVS_LIMIT_DEFAULT
        return self._limits[uuid]

    async def purges(self, bucket: str) -> PurgeList:
        """Return the latest purges requested from this node."""
        return PurgeList.decoded(self._buckets.engine(bucket).local.setting(_PURGED_INFOS))

    async def note_purges(self, bucket: str, purged: Sequence[Purged]) -> None:
        """Add completed purges to the list durably."""
        await self._change_purges(bucket, lambda known: known.extended(purged))

    async def set_purged_infos_limit(self, bucket: str, limit: int) -> None:
        """Set the number of purges to remember."""
        await self._change_purges(bucket, lambda known: known.limited(limit))

    async def _change_purges(self, bucket: str, change: Callable[[PurgeList], PurgeList]) -> None:
        running = self._buckets.engine(bucket)
        async with self._purge_turn:
            newer = change(PurgeList.decoded(running.local.setting(_PURGED_INFOS)))
            await running.local.set(_PURGED_INFOS, newer.encoded())

    def shared_settings(self, bucket: str) -> SharedSettings:
        """Return this node's version of the settings shared by all nodes of a bucket."""
        running = self._buckets.engine(bucket)
        limit, security = map(running.local.setting, (_REVS_LIMIT, _SECURITY))
        return SharedSettings(_numbered(limit), _numbered(security), running.purge_epoch)

    async def keep_settings(self, bucket: str, settings: SharedSettings) -> None:
        """Store durably the settings that are newer than those known here."""
        running = self._buckets.engine(bucket)
        known = self.shared_settings(bucket)
        joined = known.joined(settings)
        if joined.revs_limit != known.revs_limit:
            await running.local.set(_REVS_LIMIT, b"%d:%b" % joined.revs_limit)
            self._limits.pop(running.bucket.uuid, None)
        if joined.security != known.security:
            await running.local.set(_SECURITY, b"%d:%b" % joined.security)
        await running.count_purges(joined.purges)


def _numbered(kept: bytes | None) -> Numbered:
    """Return a stored setting: how often it was set, a colon, and the value.

    A setting without a number was written before numbers were introduced; it counts as set once.
    """
    if kept is None:
        return Numbered(0, b"")
    number, colon, value = kept.partition(b":")
    return Numbered(int(number), value) if colon and number.isdigit() else Numbered(1, kept)


def _held(body: bytes, present: Present) -> bytes | None:
    """Return the version of a local document that the history still covers; None: nothing."""
    if _LOG_MARK not in body:
        return body
    try:
        log = msgspec.json.decode(body)
    except msgspec.DecodeError:  # not written by us
        return body
    held = held_body(log, present)
    return body if held is log else None if held is None else msgspec.json.encode(held)


def _disk_bytes(running: BucketEngine) -> int:
    files = (running.path / "log").glob("*")
    return sum(file.stat().st_blocks * 512 for file in files) + running.blobs.bytes
