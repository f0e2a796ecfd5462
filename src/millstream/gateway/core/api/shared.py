"""What other nodes of the cluster are told of a node, for the pages.

Elsewhere: the node that has this shape (`node.shared`), documents as they are kept
(`gateway.core.api.stored`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

__all__ = ["AskedDocument", "SharedHost"]


class AskedDocument(msgspec.Struct, frozen=True, array_like=True):
    """A document that belongs to a row of a view, or that another node asks for."""

    id: str
    rev: Any = None
    """Only in this revision; None: in its present one."""
    attachments: bool = False
    """With the data of its attachment."""


class SharedHost(Protocol):
    """What other nodes of the cluster are told of a node, and the documents they ask for."""

    def listed(self) -> msgspec.Struct:
        """Return which buckets there are, and whether what is told of each has changed."""

    async def bucket(self, name: str) -> msgspec.Struct:
        """Return what is told of a bucket: its map, which partitions are active, its designs.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`.
        """

    async def documents(self, name: str, asked: Sequence[AskedDocument]) -> list[bytes | None]:
        """Return the texts of documents: of the first ones, as many as an answer may hold.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`; `not_my_partition`.
        """
