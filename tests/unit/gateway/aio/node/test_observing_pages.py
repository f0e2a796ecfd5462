"""Health, samples, logs and events of a node, over HTTP."""

import asyncio
from itertools import count
from types import SimpleNamespace

import pytest
from aiohttp.test_utils import TestClient, TestServer

from millstream.gateway.aio.node import observing_pages
from millstream.gateway.aio.node.observing_pages import (
    EVENT_READERS_MAX,
    OBSERVER,
    PARTITIONS_A_SECOND,
    WALK_EVERY_S_MAX,
)
from millstream.gateway.aio.server import make_application
from millstream.gateway.core.api.node import BucketStatus, NodeMetrics
from millstream.runtime.logs import KeptLines

PAGES = ("health", "samples", "logs", "events")
HOSTILE = "</script><img src=x onerror=alert(1)>\u202e\x00\n data: x"


@pytest.fixture
def lines(monkeypatch):
    kept = KeptLines()
    monkeypatch.setattr(observing_pages, "RECENT", kept)
    return kept


@pytest.fixture
async def observed(client):
    """Pages whose node is sampled when the test says so."""
    observer = client.app[OBSERVER]
    await observer._walk()
    observer._take(1_700_000_000)
    return client


async def test_samples_of_node_and_buckets(observed, body):
    for span_s, interval_s in ((300, 1), (3600, 10), (86400, 60)):
        found = await body(await observed.get(f"/_millstream/samples?span={span_s}"))
        assert found["interval_s"] == interval_s
        assert len(found["times_s"]) == span_s // interval_s
        assert found["times_s"][-1] == 1_700_000_000 // interval_s * interval_s
        orders = found["buckets"]["orders"]
        for series in (*found["node"].values(), *orders.values()):
            assert len(series) == span_s // interval_s
            assert series[-1] is not None
            assert set(series[:-1]) == {None}, "what was not sampled is not known"
    wrong = await body(await observed.get("/_millstream/samples?span=7"), 400)
    assert wrong["error"] == "query_parse_error"


async def test_a_rate_is_growth_between_walks(open_node, monkeypatch):
    observer = make_application(open_node)[OBSERVER]
    highs = count(100, 50)
    monkeypatch.setattr(
        open_node, "metrics",
        lambda buckets: NodeMetrics({}, {"orders": {"changes_high": next(highs)}}
                                    if buckets else {}),
    )  # fmt: skip
    seconds = iter((10.0, 15.0))
    clock = SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr(observing_pages, "time", clock)
    await observer._walk()
    observer._take(1_700_000_000)
    assert "writes_per_s" not in observer.last["buckets"]["orders"], "not known yet"
    await observer._walk()
    for second in (1, 2):  # repeated until the next walk
        observer._take(1_700_000_000 + second)
        assert observer.last["buckets"]["orders"]["writes_per_s"] == 10.0


@pytest.mark.parametrize(
    ("sizes", "wanted_s"),
    [([64], 1), ([PARTITIONS_A_SECOND], 1), ([1024], 4), ([1024] * 100, WALK_EVERY_S_MAX)],
)
async def test_many_partitions_are_read_more_seldom(open_node, monkeypatch, sizes, wanted_s):
    """Reading 1,024 partitions takes more than 2 ms; all buckets were read in one step."""
    observer, asked = make_application(open_node)[OBSERVER], []
    statuses = [BucketStatus(f"b{n}", "0" * 32, p, "", "ready") for n, p in enumerate(sizes)]
    monkeypatch.setattr(open_node, "bucket_statuses", lambda: statuses)

    def metrics(buckets=None):
        asked.append(buckets)
        return NodeMetrics({}, {name: {} for name in buckets})

    monkeypatch.setattr(open_node, "metrics", metrics)
    assert await observer._walk() == wanted_s
    assert asked == [*((status.name,) for status in statuses), ()]
    observer._take(1_700_000_000)
    assert asked[-1] == (), "no bucket is read for a sample"


async def test_health(guarded, ada, bob, body, monkeypatch):
    found = await body(await guarded.get("/_millstream/health", headers=ada))
    assert (found["state"], found["reasons"]) == ("ok", [])

    def statuses(_):
        return [BucketStatus(n, "0" * 32, 1, "", "failed", "torn") for n in ("orders", "secret")]

    monkeypatch.setattr(type(guarded.app[observing_pages.NODE_API]), "bucket_statuses", statuses)
    found = await body(await guarded.get("/_millstream/health", headers=ada))
    assert found["state"] == "failed"
    assert [one["bucket"] for one in found["reasons"]] == ["orders", "secret"]
    assert all(one["do"] for one in found["reasons"])
    found = await body(await guarded.get("/_millstream/health", headers=bob))
    assert [one["bucket"] for one in found["reasons"]] == ["orders"]
    assert "secret" not in str(found)


async def test_who_may_not_is_told_nothing(guarded, bob, body):
    for page in PAGES:
        await body(await guarded.get(f"/_millstream/{page}"), 401)
    for page in PAGES[1:]:
        await body(await guarded.get(f"/_millstream/{page}", headers=bob), 403)


async def test_logs_by_process_level_text_and_number(client, body, lines):
    lines.add("engine", 1, "info", "kv.aio", "one")
    lines.add("index", 2, "warning", "views.aio", "Two")
    lines.add("engine", 3, "critical", "node", HOSTILE)

    async def numbers(query):
        found = await body(await client.get(f"/_millstream/logs?{query}"))
        assert found["processes"] == ["engine", "index"]
        return [line["n"] for line in found["lines"]], found["next"]

    assert await numbers("") == ([1, 2, 3], 3)
    assert await numbers("process=index") == ([2], 3)
    assert await numbers("level=warning") == ([2, 3], 3)
    assert await numbers("text=two") == ([2], 3)
    assert await numbers("text=VIEWS") == ([2], 3)
    assert await numbers("limit=1") == ([3], 3)
    assert await numbers("after=2") == ([3], 3)
    assert await numbers("after=3") == ([], 3)
    assert await numbers("after=99") == ([1, 2, 3], 3), "the process began anew since"
    shown = (await body(await client.get("/_millstream/logs?after=2")))["lines"][0]
    assert shown == {
        "n": 3, "at_ms": 3, "process": "engine", "level": "critical", "logger": "node",
        "text": HOSTILE,
    }  # fmt: skip
    for wrong in ("level=loud", "limit=x", "limit=1001", "after=-1"):
        await body(await client.get(f"/_millstream/logs?{wrong}"), 400)


async def next_event(response, name):
    async with asyncio.timeout(30):
        async for line in response.content:
            if line == b"event: %b\n" % name.encode():
                return await response.content.readline()
    raise AssertionError(f"no event {name!r}")


async def test_events_of_every_topic(observed, lines):
    async with observed.get("/_millstream/events") as response:
        assert response.content_type == "text/event-stream"
        assert b'"at_s":1700000000' in await next_event(response, "sample")
        assert b'"state":"ok"' in await next_event(response, "health")
        lines.add("engine", 1, "info", "x", HOSTILE)
        observer = observed.app[OBSERVER]
        async with observer.sampled:
            observer.sampled.notify_all()
        told = await next_event(response, "log")
        assert b"alert(1)" in told, "a line is one line, whatever is in it"


async def test_chosen_topics_alone(observed, body, lines):
    async with observed.get("/_millstream/events?topics=health") as response:
        await next_event(response, "health")
        await observed.app[OBSERVER].stop()
        async with asyncio.timeout(30):
            assert b"event" not in await response.content.read(), "it ends with the node"
    wrong = await body(await observed.get("/_millstream/events?topics=weather"), 400)
    assert wrong["error"] == "query_parse_error"


async def test_streams_of_events_are_bounded(observed, body, lines):
    observer = observed.app[OBSERVER]
    observer.readers = EVENT_READERS_MAX
    refused = await body(await observed.get("/_millstream/events"), 503)
    assert refused["error"] == "too_many_readers"
    observer.readers -= 1
    async with observed.get("/_millstream/events?topics=samples") as response:
        await next_event(response, "sample")
        assert observer.readers == EVENT_READERS_MAX


async def test_a_disk_that_tells_nothing_ends_no_samples(open_node, monkeypatch):
    """The task of the samples ended with the first such error, and nothing was sampled again."""
    failures = iter((OSError("gone"), None))
    original = open_node.metrics

    def metrics(buckets=None):
        if (failure := next(failures, None)) is not None:
            raise failure
        return original(buckets)

    monkeypatch.setattr(open_node, "metrics", metrics)
    async with TestClient(TestServer(make_application(open_node))) as client:
        observer = client.app[OBSERVER]
        observer.start()
        async with asyncio.timeout(30), observer.sampled:
            await observer.sampled.wait_for(lambda: observer.last)
        await observer.stop()
