"""Nodes of one event loop as their memberships see them; all use one coordination service."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from millstream.cluster.aio.joining import MEMBER_PATH
from millstream.cluster.aio.local_engine import LocalEngine
from millstream.cluster.aio.membership import REIGN_PATH, Membership
from millstream.cluster.aio.messages import ORDERS_PATH
from millstream.cluster.aio.own_node import OwnBucket
from millstream.cluster.aio.recovering import HELD_PATH
from millstream.cluster.core.elements import Role
from millstream.cluster.core.identity import Identity
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.errors import ConditionError, UnavailableError
from millstream.model.partitions import PartitionState
from millstream.model.standing import Standing
from support.cluster.engine_double import EngineDouble
from support.coordination.namespace_node import one_node


def bucket(name: str = "default", partitions: int = 2, changes: int = 0) -> OwnBucket:
    standings = [
        Standing(number, PartitionState.ACTIVE, 7, 7, changes, changes, 7, True, True)
        for number in range(partitions)
    ]
    return OwnBucket(name, (name.encode().hex() * 32)[:32], False, changes, 0, standings)


@dataclasses.dataclass
class OwnNodeDouble:
    """Implements `OwnNode`."""

    uuid: str
    port: int
    world: World
    held: list[OwnBucket] = dataclasses.field(default_factory=lambda: [bucket()])
    identity: Identity | None = None
    pools: list[str] = dataclasses.field(default_factory=list)
    roles: tuple[Role, ...] = ("data", "index", "coord")
    zone: str = ""
    member: Membership | None = None

    def begin(self, version: str = "1") -> Membership:
        """Start the membership, as the node's start does."""
        self.member = Membership(self, version, self.identity)
        self.member.start()
        return self.member

    def addresses(self) -> tuple[str, Mapping[str, int]]:
        return "127.0.0.1", {"http": self.port, "peer": self.port + 1}

    def connect(self, session_s: float, on_lost: Callable[[], None] = lambda: None) -> AsyncClient:
        return AsyncClient([self.world.address], session_s=session_s, on_session_lost=on_lost)

    async def ask(
        self, host: str, port: int, method: str, path: str, content: bytes | None = None
    ) -> bytes:
        member = self.world.members.get(port)
        if member is None or host != "127.0.0.1":
            raise UnavailableError(f"nobody listens at {host}:{port}", code="node_failed")
        if (method, path) == ("POST", ORDERS_PATH):
            assert content is not None
            return await member.orders(content)
        if (method, path) == ("POST", HELD_PATH):
            assert content is not None
            return await member.held(content)
        assert method == "GET"
        if path == REIGN_PATH:
            return msgspec.json.encode(await member.reign())
        assert path == MEMBER_PATH
        return self.world.told(msgspec.json.encode(await member.member()))

    def engine(self) -> LocalEngine:
        return self.world.engines.get(self.uuid) or EngineDouble(self.uuid, self.world.engines)

    def buckets(self) -> Sequence[OwnBucket]:
        return self.held

    async def delete_bucket(self, name: str) -> None:
        self.held = [one for one in self.held if one.name != name]

    async def join_pool(self, peer: str) -> None:
        self.pools.append(peer)

    async def found_pool(self) -> None:
        self.pools.append("")

    async def keep_identity(self, identity: Identity) -> None:
        if self.world.disk_is_full:
            raise UnavailableError("the disk is full", code="disk_error")
        self.identity = identity


class World:
    def __init__(self, address: str) -> None:
        self.address = address
        self.nodes: list[OwnNodeDouble] = []
        self.engines: dict[str, EngineDouble] = {}
        self.told: Callable[[bytes], bytes] = lambda content: content
        self.disk_is_full = False

    @property
    def members(self) -> dict[int, Membership]:
        return {one.port: one.member for one in self.nodes if one.member is not None}

    def node(self, **others: object) -> OwnNodeDouble:
        """Return a new node, which was started."""
        number = len(self.nodes) + 1
        made = OwnNodeDouble(f"{number}" * 32, 1000 * number, self)
        made = dataclasses.replace(made, **others)  # type: ignore[arg-type]
        self.nodes.append(made)
        made.begin()
        return made

    async def stop(self) -> None:
        for node in self.nodes:
            if node.member is not None:
                await node.member.stop()


@asynccontextmanager
async def world(directory: Path) -> AsyncIterator[World]:
    async with one_node(directory) as address:
        made = World(address)
        try:
            yield made
        finally:
            await made.stop()


def member_of(node: OwnNodeDouble) -> Membership:
    if node.member is None:
        raise ConditionError("it was not started", code="not_started")
    return node.member
