"""A whole view engine in one process: sources, real maps, a real index over a store in memory, and
queries whose answers are compared with what the documents give.

Sources are those of `index_world`: documents change, partitions fail over and lose what was
written last, old deletions are forgotten. Two writers read whole snapshots, and fence each other
off. The store is killed or full before any effect that is chosen.

Elsewhere: who decides what happens next (`crash/test_views_machine.py`).
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from millstream.errors import ConditionError, UnavailableError
from millstream.model.lineage import born
from millstream.model.position import Position
from millstream.views.aio.indexing.first_rows import FirstRows
from millstream.views.aio.indexing.index_mapping import IndexMapper, MappedChanges
from millstream.views.aio.serving.answering import AskedView, answer
from millstream.views.core.collation import COLLATION_VERSION, encode_key, encoder_of
from millstream.views.core.design.design_documents import COUNT, parse_design
from millstream.views.core.design.documents import Changes
from millstream.views.core.design.registered import register
from millstream.views.core.index.commits import IndexSnapshot
from millstream.views.core.index.header import DocumentRows, Header, PartRead, members_of
from millstream.views.core.index.index import Index, IndexShape
from millstream.views.core.index.kept_roots import KeptBounds
from millstream.views.core.query.parameters import Query
from millstream.wire.frames import deletion, mutation
from simulators.index_world import Source, Writer, doc_id
from support.views.memory_index_store import Crash, MemoryIndexStore
from support.views.view_rows import Emit, answer_of, cut

Done = TypeVar("Done")
KEYS = 30
LONG = "-" * 300
KEY_VALUES: tuple[Any, ...] = (
    None, False, 0, 1, 2, "a", "B", LONG, [], ["g", 0, LONG], ["g", 1, LONG], ["h", 2], {"a": 1},
)  # fmt: skip


@register("tests.simulated_views.first")
def first(document: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Nothing, one row, several, or twice the same key; now and then it fails half-way."""
    n = document["n"]
    for turn in range(n % 4):
        yield KEY_VALUES[(n + turn // 2 * 5) % len(KEY_VALUES)], n + turn
    if n % 11 == 0:
        raise ValueError("this one is bad")


@register("tests.simulated_views.second")
def second(document: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    if document["n"] % 2:
        yield [document["n"] % 3, document["_id"]], f"{document['n']:06}{LONG}"


@register("tests.simulated_views.largest")
def largest(_keys: Any, values: list[Any], _rereduce: bool) -> Any:
    return max(values)


def stats(_keys: Any, values: list[Any], _rereduce: bool) -> Any:
    squares = sum(value * value for value in values)
    return {
        "sum": sum(values), "count": len(values), "min": min(values), "max": max(values),
        "sumsqr": squares,
    }  # fmt: skip


DESIGN = parse_design(
    {
        "language": "python",
        "views": {
            "stats": {"map": "registered:tests.simulated_views.first", "reduce": "_stats"},
            "sum": {"map": "registered:tests.simulated_views.first", "reduce": "_sum"},
            "plain": {"map": "registered:tests.simulated_views.first"},
            "largest": {
                "map": "registered:tests.simulated_views.second",
                "reduce": "registered:tests.simulated_views.largest",
            },
        },
    },
    "simulated",
)
MAPS = {"stats": first, "sum": first, "plain": first, "largest": second}
FOLDS: dict[str, Callable[[Any, list[Any], bool], Any]] = {
    "stats": stats, "sum": lambda _keys, values, _: sum(values), "largest": largest,
}  # fmt: skip
VIEWS = tuple(MAPS)


class MappedSource(Source):
    """A source whose changes go through the real maps."""

    def __init__(self, partition: int, mapper: IndexMapper) -> None:
        super().__init__(partition)
        self._mapper = mapper

    def read(self, start: int, end: int, at: int) -> list[DocumentRows]:
        frames, lineages = [], []
        branch = self.log[0].branch
        for key, (seqno, n) in self.newest(self.uuid, at).items():
            if not start < seqno <= end or (n is None and seqno <= self.purge_seqno):
                continue
            name = doc_id(self.partition, key)
            value = msgspec.json.encode({"n": n})
            frames.append(
                deletion(self.partition, name, seqno, 1, seqno, 0)
                if n is None
                else mutation(self.partition, name, value, seqno, 1, seqno, 0, 0, 1)
            )
            lineages.append(born(branch, seqno))
        return list(self._mapper.map(Changes(frames, lineages)).documents) if frames else []


class Held(NamedTuple):
    """A snapshot that is read later, and what it must answer from."""

    snapshot: IndexSnapshot
    opened_ms: int
    emits: dict[str, list[Emit]]


class SimulatedViews:
    """One engine. `rng` decides what nobody chose."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1
        self.loop = asyncio.new_event_loop()
        self.mapper = IndexMapper(DESIGN, "00" * 16)
        self.sources = {p: MappedSource(p, self.mapper) for p in range(self.rng.randint(1, 3))}
        count = self.rng.randint(1, 9)
        self.bounds = KeptBounds(
            count, count + self.rng.choice((0, 4)), 200, self.rng.choice((0, 20)),
            self.rng.choice((0, 1000)),
        )  # fmt: skip
        self.shape = IndexShape(
            DESIGN.signature, COLLATION_VERSION, tuple(self.mapper.reducers()),
            tuple(tree.reduces for tree in DESIGN.trees),
        )  # fmt: skip
        self._effects_left = -1
        self._fault: Exception = Crash()
        self.store = MemoryIndexStore(self._before)
        self.index = self._opened()
        self.writers = [Writer("snapshots", self), Writer("snapshots", self)]  # type: ignore[arg-type]
        self.held: list[Held] = []
        self.ordered: dict[int, str] = {}
        self.last_lease = self.last_value = 0
        for partition in self.sources:
            self.order(partition, "active")
        self.take_over(0)

    def close(self) -> None:
        self.loop.close()
        self.mapper.close()

    # -- faults

    def _before(self, _kind: str) -> None:
        if self._effects_left == 0:
            self._effects_left = -1
            raise self._fault
        self._effects_left -= self._effects_left > 0

    def arm(self, effects: int, *, is_full: bool) -> None:
        """Let an effect of the store fail, or the process be killed before it."""
        full = UnavailableError("no space", code="disk_full")
        self._effects_left, self._fault = effects, full if is_full else Crash()

    def attempt(self, work: Callable[[], Done]) -> Done | None:
        try:
            return work()
        except Crash:
            self.open_again()
        except UnavailableError as error:
            if error.code != "disk_full":
                raise
        return None

    def open_again(self) -> None:
        self.held.clear()
        self._effects_left = -1
        self.store = self.store.durable()
        self.store.before = self._before
        self.index = self._opened()

    def _opened(self) -> Index:
        return Index(self.store, self.shape, self.now_ms, self.bounds)

    # -- sources

    def write(self, p: int, key: int, *, is_put: bool) -> None:
        self.last_value += 1
        self.source(p).history.append((key % KEYS, self.last_value if is_put else None))

    def fail_over(self, p: int, back: int) -> None:
        source = self.source(p)
        source.fail_over(max(source.purge_seqno, source.high_seqno - back))

    def purge(self, p: int, back: int) -> None:
        source = self.source(p)
        source.leases.clear()
        source.purge_seqno = max(source.purge_seqno, source.high_seqno - back)

    def source(self, p: int) -> MappedSource:
        return self.sources[p % len(self.sources)]

    def open_lease(self, partition: int) -> int:
        self.last_lease += 1
        self.sources[partition].leases.add(self.last_lease)
        return self.last_lease

    # -- the index

    def take_over(self, n: int) -> None:
        writer = self.writers[n]
        writer.fence = self.index.take_over(f"writer {n}", self.now_ms)

    def work(self, n: int, steps: Iterable[str]) -> None:
        for step in steps:
            getattr(self.writers[n], step)()

    def roll_back(self) -> None:
        self.index.roll_back({p: source.judged for p, source in self.sources.items()}, self.now_ms)

    def order(self, p: int, state: str) -> None:
        self.ordered[self.source(p).partition] = state
        active, passive = (
            [p for p, ordered in self.ordered.items() if ordered == name]
            for name in ("active", "passive")
        )
        self.index.set_states(active, passive, self.now_ms)

    def first_build(self, n: int) -> None:
        """Build an index that has nothing from sorted runs."""
        header = self.index.newest
        if any(header.roots) or any(position.seqno for position in header.positions.values()):
            return
        self.build(n, self.index.load)

    def rebuild(self, n: int) -> None:
        """Build it anew from sorted runs, in the place of what is there."""
        self.build(n, self.index.rebuild)

    def build(self, n: int, load: Callable[..., object]) -> None:
        header = self.index.newest
        parts: dict[int, PartRead] = {}
        with tempfile.TemporaryDirectory() as folder:
            rows = FirstRows(len(DESIGN.trees), Path(folder))
            for p in header.positions:
                source = self.sources[p]
                at = source.high_seqno
                if not at:
                    continue
                rows.add(MappedChanges(source.read(0, at, at), ()))
                end = Position(source.uuid, at, at, at)
                parts[p] = PartRead(Position(), end, source.log, source.purge_seqno)
            back, trees = rows.sorted_rows((), lambda: None)
            judged = {p: source.judged for p, source in self.sources.items()}
            try:
                load(self.writers[n].fence, parts, judged, back, trees, self.now_ms)
            except ConditionError:
                pass
            finally:
                rows.close()

    def catch_up(self) -> None:
        """Bring the index to the end of all sources, as for a query that waits for it."""
        self._effects_left = -1
        self.roll_back()
        self.take_over(0)
        writer = self.writers[0]
        planned = {p: writer.planned(p, at) for p, at in self.index.newest.positions.items()}
        writer.plans = {p: plan for p, plan in planned.items() if plan is not None}
        self.work(0, ("read", "commit"))

    # -- queries

    def emits(self, view: str, header: Header, *, is_now: bool = False) -> list[Emit]:
        """What the documents give: those at the header's positions, or those there are now."""
        found = []
        for partition in members_of(header.bitmap("active") & (~0 if is_now else ~header.void)):
            source, here = self.sources[partition], header.positions[partition]
            uuid, at = (source.uuid, source.high_seqno) if is_now else (here.uuid, here.seqno)
            assert is_now or here.is_closed
            for key, (_, n) in (source.newest(uuid, at) if uuid else {}).items():
                name = doc_id(partition, key).decode()
                try:
                    pairs = [] if n is None else list(MAPS[view]({"_id": name, "n": n}))
                except ValueError:
                    pairs = []
                found += [Emit(name, partition, key, value) for key, value in pairs]
        return found

    def asked(self, view: str) -> AskedView:
        of = DESIGN.views[DESIGN.number_of(view)]
        tree = DESIGN.trees[of.tree]
        return AskedView(
            of.tree, of.number, self.shape.reducers[of.tree], tree.reduces.index(COUNT),  # type: ignore[arg-type]
            encoder_of(tree.collation), of.has_own_reduce,
        )  # fmt: skip

    def query(self, view: str, query: Query, asked: int | None = None) -> None:
        """Ask the newest commit, and compare."""
        header = self.index.newest
        self._compare(
            self.index.snapshot(self.now_ms), view, query, asked, self.emits(view, header)
        )

    def hold(self) -> None:
        snapshot = self.index.snapshot(self.now_ms)
        emits = {view: self.emits(view, snapshot.header) for view in VIEWS}
        self.held.append(Held(snapshot, self.now_ms, emits))

    def query_held(self, n: int, view: str, query: Query) -> None:
        """A snapshot answers as when it was opened, whatever was committed since."""
        held = self.held.pop(n % len(self.held))
        self._compare(held.snapshot, view, query, None, held.emits[view])

    def _compare(
        self,
        snapshot: IndexSnapshot,
        view: str,
        query: Query,
        asked: int | None,
        emits: list[Emit],
    ) -> None:
        active = snapshot.header.bitmap("active")
        found = self.loop.run_until_complete(
            self._answer(snapshot, view, query, None if asked is None else asked & active)
        )
        expected = _expected(view, emits, query, asked)
        assert found == expected, (view, query, asked, found, expected)

    async def _answer(
        self, snapshot: IndexSnapshot, view: str, query: Query, asked: int | None
    ) -> Any:
        answered = await answer(snapshot, self.asked(view), query, asked)
        if isinstance(answered.chunks, tuple):
            return msgspec.json.decode(b"".join(answered.chunks))
        return msgspec.json.decode(b"".join([chunk async for chunk in answered.chunks]))

    def check(self) -> None:
        """Every view, whole."""
        for view in VIEWS:
            self.query(view, Query(reduce=False) if view != "plain" else Query())
            if view in FOLDS:
                self.query(view, Query())
        self.query("plain", Query(endkey="a", inclusive_end=False))

    def finish(self) -> None:
        """Once nothing happens any more, views are those of the documents there are."""
        for _ in range(3):  # one that is fenced off, or reads a lost history, reads again
            self.catch_up()
        header = self.index.newest
        for view in VIEWS:
            assert self.emits(view, header) == self.emits(view, header, is_now=True), header
        while not self.index.clean_step(self.now_ms):
            pass
        self.check()


def _expected(view: str, emits: list[Emit], query: Query, asked: int | None) -> dict[str, Any]:
    if not query.is_reduced(view in FOLDS):
        return answer_of(emits, query, asked)
    singles = [query] if query.keys is None else [
        replace(query, keys=None, key=key) for key in query.keys
    ]  # fmt: skip
    groups = []
    for single in singles:
        plain = replace(single, reduce=False, group=None, group_level=None, skip=0, limit=None)
        rows = answer_of(emits, plain, asked)["rows"]
        for _, same in groupby(rows, key=lambda row: encode_key(cut(row["key"], query.level))):
            found = list(same)
            folded = FOLDS[view](None, [row["value"] for row in found], False)
            groups.append({"key": cut(found[0]["key"], query.level), "value": folded})
    return {"rows": groups[query.skip :][: query.limit]}
