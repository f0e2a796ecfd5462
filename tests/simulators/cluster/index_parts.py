"""Parts of the index on a node, and gateways that ask for them with maps of any age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millstream.cluster.core import admission, index_moving
from millstream.cluster.core.admission import AdoptIndex, Freeze, StopPart
from millstream.cluster.core.orders import Place
from millstream.cluster.core.reports import PartReport, PartState
from millstream.model.cluster_maps import NO_FLOOR, Floor, IndexRecord
from millstream.model.position import FailoverEntry, FailoverLog

if TYPE_CHECKING:
    from simulators.cluster.node import Log, Node
    from simulators.cluster.world import World

TRIES_MAX: Final = 6
Shown = tuple[int, "Log"]
"""Branch of the history that was followed, and the changes that rows show."""


@dataclass(eq=False)
class Part:
    """Durable as it stands."""

    state: PartState = "passive"
    branch: int = 0
    log: Log = ()
    failover: FailoverLog = (FailoverEntry(0, 0, 0),)
    is_frozen: bool = False

    @property
    def shown(self) -> Shown:
        return self.branch, self.log


class Index:
    """The parts of one node."""

    def __init__(self, node: Node) -> None:
        self.node, self.world = node, node.world
        self.records: dict[Place, IndexRecord] = {}
        self.parts: dict[Place, Part] = {}

    def adopt(self, place: Place, record: IndexRecord) -> None:
        if not admission.is_news(record, self.records.get(place)):
            return
        self.world.truth.publish_index(place, record)
        self.records[place] = record
        part, name = self.parts.get(place), self.node.name
        if name in record.placed and self.node.is_index:
            if part is None or part.state == "cleanup":
                part = self.parts[place] = Part()
            part.is_frozen = False
            part.state = "active" if record.owner == name else "passive"
        elif part is not None:
            part.state = "cleanup"

    def report(self, place: Place) -> PartReport:
        part, record = self.parts[place], self.records[place]
        return PartReport(
            part.state,
            Floor(part.branch, len(part.log)),
            record.at,
            self._has_floor(place),
            part.is_frozen,
        )

    def _has_floor(self, place: Place) -> bool:
        part, record = self.parts[place], self.records[place]
        if record.floor == NO_FLOOR:
            return True
        return index_moving.has_reached(part.failover, len(part.log), record.floor)

    def carry_out(self, step: AdoptIndex | Freeze | StopPart) -> None:
        if isinstance(step, AdoptIndex):
            self.adopt(step.place, step.record)
            return
        part = self.parts[step.place]
        part.is_frozen = True
        if isinstance(step, StopPart):
            part.state = "passive"

    def stopped_at(self, place: Place) -> Floor:
        return admission.stopped_at(self.report(place), self.records[place])

    def follow(self, place: Place, count: int) -> bool:
        """Index some changes; return whether it now has all that the active copy has."""
        from simulators.cluster.node import common

        part = self.parts[place]
        if part.state == "cleanup":
            if self.world.rng.random() < 0.5:
                del self.parts[place]
            return False
        source = self.node.source(place) or self._own(place)
        if source is None:
            return False
        old = source.copies[place]
        if old.branch < part.branch:
            old.heard = max(old.heard, part.branch)
            return False
        if not part.is_frozen:
            part.log = common(part.log, old.log)
            part.branch, part.failover = old.branch, old.failover
            part.log = old.log[: len(part.log) + count]
        return part.log == old.log

    def _own(self, place: Place) -> Node | None:
        return self.node if self.node.is_active(place) else None

    def answer(
        self, asked: dict[Place, IndexRecord], is_update: bool
    ) -> dict[Place, Shown] | None:
        """Return what the rows of each partition show; None: ask anew."""
        if not (self.node.is_up and self.node.boots):
            return None
        found = {}
        for place, record in asked.items():
            part = self.parts.get(place)
            told = self.report(place) if part is not None and place in self.records else None
            own = self.records.get(place)
            if part is None or not index_moving.may_answer(self.node.name, record, own, told):
                return None
            if is_update and not self._is_updated(place):
                return None
            found[place] = part.shown
        return found

    def _is_updated(self, place: Place) -> bool:
        source = self.node.source(place) or self._own(place)
        if source is None or not source.right(place).is_given:
            return False
        return self.follow(place, 1 << 30)


class Query:
    def __init__(self, world: World, is_update: bool) -> None:
        self.is_update, self.tries = is_update, 0
        self.acked = {place: [number for number, _ in pairs]
                      for place, pairs in world.truth.acked.items()}  # fmt: skip
        self.before = dict(world.truth.shown)
        self.bucket = world.a_bucket()

    def ask(self, every: dict[Place, IndexRecord]) -> None:
        """Begin a try: everything of the bucket is asked anew."""
        records = {place: one for place, one in every.items() if place.bucket == self.bucket}
        self.lists: dict[str, dict[Place, IndexRecord]] = {}
        self.found: dict[str, dict[Place, Shown]] = {}
        self.places = [place for place, record in records.items() if record.owner is not None]
        for place in self.places:
            owner = records[place].owner
            assert owner is not None
            self.lists.setdefault(owner, {})[place] = records[place]


class Gateway:
    """Keeps the newest index map that it saw."""

    name = "gateway"

    def __init__(self, world: World) -> None:
        self.world, self.side, self.is_up = world, 0, True
        self.records = {place: world.index_record(place) for place in world.places}
        self.query: Query | None = None

    def learn(self) -> None:
        nodes = [node for node in self.world.all_nodes() if self.world.connected(self, node)]
        if nodes:
            for place, record in self.world.rng.choice(nodes).index.records.items():
                if place not in self.records or record.at > self.records[place].at:
                    self.records[place] = record

    def forget(self, bucket: str) -> None:
        """A bucket was dropped."""
        self.records = {
            place: one for place, one in self.records.items() if place.bucket != bucket
        }
        if self.query is not None and self.query.bucket == bucket:
            self.query = None

    def step(self) -> None:
        world, rng = self.world, self.world.rng
        if self.query is None:
            self.query = Query(world, rng.random() < 0.5)
            self.query.ask(self.records)
            return
        query = self.query
        waiting = [name for name in query.lists if name not in query.found]
        if not waiting:
            self.query = None
            world.truth.answered(query)
            return
        name = rng.choice(waiting)
        node, found = world.nodes[name], None
        if world.connected(self, node):
            found = node.index.answer(query.lists[name], query.is_update)
        if found is not None:
            query.found[name] = found
            return
        query.tries += 1
        world.count("queries tried again")
        if query.tries >= TRIES_MAX:
            self.query = None  # the client is told
            return
        self.learn()
        self.learn()
        query.ask(self.records)
