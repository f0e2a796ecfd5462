"""Interface for the changes of a node's databases.

Elsewhere: the implementation (`databases.scans.feeds`), the rest of the node
(`gateway.core.api.node`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from millstream.documents.tokens import History, TokenWriter, Vector
from millstream.kv.core.revisions.changes_feed import Piece

__all__ = ["ChangesApi", "ChangesWalk", "DatabaseChanges"]


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
