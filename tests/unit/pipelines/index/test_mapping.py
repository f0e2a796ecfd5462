"""What a task makes of changes: files, failures, what it could not read."""

import io
import json
import os
from typing import ClassVar

import msgspec
import pytest

from millstream.errors import RoutingError, StreamError, UnavailableError
from millstream.model.lineage import born
from millstream.model.position import Position
from millstream.pipelines.change_stream.options import parse_options
from millstream.pipelines.index import mapping
from millstream.pipelines.index.mapping import MapSpec, run_task
from millstream.pipelines.index.planning import PartPlan
from millstream.pipelines.index.shard import IndexAddress
from millstream.views import register
from millstream.views.aio.sandbox.process import Sandbox
from millstream.views.core.design.design_documents import parse_design
from millstream.views.core.index import staged
from millstream.views.core.index.staged import BLOCK_BYTES, END, read_documents, read_rows
from millstream.wire.frames import deletion, described, mutation, snapshot_marker

DESIGN = {
    "_id": "_design/d",
    "language": "python",
    "engine": "spark",
    "views": {"v": {"map": "registered:test.kinds", "reduce": "_sum"}},
}
PLANS = [PartPlan(p, Position(), Position(5, 9, 9, 9), 1) for p in (0, 1)]


@register("test.kinds")
def kinds(document):
    if document["kind"] == "bad":
        raise ValueError("it is bad")
    yield document["kind"], document["_rev"].partition("-")[0]


def change(partition, seqno, key, kind):
    if kind is None:
        frame = deletion(partition, key, seqno, 2, seqno, 0)
    else:
        value = json.dumps({"kind": kind}).encode()
        frame = mutation(partition, key, value, seqno, 1, seqno, 0, 0, 0)
    return described(frame, born(3, seqno))


class Stream:
    """What a node sends, instead of one; `failure` comes after it."""

    chunks: ClassVar[list[bytes]] = []
    failure: ClassVar[Exception | None] = None

    def __init__(self, source, *, with_values, with_meta):
        assert with_values
        assert with_meta

    def stream(self, ranges):
        assert [each.lease_id for each in ranges] == [1, 1]
        yield from Stream.chunks
        if Stream.failure is not None:
            raise Stream.failure

    def close(self):
        pass


class Staged:
    """Keeps files instead of sending them."""

    files: ClassVar[dict[str, bytes]] = {}

    def __init__(self, address):
        pass

    def stage(self, fence, run, blocks):
        assert fence == 6
        Staged.files[run] = b"".join(blocks) + END


@pytest.fixture(autouse=True)
def doubles(monkeypatch):
    monkeypatch.setattr(mapping, "NodeRanges", Stream)
    monkeypatch.setattr(mapping, "IndexShard", Staged)
    Stream.chunks, Stream.failure, Staged.files = [], None, {}
    yield
    for mapper in mapping._mappers.values():
        mapper.close()
    mapping._mappers.clear()


def spec(*, is_first):
    return MapSpec(
        source=parse_options({"bucket": "b"}),
        address=IndexAddress(host="h", port=1, bucket="b", design="d"),
        bucket_uuid="ab" * 16,
        design=json.dumps(DESIGN).encode(),
        signature=parse_design(DESIGN).signature,
        fence=6,
        is_first=is_first,
    )


def rows_of(name):
    return [row for rows in read_rows(io.BytesIO(Staged.files[name]), name) for row in rows]


def documents_of(name):
    return [d for each in read_documents(io.BytesIO(Staged.files[name]), name) for d in each]


def test_rows_of_a_first_build_are_sorted_files():
    marker = snapshot_marker(0, 0, 0, 9, 1)
    Stream.chunks = [
        marker + change(0, 1, b"k1", "b") + change(1, 4, b"k4", "c"),
        change(0, 2, b"k2", "a") + change(0, 3, b"_design/x", "a"),
    ]
    done = run_task(spec(is_first=True), PLANS)
    ((tree,),) = done.trees
    (back,) = done.back
    assert [partition for _, partition, _ in rows_of(tree)] == [0, 0, 1]
    assert [key[2:] for key, _, _ in rows_of(back)] == [b"k1", b"k2", b"k4"]
    assert (done.changes, done.documents, done.failures, done.lost) == (4, [], {}, [])


def test_documents_of_a_later_commit_come_with_all_their_rows():
    Stream.chunks = [change(0, 1, b"k1", "b") + change(0, 2, b"k2", None)]
    done = run_task(spec(is_first=False), PLANS)
    (name,) = done.documents
    one, two = documents_of(name)
    assert (one.partition, one.doc_id, [row[2:] for row in one.rows]) == (
        0, b"k1", [(b'"b"', b'"1"')],
    )  # fmt: skip
    assert (two.doc_id, list(two.rows)) == (b"k2", [])
    assert (done.back, done.trees) == ([], [])


def test_no_changes_make_no_file():
    assert run_task(spec(is_first=False), PLANS).documents == []
    assert Staged.files == {}


@pytest.mark.parametrize("is_first", [True, False])
def test_failures_are_reported_by_partition(is_first):
    Stream.chunks = [b"".join(change(1, n, b"k%d" % n, "bad") for n in range(1, 26))]
    done = run_task(spec(is_first=is_first), PLANS)
    assert list(done.failures) == [1]
    failures = done.failures[1]
    assert (len(failures.last), failures.before) == (20, {0: 5})
    assert failures.last[-1][:2] == (0, "k25")


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    "failure", [StreamError("gone", code="lease_lost"), RoutingError("it moved")]
)
def test_incomplete_reads_are_reported(is_first, failure):
    Stream.chunks = [change(0, 1, b"k1", "b")]
    Stream.failure = failure
    done = run_task(spec(is_first=is_first), PLANS)
    assert done.lost == [0, 1]
    assert Staged.files == {}


def test_a_node_that_is_away_is_an_error():
    Stream.failure = UnavailableError("away")
    with pytest.raises(UnavailableError):
        run_task(spec(is_first=True), PLANS)


def test_a_try_again_stages_files_of_other_names():
    Stream.chunks = [change(0, 1, b"k1", "b")]
    names = [run_task(spec(is_first=False), PLANS).documents for _ in range(2)]
    assert names[0] != names[1]
    assert len(Staged.files) == 2


def test_many_changes_are_mapped_in_batches(monkeypatch):
    monkeypatch.setattr(mapping, "MAP_CHANGES", 10)
    Stream.chunks = [change(0, n, b"k%d" % n, "x") for n in range(1, 36)]
    done = run_task(spec(is_first=False), PLANS)
    assert len(documents_of(done.documents[0])) == done.changes == 35


def with_map(asked, **views):
    design = {**DESIGN, **views}
    return msgspec.structs.replace(
        asked, design=json.dumps(design).encode(), signature=parse_design(design).signature
    )


def test_javascript_runs_in_the_sandbox_of_the_node_and_is_kept_between_tasks():
    source = "function (doc) { if (doc.kind === 'bad') throw 'bad'; emit(doc.kind, doc._rev); }"
    asked = with_map(
        spec(is_first=True),
        language="javascript",
        views={"v": {"map": source, "reduce": "_count"}},
    )
    Stream.chunks = [change(0, 1, b"k1", "b") + change(0, 2, b"k2", "bad")]
    found = [run_task(asked, PLANS) for _ in range(2)]
    assert [len(rows_of(done.trees[0][0])) for done in found] == [1, 1]
    assert [done.failures[0].last[0].doc_id for done in found] == ["k2", "k2"]
    ((_, mapper),) = mapping._mappers.items()
    assert isinstance(mapper._mapper, Sandbox)
    assert mapper._mapper.process_id not in (None, os.getpid())
    assert mapper._mapper.restart_count == 0


@register("test.whole")
def whole(document):
    yield None, document


@pytest.mark.slow
@pytest.mark.parametrize("is_first", [True, False])
def test_values_of_any_size_make_blocks_that_a_node_takes(monkeypatch, is_first):
    """Whole documents are emitted; by their number alone they would be one block."""
    size = 1024 * 1024
    Stream.chunks = [change(0, n, b"k%02d" % n, "x" * size) for n in range(1, 25)]
    monkeypatch.setattr(staged, "BLOCK_BYTES_MAX", BLOCK_BYTES + size)
    batches = []
    mapped = mapping.IndexMapper.map

    def noted(self, changes):
        batches.append(len(changes.frames))
        return mapped(self, changes)

    monkeypatch.setattr(mapping.IndexMapper, "map", noted)
    asked = with_map(spec(is_first=is_first), views={"v": {"map": "registered:test.whole"}})
    done = run_task(asked, PLANS)
    assert batches == [8, 8, 8]
    if is_first:
        assert len(rows_of(done.trees[0][0])) == len(rows_of(done.back[0])) == 24
    else:
        assert len(documents_of(done.documents[0])) == 24
