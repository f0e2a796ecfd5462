"""Nodes, orchestrators, the coordination service and the network between them, on one seed.

Faults: crashes (memory is lost), lost disks, cuts of one node or many, sessions and locks that end
while their holders go on, loss of the quorum of coordination, or of its newest entries, orders and
replies that are lost, doubled, late and out of order, writes that are executed late, clocks that
drift. Operators add and remove nodes, fail them over and cancel rebalances in the middle of it.

Checked after every step: the invariants of `truth`. At the end, after healing, in bounded steps:
plans are done, every row is whole, copies are equal, nothing acknowledged at a kept level is lost.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from millstream.cluster.core.elements import (
    Bucket,
    Cluster,
    ClusterState,
    NodeRecord,
    Request,
    Role,
    boots_path,
    node_path,
)
from millstream.cluster.core.identity import Identity
from millstream.cluster.core.orders import Place
from millstream.cluster.core.planner import plan_index, plan_rows
from millstream.cluster.core.recovery import Held, HeldBucket, known_nodes, rebuild
from millstream.cluster.core.requests import txn_of
from millstream.cluster.core.settings import Coordinators, Settings
from millstream.cluster.core.step import View
from millstream.cluster.core.writes import (
    create_bucket,
    found_cluster,
    join_node,
    put_rebuilt,
)
from millstream.errors import ConditionError, UsageError
from millstream.model.bucket_map import NodeAddress
from millstream.model.cluster_maps import (
    DataMap,
    DataRecord,
    IndexMap,
    IndexRecord,
    MapKey,
)
from millstream.model.rows import Row
from millstream.vsr.core.versions import NEVER
from simulators.cluster.index_parts import Gateway
from simulators.cluster.namespace import Namespace
from simulators.cluster.node import ACTIVE, REPLICA, Copy, Node
from simulators.cluster.orchestrator import Orchestrator
from simulators.cluster.truth import Truth

KEY = MapKey(1, 1)
SLICE_MS = 100
BUCKET = "b1"
ROLES: tuple[tuple[Role, ...], ...] = (
    ("data", "index"), ("data", "index"), ("data",), ("index",),
)  # fmt: skip


class World:
    coordinators: Coordinators = 3
    """The setting."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.lines: list[str] | None = None
        self.counts: Counter[str] = Counter()
        self.uuid, self.now_ms = "c1", 1000
        self.flying: list[tuple[Any, ...]] = []
        self.space = self.new_space()
        self.clocks_good = rng.random() < 0.7
        self.replicas = rng.choice((0, 1, 1, 2, 2))
        self.places = [Place(BUCKET, number) for number in range(rng.choice((1, 2, 3)))]
        self.truth = self.new_truth()
        settings = Settings(
            auto_failover_max=rng.choice((1, 100)),
            auto_failover_zones=rng.random() < 0.3,
            replace_after_s=3,
            coordinators=self.coordinators,
        )
        self.window_ms = settings.contact_window_ms
        count = rng.choice((3, 4, 5))
        self.nodes = {f"n{i}": self.new_node(f"n{i}", "xy"[i % 2]) for i in range(count + 1)}
        self.roles = {name: rng.choice(ROLES) for name in self.nodes}
        if not self.clocks_good:
            for node in self.nodes.values():
                node.clock = rng.choice((0.3, 1.0, 3.0))
        for name in list(self.nodes)[:2]:
            self.roles[name] = ("data", "index")
        self._found(list(self.nodes)[:count], settings)
        self.gateways = [Gateway(self), Gateway(self)]
        self.orchestrators = [Orchestrator(self, "o0"), Orchestrator(self, "o1")]

    def new_space(self) -> Namespace:
        return Namespace()

    def new_node(self, name: str, zone: str) -> Node:
        return Node(self, name, zone)

    def new_truth(self) -> Truth:
        return Truth(self, self.places)

    def _found(self, names: list[str], settings: Settings) -> None:
        record = self.record_of(names[0])
        self.space.run(found_cluster(Cluster(self.uuid, "c", 1, 0), names[0], record, settings))
        for name in names[1:]:
            self.space.run(join_node(name, self.record_of(name)))
        zones = {name: self.nodes[name].zone for name in names if "data" in self.roles[name]}
        rows = plan_rows(((),) * len(self.places), zones, self.replicas)
        indexing = [name for name in names if "index" in self.roles[name]]
        owners = plan_index((None,) * len(rows), indexing)
        data = tuple(self.first_record(row) for row in rows)
        index = tuple(IndexRecord(KEY, owner) for owner in owners)
        bucket = Bucket("b", len(rows), self.replicas, self.rng.choice((0, 0, 1)))
        self.space.campaign(self)
        state = self.space.state()
        self.space.run(create_bucket(
            state, BUCKET, bucket, DataMap(KEY, BUCKET, data), IndexMap(KEY, BUCKET, index)
        ))  # fmt: skip
        self.space.holder = None
        self.begin(names)

    def first_record(self, row: Row) -> DataRecord:
        return DataRecord(KEY, row[0], 1, (row,))

    def begin(self, names: list[str]) -> None:
        """The nodes open their first sessions; each partition is served already."""
        for name in names:
            node = self.nodes[name]
            node.sync()
            node.is_admitted = True
            for place, copy in node.copies.items():
                copy.is_intact = copy.is_whole = True
                copy.branch = copy.last_branch = 1
                if self.record(place).active == name:
                    copy.state = ACTIVE

    def record_of(self, name: str) -> NodeRecord:
        self.nodes[name].is_index = "index" in self.roles[name]
        return NodeRecord(name, name, {}, self.roles[name], self.nodes[name].zone, "in")

    # ---- what is where

    def trace(self, line: str) -> None:
        if self.lines is not None:
            self.lines.append(f"{self.now_ms} {line}")

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def state(self) -> ClusterState:
        return self.space.state()

    def record(self, place: Place) -> DataRecord:
        """Return the newest; the one of a state that was restored may be old."""
        state = self.space.state()
        record = state.data[place.bucket].records[place.partition]
        if not state.is_forked:
            return record
        adopted = (one.records[place] for one in self.all_nodes() if place in one.records)
        return max(record, *adopted, key=lambda one: one.at)

    def index_record(self, place: Place) -> IndexRecord:
        return self.space.state().index[place.bucket].records[place.partition]

    def all_nodes(self) -> list[Node]:
        return [node for node in self.nodes.values() if not node.is_gone]

    def group_at_first(self) -> frozenset[str] | None:
        """Return what a new orchestrator knows of the nodes that coordinate: here are none."""
        return frozenset()

    def a_bucket(self) -> str:
        """Return one of the buckets."""
        return BUCKET

    def connected(self, one: Node | Orchestrator | Gateway, node: Node) -> bool:
        return one.side == node.side and node.is_up and not node.is_gone

    def end_session(self, name: str, boots: int) -> None:
        """End a session, as coordination does: once its lease must have ended."""
        live = self.space.state().live.get(name)
        if live is not None and live.boots == boots:
            self.space.end_session(name)
            if self.clocks_good or self.rng.random() < 0.3:
                self.nodes[name].lose_session()

    def decided(self, who: Orchestrator, view: View) -> None:
        """An orchestrator has taken a step."""

    # ---- time and messages

    def pass_ms(self, ms: int) -> None:
        """A moment passes."""
        self.now_ms += ms

    def advance(self, ms: int) -> None:
        """Time passes; streams say that they are there."""
        for _ in range(max(1, ms // SLICE_MS)):
            self.now_ms += min(ms, SLICE_MS)
            for node in self.all_nodes():
                for place, copy in node.copies.items():
                    if node.is_up and copy.state is REPLICA and self.rng.random() < 0.9:
                        self._contact(node, place, copy)

    def _contact(self, node: Node, place: Place, copy: Copy) -> None:
        source = node.source(place)
        if source is not None and source.copies[place].branch >= copy.last_branch:
            node.tell_source(place, source)

    def deliver(self) -> None:
        if not self.flying:
            return
        rng = self.rng
        at = rng.randrange(len(self.flying))
        item = self.flying[at]
        if item[0] != "order" or rng.random() < 0.9:
            self.flying.pop(at)
        self.arrive(item)

    def arrive(self, item: tuple[Any, ...]) -> None:
        rng = self.rng
        if item[0] == "write":
            is_done = self.space.run(item[1])
            self.trace(f"late write {item[1].why}: {is_done}")
        elif item[0] == "given":
            item[1].take_over(*item[2:])
        elif item[0] == "order":
            _, sender, run, order = item
            node = self.nodes[order.to]
            if self.connected(sender, node) and rng.random() < 0.95:
                reply = node.obey(order)
                if rng.random() < 0.9:
                    self.flying.append(("reply", sender, run, order, reply))
        else:
            _, sender, run, order, reply = item
            sender.receive(run, order, reply)

    def gossip(self, node: Node) -> None:
        """Maps are asked of any node."""
        others = [one for one in self.all_nodes() if one is not node and self.connected(node, one)]
        if node.is_up and others:
            other = self.rng.choice(others)
            for place, record in other.records.items():
                node.adopt(place, record)
            for place, of_index in other.index.records.items():
                if node.has_bucket(place.bucket):
                    node.index.adopt(place, of_index)

    # ---- operators

    def request(self, op: str, **args: Any) -> bool:
        """Ask for something, through whoever leads; return whether the state changed."""
        space = self.space
        if space.holder is None or not space.has_quorum or space.state().is_forked:
            return False
        try:
            txn = txn_of(space.state(), Request("r", op, args, "admin"), self.now_ms + 1_000_000)
        except (UsageError, ConditionError) as error:
            self.count(error.code)
            return False
        if txn is None:
            return False
        is_done = space.run(txn)
        self.trace(f"request {op} {args}: {is_done}")
        self.count(f"request {op}")
        return is_done

    def join(self, name: str) -> None:
        node = self.nodes[name]
        if self.state().is_forked:
            return
        if not node.is_gone and node_path(name) not in self.space.elements:
            self.space.run(join_node(name, self.record_of(name)))
            assert boots_path(name) in self.space.elements
            node.sync()

    # ---- coordination is lost

    def restore(self) -> None:
        """Coordination loses its newest entries, and with them its sessions."""
        space = self.space
        at = self.rng.randrange(len(space.past))
        self.trace(f"coordination goes back from {space.lsn} to {space.past[at][0]}")
        self.count("restored")
        for node in self.nodes.values():  # it answered nobody for longer than a lease lasts
            if self.clocks_good or self.rng.random() < 0.7:
                node.lose_session()
        space.restore(at)
        for name in list(space.state().live):
            space.end_session(name)
        if self.rng.random() < 0.7:
            space.holder = None

    def recover(self) -> bool:
        """Rebuild the state from what nodes hold; return whether it is rebuilt."""
        space, held = self.space, dict[str, Held]()
        state = space.state()
        if not state.is_forked or not space.has_quorum:
            return False
        gone = {name for name, node in self.nodes.items() if node.is_gone}
        while new := known_nodes(state, held).keys() - held.keys() - gone:
            for name in sorted(new):
                node = self.nodes[name]
                if node.side or not node.is_up:
                    return False
                node.lose_session()  # and what it knew of orchestrators
                node.token = NEVER
                held[name] = self._held(node)
        without = frozenset(known_nodes(state, held).keys() & gone)
        identity, unix_ms = Identity(self.uuid, "c"), self.now_ms + 1_000_000
        for txn in put_rebuilt(state, rebuild(state, held, without, identity, unix_ms)):
            if self.rng.random() < 0.05:
                return False  # interrupted
            assert space.run(txn), txn.why
        self.trace(f"the cluster is rebuilt without {sorted(without)}")
        self.count("rebuilt")
        return True

    def _held(self, node: Node) -> Held:
        addresses = tuple(NodeAddress(name, name, 0, 0) for name in self.nodes)
        buckets = {}
        if node.records:
            records = tuple(node.records[place] for place in self.places)
            parts = {place.partition: one for place, one in node.index.records.items()}
            key = max(one.at for one in records)
            buckets[BUCKET] = HeldBucket("b", addresses, key, records, parts)
        return Held(node.name, self.uuid, self.record_of(node.name), False, buckets)

    def add_node(self, like: Node) -> None:
        name = f"n{len(self.nodes)}"
        self.nodes[name] = self.new_node(name, like.zone)
        self.roles[name] = self.roles[like.name]

    def dispose(self) -> None:
        """Whoever was told that a node is out takes it away."""
        for name, record in self.space.state().nodes.items():
            node = self.nodes[name]
            if record.state == "out" and not node.is_gone:
                self.trace(f"{name} is out")
                self.count("out")
                self.take_away(node)

    def must_stay(self, _: str) -> bool:
        """Whether a node can not leave, although it was asked to."""
        return False

    def take_away(self, node: Node) -> None:
        node.is_up, node.is_gone = False, True
        node.lose_session()
