"""The changes of a node's databases as its pages see them, and what it says of its own partitions.

Elsewhere: the node that has these shapes (`node.changes`, `databases.documents.local_parts`), the
rest of it (`gateway.core.api.node`).
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

__all__ = ["ChangesHost", "ChangesWalk", "DatabaseChanges", "PartHost"]


class ChangesWalk(Protocol):
    """One reader's walk over the changes of a database, to be closed."""

    @property
    def tokens(self) -> TokenWriter:
        """Where the reader stands: whoever shows it changes moves it along."""

    def lag(self) -> int:
        """Return how many seqnos there are above where the reader stands."""

    def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield what there is to read now; at the end the reader has all that was there."""

    async def wait(self, seconds: float) -> bool:
        """Return once there may be more to read; False: there was nothing for so long.

        Raises:
            ConditionError: `bucket_not_found`, it went away.
            UnavailableError: `not_my_partition`.
        """

    def close(self) -> None:
        """Read no more."""


class DatabaseChanges(Protocol):
    """The changes of one database."""

    @property
    def uuid(self) -> str:
        """Of the database."""

    def histories(self) -> Sequence[History]:
        """Return what positions of its partitions are judged by."""

    def purge_epoch(self) -> int:
        """Return how often documents were purged."""

    def latest(self) -> Vector:
        """Return where a reader stands who has everything that lasts: `update_seq`."""

    def start_of(self, since: Vector | int | None) -> Vector:
        """Return where a reader stands who says a token, a number, or None: now.

        Raises:
            UsageError: `bad_request`: a token of another database.
        """

    def open(self, start: Vector, *, restarts: bool) -> ChangesWalk:
        """Return a walk from there on.

        Args:
            start: as `start_of` returns it.
            restarts: the reader sees a part of the documents, by what is in them.

        Raises:
            UnavailableError: `not_my_partition`.
        """


class ChangesHost(Protocol):
    """The changes of a node's databases."""

    def of(self, bucket: str) -> DatabaseChanges:
        """Return those of one.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`.
        """

    async def whole(self, bucket: str) -> DatabaseChanges:
        """Return those of one, wherever its partitions are.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`; `node_failed`.
            RoutingError: `not_my_partition`: no node is said to have one now.
        """

    def purging(self, bucket: str) -> AbstractAsyncContextManager[None]:
        """Return what a purge is made within, so that all hear of it; raises as `whole`.

        Raises:
            UnavailableError: `disk_full`.
        """


class PartHost(Protocol):
    """What a node says of its own partitions of a bucket, to nodes that answer for all of it.

    Every call may raise `ConditionError` (`bucket_not_found`: also one of another uuid) and
    `UnavailableError` (`bucket_failed`; `not_my_partition`: one of those is not active here).
    """

    async def histories(self, bucket: str, wanted: WantedHistories) -> Histories:
        """Return what positions are judged by, perhaps once there is something new in one."""

    def changes(self, bucket: str, wanted: WantedChanges) -> AsyncGenerator[bytes, None]:
        """Yield changes as messages of `gateway.core.bucket_parts`."""

    def documents(self, bucket: str, wanted: WantedDocuments) -> AsyncGenerator[bytes, None]:
        """Yield documents by id as messages of `gateway.core.bucket_parts`."""

    async def figures(self, bucket: str, wanted: WantedPart) -> Figures:
        """Return how many documents there are, and what they take."""

    async def count_purge(self, bucket: str, uuid: str, *, is_made: bool) -> None:
        """Count a purge, durably, that is about to be made, or was."""
