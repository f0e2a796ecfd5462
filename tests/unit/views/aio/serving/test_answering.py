"""Answers of one snapshot: whole or in chunks, on time, and never leaving the snapshot open."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from typing import NamedTuple

import msgspec
import pytest

from millstream.errors import RoutingError, UnavailableError
from millstream.model.position import FailoverEntry, Position
from millstream.views.aio.serving import answering
from millstream.views.aio.serving.answering import AskedView, answer
from millstream.views.core.collation import encode_key
from millstream.views.core.index.commits import SNAPSHOT_MS_MAX
from millstream.views.core.index.header import DocumentRows, Judged, PartRead
from millstream.views.core.index.index import Index, IndexShape
from millstream.views.core.index.kept_roots import KeptBounds
from millstream.views.core.query.parameters import Query, parse_query
from millstream.views.core.query.partial_answers import Counts, End, Groups, PartCutter, Rows
from millstream.views.core.query.wait_for import Wanted, vector_from_json
from millstream.views.core.reduce.reductions import ViewReducer
from support.views.memory_index_store import MemoryIndexStore
from support.views.view_rows import Emit, ListReader, answer_of, groups_of, kept_rows

EMITS = [Emit(f"{n:05}", n % 4, [n % 3, n], n) for n in range(12)]
ACTIVE = 0b0111
POSITIONS = {p: Position(9, p, p, p) for p in range(4)}


class Root(NamedTuple):
    partitions: int


class Header(NamedTuple):
    signature: str = "s"
    positions: dict = POSITIONS
    void: int = 0
    trees: tuple = (Root(0b1111),)
    active: int = ACTIVE

    def vector(self, wanted):
        return repr([at for p, at in self.positions.items() if wanted >> p & 1]).encode()


class Slices:
    """A `ViewReducer` as `ListReader` calls it."""

    def __init__(self, reducer):
        self.reducer = reducer

    def reduce(self, values):
        return self.reducer.reduce([Leaf([b""] * len(values), values)])[0]


class Leaf(NamedTuple):
    keys: list
    values: list


class Snapshot:
    """Rows in memory, in partition 3 such as are not answered; may fail while it is read."""

    def __init__(self, emits=EMITS, fails_after=None, header=None):
        self.header = header or Header()
        self.is_closed = False
        self.threads = set()
        self._emits, self._fails_after = emits, fails_after

    def tree(self, number, reducer, kind, doubter):
        assert number == 0
        snapshot = self

        class Reader(ListReader):
            def scan(self, *args, **options):
                for at, leaf in enumerate(super().scan(*args, **options)):
                    assert not snapshot.is_closed
                    snapshot.threads.add(threading.current_thread())
                    if snapshot._fails_after == at:
                        raise UnavailableError("gone", code="snapshot_expired")
                    yield leaf

        return Reader(kept_rows(self._emits), leaf_size=5, reducer=Slices(reducer))

    def close(self):
        self.is_closed = True


REDUCER = ViewReducer(("_count", "_sum"))
PLAIN = AskedView(0, -1, REDUCER, 0, encode_key)
SUMMED = PLAIN._replace(reduce=1)


async def bytes_of(answered):
    if isinstance(answered.chunks, tuple):
        return b"".join(answered.chunks)
    return b"".join([chunk async for chunk in answered.chunks])


async def test_a_short_answer_is_made_at_once_and_closes_the_snapshot():
    snapshot = Snapshot()
    answered = await answer(snapshot, PLAIN, Query(limit=3))
    assert isinstance(answered.chunks, tuple)
    assert snapshot.is_closed
    expected = answer_of(EMITS, Query(limit=3), ACTIVE)
    assert msgspec.json.decode(b"".join(answered.chunks)) == expected


async def test_rows_of_partitions_that_are_not_active_are_left_out_in_a_thread():
    snapshot = Snapshot()
    found = msgspec.json.decode(await bytes_of(await answer(snapshot, PLAIN, Query())))
    assert found == answer_of(EMITS, Query(), ACTIVE)
    assert len(found["rows"]) == 9
    assert threading.current_thread() not in snapshot.threads
    plain = Snapshot(header=Header(trees=(Root(ACTIVE),)))
    await answer(plain, PLAIN, Query())
    assert plain.threads == {threading.current_thread()}


async def test_void_and_unrequested_partitions_are_left_out():
    snapshot = Snapshot(header=Header(void=0b0001))
    answered = await answer(snapshot, PLAIN, Query(), asked=0b0011)
    found = msgspec.json.decode(await bytes_of(answered))
    assert found == answer_of(EMITS, Query(), 0b0010)


async def test_groups():
    query = Query(group_level=1)
    found = msgspec.json.decode(await bytes_of(await answer(Snapshot(), SUMMED, query)))
    expected = groups_of(EMITS, query, ACTIVE)
    assert found == {"rows": [{"key": key, "value": value[0]} for key, value in expected]}


async def test_the_update_seq_is_the_vector_of_the_partitions_answered():
    answered = await answer(Snapshot(), SUMMED, Query(update_seq=True), asked=0b0110)
    found = msgspec.json.decode(await bytes_of(answered))
    assert vector_from_json(found["update_seq"]) == {
        1: Wanted(Position(9, 1, 1, 1)), 2: Wanted(Position(9, 2, 2, 2))
    }  # fmt: skip


async def test_a_long_answer_comes_in_chunks_and_its_end_closes_the_snapshot():
    emits = [Emit(f"{n:05}", 0, n, "x" * 5000) for n in range(40)]
    snapshot = Snapshot(emits, header=Header(trees=(Root(1),)))
    answered = await answer(snapshot, PLAIN, Query())
    assert not snapshot.is_closed
    assert not isinstance(answered.chunks, tuple)
    chunks = [chunk async for chunk in answered.chunks]
    assert len(chunks) > 3
    assert msgspec.json.decode(b"".join(chunks)) == answer_of(emits, Query())
    assert snapshot.is_closed


async def test_an_abandoned_answer_closes_the_snapshot():
    emits = [Emit(f"{n:05}", 0, n, "x" * 5000) for n in range(40)]
    snapshot = Snapshot(emits)
    answered = await answer(snapshot, PLAIN, Query())
    async with aclosing(answered.chunks) as chunks:
        await anext(chunks)
    assert snapshot.is_closed


async def test_an_answer_that_fails_midway_ends_with_the_error():
    emits = [Emit(f"{n:05}", 0, n, "x" * 5000) for n in range(60)]
    snapshot = Snapshot(emits, fails_after=10)
    answered = await answer(snapshot, PLAIN, Query())
    with pytest.raises(UnavailableError, match="gone"):
        await bytes_of(answered)
    assert snapshot.is_closed


@pytest.mark.parametrize(
    ("options", "asked", "error", "code"),
    [
        ({}, 0b1000, RoutingError, "not_my_partition"),
        ({}, None, UnavailableError, "snapshot_expired"),
    ],
)
async def test_a_failure_before_the_first_row_is_raised(options, asked, error, code):
    snapshot = Snapshot(fails_after=0)
    with pytest.raises(error) as caught:
        await answer(snapshot, PLAIN, parse_query(options), asked)
    assert caught.value.code == code
    assert snapshot.is_closed


async def test_parts_for_another_node():
    cutter = PartCutter()
    parts = await bytes_of(await answer(Snapshot(), PLAIN, Query(update_seq=True), form="part"))
    counts, *rows, end = cutter.receive(parts)
    assert isinstance(counts, Counts)
    assert (counts.signature, counts.total_rows, counts.offset, end) == ("s", 9, 0, End())
    assert counts.update_seq is not None
    assert sum(len(piece.keys) for piece in rows if isinstance(piece, Rows)) == 9
    parts = await bytes_of(await answer(Snapshot(), SUMMED, Query(group_level=1), form="part"))
    counts, groups, end = cutter.receive(parts)
    assert isinstance(groups, Groups)
    assert len(groups.groups) == 3


async def test_the_etag_changes_with_rows_and_query():
    async def etag(header=None, query=Query(), asked=None):  # noqa: B008
        return (await answer(Snapshot(header=header), PLAIN, query, asked)).head["etag"]

    first = await etag()
    assert await etag() == first
    moved = Header(positions={**POSITIONS, 1: Position(9, 7, 7, 7)})
    not_answered = Header(positions={**POSITIONS, 3: Position(9, 7, 7, 7)})
    assert await etag(not_answered) == first
    others = [await etag(moved), await etag(query=Query(limit=1)), await etag(asked=0b0011),
              await etag(Header(signature="t"))]  # fmt: skip
    assert len({first, *others}) == 5


async def test_rows_with_documents_have_no_etag():
    answered = await answer(Snapshot(), PLAIN, Query(include_docs=True))
    assert answered.head == {}


async def test_results_of_custom_reduces_have_no_etag():
    """It may have been an error of time: the next answer of the same commit is another one."""
    own = SUMMED._replace(is_own_reduce=True)
    assert (await answer(Snapshot(), own, Query())).head == {}
    assert "etag" in (await answer(Snapshot(), own, Query(reduce=False))).head
    assert "etag" in (await answer(Snapshot(), SUMMED, Query())).head


# ---- over a real index that changes meanwhile

LOG = (FailoverEntry(1, 0, 1),)
ROWS = 120


def closed(seqno):
    return Position(1, seqno, seqno, seqno)


class ChangingIndex:
    """An index of one view, published anew again and again; every version is recognisable."""

    def __init__(self):
        shape = IndexShape("s", "c", (REDUCER,), (("_count", "_sum"),))
        self.index = Index(MemoryIndexStore(), shape, 0, KeptBounds(2, 2))
        self.index.set_states([0, 1, 2], [3], 0)
        self.fence = self.index.take_over("test", 0)
        self.seqno = 0
        self.publish(0)

    def publish(self, now_ms):
        self.seqno += 1
        parts = {p: self._part(p) for p in range(4)}
        judged = {p: Judged(LOG, 10_000) for p in range(4)}
        assert self.index.publish(self.fence, parts, judged, now_ms).left_out == {}

    def _part(self, partition):
        value = b"%d" % self.seqno + b" " * 1500
        documents = [
            DocumentRows(partition, b"%04d" % n, ((0, encode_key(n), b"%d" % n, value),))
            for n in range(partition, ROWS, 4)
        ]
        begin = closed(self.seqno - 1) if self.seqno > 1 else Position()
        return PartRead(begin, closed(self.seqno), LOG, 0, documents)


async def test_a_long_answer_reads_one_commit():
    changing = ChangingIndex()
    answered = await answer(changing.index.snapshot(0), PLAIN, Query(update_seq=True))
    text = b""
    assert not isinstance(answered.chunks, tuple)
    async for chunk in answered.chunks:
        text += chunk
        for _ in range(4):
            changing.publish(1)
    found = msgspec.json.decode(text)
    assert [row["key"] for row in found["rows"]] == [n for n in range(ROWS) if n % 4 < 3]
    assert {row["value"] for row in found["rows"]} == {1}
    assert vector_from_json(found["update_seq"])[0] == Wanted(closed(1))
    assert changing.seqno > 10
    assert changing.index.snapshots_open == 0
    later = await bytes_of(await answer(changing.index.snapshot(1), PLAIN, Query(limit=1)))
    assert msgspec.json.decode(later)["rows"][0]["value"] == changing.seqno


async def test_an_answer_that_takes_longer_than_its_rows_are_kept_breaks_off_with_an_error():
    changing = ChangingIndex()
    answered = await answer(changing.index.snapshot(0), PLAIN, Query())
    changing.publish(SNAPSHOT_MS_MAX + 1)
    changing.index._commits.cache.clear()  # what is in memory stays good
    with pytest.raises(UnavailableError) as caught:
        await bytes_of(answered)
    assert caught.value.code == "snapshot_expired"
    assert changing.index.snapshots_open == 0


async def test_groups_of_a_real_index_leave_out_passive_partitions():
    changing = ChangingIndex()
    answered = await answer(changing.index.snapshot(0), SUMMED, Query())
    assert msgspec.json.decode(await bytes_of(answered)) == {
        "rows": [{"key": None, "value": ROWS * 3 // 4}]
    }
    with pytest.raises(RoutingError):
        await answer(changing.index.snapshot(0), SUMMED, Query(), asked=0b1000)
    assert changing.index.snapshots_open == 0


async def test_an_answer_yields_to_the_loop_while_it_finds_nothing(monkeypatch):
    monkeypatch.setattr(answering, "ANSWER_TURN_S_MAX", 0.0)
    snapshot = Snapshot(header=Header(trees=(Root(ACTIVE),)))
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.get_running_loop().create_task(others())
    await bytes_of(await answer(snapshot, PLAIN, Query(keys=tuple(range(100, 300)))))
    task.cancel()
    assert turns >= 200
