"""The indexes of a bucket, kept fresh from a real engine in the same loop."""

import asyncio
import json
import threading
import time

import pytest

from millstream.errors import (
    ConditionError,
    CorruptionError,
    MillstreamError,
    RoutingError,
    UnavailableError,
    UsageError,
)
from millstream.model.partitions import PartitionState
from millstream.views.aio.indexing import indexing
from millstream.views.aio.indexing import served_index as served
from millstream.views.aio.indexing.index_mapping import IndexMapper
from millstream.views.aio.sandbox.process import MEMORY_BYTES_MAX, Sandbox
from millstream.views.aio.serving import answering, hosted_bucket, hosted_index, opening
from millstream.views.aio.serving.hosted_index import SET_ASIDE
from millstream.views.core.index import index
from millstream.views.core.index.kept_roots import KEPT_ROOTS_MAX
from support.views.hosted_views import MAP, OTHER, PARTITIONS, SUM, hosted_views, read, until


@pytest.fixture
async def hosted(tmp_path):
    async with hosted_views(tmp_path) as made:
        yield made


async def test_queries_see_what_was_written_before_them(hosted):
    assert await hosted.sums() == {}
    for n in range(20):
        hosted.put(f"k{n}", kind="ab"[n % 2], n=n)
    assert await hosted.sums() == {"a": 90, "b": 100}
    hosted.put("k0", kind="b", n=5)
    assert await hosted.sums() == {"a": 90, "b": 105}
    answer = await hosted.query(reduce=False, limit=2)
    assert (answer["total_rows"], len(answer["rows"])) == (20, 2)


async def test_a_stale_query_answers_from_the_current_index(hosted):
    hosted.put("k", kind="a", n=1)
    assert await hosted.sums() == {"a": 1}
    hosted.put("k", kind="a", n=2)
    assert await hosted.sums(update="lazy") in ({"a": 1}, {"a": 2})
    async with asyncio.timeout(60):
        while await hosted.sums(update="false") != {"a": 2}:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_equal_documents_share_an_index_and_renaming_keeps_it(hosted):
    hosted.put("k", kind="a", n=1)
    assert await hosted.sums() == {"a": 1}
    signature = hosted.bucket.info("d")["signature"]
    more = {"views": {"other name": {"map": MAP, "reduce": "_sum"}}, "language": "javascript"}
    await hosted.apply({"d": SUM, "e": more})
    assert hosted.indexes == [signature]
    assert (await hosted.query("e", "other name"))["rows"][0]["value"] == 1
    before = hosted.commit
    await hosted.apply({"renamed": SUM})
    assert hosted.indexes == [signature]
    assert (await hosted.query("renamed", update="false"))["rows"][0]["value"] == 1
    assert hosted.commit == before
    with pytest.raises(ConditionError) as raised:
        await hosted.query("d")
    assert raised.value.code == "missing"


async def test_files_stay_until_the_clean_up_and_a_document_that_comes_back_finds_them(hosted):
    hosted.put("k", kind="a", n=1)
    assert await hosted.sums() == {"a": 1}
    old = hosted.bucket.info("d")["signature"]
    await hosted.apply({"d": OTHER})
    new = hosted.bucket.info("d")["signature"]
    assert hosted.indexes == sorted([old, new])
    await until(lambda: not hosted.bucket._closing)
    await hosted.apply({"d": SUM})
    assert await hosted.sums(update="false") == {"a": 1}, "nothing was built anew"
    await until(lambda: not hosted.bucket._closing)
    await hosted.bucket.clean_up()
    assert hosted.indexes == [old]


async def test_an_index_in_use_is_removed_after_its_last_reader(hosted):
    for n in range(3000):
        hosted.put(f"k{n}", kind=f"{n:0100}", n=n)
    answer = await hosted.ask(reduce=False)
    assert not isinstance(answer.body, tuple), "it is long enough to be streamed"
    old = hosted.bucket.info("d")["signature"]
    pieces = [await anext(answer.body)]
    await hosted.apply({"d": OTHER})
    await hosted.bucket.clean_up()
    assert old in hosted.indexes
    pieces += [piece async for piece in answer.body]
    assert len(json.loads(b"".join(pieces))["rows"]) == 3000
    await until(lambda: old not in hosted.indexes)


async def test_an_index_wanted_again_while_in_use_is_not_opened_twice(hosted):
    for n in range(3000):
        hosted.put(f"k{n}", kind=f"{n:0100}", n=n)
    answer = await hosted.ask(reduce=False)
    await hosted.apply({"d": OTHER})
    await hosted.bucket.clean_up()
    await hosted.apply({"d": SUM})
    hosted.put("k0", kind="new", n=7)
    assert (await hosted.query(key="new"))["rows"][0]["value"] == 7
    assert len(json.loads(await read(answer.body))["rows"]) == 3000
    await until(lambda: not hosted.bucket._closing)
    assert (await hosted.query(key="new", update="false"))["rows"][0]["value"] == 7


async def test_an_abandoned_query_leaves_no_process(hosted, monkeypatch):
    own = {"views": {"v": {"map": MAP, "reduce": "(keys, values) => values.length"}}}
    await hosted.apply({"d": own})
    for n in range(20):
        hosted.put(f"k{n}", kind="a", n=n)
    assert len((await hosted.query(reduce=False))["rows"]) == 20  # all nodes are in memory
    is_asked, may_go_on, has_ended = threading.Event(), threading.Event(), threading.Event()
    find = answering.find_groups
    started = []

    def find_slowly(*arguments):
        is_asked.set()
        may_go_on.wait(60)
        try:
            yield from find(*arguments)
        finally:
            has_ended.set()

    monkeypatch.setattr(answering, "find_groups", find_slowly)
    monkeypatch.setattr(hosted_index, "open_functions", started.append)
    asked = asyncio.ensure_future(hosted.query(endkey="b"))
    await until(is_asked.is_set)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await hosted.apply({})
    await until(lambda: not hosted.bucket._closing)
    may_go_on.set()
    await until(has_ended.is_set)
    assert not started


async def test_a_damaged_index_is_set_aside_and_built_anew(hosted):
    hosted.put("k", kind="a", n=1)
    assert await hosted.sums() == {"a": 1}
    signature = hosted.bucket.info("d")["signature"]
    await hosted.stop()
    data = next((hosted.path / "indexes" / signature).rglob("data.mdb"))
    data.write_bytes(b"\xff" * data.stat().st_size)
    await hosted.start()
    assert await hosted.sums() == {"a": 1}
    assert hosted.bucket.info("d")["rebuilt_because"]
    assert hosted.indexes == [signature, f"{signature}.damaged"]
    await hosted.bucket.clean_up()
    assert hosted.indexes == [signature]


async def test_damage_found_by_a_query_is_handled_alike(hosted, monkeypatch):
    hosted.put("k", kind="a", n=1)
    assert await hosted.sums() == {"a": 1}
    (one,) = hosted.bucket._open.values()

    def fail(*_):
        raise CorruptionError("node 7 is missing", code="index_damaged")

    monkeypatch.setattr(one, "snapshot", fail)
    with pytest.raises(CorruptionError):
        await hosted.sums()
    await until(lambda: list(hosted.bucket._open.values()) not in ([], [one]))
    assert await hosted.sums() == {"a": 1}
    assert "node 7" in hosted.bucket.info("d")["rebuilt_because"]


async def test_damage_of_an_old_index_does_not_affect_the_new_one(hosted):
    hosted.put("k", kind="a", n=1)
    assert await hosted.sums() == {"a": 1}
    (old,) = hosted.bucket._open.values()
    error = CorruptionError("node 7 is missing", code="index_damaged")
    hosted.bucket._damaged(old, error)
    await until(lambda: hosted.bucket._open and old not in hosted.bucket._open.values())
    (new,) = hosted.bucket._open.values()
    hosted.bucket._damaged(old, error)
    assert not any(task.get_name().startswith("rebuild") for task in asyncio.all_tasks())
    assert await hosted.sums() == {"a": 1}
    assert list(hosted.bucket._open.values()) == [new]


async def test_damage_found_by_a_commit_affects_only_that_index(hosted, monkeypatch):
    await hosted.apply({"d": SUM, "other": OTHER})
    hosted.put("k", kind="a", n=1)
    assert await hosted.sums() == {"a": 1}
    assert len((await hosted.query("other"))["rows"]) == 1
    one = hosted.bucket._open[hosted.bucket.info("d")["signature"]]
    other = hosted.bucket._open[hosted.bucket.info("other")["signature"]]

    def fail(*_):
        raise CorruptionError("node 7 is missing", code="index_damaged")

    monkeypatch.setattr(one.index, "publish", fail)
    hosted.put("k", kind="a", n=2)
    await until(lambda: hosted.bucket._open.get(one.signature) not in (None, one))
    assert await hosted.sums() == {"a": 2}
    assert hosted.bucket._open[other.signature] is other
    assert (await hosted.query("other"))["rows"][0]["key"] == 2


async def test_a_failed_opening_is_retried(hosted, monkeypatch):
    opened = hosted_bucket.HostedIndex

    def full(*_):
        raise OSError(28, "no space left")

    monkeypatch.setattr(hosted_bucket, "HostedIndex", full)
    monkeypatch.setattr(hosted_bucket, "COMPACT_CHECK_S", 0.01)
    await hosted.stop()
    await hosted.start()
    with pytest.raises(UnavailableError, match="no space"):
        await hosted.query()
    monkeypatch.setattr(hosted_bucket, "HostedIndex", opened)
    await until(lambda: hosted.bucket._open)
    assert await hosted.sums() == {}


def full(*_, **__):
    raise UnavailableError("the disk is full", code="disk_full")


async def test_a_newer_order_replaces_one_waiting_for_retry(hosted):
    bucket = hosted.bucket
    async with bucket._change:
        newest = asyncio.ensure_future(hosted.apply({"e": OTHER}))
        await asyncio.sleep(0)
        again = asyncio.ensure_future(bucket._opening._take_in())
        await asyncio.sleep(0)
    await asyncio.gather(newest, again)
    assert bucket.info("e")["signature"]
    with pytest.raises(ConditionError):
        bucket.info("d")


async def test_a_failed_start_does_not_open_the_index_twice(hosted, monkeypatch):
    hosted.put("k", kind="a", n=1)

    async def stop(*_):
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(hosted.bucket._indexer, "set_partitions", stop)
        with pytest.raises(asyncio.CancelledError):
            await hosted.apply({"d": SUM, "e": OTHER})
    await hosted.apply()
    assert (await hosted.query("e"))["rows"][0]["key"] == 1
    assert not any(path.endswith(SET_ASIDE) for path in hosted.indexes)


async def test_an_index_that_cannot_start_delays_no_other(hosted, monkeypatch):
    hosted.put("k", kind="a", n=1)
    with monkeypatch.context() as patch:
        patch.setattr(index.Index, "take_over", full)
        await hosted.apply({"d": SUM, "e": OTHER})
        assert await hosted.sums() == {"a": 1}
        with pytest.raises(UnavailableError, match="full"):
            await hosted.query("e")
    await hosted.apply()
    assert (await hosted.query("e"))["rows"][0]["key"] == 1
    assert not any(path.endswith(SET_ASIDE) for path in hosted.indexes)


async def test_an_index_that_cannot_write_its_states_delays_no_other(hosted, monkeypatch):
    for n in range(20):
        hosted.put(f"k{n}", kind="a", n=n)
    await hosted.apply({"d": SUM, "e": OTHER})
    assert len((await hosted.query("e"))["rows"]) == 20
    one = hosted.bucket._open[hosted.bucket.info("d")["signature"]]
    monkeypatch.setattr(hosted_bucket, "COMPACT_CHECK_S", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(one.index, "set_states", full)
        await hosted.apply(active=[0, 1])
        with pytest.raises(UnavailableError, match="full"):
            await hosted.ask_for([0])
        part = json.loads(await read((await hosted.ask_for([0, 1], "e")).body))
        assert 0 < len(part["rows"]) < 20
        with pytest.raises(RoutingError):
            await hosted.ask_for([2], "e")
    await hosted.apply()
    assert sum((await hosted.sums()).values()) == 190


async def test_a_clean_up_keeps_closed_indexes_until_writing_works(hosted, monkeypatch):
    for n in range(3000):
        hosted.put(f"k{n}", kind=f"{n:0100}", n=n)
    answer = await hosted.ask(reduce=False)
    assert not isinstance(answer.body, tuple), "it is long enough to be streamed"
    (one,) = hosted.bucket._open.values()
    with monkeypatch.context() as patch:
        patch.setattr(one.index, "set_states", full)
        await hosted.apply(active=[0, 1])
    assert hosted.bucket._closing == {one.signature: one}
    await hosted.bucket.clean_up()
    await read(answer.body)
    await until(lambda: not hosted.bucket._closing)
    assert hosted.indexes == [one.signature]
    await hosted.apply()
    assert len((await hosted.query(reduce=False, update="false"))["rows"]) == 3000


async def test_an_index_damaged_while_states_change_is_rebuilt(hosted, monkeypatch):
    hosted.put("k", kind="a", n=1)
    await hosted.apply({"d": SUM, "e": OTHER})
    assert await hosted.sums() == {"a": 1}
    one = hosted.bucket._open[hosted.bucket.info("d")["signature"]]

    def fail(*_):
        raise CorruptionError("page 7 is torn", code="index_damaged")

    monkeypatch.setattr(one.index, "set_states", fail)
    await hosted.apply(active=[0])
    await hosted.apply()
    await until(lambda: hosted.bucket._open.get(one.signature) not in (None, one))
    assert await hosted.sums() == {"a": 1}
    assert "page 7" in hosted.bucket.info("d")["rebuilt_because"]
    assert len((await hosted.query("e"))["rows"]) == 1


async def test_an_index_damaged_at_its_start_is_rebuilt(hosted, monkeypatch):
    hosted.put("k", kind="a", n=1)
    failures = [CorruptionError("page 7 is torn", code="index_damaged")]
    take_over = index.Index.take_over

    def begun(self, *arguments):
        if failures:
            raise failures.pop()
        return take_over(self, *arguments)

    monkeypatch.setattr(index.Index, "take_over", begun)
    await hosted.apply({"d": SUM, "e": OTHER})
    assert await hosted.sums() == {"a": 1}
    assert len((await hosted.query("e"))["rows"]) == 1
    assert "page 7" in hosted.bucket.info("e")["rebuilt_because"]
    await hosted.stop()
    failures += [CorruptionError("page 8 is torn", code="index_damaged")] * 2
    await hosted.start()
    refused = []
    for name in "de":
        try:
            await hosted.query(name)
        except CorruptionError:
            refused.append(name)
    assert len(refused) == 1, "one was damaged again when it was new"


async def test_automatic_updates_follow_the_current_design_document(hosted):
    lazy = {**SUM, "autoupdate": False}
    await hosted.apply({"d": lazy})
    hosted.put("k", kind="a", n=1)
    assert await hosted.sums() == {"a": 1}
    await hosted.apply({"e": SUM, "d": lazy})
    hosted.put("k", kind="a", n=2)
    async with asyncio.timeout(60):
        while await hosted.sums(update="false") != {"a": 2}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await hosted.apply({"d": lazy})
    await until(lambda: hosted.bucket._progress()[hosted.indexes[0]].phase == "asleep")


async def test_an_unusable_design_document_is_refused_alone(hosted):
    await hosted.apply(
        {
            "d": SUM,
            "bad": {"views": {"v": {"map": 7}}},
            "syntax": {"views": {"v": {"map": "function ("}}},
            "none": {"filters": {}},
        }
    )
    assert await hosted.sums() == {}
    for name, code in (
        ("bad", "invalid_design_doc"),
        ("syntax", "compilation_error"),
        ("none", "missing_named_view"),
    ):
        with pytest.raises(UsageError) as raised:
            await hosted.query(name)
        assert raised.value.code == code
    nothing, something = hosted.bucket.info("none"), hosted.bucket.info("d")
    assert nothing.keys() == something.keys()
    assert nothing["rows"] == {}
    with pytest.raises(UsageError) as raised:
        await hosted.query("d", "other")
    assert raised.value.code == "missing_named_view"
    with pytest.raises(UsageError) as raised:
        await hosted.query(limit=-1)
    assert raised.value.code == "query_parse_error"


async def test_inactive_partitions_are_not_answered_for(hosted):
    for n in range(40):
        hosted.put(f"k{n}", kind="a", n=1)
    assert await hosted.sums() == {"a": 40}
    await hosted.engine.set_partition_state("b", 3, PartitionState.REPLICA)
    await hosted.apply(active=[0, 1, 2], resting=[3])
    with pytest.raises(RoutingError):
        await hosted.query()
    some = await hosted.bucket.query("d", "v", {"timeout": 20_000}, [0, 1, 2])
    value = json.loads(await read(some.body))["rows"][0]["value"]
    assert 0 < value < 40
    header = next(iter(hosted.bucket._open.values())).index.newest
    assert header.states[3] == "passive", "it rests, and is ready for a fail-over"
    await hosted.engine.set_partition_state("b", 3, PartitionState.ACTIVE)
    await hosted.apply()
    assert await hosted.sums() == {"a": 40}


async def test_a_frozen_partition_is_not_started(hosted):
    await hosted.apply({})
    await hosted.apply({"d": OTHER}, active=[0, 1], passive=[2], resting=[3])
    header = next(iter(hosted.bucket._open.values())).index.newest
    assert header.states == {0: "active", 1: "active", 2: "passive"}


async def test_statistics_of_an_index_are_shown(hosted):
    bad = {"views": {"v": {"map": "function (doc) { emit(doc.a.b); }"}}}
    await hosted.apply({"d": bad, "again": bad})
    for n in range(30):
        hosted.put(f"k{n}", n=n)
    await hosted.query(reduce=False)
    info = hosted.bucket.info("d")
    assert info["map_errors"]["v"]["count"] == 30
    assert len(info["map_errors"]["v"]["last"]) == 20
    assert info["rows"] == {"v": 0}
    assert info["updates_pending"] == {"minimum": 0, "preferred": 0, "total": 0}
    points = info["rollback_points"]
    assert 2 <= points["count"] <= KEPT_ROOTS_MAX
    assert abs(points["oldest_ms"] - time.time_ns() // 10**6) < 600_000
    assert not info["updater_running"]
    assert info["sizes"]["file"] > 0
    assert json.loads(json.dumps(info)) == info
    figures = hosted.bucket.figures()
    assert (figures["indexes"], figures["map_errors"]) == (1, 30)
    assert figures["commits_total"] > 0
    assert figures["commit_seconds_total"] > 0
    await hosted.apply({})
    after = hosted.bucket.figures()
    assert after["indexes"] == 0
    assert after["commits_total"] >= figures["commits_total"], "totals only grow"
    await until(lambda: hosted.bucket.tasks() == [])


async def test_running_tasks_are_listed(hosted):
    await hosted.query()
    progress = hosted.bucket._indexer.progress()[0]._replace(
        phase="first_build", changes_done=30, changes_total=40
    )
    hosted.bucket._indexer.progress = lambda: [progress]
    next(iter(hosted.bucket._open.values())).is_compacting = True
    indexer, compaction = hosted.bucket.tasks()
    assert indexer["type"] == "indexer"
    assert indexer["progress"] == 75
    assert indexer["design_documents"] == ["_design/d"]
    assert compaction["type"] == "view_compaction"
    assert hosted.bucket.tasks()[0]["started_on"] == indexer["started_on"]


@pytest.mark.slow
async def test_an_index_is_compacted_when_asked_and_by_itself(hosted, monkeypatch):
    for turn in range(6):
        for n in range(1500):
            hosted.put(f"k{n}", kind=f"{n}{turn}" * 20, n=n)
        await hosted.query(limit=0)
    before = hosted.bucket.info("d")["sizes"]["file"]
    hosted.bucket.compact("d")
    hosted.bucket.compact("d")
    assert hosted.bucket.info("d")["compact_running"]
    await until(lambda: not hosted.bucket.info("d")["compact_running"])
    assert hosted.bucket.info("d")["sizes"]["file"] <= before
    assert sum((await hosted.sums()).values()) == 1500 * 1499 // 2
    begun = []
    monkeypatch.setattr(hosted.bucket, "_start_compaction", begun.append)
    monkeypatch.setattr(hosted_bucket, "COMPACT_CHECK_S", 0)
    monkeypatch.setattr(hosted_bucket, "COMPACT_BYTES_MIN", 0)
    monkeypatch.setattr(hosted_bucket, "COMPACT_SHARE", 0)
    looking = asyncio.ensure_future(hosted.bucket._keep_house())
    await until(lambda: begun)
    looking.cancel()


async def test_a_built_index_is_there_after_a_restart(hosted):
    for n in range(50):
        hosted.put(f"k{n}", kind="a", n=1)
    assert await hosted.sums() == {"a": 50}
    created = next(iter(hosted.bucket._open.values())).index.newest.created_ms
    await hosted.stop()
    await hosted.start()
    assert await hosted.sums(update="false") == {"a": 50}
    assert next(iter(hosted.bucket._open.values())).index.newest.created_ms == created
    assert "rebuilt_because" not in hosted.bucket.info("d")


async def test_a_query_waits_for_the_writes_it_names(hosted):
    hosted.put("k", kind="a", n=1)
    partition = hosted.running.bucket.partition_for(b"k")
    token = [f"{partition.failover_log[0].uuid:012x}", partition.high_seqno]
    at = {str(partition.partition_id): token}
    assert await hosted.sums(update="false", at=at) == {"a": 1}
    with pytest.raises(MillstreamError):
        await hosted.sums(update="false", at={"0": ["00000000abcd", 99]}, timeout=100)


async def test_a_recreated_bucket_is_another_bucket(hosted):
    hosted.put("k", kind="a", n=1)
    assert await hosted.sums() == {"a": 1}
    await hosted.engine.delete_bucket("b")
    await hosted.engine.create_bucket("b", PARTITIONS)
    with pytest.raises(MillstreamError):
        await hosted.sums(timeout=2000)


async def test_endless_readers_delay_a_stop_only_once(hosted, monkeypatch):
    monkeypatch.setattr(hosted_bucket, "STOP_WAIT_S", 0.05)
    await hosted.start()
    await hosted.apply({"d": SUM, "e": OTHER})
    readers = list(hosted.bucket._open.values())
    assert len(readers) == 2
    with readers[0].used(), readers[1].used():
        async with asyncio.timeout(60):
            await hosted.stop()


async def test_an_index_that_comes_back_after_its_map_was_stopped_maps_again(hosted):
    hosted.put("k", kind="a", n=1)
    await hosted.apply({"d": SUM, "e": OTHER})
    one = hosted.bucket._open[hosted.bucket.info("e")["signature"]]
    with one.used():  # it stays open behind the scenes
        await hosted.apply({"d": SUM})
        await hosted.apply({"d": SUM, "e": OTHER})
        hosted.put("l", kind="a", n=2)
        assert len((await hosted.query("e"))["rows"]) == 2


LOOP = "for (;;);"
BOMB = "const x = []; for (;;) x.push(new Array(1000).fill(1.5));"
RECURSION = "(function f() { try { f(); } catch (e) { f(); } f(); })();"
BAD_DESIGNS = {
    "map": lambda code: {"views": {"v": {"map": f"function (d) {{ {code} }}"}}},
    "reduce": lambda code: {
        "views": {"v": {"map": MAP, "reduce": f"function (k, v, r) {{ {code} }}"}}
    },
    "map while it is compiled": lambda code: {
        "views": {"v": {"map": f"(function () {{ {code} }})() || function (d) {{}}"}}
    },
    "library": lambda code: {
        "views": {
            "lib": {"m": code},
            "v": {"map": "function (d) { require('views/lib/m'); emit(1); }"},
        }
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "code"),
    [
        *[pytest.param(where, BOMB, id=f"bomb {where}") for where in BAD_DESIGNS],
        *[pytest.param(where, LOOP, id=f"loop {where}") for where in ("map", "reduce", "library")],
        pytest.param("map", RECURSION, id="recursion"),
    ],
)
async def test_failures_of_one_index_never_affect_others(hosted, monkeypatch, where, code):
    """What is asked of another index takes no part of the time that a call of functions may."""
    monkeypatch.setattr(served, "SLOW_S", 0.3)
    monkeypatch.setattr(indexing, "SLOW_S", 0.3)
    monkeypatch.setattr(opening, "OPEN_WAIT_S", 0.3)
    bad = BAD_DESIGNS[where](code)
    count = 0

    async def others_go_on():
        nonlocal count
        for _ in range(50):
            hosted.put(f"k{count}", kind="a", n=1)
            count += 1
        async with asyncio.timeout(4.0):  # a call of functions may take 5 s
            assert await hosted.sums() == {"a": count}

    await others_go_on()
    for _ in range(3):  # there are two threads for all indexes
        async with asyncio.timeout(4.0):
            await hosted.apply({"d": SUM, **{f"x{n}": bad | {"n": n} for n in range(3)}})
        await others_go_on()
    asking = [asyncio.ensure_future(hosted.query("x0", group=True)) for _ in range(8)]
    await others_go_on()
    for active in ([0, 1], list(range(PARTITIONS))):
        async with asyncio.timeout(4.0):
            await hosted.apply(active=active, passive=set(range(PARTITIONS)) - set(active))
    await others_go_on()
    changed = bad | {"options": {"local_seq": True}}
    async with asyncio.timeout(4.0):
        await hosted.apply({"d": SUM, "x0": changed})
    await others_go_on()
    async with asyncio.timeout(4.0):
        await hosted.apply({"d": SUM})
        await hosted.bucket.clean_up()
    await others_go_on()
    for each in asking:
        each.cancel()
    await asyncio.wait(asking)


async def test_endless_compilation_delays_no_other_index(hosted, monkeypatch):
    monkeypatch.setattr(opening, "OPEN_WAIT_S", 0.1)
    make, is_let_go = hosted_bucket.HostedIndex, threading.Event()

    def make_slowly(design, *arguments):
        if design.name == "x":
            is_let_go.wait(60)
        return make(design, *arguments)

    monkeypatch.setattr(hosted_bucket, "HostedIndex", make_slowly)
    async with asyncio.timeout(4.0):
        await hosted.apply({"d": SUM, "x": OTHER})
        hosted.put("k", kind="a", n=1)
        assert await hosted.sums() == {"a": 1}
        await hosted.apply({"d": SUM, "x": OTHER, "y": OTHER | {"language": "javascript"}})
    with pytest.raises(UnavailableError, match="being opened"):
        await hosted.query("x")
    waiting = asyncio.ensure_future(hosted.bucket.until_open("x"))
    is_let_go.set()
    await asyncio.wait_for(waiting, 30)
    assert len((await hosted.query("x"))["rows"]) == 1
    assert len(hosted.bucket._open) == 2


@pytest.mark.slow
async def test_a_looping_map_delays_no_index_of_its_group(hosted, monkeypatch):
    monkeypatch.setattr(served, "SLOW_S", 0.3)
    monkeypatch.setattr(indexing, "SLOW_S", 0.3)
    limits = {"time_limit_s": 2.0, "memory_bytes": MEMORY_BYTES_MAX}
    monkeypatch.setattr(Sandbox.__init__, "__kwdefaults__", limits)
    loops = {"views": {"v": {"map": "function (d) { if (d.loops) for (;;); emit(d.kind); }"}}}
    await hosted.apply({"d": SUM, "x": loops})
    hosted.put("k", kind="a", n=1)
    assert await hosted.sums() == {"a": 1}
    assert len((await hosted.query("x"))["rows"]) == 1
    groups = hosted.bucket._indexer._groups
    await until(lambda: [len(group.served) for group in groups.values()] == [2])
    hosted.put("l", kind="a", n=2, loops=True)
    for n in range(3, 6):
        async with asyncio.timeout(3.5):  # the document is tried twice, 2 s each time
            assert await hosted.sums() == {"a": 1 + sum(range(2, n))}
        hosted.put(f"k{n}", kind="a", n=n)
    rows = (await hosted.query("x", timeout=60_000))["rows"]
    assert [row["id"] for row in rows] == ["k", "k3", "k4", "k5"], "one document has lost its rows"


@pytest.mark.parametrize("after", [{"d": SUM}, {"d": SUM, "x": OTHER}])
async def test_deleting_a_looping_map_delays_no_other_index(hosted, after):
    for n in range(200):
        hosted.put(f"k{n}", kind="a", n=1)
    await hosted.apply({"d": SUM, "x": BAD_DESIGNS["map"](LOOP)})
    looping = hosted.bucket._open[hosted.bucket.info("x")["signature"]]
    await until(lambda: not looping.mapper._mapper._is_fresh)  # the map runs
    async with asyncio.timeout(4.0):  # a call of the map takes 5 s until it is ended
        await hosted.apply(after)
        assert await hosted.sums() == {"a": 200}
    await hosted.bucket.clean_up()


async def test_a_map_that_fails_once_in_a_shared_first_build_costs_no_rows(hosted, monkeypatch):
    for n in range(50):
        hosted.put(f"k{n}", kind="a", n=n)
    failures = [UnavailableError("no process can be started")]
    map_ = IndexMapper.map

    def failing(mapper, changes):
        if failures:
            raise failures.pop()
        return map_(mapper, changes)

    monkeypatch.setattr(IndexMapper, "map", failing)
    await hosted.apply({"d": SUM, "e": OTHER})
    assert await hosted.sums() == {"a": 1225}
    assert len((await hosted.query("e"))["rows"]) == 50
