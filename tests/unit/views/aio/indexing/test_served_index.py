"""One index: one thing at a time, in a thread, finished once begun."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream.errors import UnavailableError
from millstream.model.position import FailoverEntry, Position
from millstream.trees.core.shapes import NO_REDUCER
from millstream.views.aio.indexing.first_rows import FirstRows
from millstream.views.aio.indexing.index_mapping import MappedChanges
from millstream.views.aio.indexing.served_index import Gathered, ServedIndex
from millstream.views.core.index.header import (
    MAP_ERRORS_KEPT_MAX,
    DocumentRows,
    Judged,
    MapFailure,
)
from millstream.views.core.index.index import Index, IndexShape
from millstream.views.core.index.indexer import Part, Place
from millstream.wire.frames import deletion, mutation
from support.views.indexed_bucket import TestMapper
from support.views.memory_index_store import MemoryIndexStore

LOG = (FailoverEntry(0xA, 0, 1),)
JUDGED = Judged(LOG, 100)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


def an_index() -> Index:
    return Index(MemoryIndexStore(), IndexShape("one", "test", (NO_REDUCER,), ((),)), 0)


def served_of(executor: ThreadPoolExecutor, index: Index | None = None) -> ServedIndex:
    return ServedIndex(index or an_index(), TestMapper(), executor, is_automatic=True)


def part(*frames: bytes, start: Position = Position(), end: int) -> Part:  # noqa: B008
    return Part(start, Position(0xA, end, end, end), LOG, list(frames), [b""] * len(frames))


def put(seqno: int, key: bytes, value: bytes, partition: int = 0) -> bytes:
    return mutation(partition, key, value, seqno, seqno, seqno, 0, 0, 1)


def rows_of(index: Index) -> list[bytes]:
    with index.snapshot(0) as snapshot:
        return [key for leaf in snapshot.tree(0).scan(None, None) for key in leaf.keys]


async def test_parts_are_published_with_their_failures(
    executor: ThreadPoolExecutor,
) -> None:
    served = served_of(executor)
    assert served.is_new
    await served.begin([0, 1], [])
    parts = {
        0: part(put(1, b"a", b'{"k":[1,2]}'), put(2, b"b", b'{"k":"bad"}'), end=2),
        1: part(put(1, b"c", b'{"k":[3]}', 1), deletion(1, b"d", 2, 2, 2, 0), end=2),
    }
    published = await served.publish(Gathered(parts, {0: JUDGED, 1: JUDGED}))

    assert published is not None
    assert published.partitions == (0, 1)
    assert len(rows_of(served.index)) == 3
    assert served.index.newest.map_errors[0].last == (("b", "it is bad"),)
    assert not served.is_new
    assert served.places[0] == Place(Position(0xA, 2, 2, 2), LOG)

    # What it has is not mapped again.
    mapper = served.mapper
    assert isinstance(mapper, TestMapper)
    mapper.calls.clear()
    assert await served.publish(Gathered(parts, {0: JUDGED, 1: JUDGED})) is None
    more = part(put(3, b"a", b'{"k":[]}'), start=Position(0xA, 2, 2, 2), end=3)
    await served.publish(Gathered({**parts, 0: more}, {0: JUDGED, 1: JUDGED}))
    assert mapper.calls == [1]
    assert len(rows_of(served.index)) == 1


async def test_a_refused_position_goes_back(executor: ThreadPoolExecutor) -> None:
    served = served_of(executor)
    await served.begin([0], [])
    await served.publish(Gathered({0: part(put(1, b"a", b'{"k":[1]}'), end=1)}, {0: JUDGED}))
    assert not await served.roll_back({0: JUDGED})
    changed = served.changed

    assert await served.roll_back({0: Judged((FailoverEntry(0xB, 0, 2),), 100)})
    assert served.places[0].position == Position()
    assert changed.is_set()
    assert changed is not served.changed


async def test_started_work_is_finished_first(
    executor: ThreadPoolExecutor,
) -> None:
    served = served_of(executor)
    began, go_on, order = threading.Event(), threading.Event(), []

    def slow() -> None:
        began.set()
        go_on.wait(60)
        order.append("slow")

    changed = served.changed
    first = asyncio.ensure_future(served._in_thread(slow))
    await asyncio.to_thread(began.wait, 10)
    second = asyncio.ensure_future(served._in_thread(lambda: order.append("second")))
    for _ in range(3):
        first.cancel()
        await asyncio.sleep(0.01)
        assert not first.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert changed.is_set()  # a commit may have been made: who waits looks
    await second
    assert order == ["slow", "second"]


async def test_a_first_build_loads_rows_of_complete_partitions(
    executor: ThreadPoolExecutor, tmp_path: Path
) -> None:
    served = served_of(executor)
    await served.begin([0, 1], [])
    rows = FirstRows(1, tmp_path)
    for partition in (0, 1):
        rows.add(
            MappedChanges(
                [
                    DocumentRows(partition, b"d%d" % n, [(0, b"%d\1" % n, b"1", b"2")])
                    for n in range(50)
                ],
                [],
            )
        )
    place = Place(Position(0xA, 60, 60, 60), LOG)
    await served.load(rows, {0: place}, {1}, {0: JUDGED, 1: JUDGED})
    rows.close()

    assert len(rows_of(served.index)) == 50
    assert served.places[0] == place
    assert served.places[1] == Place()
    assert not served.is_new


async def test_failures_of_a_first_build_are_counted_and_the_last_are_kept(
    executor: ThreadPoolExecutor, tmp_path: Path
) -> None:
    served = served_of(executor)
    await served.begin([0], [])
    rows = FirstRows(1, tmp_path)
    for n in range(100):
        rows.add(MappedChanges([], [(0, MapFailure(0, f"d{n}", "it is bad"))]))
    assert len(rows.failures_of(0)[0]) == MAP_ERRORS_KEPT_MAX
    await served.load(rows, {0: Place(Position(0xA, 100, 100, 100), LOG)}, (), {0: JUDGED})
    rows.close()

    errors = served.index.newest.map_errors[0]
    assert errors.total == 100
    assert [doc_id for doc_id, _ in errors.last] == [f"d{n}" for n in range(80, 100)]


async def test_a_load_ends_with_its_index(executor: ThreadPoolExecutor, tmp_path: Path) -> None:
    served = served_of(executor)
    await served.begin([0], [])
    rows = FirstRows(1, tmp_path)
    rows.add(MappedChanges([DocumentRows(0, b"d", [(0, b"\1", b"1", b"2")])], []))
    served.is_stopping = True
    with pytest.raises(UnavailableError, match="given up"):
        await served.load(rows, {0: Place(Position(0xA, 1, 1, 1), LOG)}, (), {0: JUDGED})
    assert served.is_new
    rows.close()


def test_the_rate_covers_the_last_seconds(
    executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    served = served_of(executor)
    assert served.rate(0) == 0
    now = 110.0
    assert served.rate(1000) == 100
    now = 111.0
    assert served.rate(5000) == 100
    now = 120.0
    assert served.rate(3000) == 200
    now = 121.0
    assert served.rate(10) == 0  # it went back
