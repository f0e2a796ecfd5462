"""The jobs of a node."""

import asyncio
import itertools
from contextlib import asynccontextmanager

import pytest

from millstream.errors import UnavailableError, UsageError
from millstream.replication.aio.scheduler import Scheduler
from millstream.replication.core.jobs import parse_job
from millstream.replication.core.scheduling import PENALTY_MIN_MS, TURN_MS, Schedule
from simulators.sites.database import Database
from support.http.site_peers import SitePeer

MS = 1_000_000


def turns():
    """Turns of the loop, as many as there are until the time limit of tests."""
    return itertools.count()


class Node:
    """A scheduler with a clock that is set, and two databases for all jobs."""

    def __init__(self, running_max=10):
        numbers = itertools.count(1)
        self.source, self.target = SitePeer(Database(numbers)), SitePeer(Database(numbers))
        self.source.database.extend("n")
        self.now_ms, self.opened, self.error = 0, 0, None
        self.scheduler = Scheduler(self.open, Schedule(running_max), lambda: self.now_ms * MS)

    @asynccontextmanager
    async def open(self, job):
        self.opened += 1
        if self.error is not None:
            raise self.error
        yield self.source, self.target

    def add(self, name, **more):
        self.scheduler.add(name, parse_job({"source": "a", "target": "b"} | more))

    def state(self, name):
        return self.scheduler.jobs[name].state

    async def until(self, name, state):
        for _ in turns():
            await asyncio.sleep(0)
            if self.state(name) == state:
                return


@pytest.fixture
async def node():
    node = Node()
    task = asyncio.ensure_future(node.scheduler.run())
    yield node
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_job_is_completed(node):
    node.add("one")
    await node.until("one", "completed")
    assert node.target.database.state() == node.source.database.state()
    assert node.scheduler.run_of("one").statistics.docs_written == 1


async def test_it_ends_although_something_happens_in_the_same_turn():
    node = Node()
    node.error = UnavailableError("down")
    task = asyncio.ensure_future(node.scheduler.run())
    node.add("one")
    await node.until("one", "crashing")  # now it waits until the job is due again
    await asyncio.sleep(0)
    await node.scheduler.remove("one")
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=1)
    assert done == {task}
    assert task.cancelled()


async def test_a_job_that_crashes_is_run_again_later(node):
    node.error = UnavailableError("down")
    node.add("one")
    await node.until("one", "crashing")
    assert node.scheduler.jobs["one"].reason == "down"
    node.error, node.now_ms = None, PENALTY_MIN_MS
    node.add("another")  # wakes it
    await node.until("one", "completed")


async def test_a_job_that_can_never_run_has_failed(node):
    node.error = UsageError("no", code="bad_request")
    node.add("one")
    await node.until("one", "failed")


async def test_what_an_end_refuses_may_go_well_later(node):
    def refuse(_):
        raise UsageError("bad page", code="bad_request")

    node.source.ask = refuse
    node.add("one")
    await node.until("one", "crashing")
    assert node.scheduler.jobs["one"].reason == "bad page"


async def test_a_mistake_of_ours_ends_a_run_and_not_its_job(node, caplog):
    node.error = ZeroDivisionError()
    node.add("one")
    await node.until("one", "crashing")
    assert "ZeroDivisionError" in caplog.text
    node.error, node.now_ms = None, PENALTY_MIN_MS
    assert node.scheduler.add("one", parse_job({"source": "a", "target": "b"})) is False
    node.add("another")
    await node.until("one", "completed")
    node.scheduler.forget("one")
    assert "one" not in node.scheduler.jobs


async def test_who_leaves_makes_room_at_once():
    node = Node(running_max=1)
    task = asyncio.ensure_future(node.scheduler.run())
    node.add("one", continuous=True)
    await node.until("one", "running")
    node.add("two", continuous=True)
    await asyncio.sleep(0)
    await node.scheduler.remove("one")
    await node.until("two", "running")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_removed_job_stops(node):
    node.add("one", continuous=True)
    await node.until("one", "running")
    for _ in turns():
        await asyncio.sleep(0)
        if node.source.asked:
            break
    await node.scheduler.remove("one")
    assert node.scheduler.jobs == {}
    assert node.scheduler.run_of("one") is None
    node.scheduler.add("one", parse_job({"source": "a", "target": "b"}))
    await node.until("one", "completed")


async def test_jobs_make_room_for_others():
    node = Node(running_max=1)
    task = asyncio.ensure_future(node.scheduler.run())
    node.add("one", continuous=True)
    await node.until("one", "running")
    node.add("two", continuous=True)
    await asyncio.sleep(0)
    assert node.state("two") in ("initializing", "pending")
    node.now_ms = TURN_MS
    node.scheduler.add("three", parse_job({"source": "a", "target": "b"}))
    await node.until("two", "running")
    assert node.state("one") == "pending"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
