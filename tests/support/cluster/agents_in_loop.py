"""Members of a cluster in one event loop: real coordination, real agents, engines without data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from millstream.cluster.aio.messages import OrdersRequest
from millstream.cluster.aio.node_agent import NodeAgent
from millstream.cluster.aio.orchestrator import Orchestrator
from millstream.cluster.aio.order_taker import OrderTaker
from millstream.cluster.aio.state_reader import execute, make_namespace, read_state
from millstream.cluster.core.elements import (
    ORCHESTRATOR,
    Bucket,
    Cluster,
    ClusterState,
    NodeRecord,
)
from millstream.cluster.core.settings import Settings
from millstream.cluster.core.writes import create_bucket, found_cluster, join_node
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.errors import UnavailableError
from millstream.model.cluster_maps import DataMap, DataRecord, IndexMap, IndexRecord, MapKey
from support.cluster.engine_double import EngineDouble
from support.coordination.coordinators import WAIT_S
from support.coordination.namespace_node import one_node

CLUSTER, BUCKET = "c" * 32, "b" * 32
KEY = MapKey(2, 1)


class Members:
    """The members; `call` is how they reach each other."""

    def __init__(self, address: str, client: AsyncClient) -> None:
        self.address, self.client = address, client
        self.engines: dict[str, EngineDouble] = {}
        self.agents: dict[str, NodeAgent] = {}
        self.orchestrators: dict[str, Orchestrator] = {}
        self.unreachable: set[str] = set()
        self.started_ms: int | None = 0
        """When nodes have started; None: when they are made."""

    def connect(self, seconds: float, on_lost: Callable[[], None]) -> AsyncClient:
        return AsyncClient(
            [self.address], session_s=seconds, on_session_lost=on_lost, deadline_s=3.0
        )

    async def send(self, name: str, _: NodeRecord, content: bytes) -> bytes:
        if name in self.unreachable or name not in self.agents:
            raise UnavailableError(f"{name} cannot be reached", code="node_failed")
        request = msgspec.json.decode(content, type=OrdersRequest)
        return msgspec.json.encode(await self.agents[name].taker.take(request))

    def add(self, name: str) -> NodeAgent:
        """Make a node and its agent, not started."""
        engine = self.engines.get(name) or EngineDouble(name, self.engines)
        self.engines[name] = engine
        orchestrator = Orchestrator(name, lambda: name, self.send, started_ms=self.started_ms)
        agent = NodeAgent(
            name, CLUSTER, OrderTaker(name, CLUSTER, engine), self.connect,
            lambda: ("127.0.0.1", {"http": 1}), "0", orchestrator.run,
        )  # fmt: skip
        self.agents[name], self.orchestrators[name] = agent, orchestrator
        return agent

    async def start(self, *names: str) -> None:
        """Start nodes, at once: a node that is late is failed over."""
        agents = [self.add(name) for name in names]
        for agent in agents:
            agent.start()
        async with asyncio.timeout(WAIT_S):
            for agent in agents:
                await agent.until_in_step()

    async def stop(self, name: str) -> None:
        await self.agents.pop(name).stop()
        self.orchestrators.pop(name)
        self.engines[name].die()

    async def state(self) -> ClusterState:
        return await read_state(self.client)

    async def until(self, is_so: Callable[[ClusterState], object]) -> ClusterState:
        """Read the state until it is so."""
        async with asyncio.timeout(WAIT_S):
            while True:
                state = await self.state()
                if is_so(state):
                    return state
                await asyncio.sleep(0.02)  # nobody tells: read again

    def leader(self) -> str | None:
        for name, one in self.orchestrators.items():
            if one.reign is not None:
                return name
        return None


def record(name: str, state: str = "in") -> NodeRecord:
    return msgspec.structs.replace(
        NodeRecord(name, "127.0.0.1", {"http": 1}, ("data",)),
        state=state,
    )


async def found(client: AsyncClient, rows: Mapping[int, tuple[str, ...]]) -> None:
    """Make a cluster of the nodes in the rows, with one bucket."""
    names = sorted({name for row in rows.values() for name in row})
    await make_namespace(client)
    cluster = Cluster(CLUSTER, "test", KEY.generation, 0)
    first, *others = names
    assert await execute(client, found_cluster(cluster, first, record(first), Settings()))
    for name in others:
        assert await execute(client, join_node(name, record(name)))
    records = tuple(DataRecord(KEY, row[0], 1, (row,)) for row in rows.values())
    data = DataMap(KEY, BUCKET, records)
    index = IndexMap(KEY, BUCKET, tuple(IndexRecord(KEY, None) for _ in rows))
    election = client.election(ORCHESTRATOR)
    await election.acquire()
    bucket = Bucket("default", len(rows), len(records[0].row) - 1)
    assert await execute(
        client, create_bucket(await read_state(client), BUCKET, bucket, data, index)
    )
    await election.release()


@asynccontextmanager
async def members(directory: Path, rows: Mapping[int, tuple[str, ...]]) -> AsyncIterator[Members]:
    """Serve coordination of one node; the cluster is made, its nodes are not started."""
    async with one_node(directory) as address, AsyncClient([address], deadline_s=WAIT_S) as client:
        await found(client, rows)
        made = Members(address, client)
        try:
            yield made
        finally:
            for agent in list(made.agents.values()):
                await agent.stop()
