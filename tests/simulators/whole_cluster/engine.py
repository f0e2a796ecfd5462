"""The data engine of one node of the cluster: the real bucket, log, copies, streams and orders.

What is real: the log on its disk, partitions, serving rights, adopted records, copies and their
moves, the managed engine that carries orders out, and the order taker with its session. What the
shell around them would do (files of records, choice of sources, connections) is done here.

Invariants:
1. What is durable survives a crash: the log on the simulated disk, and `files`.
2. Nothing of a process is used after its crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from millstream.cluster.aio.order_taker import OrderTaker
from millstream.cluster.core.admission import Activate, Step, TakeOver
from millstream.cluster.core.orders import Place
from millstream.data_directory.map_file import AdoptedMap
from millstream.databases.adopted_records import AdoptedRecords
from millstream.databases.managed_engine import ManagedEngine
from millstream.errors import ConditionError, MillstreamError, UnavailableError
from millstream.kv.aio.copies import Copies
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.feed_effects import Undo
from millstream.kv.core.partition.states import FOLLOWING
from millstream.kv.core.serving import HEARD_MS
from simulators.simulation import node as simulated
from simulators.simulation.following import Following
from simulators.simulation.link import done
from simulators.simulation.node import ACTIVE
from simulators.whole_cluster.index import ManagedIndex
from simulators.whole_cluster.rules import check_stop
from support.kv.simulated_disk import BY_ID, CREATE, WRITE, Fault

if TYPE_CHECKING:
    from simulators.whole_cluster.node import Node
    from simulators.whole_cluster.world import World

RECORDS: Final = "records.json"


class Copy(simulated.Copy):
    """A copy of a partition that tells the truth what it rolls back."""

    node: Engine
    world: World

    @property
    def last_branch(self) -> int:
        return self.partition.last_branch

    @property
    def place(self) -> Place:
        return Place(self.node.bucket_uuid, self.partition_id)

    def undo(self, effect: Undo) -> int:
        before = self.node.owner.log_of(self)
        point = super().undo(effect)
        left = self.node.owner.log_of(self)
        self.world.truth.rolled_back(self.place, before[len(left) :])
        return point


class WatchedCopies(Copies):
    """Moves of copies; what is handed over is checked."""

    engine: Engine

    async def stop(self, partition_id: int, epoch: int) -> None:
        reader = self._bucket._take_overs.get(partition_id, "")
        check_stop(self.engine, partition_id, reader)
        await super().stop(partition_id, epoch)


class Engine(simulated.Node):
    """One directory, and the process that serves it, if it lives."""

    world: World
    copies: list[Copy]  # type: ignore[assignment]
    moves: WatchedCopies
    moves_kind = WatchedCopies

    partition_count = 0

    def __init__(self, owner: Node, uuid: str, name: str, partition_count: int) -> None:
        self.owner, self.world, self.name = owner, owner.world, owner.name
        self.bucket_uuid, self.bucket_name = uuid, name
        self.partition_count = partition_count
        self.is_down = self.is_isolated = False
        self.files: dict[str, AdoptedMap] = {}
        self.copies = [Copy(self, p) for p in range(partition_count)]
        self.tries: dict[int, tuple[str | None, int]] = {}
        self.new_disk()
        self.start()

    # -- its process

    def start(self) -> None:
        self.adopted: AdoptedRecords | None = None
        super().start()
        self.moves.engine = self

    def place_of(self, p: int) -> Place:
        return Place(self.bucket_uuid, p)

    def alone(self) -> set[int]:
        known = self.files.get(RECORDS)
        if known is None:
            return set()
        rows = ((self.name,),)
        return {p for p, record in enumerate(known.records) if record.rows == rows}

    def monotonic_ns(self) -> int:
        return self.owner.now_ms() * 1_000_000

    def now_ms(self) -> int:
        return self.owner.now_ms()

    def place(self) -> None:
        known = self.files.get(RECORDS)
        if known is not None:
            self.manage(known)

    def restart(self) -> None:
        """Start again; a start that finds no space is tried again until there is some."""
        self.is_down = False
        self.tries.clear()
        self.start()
        if self.adopted is not None:
            done(self.moves.take_places())

    def die(self) -> None:
        """With the whole process."""
        self.owner.die()

    def end(self) -> None:
        super().die()
        for copy in self.copies:
            copy.promised = 0

    # -- its disk

    def calm(self, kind: str, name: str) -> None:
        if self.owner.is_full and kind in (WRITE, CREATE, BY_ID):
            raise Fault("full", 0).error(kind)

    def new_disk(self) -> None:
        super().new_disk()
        self.disk.before = self.calm

    def finish_commit(self) -> None:
        """A commit that finds no space waits for it; writes are refused meanwhile."""
        try:
            super().finish_commit()
        except UnavailableError as error:
            if error.code != "disk_full":
                raise AssertionError("nothing fails but for space") from error
            self.bucket.writes.refuse("disk_full")
            raise
        if not self.owner.is_full and self.bucket.writes.refusals:
            self.bucket.writes.accept("disk_full")

    async def keep(self, adopted: AdoptedMap) -> None:
        """Write the file of records."""
        for is_written in (False, True):
            try:
                self.disk.before(WRITE, RECORDS)
            except OSError as error:
                raise UnavailableError("no space for records", code="disk_error") from error
            if not is_written:
                self.files[RECORDS] = adopted

    # -- its records

    def manage(self, adopted: AdoptedMap) -> None:
        running: Any = SimpleNamespace(bucket=self.bucket, copies=self.moves)
        self.bucket.begin(adopted.bucket_map, adopted.records, self.name)
        self.adopted = AdoptedRecords(running, adopted, self.keep)
        self.bucket.adopt = self.adopted.adopt
        for p, record in enumerate(adopted.records):
            self.world.truth.publish(self.place_of(p), record)

    # -- what its copies follow

    def wanted_source(self, p: int) -> str | None:
        """Return the node that a copy should follow, as the replicator chooses it."""
        if self.partitions[p].state not in FOLLOWING or self.adopted is None:
            return None
        names = [address.name for address in self.bucket.sources(p)]
        active, tries = self.tries.get(p, (None, 0))
        is_same = active == self.bucket.active_node(p)
        return names[tries % len(names) if is_same else 0] if names else None

    def look_elsewhere(self, p: int) -> None:
        active, tries = self.tries.get(p, (None, 0))
        now = self.bucket.active_node(p)
        self.tries[p] = now, tries + 1 if now == active else 1

    def follow(self, p: int) -> Following | None:
        """Have a copy follow its source; return the connection."""
        name = self.wanted_source(p)
        source = None if name is None else self.world.nodes[name].engines.get(self.bucket_uuid)
        for following in self.copies[p].following():
            if following.link.is_cut:
                following.cut()
            elif following.source is not source:
                following.leave(p)
                if not following.wanted:
                    following.cut()
        if source is None or not self.world.connected(self.owner, source.owner):
            return None
        known = self.following.get(source)
        if known is None or known.link.is_cut:
            known = Following(self, source)
        if p not in known.wanted:
            known.follow(p)
            known.feed.look(p)
        return known

    def take_over(self, p: int) -> None:
        for following in self.copies[p].following():
            following.take_over(p)


class SteppedTaker(OrderTaker):
    """The order taker of a node without an event loop."""

    def __init__(self, node: Node, engine: SteppedEngine) -> None:
        super().__init__(node.name, node.world.uuid, engine)
        self._process = "process"

    async def _carry_out(self, steps: Mapping[str, Sequence[Step]]) -> set[str]:
        return {bucket for bucket, own in steps.items() if not await self._carried(bucket, own)}

    def _begin_take_over(self, place: Place) -> None:
        try:
            done(self._engine.carry_out(place.bucket, [TakeOver(place)]))
        except MillstreamError:
            return


class SteppedEngine(ManagedEngine):
    """The managed engine of a node without an event loop; the truth hears what it does."""

    def __init__(self, node: Node) -> None:
        self.node, self.world = node, node.world
        buckets: Any = NodeBuckets(node)
        index: Any = ManagedIndex(node.index)
        super().__init__(node.name, buckets, None, delete=node.drop, index=index)  # type: ignore[arg-type]

    def has_space(self, reserve_percent: int) -> bool:
        return not self.node.is_full

    async def _carry_out(self, uuid: str, steps: Sequence[Any]) -> None:
        for step in steps:
            if isinstance(step, Activate):
                await self._activate(uuid, step)
            else:
                await super()._carry_out(uuid, [step])

    async def _activate(self, uuid: str, step: Activate) -> None:
        copy, truth = self.node.engines[uuid].copies[step.place.partition], self.world.truth
        was_active = copy.partition.state is ACTIVE
        with copy.passing_on():
            await super()._carry_out(uuid, [step])
        if copy.partition.state is ACTIVE and not was_active:
            truth.excuse(step.place, frozenset(step.kept))
            truth.activated(self.node, step.place)
            self.node.grow(copy)
            self.world.trace(f"promoted {copy.describe()}")
            copy.check("activated")

    async def _tell_removal(self, running: Any, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.world.truth.removed(self.node, running.place_of(number))

    def _begin_take_over(self, name: str, place: Place) -> None:
        self.node.engines[place.bucket].take_over(place.partition)


class NodeBuckets:
    """As much of a node's buckets as its managed engine uses."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.maps = self

    @property
    def running(self) -> dict[str, Engine]:
        return {engine.bucket_name: engine for engine in self.node.engines.values()}

    @property
    def served(self) -> dict[str, Bucket]:
        return {name: engine.bucket for name, engine in self.running.items()}

    def adopted(self, name: str) -> AdoptedRecords | None:
        engine = self.running.get(name)
        return None if engine is None else engine.adopted

    def await_maps(self, *, is_awaited: bool) -> None:
        """Nobody asks for a bucket by its name."""

    def name_of(self, uuid: str) -> str | None:
        engine = self.node.engines.get(uuid)
        return None if engine is None or engine.adopted is None else engine.bucket_name

    def engine(self, name: str) -> Any:
        engine = self.running[name]
        return SimpleNamespace(
            bucket=engine.bucket, copies=engine.moves, place_of=engine.place_of
        )  # fmt: skip

    def replicator(self, name: str) -> Streams:
        return Streams(self.running[name])

    async def take_map(self, name: str, partitions: int, adopted: AdoptedMap, quota: Any) -> None:
        uuid, known = adopted.data_map.bucket, self.running.get(name)
        if known is not None and known.bucket_uuid != uuid:
            raise ConditionError(f"{name} is another bucket", code="other_uuid")
        engine = self.node.made(uuid, name, partitions)
        if engine.adopted is not None:
            await engine.adopted.take(adopted.data_map, adopted.nodes)
            return
        await engine.keep(adopted)
        engine.manage(adopted)
        await engine.moves.take_places()


class Streams:
    """What the copies of one bucket follow."""

    def __init__(self, engine: Engine) -> None:
        self.of = engine

    def streams(self) -> dict[str, bool]:
        found: dict[str, bool] = {}
        for source, following in self.of.following.items():
            if following.wanted:
                heard = [self._hears(following, p) for p in following.wanted]
                found[source.name] = not following.link.is_cut and any(heard)
        return found

    def _hears(self, following: Following, p: int) -> bool:
        quiet_ms = self.of.bucket.quiet_ms(p)
        return following.feed.is_streaming(p) and quiet_ms is not None and quiet_ms <= HEARD_MS
