"""What the pages of coverage need of the node around them.

Elsewhere: the node that has this shape (`node.coverage`), what records mean
(`replication.core.coverage`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from millstream.documents.tokens import Vector
from millstream.replication.core.coverage import Claim, Record

__all__ = ["CoverageHost", "Puller"]


class Puller(NamedTuple):
    """Who reads changes and takes records of coverage."""

    uuid: str
    """Of the database that the changes go to; empty: not known."""
    takes_parts: bool = False
    """Whether it wants, in the middle of a snapshot, what is true of some partitions."""


class CoverageHost(Protocol):
    """What the databases of a node know of others.

    Every call may raise `ConditionError` (`bucket_not_found`) and `UnavailableError`
    (`bucket_failed`).
    """

    async def records(self, bucket: str, origins: Collection[str]) -> list[Record]:
        """Return what a database has of others; without origins all of it."""

    async def emitted(self, bucket: str, end: Vector, puller: Puller) -> list[Record]:
        """Return what a reader may be told who holds all up to `end`.

        Args:
            bucket: the database that is read.
            end: where its reader stands.
            puller: who reads.
        """

    async def store(
        self, bucket: str, records: Sequence[Record], removed: Collection[str]
    ) -> None:
        """Keep records whose stamps hold, durably; forget those that are named."""

    async def verify(self, bucket: str, claims: Sequence[Claim]) -> list[Vector | None]:
        """Return for each claim about a database how far it holds; None: not at all."""
