"""Nodes with real engines, orchestrators, coordination, clients and readers, on one seed."""

from __future__ import annotations

import itertools
from typing import Any

from msgspec.structs import replace

from millstream.cluster.core.coordinators import next_coordinators
from millstream.cluster.core.elements import NodeRecord
from millstream.cluster.core.orders import Place
from millstream.cluster.core.settings import SESSION_TTL_MS
from millstream.cluster.core.step import View
from millstream.model.cluster_maps import DataRecord
from millstream.model.position import FailoverEntry
from millstream.model.rows import Row
from millstream.vsr.core.configuration import SIZES
from simulators.cluster import world as modelled
from simulators.cluster.orchestrator import Orchestrator
from simulators.cluster.truth import WrongError
from simulators.cluster.world import BUCKET, KEY
from simulators.simulation.truth import Change
from simulators.whole_cluster.coordination import Space
from simulators.whole_cluster.node import Node
from simulators.whole_cluster.readers import Follower
from simulators.whole_cluster.truth import Truth

__all__ = ["BUCKET", "World"]

BEAT_MS = 100
SEEDS_OF_A_KIND = 16
"""So many seeds play one bucket and coordination beside the nodes, the next ones more."""
NOW_NS = 1_700_000_000_000_000_000


class World(modelled.World):
    nodes: dict[str, Node]  # type: ignore[assignment]
    truth: Truth

    def __init__(self, seed: int) -> None:
        self.is_wide = seed // SEEDS_OF_A_KIND % 2 == 1
        """It plays several buckets, and the group of the nodes that coordinate."""
        self.group: frozenset[str] = frozenset()
        self.coordinators = 5 if self.is_wide and seed % 2 else 3
        self.numbers = itertools.count(100)
        self.inherits: list[Change] = []
        self.beats: dict[str, int] = {}
        """When coordination heard of the session of a node."""
        self.beaten_ms = 0
        self.gone: dict[Place, DataRecord] = {}
        """The last records of buckets that were dropped."""
        self.crashes = 0.0
        """How likely a node dies at an effect of its disk."""
        self.lost_ways: set[tuple[str, str]] = set()
        """(from, to): nothing arrives."""
        self.loss = 0.0
        """How likely a reply is lost."""
        super().__init__(seed)
        self.followers = [Follower(self, n, place) for n, place in enumerate(self.places)]

    def go_wrong(self) -> None:
        """All went well up to here."""
        self.crashes, self.loss = self.rng.choice((0.0, 0.005, 0.02)), 0.1

    # ---- what the engines use

    @property
    def partition_count(self) -> int:
        """Of the first bucket."""
        return sum(place.bucket == BUCKET for place in self.places)

    @property
    def now_ns(self) -> int:
        return NOW_NS + self.now_ms * 1_000_000

    def new_entry(self, seqno: int, last_branch: int) -> FailoverEntry:
        uuid = next(self.numbers)
        self.truth.inherit(uuid, self.inherits)
        return FailoverEntry(uuid, seqno, last_branch + 1)

    # ---- the beginning

    def new_space(self) -> Any:
        return Space()

    def new_node(self, name: str, zone: str) -> Node:
        return Node(self, name, zone)

    def new_truth(self) -> Truth:
        return Truth(self, self.places)

    def first_record(self, row: Row) -> DataRecord:
        return DataRecord(KEY, None, 0, (row,))

    def begin(self, names: list[str]) -> None:
        """Nobody serves yet: the orchestrator sees to that."""
        for name in names:
            self.nodes[name].sync()

    # ---- time

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms
        if self.now_ms - self.beaten_ms >= BEAT_MS:
            self.tick()

    def advance(self, ms: int) -> None:
        left = ms
        while left > 0:
            self.now_ms += min(left, BEAT_MS)
            left -= BEAT_MS
            self.tick()

    def tick(self) -> None:
        """Nodes extend their sessions and send no-ops; sessions of the silent end."""
        self.beaten_ms = self.now_ms
        for node in self.all_nodes():
            if node.is_up:
                node.beat()
                node.tick()
        if not self.space.has_quorum:
            for name in self.beats:
                self.beats[name] = self.now_ms  # a new leader waits for everybody
            return
        for name in list(self.space.state().live):
            if self.now_ms - self.beats.get(name, 0) > SESSION_TTL_MS:
                self.trace(f"the session of {name} runs out")
                self.count("sessions run out")
                self.space.end_session(name)

    # ---- the network

    def hears(self, one: Any, other: Any) -> bool:
        """Whether what `other` sends arrives at `one`, as far as cuts of one direction go."""
        return (other.name, one.name) not in self.lost_ways

    def connected(self, one: Any, node: Any) -> bool:
        both = self.hears(one, node) and self.hears(node, one)
        return both and super().connected(one, node)

    def may_reach(self, one: Any, node: Any) -> bool:
        """Whether something that is sent arrives; perhaps nothing comes back."""
        return super().connected(one, node) and self.hears(node, one)

    # ---- nodes that coordinate

    def found_group(self) -> None:
        """The first node begins; the group grows by itself."""
        self.group = frozenset(("n0",))
        self.space.is_there = lambda: self.is_majority_there(self.group)
        for one in self.orchestrators:
            one.group = None

    def record_of(self, name: str) -> NodeRecord:
        record = super().record_of(name)
        is_able = self.is_wide and (self.coordinators == 5 or int(name[1:]) % 4 != 3)
        return replace(record, roles=(*record.roles, "coord")) if is_able else record

    def group_at_first(self) -> frozenset[str] | None:
        return None if self.group else frozenset()

    def is_majority_there(self, group: frozenset[str]) -> bool:
        there = [one for one in group if self.is_there(self.nodes[one])]
        return 2 * len(there) > len(group)

    @staticmethod
    def is_there(node: Node) -> bool:
        return node.is_up and not node.is_gone and not node.side

    def regroup(self) -> None:
        """The orchestrator looks at the group, and has it changed."""
        boss, state = self.space.holder, self.state()
        if not isinstance(boss, Orchestrator) or not boss.reaches_space or not boss.is_up:
            return
        if boss.token != self.space.token or not self.group:
            return
        wanted = next_coordinators(state, self.group, self.now_ms + 1_000_000)
        boss.group = self.group if wanted is None else None
        if wanted is None or not self.is_majority_there(frozenset(wanted)):
            return  # nothing to be done, or the coordination service refuses
        self.trace(f"{sorted(self.group)} coordinated, now {wanted}")
        self.count(f"groups of {len(wanted)}")
        self.group = frozenset(wanted)
        if self.rng.random() < 0.8:  # else the answer is lost
            boss.group = self.group

    def _is_replaceable(self) -> bool:
        """Whether somebody else can coordinate."""
        return any(
            one.state == "in" and "coord" in one.roles and name not in self.group
            for name, one in self.state().nodes.items()
        )

    def must_stay(self, name: str) -> bool:
        """Whether a node can not leave: it coordinates, and nobody can take its place."""
        return name in self.group and not self._is_replaceable()

    def take_away(self, node: Node) -> None:
        """Nobody who coordinates is told that it may go, unless it was given up.

        Or unless it is one of three: where nobody can take its place, it may go.
        """
        record = self.state().nodes.get(node.name)
        is_out = record is not None and record.state == "out" and record.by != "force"
        is_needed = len(self.group) != SIZES[0] or self._is_replaceable()
        if is_out and node.name in self.group and is_needed:
            raise WrongError(f"{node.name} is out, and coordinates: {sorted(self.group)}")
        super().take_away(node)

    # ---- buckets

    def a_bucket(self) -> str:
        uuids = list(dict.fromkeys(place.bucket for place in self.places))
        return uuids[0] if len(uuids) == 1 else self.rng.choice(uuids)

    def record(self, place: Place) -> DataRecord:
        """Return the newest; of a bucket that is gone, the last one."""
        return super().record(place) if place.bucket in self.state().data else self.gone[place]

    def make_bucket(self) -> None:
        """Somebody makes a bucket, with a number of copies of its own."""
        number = next(self.numbers)
        uuid, name = f"{number:032x}", self.rng.choice(("extra", "more"))
        partitions, replicas = self.rng.choice((1, 2)), self.rng.choice((0, 1, 2))
        if not self.request(
            "create_bucket", name=name, uuid=uuid, partitions=partitions,
            replicas=replicas, index_replicas=self.rng.choice((0, 1)),
        ):  # fmt: skip
            return
        for p in range(partitions):
            place = Place(uuid, p)
            self.truth.take(place)
            self.places.append(place)
            self.followers.append(Follower(self, len(self.followers), place))

    def drop_bucket(self) -> None:
        """Somebody drops one of the buckets that were made."""
        extra = sorted({place.bucket for place in self.places} - {BUCKET})
        if not extra:
            return
        uuid = self.rng.choice(extra)
        records = {place: self.record(place) for place in self.places if place.bucket == uuid}
        if self.request("drop_bucket", uuid=uuid):
            self.gone |= records
            self.places[:] = [place for place in self.places if place.bucket != uuid]
            self.followers = [one for one in self.followers if one.place.bucket != uuid]
            for gateway in self.gateways:
                gateway.forget(uuid)

    # ---- messages

    def decided(self, who: Orchestrator, view: View) -> None:
        """Whole maps go to nodes that do not have them."""
        for name in sorted(view.answered):
            keys = self.nodes[name].managed.keys() if self.nodes[name].is_up else {}
            item = ("maps", who, name, view.state)
            data = view.state.without_dropped().data
            is_behind = any(keys.get(one) != data[one].key for one in data) or keys.keys() - data
            if is_behind and item not in self.flying and self.rng.random() < 0.9:
                self.flying.append(item)

    def arrive(self, item: tuple[Any, ...]) -> None:
        if item[0] == "maps":
            _, sender, name, state = item
            if self.may_reach(sender, self.nodes[name]):
                self.nodes[name].take_maps(state)
            return
        if item[0] == "reply" and not self.hears(item[1], self.nodes[item[3].to]):
            return
        if item[0] != "order":
            super().arrive(item)
            return
        _, sender, run, order = item
        node = self.nodes[order.to]
        if not self.may_reach(sender, node) or self.rng.random() < self.loss / 2:
            return
        reply = node.obey(order)
        if self.lines is not None:
            what = "dies of it" if reply is None else getattr(reply, "code", "reports")
            self.trace(f"{node.name} {order.kind} {order.place.partition} {order.branch}: {what}")
        if reply is None:
            self.count("deaths by an order")
        elif self.rng.random() >= self.loss:
            self.flying.append(("reply", sender, run, order, reply))
