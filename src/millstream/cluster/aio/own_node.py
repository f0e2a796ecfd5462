"""What membership in a cluster needs of the node that it is in.

Elsewhere: who implements it (`node.cluster_member`), who uses it (`cluster.aio.membership`,
`cluster.aio.joining`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from millstream.cluster.aio.local_engine import LocalEngine
from millstream.cluster.core.elements import Role
from millstream.cluster.core.identity import Identity
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.model.standing import Standing

__all__ = ["OwnBucket", "OwnNode"]


class OwnBucket(NamedTuple):
    """A bucket of a node that is a member of no cluster yet."""

    name: str
    uuid: str
    index_replicas: bool
    changes: int
    """Number of changes that it ever had."""
    map_revision: int
    """Of the map that it was given by hand; 0: none."""
    standings: Sequence[Standing]
    """By partition."""
    problem: str = ""
    """Why it is not served; empty: it is."""


class OwnNode(Protocol):
    """The node."""

    @property
    def uuid(self) -> str:
        """Return its id."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """Return what it does."""

    @property
    def zone(self) -> str:
        """Return the zone that it was started with; empty: none."""

    def addresses(self) -> tuple[str, Mapping[str, int]]:
        """Return its host and its open ports by listener, as others reach them."""

    def connect(self, session_s: float, on_lost: Callable[[], None] = lambda: None) -> AsyncClient:
        """Return a client of the coordination service, logged in as a node.

        Raises:
            UsageError: `no_coord`: this node has no port of coordination.
            ConditionError: `no_cluster_secret`: there are users, and nodes could not log in.
        """

    async def ask(
        self, host: str, port: int, method: str, path: str, content: bytes | None = None
    ) -> bytes:
        """Return what a page of another node answers to a node.

        Raises:
            MillstreamError: it does not answer, or refuses.
        """

    def engine(self) -> LocalEngine:
        """Return its data engine and indexes, as a member of a cluster has them."""

    def buckets(self) -> Sequence[OwnBucket]:
        """Return its buckets."""

    async def delete_bucket(self, name: str) -> None:
        """Delete a bucket; raises MillstreamError."""

    async def join_pool(self, peer: str) -> None:
        """Join the coordination pool of the node at this peer address; it may be in it.

        The node's own group is given up if nobody has used it.

        Raises:
            ConditionError: `has_data`: there are namespaces.
            UnavailableError: coordination could not be started again.
        """

    async def found_pool(self) -> None:
        """Begin coordination anew, alone; the files of the lost one are kept aside.

        Raises:
            UnavailableError: coordination could not be started again.
        """

    async def keep_identity(self, identity: Identity) -> None:
        """Keep durably of which cluster it is a member; raises UnavailableError."""
