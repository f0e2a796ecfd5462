"""Engine and index process together; what the index process does is in tests of `views`."""

import asyncio
import json
import os
import signal

import pytest

from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.model.partitions import PartitionState
from millstream.node import indexes
from millstream.node.engine import Engine
from millstream.node.processes import child_process
from millstream.views.core.index.staged import END

VIEWS = {"views": {"v": {"map": "function (doc) { emit(doc._id); }"}}}


@pytest.fixture
async def engine(make_settings, monkeypatch):
    monkeypatch.setattr(child_process, "_BACKOFF_S", (0.01,))
    monkeypatch.setattr(indexes, "FIGURES_INTERVAL_S", 0.02)
    made = await Engine.start(make_settings())
    yield made
    await made.stop()


async def put(engine, name, content, rev=None, *, is_durable=True):
    body = None if content is None else json.dumps(content).encode()
    return await engine.designs.write("default", name, body, rev, is_durable=is_durable)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - several kinds of it
            await asyncio.sleep(0.005)


async def test_the_index_process_is_started_by_the_first_view(engine):
    assert await engine.indexes.tasks() == []
    with pytest.raises(ConditionError):
        await engine.indexes.info("no such bucket", "d")
    await put(engine, "filters", {"filters": {"f": "function () {}"}})
    known = next(iter(engine.indexes._known.values()))
    await until(lambda: "filters" in known.designs)
    assert not engine.indexes.process.is_wanted
    await put(engine, "d", VIEWS)
    assert await engine.indexes.info("default", "d")
    with pytest.raises(UsageError) as missing_view:
        await engine.indexes.query("default", "d", "other", {})
    assert missing_view.value.code == "missing_named_view"
    with pytest.raises(ConditionError) as missing:
        await engine.indexes.info("default", "other")
    assert missing.value.code == "missing"
    assert engine.metrics().node["index_process_up"] == 1
    await until(lambda: engine.metrics().node["index_process_resident_bytes"] > 0)


async def test_it_is_told_what_is_so_now(engine):
    stored = await put(engine, "d", VIEWS)
    await engine.indexes.info("default", "d")
    known = next(iter(engine.indexes._known.values()))
    await put(engine, "d", None, stored.rev)
    with pytest.raises(ConditionError):
        await engine.indexes.info("default", "d")
    await put(engine, "e", VIEWS)
    await engine.set_partition_state("default", 3, PartitionState.REPLICA)
    await engine.set_partition_state("default", 4, PartitionState.DEAD)
    await engine.indexes.info("default", "e")
    order = await known.order()
    assert order["resting"] == [3]
    assert order["active"] == [p for p in range(64) if p not in (3, 4)]
    assert list(order["designs"]) == ["e"]


async def test_one_that_is_not_persisted_is_not_told(engine, monkeypatch):
    first = await put(engine, "d", VIEWS)
    await engine.indexes.info("default", "d")
    known = next(iter(engine.indexes._known.values()))
    running = engine._buckets.engine("default")
    async with running.flusher.paused():
        await put(engine, "d", {"views": {}}, first.rev, is_durable=False)
        await put(engine, "new", VIEWS, is_durable=False)
        told = (await known.order())["designs"]
        assert {name: json.loads(one.text) for name, one in told.items()} == {"d": VIEWS}
    await running.until_persisted(running.bucket.partition_for(b"_design/new").partition_id, 1)
    await engine.indexes.info("default", "new")


async def test_a_new_index_process_is_told_everything(engine):
    await put(engine, "d", VIEWS)
    await engine.indexes.info("default", "d")
    first = engine.indexes.process.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: engine.indexes.process.pid != first)
    assert await engine.indexes.info("default", "d")
    assert engine.metrics().node["index_process_restarts_total"] == 1


async def test_while_it_cannot_run_calls_end_soon(engine, monkeypatch):
    monkeypatch.setattr(indexes, "TOLD_S_MAX", 0.05)
    engine.indexes.process._command = ("/bin/false",)
    await put(engine, "d", VIEWS)
    with pytest.raises(UnavailableError) as raised:
        await engine.indexes.info("default", "d")
    assert raised.value.code == "index_unavailable"
    assert raised.value.retry == "backoff"


async def test_a_deleted_bucket_is_let_go_before_its_files(engine):
    await engine.create_bucket("more", 4)
    body = json.dumps(VIEWS).encode()
    await engine.designs.write("more", "d", body, None, is_durable=True)
    await engine.indexes.info("more", "d")
    uuid = engine._buckets.engine("more").bucket.uuid
    await engine.delete_bucket("more")
    with pytest.raises(ConditionError):
        await engine.indexes.process.link.ask("info", uuid=uuid, design="d")
    with pytest.raises(ConditionError) as raised:
        await engine.indexes.info("more", "d")
    assert raised.value.code == "bucket_not_found"


async def test_an_index_process_that_does_not_let_go_is_ended(engine, monkeypatch):
    await engine.create_bucket("more", 4)
    await put(engine, "d", VIEWS)
    await engine.indexes.info("default", "d")
    monkeypatch.setattr(indexes, "TOLD_S_MAX", 0.05)
    pid = engine.indexes.process.pid
    os.kill(pid, signal.SIGSTOP)
    await engine.delete_bucket("more")
    await until(lambda: engine.indexes.process.pid != pid)


async def test_a_node_without_the_role_has_no_views(make_settings):
    engine = await Engine.start(make_settings(roles=("data",)))
    try:
        await put(engine, "d", VIEWS)
        with pytest.raises(UnavailableError) as raised:
            await engine.indexes.info("default", "d")
        assert raised.value.code == "no_index_role"
        assert await engine.indexes.tasks() == []
        assert not engine.indexes.process.is_wanted
    finally:
        await engine.stop()


async def test_totals_grow_over_restarts_of_the_index_process(engine):
    await put(engine, "d", VIEWS)
    await engine.indexes.info("default", "d")

    def commits():
        return engine.metrics().buckets["default"]["index_commits_total"]

    await until(lambda: commits() > 0)
    before, first = commits(), engine.indexes.process.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: engine.indexes.process.pid not in (None, first))
    await until(lambda: commits() > before)


async def test_a_bucket_that_takes_long_to_tell_holds_up_no_other(engine, monkeypatch):
    await engine.create_bucket("slow", 4)
    await put(engine, "d", VIEWS)
    await engine.indexes.info("default", "d")
    link, goes_on = engine.indexes.process.link, asyncio.Event()
    ask = link.ask

    async def ask_slowly(name, /, **arguments):
        if arguments.get("name") == "slow":
            await goes_on.wait()
        return await ask(name, **arguments)

    monkeypatch.setattr(link, "ask", ask_slowly)
    body = json.dumps(VIEWS).encode()
    await engine.designs.write("slow", "d", body, None, is_durable=True)
    await put(engine, "e", VIEWS)
    assert await engine.indexes.info("default", "e")
    goes_on.set()
    assert await engine.indexes.info("slow", "d")


async def test_replicas_are_indexed_where_that_is_said_and_stay_so(make_settings):
    engine = await Engine.start(make_settings())
    try:
        await put(engine, "d", VIEWS)
        await engine.set_partition_state("default", 3, PartitionState.REPLICA)
        known = next(iter(engine.indexes._known.values()))
        assert (await known.order())["resting"] == [3]
        await engine.set_index_replicas("default", True)
        assert (await known.order())["passive"] == [3]
        assert await engine.indexes.info("default", "d")
        assert engine.bucket_statuses()[0].index_replicas
    finally:
        await engine.stop()
    again = await Engine.start(make_settings())
    try:
        assert again.bucket_statuses()[0].index_replicas
        with pytest.raises(ConditionError):
            await again.set_index_replicas("none", True)
    finally:
        await again.stop()


async def test_what_changes_while_it_is_told_is_told_at_once(engine, monkeypatch):
    monkeypatch.setattr(indexes, "PAUSE_S", 3600)
    await put(engine, "d", VIEWS)
    await engine.indexes.info("default", "d")
    known = next(iter(engine.indexes._known.values()))
    link, told = engine.indexes.process.link, []
    ask = link.ask

    async def ask_and_change(name, /, **arguments):
        if name == "set_bucket":
            told.append(name)
            if len(told) == 1:
                known.changed()
        return await ask(name, **arguments)

    monkeypatch.setattr(link, "ask", ask_and_change)
    known.changed()
    async with asyncio.timeout(60):
        await known.is_told.wait()
    assert told == ["set_bucket", "set_bucket"]


async def test_what_cannot_be_told_is_tried_again_after_a_pause(engine, monkeypatch):
    monkeypatch.setattr(indexes, "PAUSE_S", 0.01)
    await put(engine, "d", VIEWS)
    await engine.indexes.info("default", "d")
    known = next(iter(engine.indexes._known.values()))
    order, failures = known.order, []

    async def fail_twice():
        if len(failures) < 2:
            failures.append(1)
            raise UnavailableError("a design document cannot be read", code="busy")
        return await order()

    monkeypatch.setattr(known, "order", fail_twice)
    known.changed()
    async with asyncio.timeout(60):
        await known.is_told.wait()
    assert len(failures) == 2


async def test_a_writer_outside_keeps_an_index(engine):
    await put(engine, "d", {**VIEWS, "engine": "spark"})

    async def pieces():
        yield END[:3]
        yield END[3:]

    taken = await engine.indexes.write("default", "d", "take_over", {"writer": "w"})
    assert (taken["writer"], taken["engine"], taken["is_empty"]) == ("w", "spark", True)
    fence = taken["fence"]
    await engine.indexes.stage("default", "d", fence, "r1", pieces())
    said = {"parts": {}, "back": ["r1"], "trees": [["r1"]]}
    done = await engine.indexes.write("default", "d", "load", {"fence": fence, "said": said})
    assert done["published"] == []
    with pytest.raises(ConditionError) as fenced:
        await engine.indexes.stage("default", "d", fence - 1, "r1", pieces())
    assert fenced.value.code == "index_fenced"
    state = await engine.indexes.write("default", "d", "index", {})
    assert state["fence"] == fence
