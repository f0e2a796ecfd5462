"""Documents of the database of jobs whose partitions are active on this node.

Invariants:
1. A document is reported only by the node that has its partition active.
2. The first report of a partition has all its documents. A full report follows again when its
   history may have changed, or when the partition has come back.
3. The reader is told at once when a partition leaves this node.

Elsewhere: what is done with them (`databases.jobs.replicator`), walks
(`kv.aio.documents.changes`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from millstream.documents.json_text import parse
from millstream.errors import UnavailableError
from millstream.gateway.core.changes import ChangesQuery
from millstream.gateway.core.changes_rows import RowMaker
from millstream.kv.aio.documents.changes import BucketChanges
from millstream.kv.core.bucket import Bucket
from millstream.model.partitions import PartitionState, partition_of
from millstream.replication.core.jobs import JOB_BYTES_MAX

__all__ = ["LOOK_AGAIN_S", "JobRow", "JobRows", "Left", "Moving"]

LOOK_AGAIN_S: Final = 1.0
"""Pause before a partition that cannot be read is tried again."""
_QUERY: Final = ChangesQuery(include_docs=True)


class Moving(Protocol):
    """Reports changes of copies' states: `kv.aio.copies`."""

    def subscribe_moved(self, callback: Callable[[int], None]) -> None:
        """Call `callback` after the state of a copy changed."""

    def unsubscribe_moved(self, callback: Callable[[int], None]) -> None:
        """Reverse `subscribe_moved`."""


class JobRow(NamedTuple):
    """A document as of its newest change."""

    partition: int
    state_key: str
    """Key of the remembered state of its job: not a document, but in the same partition."""
    doc_id: str
    rev: str
    doc: dict[str, Any] | None
    """The document. None: it was deleted."""


class Left(NamedTuple):
    """The complete documents of these partitions; any others of them are no longer this node's."""

    partitions: frozenset[int]
    doc_ids: frozenset[str]


class JobRows:
    """The documents of one bucket.

    Args:
        bucket: that is served.
        copies: of its partitions.
    """

    def __init__(self, bucket: Bucket, copies: Moving) -> None:
        self._bucket = bucket
        self._copies = copies
        self._changes = BucketChanges(bucket)
        self._happened = asyncio.Event()
        bucket.subscribe_durable(self._happened.set)
        copies.subscribe_moved(self._moved)

    @property
    def partition_count(self) -> int:
        """Return the number of partitions of the bucket."""
        return self._bucket.partition_count

    def close(self) -> None:
        """Stop reading."""
        self._bucket.unsubscribe(self._happened.set)
        self._copies.unsubscribe_moved(self._moved)

    def drop(self) -> None:
        """The bucket is no longer served; the reader is told."""
        self._changes.drop()
        self._happened.set()

    def _moved(self, _: int) -> None:
        self._happened.set()

    def _active(self) -> dict[int, int]:
        """Return the active partitions, each with a number that changes with its history."""
        every = self._bucket.partitions
        return {p.partition_id: p.epoch for p in every if p.state is PartitionState.ACTIVE}

    async def tell(self) -> AsyncGenerator[JobRow | Left, None]:
        """Yield documents, and for partitions which documents remain; to be cancelled.

        Raises:
            ConditionError: `bucket_not_found`: the bucket is no longer served.
        """
        while True:
            self._happened.clear()  # or the pause below ends at once
            active = self._active()
            elsewhere = frozenset(range(self.partition_count)) - active.keys()
            yield Left(elsewhere, frozenset())
            try:
                async with aclosing(self._rows_of(active)) as there:
                    async for told in there:
                        yield told
            except UnavailableError:  # a partition moves, or has moved
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_AGAIN_S):
                        await self._happened.wait()

    async def _rows_of(self, active: dict[int, int]) -> AsyncGenerator[JobRow | Left, None]:
        """Yield the documents of these partitions until the active set or a history changes."""
        maker = RowMaker(self._bucket.uuid, _QUERY)
        walk = self._changes.open(self._changes.start_of(0), restarts=True, numbers=sorted(active))
        found: set[str] | None = set()
        try:
            while self._active() == active:
                self._happened.clear()
                async for piece in walk.pieces():
                    for row in maker.rows(piece.frames):
                        text = b"".join((row.text, *row.more))
                        told = self._row(piece.snapshot.partition_id, text)
                        if found is not None and told.doc is not None:
                            found.add(told.doc_id)
                        yield told
                        if row.more:
                            await asyncio.sleep(0)
                if found is not None:
                    yield Left(frozenset(active), frozenset(found))
                    found = None
                await self._happened.wait()
        finally:
            walk.close()

    def _row(self, partition: int, text: bytes) -> JobRow:
        row = _row_of(b'{"seq":0' + text)
        doc: dict[str, Any] | None = None
        if not row.deleted:  # one that is too large says nothing, so its job fails
            doc = {} if len(row.doc) > JOB_BYTES_MAX else parse(bytes(row.doc))
        key = _state_key(row.id, partition, self.partition_count)
        return JobRow(partition, key, row.id, row.changes[0]["rev"], doc)


class _Row(msgspec.Struct):
    id: str
    changes: list[dict[str, str]]
    deleted: bool = False
    doc: msgspec.Raw = msgspec.Raw(b"null")


_row_of: Final = msgspec.json.Decoder(_Row).decode


def _state_key(doc_id: str, partition: int, partition_count: int) -> str:
    digest = sha256(doc_id.encode()).hexdigest()[:32]
    keys = (f"_state/{digest}/{number}" for number in itertools.count())
    return next(key for key in keys if partition_of(key.encode(), partition_count) == partition)
