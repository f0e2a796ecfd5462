"""Interface for what other nodes of the cluster are told about a node.

Elsewhere: the implementation (`databases.shared_answers`), requests of other nodes
(`gateway.core.api.stored`).
"""

from __future__ import annotations

from typing import Protocol

import msgspec

__all__ = ["SharedApi"]


class SharedApi(Protocol):
    """The description of a node for others."""

    def listed(self) -> msgspec.Struct:
        """Return the buckets, each with a value that changes with its description."""

    async def bucket(self, name: str) -> msgspec.Struct:
        """Return the description of a bucket: map, active partitions, design documents.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`.
        """
