"""The cluster that a node is a member of: `ClusterApi` for the pages and commands.

    member = Membership(own, version, identity); member.start(); ...; await member.stop()

Invariants:
1. A node with an identity runs its agent from its start, whatever answers.
2. Orders are taken by members only.

Elsewhere: session and orders (`cluster.aio.node_agent`, `cluster.aio.order_taker`), leading
(`cluster.aio.orchestrator`), how a node becomes a member (`cluster.aio.joining`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import msgspec

from millstream.cluster.aio import joining
from millstream.cluster.aio.coordination_group import CoordinationGroup, read_group
from millstream.cluster.aio.local_engine import LocalEngine
from millstream.cluster.aio.messages import ORDERS_PATH, OrdersRequest
from millstream.cluster.aio.node_agent import NodeAgent
from millstream.cluster.aio.orchestrator import Orchestrator, Reign
from millstream.cluster.aio.order_taker import OrderTaker
from millstream.cluster.aio.own_node import OwnNode
from millstream.cluster.aio.recovering import HeldRequest, Recovery, Wanted, kept_log
from millstream.cluster.aio.request_queue import ask
from millstream.cluster.aio.state_reader import read_state
from millstream.cluster.core.elements import (
    FAILOVERS,
    NOT_RECOVERED,
    ClusterState,
    FailOver,
    NodeRecord,
    Request,
    Role,
)
from millstream.cluster.core.identity import CLUSTER_NAME, Identity, checked_cluster_name
from millstream.cluster.core.memory import Memory
from millstream.cluster.core.recovery import Held
from millstream.cluster.core.reports import from_peer
from millstream.cluster.core.settings import COORDINATORS, Settings
from millstream.cluster.core.status import status_of
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.errors import (
    ConditionError,
    MillstreamError,
    OutcomeUnknownError,
    UnavailableError,
    UsageError,
)
from millstream.model.addresses import parse_address
from millstream.vsr.core.versions import NEVER

__all__ = ["Membership"]

_LOG = logging.getLogger(__name__)
IN_STEP_S_MAX: Final = 30.0
"""How long `init` and `join` wait for the first session."""
POLL_S: Final = 0.05
HTTP_PORT: Final = 5984
_ROLES: Final[tuple[Role, ...]] = ("data", "index", "coord")
FAILOVERS_SHOWN_MAX: Final = 10
STATUS_S_MAX: Final = 2.0
"""How long the orchestrator may take to tell what it knows."""
REIGN_PATH: Final = "/_millstream/cluster/reign"


class Membership:
    """Of one node; begun by `start`, ended by `stop`.

    Args:
        own: the node.
        version: of this program.
        identity: what the data directory says; None: the node is a member of no cluster.
    """

    def __init__(self, own: OwnNode, version: str, identity: Identity | None) -> None:
        self._own, self._version, self._identity = own, version, identity
        self._agent: NodeAgent | None = None
        self._orchestrator: Orchestrator | None = None
        self._engine: LocalEngine | None = None
        self._change = asyncio.Lock()

    def start(self) -> None:
        """Begin with the session, if the node is a member."""
        if self._identity is not None and self._agent is None:
            self._agent = self._made(self._identity)
            self._agent.start()

    async def stop(self) -> None:
        """Be out of step, and close the session."""
        if self._agent is not None:
            await self._agent.stop()
            self._agent = None
        if self._engine is not None:
            await self._engine.stop()
            self._engine = None

    def _made(self, identity: Identity) -> NodeAgent:
        own = self._own
        group = CoordinationGroup(lambda: own.connect(joining.SESSION_S))
        engine = self._engine = own.engine()
        orchestrator = Orchestrator(
            own.uuid, self._address, self._send, group, streams=engine.broken
        )
        leads = bool({"data", "coord"} & set(own.roles))
        self._orchestrator = orchestrator if leads else None
        taker = OrderTaker(own.uuid, identity.cluster, engine)
        return NodeAgent(
            own.uuid, identity.cluster, taker, own.connect, own.addresses, self._version,
            orchestrator.run if leads else None, own.zone,
        )  # fmt: skip

    def _address(self) -> str:
        host, ports = self._own.addresses()
        return f"{host}:{ports.get('http', 0)}"

    async def _send(self, name: str, record: NodeRecord, content: bytes) -> bytes:
        if name == self._own.uuid:
            return await self.orders(content)
        port = record.ports.get("http", 0)
        return await self._own.ask(record.host, port, "POST", ORDERS_PATH, content)

    # ---- ClusterApi

    @property
    def is_managed(self) -> bool:
        """Whether the node is a member of a managed cluster."""
        return self._identity is not None

    @property
    def problem(self) -> str:
        """Why the node is out of step with its cluster; empty: it is in step, or no member."""
        return "" if self._agent is None else self._agent.problem

    async def init(self, name: str, coordinators: int) -> Mapping[str, Any]:
        """Make a cluster of this node; see `ClusterApi.init`."""
        size = next((one for one in COORDINATORS if one == coordinators), None)
        if size is None:
            raise UsageError(
                f"{coordinators} nodes cannot coordinate: 1, 3, 5 or 7 can", code="badconfig"
            )
        if name:
            checked_cluster_name(name)
        async with self._change:
            if self._identity is None:
                identity = await joining.found(
                    self._own, name or CLUSTER_NAME, self._version, Settings(coordinators=size)
                )
                await self._own.keep_identity(identity)
                self._identity = identity
                self.start()
            elif name and self._identity.name != name:
                raise ConditionError(
                    f"this node is a member of cluster {self._identity.name!r}",
                    code="other_cluster",
                )
        return await self._told_when_in_step()

    async def join(self, address: str, *, zone: str, roles: tuple[str, ...]) -> Mapping[str, Any]:
        """Join a cluster; see `ClusterApi.join`."""
        if set(roles) - set(_ROLES):
            raise UsageError(f"roles are {', '.join(_ROLES)}", code="bad_option")
        if zone and self._own.zone not in ("", zone):
            raise UsageError(
                f"this node was started in the zone {self._own.zone!r}: start it with another "
                "--zone",
                code="bad_option",
            )
        place = parse_address(address, default_port=HTTP_PORT)
        async with self._change:
            await self.stop()
            try:
                self._identity, warnings = await joining.join(
                    self._own, self._identity, place, version=self._version, zone=zone,
                    roles=cast("tuple[Role, ...]", roles),
                )  # fmt: skip
            finally:
                self.start()
        for warning in warnings:
            _LOG.warning("%s", warning)
        return {**await self._told_when_in_step(), "warnings": warnings}

    async def _told_when_in_step(self) -> Mapping[str, Any]:
        assert self._identity is not None, "it is a member now"
        assert self._agent is not None, "its agent was started"
        try:
            async with asyncio.timeout(IN_STEP_S_MAX):
                await self._agent.until_in_step()
                while True:
                    state = await self._state()
                    node = state.nodes[self._own.uuid]
                    if node.state != "joining":
                        break
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            why = self.problem or "no orchestrator has made it one that counts"
            raise UnavailableError(
                f"this node is a member, and not in step yet: {why}", code="no_quorum"
            ) from error
        return {
            "cluster": self._identity.cluster,
            "name": self._identity.name,
            "node": node.name,
            "id": self._own.uuid,
            "state": node.state,
            "has_nothing": not state.is_named(self._own.uuid),
        }

    async def status(self) -> Mapping[str, Any]:
        """Return the status, by the reports that the orchestrator has; see `ClusterApi.status`."""
        self._need_member()
        state = await self._state()
        leader = None if state.leader is None else state.nodes.get(state.leader.node)
        if self._reign() is None and leader is not None:
            try:
                async with asyncio.timeout(STATUS_S_MAX):
                    port = leader.ports.get("http", 0)
                    content = await self._own.ask(leader.host, port, "GET", REIGN_PATH)
                return cast("Mapping[str, Any]", msgspec.json.decode(content))
            except (MillstreamError, TimeoutError) as error:
                _LOG.info("the orchestrator does not tell the status: %s", error)
        return await self._document(state)

    async def reign(self) -> Mapping[str, Any]:
        """Return the status by the reports that this node has, as the orchestrator.

        Raises:
            ConditionError: `not_managed`, `not_orchestrator`.
        """
        self._need_member()
        if self._reign() is None:
            raise ConditionError("this node is not the orchestrator", code="not_orchestrator")
        return await self._document(await self._state())

    def _reign(self) -> Reign | None:
        return None if self._orchestrator is None else self._orchestrator.reign

    async def _document(self, state: ClusterState) -> Mapping[str, Any]:
        reign = self._reign()
        coordinators: tuple[str, ...] | None = None
        async with self._client() as client:
            failovers = [
                msgspec.json.decode(one, type=FailOver)
                for one in await client.items(FAILOVERS).range(-FAILOVERS_SHOWN_MAX, -1)
            ]
            with contextlib.suppress(MillstreamError):  # then it is not known
                coordinators = (await read_group(client, state)).members
        if reign is None:
            return status_of(
                state, Memory(), coordinators=coordinators, failovers=failovers,
                notes=[
                    "the orchestrator does not answer: copies are not known",
                    *([NOT_RECOVERED] if state.is_forked else []),
                ],
            )  # fmt: skip
        return status_of(
            state, reign.memory, coordinators=coordinators, failovers=failovers,
            notes=reign.notes, stalled=reign.stalled, samples=tuple(reign.samples),
        )  # fmt: skip

    async def request(
        self, op: str, args: Mapping[str, Any], by: str, *, timeout_s: float
    ) -> Mapping[str, Any]:
        """Ask the orchestrator for something; see `ClusterApi.request`."""
        self._need_member()
        request = Request(secrets.token_hex(16), op, dict(args), by)
        async with self._client() as client:
            return await ask(client, request, timeout_s=timeout_s)

    async def orders(self, content: bytes) -> bytes:
        """Carry out orders; see `ClusterApi.orders`."""
        self._need_member()
        if self._agent is None:
            raise UnavailableError("this node is starting or stopping", code="out_of_step")
        request = from_peer(content, OrdersRequest)
        return msgspec.json.encode(await self._agent.taker.take(request))

    async def member(self) -> Mapping[str, Any]:
        """Return what a node needs that wants to join (`cluster.aio.joining.Told`)."""
        self._need_member()
        assert self._identity is not None
        host, ports = self._own.addresses()
        state = await self._state()
        told = joining.Told(
            self._identity.cluster, self._identity.name, self._version,
            f"{host}:{ports.get('peer', 0)}", time.time_ns() // 1_000_000, dict(state.nodes),
        )  # fmt: skip
        return cast("Mapping[str, Any]", msgspec.to_builtins(told))

    async def recover(
        self, *, without: tuple[str, ...], from_nodes: bool, is_trial: bool
    ) -> Mapping[str, Any]:
        """Rebuild the state of the cluster; see `ClusterApi.recover`."""
        self._need_member()
        assert self._identity is not None
        async with self._change:
            recovery = Recovery(self._own, self._identity, self._held)
            told = await recovery.run(Wanted(without, from_nodes, is_trial))
        _LOG.warning("the cluster %s", "could be rebuilt" if is_trial else "was rebuilt")
        return told

    async def held(self, content: bytes) -> bytes:
        """Tell what this node holds; see `ClusterApi.held`."""
        self._need_member()
        request = from_peer(content, HeldRequest)
        if not request.is_last:
            return msgspec.json.encode(await self._held(request))
        async with self._change:
            return msgspec.json.encode(await self._held(request))

    async def _begin_anew(self, pool: str) -> None:
        """Give the session up, and coordinate in another pool if one is named (HOST:PORT)."""
        assert self._identity is not None
        maps = None if self._agent is None else self._agent.taker.maps
        await self.stop()
        try:
            if pool:
                await self._own.join_pool(pool)
                self._identity = self._identity._replace(peer=pool)
                await self._own.keep_identity(self._identity)
        finally:
            self.start()
            assert self._agent is not None, "it was started"
            self._agent.taker.maps = maps

    async def _held(self, request: HeldRequest) -> Held:
        assert self._identity is not None, "it is a member"
        if request.cluster != self._identity.cluster:
            raise ConditionError(
                f"this node is a member of cluster {self._identity.name!r}, not of the one that "
                "is recovered",
                code="other_cluster",
            )
        if request.is_last:
            await self._begin_anew(request.pool)
        if self._agent is None or self._engine is None:
            raise UnavailableError("this node is starting or stopping", code="out_of_step")
        taker = self._agent.taker
        host, ports = self._own.addresses()
        record = NodeRecord("", host, dict(ports), self._own.roles, version=self._version)
        kept_lsn, not_kept = await kept_log(self._own)
        maps = taker.maps
        return Held(
            self._own.uuid, self._identity.cluster, record, bool(taker.boots),
            dict(self._engine.adopted()), kept_lsn, not_kept,
            {one.name: one.problem for one in self._own.buckets() if one.problem},
            {} if maps is None else maps.nodes, None if maps is None else maps.settings,
            {} if maps is None else maps.buckets, NEVER if maps is None else maps.version,
        )  # fmt: skip

    # ---- asking the coordination service

    def _need_member(self) -> None:
        if self._identity is None:
            raise ConditionError(
                "this node is a member of no cluster: `millstream cluster init` makes one, "
                "`millstream cluster join` joins one",
                code="not_managed",
            )

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[AsyncClient]:
        """Yield a client: that of the session, or else one of its own."""
        client = None if self._agent is None else self._agent.client
        try:
            if client is not None:
                yield client
                return
            async with self._own.connect(joining.SESSION_S) as made:
                yield made
        except OutcomeUnknownError:
            raise
        except UnavailableError as error:
            raise UnavailableError(
                f"the coordination service of the cluster does not answer: {error}; bring its "
                "nodes back, or, if they never come back, run `millstream cluster recover`",
                code="no_quorum",
            ) from error

    async def _state(self) -> ClusterState:
        async with self._client() as client:
            return await read_state(client)
