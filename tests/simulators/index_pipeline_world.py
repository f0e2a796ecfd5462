"""Schedules of a pipeline over the indexes of several nodes: real writers and indexes, no lines.

Partitions move between nodes, nodes go and come back, sources fail over, leases get lost, writers
are killed or overtaken in the middle of a cycle. Two nodes have partitions, a third one indexes
all of them. Each node's index is an `index_world.World`, which compares it with the histories of
the sources after every step; in the end all have caught up, and each partition is answered for by
exactly the nodes that should.
"""

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from millstream.client.extensions import LeaseHold, PartitionPosition
from millstream.errors import ConditionError, UnavailableError
from millstream.model.partitions import PartitionState
from millstream.pipelines.change_stream.options import parse_options
from millstream.pipelines.index import writer as writer_module
from millstream.pipelines.index.mapping import MapSpec, TaskDone
from millstream.pipelines.index.planning import PartPlan
from millstream.pipelines.index.shard import IndexAddress, IndexState
from millstream.pipelines.index.writer import IndexWriter
from millstream.views.aio.serving import outside_writer
from millstream.views.core.index.back_index import operations_of
from millstream.views.core.index.header import DocumentRows, Judged
from millstream.wire.cluster_map import ClusterMap, NodeAddress
from simulators.index_world import TREES, Source, World, Wrong

PARTITIONS = 3
KEYS = 6
INDEX = "i"
"""The node that only indexes."""


class Node(World):
    """A node's index, and the calls of a writer outside; `owner` says which partitions it has."""

    def __init__(self, name: str, world: "IndexPipelineWorld") -> None:
        super().__init__(world.rng.randrange(2**32))
        self.name, self.world = name, world
        self.sources = world.sources
        self.is_up = True
        self.staged: dict[str, list[DocumentRows]] = {}

    @property
    def own(self) -> list[int]:
        return [p for p, name in self.world.owner.items() if self.name in (name, INDEX)]

    def told(self) -> None:
        """The node hears which partitions it has."""
        gone = {p for p, state in self.ordered.items() if state == "active"} - set(self.own)
        for partition in gone:
            self.order(partition, "cleanup")
        for partition in self.own:
            if self.ordered.get(partition) != "active":
                self.order(partition, "active")

    def judged(self) -> dict[int, Judged]:
        nodes, owner = self.world.nodes, self.world.owner
        return {p: self.sources[p].judged for p in self.own if nodes[owner[p]].is_up}

    # -- as `IndexShard`

    def _answers(self) -> None:
        if not self.is_up:
            raise UnavailableError(f"{self.name} is away")

    def _state(self, published: Any = None) -> IndexState:
        hosted = SimpleNamespace(index=self.index, design=SimpleNamespace(engine="spark"))
        shown = outside_writer.index_state(hosted)  # type: ignore[arg-type]
        if published is not None:
            shown |= outside_writer._published_as_json(published, hosted)  # type: ignore[arg-type]
        return msgspec.convert(shown, IndexState, strict=False)

    def state(self) -> IndexState:
        self._answers()
        return self._state()

    def take_over(self, writer: str) -> IndexState:
        self._answers()
        self.index.take_over(writer, self.now_ms)
        self.index.roll_back(self.judged(), self.now_ms)
        return self._state()

    def judge(self, fence: int) -> IndexState:
        self._answers()
        self.index.check_fence(fence)
        self.staged.clear()
        self.index.roll_back(self.judged(), self.now_ms)
        return self._state()

    def keep(self, fence: int) -> list[str]:
        self._answers()
        return sorted(self.staged)

    def load(self, fence: int, said: Mapping[str, Any]) -> IndexState:
        documents = self._documents(fence, said["back"])
        asked = msgspec.convert(msgspec.to_builtins(said), outside_writer._Load, strict=False)
        judged = self.judged()
        back, trees = operations_of(documents, TREES, lambda keys: {})
        parts = outside_writer._part_reads(asked.parts, judged)
        load = self.index.rebuild if any(self.index.newest.roots) else self.index.load
        return self._state(load(fence, parts, judged, back, trees, self.now_ms))

    def publish(self, fence: int, said: Mapping[str, Any]) -> IndexState:
        documents = self._documents(fence, said["documents"])
        asked = msgspec.convert(msgspec.to_builtins(said), outside_writer._Publish, strict=False)
        judged = self.judged()
        found = outside_writer._by_partition(asked, documents, TREES)
        parts = outside_writer._part_reads(asked.parts, judged, found)
        return self._state(self.index.publish(fence, parts, judged, self.now_ms))

    def _documents(self, fence: int, names: Iterable[str]) -> list[DocumentRows]:
        self._answers()
        self.index.check_fence(fence)
        if not set(names) <= self.staged.keys():
            raise ConditionError("a file is gone", code="run_missing")
        return [document for name in names for document in self.staged[name]]


class Control:
    """As `NodeControl`: asks whichever node has a partition."""

    cluster_map = ClusterMap(1, 1, (), (), {}, "u", NodeAddress("h", 1), ())

    def __init__(self, world: "IndexPipelineWorld") -> None:
        self.world = world

    def close(self) -> None:
        pass

    def _served(self, partitions: Iterable[int]) -> list[int]:
        world = self.world
        return [p for p in partitions if world.nodes[world.owner[p]].is_up]

    def _all(self, partitions: Iterable[int]) -> list[int]:
        wanted = list(partitions)
        if self._served(wanted) != wanted:
            raise UnavailableError("a node is away")
        return wanted

    def positions_now(self, partitions: Iterable[int]) -> dict[int, PartitionPosition]:
        sources = self.world.sources
        return {
            p: PartitionPosition(
                p, PartitionState.ACTIVE, sources[p].uuid, 1, *[sources[p].high_seqno] * 5, 0
            )
            for p in self._served(partitions)
        }

    def open_lease(self, partitions: Iterable[int]) -> dict[int, LeaseHold]:
        return {p: self._hold(p, self.world.open_lease(p)) for p in self._all(partitions)}

    def renew_lease(self, lease_id: int, partitions: Iterable[int]) -> dict[int, LeaseHold]:
        found = [p for p in self._all(partitions) if lease_id in self.world.sources[p].leases]
        return {p: self._hold(p, lease_id) for p in found}

    def _hold(self, p: int, lease_id: int) -> LeaseHold:
        source = self.world.sources[p]
        at = self.world.leased.get((p, lease_id), source.high_seqno)
        return LeaseHold(lease_id, p, at, source.uuid, 1, source.purge_seqno)

    def let_go(self, lease_id: int, partitions: Iterable[int]) -> None:
        for p in partitions:
            self.world.sources[p].leases.discard(lease_id)

    def failover_log(self, p: int) -> Any:
        return self.world.sources[self._all([p])[0]].log


class NoKeeper:
    def __init__(self, *_: object) -> None:
        pass

    def stop(self) -> None:
        pass


class Killed(Exception):
    """A writer ends in the middle of a cycle."""


class IndexPipelineWorld:
    """One schedule."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.sources = {p: Source(p) for p in range(PARTITIONS)}
        self.owner = {p: self.rng.choice("ab") for p in self.sources}
        self.nodes = {name: Node(name, self) for name in ("a", "b", INDEX)}
        self.leased: dict[tuple[int, int], int] = {}
        self.last_lease = self.last_value = self.last_run = 0
        self.seen: Counter[str] = Counter()
        for node in self.nodes.values():
            node.told()
        self.writers = {name: self.writer(name) for name in self.nodes}

    def open_lease(self, p: int) -> int:
        self.last_lease += 1
        self.sources[p].leases.add(self.last_lease)
        self.leased[p, self.last_lease] = self.sources[p].high_seqno
        return self.last_lease

    def writer(self, name: str) -> IndexWriter:
        spec = MapSpec(
            parse_options({"bucket": "b"}),
            IndexAddress(host=name, port=1, bucket="b", design="d"), "u", b"{}",
            self.nodes[name].index.newest.signature, 0, False,
        )  # fmt: skip
        tasks, rows_max = self.rng.choice((1, 2)), self.rng.choice((2, 5, 100))
        return IndexWriter(spec, self.tasks, name="w", task_count=tasks, rows_max=rows_max)

    def tasks(self, spec: MapSpec, tasks: Sequence[Sequence[PartPlan]]) -> list[TaskDone]:
        """Read and stage, while anything happens."""
        done = []
        for plans in tasks:
            self.disturb()
            documents = []
            for plan in plans:
                source = self.sources[plan.partition]
                is_held = plan.lease_id in source.leases
                at = self.leased[plan.partition, plan.lease_id] if is_held else source.high_seqno
                documents += source.read(plan.start.seqno, plan.end.seqno, at)
            self.last_run += 1
            name = f"r{self.last_run}"
            self.nodes[spec.address.host].staged[name] = documents
            done.append(
                TaskDone(
                    len(documents), [name], [[] for _ in range(TREES)], [name],
                    partitions=[plan.partition for plan in plans],
                )
            )  # fmt: skip
            self.disturb()
        return done

    # -- what happens

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            for node in self.nodes.values():
                node.check()
        self.finish()

    def step(self) -> None:
        event = self.rng.choice([*[self.write] * 3, *[self.cycle] * 5, self.disturb, self.tidy])
        with contextlib.suppress(Killed):
            event()

    def write(self) -> None:
        source = self.sources[self.rng.randrange(PARTITIONS)]
        for _ in range(self.rng.randint(1, 4)):
            self.last_value += 1
            value = self.last_value if self.rng.random() < 0.7 else None
            source.history.append((self.rng.randrange(KEYS), value))

    def disturb(self) -> None:
        """Let something happen, perhaps."""
        nothing: list[Callable[[], None]] = [lambda: None] * 6
        self.rng.choice(
            [
                *nothing,
                self.write,
                self.move,
                self.lose,
                self.fail_over,
                self.switch,
                self.kill,
                self.overtake,
            ]
        )()

    def move(self) -> None:
        p = self.rng.randrange(PARTITIONS)
        self.owner[p] = self.rng.choice("ab")
        self.sources[p].leases.clear()
        for node in self.nodes.values():
            node.told()
        self.seen["moved"] += 1

    def lose(self) -> None:
        self.sources[self.rng.randrange(PARTITIONS)].leases.clear()

    def fail_over(self) -> None:
        source = self.sources[self.rng.randrange(PARTITIONS)]
        lowest = max(source.purge_seqno, source.high_seqno - 4)
        source.fail_over(self.rng.randint(lowest, source.high_seqno))
        self.seen["failed over"] += 1

    def switch(self) -> None:
        node = self.pick()
        node.is_up = not node.is_up
        self.seen["switched"] += 1

    def kill(self) -> None:
        name = self.pick().name
        self.writers[name] = self.writer(name)
        self.seen["killed"] += 1
        raise Killed

    def overtake(self) -> None:
        """Another pipeline becomes the writer, and does nothing."""
        self.pick().index.take_over("another", 1)

    def pick(self) -> Node:
        return self.rng.choice([*self.nodes.values()])

    def tidy(self) -> None:
        self.pick().clean()

    def cycle(self) -> Any:
        return self.cycle_of(self.pick().name)

    def cycle_of(self, name: str) -> Any:
        writer = self.writers[name]
        try:
            if writer.state is None:
                writer.take_over()
            cycle = writer.cycle()
        except UnavailableError:
            self.seen["away"] += 1
            return None
        except ConditionError as error:
            if error.code not in ("index_fenced", "run_missing"):
                raise
            self.seen[error.code] += 1
            self.writers[name] = self.writer(name)
            return None
        if cycle is not None:
            self.seen["built" if cycle.is_first else "committed"] += 1
        return cycle

    def finish(self) -> None:
        """Nothing happens any more: every index catches up."""
        self.disturb = lambda: None  # type: ignore[method-assign]
        for node in self.nodes.values():
            node.is_up = True
        for name, node in self.nodes.items():
            for _ in range(100):
                if self.cycle_of(name) is None and self.writers[name].state is not None:
                    break
            node.check()
            for p in node.own:
                position = node.index.newest.positions[p]
                source = self.sources[p]
                if position.seqno != source.high_seqno or source.rollback_seqno(position):
                    raise Wrong(f"{name} p{p}: stuck at {position}, high {source.high_seqno}")
            answered = [p for p, s in node.index.newest.states.items() if s == "active"]
            if sorted(answered) != node.own:
                raise Wrong(f"{name} answers for {answered}, has {node.own}")


def placed(monkeypatch: Any) -> Callable[[int], IndexPipelineWorld]:
    """Have writers reach the nodes of the schedule that is made last."""
    current: list[IndexPipelineWorld] = []

    def shard(address: IndexAddress) -> Node:
        return current[0].nodes[address.host]

    monkeypatch.setattr(writer_module, "IndexShard", shard)
    monkeypatch.setattr(writer_module, "NodeControl", lambda _: Control(current[0]))
    monkeypatch.setattr(writer_module, "LeaseKeeper", NoKeeper)

    class Placed(IndexPipelineWorld):
        def __init__(self, seed: int) -> None:
            current[:] = [self]
            super().__init__(seed)

    return Placed
