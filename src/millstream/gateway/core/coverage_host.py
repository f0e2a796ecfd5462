"""What the pages of coverage need of the node around them.

Elsewhere: the node that has this shape (`node.coverage`), what records mean
(`replication.core.coverage`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from millstream.documents.tokens import Vector
from millstream.replication.core.coverage import Claim, Record

__all__ = ["CoverageHost"]


class CoverageHost(Protocol):
    """What the databases of a node know of others.

    Every call may raise `ConditionError` (`bucket_not_found`) and `UnavailableError`
    (`bucket_failed`).
    """

    async def records(self, bucket: str, origins: Collection[str]) -> list[Record]:
        """Return what a database has of others; without origins all of it."""

    async def emitted(self, bucket: str, end: Vector, puller: str) -> list[Record]:
        """Return what a reader may be told who holds all up to `end`.

        Args:
            bucket: the database that is read.
            end: where its reader stands.
            puller: uuid of the database that the changes go to; empty: not known.
        """

    async def store(
        self, bucket: str, records: Sequence[Record], removed: Collection[str]
    ) -> None:
        """Keep records whose stamps hold, durably; forget those that are named."""

    async def verify(self, bucket: str, claims: Sequence[Claim]) -> list[Vector | None]:
        """Return for each claim about a database how far it holds; None: not at all."""
