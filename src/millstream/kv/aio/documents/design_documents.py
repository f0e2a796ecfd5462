"""Reading and changing a bucket's design documents, waiting for the disk where it must.

Invariants:
1. `write` that is to be durable returns once the change is, and raises if it went back before.

Elsewhere: what is refused and who is told (`kv.core.revisions.design_documents`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from millstream.errors import UnavailableError
from millstream.kv.aio.majority import MajorityWait
from millstream.kv.aio.reading_back import with_documents
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.revisions.design_documents import DesignDocuments, StoredDesign, design_key

__all__ = ["DesignStore"]


class DesignStore:
    """The design documents of one bucket.

    Args:
        bucket: it.
        documents: its design documents.
        until_persisted: as `BucketEngine.until_persisted`.
        now_ns: Unix time.
    """

    def __init__(
        self,
        bucket: Bucket,
        documents: DesignDocuments,
        until_persisted: Callable[[int, int], Awaitable[None]],
        now_ns: Callable[[], int],
    ) -> None:
        self.documents = documents
        self._bucket = bucket
        self._until_persisted = until_persisted
        self._now_ns = now_ns
        self._majority = MajorityWait(now_ns)

    async def read(self, name: str) -> StoredDesign | None:
        """Return a document, or its deletion, from its active copy; raises as `DesignDocuments`.

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
            UnavailableError: `ambiguous`, the change was taken back before it was durable;
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
                    f"{name!r} was durable: look whether it is there",
                    code="ambiguous",
                )
        return written

    def _write(self, key: bytes, body: bytes | None, rev: str | None) -> StoredDesign:
        written = self.documents.write(key, body, rev, self._now_ns())
        self._bucket.changed()
        return written

    async def all(self, *, is_complete: bool) -> list[StoredDesign]:
        """Return the documents of which there is a copy here, without deleted ones, by name.

        Raises:
            UnavailableError: `not_my_partition`: of a partition there is no copy here, and
                `is_complete` asks for all.
        """
        place = self.documents.missing_copies() if is_complete else ""
        if place:
            raise UnavailableError(
                f"this node has no copy of some partitions of bucket {self._bucket.name!r}, and "
                f"may lack design documents: {place}",
                code="not_my_partition",
                retry="refresh_map",
            )
        found = []
        for key in self.documents.known_keys():
            one = await with_documents(partial(self.documents.read_copy, key))
            if one is not None and not one.is_deleted:
                found.append(one)
        return found
