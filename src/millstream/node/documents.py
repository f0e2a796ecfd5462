"""The documents of a node's databases, as the pages see them.

Invariants:
1. A setting of a database is in its companion store, durable once it was answered.
2. A `_local` document is stamped with where the database stood durably when it was written.

Elsewhere: the documents (`kv.aio.revised`), feeds (`node.changes`), buckets (`node.buckets`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import datetime
from typing import Final

import msgspec

from millstream.documents.stored import REVS_LIMIT_DEFAULT, StoredDocument
from millstream.errors import MillstreamError, UnavailableError
from millstream.gateway.core.document_host import (
    Blob,
    DatabaseInfo,
    Decide,
    LocalDocument,
    Settings,
    Written,
)
from millstream.kv.aio.document_counts import DocumentCounts
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.places import places_of
from millstream.model.partitions import PartitionState
from millstream.node.buckets import Buckets
from millstream.node.changes import NodeChanges
from millstream.replication.core.logs import held_body
from millstream.replication.core.places import Present

__all__ = ["Documents"]

_REVS_LIMIT: Final = "revs_limit"
_SECURITY: Final = "security"
_LOG_MARK: Final = b'"target_uuid"'
"""Of the log of a replication of ours."""
_NO_SECURITY: Final = b'{"members":{"roles":["_admin"]},"admins":{"roles":["_admin"]}}'
_SCAN_TURN: Final = 50
"""Documents looked at before others have a turn."""


class Documents:
    """Has the shape of `gateway.core.document_host.DocumentHost`.

    Args:
        buckets: of the node.
        changes: the feeds of its buckets.
    """

    def __init__(self, buckets: Buckets, changes: NodeChanges) -> None:
        self._buckets = buckets
        self._changes = changes
        self._counts: dict[str, DocumentCounts] = {}
        self._limits: dict[str, int] = {}
        """Revisions kept, by the uuid of the bucket."""

    # -- what is known of a database

    async def info(self, bucket: str) -> DatabaseInfo:
        """Return what is known of a database."""
        running = self._buckets.engine(bucket)
        counts = self._counts.get(running.bucket.uuid)
        if counts is None:
            counts = DocumentCounts(self._changes.of(bucket))
            self._counts[running.bucket.uuid] = counts
        found = await counts.count()
        file_bytes = await asyncio.to_thread(_disk_bytes, running)
        active_bytes = max(0, file_bytes - running.compactor.statistics().dead_bytes)
        partitions = running.bucket.partitions
        [created] = [r.created for r in self._buckets.records() if r.name == bucket]
        return DatabaseInfo(
            bucket, running.bucket.uuid, len(partitions), found.live, found.deleted,
            self._changes.of(bucket).latest().text(),
            sum(partition.purge_seqno for partition in partitions),
            file_bytes, active_bytes, active_bytes, running.compactor.is_running,
            _epoch_us(created),
            tuple(partition.failover_log[0].uuid for partition in partitions),
            self._changes.of(bucket).purge_epoch(),
        )  # fmt: skip

    # -- documents

    async def read(
        self, bucket: str, doc_id: str, *, is_durable: bool = False
    ) -> StoredDocument | None:
        """Return a document; None if there was never one."""
        running = self._buckets.engine(bucket)
        found = await running.documents.read(
            doc_id.encode(), self._revs_limit(running), is_durable=is_durable
        )
        return None if found is None else found.document

    async def update(
        self, bucket: str, edits: Sequence[tuple[str, Decide]], *, is_durable: bool
    ) -> list[Written | MillstreamError]:
        """Change documents; return what came of each."""
        running = self._buckets.engine(bucket)
        keyed = [(doc_id.encode(), decide) for doc_id, decide in edits]
        made = await running.documents.update(
            keyed, self._revs_limit(running), is_durable=is_durable
        )
        return [
            one if isinstance(one, MillstreamError)
            else Written(one.partition, one.seqno, one.document)
            for one in made
        ]  # fmt: skip

    async def count_purge(self, bucket: str) -> None:
        """Count a purge, durably, before it is made."""
        await self._buckets.engine(bucket).count_purge()

    async def commit(self, bucket: str) -> None:
        """Return once all that was accepted before is durable."""
        running = self._buckets.engine(bucket)
        waits = [
            running.until_lasting(partition.partition_id, partition.high_seqno)
            for partition in running.bucket.partitions
            if partition.state is PartitionState.ACTIVE
            and partition.persisted_seqno < partition.high_seqno
        ]
        await asyncio.gather(*waits)

    async def scan(
        self, bucket: str, start: bytes, end: bytes, *, descending: bool
    ) -> AsyncGenerator[tuple[str, StoredDocument], None]:
        """Yield documents by id; deleted ones are left out."""
        running = self._buckets.engine(bucket)
        for partition in running.bucket.partitions:
            if partition.state is not PartitionState.ACTIVE:
                raise UnavailableError(
                    f"partition {partition.partition_id} is not active on this node: "
                    f"{places_of(running.bucket)}",
                    code="not_my_partition",
                    retry="refresh_map",
                )
        keys = await asyncio.to_thread(_keys_between, running.bucket, start, end)
        keys.sort(reverse=descending)
        limit = self._revs_limit(running)
        for number, key in enumerate(keys, 1):
            found = await running.documents.read(key, limit, is_durable=False)
            if number % _SCAN_TURN == 0:
                await asyncio.sleep(0)
            if found is None or not found.document.exists or found.document.winner.is_deleted:
                continue
            yield key.decode(), found.document

    # -- attachments

    async def put_blob(self, bucket: str, pieces: AsyncIterator[bytes]) -> Blob:
        """Keep bytes, durably."""
        put = await self._buckets.engine(bucket).blobs.put(pieces)
        return Blob(put.sha256, put.md5, put.length)

    def open_blob(self, bucket: str, sha256: bytes, begin: int, end: int) -> AsyncIterator[bytes]:
        """Return a range of bytes in pieces."""
        return self._buckets.engine(bucket).blobs.read(sha256, begin, end)

    # -- local documents

    async def read_local(self, bucket: str, doc_id: str) -> LocalDocument | None:
        """Return a document that is not replicated."""
        found = self._buckets.engine(bucket).local.read(doc_id)
        if found is None:
            return None
        body = self._held(bucket, found.body)
        return None if body is None else LocalDocument(doc_id, found.rev, body)

    def _held(self, bucket: str, body: bytes) -> bytes | None:
        """Return what the database's history still holds of a local document; None: nothing."""
        if _LOG_MARK not in body:
            return body
        database = self._changes.of(bucket)
        present = Present(database.uuid, tuple(database.histories()), database.purge_epoch())
        try:
            log = msgspec.json.decode(body)
        except msgspec.DecodeError:  # none of ours
            return body
        held = held_body(log, present)
        return body if held is log else None if held is None else msgspec.json.encode(held)

    async def write_local(
        self, bucket: str, doc_id: str, body: bytes | None, rev: int | None
    ) -> int:
        """Replace or delete one, durably; return its revision's number."""
        stamp = self._changes.of(bucket).latest().text()
        return await self._buckets.engine(bucket).local.write(doc_id, body, rev, stamp)

    async def locals(self, bucket: str) -> list[LocalDocument]:
        """Return all of them, by id."""
        found = await asyncio.to_thread(self._buckets.engine(bucket).local.all)
        held = [(doc_id, one.rev, self._held(bucket, one.body)) for doc_id, one in found]
        return [LocalDocument(doc_id, rev, body) for doc_id, rev, body in held if body is not None]

    # -- settings

    async def settings(self, bucket: str) -> Settings:
        """Return what is set for a database."""
        running = self._buckets.engine(bucket)
        security = running.local.setting(_SECURITY) or _NO_SECURITY
        return Settings(self._revs_limit(running), security)

    def _revs_limit(self, running: BucketEngine) -> int:
        uuid = running.bucket.uuid
        if uuid not in self._limits:
            value = running.local.setting(_REVS_LIMIT)
            self._limits[uuid] = REVS_LIMIT_DEFAULT if value is None else int(value)
        return self._limits[uuid]

    async def set_revs_limit(self, bucket: str, limit: int) -> None:
        """Keep so many generations from the next change on."""
        running = self._buckets.engine(bucket)
        await running.local.set(_REVS_LIMIT, b"%d" % limit)
        self._limits[running.bucket.uuid] = limit

    async def set_security(self, bucket: str, content: bytes) -> None:
        """Replace `_security`."""
        await self._buckets.engine(bucket).local.set(_SECURITY, content)


def _keys_between(bucket: Bucket, start: bytes, end: bytes) -> list[bytes]:
    found: list[bytes] = []
    for partition in bucket.partitions:
        found += [key for key in partition.known_keys() if start <= key <= end and _is_id(key)]
    return found


def _is_id(key: bytes) -> bool:
    if key[:1] == b"_" and not key.startswith(b"_design/"):
        return False
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def _disk_bytes(running: BucketEngine) -> int:
    files = (running.path / "log").glob("*")
    return sum(file.stat().st_blocks * 512 for file in files) + running.blobs.bytes


def _epoch_us(created: str) -> str:
    """Return when a bucket was made, in microseconds: another one of its name has another."""
    try:
        return str(int(datetime.fromisoformat(created).timestamp() * 1e6))
    except ValueError:
        return "0"
