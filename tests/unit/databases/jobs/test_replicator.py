"""The database of jobs: which documents are jobs, on a real node, with ends in memory."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millstream.databases.jobs.replicator import ReplicatorDocuments, utc_text
from millstream.documents.sent import parse_sent
from millstream.documents.stored import StoredDocument
from millstream.documents.updating import interactive
from millstream.errors import AccessError, MillstreamError, UnavailableError, UsageError
from millstream.model.partitions import PartitionState
from millstream.node.engine import Engine
from millstream.node.settings import Settings
from millstream.replication.aio.scheduler import Scheduler
from millstream.replication.core.jobs import Job, parse_job
from millstream.replication.core.reports import job_name
from millstream.replication.core.scheduling import PENALTY_MAX_MS, PENALTY_MIN_MS, Schedule
from simulators.sites.database import Database
from support.http.site_peers import SitePeer

NAME = "_replicator"
MS = 1_000_000
HIDDEN = "hushhush"
ENDS = {"source": "http://a.example/a", "target": "http://b.example/b"}


def put(content: dict[str, Any]) -> Callable[[StoredDocument | None], StoredDocument | None]:
    def decide(one: StoredDocument | None) -> StoredDocument | None:
        there = one is not None and one.exists and not one.winner.is_deleted
        named = {"_rev": one.winner.rev} if one is not None and there else {}
        sent = parse_sent(json.dumps({**content, **named}).encode())
        return interactive(one, sent, revs_limit=9).document

    return decide


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what changes has no event here
            await asyncio.sleep(0.005)


class Life:
    """What a node has from one start to its end: documents that are jobs, and their schedule."""

    def __init__(self, world: World, running_max: int = 10) -> None:
        self.world = world
        self.jobs = ReplicatorDocuments(
            world.node.documents, world.node._job_rows, world.node._make_replicator,
            lambda: world.now_ms * MS,
        )  # fmt: skip
        self.scheduler = Scheduler(
            self.open, Schedule(running_max), lambda: world.now_ms * MS,
            lambda name: self.jobs.ended(name, self.scheduler),
        )  # fmt: skip
        self.tasks = [
            asyncio.ensure_future(self.scheduler.run()),
            asyncio.ensure_future(self.jobs.follow(self.scheduler)),
        ]

    @asynccontextmanager
    async def open(self, job: Job) -> AsyncIterator[tuple[SitePeer, SitePeer]]:
        self.world.opened.append(job)
        if self.world.errors:
            raise self.world.errors.pop(0)
        self.world.running += 1
        try:
            yield self.world.source, self.world.target
        finally:
            self.world.running -= 1

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)

    def shown(self) -> dict[str, dict[str, Any]]:
        return {each["doc_id"]: each for each in self.jobs.shown(self.scheduler)}

    def states(self) -> dict[str, str]:
        return {name: each["state"] for name, each in self.shown().items()}

    async def until(self, **states: str) -> None:
        """Wait until these documents are so, and no others are there."""
        await until(lambda: self.states() == states)


class World:
    """A node whose own replicator is off, two databases, and a clock that is set."""

    def __init__(self, node: Engine) -> None:
        self.node = node
        numbers = itertools.count(1)
        self.source, self.target = SitePeer(Database(numbers)), SitePeer(Database(numbers))
        self.source.database.extend("n")
        self.now_ms = 1_000_000
        self.errors: list[MillstreamError] = []
        self.opened: list[Job] = []
        self.running = 0
        self.lives: list[Life] = []

    def live(self, running_max: int = 10) -> Life:
        self.lives.append(Life(self, running_max))
        return self.lives[-1]

    async def write(self, doc_id: str, **content: Any) -> None:
        edit = doc_id, put(content)
        [one] = await self.node.documents.update(NAME, [edit], is_durable=True)
        assert not isinstance(one, Exception), one

    async def until_keys(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(await self.keys()) != count:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.005)

    async def keys(self) -> list[str]:
        """Of what is remembered."""
        keys = [p.known_keys() for p in self.node.served[NAME].partitions]
        found = [key.decode() for each in keys for key in each if key.startswith(b"_state/")]
        read = [await self.node.documents.read(NAME, key) for key in found]
        return [k for k, one in zip(found, read, strict=True) if one and not one.winner.is_deleted]


@pytest.fixture
async def world(make_settings: Callable[..., Settings]) -> AsyncIterator[World]:
    node = await Engine.start(make_settings(http=None))
    await node.replications.stop()
    await node.create_bucket(NAME, 4)
    world = World(node)
    yield world
    for life in world.lives:
        await life.stop()
    await node.stop()


async def test_a_job_is_done_and_not_done_again(world: World) -> None:
    life = world.live()
    await world.write("one", **ENDS)
    await life.until(one="completed")
    shown = life.shown()["one"]
    assert shown["info"]["docs_written"] == 1
    assert (shown["source"], shown["target"]) == ("http://a.example/a/", "http://b.example/b/")
    assert shown["id"] == job_name(parse_job(ENDS))
    assert shown["error_count"] == 0
    assert life.scheduler.jobs == {}
    await world.until_keys(1)
    await life.stop()
    again = world.live()
    await world.write("other", **ENDS, selector={"a": 1})
    await again.until(one="completed", other="completed")
    assert len(world.opened) == 2
    assert again.shown()["one"] == shown
    await world.write("one", **ENDS, owner="somebody")  # it is asked for anew
    await until(lambda: len(world.opened) == 3)
    await again.until(one="completed", other="completed")


async def test_what_goes_on_goes_on_after_a_restart(world: World) -> None:
    life = world.live()
    await world.write("one", **ENDS, continuous=True)
    await life.until(one="running")
    await life.stop()
    assert world.running == 0
    again = world.live()
    await again.until(one="running")
    assert await world.keys() == []


async def test_a_job_that_crashes_waits_twice_as_long_each_time(world: World) -> None:
    world.errors = [UnavailableError(f"down {n}") for n in range(14)]
    life = world.live()
    await world.write("one", **ENDS)
    wait_ms = PENALTY_MIN_MS
    for number in range(14):
        await life.until(one="crashing")
        shown = life.shown()["one"]
        assert (shown["error_count"], shown["info"]) == (number + 1, {"error": f"down {number}"})
        assert shown["last_updated"] == utc_text(world.now_ms * MS)
        world.now_ms += wait_ms - 1
        life.scheduler._happened.set()
        await asyncio.sleep(0)
        assert len(world.opened) == number + 1
        world.now_ms += 1
        life.scheduler._happened.set()
        await until(lambda: len(world.opened) > number + 1)  # noqa: B023
        wait_ms = min(wait_ms * 2, PENALTY_MAX_MS)
    await life.until(one="completed")
    assert wait_ms == PENALTY_MAX_MS
    assert "error" not in life.shown()["one"]["info"]
    assert life.shown()["one"]["error_count"] == 0


async def test_jobs_wait_for_their_turn(world: World) -> None:
    life = world.live(running_max=1)
    await world.write("one", **ENDS, continuous=True)
    await life.until(one="running")
    await world.write("two", **ENDS, selector={"x": 1}, continuous=True)
    await life.until(one="running", two="pending")
    await world.write("one", _deleted=True)
    await life.until(two="running")


async def test_what_can_never_be_done_has_failed(world: World) -> None:
    world.errors = [UsageError("no such filter", code="bad_request")]
    life = world.live()
    await world.write("one", **ENDS)
    await life.until(one="failed")
    assert life.shown()["one"]["info"] == {"error": "no such filter"}
    await world.until_keys(1)
    await life.stop()
    again = world.live()
    await again.until(one="failed")
    assert len(world.opened) == 1
    world.errors = [AccessError("not you", code="unauthorized")]
    await world.write("one", **ENDS, owner="somebody else")
    await again.until(one="crashing")


@pytest.mark.parametrize("broken", [
    {}, {"source": "a"}, {"source": 1, "target": "b"}, {**ENDS, "target": "http://b:99999/x"},
    {**ENDS, "target": "http://[::1/x"}, {**ENDS, "continuous": "yes"},
    {**ENDS, "selector": [], "doc_ids": []}, {**ENDS, "proxy": "http://:0"},
    {**ENDS, "source": {"url": "http://a/b", "headers": 1}}, {**ENDS, "filter": 3},
    {**ENDS, "worker_processes": 0}, {**ENDS, "query_params": "x"},
])  # fmt: skip
async def test_what_is_no_job_fails_alone(world: World, broken: dict[str, Any]) -> None:
    life = world.live()
    await world.write("broken", **broken)
    await world.write("good", **ENDS)
    await world.write("_design/d", views={})
    await life.until(broken="failed", good="completed")
    shown = life.shown()["broken"]
    assert shown["id"] is None
    assert shown["info"]["error"]
    assert shown["last_updated"] == shown["start_time"] == utc_text(world.now_ms * MS)
    await world.write("broken", **ENDS, selector={})
    await life.until(broken="completed", good="completed")


async def test_an_edit_while_it_runs_begins_it_anew(world: World) -> None:
    life = world.live()
    await world.write("one", **ENDS, continuous=True)
    await life.until(one="running")
    name = life.shown()["one"]["id"]
    await world.write("one", **ENDS, continuous=True, worker_batch_size=7)
    await until(lambda: len(world.opened) == 2)
    assert world.opened[-1].worker_batch_size == 7
    assert world.running == 1
    await world.write("one", **ENDS, continuous=True, doc_ids=["x"])
    await until(lambda: len(world.opened) == 3)
    await life.until(one="running")
    assert name not in life.scheduler.jobs
    assert world.running == 1
    await world.write("one", source="nothing else")
    await life.until(one="failed")
    await until(lambda: (world.running, life.scheduler.jobs) == (0, {}))


async def test_a_deletion_ends_it(world: World) -> None:
    life = world.live()
    await world.write("one", **ENDS, continuous=True)
    await world.write("two", **ENDS, selector={})
    await life.until(one="running", two="completed")
    await world.until_keys(1)
    await world.write("one", _deleted=True)
    await life.until(two="completed")
    await until(lambda: (world.running, life.scheduler.jobs) == (0, {}))
    await world.write("two", _deleted=True)
    await world.until_keys(0)
    assert life.states() == {}


async def test_of_two_that_ask_for_one_the_first_has_it_until_it_is_over(world: World) -> None:
    life = world.live()
    await world.write("one", **ENDS, continuous=True)
    await life.until(one="running")
    await world.write("two", **ENDS, continuous=True)
    await life.until(one="running", two="failed")
    assert "'one'" in life.shown()["two"]["info"]["error"]
    await world.write("two", _deleted=True)
    await life.until(one="running")
    assert world.running == 1
    await world.write("three", **ENDS)
    await life.until(one="running", three="completed")
    await world.write("four", **ENDS)  # the same, once more
    await life.until(one="running", three="completed", four="completed")
    await world.write("three", _deleted=True)
    await life.until(one="running", four="completed")


async def test_a_job_whose_document_says_that_it_is_over_is_not_run(world: World) -> None:
    stats = {"docs_written": 7}
    said = {"_replication_state": "completed", "_replication_state_time": "1970-01-02T00:00:00Z"}
    await world.write("done", **ENDS, **said, _replication_stats=stats)
    failed = {"_replication_state": "failed", "_replication_state_reason": "no such db"}
    await world.write("bad", **ENDS, **failed, _replication_state_time=86_400)
    await world.write("odd", source=5, **failed, _replication_state_time="never")
    await world.write("begun", **ENDS, _replication_state="triggered", selector={})
    await world.write("crashed", **ENDS, _replication_state="error", doc_ids=["x"])
    states = {"done": "completed", "bad": "failed", "odd": "failed"}
    life = world.live()
    await life.until(**states, begun="completed", crashed="completed")
    assert len(world.opened) == 2
    shown = life.shown()
    assert shown["done"]["info"] == stats
    assert shown["bad"]["info"] == {"error": "no such db"}
    for name in ("done", "bad"):
        assert shown[name]["last_updated"] == "1970-01-02T00:00:00Z"
    await world.write("done", **ENDS)
    await life.until(**states, begun="completed", crashed="completed")
    await until(lambda: len(world.opened) == 3)


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", 2**40])
async def test_a_time_that_nobody_can_show_counts_as_unknown(world: World, time: object) -> None:
    await world.write("odd", **ENDS, _replication_state="failed", _replication_state_time=time)
    life = world.live()
    await life.until(odd="failed")
    assert life.shown()["odd"]["last_updated"] == life.shown()["odd"]["start_time"]


async def test_what_a_request_began_is_not_taken_over(world: World) -> None:
    life = world.live()
    name = job_name(parse_job({**ENDS, "continuous": True}))
    life.scheduler.add(name, parse_job({**ENDS, "continuous": True}))
    await world.write("one", **ENDS, continuous=True)
    await life.until(one="failed")
    assert "by a request" in life.shown()["one"]["info"]["error"]
    await world.write("one", _deleted=True)
    await life.until()
    assert list(life.scheduler.jobs) == [name]


async def test_a_job_goes_with_the_partition_of_its_document(world: World) -> None:
    """Two lives, as on two nodes, one of which sees the copies after a move."""
    life = world.live()
    await world.write("always", **ENDS, continuous=True)
    await world.write("once", **ENDS, selector={})
    await life.until(always="running", once="completed")
    await world.until_keys(1)
    for number in range(4):
        await world.node.set_partition_state(NAME, number, PartitionState.DEAD)
    await life.until()
    await until(lambda: (world.running, life.scheduler.jobs) == (0, {}))
    other, opened = world.live(), len(world.opened)
    await life.stop()
    assert other.states() == {}
    for number in range(4):
        await world.node.set_partition_state(NAME, number, PartitionState.ACTIVE)
    await other.until(always="running", once="completed")
    assert len(world.opened) == opened + 1
    written = other.scheduler.run_of(other.shown()["always"]["id"])
    assert written is not None
    assert written.statistics.docs_written == 0  # it went on at the checkpoint


async def test_jobs_end_with_their_database(world: World) -> None:
    life = world.live()
    await world.write("one", **ENDS, continuous=True)
    await life.until(one="running")
    await world.node.delete_bucket(NAME)
    life.jobs.bucket_gone("another")
    life.jobs.bucket_gone(NAME)
    await life.until()
    await until(lambda: world.running == 0)
    await asyncio.gather(life.jobs.prepare(), life.jobs.prepare())
    life.jobs.bucket_up(NAME)
    await world.write("two", **ENDS)
    await life.until(two="completed")


async def test_no_password_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    life = world.live()
    far = f"http://me:{HIDDEN}@a.example/a"
    auth = {"basic": {"username": "me", "password": HIDDEN}, "bearer": HIDDEN}
    world.errors = [UnavailableError("down")]
    await world.write("one", source=far, target=ENDS["target"], proxy=f"http://u:{HIDDEN}@p:1")
    await life.until(one="crashing")
    headers = {"Authorization": HIDDEN}
    end = {"url": ENDS["source"], "auth": auth, "headers": headers}
    await world.write("two", source=end, target=ENDS["target"], doc_ids=["x"])
    await world.write("bad", source=far, target=5)
    await life.until(one="crashing", two="completed", bad="failed")
    assert HIDDEN not in json.dumps(life.shown()) + caplog.text + repr(world.opened)


def test_times() -> None:
    assert utc_text(0) == "1970-01-01T00:00:00Z"
