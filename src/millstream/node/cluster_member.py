"""A node as its membership in a cluster sees it: buckets, addresses, coordination, identity.

Elsewhere: membership (`cluster.aio.membership`), the interface (`cluster.aio.own_node`), the
engine of records and copies (`databases.managed_engine`).
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, cast

from millstream.access.users import NODE_USER, UserStore
from millstream.cluster.aio.local_engine import LocalEngine
from millstream.cluster.aio.node_agent import CALL_S_MAX
from millstream.cluster.aio.own_node import OwnBucket
from millstream.cluster.cluster_state import NodeAt
from millstream.cluster.core.elements import ROOT, Role
from millstream.cluster.core.identity import Identity
from millstream.cluster.peers import ClusterPeers
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.data_directory.cluster_file import write_identity
from millstream.data_directory.ownership import DataDirectory
from millstream.databases.buckets import Buckets
from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.gateway.core.api.node import BucketStatus
from millstream.kv.core.copies.copy_status import standing_of
from millstream.model.addresses import parse_address
from millstream.node.settings import LISTENERS, Address, Settings
from millstream.runtime.tasks import in_thread

__all__ = ["ClusterMember", "Parts"]

_PIECE_BYTES: Final = 256 * 1024
"""Longer requests are sent in pieces, so that other work of the loop comes between."""
_PUBLIC: Final = ("kv", "http", "coord", "peer")
"""Listeners that other nodes use."""


class Parts(NamedTuple):
    """The parts of a node that membership uses."""

    settings: Settings
    directory: DataDirectory
    users: UserStore
    buckets: Buckets
    peers: ClusterPeers
    addresses: Mapping[str, Address]
    """Of the open listeners; changed in place."""
    tls: ssl.SSLContext | None
    engine: Callable[[], LocalEngine]
    delete_bucket: Callable[[str], Awaitable[None]]
    join_pool: Callable[[Address], Awaitable[None]]
    """Begins coordination anew, in the pool of another node."""
    found_pool: Callable[[], Awaitable[None]]
    """Begins coordination anew, alone."""


class ClusterMember:
    """Implements `cluster.aio.own_node.OwnNode`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    @property
    def uuid(self) -> str:
        """Return the node's id."""
        return self._parts.directory.uuid

    @property
    def roles(self) -> tuple[Role, ...]:
        """Return what the node does."""
        roles = self._parts.settings.roles
        if "coord" not in self._parts.addresses:
            roles = tuple(role for role in roles if role != "coord")
        return cast("tuple[Role, ...]", roles)

    @property
    def zone(self) -> str:
        """Return the zone that it was started with."""
        return self._parts.settings.zone

    def addresses(self) -> tuple[str, Mapping[str, int]]:
        """Return host and ports, as others reach them."""
        open_ = self._parts.addresses
        return self._parts.settings.advertised_host, {
            name: open_[name].port for name in LISTENERS if name in _PUBLIC and name in open_
        }

    def connect(self, session_s: float, on_lost: Callable[[], None] = lambda: None) -> AsyncClient:
        """Return a client of the own coordination port; see `OwnNode.connect`."""
        address = self._parts.addresses.get("coord")
        if address is None:
            raise UsageError(
                "this node has no port of coordination, which a cluster needs: start it without "
                "--no-coord",
                code="no_coord",
            )
        host = "127.0.0.1" if address.is_wildcard else address.host
        secret = self._parts.settings.cluster_secret
        if not secret and not self._parts.users.is_empty:
            raise ConditionError(
                "there are users, and nodes could not log in to each other: start all nodes with "
                "the same cluster secret, in MILLSTREAM_CLUSTER_SECRET",
                code="no_cluster_secret",
            )
        return AsyncClient(
            [str(Address(host, address.port))],
            user=NODE_USER if secret else None,
            password=secret,
            session_s=session_s,
            deadline_s=CALL_S_MAX,
            tls=self._parts.tls,
            on_session_lost=on_lost,
        )

    async def ask(
        self, host: str, port: int, method: str, path: str, content: bytes | None = None
    ) -> bytes:
        """Return what a page of another node answers."""
        node = self._parts.peers.node(NodeAt(host, port))
        if content is None or len(content) <= _PIECE_BYTES:
            return await node.ask(method, path, data=content)
        return await node.ask(method, path, data=_pieces(content))

    def engine(self) -> LocalEngine:
        """Return the engine of a managed node."""
        return self._parts.engine()

    def buckets(self) -> Sequence[OwnBucket]:
        """Return the buckets of the node."""
        return [self._bucket(status) for status in self._parts.buckets.statuses()]

    def _bucket(self, status: BucketStatus) -> OwnBucket:
        running = self._parts.buckets.running.get(status.name)
        if status.state != "ready" or running is None:
            return OwnBucket(
                status.name, status.uuid, status.index_replicas, status.high_seqno, 0, (),
                status.reason or "it is not served",
            )  # fmt: skip
        bucket = running.bucket
        revision = 0 if bucket.map is None else bucket.map.revision
        standings = tuple(map(standing_of, bucket.partitions))
        return OwnBucket(
            status.name, status.uuid, status.index_replicas, status.high_seqno, revision, standings
        )

    async def delete_bucket(self, name: str) -> None:
        """Delete a bucket."""
        self._parts.buckets.await_maps(is_awaited=True)  # the cluster may have one of this name
        await self._parts.delete_bucket(name)

    async def join_pool(self, peer: str) -> None:
        """Join the coordination pool of another node; see `OwnNode.join_pool`."""
        host, port = parse_address(peer, default_port=LISTENERS["peer"].port)
        if await self._is_in_pool_of(peer):
            return
        await self._parts.join_pool(Address(host, port))

    async def found_pool(self) -> None:
        """Begin coordination anew, alone; see `OwnNode.found_pool`."""
        await self._parts.found_pool()

    async def _is_in_pool_of(self, peer: str) -> bool:
        """Return whether it is; refuse to leave a pool that is in use."""
        async with self.connect(CALL_S_MAX) as client:
            try:
                nodes = await client.raw.execute(b"ADMIN", b"NODES", is_change=False)
            except UnavailableError:
                return False  # its group is not reached: coordination begins anew
            if any(node[b"peer"] == peer.encode() for node in nodes):
                return True
            others = [name async for name in client.list("/") if f"/{name}" != ROOT]
            if len(nodes) > 1 or others:
                what = f"the namespace {others[0]}" if others else "other nodes in its pool"
                raise ConditionError(
                    f"this node coordinates already: it has {what}; join with an empty directory",
                    code="has_data",
                )
        return False

    async def keep_identity(self, identity: Identity) -> None:
        """Keep durably of which cluster the node is a member."""
        directory = self._parts.directory
        try:
            await in_thread(write_identity, directory.path, directory.inventory, identity)
        except OSError as error:
            raise UnavailableError(
                f"the cluster's file cannot be written: {error}", code="disk_error"
            ) from error
        directory.identity = identity


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), _PIECE_BYTES):
        yield content[at : at + _PIECE_BYTES]
