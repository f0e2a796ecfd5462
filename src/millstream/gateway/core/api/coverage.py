"""Interface of the node for the pages of coverage.

Elsewhere: the implementation (`databases.jobs.coverage`), the meaning of records
(`replication.core.coverage`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from millstream.documents.tokens import Vector
from millstream.replication.core.coverage import Claim, Record

__all__ = ["CoverageApi", "Puller"]


class Puller(NamedTuple):
    """A client that reads changes and accepts records of coverage."""

    uuid: str
    """Uuid of the database that the changes go to; empty: unknown."""
    takes_parts: bool = False
    """Whether it accepts, inside a snapshot, records about some partitions."""


class CoverageApi(Protocol):
    """What the databases of a node know of others.

    Every call may raise `ConditionError` (`bucket_not_found`) and `UnavailableError`
    (`bucket_failed`).
    """

    async def records(self, bucket: str, origins: Collection[str]) -> list[Record]:
        """Return a database's records about others; without origins all of them."""

    async def emitted(self, bucket: str, end: Vector, puller: Puller) -> list[Record]:
        """Return the records for a reader that has everything up to `end`.

        Args:
            bucket: the database that is read.
            end: position of its reader.
            puller: the reader.
        """

    async def store(
        self, bucket: str, records: Sequence[Record], removed: Collection[str]
    ) -> None:
        """Store durably the records whose stamps hold; remove those that are named."""

    async def verify(self, bucket: str, claims: Sequence[Claim]) -> list[Vector | None]:
        """Return for each claim about a database how far it holds; None: not at all."""
