"""Interface for what other nodes of the cluster are told about a node.

Elsewhere: the implementation (`databases.shared_answers`), stored documents
(`gateway.core.api.stored`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

__all__ = ["AskedDocument", "SharedApi"]


class AskedDocument(msgspec.Struct, frozen=True, array_like=True):
    """A document that belongs to a row of a view, or that another node requests."""

    id: str
    rev: Any = None
    """Only in this revision; None: in its current one."""
    attachments: bool = False
    """Include the data of its attachments."""


class SharedApi(Protocol):
    """The description of a node for others, and the documents that they request."""

    def listed(self) -> msgspec.Struct:
        """Return the buckets, each with a value that changes with its description."""

    async def bucket(self, name: str) -> msgspec.Struct:
        """Return the description of a bucket: map, active partitions, design documents.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`.
        """

    async def documents(self, name: str, asked: Sequence[AskedDocument]) -> list[bytes | None]:
        """Return the texts of the first documents, as many as fit into an answer.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`; `not_my_partition`.
        """
