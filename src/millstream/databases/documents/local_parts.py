"""This node's own partitions, as it shows them to nodes that answer for the whole bucket.

Invariants:
1. A bucket of the requested name with another uuid is not the requested bucket.
2. A request for a partition that is not active here is refused, or its answer ends with an error.
3. Memory holds one step of changes, or documents of about `FOUND_BYTES` and one more.

Elsewhere: the formats (`gateway.core.bucket_parts`), the pages
(`gateway.aio.peers.bucket_part_pages`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final

from millstream.databases.documents.local_documents import Documents
from millstream.databases.partition_owners import nowhere
from millstream.databases.purges import Purges
from millstream.databases.scans.bucket_view import own_histories
from millstream.databases.scans.feeds import NodeChanges
from millstream.databases.scans.local_scan import Range, scanned
from millstream.documents.tokens import Vector, is_position
from millstream.errors import ConditionError, MillstreamError, UsageError
from millstream.gateway.core.bucket_parts import (
    Changed,
    Ended,
    Failed,
    Figures,
    Found,
    Histories,
    Reached,
    WantedChanges,
    WantedDocuments,
    WantedHistories,
    WantedPart,
    framed,
)
from millstream.kv.aio.documents.changes import Changes
from millstream.kv.core.bucket import Bucket
from millstream.model.position import Position

__all__ = ["FOUND_BYTES", "WAIT_S_MAX", "OwnParts"]

FOUND_BYTES: Final = 256 * 1024
"""Size of the documents in one message."""
WAIT_S_MAX: Final = 60.0
"""How long another node may make this one wait for new changes."""


class OwnParts:
    """Implements `gateway.core.api.changes.PartApi`.

    Args:
        changes: of the node's buckets.
        documents: of the node.
        purges: of the node.
        now_ns: Unix time.
    """

    def __init__(
        self,
        changes: NodeChanges,
        documents: Documents,
        purges: Purges,
        now_ns: Callable[[], int],
    ) -> None:
        self._changes, self._documents = changes, documents
        self._purges, self._now_ns = purges, now_ns

    async def histories(self, bucket: str, wanted: WantedHistories) -> Histories:
        """Return the state of partitions; see `PartApi`."""
        found = self._bucket(bucket, wanted)
        if wanted.positions and wanted.wait_s > 0:
            walk = self._walk(bucket, wanted, wanted.positions, restarts=False)
            try:
                await walk.wait(min(wanted.wait_s, WAIT_S_MAX))
            finally:
                walk.close()
            self._check_active(bucket, wanted.partitions)
        return own_histories(found, wanted.partitions, self._purges.said(bucket))

    async def changes(self, bucket: str, wanted: WantedChanges) -> AsyncGenerator[bytes, None]:
        """Yield changes as messages; see `PartApi`."""
        found = self._bucket(bucket, wanted)
        walk = self._walk(bucket, wanted, wanted.positions, restarts=wanted.restarts)
        try:
            async with aclosing(walk.pieces()) as pieces:
                async for snapshot, frames, covered in pieces:
                    partition = found.partitions[snapshot.partition_id]
                    branch = partition.failover_log[0].uuid
                    said = self._purges.said(bucket)
                    yield framed(Changed(*snapshot, covered, branch, said, frames))
            ends = list(walk.positions.items())
            yield framed(Reached(ends, self._purges.said(bucket)))
        except MillstreamError as error:
            yield framed(Failed(error.code, str(error)))
        finally:
            walk.close()

    async def documents(
        self, bucket: str, wanted: WantedDocuments
    ) -> AsyncGenerator[bytes, None]:  # fmt: skip
        """Yield documents by id as messages; see `PartApi`."""
        found = self._bucket(bucket, wanted)
        asked = Range(wanted.start, wanted.end, wanted.descending, wanted.after, wanted.of_kv)
        held, size = list[bytes](), 0
        try:
            documents = scanned(found, wanted.partitions, asked, self._now_ns)
            async with aclosing(documents):
                async for _, change in documents:
                    held.append(change)
                    size += len(change)
                    if size >= FOUND_BYTES:
                        yield framed(Found(held))
                        held, size = [], 0
            self._check_active(bucket, wanted.partitions)
            if held:
                yield framed(Found(held))
            yield framed(Ended())
        except MillstreamError as error:
            yield framed(Failed(error.code, str(error)))

    async def figures(self, bucket: str, wanted: WantedPart) -> Figures:
        """Return figures of partitions; see `PartApi`."""
        self._bucket(bucket, wanted)
        return await self._documents.figures(bucket, wanted.partitions)

    async def count_purge(self, bucket: str, uuid: str, *, is_made: bool) -> None:
        """Count a purge; see `PartApi`."""
        self._check_uuid(bucket, uuid)
        await (self._purges.end(bucket) if is_made else self._purges.begin(bucket))

    def _bucket(self, bucket: str, wanted: WantedPart) -> Bucket:
        """Return a requested bucket, if these partitions are active here."""
        found = self._check_uuid(bucket, wanted.uuid)
        count = found.partition_count
        if not wanted.partitions or not all(0 <= n < count for n in wanted.partitions):
            raise UsageError(f"partitions are 0 to {count - 1}, and at least one is asked for")
        if len(set(wanted.partitions)) < len(wanted.partitions):
            raise UsageError("a partition is asked for twice")
        self._check_active(bucket, wanted.partitions)
        return found

    def _check_uuid(self, bucket: str, uuid: str) -> Bucket:
        found = self._changes.places(bucket).bucket
        if found.uuid != uuid:
            raise ConditionError(f"bucket {bucket!r} is another one here", code="bucket_not_found")
        return found

    def _check_active(self, bucket: str, numbers: Sequence[int]) -> None:
        missing = set(numbers) - set(self._changes.places(bucket).plan(numbers).own)
        if missing:
            raise nowhere(missing)

    def _walk(
        self, bucket: str, wanted: WantedPart, positions: Sequence[Position], *, restarts: bool
    ) -> Changes:
        """Return a walk over partitions from given positions on."""
        if len(positions) != len(wanted.partitions):
            raise UsageError("must be as many positions as partitions")
        if not all(map(is_position, positions)):
            raise UsageError("impossible positions")
        database = self._changes.of(bucket)
        everywhere = list(database.latest().positions)
        for number, position in zip(wanted.partitions, positions, strict=True):
            everywhere[number] = position
        start = Vector(database.origin, tuple(everywhere))
        return database.open(start, restarts=restarts, numbers=wanted.partitions)
