"""Reads and changes a bucket's design documents, and waits for the disk where needed.

Invariants:
1. A durable `write` returns once the change is durable, and raises if it was rolled back before.

Elsewhere: refusals and subscribers (`kv.core.revisions.design_documents`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from millstream.documents.json_text import LARGE_BYTES
from millstream.errors import UnavailableError
from millstream.kv.aio.majority import MajorityWait
from millstream.kv.aio.reading_back import with_documents
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.revisions.design_documents import DesignDocuments, StoredDesign, design_key

__all__ = ["DesignStore"]


class DesignStore:
    """The design documents of one bucket.

    Args:
        bucket: of the documents.
        documents: its design documents.
        until_persisted: as `BucketEngine.until_persisted`.
        majority: the wait that all changes of the bucket share.
        now_ns: Unix time.
    """

    def __init__(
        self,
        bucket: Bucket,
        documents: DesignDocuments,
        until_persisted: Callable[[int, int], Awaitable[None]],
        majority: MajorityWait,
        now_ns: Callable[[], int],
    ) -> None:
        self.documents = documents
        self._bucket = bucket
        self._until_persisted = until_persisted
        self._now_ns = now_ns
        self._majority = majority

    async def read(self, name: str) -> StoredDesign | None:
        """Return a document or its tombstone, from its active copy; raises as `DesignDocuments`.

        Raises:
            UsageError: `illegal_docid`.
        """
        return await with_documents(partial(self.documents.read, design_key(name)))

    async def write(
        self, name: str, body: bytes | None, rev: str | None, *, is_durable: bool
    ) -> StoredDesign:
        """Replace a revision, or delete (`body` None); raises as `DesignDocuments.write`.

        Raises:
            UsageError: `illegal_docid`.
            UnavailableError: `ambiguous`, the change was rolled back before it was durable;
                `majority_awaited`, `majority_impossible`, nothing was changed; `disk_failed`.
        """
        key = design_key(name)
        if is_durable:
            await self._majority.until_possible(self._bucket.partition_for(key))
        written = await with_documents(lambda: self._write(key, body, rev))
        if is_durable:
            partition = self._bucket.partitions[written.partition]
            epoch = partition.epoch
            await self._until_persisted(written.partition, written.seqno)
            if partition.epoch != epoch:
                raise UnavailableError(
                    f"partition {written.partition} changed its history before design document "
                    f"{name!r} was durable: check whether it is stored",
                    code="ambiguous",
                )
        return written

    def _write(self, key: bytes, body: bytes | None, rev: str | None) -> StoredDesign:
        written = self.documents.write(key, body, rev, self._now_ns())
        self._bucket.changed()
        return written

    async def all(self) -> list[StoredDesign]:
        """Return the documents with a copy here of any state, without deleted ones, by name."""
        found = []
        for key in self.documents.known_keys():
            one = await with_documents(partial(self.documents.read_copy, key))
            if one is not None and not one.is_deleted:
                found.append(one)
                if len(one.body) > LARGE_BYTES:
                    await asyncio.sleep(0)  # it was copied
        return found
