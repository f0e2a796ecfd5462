"""A node of the whole cluster: its engine, its session with a lease, and its index parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from millstream.cluster.aio.messages import OrdersRequest
from millstream.cluster.aio.state_reader import maps_of
from millstream.cluster.core.admission import Step
from millstream.cluster.core.elements import ClusterState, Live, boots_path
from millstream.cluster.core.orders import Order, Place, Reply
from millstream.cluster.core.reports import NodeReport
from millstream.cluster.core.settings import SESSION_TTL_MS
from millstream.cluster.core.writes import open_session
from millstream.errors import MillstreamError
from millstream.model.cluster_maps import NO_KEY, DataRecord, MapKey
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverLog, entry_below
from millstream.model.serving_rights import Right, lease_until_ms
from millstream.vsr.core.versions import NEVER, Version
from simulators.cluster import node as modelled
from simulators.cluster.node import Log
from simulators.cluster.truth import WrongError
from simulators.cluster.world import BUCKET
from simulators.simulation.link import done
from simulators.simulation.node import ACTIVE, KEYS
from simulators.whole_cluster.engine import RECORDS, Copy, Engine, SteppedEngine, SteppedTaker
from simulators.whole_cluster.index import Index
from simulators.whole_cluster.rules import Known, check_acknowledged

if TYPE_CHECKING:
    from simulators.whole_cluster.world import World

EXCHANGES_OF_A_TICK = 2


NO_RIGHT = Right(False, False)


class View:
    """A copy as the rest of the simulated cluster sees it."""

    def __init__(self, copy: Copy) -> None:
        self.copy = copy
        self._known: tuple[FailoverLog, int, Log] = ((), 0, ())

    @property
    def state(self) -> PartitionState:
        return self.copy.partition.state

    @property
    def log(self) -> Log:
        """(branch in which it was written, number) of each change that it has."""
        partition = self.copy.partition
        log, end = partition.failover_log, partition.high_seqno
        if self._known[:2] != (log, end):
            born = self.copy.world.truth.born
            changes = ((one.number, one.seqno) for one in self.copy.history())
            found = tuple((born[number], number) for number, _ in changes)
            self._known = log, end, found
        return self._known[2]

    @property
    def branch(self) -> int:
        return self.copy.branch

    @property
    def last_branch(self) -> int:
        return self.copy.partition.last_branch

    @property
    def failover(self) -> FailoverLog:
        return self.copy.partition.failover_log

    @property
    def is_intact(self) -> bool:
        return self.copy.standing().is_intact

    @property
    def is_whole(self) -> bool:
        return self.copy.standing().is_whole

    @property
    def heard(self) -> int:
        return self.copy.node.bucket.heard.get(self.copy.partition_id, 0)

    @heard.setter
    def heard(self, branch: int) -> None:
        self.copy.node.bucket.hear(self.copy.partition_id, branch)


class Held(Mapping[Place, View]):
    """The copies that a node has."""

    def __init__(self) -> None:
        self._views: dict[Place, View] = {}

    def take(self, engine: Engine) -> None:
        """A bucket is made."""
        self._views |= {copy.place: View(copy) for copy in engine.copies}

    def drop(self, bucket: str) -> None:
        """A bucket is gone."""
        self._views = {place: v for place, v in self._views.items() if place.bucket != bucket}

    def view(self, copy: Copy) -> View:
        """Return what is seen of a copy; nobody else knows of one that was dropped."""
        return self._views.get(copy.place) or View(copy)

    def __getitem__(self, place: Place) -> View:
        view = self._views[place]
        if view.state is PartitionState.ABSENT:
            raise KeyError(place)
        return view

    def get(self, place: Place, default: Any = None) -> Any:
        view = self._views.get(place)
        return default if view is None or view.state is PartitionState.ABSENT else view

    def __iter__(self) -> Iterator[Place]:
        absent = PartitionState.ABSENT
        return iter([place for place, view in self._views.items() if view.state is not absent])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Node(modelled.Node):
    world: World
    copies: Held  # type: ignore[assignment]

    def __init__(self, world: World, name: str, zone: str) -> None:
        self.world, self.name, self.zone = world, name, zone
        self.is_gone, self.side, self.clock, self.is_index = False, 0, 1.0, False
        self.pace = 1.0
        """How often it gets to do something."""
        self.index = Index(self)
        self.admitted = 0
        """The last session in which it was admitted."""
        self.left: dict[Place, Log] = {}
        """What copies had when the process died."""
        self.dropped: dict[Place, Log] = {}
        """What copies of dropped buckets had: others may hear of the drop later."""
        self.is_full = self._is_down = False
        self.engines: dict[str, Engine] = {}
        """By the uuids of their buckets; each is a directory of its own."""
        self.copies = Held()
        self.made(BUCKET, "b", world.partition_count)
        self.start()

    # ---- process

    def start(self) -> None:
        self.managed = SteppedEngine(self)
        self.taker = SteppedTaker(self, self.managed)

    @property
    def is_up(self) -> bool:
        return not self._is_down

    @is_up.setter
    def is_up(self, is_up: bool) -> None:
        if is_up:
            self.restart()
        elif self.is_up:
            self.die()

    def crash(self) -> None:
        self.is_full = False
        self.any_engine().crash()

    def die(self) -> None:
        """All buckets at once."""
        self.left = {place: view.log for place, view in self.copies.items()}
        self._is_down = True
        for engine in self.engines.values():
            engine.end()

    def restart(self) -> None:
        if self.is_gone or self.is_up:
            return
        self._is_down = self.is_full = False
        for engine in self.engines.values():
            engine.restart()
        self.start()
        self.world.trace(f"{self.name} is back, {[one.describe() for one in self.every_copy()]}")
        truth = self.world.truth
        for place, before in self.left.items():
            now = self.copies[place].log if place in self.copies else ()
            truth.crashed[place] |= {number for _, number in before} - {n for _, n in now}
        for copy in self.every_copy():
            if copy.partition.state is ACTIVE:  # it is alone: what was only in memory is lost
                truth.excuse(copy.place, frozenset(("persisted",)))
                self.grow(copy)

    # ---- buckets

    def made(self, uuid: str, name: str, partitions: int) -> Engine:
        """Return the engine of a bucket; it is made, if there is none."""
        if uuid not in self.engines:
            self.engines[uuid] = engine = Engine(self, uuid, name, partitions)
            self.copies.take(engine)
        return self.engines[uuid]

    async def drop(self, name: str) -> None:
        """Delete a bucket, with all that it holds."""
        engine = next(one for one in self.engines.values() if one.bucket_name == name)
        self.world.trace(f"{self.name} drops {engine.bucket_uuid}")
        self.world.count("buckets dropped by nodes")
        self.world.truth.dropped(self, engine.bucket_uuid)
        engine.hang_up()
        engine.is_down = True
        del self.engines[engine.bucket_uuid]
        self.dropped |= {
            place: view.log for place, view in self.copies.items()
            if place.bucket == engine.bucket_uuid
        }  # fmt: skip
        self.copies.drop(engine.bucket_uuid)
        self.index.drop(engine.bucket_uuid)

    def has_bucket(self, uuid: str) -> bool:
        engine = self.engines.get(uuid)
        return engine is not None and engine.adopted is not None

    def any_engine(self) -> Engine:
        every = list(self.engines.values())
        return every[0] if len(every) == 1 else self.world.rng.choice(every)

    def every_copy(self) -> list[Copy]:
        return [copy for engine in self.engines.values() for copy in engine.copies]

    def copy(self, place: Place) -> Copy:
        return self.engines[place.bucket].copies[place.partition]

    # ---- maps

    @property
    def records(self) -> dict[Place, DataRecord]:  # type: ignore[override]
        return {
            Place(uuid, p): record
            for uuid, engine in self.engines.items() if engine.adopted is not None
            for p, record in enumerate(engine.adopted.adopted.records)
        }  # fmt: skip

    def key(self, place: Place) -> MapKey:
        engine = self.engines.get(place.bucket)
        record = None if engine is None else engine.bucket.record(place.partition)
        return NO_KEY if record is None else record.at

    def adopt(self, place: Place, record: DataRecord) -> None:
        """A record is told by anybody; the node itself must know its bucket."""
        engine = self.engines.get(place.bucket)
        adopted = None if engine is None else engine.adopted
        if engine is None or adopted is None or not self.is_up:
            return
        self.world.truth.publish(place, record)
        with self.working(engine):
            try:
                done(adopted.adopt({place.partition: record}))
            except MillstreamError:
                self.world.count("records not adopted")

    def working(self, engine: Engine | None = None) -> Any:
        """It may die at an effect of the disk, of this bucket or of any."""
        return (engine or self.any_engine()).may_crash(self.world.crashes)

    # ---- serving

    def right(self, place: Place) -> Right:
        engine = self.engines.get(place.bucket)
        if engine is None or engine.is_down or engine.adopted is None:
            return NO_RIGHT
        if engine.partitions[place.partition].state is not ACTIVE:
            return NO_RIGHT
        return engine.bucket.right_now(place.partition)

    def log_of(self, copy: Copy) -> Log:
        return self.copies.view(copy).log

    def grow(self, copy: Copy) -> None:
        """An active copy has a history."""
        self.world.truth.grow(copy.place, copy.branch, self.log_of(copy), self.name)

    def write(self, place: Place, level: str) -> None:
        """A client writes, if it is not refused."""
        world, rng, copy = self.world, self.world.rng, self.copy(place)
        bucket = copy.node.bucket
        bucket.look_at_rights()
        partition = copy.partition
        if partition.refusal is not None or bucket.writes.refuses(place.partition):
            world.count("writes refused by nodes")
            return
        if not self.right(place).is_given:
            raise WrongError(f"{self.name} accepts a write of {place} and may not serve")
        truth, before = world.truth, partition.high_seqno
        key = rng.choice(KEYS)
        is_delete = rng.random() < 0.2
        copy.write(key, None if is_delete else b"%d" % next(world.numbers), level)
        if partition.high_seqno == before:
            return
        log = partition.failover_log
        for seqno in range(before + 1, partition.high_seqno + 1):
            change = truth.changes.get((entry_below(log, seqno).uuid, seqno))
            if change is not None:
                truth.born[change.number] = copy.branch
                if level == "memory":
                    truth.plain[place].append(change.number)
        self.grow(copy)
        self.acknowledge(place)

    def acknowledge(self, place: Place | None = None) -> None:
        """Clients are told what has reached the level that they asked for."""
        for copy in self.every_copy() if self.is_up else ():
            if copy.pending and copy.partition.state is ACTIVE:
                for change, level in copy.take_acknowledged():
                    check_acknowledged(self, copy.place, change.number)
                    self.world.truth.acked[copy.place].append((change.number, level))
                    self.world.count(f"acknowledged {level}")

    def flush(self, place: Place) -> None:
        engine = self.engines.get(place.bucket)
        if not self.is_up or engine is None:
            return
        with self.working(engine):
            try:
                if self.world.rng.random() < 0.7:
                    engine.flush()
                else:
                    engine.freeze()
            except MillstreamError:
                self.world.count("no space")
        self.acknowledge()

    def tend(self) -> None:
        """Something that a node does beside: it compacts, lets documents go, fills its map."""
        engine = self.any_engine()
        with self.working(engine):
            try:
                engine.tend()
            except MillstreamError:
                self.world.count("no space")
        self.acknowledge()

    def fill(self) -> None:
        """Its disk is full."""
        self.world.trace(f"the disk of {self.name} is full")
        self.is_full = True

    def free(self) -> None:
        """There is space again."""
        self.is_full = False
        for uuid in list(self.engines):
            self.flush(Place(uuid, 0))

    # ---- session

    @property
    def boots(self) -> int:  # type: ignore[override]
        return self.taker.boots if self.is_up else 0

    @property
    def is_admitted(self) -> bool:  # type: ignore[override]
        return self.is_up and self.taker.is_admitted

    def was_admitted(self, boots: int) -> bool:
        """Whether an orchestrator has admitted it in this session."""
        return self.admitted == boots

    @property
    def token(self) -> Version:  # type: ignore[override]
        return self.taker.token if self.is_up else NEVER

    def sync(self) -> None:
        """Open a session, then read token and maps; only then the node is in step."""
        world, space = self.world, self.world.space
        if self.side or not space.has_quorum or not self.is_up:
            return
        counter = space.elements.get(boots_path(self.name))
        if counter is None:
            return
        self.lose_session()
        space.end_session(self.name)  # the one before has run out, or is closed now
        boots = int(counter.data) + 1
        live = Live(f"i{world.truth.number()}", {}, boots)
        if not space.run(open_session(self.name, live, counter.version)):
            return
        state, began_ms = space.state(), self.now_ms()
        world.beats[self.name] = world.now_ms
        with self.working():
            try:
                done(self.taker.begin(boots, state.token, maps_of(state)))
            except MillstreamError:
                world.count("maps not taken")
                return
            self.taker.set_lease(lease_until_ms(began_ms, SESSION_TTL_MS))

    def lose_session(self) -> None:
        if self.is_up:
            self.taker.leave()

    def beat(self) -> None:
        """Extend the session, or find that it has lapsed."""
        taker, world, space = self.taker, self.world, self.world.space
        if not self.boots:
            return
        if self.side == 0 and space.has_quorum and world.rng.random() < 0.9 * self.pace:
            live = space.state().live.get(self.name)
            if live is None or live.boots != taker.boots:
                self.lose_session()
                return
            world.beats[self.name] = world.now_ms
            taker.set_lease(lease_until_ms(self.now_ms(), SESSION_TTL_MS))
        elif taker._lease_ms is None or self.now_ms() >= taker._lease_ms:
            world.count("leases lapsed")
            self.lose_session()

    # ---- orders

    def take_maps(self, state: ClusterState) -> None:
        with self.working():
            done(self.taker.take(OrdersRequest(maps=maps_of(state))))

    def obey(self, order: Order) -> Any:
        """Carry an order out; None: it died of that."""
        reply, known = None, Known(self, order)
        with self.working(self.engines.get(order.place.bucket)):
            reply = done(self.taker.take(OrdersRequest((order,))))
        if reply is None or not self.is_up:
            return None
        if order.kind == "admit" and order.boots == known.boots:
            self.admitted = known.boots
        known.check(reply.replies[0])
        self.check_durable(order.place, reply.replies[0])
        return reply.report if order.kind == "report" and reply.report else reply.replies[0]

    def check_durable(self, place: Place, reply: Reply) -> None:
        """What a reply tells is on the disk: the record, the promise, and who serves."""
        copy, engine = reply.copy, self.engines.get(place.bucket)
        if copy is None or engine is None or engine.adopted is None:
            return
        p = copy.standing.partition
        kept, found = engine.files[RECORDS].records[p], engine.store.partition(p)
        if kept.at < copy.at:
            raise WrongError(f"{self.name} tells record {copy.at} and has {kept.at} on disk")
        if reply.code == "promised" and found.last_branch < reply.branch:
            raise WrongError(f"{self.name} promises {reply.branch}, on disk {found.last_branch}")
        if copy.standing.state is ACTIVE and found.state is not ACTIVE:
            raise WrongError(f"{self.name} serves {p}, on its disk it is {found.state.name}")

    def report(self) -> NodeReport:
        return self.taker.report()

    def carry_out(self, step: Step) -> None:
        raise AssertionError("the order taker does it")

    # ---- streams

    def follow(self, place: Place, count: int) -> None:
        """A copy chooses its source, and takes something from it."""
        engine, rng, p = self.engines.get(place.bucket), self.world.rng, place.partition
        if engine is None or not self.is_up or rng.random() > self.pace:
            return
        following = engine.follow(p)
        is_busy = following is not None and following.is_busy(p)
        if not is_busy and rng.random() < 0.2:
            engine.look_elsewhere(p)
        if following is not None:
            self.run(following, count)

    def run(self, following: Any, count: int) -> None:
        """Let bytes of a connection arrive at both ends."""
        if self._finds_ways(following):
            with self.working(following.node):
                following.link.run(count)
            following.source.owner.acknowledge()
            self.acknowledge()

    def _finds_ways(self, following: Any) -> bool:
        """Look which ways of a connection are open; return whether any is."""
        source, world, link = following.source, self.world, following.link
        link.is_told = world.may_reach(self, source.owner)
        link.is_heard = world.may_reach(source.owner, self)
        return bool(link.is_told or link.is_heard)

    def tick(self) -> None:
        """A moment of its connections: no-ops are sent and answered."""
        every = [one for engine in self.engines.values() for one in engine.following.values()]
        for following in every:
            link, source = following.link, following.source
            if link.is_cut or self.world.rng.random() > 0.9 * self.pace:
                continue
            link.producer.on_tick(source.now_ms())
            link.to_consumer += link.producer.take_replies()
            if self._finds_ways(following):
                with self.working(following.node):
                    for _ in range(EXCHANGES_OF_A_TICK):
                        if not link.is_cut:
                            link.exchange()
                source.owner.acknowledge()
            if self.is_up and self.world.rng.random() < 0.1:
                following.feed.ask_highs()

    def tell_source(self, place: Place, source: Any) -> None:
        raise AssertionError("streams do it")
