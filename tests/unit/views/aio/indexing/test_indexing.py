"""Indexes of a real node's bucket: built, kept fresh, gone back, together and alone."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import (
    ConditionError,
    RoutingError,
    StreamError,
    UnavailableError,
    UsageError,
)
from millstream.model.cluster_maps import DataRecord, MapKey
from millstream.model.partitions import PartitionState
from millstream.model.position import Position
from millstream.views.aio.indexing import cleaning, indexing, reading
from millstream.views.aio.indexing import served_index as served_module
from millstream.views.aio.indexing.index_mapping import MappedChanges
from millstream.views.core.design.documents import Changes
from millstream.views.core.index import indexer
from millstream.views.core.index.index import Index as IndexClass
from millstream.views.core.index.index import Published
from millstream.views.core.query.wait_for import Wanted
from support.views.indexed_bucket import BUCKET, PARTITIONS, IndexedBucket


@pytest.fixture
async def bucket(tmp_path: Path) -> AsyncIterator[IndexedBucket]:
    async with IndexedBucket(tmp_path) as bucket:
        yield bucket


def some(count: int, begin: int = 0) -> dict[str, object]:
    return {f"d{n:05d}": [n % 97, n % 7] for n in range(begin, begin + count)}


async def test_first_build_then_changes(bucket: IndexedBucket) -> None:
    await bucket.put(some(3000))
    await bucket.add()
    await bucket.updated()
    bucket.check()
    assert bucket.indexes["one"].newest.commit <= 4

    await bucket.put(some(100, 2950))
    await bucket.put({"d00001": [], "d00002": [5, 5, 5], "d00003": "bad"})
    await bucket.remove(["d00010", "d00011"])
    await bucket.updated()
    bucket.check()
    errors = bucket.indexes["one"].newest.map_errors[0]
    assert (errors.total, errors.last) == (1, (("d00003", "it is bad"),))


async def test_an_isolated_source_does_not_count_as_current(bucket: IndexedBucket) -> None:
    await bucket.put(some(10))
    await bucket.add()
    await bucket.updated()
    source = bucket.node.bucket(BUCKET)
    record = DataRecord(MapKey(2, 1), "a", 1, (("a", "b"),))
    source.manage("a", lambda _: record)
    with pytest.raises(UnavailableError) as caught:
        await bucket.updated()
    assert caught.value.code == "isolated"
    source.set_right(2**62, is_admitted=True)
    await bucket.updated()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - headers tell nobody
            await asyncio.sleep(0.005)


async def test_an_automatic_index_is_updated_without_queries(
    bucket: IndexedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer, "COMMIT_S", 0.01)
    await bucket.add()
    await bucket.put(some(50))
    await until(lambda: len(bucket.rows()) == 100)
    await bucket.remove(["d00007"])
    await until(lambda: len(bucket.rows()) == 98)
    bucket.check()
    assert bucket.indexer.progress()[0].phase == "incremental"


async def test_an_index_without_automatic_updates_sleeps_until_a_query(
    bucket: IndexedBucket,
) -> None:
    await bucket.put(some(20))
    await bucket.add(is_automatic=False)
    assert bucket.indexer.progress()[0].phase == "asleep"
    assert bucket.rows() == []

    await bucket.updated()
    bucket.check()
    await until(lambda: bucket.indexer.progress()[0].phase == "asleep")

    await bucket.put(some(20, 10))
    assert bucket.rows() != bucket.right_rows()
    await bucket.updated()
    bucket.check()


async def test_indexes_are_built_together_and_share_their_stream(bucket: IndexedBucket) -> None:
    await bucket.put(some(500))
    await bucket.add("one")
    await bucket.updated("one")
    await bucket.put(some(500, 300))
    await bucket.add("two")
    await bucket.add("three")
    for signature in ("two", "three", "one"):
        await bucket.updated(signature)
        bucket.check(signature)
    await until(lambda: len({each.group for each in served(bucket)}) == 1)
    commits = bucket.indexes["two"].newest.commit

    await bucket.put(some(10))
    for signature in ("one", "two", "three"):
        await bucket.updated(signature)
        bucket.check(signature)
    assert bucket.indexes["two"].newest.commit > commits
    # What came was put together once for all: documents are made of the same object.
    assert bucket.mappers["one"].given[-1] is bucket.mappers["three"].given[-1]
    assert bucket.mappers["two"].given[0] is bucket.mappers["three"].given[0]


def served(bucket: IndexedBucket) -> list[indexing.ServedIndex]:
    return list(bucket.indexer._indexes.values())


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How indexes were loaded; each that lacks 200 changes may be built anew."""
    found: list[str] = []
    for name in ("load", "rebuild"):
        make = getattr(IndexClass, name)

        def noted(self: object, *arguments: Any, make: Any = make, name: str = name) -> Any:
            found.append(name)
            return make(self, *arguments)

        monkeypatch.setattr(IndexClass, name, noted)
    monkeypatch.setattr(indexer, "BUILD_CHANGES_MIN", 200)
    monkeypatch.setattr(indexing, "LOOK_S", 0.02)
    return found


async def asleep(bucket: IndexedBucket) -> None:
    """Have an index read for only when somebody waits."""
    bucket.indexer.set_automatic("one", False)
    await until(lambda: not bucket.indexer._groups)


async def test_an_index_of_an_empty_bucket_is_built_when_much_has_come(
    bucket: IndexedBucket, loads: list[str]
) -> None:
    await bucket.add()
    await until(lambda: loads == ["load"])
    await asleep(bucket)
    loads.clear()
    await bucket.put(some(600))
    await bucket.updated()
    bucket.check()
    assert loads == ["load"]
    await bucket.put(some(10, 595))
    await bucket.updated()
    bucket.check()
    assert loads == ["load"], "few changes are brought in as ever"


async def test_an_index_that_falls_far_behind_is_built_anew(
    bucket: IndexedBucket, loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await bucket.put(some(60))
    await bucket.add("one")
    await bucket.add("two")
    await bucket.updated("one")
    await bucket.updated("two")
    await until(lambda: len({each.group for each in served(bucket)} - {""}) == 1)
    loads.clear()
    # As if each change took its time: nothing of it is committed.
    monkeypatch.setattr(indexer.Feed, "due_in", lambda *_, **__: None)
    await bucket.remove(["d00001", "d00002"])
    await bucket.put(some(500, 50))
    for name in ("one", "two"):
        await bucket.updated(name)
        bucket.check(name)
    assert loads == ["rebuild"] * 2
    assert [sum(bucket.mappers[name].calls[-1:]) > 0 for name in ("one", "two")] == [True, True]
    monkeypatch.undo()
    await bucket.put(some(30, 540))
    await bucket.remove(["d00003"])
    await bucket.updated("one")
    bucket.check("one")


async def test_a_failing_rebuild_is_not_retried_for_ever(
    bucket: IndexedBucket, loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await bucket.put(some(60))
    await bucket.add()
    await bucket.updated()
    await asleep(bucket)
    rebuild = IndexClass.rebuild

    def without_one(self: IndexClass, fence: int, parts: Any, *rest: Any) -> Published:
        return rebuild(self, fence, {p: part for p, part in parts.items() if p}, *rest)

    monkeypatch.setattr(IndexClass, "rebuild", without_one)
    loads.clear()
    await bucket.put(some(500, 50))
    await bucket.updated()
    bucket.check()
    assert loads == ["rebuild"]


async def test_an_index_that_cannot_be_built_anew_catches_up_all_the_same(
    bucket: IndexedBucket, loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await bucket.put(some(60))
    await bucket.add()
    await bucket.updated()
    await asleep(bucket)
    tries = []

    def full(*_: object) -> Published:
        tries.append(1)
        raise UnavailableError("there is no room for two of it", code="disk_full")

    monkeypatch.setattr(IndexClass, "rebuild", full)
    await bucket.put(some(500, 50))
    await bucket.updated()
    bucket.check()
    assert len(tries) == 1


async def test_an_index_far_behind_reads_alone_until_it_catches_up(
    bucket: IndexedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (indexer, indexing):
        monkeypatch.setattr(module, "JOIN_CHANGES_MAX", 100)
    monkeypatch.setattr(indexer.plan, "__defaults__", (100,))
    monkeypatch.setattr(indexer, "COMMIT_S", 0.01)
    await bucket.put(some(100))
    await bucket.add("old")
    await bucket.updated("old")
    await bucket.stop_indexer()
    await bucket.put(some(2000))
    await bucket.start_indexer()
    await bucket.add("new")
    await bucket.updated("new")
    await bucket.add("old")
    groups = set()

    def has_joined() -> bool:
        groups.update(each.group for each in served(bucket))
        return len({each.group for each in served(bucket)} - {""}) == 1 and all(
            each.group for each in served(bucket)
        )

    await until(has_joined)
    assert len(groups - {""}) > 1
    for signature in ("old", "new"):
        await bucket.updated(signature)
        bucket.check(signature)


async def test_an_indexer_goes_on_after_a_restart(bucket: IndexedBucket) -> None:
    await bucket.put(some(200))
    await bucket.add()
    await bucket.updated()
    await bucket.stop_indexer()
    assert bucket.mappers["one"].is_closed

    await bucket.put(some(30, 190))
    await bucket.start_indexer()
    await bucket.add()
    await bucket.updated()
    bucket.check()
    assert sum(bucket.mappers["one"].calls) == 30


async def test_a_source_that_lost_changes_rolls_the_index_back(tmp_path: Path) -> None:
    async with IndexedBucket(tmp_path, flush_interval_ms=100_000) as bucket:
        await bucket.put(some(300), "persisted")
        await bucket.add()
        await bucket.updated()
        kept = dict(bucket.documents)
        await bucket.put(some(100, 250))
        await bucket.remove(["d00001"])
        await bucket.updated()
        bucket.check()

        await bucket.lose()
        bucket.documents = kept
        await bucket.put({"d00002": [1, 2, 3]})
        await bucket.updated()
        bucket.check()
        assert sum(bucket.mappers["one"].calls) < 300 + 101 + 50


async def test_rows_of_lost_changes_are_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is wanted of an empty partition, but its rows are still in the index for a while."""
    monkeypatch.setattr(served_module, "PAUSE_S_MIN", 0.3)
    async with IndexedBucket(tmp_path, flush_interval_ms=100_000) as bucket:
        await bucket.put(some(30))
        await bucket.add()
        await bucket.updated()
        await bucket.lose()
        bucket.documents = {}
        await bucket.updated()
        assert bucket.rows() == []


async def test_an_index_found_current_stays_so_until_a_change(
    bucket: IndexedBucket,
) -> None:
    """Asked again and again, it does not look at every partition; and it misses nothing."""
    await bucket.put(some(30))
    await bucket.add()
    for n in range(10):
        await bucket.updated()
        await bucket.updated(partitions=[1, 2])
        bucket.check()
        await bucket.put({f"d{n:05d}": [90 + n]})
    await bucket.updated(partitions=[0])
    await bucket.updated()
    bucket.check()
    await bucket.indexer.set_partitions([1])
    with pytest.raises(RoutingError):
        await bucket.updated()


async def test_a_stop_in_the_middle_of_a_first_build_leaves_nothing_behind(
    bucket: IndexedBucket,
) -> None:
    await bucket.put(some(3000))
    for pause_s in (0.0, 0.01, 0.03, 0.06):
        await bucket.add()
        await asyncio.sleep(pause_s)
        await bucket.stop_indexer()
        await bucket.start_indexer()
    await bucket.add()
    await bucket.updated()
    bucket.check()
    assert [path.name for path in tmp_files(bucket)] == []


def tmp_files(bucket: IndexedBucket) -> list[Path]:
    return [path for path in bucket.folder.iterdir() if path.name.startswith("tmp")]


async def test_partitions_are_added_flipped_and_removed(bucket: IndexedBucket) -> None:
    await bucket.put(some(400))
    await bucket.indexer.set_partitions([0, 1, 2], [3])
    await bucket.add()
    await bucket.updated(partitions=[0, 1, 2, 3])
    calls = sum(bucket.mappers["one"].calls)
    assert bucket.rows() == bucket.right_rows([0, 1, 2, 3])
    assert bucket.indexes["one"].newest.states[3] == "passive"

    # A flip reads nothing again.
    await bucket.indexer.set_partitions([0, 1, 2, 3])
    await bucket.updated(partitions=range(4))
    assert sum(bucket.mappers["one"].calls) == calls
    assert bucket.indexes["one"].newest.states[3] == "active"

    await bucket.indexer.set_partitions([1, 2, 3, 4], [5])
    await bucket.updated(partitions=[1, 2, 3, 4, 5])
    assert bucket.rows() == bucket.right_rows([1, 2, 3, 4, 5])
    await until(lambda: 0 not in bucket.indexes["one"].newest.states)
    assert bucket.indexes["one"].newest.dirty == 0

    with pytest.raises(RoutingError):
        await bucket.updated(partitions=[0])

    # One that was cleaned comes back.
    await bucket.indexer.set_partitions(range(PARTITIONS))
    await bucket.updated()
    bucket.check()


async def test_a_frozen_partition_is_not_updated_but_is_answered_from(
    bucket: IndexedBucket,
) -> None:
    await bucket.put(some(100))
    await bucket.add()
    await bucket.updated()
    await bucket.indexer.set_partitions(range(PARTITIONS), [], [1])
    before = bucket.indexes["one"].newest.positions
    await bucket.put(some(200))
    rest = [p for p in range(PARTITIONS) if p != 1]
    await bucket.updated(partitions=rest)
    positions = bucket.indexes["one"].newest.positions
    assert positions[1] == before[1]
    assert all(positions[p].seqno > before[p].seqno for p in rest)
    assert bucket.indexes["one"].newest.states[1] == "active"
    with pytest.raises(RoutingError):
        await bucket.updated(partitions=[1])
    await bucket.indexer.set_partitions(range(PARTITIONS))
    await bucket.updated()
    bucket.check()


async def test_a_replica_is_read_in_advance(bucket: IndexedBucket) -> None:
    await bucket.put(some(100))
    await bucket.add()
    await bucket.node.engine.set_partition_state("docs", 3, PartitionState.REPLICA)
    with pytest.raises(RoutingError):  # nobody has said yet that it is passive
        await bucket.updated()
    await bucket.indexer.set_partitions([p for p in range(PARTITIONS) if p != 3], [3])
    await bucket.updated()
    assert bucket.indexes["one"].newest.positions[3].seqno > 0
    assert bucket.indexes["one"].newest.states[3] == "passive"


async def test_a_deleted_bucket_of_the_same_name_is_another_one(bucket: IndexedBucket) -> None:
    await bucket.put(some(10))
    await bucket.add()
    await bucket.updated()
    await asyncio.to_thread(bucket.client.close)
    await bucket.node.delete_bucket("docs")
    await bucket.node.create_bucket("docs", PARTITIONS)

    with pytest.raises(StreamError) as caught:
        await bucket.updated()
    assert caught.value.code == "bucket_recreated"
    await until(lambda: "created again" in bucket.indexer.progress()[0].error)


async def test_a_lost_source_is_retried(
    bucket: IndexedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bucket.put(some(10))
    await bucket.add()
    await bucket.updated()
    port, bucket.port = bucket.port, 1
    await bucket.stop_node()
    with pytest.raises(UnavailableError):
        await bucket.indexer.updated("one", range(PARTITIONS), 0.2)
    await until(lambda: "cannot connect" in bucket.indexer.progress()[0].error)
    await until(lambda: bucket.indexer.progress()[0].phase == "waiting")  # between two attempts

    await bucket.start_node()
    assert bucket.port not in (1, port)
    await bucket.put(some(10, 5))
    await bucket.updated()
    bucket.check()
    assert bucket.indexer.progress()[0].error == ""


async def test_a_timeout_names_the_positions_not_reached(bucket: IndexedBucket) -> None:
    await bucket.put(some(10))
    await bucket.add()
    await bucket.updated()
    uuid = bucket.indexes["one"].newest.positions[0].uuid
    wanted = {0: Wanted(Position(uuid, 10**6, 10**6, 10**6), is_token=True)}
    with pytest.raises(UnavailableError, match=r"partition 0 is at .*, wanted 1000000") as caught:
        await bucket.indexer.wait_for_positions("one", wanted, 0.05)
    assert caught.value.code == "timeout"


async def test_a_query_never_waits_for_a_lost_write(bucket: IndexedBucket) -> None:
    await bucket.put(some(100))
    await bucket.add()
    await bucket.updated()
    wanted = {0: Wanted(Position(12345, 3, 3, 3), is_token=True)}
    began = time.monotonic()
    with pytest.raises(ConditionError) as caught:
        await bucket.indexer.wait_for_positions("one", wanted, 20.0)
    assert caught.value.code == "seq_unreachable"
    assert time.monotonic() - began < 10
    with pytest.raises(UsageError):
        await bucket.indexer.wait_for_positions("none", wanted, 1.0)


async def test_snapshots_larger_than_the_buffer_are_committed_in_pieces(
    bucket: IndexedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bucket.put(some(10))
    await bucket.add()
    await bucket.updated()
    monkeypatch.setattr(indexer, "GATHERED_BYTES_MAX", 20_000)
    monkeypatch.setattr(reading, "READ_BYTES_MAX", 4096)
    await bucket.put(some(4000))
    await bucket.updated()
    bucket.check()


async def test_a_removed_index_is_forgotten(bucket: IndexedBucket) -> None:
    await bucket.put(some(10))
    for signature in ("one", "two"):
        await bucket.add(signature)
        await bucket.updated(signature)
    await bucket.indexer.remove("one")
    assert bucket.mappers["one"].is_closed
    with pytest.raises(UsageError):
        await bucket.updated("one")
    await bucket.put(some(10, 5))
    await bucket.updated("two")
    bucket.check("two")


async def test_a_query_waiting_for_a_removed_index_gets_an_error(bucket: IndexedBucket) -> None:
    await bucket.put(some(20))
    await bucket.add("one")
    await bucket.add("two")
    await bucket.updated("one")
    await bucket.updated("two")
    far = {0: Wanted(Position(bucket.indexes["one"].newest.positions[0].uuid, *[99_999] * 3))}
    waits = {
        name: asyncio.ensure_future(bucket.indexer.wait_for_positions(name, far, 20))
        for name in ("one", "two")
    }
    await until(lambda: all(each.waiting for each in served(bucket)))
    for name, wait in waits.items():  # the first one is in company, the last one is not
        await bucket.indexer.remove(name)
        with pytest.raises(UnavailableError) as raised:
            async with asyncio.timeout(60):
                await wait
        assert raised.value.code == "index_unavailable"


async def test_an_index_removed_during_a_commit_is_not_committed(
    bucket: IndexedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bucket.put(some(20))
    await bucket.add("one")
    await bucket.add("two")
    await bucket.updated("one")
    await bucket.updated("two")
    await until(lambda: len({each.group for each in served(bucket)}) == 1)
    commit = bucket.indexes["two"].newest.commit
    is_mapping, may_go_on = threading.Event(), threading.Event()
    map_ = bucket.mappers["one"].map

    def slow(changes: Changes) -> MappedChanges:
        is_mapping.set()
        may_go_on.wait(60)
        return map_(changes)

    monkeypatch.setattr(bucket.mappers["one"], "map", slow)
    await bucket.put(some(20, 10))
    update = asyncio.ensure_future(bucket.updated("one"))
    await until(is_mapping.is_set)
    await bucket.indexer.remove("two")
    may_go_on.set()
    await update
    bucket.check("one")
    await bucket.put(some(20, 20))
    await bucket.updated("one")
    assert bucket.indexes["two"].newest.commit == commit


async def test_groups_and_indexes_may_end_at_the_same_time(
    bucket: IndexedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, is_joining = indexer.plan, False

    def planned(members: list[indexer.Member]) -> list[indexer.Group]:
        if not is_joining:
            return [group for member in members for group in plan([member])]
        return [*plan([m for m in members if m.signature != "three"]),
                *plan([m for m in members if m.signature == "three"])]  # fmt: skip

    monkeypatch.setattr(indexing, "plan", planned)
    for name in ("one", "two", "three"):
        await bucket.add(name)
        await bucket.updated(name)
    stop_group = bucket.indexer._stop_group
    has_stopped = False

    async def stop_all(group: reading.GroupReader) -> None:
        nonlocal has_stopped
        if not has_stopped:
            has_stopped = True
            for each in list(bucket.indexer._groups.values()):
                if each is not group:
                    await stop_group(each)
            del bucket.indexer._indexes["three"]
        await stop_group(group)

    monkeypatch.setattr(bucket.indexer, "_stop_group", stop_all)
    groups = bucket.indexer._groups
    await until(lambda: [each.is_first for each in groups.values()] == [False] * 3)
    is_joining = True
    bucket.indexer._news.set()
    await until(lambda: has_stopped)
    await bucket.put(some(20))
    for name in ("one", "two"):
        await bucket.updated(name)
        bucket.check(name)


async def test_removing_an_index_during_a_load_keeps_other_builds(
    bucket: IndexedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = indexing.ServedIndex.load
    removals: list[asyncio.Future[None]] = []

    async def load_slowly(served: indexing.ServedIndex, *more: Any) -> None:
        if served.signature == "one":
            removals.append(asyncio.ensure_future(bucket.indexer.remove("one")))
            await asyncio.sleep(0.01)
        await load(served, *more)

    monkeypatch.setattr(indexing.ServedIndex, "load", load_slowly)
    await bucket.put(some(50))
    await bucket.add("one")
    await bucket.add("two")
    await bucket.updated("two")
    bucket.check("two")
    await asyncio.gather(*removals)
    assert len(removals) == 1
    assert sum(bucket.mappers["two"].calls) == 50, "it was read once"


async def test_many_waiting_queries_share_few_commits(bucket: IndexedBucket) -> None:
    await bucket.put(some(10))
    await bucket.add()
    await bucket.updated()
    commits = bucket.indexes["one"].newest.commit
    await bucket.put(some(200, 10))
    await asyncio.gather(*(bucket.updated() for _ in range(20)))
    assert bucket.indexes["one"].newest.commit <= commits + PARTITIONS
    bucket.check()


KEYS = [f"d{n:05d}" for n in range(300)]


class Walk:
    """Anything that can happen, in any order; indexes are compared with the documents."""

    def __init__(self, bucket: IndexedBucket, seed: int) -> None:
        self.bucket = bucket
        self.rng = random.Random(seed)
        self.wanted = list(range(PARTITIONS))

    async def run(self, steps: int) -> None:
        await self.bucket.add("i0")
        for number in range(steps):
            step = self.rng.choice(
                (self.write, self.write, self.write, self.remove, self.ask, self.ask,
                 self.persist, self.lose, self.restart, self.move, self.more, self.less,
                 self.pause)
            )  # fmt: skip
            await step()
            if number % 10 == 9:
                await self.check_all()
        await self.check_all()

    async def write(self) -> None:
        keys = self.rng.sample(KEYS, self.rng.choice([1, 20, 200]))
        ks = [self.rng.choice([[], [1], [2, 2], [3, 1, 96], "bad"]) for _ in keys]
        await self.bucket.put(dict(zip(keys, ks, strict=True)))

    async def remove(self) -> None:
        known = sorted(self.bucket.documents)
        await self.bucket.remove(self.rng.sample(known, min(len(known), 5)))

    async def persist(self) -> None:
        await self.bucket.put({KEYS[0]: [self.rng.randrange(50)]}, "persisted")

    async def lose(self) -> None:
        await self.bucket.lose()
        await self.bucket.reload(KEYS)

    async def restart(self) -> None:
        await self.bucket.stop_indexer()
        names = list(self.bucket.indexes)
        await self.bucket.start_indexer()
        await self.bucket.indexer.set_partitions(self.wanted)
        for name in names:
            await self.bucket.add(name)

    async def move(self) -> None:
        self.wanted = sorted(self.rng.sample(range(PARTITIONS), self.rng.choice([2, 5, 8])))
        cut = self.rng.randrange(len(self.wanted))
        await self.bucket.indexer.set_partitions(self.wanted[cut:], self.wanted[:cut])

    async def more(self) -> None:
        name = f"i{self.rng.randrange(4)}"
        if name not in self.bucket.indexes:
            await self.bucket.add(name)

    async def less(self) -> None:
        if len(self.bucket.indexes) > 1:
            name = self.rng.choice(sorted(self.bucket.indexes))
            await self.bucket.indexer.remove(name)
            del self.bucket.indexes[name], self.bucket.stores[name]

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.choice([0, 0.001, 0.01]))

    async def ask(self) -> None:
        await self.check(self.rng.choice(sorted(self.bucket.indexes)))

    async def check_all(self) -> None:
        for name in self.bucket.indexes:
            await self.check(name)

    async def check(self, name: str) -> None:
        await self.bucket.updated(name, self.wanted)
        assert self.bucket.rows(name) == self.bucket.right_rows(self.wanted)


@pytest.mark.parametrize("seed", range(4))
async def test_rows_match_the_documents_in_random_schedules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(indexer, "COMMIT_S", 0.003)
    monkeypatch.setattr(indexer, "GATHERED_BYTES_MAX", 8_000)
    monkeypatch.setattr(indexer.plan, "__defaults__", (50,))
    monkeypatch.setattr(indexing, "JOIN_CHANGES_MAX", 50)
    monkeypatch.setattr(cleaning, "CLEAN_PAUSE_S", 0.001)
    monkeypatch.setattr(reading, "READ_BYTES_MAX", 1500)
    async with IndexedBucket(tmp_path, flush_interval_ms=100_000) as bucket:
        await Walk(bucket, seed).run(40)
