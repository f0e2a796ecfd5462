"""Interface for the changes of a node's databases, and of its own partitions.

Elsewhere: the implementation (`databases.scans.feeds`, `databases.documents.local_parts`), the
rest of the node (`gateway.core.api.node`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from millstream.documents.tokens import History, TokenWriter, Vector
from millstream.gateway.core.bucket_parts import (
    Figures,
    Histories,
    WantedChanges,
    WantedDocuments,
    WantedHistories,
    WantedPart,
)
from millstream.kv.core.revisions.changes_feed import Piece

__all__ = ["ChangesApi", "ChangesWalk", "DatabaseChanges", "PartApi"]


class ChangesWalk(Protocol):
    """One reader's walk over the changes of a database; to be closed."""

    @property
    def tokens(self) -> TokenWriter:
        """Return the position of the reader; advanced by whoever sends it changes."""

    def lag(self) -> int:
        """Return the number of seqnos above the reader's position."""

    def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield the changes available now; at the end the reader has all of them."""

    async def wait(self, seconds: float) -> bool:
        """Return once there may be more to read; False: the time has passed without changes.

        Raises:
            ConditionError: `bucket_not_found`, the bucket was removed.
            UnavailableError: `not_my_partition`.
        """

    def close(self) -> None:
        """Stop reading."""


class DatabaseChanges(Protocol):
    """The changes of one database."""

    @property
    def uuid(self) -> str:
        """Return the uuid of the database."""

    def histories(self) -> Sequence[History]:
        """Return the histories by which positions are judged."""

    def purge_epoch(self) -> int:
        """Return a value that changes with each purge."""

    def latest(self) -> Vector:
        """Return the position of a reader that has all durable changes: `update_seq`."""

    def start_of(self, since: Vector | int | None) -> Vector:
        """Return the position for a token, a number, or None: now.

        Raises:
            UsageError: `bad_request`: a token of another database.
        """

    def open(self, start: Vector, *, restarts: bool) -> ChangesWalk:
        """Return a walk from a position on.

        Args:
            start: as `start_of` returns it.
            restarts: the reader sees a subset of the documents, selected by content.

        Raises:
            UnavailableError: `not_my_partition`.
        """


class ChangesApi(Protocol):
    """The changes of a node's databases."""

    def of(self, bucket: str) -> DatabaseChanges:
        """Return the changes of one database.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`.
        """

    async def whole(self, bucket: str) -> DatabaseChanges:
        """Return the changes of one database, wherever its partitions are.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`; `node_failed`.
            RoutingError: `not_my_partition`: no node is known to have one now.
        """

    def purging(self, bucket: str) -> AbstractAsyncContextManager[None]:
        """Return the context of a purge, which lets all nodes count it; raises as `whole`.

        Raises:
            UnavailableError: `disk_full`.
        """


class PartApi(Protocol):
    """A node's own partitions of a bucket, for nodes that answer for the whole bucket.

    Every call may raise `ConditionError` (`bucket_not_found`: also for another uuid) and
    `UnavailableError` (`bucket_failed`; `not_my_partition`: one of those is not active here).
    """

    async def histories(self, bucket: str, wanted: WantedHistories) -> Histories:
        """Return the histories of partitions; on request only once one has something new."""

    def changes(self, bucket: str, wanted: WantedChanges) -> AsyncGenerator[bytes, None]:
        """Yield changes as messages of `gateway.core.bucket_parts`."""

    def documents(self, bucket: str, wanted: WantedDocuments) -> AsyncGenerator[bytes, None]:
        """Yield documents by id as messages of `gateway.core.bucket_parts`."""

    async def figures(self, bucket: str, wanted: WantedPart) -> Figures:
        """Return the number of documents, and their size."""

    async def count_purge(self, bucket: str, uuid: str, *, is_made: bool) -> None:
        """Count durably a purge that is about to be made, or was made."""
