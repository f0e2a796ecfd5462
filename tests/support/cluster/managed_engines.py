"""Nodes of a managed cluster in one process: real buckets, real kv connections, no agent.

An orchestrator decides by the real core, and its orders are carried out at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from millstream.access.users import UserStore
from millstream.cluster.aio.local_engine import ClusterMaps
from millstream.cluster.core.admission import Admit, Known, RaiseToken, Ruling, judge_order
from millstream.cluster.core.deciding import decide
from millstream.cluster.core.elements import (
    PLAN,
    Bucket,
    Cluster,
    ClusterState,
    Live,
    NodeRecord,
    Plan,
    boots_path,
    map_path,
    node_path,
)
from millstream.cluster.core.memory import Memory
from millstream.cluster.core.orders import Order, Place, Reply
from millstream.cluster.core.reports import NodeReport, no_copy
from millstream.cluster.core.settings import Settings
from millstream.cluster.core.step import Decision, View
from millstream.databases.bucket_table import BucketTable
from millstream.databases.buckets import Buckets
from millstream.databases.managed_engine import ManagedEngine
from millstream.kv.aio.server import KvServer
from millstream.kv.core.bucket import Bucket as KvBucket
from millstream.kv.core.partition.partition import Partition
from millstream.model.cluster_maps import (
    NO_KEY,
    DataMap,
    DataRecord,
    IndexMap,
    IndexRecord,
    MapKey,
    data_map_from_json,
)
from millstream.model.rows import Row
from millstream.upr.aio.server import StreamSession
from millstream.vsr.core.versions import Version
from support.cluster.scene import written

UUID = "0123456789abcdef" * 2
TOKEN = Version(1, 1, 9)
WAIT_S = 30.0
LEASE_MS = 3_600_000


class ManagedNode:
    """A node; `name` is its id."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.kv_port = 0
        self.boots, self.is_admitted = 1, True
        """Its session."""
        self.dropped: list[str] = []

    async def start(self) -> None:
        """Open the buckets and listen, at the same port as before."""
        self.path.mkdir(exist_ok=True)
        table = BucketTable(
            self.path / "buckets", flush_interval_ms=1, memory_quota_bytes=64 << 20,
            on_persisted=lambda: self.kv.on_persisted(), on_fatal=lambda *_: None,
            on_stopped=lambda _: None,
        )  # fmt: skip
        self.buckets = Buckets(table)
        self.kv = KvServer(self.buckets.served, UserStore(), StreamSession)
        self.engine = ManagedEngine(self.name, self.buckets, self.path, delete=self._delete)
        await self.buckets.open_all()
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(self.kv.kv_protocol, "127.0.0.1", self.kv_port)
        self.kv_port = self.server.sockets[0].getsockname()[1]
        self.give_right()

    def give_right(self) -> None:
        """Have a lease for long; copies serve by it once the node is admitted."""
        until_ms = time.monotonic_ns() // 1_000_000 + LEASE_MS
        self.engine.set_right(until_ms, is_admitted=self.is_admitted)

    async def stop(self) -> None:
        await self.engine.stop()
        self.server.close()
        self.kv.close()
        await self.buckets.stop()

    async def kill(self) -> None:
        """Stop without the receipt of a clean stop."""
        for running in self.buckets.running.values():
            running.store.stop = running.store.close  # type: ignore[method-assign]
        await self.stop()

    async def _delete(self, name: str) -> None:
        self.dropped.append(name)
        await self.buckets.delete(name, self.kv.drop_bucket)

    @property
    def bucket(self) -> KvBucket:
        return self.buckets.served["b"]

    def partition(self, number: int = 0) -> Partition:
        return self.bucket.partitions[number]

    def report(self) -> NodeReport:
        copies = {uuid: dict(copies) for uuid, copies in self.engine.copies().items()}
        broken = dict(self.engine.broken())
        return NodeReport(self.name, self.boots, self.is_admitted, copies, broken=broken)

    async def obey(self, orders: Sequence[Order]) -> list[Reply]:
        """Judge orders and carry them out together, as the node agent does."""
        before = self.engine.copies().get(UUID, {})
        rulings: list[Ruling] = []
        for order in orders:
            copy = before.get(order.place.partition)
            known = Known(
                "c1", self.name, self.boots, TOKEN, self.engine.record(order.place),
                copy if copy is not None and copy.is_there else None,
            )  # fmt: skip
            rulings.append(judge_order(order, known))
        steps = [step for ruling in rulings for step in ruling.steps]
        self.is_admitted |= any(isinstance(step, Admit) for step in steps)
        self.give_right()
        theirs = [step for step in steps if not isinstance(step, RaiseToken | Admit)]
        await self.engine.carry_out(UUID, theirs)
        after = self.engine.copies().get(UUID, {})
        return [
            ruling.refusal
            or Reply(
                ruling.code,
                after.get(order.place.partition) or no_copy(order.place.partition, NO_KEY),
                order.branch if ruling.code == "promised" else 0,
            )
            for order, ruling in zip(orders, rulings, strict=True)
        ]


class ManagedNodes:
    """A cluster with one bucket `b`; `rows` by partition, nobody has served yet."""

    def __init__(self, path: Path, rows: tuple[Row, ...], names: str = "abc") -> None:
        self.nodes = {name: ManagedNode(name, path / name) for name in names}
        self.up = set(names)
        self.memory, self.now = Memory(), itertools.count(10_000, 1000)
        key = MapKey(2, 1)
        records = tuple(DataRecord(key, None, 0, (row,)) for row in rows)
        index = IndexMap(key, UUID, tuple(IndexRecord(key, None) for _ in rows))
        paths = (PLAN, map_path(UUID), *map(node_path, names), *map(boots_path, names))
        self.state = ClusterState(
            cluster=Cluster("c1", "c", 2, 0),
            token=TOKEN,
            live={name: Live("i", {}, 1) for name in names},
            boots=dict.fromkeys(names, 1),
            buckets={UUID: Bucket("b", len(rows), len(rows[0]) - 1)},
            data={UUID: DataMap(key, UUID, records)},
            index={UUID: index},
            versions=dict.fromkeys(paths, Version(1, 1, 3)),
        )
        self.seen: list[tuple[str, str]] = []
        """Kinds of the orders and their nodes."""

    async def start(self) -> None:
        for node in self.nodes.values():
            await node.start()
        records = {
            name: NodeRecord(name, "127.0.0.1", {"kv": node.kv_port, "http": 1000 + n}, ("data",),
                             "x", "in")
            for n, (name, node) in enumerate(self.nodes.items())
        }  # fmt: skip
        self.state = dataclasses.replace(self.state, nodes=records)
        for name in self.nodes:
            await self.give_maps(name)

    async def stop(self) -> None:
        for name in sorted(self.up):
            await self.nodes[name].stop()

    async def kill(self, name: str) -> None:
        """Have a node die; its session ends at once."""
        self.up.discard(name)
        self._set_live({key: one for key, one in self.state.live.items() if key != name})
        await self.nodes[name].kill()

    async def start_again(self, name: str) -> None:
        """Start a node that died; it opens its next session."""
        node = self.nodes[name]
        node.boots, node.is_admitted = node.boots + 1, False
        await node.start()
        self.up.add(name)
        self._set_live({**self.state.live, name: Live("i", {}, node.boots)})
        await self.give_maps(name)

    def _set_live(self, live: dict[str, Live]) -> None:
        boots = {name: node.boots for name, node in self.nodes.items()}
        self.state = dataclasses.replace(self.state, live=live, boots=boots)

    @property
    def data_map(self) -> DataMap:
        return self.state.data[UUID]

    def maps(self) -> ClusterMaps:
        state = self.state
        return ClusterMaps(
            "c1", Settings(), dict(state.nodes), dict(state.buckets), dict(state.data),
            dict(state.index), Version(1, 1, self.data_map.key.revision),
        )  # fmt: skip

    async def give_maps(self, name: str) -> None:
        await self.nodes[name].engine.take_maps(self.maps())

    def set_plan(self, *rows: Row) -> None:
        """Want other rows."""
        basis = self.state.basis
        plan = Plan(7, "rebalance", basis, {UUID: rows}, {UUID: (None,) * len(rows)}, 0)
        self.state = dataclasses.replace(self.state, plan=plan)

    def write(self, data_map: DataMap) -> None:
        self.state = dataclasses.replace(self.state, data={UUID: data_map})

    def arrives(self) -> bool:
        """Return whether an order, or a map that is pushed, arrives."""
        return True

    async def step(self) -> Decision:
        """Ask all nodes, decide, send the orders, write, and push maps."""
        for name, node in self.nodes.items():
            if name in self.up:
                self.memory.hear(node.report())
            else:
                self.memory.miss(name)
        now_ms = next(self.now)
        view = View(
            min(self.up), TOKEN, self.state, True, frozenset(self.up), now_ms,
            1_000_000 + now_ms, 0, 7,
        )  # fmt: skip
        decision = decide(view, self.memory)
        for name in sorted(self.up):
            node = self.nodes[name]
            orders = [one for one in decision.orders if one.to == name and self.arrives()]
            self.seen += [(order.kind, name) for order in orders]
            for order, reply in zip(orders, await node.obey(orders), strict=True):
                self.memory.take(order, reply, now_ms)
        content = written(decision.write, map_path(UUID))
        if content is not None:
            self.write(data_map_from_json(content))
        for name in sorted(self.up):
            is_older = self.nodes[name].engine.keys()[UUID] < self.data_map.key
            if is_older and self.arrives():
                await self.give_maps(name)
        return decision

    async def until(self, is_so: Callable[[], object]) -> None:
        """Make steps until it is so."""
        async with asyncio.timeout(WAIT_S):
            while not is_so():
                await self.step()
                await asyncio.sleep(0.02)  # streams and take-overs go on meanwhile

    def record(self, number: int = 0) -> DataRecord:
        return self.data_map.records[number]


HERE = Place(UUID, 0)
NOW_NS = 1_700_000_000_000_000_000


def put(node: ManagedNode, number: int, *keys: str) -> None:
    """Write documents to a copy, whether it may serve or not."""
    for key in keys:
        node.partition(number).put(key.encode(), b"1", 0, 0, 0, 0, NOW_NS)
    node.bucket.changed()


def keys_of(node: ManagedNode, number: int = 0) -> set[str]:
    """Return the keys that a copy has."""
    return {key.decode() for key in node.partition(number).known_keys()}
