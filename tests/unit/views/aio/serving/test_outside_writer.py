"""An index that a writer outside keeps: what it may do, and what the indexer here still does."""

import asyncio
import json
import time
from types import SimpleNamespace

import msgspec
import pytest

from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.model.cluster_maps import IndexRecord, MapKey
from millstream.model.position import Position, position_from_json, position_to_json
from millstream.views.aio.indexing import indexing
from millstream.views.aio.indexing import staging as staging_module
from millstream.views.aio.serving import outside_writer
from millstream.views.aio.serving.bucket_order import OwnedParts
from millstream.views.core.collation import encode_key
from millstream.views.core.design.design_documents import parse_design
from millstream.views.core.index import offers
from millstream.views.core.index.back_index import first_rows_of
from millstream.views.core.index.header import DocumentRows
from millstream.views.core.index.staged import END, block_of_documents, block_of_rows
from support.views.hosted_views import OTHER, PARTITIONS, SUM, hosted_views, until

SPARK = {**SUM, "engine": "spark"}
ZERO = position_to_json(Position())


@pytest.fixture
async def hosted(tmp_path):
    async with hosted_views(tmp_path, SPARK) as made:
        yield made


class Outside:
    """A writer as small as can be: it reads the partitions of the engine themselves."""

    def __init__(self, hosted):
        self.hosted = hosted
        self.partitions = hosted.running.bucket.partitions
        self.count = 0
        self.fence = 0

    @property
    def calls(self):
        return self.hosted.bucket.writer("d")

    async def take_over(self, name="w"):
        state = await self.calls.take_over(name)
        self.fence = state["fence"]
        return state

    def documents(self):
        """Return what every document of the bucket contributes."""
        return [
            DocumentRows(p.partition_id, key.encode(), rows_of(members))
            for p in self.partitions
            for key, members in self.hosted.written.get(p.partition_id, {}).items()
        ]

    def parts(self, **changed):
        positions = {
            str(p.partition_id): position_to_json(
                Position(p.failover_log[0].uuid, *[p.high_seqno] * 3)
            )
            for p in self.partitions
            if p.high_seqno
        }
        return {p: {"start": ZERO, "end": end, **changed} for p, end in positions.items()}

    async def stage(self, data):
        self.count += 1
        name = f"r{self.count}"
        place = await self.calls.place(self.fence, name)
        with open(place["path"], "wb") as file:  # noqa: ASYNC230
            file.write(data)
        await self.calls.staged(self.fence, name)
        return name

    async def load(self, **changed):
        back, (tree,) = first_rows_of(self.documents(), 1)
        said = {
            "parts": self.parts(**changed),
            "back": [await self.stage(block_of_rows(sorted(back)) + END)],
            "trees": [[await self.stage(block_of_rows(sorted(tree)) + END)]],
        }
        return await self.calls.load(self.fence, said)

    async def publish(self, parts=None):
        name = await self.stage(block_of_documents(self.documents()) + END)
        said = {"parts": self.parts() if parts is None else parts, "documents": [name]}
        return await self.calls.publish(self.fence, said)

    async def read(self):
        """Go on from where the index stands: everything is read again."""
        state = await self.calls.judge(self.fence)
        parts = {
            p: {**part, "start": state["positions"][p]}
            for p, part in self.parts().items()
            if position_from_json(state["positions"][p]).seqno
            < position_from_json(part["end"]).seqno
        }
        return await self.publish(parts) if parts else state


def rows_of(members):
    key = members.get("kind")
    return [(0, encode_key(key), json.dumps(key).encode(), json.dumps(members["n"]).encode())]


@pytest.fixture
def writer(hosted):
    hosted.written = {}
    made = hosted.put

    def put(key, **members):
        made(key, **members)
        partition = hosted.running.bucket.partition_for(key.encode()).partition_id
        hosted.written.setdefault(partition, {})[key] = members

    hosted.put = put
    return Outside(hosted)


def staged_files(path):
    return [*path.rglob("staged/*/*")]


def fill(hosted, count, first=0):
    for n in range(first, first + count):
        hosted.put(f"k{n}", kind="ab"[n % 2], n=n)


async def test_the_node_does_not_build_an_index_of_a_pipeline(hosted, writer):
    fill(hosted, 20)
    assert await hosted.sums(update="false") == {}
    with pytest.raises(UnavailableError) as caught:
        await hosted.sums(timeout=200)
    assert caught.value.code == "timeout"
    info = hosted.bucket.info("d")
    assert (info["engine"], info["writer"], info["updates_pending"]["total"]) == ("spark", "", 20)
    (task,) = [each for each in hosted.bucket.tasks() if each["type"] == "indexer"]
    assert task["phase"] == "outside"


async def test_a_first_build_and_later_commits_are_seen_by_queries(hosted, writer):
    fill(hosted, 40)
    state = await writer.take_over("pipeline 1")
    assert (state["fence"], state["is_empty"], state["trees"]) == (1, True, 1)
    assert set(state["positions"]) == {str(p) for p in range(PARTITIONS)}
    done = await writer.load()
    assert (sorted(done["published"]), done["left_out"]) == ([*range(PARTITIONS)], {})
    assert (done["rows"], done["is_empty"]) == ([40], False)
    assert await hosted.sums() == {"a": 380, "b": 400}
    hosted.put("k0", kind="b", n=100)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(hosted.sums())
        done = await writer.read()
    assert len(done["published"]) == 1
    assert waiting.result() == {"a": 380, "b": 500}
    assert hosted.bucket.info("d")["writer"] == "pipeline 1"
    assert not await asyncio.to_thread(staged_files, hosted.path), "files go with their commit"


async def test_files_of_tasks_that_failed_go_with_the_next_cycle(hosted, writer):
    fill(hosted, 4)
    await writer.take_over()
    await writer.stage(END)
    await writer.load()
    assert len(await asyncio.to_thread(staged_files, hosted.path)) == 1
    await writer.calls.judge(writer.fence)
    assert not await asyncio.to_thread(staged_files, hosted.path)
    other = Outside(hosted)
    await other.take_over()
    await other.stage(END)
    with pytest.raises(ConditionError):
        await writer.calls.judge(writer.fence)
    assert len(await asyncio.to_thread(staged_files, hosted.path)) == 1


async def test_files_of_a_writer_at_work_stay_however_long_its_tasks_take(
    hosted, writer, monkeypatch
):
    now = time.monotonic()
    monkeypatch.setattr(staging_module, "time", SimpleNamespace(monotonic=lambda: now))
    await writer.take_over()
    name = await writer.stage(END)
    staging = writer.calls._hosted.staging
    for _ in range(3):
        now += staging_module.STAGED_LEASE_S * 0.9
        assert await writer.calls.keep(writer.fence) == {"staged": [name]}
        assert not staging.expire()
    now += staging_module.STAGED_LEASE_S * 1.1
    assert staging.expire()
    assert await writer.calls.keep(writer.fence) == {"staged": []}
    with pytest.raises(ConditionError) as caught:
        await writer.calls.keep(writer.fence - 1)
    assert caught.value.code == "index_fenced"


async def test_only_the_newest_writer_commits(hosted, writer):
    fill(hosted, 4)
    await writer.take_over()
    other = Outside(hosted)
    orphan = await writer.stage(END)
    await other.take_over()
    for call in (writer.load, writer.publish, writer.read, lambda: writer.stage(END)):
        with pytest.raises(ConditionError) as caught:
            await call()
        assert caught.value.code == "index_fenced"
    with pytest.raises(ConditionError) as caught:
        await other.calls.publish(other.fence, {"parts": {}, "documents": [orphan]})
    assert caught.value.code == "run_missing"
    await other.load()
    assert await hosted.sums() == {"a": 2, "b": 4}


async def test_a_part_that_does_not_join_is_left_out(hosted, writer):
    fill(hosted, 30)
    await writer.take_over()
    await writer.load()
    fill(hosted, 30, first=100)
    parts = writer.parts()
    for part in parts.values():
        seqno = position_from_json(part["end"]).seqno - 1
        uuid = part["end"][0]
        part["start"] = [uuid, seqno, seqno, seqno]
    done = await writer.publish(parts)
    assert done["published"] == []
    assert set(done["left_out"].values()) == {"not_joined"}
    done = await writer.publish(writer.parts(is_whole=False))
    assert set(done["left_out"].values()) == {"lease_lost"}
    assert await hosted.sums(update="false") == {"a": 210, "b": 225}
    await writer.read()
    assert await hosted.sums() == {"a": 210 + 1710, "b": 225 + 1725}


async def test_partitions_that_are_handed_over_are_not_written(hosted, writer):
    fill(hosted, 20)
    await writer.take_over()
    await writer.load()
    records = {p: IndexRecord(MapKey(1, 1), "a") for p in range(PARTITIONS)}
    order = hosted.order()
    owned = OwnedParts("a", records, {}, [*range(PARTITIONS)], [0])
    await hosted.bucket.apply(msgspec.structs.replace(order, owned=owned))
    whole = writer.calls.state()["positions"]
    fill(hosted, 20, first=100)
    state = await writer.calls.judge(writer.fence)
    assert state["positions"].keys() == whole.keys() - {"0"}, "it is not to be read"
    done = await writer.publish(
        {p: {**one, "start": whole[p]} for p, one in writer.parts().items()}
    )
    assert done["left_out"] == {"0": "not_judged"}
    assert sorted(done["published"]) == [*range(1, PARTITIONS)]
    assert done["positions"]["0"] == whole["0"]
    told = await hosted.bucket.parts(0)
    assert told["outside_s"] < 60
    assert told["parts"][0][-1] is None, "the node keeps no index itself"
    await hosted.bucket.apply(order)
    await writer.read()
    assert await hosted.sums() == {"a": 90 + 1090, "b": 100 + 1100}


async def test_an_outside_index_rolls_back_with_its_source(hosted, writer):
    fill(hosted, 8)
    await writer.take_over()
    await writer.load()
    partition = hosted.running.bucket.partition_for(b"k0")
    seqno = partition.high_seqno
    await until(lambda: partition.persisted_seqno == seqno)
    hosted.put("k0", kind="z", n=7)
    await writer.read()
    assert await hosted.sums() == {"a": 12, "b": 16, "z": 7}
    await hosted.running.copies.roll_back(partition.partition_id, seqno)
    state = await writer.calls.judge(writer.fence)
    assert position_from_json(state["positions"][str(partition.partition_id)]).seqno <= seqno
    assert await hosted.sums(update="false") == {"a": 12, "b": 16}


async def test_the_node_takes_over_when_the_document_changes(hosted, writer):
    fill(hosted, 10)
    await writer.take_over()
    await writer.load()
    await hosted.apply({"d": SUM})
    hosted.put("k0", kind="b", n=100)
    assert await hosted.sums() == {"a": 20, "b": 125}
    with pytest.raises(ConditionError) as caught:
        await writer.read()
    assert caught.value.code == "index_fenced"
    with pytest.raises(ConditionError) as caught:
        await writer.take_over()
    assert caught.value.code == "not_spark_engine"
    await hosted.apply({"d": SPARK})
    hosted.put("k0", kind="b", n=0)
    await writer.take_over()
    assert await hosted.sums(update="false") == {"a": 20, "b": 125}
    await writer.read()
    assert await hosted.sums() == {"a": 20, "b": 25}


async def test_one_document_with_spark_decides_for_a_shared_index(hosted, writer):
    await hosted.apply({"a": {**SUM, "autoupdate": False}, "d": SPARK, "e": SUM})
    assert len(hosted.indexes) == 1
    assert (await writer.take_over())["engine"] == "spark"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({}, "bad_parts"),
        ({"parts": {"x": {}}, "back": [], "trees": [[]]}, "bad_parts"),
        ({"parts": {"0": {"start": [1], "end": ZERO}}, "back": [], "trees": [[]]}, "bad_parts"),
        ({"parts": {}, "back": [], "trees": []}, "bad_parts"),
        ({"parts": {}, "back": ["none"], "trees": [[]]}, ""),
    ],
)
async def test_an_inconsistent_load_is_refused(hosted, writer, said, code):
    fill(hosted, 4)
    await writer.take_over()
    if code:
        with pytest.raises(UsageError) as caught:
            await writer.calls.load(writer.fence, said)
        assert caught.value.code == code
    else:  # nothing is published, so nothing is read
        assert (await writer.calls.load(writer.fence, said))["published"] == []
    await writer.load()


async def test_a_load_replaces_the_index(hosted, writer):
    fill(hosted, 10)
    await writer.take_over()
    await writer.load()
    fill(hosted, 40)
    done = await writer.load()
    assert (done["rows"], done["left_out"]) == ([40], {})
    assert await hosted.sums() == {"a": 380, "b": 400}
    done = await writer.load(is_whole=False)
    assert done["published"] == []
    assert await hosted.sums() == {"a": 380, "b": 400}


async def test_rows_without_a_part_are_refused(hosted, writer):
    fill(hosted, 20)
    await writer.take_over()
    back, (tree,) = first_rows_of(writer.documents(), 1)
    said = {
        "parts": {"0": writer.parts()["0"]},
        "back": [await writer.stage(block_of_rows(sorted(back)) + END)],
        "trees": [[await writer.stage(block_of_rows(sorted(tree)) + END)]],
    }
    with pytest.raises(UsageError) as caught:
        await writer.calls.load(writer.fence, said)
    assert caught.value.code == "bad_run"
    assert (await writer.calls.judge(writer.fence))["is_empty"]


async def test_rows_of_an_unknown_tree_are_refused(hosted, writer):
    fill(hosted, 4)
    await writer.take_over()
    strange = DocumentRows(0, b"k", [(7, b"e", b"1", b"1")])
    name = await writer.stage(block_of_documents([strange]) + END)
    with pytest.raises(UsageError) as caught:
        await writer.calls.publish(writer.fence, {"parts": writer.parts(), "documents": [name]})
    assert caught.value.code == "bad_run"
    await writer.load()


async def test_the_size_of_a_commit_is_bounded(hosted, writer, monkeypatch):
    fill(hosted, 4)
    await writer.take_over()
    monkeypatch.setattr(outside_writer, "DOCUMENTS_MAX", 3)
    with pytest.raises(UsageError) as caught:
        await writer.publish()
    assert caught.value.code == "too_large"


async def test_map_errors_are_kept(hosted, writer):
    fill(hosted, 4)
    await writer.take_over()
    done = await writer.load(failures=[[0, "k9", "it is bad"]], failures_before={"0": 4})
    assert done["left_out"] == {}
    errors = hosted.bucket.info("d")["map_errors"]["v"]
    count = len(writer.parts())
    assert errors["count"] == 5 * count
    assert errors["last"][-1] == {"id": "k9", "message": "it is bad"}


@pytest.fixture
async def offering(tmp_path, monkeypatch):
    """A bucket whose views the node keeps, and whose builds are offered; a pipeline has asked."""
    monkeypatch.setattr(offers, "OFFER_CHANGES_MIN", 10)
    monkeypatch.setattr(indexing, "LOOK_S", 0.1)
    async with hosted_views(tmp_path, SUM) as made:
        await made.apply({})
        made.written = {}
        put = made.put

        def noted(key, **members):
            put(key, **members)
            partition = made.running.bucket.partition_for(key.encode()).partition_id
            made.written.setdefault(partition, {})[key] = members

        made.put = noted
        assert made.bucket.offers([]) == []
        yield made


def phase_of(hosted):
    (progress,) = hosted.bucket._indexer.progress()
    return progress.phase


async def test_a_large_build_is_offered_taken_and_returned(offering):
    fill(offering, 40)
    await offering.apply({"d": SUM})
    await until(lambda: offering.bucket.offers([]) == ["d"])
    assert phase_of(offering) == "offered"
    writer = Outside(offering)
    assert (await writer.take_over("pipeline"))["writer"] == "pipeline"
    assert phase_of(offering) == "outside"
    assert offering.bucket.offers(["d"]) == []
    offering.put("k0", kind="b", n=100)
    await offering.apply({"d": SUM, "e": OTHER})  # the node is told of something else
    assert phase_of_first(offering, writer) == "outside"
    done = await writer.load()
    assert done["rows"] == [40]
    assert await offering.sums() == {"a": 380, "b": 500}
    offering.put("k1", kind="b", n=200)
    assert await offering.sums() == {"a": 380, "b": 699}
    assert offering.bucket.info("d")["writer"] == "node indexer"
    with pytest.raises(ConditionError) as caught:
        await writer.calls.judge(writer.fence)
    assert caught.value.code == "index_fenced"
    with pytest.raises(ConditionError) as caught:
        await writer.take_over()
    assert caught.value.code == "not_spark_engine"


def phase_of_first(hosted, writer):
    signature = writer.calls._hosted.signature
    return {each.signature: each.phase for each in hosted.bucket._indexer.progress()}[signature]


async def test_a_build_that_no_pipeline_takes_is_done_here(offering, monkeypatch):
    monkeypatch.setattr(offers, "OFFER_S", 0.2)
    fill(offering, 40)
    await offering.apply({"d": SUM})
    assert await offering.sums() == {"a": 380, "b": 400}
    assert offering.bucket.info("d")["writer"] == "node indexer"


async def test_an_offer_ends_when_no_document_needs_the_build(offering):
    fill(offering, 40)
    await offering.apply({"d": {**SUM, "autoupdate": False}})
    asking = asyncio.ensure_future(offering.sums())
    await until(lambda: offering.bucket.offers([]) == ["d"])
    asking.cancel()
    await until(lambda: offering.bucket.offers([]) == [])
    assert phase_of(offering) == "asleep"
    asking = asyncio.ensure_future(offering.sums())
    await until(lambda: offering.bucket.offers([]) == ["d"])
    writer = Outside(offering)
    await writer.take_over()
    await writer.load()
    assert await asking == {"a": 380, "b": 400}


async def test_a_small_build_is_not_offered(offering):
    fill(offering, 9)
    await offering.apply({"d": SUM})
    assert sum((await offering.sums()).values()) == sum(range(9))
    assert offering.bucket.offers([]) == []


async def test_a_pipeline_that_goes_away_is_not_waited_for(offering, monkeypatch):
    fill(offering, 40)
    await offering.apply({"d": SUM})
    await until(lambda: offering.bucket.offers([]) == ["d"])
    writer = Outside(offering)
    await writer.take_over()
    monkeypatch.setattr(offers, "ATTACHED_S", 0.2)
    assert await offering.sums() == {"a": 380, "b": 400}
    with pytest.raises(ConditionError) as caught:
        await writer.load()
    assert caught.value.code == "index_fenced"


async def test_an_index_assigned_to_spark_stays_there(offering):
    fill(offering, 40)
    await offering.apply({"d": SUM})
    await until(lambda: offering.bucket.offers([]) == ["d"])
    writer = Outside(offering)
    await writer.take_over()
    await offering.apply({"d": SPARK})
    await writer.load()
    assert await offering.sums(update="false") == {"a": 380, "b": 400}
    assert phase_of(offering) == "outside"
    await writer.calls.judge(writer.fence)


async def test_a_take_over_that_comes_late_changes_nothing(offering, monkeypatch):
    """The source is slow to say how it judges, and the node takes the build back meanwhile."""
    fill(offering, 40)
    await offering.apply({"d": SUM})
    await until(lambda: offering.bucket.offers([]) == ["d"])
    indexer = offering.bucket._indexer
    ask, answered = indexer._ask, asyncio.Event()

    async def slow():
        if asyncio.current_task() is late:
            await answered.wait()
        return await ask()

    monkeypatch.setattr(indexer, "_ask", slow)
    late = asyncio.ensure_future(Outside(offering).take_over("late"))
    await until(lambda: phase_of(offering) == "outside")
    monkeypatch.setattr(offers, "ATTACHED_S", 0.2)
    assert await offering.sums() == {"a": 380, "b": 400}
    answered.set()
    with pytest.raises(ConditionError) as caught:
        await late
    assert caught.value.code == "not_spark_engine"
    offering.put("k0", kind="b", n=100)
    assert await offering.sums() == {"a": 380, "b": 500}
    assert offering.bucket.info("d")["writer"] == "node indexer"


async def test_a_build_being_returned_cannot_be_taken(offering, monkeypatch):
    fill(offering, 40)
    await offering.apply({"d": SUM})
    await until(lambda: offering.bucket.offers([]) == ["d"])
    first = Outside(offering)
    await first.take_over("first")
    indexer = offering.bucket._indexer
    (served,) = indexer._indexes.values()
    async with served.lock:  # a long commit
        monkeypatch.setattr(offers, "ATTACHED_S", 0.0)
        await until(lambda: served.is_meant_here)
        with pytest.raises(ConditionError) as caught:
            await Outside(offering).take_over("second")
        assert caught.value.code == "not_spark_engine"
    assert await offering.sums() == {"a": 380, "b": 400}


async def test_a_returned_build_delays_no_other(offering, monkeypatch):
    """Neither while a long commit of it is waited for, nor if it is gone by then."""
    fill(offering, 40)
    await offering.apply({"d": SUM})
    await until(lambda: offering.bucket.offers([]) == ["d"])
    await Outside(offering).take_over()
    indexer = offering.bucket._indexer
    (served,) = indexer._indexes.values()
    async with served.lock:
        monkeypatch.setattr(offers, "ATTACHED_S", 0.0)
        await until(lambda: not indexer.offers.is_taken(served.signature))
        removing = asyncio.ensure_future(indexer.remove(served.signature))
        other = await offering.bucket._opened(parse_design(OTHER, "e"))
        await indexer.add(other.index, other.mapper)
        await indexer.updated(other.signature, range(PARTITIONS), 20)
    await removing
    assert not served.is_kept_here
    await indexer.remove(other.signature)
    await asyncio.to_thread(other.close)
