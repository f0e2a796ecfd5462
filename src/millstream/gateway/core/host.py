"""What the HTTP front door needs of the node around it.

Elsewhere: the node that has this shape (`node.engine`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from millstream.access.users import UserStore
from millstream.kv.core.statistics import Figures

__all__ = ["BucketStatus", "NodeHost", "NodeMetrics"]


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """One bucket as shown to people."""

    name: str
    uuid: str
    partitions: int
    created: str
    state: Literal["ready", "failed"]
    reason: str = ""
    """Why it failed: names file and offset."""
    high_seqno: int = 0
    """Sum over all partitions: changes ever made."""
    persisted_seqno: int = 0
    """The same of what is durable."""


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """Figures of the engine, read in one step; names as `kv.core.statistics` describes them."""

    node: Mapping[str, float]
    buckets: Mapping[str, Figures]
    """By the name of the bucket."""


class NodeHost(Protocol):
    """The node as the pages see it; all calls run in the loop."""

    @property
    def uuid(self) -> str:
        """The node's own id, fixed when its directory was made."""

    @property
    def users(self) -> UserStore:
        """Who may do what."""

    @property
    def hosts(self) -> frozenset[str]:
        """Host names under which the node may be addressed, lower case, without ports."""

    def drop_user(self, name: str) -> None:
        """End what a user whose rights changed has open: they log in again."""

    def addresses(self) -> dict[str, str | None]:
        """Return listener -> HOST:PORT, None for closed ones."""

    def bucket_statuses(self) -> list[BucketStatus]:
        """Return all buckets, sorted by name."""

    async def create_bucket(self, name: str, partitions: int) -> BucketStatus:
        """Create a bucket, durably.

        Raises:
            UsageError: `bad_bucket_name`, `bad_partitions`.
            ConditionError: `bucket_exists`.
            UnavailableError: `too_many_buckets`.
        """

    async def delete_bucket(self, name: str) -> None:
        """Delete a bucket and all it holds.

        Raises:
            ConditionError: `bucket_not_found`.
        """

    def metrics(self) -> NodeMetrics:
        """Return the engine's figures."""
