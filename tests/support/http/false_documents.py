"""Documents of a node in memory, for the pages: what `gateway.core.api.documents` describes."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from typing import Any

from millstream.documents.purge_list import Purged, PurgeList
from millstream.errors import ConditionError, MillstreamError, UnavailableError
from millstream.gateway.core.api.documents import (
    Blob,
    DatabaseInfo,
    Decide,
    LocalDocument,
    OldDocuments,
    Settings,
    Written,
)


class FalseDatabase:
    def __init__(self) -> None:
        self.documents: dict[str, Any] = {}
        self.old: dict[str, list[Any]] = {}
        """What was replaced, newest first."""
        self.local: dict[str, LocalDocument] = {}
        self.settings = Settings(1000, b"{}", "f" * 32)
        self.seqno = 0
        self.purge_list = PurgeList()


class FalseDocuments:
    """`names` are the databases that there are, looked at with each call."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._databases: dict[str, FalseDatabase] = {}
        self.blobs: dict[bytes, bytes] = {}
        self.failure: MillstreamError | None = None
        self.durable_waits = 0
        self.compacted: list[str] = []

    def database(self, bucket: str) -> FalseDatabase:
        if self.failure is not None:
            raise self.failure
        if bucket not in self._names:
            raise ConditionError(f"no bucket {bucket!r}", code="bucket_not_found")
        return self._databases.setdefault(bucket, FalseDatabase())

    async def total(self, bucket: str) -> int | None:
        return (await self.info(bucket)).document_count

    async def info(self, bucket: str) -> DatabaseInfo:
        database = self.database(bucket)
        live = sum(not one.winner.is_deleted for one in database.documents.values())
        return DatabaseInfo(
            bucket, "u1", 64, live, len(database.documents) - live, f"{database.seqno}-x", 0,
            10, 9, 8, False, "1700000000",
        )  # fmt: skip

    async def read(self, bucket: str, doc_id: str, *, is_durable: bool = False) -> Any:
        self.durable_waits += is_durable
        return self.database(bucket).documents.get(doc_id)

    async def read_all(
        self, bucket: str, doc_ids: Sequence[str], *, is_durable: bool = False
    ) -> AsyncGenerator[Any, None]:
        for doc_id in doc_ids:
            yield await self.read(bucket, doc_id, is_durable=is_durable)

    async def update(
        self, bucket: str, edits: Sequence[tuple[str, Decide]], *, is_durable: bool
    ) -> list[Written | MillstreamError]:
        self.durable_waits += is_durable
        database, done = self.database(bucket), list[Written | MillstreamError]()
        for doc_id, decide in edits:
            present = database.documents.get(doc_id)
            try:
                following = decide(present)
            except MillstreamError as error:
                done.append(error)
                continue
            if following is not None:
                if present is not None:
                    database.old.setdefault(doc_id, []).insert(0, present)
                if following.is_purged:
                    database.old.pop(doc_id)
                database.seqno += 1
                following.seqno = database.seqno
                database.documents[doc_id] = present = following
            done.append(Written(0, database.seqno if following else 0, present))
        return done

    async def old(
        self, bucket: str, doc_id: str, revs: Sequence[str], *, lists_all: bool
    ) -> OldDocuments:
        documents = self.database(bucket).old.get(doc_id, [])
        known = [rev for one in documents for rev in one.contents]
        found = [(one, [rev for rev in revs if rev in one.contents]) for one in documents]
        return OldDocuments([one for one in found if one[1]], known if lists_all else [])

    async def compact(self, bucket: str) -> None:
        self.database(bucket).old.clear()
        self.compacted.append(bucket)

    async def commit(self, bucket: str) -> None:
        self.database(bucket)
        self.durable_waits += 1

    async def put_blob(self, bucket: str, pieces: AsyncIterator[bytes]) -> Blob:
        self.database(bucket)
        data = b"".join([piece async for piece in pieces])
        name = hashlib.sha256(data).digest()
        self.blobs[name] = data
        return Blob(name, hashlib.md5(data, usedforsecurity=False).digest(), len(data))

    async def open_blob(
        self, bucket: str, sha256: bytes, begin: int, end: int
    ) -> AsyncIterator[bytes]:
        if sha256 not in self.blobs:
            raise UnavailableError("not here", code="blob_missing")
        yield self.blobs[sha256][begin:end]

    async def read_local(self, bucket: str, doc_id: str) -> LocalDocument | None:
        return self.database(bucket).local.get(doc_id)

    async def write_local(
        self, bucket: str, doc_id: str, body: bytes | None, rev: int | None
    ) -> int:
        local = self.database(bucket).local
        present = local.get(doc_id)
        if rev is not None and rev != (present.rev if present else 0):
            raise ConditionError("Document update conflict.", code="conflict")
        if body is None:
            if local.pop(doc_id, None) is None:
                raise ConditionError("missing", code="not_found")
            return 0
        number = 1 if rev is None else rev + 1
        local[doc_id] = LocalDocument(doc_id, number, body)
        return number

    async def locals(self, bucket: str) -> list[LocalDocument]:
        local = self.database(bucket).local
        return [local[doc_id] for doc_id in sorted(local)]

    async def settings(self, bucket: str) -> Settings:
        return self.database(bucket).settings

    async def purges(self, bucket: str) -> PurgeList:
        return self.database(bucket).purge_list

    async def note_purges(self, bucket: str, purged: Sequence[Purged]) -> None:
        database = self.database(bucket)
        database.purge_list = database.purge_list.extended(purged)

    async def set_purged_infos_limit(self, bucket: str, limit: int) -> None:
        database = self.database(bucket)
        database.purge_list = database.purge_list.limited(limit)

    async def set_revs_limit(self, bucket: str, limit: int) -> None:
        database = self.database(bucket)
        database.settings = database.settings._replace(revs_limit=limit)

    async def set_security(self, bucket: str, content: bytes) -> None:
        database = self.database(bucket)
        database.settings = database.settings._replace(security=content)

    async def keys(self, bucket: str, start: bytes, end: bytes) -> AsyncGenerator[bytes, None]:
        async for doc_id, _ in self.scan(bucket, start, end, descending=False):
            yield doc_id.encode()

    async def scan(
        self, bucket: str, start: bytes, end: bytes, *, descending: bool
    ) -> AsyncGenerator[tuple[str, Any], None]:
        documents = self.database(bucket).documents
        for doc_id in sorted(documents, key=str.encode, reverse=descending):
            found = documents[doc_id]
            if start <= doc_id.encode() <= end and not found.winner.is_deleted:
                yield doc_id, found
