"""What executors make of changes is what the node makes of them: the same trees, the same errors.

One stream of changes, with values of every kind, goes through the node's own build and commit, and
through tasks, staged files and the commits of a writer outside.
"""

import asyncio
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.model.lineage import born
from millstream.model.position import FailoverEntry, Position, position_at, position_to_json
from millstream.pipelines.change_stream.options import parse_options
from millstream.pipelines.index import mapping
from millstream.pipelines.index.mapping import Failures, MapSpec, run_task
from millstream.pipelines.index.planning import PartPlan
from millstream.pipelines.index.shard import IndexAddress
from millstream.pipelines.index.writer import _bounded, _load, divided
from millstream.trees.core.reader import TreeReader
from millstream.views import register
from millstream.views.aio.indexing.first_rows import FirstRows
from millstream.views.aio.indexing.index_mapping import IndexMapper
from millstream.views.aio.indexing.served_index import Gathered, ServedIndex
from millstream.views.aio.indexing.staging import PART, Staging
from millstream.views.aio.serving.outside_writer import OutsideWriter
from millstream.views.core.design.design_documents import parse_design
from millstream.views.core.design.documents import Changes
from millstream.views.core.index.header import MAP_ERRORS_KEPT_MAX, Judged
from millstream.views.core.index.index import Index, IndexShape
from millstream.views.core.index.indexer import Part, Place
from millstream.views.core.index.staged import END
from millstream.wire.frames import deletion, described, mutation, snapshot_marker
from support.budget import budget
from support.views.memory_index_store import MemoryIndexStore

UUID = "0123456789abcdef0123456789abcdef"
PARTITIONS = (0, 1, 2)
LOG = (FailoverEntry(7, 0, 1),)
JAVASCRIPT = """function (doc) {
  if (doc.how === "throw") throw new Error("it is bad");
  if (doc.how === "none") return;
  if (doc.how === "long") emit("x".repeat(40000), null);
  for (let i = 0; doc.how === "many" && i < 300; i++) emit([doc.k, i % 200], i);
  emit(doc.k, doc._rev);
  if (doc.how === "twice") emit(doc.k, doc._attachments);
}"""
PYTHON = "registered:test.same_trees"


@register(PYTHON.partition(":")[2])
def python_map(doc):
    how, key = doc.get("how"), doc.get("k")
    if how == "throw":
        raise ValueError("it is bad")
    if how == "none":
        return
    if how == "long":
        yield "x" * 40000, None
    if how == "many":
        for i in range(300):
            yield [key, i % 200], i
    yield key, doc["_rev"]
    if how == "twice":
        yield key, doc.get("_attachments")


@register(PYTHON.partition(":")[2] + "_ids")
def python_ids(doc):
    yield doc["_id"], int(doc["_rev"].partition("-")[0])


def design_of(language, **options):
    views = {
        "a": {"map": JAVASCRIPT, "reduce": "_count"},
        "b": {"map": "function (doc) { emit(doc._id, parseInt(doc._rev)); }", "reduce": "_sum"},
    }
    if language == "python":
        views["a"]["map"], views["b"]["map"] = PYTHON, f"{PYTHON}_ids"
        views["b"]["options"] = {"collation": "raw"}
    return {"_id": "_design/d", "language": language, "views": views, "options": options}


DESIGNS = [
    design_of("javascript"),
    design_of("javascript", local_seq=True, include_design=True),
    design_of("python"),
]

LARGE = b"(a large document)"
"""Stands for one that would make a failing example unreadable."""
keys = st.one_of(
    st.sampled_from(
        [b"a", b"b", b"k_1", b'q"', b"_design/x", b"_local/x", b"\xff", b"a\0b", b"c d"]
    ),
    st.text(max_size=2).map(str.encode),
    st.binary(max_size=2),
)
members = st.fixed_dictionaries(
    {
        "k": st.none()
        | st.integers(-3, 3)
        | st.text(max_size=2)
        | st.lists(st.booleans(), max_size=2)
    },
    optional={"how": st.sampled_from(["throw", "none", "long", "many", "twice"])},
)
values = st.one_of(
    members.map(lambda each: json.dumps(each).encode()),
    members.map(lambda each: f" {json.dumps(each, ensure_ascii=False, indent=1)}\n".encode()),
    st.sampled_from(
        [
            None, b"", b"[]", b"7", b"no json", b'{"a":1', b'{"_x":1}', b'{"\\u005fx":1}',
            b'{"k":"\xff"}', b"{}", b" { } ", LARGE,
        ]
    ),
)  # fmt: skip


class Change(NamedTuple):
    key: bytes
    value: bytes | None
    rev: int


changes = st.lists(
    st.builds(Change, keys, values, st.integers(1, 12)),
    max_size=12,
    unique_by=lambda each: each.key,
)


class Stream(NamedTuple):
    """What is read of all partitions in one commit: frames by partition, and where they end."""

    frames: dict[int, list[bytes]]
    lineages: dict[int, list[bytes]]
    ends: dict[int, int]

    @classmethod
    def of(cls, some, start):
        frames = {p: [] for p in PARTITIONS}
        lineages = {p: [] for p in PARTITIONS}
        ends = dict(start)
        for key, value, rev in some:
            partition = crc32(key) % len(PARTITIONS)
            seqno = ends[partition] = ends[partition] + 1
            value = b'{"k":1,"large":"%b"}' % (b"y" * 200_000) if value == LARGE else value
            frame = (
                deletion(partition, key, seqno, rev, 5, 7)
                if value is None
                else mutation(partition, key, value, seqno, rev, 5, 0, 0, 0)
            )
            frames[partition].append(frame)
            lineages[partition].append(born(7, seqno << 40))
        return cls(frames, lineages, ends)

    def chunk(self, partitions):
        """As a node sends them, partitions mingled."""
        parts = [snapshot_marker(p, p, 0, 99, 1) for p in partitions]
        for at in range(max(map(len, self.frames.values()))):
            parts += [
                described(self.frames[p][at], self.lineages[p][at])
                for p in partitions
                if at < len(self.frames[p])
            ]
        return b"".join(parts)


def judged_at(ends):
    return {p: Judged(LOG, end) for p, end in ends.items()}


def place_at(seqno):
    return position_at(LOG, seqno, seqno, seqno) if seqno else Position()


def index_of(design, mapper):
    shape = IndexShape(
        design.signature, "c", tuple(mapper.reducers()), tuple(t.reduces for t in design.trees)
    )
    index = Index(MemoryIndexStore(), shape, 0)
    index.set_states(PARTITIONS, (), 0)
    return index


class ByNode:
    """The index as the index process of a node makes it."""

    def __init__(self, design, mapper, folder):
        self.index, self._folder, self._design = index_of(design, mapper), folder, design
        self._executor = ThreadPoolExecutor(1)
        self._served = ServedIndex(self.index, mapper, self._executor, is_automatic=True)

    async def build(self, stream):
        await self._served.begin(PARTITIONS, ())
        rows = FirstRows(len(self._design.trees), self._folder)
        for partition in PARTITIONS:
            await self._served.add_first(
                rows, Changes(stream.frames[partition], stream.lineages[partition])
            )
        places = {p: Place(place_at(end), LOG) for p, end in stream.ends.items()}
        await self._served.load(rows, places, (), judged_at(stream.ends))
        rows.close()

    async def bring_on(self, stream, start):
        parts = {
            p: Part(place_at(start[p]), place_at(end), LOG, stream.frames[p], stream.lineages[p])
            for p, end in stream.ends.items()
        }
        await self._served.publish(Gathered(parts, judged_at(stream.ends)))

    def close(self):
        self._executor.shutdown()


class ByTasks:
    """The index as a pipeline has it made: tasks, staged files, calls."""

    def __init__(self, design, content, mapper, folder):
        self.index, self._design, self._content = index_of(design, mapper), design, content
        self.staging = Staging(folder)
        self.judged = {}
        hosted = SimpleNamespace(
            index=self.index, design=design, signature=design.signature, staging=self.staging
        )
        self._calls = OutsideWriter(hosted, self)

    def is_meant_here(self, signature):
        return False

    async def change(self, signature, work):
        return work(self.judged)

    def check(self, signature):
        pass

    async def _run(self, stream, start, is_first):
        self.judged = judged_at(stream.ends)
        self._fence = (await self._calls.take_over("w"))["fence"]
        plans = [
            PartPlan(p, place_at(start[p]), place_at(end), 1)
            for p, end in stream.ends.items()
            if start[p] < end
        ]
        spec = MapSpec(
            source=parse_options({"bucket": "b"}),
            address=IndexAddress(host="h", port=1, bucket="b", design="d"),
            bucket_uuid=UUID,
            design=json.dumps(self._content).encode(),
            signature=self._design.signature,
            fence=self._fence,
            is_first=is_first,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mapping, "NodeRanges", lambda *_, **__: self._reader(stream))
            patch.setattr(mapping, "IndexShard", lambda _: SimpleNamespace(stage=self._stage))
            patch.setattr(mapping, "MAP_CHANGES", 3)
            done = [run_task(spec, task) for task in divided(plans, 2)]
        failures = _bounded({p: found for each in done for p, found in each.failures.items()})
        parts = {}
        for plan in plans:
            failed = failures.get(plan.partition, Failures())
            parts[str(plan.partition)] = {
                "start": position_to_json(plan.start),
                "end": position_to_json(plan.end),
                "failures": json.loads(json.dumps(failed.last)),
                "failures_before": failed.before,
            }
        return parts, done

    def _reader(self, stream):
        def read(ranges):
            yield stream.chunk([each.partition_id for each in ranges])

        return SimpleNamespace(stream=read, close=lambda: None)

    def _stage(self, fence, name, blocks):
        place = self.staging.place(fence, name)
        assert place.suffix == PART
        place.write_bytes(b"".join(blocks) + END)
        self.staging.finish(fence, name)

    async def build(self, stream):
        parts, done = await self._run(stream, dict.fromkeys(PARTITIONS, 0), True)
        if parts:
            await self._calls.load(self._fence, _load(parts, done, len(self._design.trees)))

    async def bring_on(self, stream, start):
        parts, done = await self._run(stream, start, False)
        names = [name for each in done for name in each.documents]
        if parts:
            await self._calls.publish(self._fence, {"parts": parts, "documents": names})


def seen(index):
    """All that an index says: rows, reductions, positions, what failed."""
    header = index.newest
    snapshot = index.snapshot(0)
    try:
        rows = [
            [
                row
                for leaf in TreeReader(snapshot, root).scan()
                for row in zip(leaf.keys, leaf.partitions, leaf.values, strict=True)
            ]
            for root in header.roots
        ]
    finally:
        snapshot.close()
    partials = [(root.count, root.partitions, root.partial) for root in header.roots if root]
    errors = {
        tree: (
            each.total,
            sorted(each.last) if each.total <= MAP_ERRORS_KEPT_MAX else len(each.last),
        )
        for tree, each in header.map_errors.items()
    }
    return rows, partials, header.positions, errors


@pytest.fixture(scope="module", params=range(len(DESIGNS)), ids=["plain", "options", "python"])
def kind(request):
    design = parse_design(DESIGNS[request.param], "d")
    mapper = IndexMapper(design, UUID)
    yield {**DESIGNS[request.param], "engine": "spark"}, design, mapper
    mapper.close()
    for each in mapping._mappers.values():
        each.close()
    mapping._mappers.clear()


@settings(max_examples=budget(15), deadline=None)
@given(first=changes, later=st.lists(changes, max_size=2))
def test_tasks_make_the_trees_that_the_node_makes(kind, first, later):
    content, design, mapper = kind

    async def both():
        start = dict.fromkeys(PARTITIONS, 0)
        with tempfile.TemporaryDirectory() as folder:
            tasks = ByTasks(parse_design(content, "d"), content, mapper, Path(folder))
            node = ByNode(design, mapper, Path(folder))
            stream = Stream.of(first, start)
            try:
                for each in (node, tasks):
                    await each.build(stream)
                assert seen(tasks.index) == seen(node.index)
                for some in later:
                    start, stream = stream.ends, Stream.of(some, stream.ends)
                    for each in (node, tasks):
                        await each.bring_on(stream, start)
                    assert seen(tasks.index) == seen(node.index)
            finally:
                node.close()

    asyncio.run(both())
