"""Schedules over an index, its sources and its writers, with everything that may happen to them.

Sources are active copies of partitions: their documents change, they fail over and lose what was
written last, their leases get lost, they forget old deletions. Two writers take turns: one reads
whole snapshots, as a node's indexer does, the other reads parts of snapshots by positions of its
own, as a batch job does. Partitions come, are activated, go and come back; the index is cleaned,
compacted, rolled back, and opened again; queries read one commit for as long as they last.

After every step `World.check` compares the trees with the histories of the sources: rows of each
partition that counts are those of its documents at the position, on the history it names; the
back-index names exactly the rows; every node of every kept root is stored. In the end the index
has caught up, and nothing is stored but what its newest root needs.
"""

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from millstream.errors import ConditionError, CorruptionError
from millstream.model.position import (
    FailoverEntry,
    Position,
    rollback_seqno,
    undone_log,
    with_new_entry,
)
from millstream.trees.core.check import check, live_nodes
from millstream.trees.core.reader import TreeReader
from millstream.trees.core.shapes import NO_REDUCER, Leaf
from millstream.views.core.index.back_index import operations_of, split_back_key, split_back_value
from millstream.views.core.index.commits import IndexSnapshot
from millstream.views.core.index.header import DocumentRows, Header, Judged, PartRead, Row
from millstream.views.core.index.index import Index, IndexShape, Published
from millstream.views.core.index.kept_roots import KeptBounds
from millstream.views.core.rows import row_value, split_row_key
from support.views.memory_index_store import MemoryIndexStore

KEYS = 6
TREES = 2
LONG = b"-" * 700


class Wrong(Exception):
    """The index is not what it must be."""


class CountReducer:
    """The number of rows, as text."""

    def reduce(self, leaves: list[Leaf]) -> list[bytes]:
        return [b"%d" % len(leaf.keys) for leaf in leaves]

    def rereduce(self, groups: list[list[bytes]]) -> list[bytes]:
        return [b"%d" % sum(map(int, group)) for group in groups]


SHAPE = IndexShape("a signature", "a collation", (CountReducer(),) * TREES, (("_count",),) * TREES)


def rows_of(value: int | None) -> tuple[Row, ...]:
    """What the map emits: sometimes a key twice, sometimes nothing; few rows fill a node."""
    if value is None or value % 7 == 0:
        return ()
    ekey = b"e%d%b\0" % (value % 4, LONG)
    rows: list[Row] = [(0, ekey, b"%d" % (value % 4), b"%d" % value + LONG)]
    if value % 3 == 0:
        rows.append((0, ekey, b"%d.0" % (value % 4), b"1"))
    if value % 2:
        rows.append((1, b"odd\0", b'"odd"', b"null" + LONG))
    return tuple(rows)


def doc_id(partition: int, key: int) -> bytes:
    return b"p%d-%d" % (partition, key)


class Source:
    """The active copy of one partition, and every history that it ever had."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.log = (FailoverEntry(1, 0, 1),)
        self.histories: dict[int, list[tuple[int, int | None]]] = {1: []}
        self.purge_seqno = 0
        self.leases: set[int] = set()

    @property
    def uuid(self) -> int:
        return self.log[0].uuid

    @property
    def history(self) -> list[tuple[int, int | None]]:
        """The change with seqno n is at n - 1."""
        return self.histories[self.uuid]

    @property
    def high_seqno(self) -> int:
        return len(self.history)

    @property
    def judged(self) -> Judged:
        return Judged(self.log, self.high_seqno, self.purge_seqno)

    def fail_over(self, seqno: int) -> None:
        """Another copy becomes active, in a history of its own, without what is above `seqno`."""
        uuid = max(self.histories) + 1
        self.histories[uuid] = self.history[:seqno]
        self.log = with_new_entry(undone_log(self.log, seqno), FailoverEntry(uuid, seqno, uuid))
        self.leases.clear()

    def rollback_seqno(self, position: Position) -> int | None:
        return rollback_seqno(
            position, log=self.log, high_seqno=self.high_seqno, purge_seqno=self.purge_seqno
        )

    def newest(self, uuid: int, at: int) -> dict[int, tuple[int, int | None]]:
        """Key -> (seqno, value) as of a seqno of some history."""
        return {key: (n, value) for n, (key, value) in enumerate(self.histories[uuid][:at], 1)}

    def read(self, start: int, end: int, at: int) -> list[DocumentRows]:
        """What a stream of (start, end] sends as of `at`; old deletions may be forgotten."""
        return [
            DocumentRows(self.partition, doc_id(self.partition, key), rows_of(value))
            for key, (seqno, value) in self.newest(self.uuid, at).items()
            if start < seqno <= end and (value is not None or seqno > self.purge_seqno)
        ]


@dataclass
class Plan:
    """A part as it is planned: read as of `at`, under a lease."""

    start: Position
    end: Position
    at: int
    lease: int
    part: PartRead | None = None


@dataclass
class Writer:
    """Who reads sources and publishes: in three steps, between which anything happens."""

    name: str
    world: "World"
    fence: int = -1
    plans: dict[int, Plan] = field(default_factory=dict)
    own: dict[int, Plan] = field(default_factory=dict)

    def plan(self) -> None:
        header = self.world.index.newest
        self.plans = {}
        for partition, here in header.positions.items():
            planned = self.planned(partition, here) if self.world.rng.random() < 0.8 else None
            if planned is not None:
                self.plans[partition] = planned
        if self.name == "batches":
            self.own |= self.plans

    def planned(self, partition: int, start: Position) -> Plan | None:
        source, rng = self.world.sources[partition], self.world.rng
        own = self.own.get(partition)
        if self.name == "batches" and rng.random() < 0.5:
            start = rng.choice((own.start, own.end, Position())) if own else Position()
        if source.rollback_seqno(start) is not None:
            return None
        if own and own.end == start and own.lease in source.leases and own.at > start.seqno:
            at, lease, snap_start, purge = own.at, own.lease, start.snap_start, start.purge_seqno
        else:
            at, lease = source.high_seqno, self.world.open_lease(partition)
            snap_start = start.seqno if start.is_closed else start.snap_start
            purge = start.purge_seqno if start.seqno else source.purge_seqno
        seqno = at if self.name == "snapshots" else min(at, start.seqno + rng.randint(1, 8))
        if seqno <= start.seqno:
            return None
        end = Position(source.uuid, seqno, snap_start, at, None if snap_start else purge)
        if seqno == at:
            end = Position(source.uuid, at, at, at)
        return Plan(start, end, at, lease)

    def read(self) -> None:
        for partition, plan in self.plans.items():
            source = self.world.sources[partition]
            is_whole = plan.lease in source.leases and source.uuid == plan.end.uuid
            at = plan.at if is_whole else source.high_seqno
            documents = source.read(plan.start.seqno, plan.end.seqno, at)
            plan.part = PartRead(
                plan.start, plan.end, source.log, source.purge_seqno, documents, is_whole
            )

    def commit(self) -> None:
        parts = {partition: plan.part for partition, plan in self.plans.items()}
        if not parts or any(part is None for part in parts.values()):
            return
        self.plans = {}
        world = self.world
        judged = {partition: source.judged for partition, source in world.sources.items()}
        holder = world.index.newest.fence
        is_first = not any(world.index.newest.roots) and self.name == "snapshots"
        try:
            if is_first and world.rng.random() < 0.5:
                published = self.load(parts, judged)
            else:
                published = world.index.publish(self.fence, parts, judged, world.now_ms)
        except ConditionError:
            return
        if published.partitions and self.fence != holder:
            raise Wrong(f"{self.name} published with fence {self.fence}, in force was {holder}")

    def load(self, parts: dict[int, PartRead], judged: dict[int, Judged]) -> Published:
        """The same by sorted runs, as a first build does it."""
        documents = [each for part in parts.values() for each in part.documents]
        back, trees = operations_of(documents, TREES, lambda keys: {})
        bare = {partition: part._replace(documents=()) for partition, part in parts.items()}
        index, now_ms = self.world.index, self.world.now_ms
        return index.load(self.fence, bare, judged, back, trees, now_ms)


class World:
    """One schedule."""

    def __init__(
        self, seed: int, store: Callable[[], MemoryIndexStore] = MemoryIndexStore
    ) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1
        self.trace: list[str] = []
        self.sources = {p: Source(p) for p in range(self.rng.randint(1, 3))}
        count = self.rng.randint(1, 9)
        spacing = self.rng.choice((0, 5, 20))
        self.bounds = KeptBounds(
            count, count + self.rng.choice((0, 4)), 200, spacing, self.rng.choice((0, 1000))
        )
        self.store = store()
        self.index = Index(self.store, SHAPE, self.now_ms, self.bounds)
        self.writers = [Writer("snapshots", self), Writer("batches", self)]
        self.ordered: dict[int, str] = {}
        self.queries: list[tuple[IndexSnapshot, list[list[tuple[bytes, bytes]]]]] = []
        self.last_lease = self.last_value = 0
        self.seen = self.index.newest
        self.built: dict[int, PartRead] = {}
        """What was read, some time ago, to take the place of everything."""

    # -- steps

    def run(self) -> None:
        for partition in self.sources:
            self.order(partition, "active")
        self.take_over()
        steps = [
            *[self.write] * 6, *[self.work] * 12, *[self.disturb] * 4, *[self.roll_back] * 3,
            self.take_over, self.move, self.clean, self.compact, self.open_again, self.look,
            self.look, self.look_away, self.build, self.build,
        ]  # fmt: skip
        for _ in range(self.rng.randint(20, 100)):
            self.now_ms += self.rng.randint(0, 20)
            self.run_step(self.rng.choice(steps))
            self.check()
        self.finish()

    def run_step(self, step: Callable[[], None]) -> None:
        step()

    def note(self, text: str) -> None:
        header = self.index.newest
        positions = {p: tuple(position) for p, position in header.positions.items()}
        self.trace.append(
            f"{text:<36} | commit {header.commit} roots {[r and r.number for r in header.roots]} "
            f"fence {header.fence} {dict(header.states)} {positions} void {header.void:b} "
            f"kept {[each.commit for each in self.index.kept]}"
        )

    def pick(self) -> int:
        return self.rng.choice(list(self.sources))

    def open_lease(self, partition: int) -> int:
        self.last_lease += 1
        self.sources[partition].leases.add(self.last_lease)
        return self.last_lease

    def write(self) -> None:
        partition, key = self.pick(), self.rng.randrange(KEYS)
        self.last_value += 1
        value = self.last_value if self.rng.random() < 0.7 else None
        self.sources[partition].history.append((key, value))
        self.note(f"p{partition}: {key} = {value} @{self.sources[partition].high_seqno}")

    def disturb(self) -> None:
        partition = self.pick()
        source = self.sources[partition]
        event = self.rng.choice(("fail-over", "leases lost", "purge"))
        if event == "fail-over":
            lowest = max(source.purge_seqno, source.high_seqno - 8)
            source.fail_over(self.rng.randint(lowest, source.high_seqno))
        elif event == "leases lost":
            source.leases.clear()
        elif not source.leases:
            source.purge_seqno = self.rng.randint(source.purge_seqno, source.high_seqno)
        self.note(f"p{partition}: {event} {source.log} purge {source.purge_seqno}")

    def take_over(self) -> None:
        writer = self.rng.choice(self.writers)
        writer.fence = self.index.take_over(writer.name, self.now_ms)
        self.note(f"{writer.name} takes over")

    def work(self) -> None:
        writer = self.rng.choice(self.writers)
        steps = [writer.plan, writer.read, writer.commit]
        for step in steps if self.rng.random() < 0.5 else [self.rng.choice(steps)]:
            step()
            self.note(f"{writer.name} {step.__name__} {[*writer.plans]}")

    def build(self) -> None:
        """Read everything, or put it into the place of what the index has."""
        if not self.built:
            for partition, source in self.sources.items():
                at = source.high_seqno
                end = Position(source.uuid, at, at, at)
                documents = source.read(0, at, at)
                if at and self.rng.random() < 0.9:
                    self.built[partition] = PartRead(
                        Position(), end, source.log, source.purge_seqno, documents
                    )
            return
        parts, self.built = self.built, {}
        judged = {partition: source.judged for partition, source in self.sources.items()}
        back, trees = operations_of(
            [each for part in parts.values() for each in part.documents], TREES, lambda keys: {}
        )
        bare = {partition: part._replace(documents=()) for partition, part in parts.items()}
        writer = self.rng.choice(self.writers)
        with contextlib.suppress(ConditionError):
            done = self.index.rebuild(writer.fence, bare, judged, back, trees, self.now_ms)
            self.note(f"{writer.name} builds {done}")

    def move(self) -> None:
        partition = self.pick()
        state = self.index.newest.states.get(partition)
        following = {None: "passive", "passive": "active", "active": "cleanup"}
        if state == "cleanup" and self.rng.random() < 0.5:  # wanted again before it is clean
            following["cleanup"] = "passive"
        if state in following:
            self.order(partition, following[state])

    def order(self, partition: int, state: str) -> None:
        ordered = self.ordered | {partition: state}
        wanted = {
            name: [p for p, each in ordered.items() if each == name]
            for name in ("active", "passive")
        }
        self.index.set_states(wanted["active"], wanted["passive"], self.now_ms)
        self.ordered = ordered
        self.note(f"p{partition}: ordered {state}")

    def roll_back(self) -> None:
        judged = {partition: source.judged for partition, source in self.sources.items()}
        done = self.index.roll_back(judged, self.now_ms)
        self.note(f"roll back: to {done.to_commit}, void {done.void}")

    def clean(self) -> None:
        is_done = self.index.clean_step(self.now_ms, self.rng.randint(1, 3))
        self.note(f"clean: done {is_done}")

    def compact(self) -> None:
        is_done = self.index.compact_step(self.rng.randint(1, 20))
        self.note(f"compact: done {is_done}")

    def open_again(self) -> None:
        """The process ends between two commits and starts again."""
        self.queries.clear()
        self.store = self.store.durable()
        self.index = Index(self.store, SHAPE, self.now_ms, self.bounds)
        self.note("opened again")

    def look(self) -> None:
        """A query begins; it lasts until it looks away."""
        snapshot = self.index.snapshot(self.now_ms)
        self.queries.append((snapshot, self.shown(snapshot)))
        self.note(f"query of commit {snapshot.header.commit}")

    def look_away(self) -> None:
        if self.queries:
            snapshot, _ = self.queries.pop(self.rng.randrange(len(self.queries)))
            snapshot.close()
            self.note(f"query of commit {snapshot.header.commit} ends")

    def shown(self, snapshot: IndexSnapshot) -> list[list[tuple[bytes, bytes]]]:
        """All rows, read from the store and not from a cache."""
        readers = [TreeReader(snapshot, root) for root in snapshot.header.roots]
        return [
            [row for leaf in reader.scan() for row in zip(leaf.keys, leaf.values, strict=True)]
            for reader in readers
        ]

    def finish(self) -> None:
        """Nothing happens any more: the index catches up, then the old roots are let go."""
        self.note("finish")
        writer = self.writers[0]
        for _ in range(12):
            self.roll_back()
            writer.fence = self.index.take_over(writer.name, self.now_ms)
            for step in (writer.plan, writer.read, writer.commit):
                step()
            self.check()
        for partition, position in self.index.newest.positions.items():
            source = self.sources[partition]
            is_accepted = source.rollback_seqno(position) is None
            if position.seqno != source.high_seqno or not is_accepted:
                raise Wrong(f"p{partition}: stuck at {position}, high {source.high_seqno}")
        self.bounds = KeptBounds(1, 1)
        self.open_again()
        self.index.take_over("nobody", self.now_ms)
        live = self.live(self.index.newest)
        if self.store.nodes.keys() != live:
            raise Wrong(f"nodes {sorted(self.store.nodes)} stored, live {sorted(live)}")

    # -- what must hold

    def live(self, header: Header) -> set[int]:
        return {number for root in header.roots for number in live_nodes(self.store, root)}

    def check(self) -> None:
        header = self.index.newest
        for kept in self.index.kept:
            self.check_kept(kept)
        self.check_queries()
        if header.fence < self.seen.fence or header.next_node < self.seen.next_node:
            raise Wrong("a fencing or node number went back")
        if header.commit < self.seen.commit:
            raise Wrong("a commit number went back")
        self.seen = header
        rows = self.rows(header)
        for partition in self.sources:
            state, ordered = header.states.get(partition), self.ordered.get(partition)
            if state != ordered and (state, ordered) != (None, "cleanup"):
                raise Wrong(f"p{partition}: state {state}, ordered {ordered}")
            if header.countable >> partition & 1:
                self.check_rows(partition, rows.get(partition, {}), header.positions[partition])
            elif state is None and partition in rows:
                raise Wrong(f"p{partition}: dropped, but has rows {rows[partition]}")

    def check_queries(self) -> None:
        for snapshot, rows in self.queries:
            try:
                found = self.shown(snapshot)
            except CorruptionError as error:
                raise Wrong(f"query of commit {snapshot.header.commit}: {error}") from error
            if found != rows:
                raise Wrong(f"query of commit {snapshot.header.commit} reads other rows now")

    def check_kept(self, kept: Header) -> None:
        try:
            nodes = self.live(kept)
            for root, reducer in zip(kept.roots, (NO_REDUCER, *SHAPE.reducers), strict=True):
                check(self.store, root, reducer)
        except Exception as error:
            raise Wrong(f"root of commit {kept.commit}: {error}") from error
        if kept.nodes != len(nodes):
            raise Wrong(f"commit {kept.commit} has {len(nodes)} nodes and says {kept.nodes}")

    def rows(self, header: Header) -> dict[int, dict[bytes, dict[tuple[int, bytes], bytes]]]:
        """Partition -> document -> (tree, encoded key) -> value; the back-index names the same."""
        found: dict[int, dict[bytes, dict[tuple[int, bytes], bytes]]] = {}
        for tree, root in enumerate(header.trees):
            for leaf in TreeReader(self.store, root).scan(None, None):
                for key, value, p in zip(leaf.keys, leaf.values, leaf.partitions, strict=True):
                    ekey, document = split_row_key(key)
                    found.setdefault(p, {}).setdefault(document, {})[tree, ekey] = value
        named: dict[int, dict[bytes, set[tuple[int, bytes]]]] = {}
        for leaf in TreeReader(self.store, header.back).scan(None, None):
            for key, value, p in zip(leaf.keys, leaf.values, leaf.partitions, strict=True):
                partition, document = split_back_key(key)
                assert partition == p
                entry = {(tree, ekey) for tree, ekeys in split_back_value(value) for ekey in ekeys}
                named.setdefault(p, {})[document] = entry
        for partition in self.sources:
            if header.countable >> partition & 1:
                right = {each: set(rows) for each, rows in found.get(partition, {}).items()}
                if named.get(partition, {}) != right:
                    raise Wrong(f"p{partition}: back-index {named.get(partition)}, rows {right}")
        return found

    def check_rows(
        self, partition: int, rows: dict[bytes, dict[tuple[int, bytes], bytes]], here: Position
    ) -> None:
        """Inside a snapshot, a document whose newest version is to come may be an older one."""
        source = self.sources[partition]
        newest = source.newest(here.uuid, here.snap_end) if here.uuid else {}
        for key in range(KEYS):
            row = rows.get(doc_id(partition, key), {})
            last, value = newest.get(key, (0, None))
            allowed = [value]
            if last > here.seqno:
                allowed = [
                    source.newest(here.uuid, at).get(key, (0, None))[1]
                    for at in range(here.snap_start, here.seqno + 1)
                ]
            if all(row != expected_rows(each) for each in allowed):
                raise Wrong(f"p{partition} {key}: {row} at {here}, right are values {allowed}")


def expected_rows(value: int | None) -> dict[tuple[int, bytes], bytes]:
    """The rows of a document as they are kept: of values that are no JSON by their bytes."""
    pairs: dict[tuple[int, bytes], list[tuple[bytes, bytes]]] = {}
    for tree, ekey, json_key, json_value in rows_of(value):
        pairs.setdefault((tree, ekey), []).append((json_key, json_value))
    return {
        place: row_value(sorted(each, key=lambda pair: pair[1])) for place, each in pairs.items()
    }
