"""One job between two databases in memory."""

import asyncio
import itertools

import pytest

from millstream.errors import UnavailableError
from millstream.replication.aio.runner import Runner
from millstream.replication.core import tasks
from millstream.replication.core.jobs import parse_job
from simulators.sites.database import Database
from support.http.site_peers import SitePeer

ENDS = {"source": "a", "target": "b"}


@pytest.fixture
def ends():
    numbers = itertools.count(1)
    source, target = Database(numbers), Database(numbers)
    for number in range(9):
        source.extend(f"n{number}")
    return SitePeer(source), SitePeer(target)


async def test_a_job_ends(ends):
    source, target = ends
    run = await Runner(parse_job({**ENDS, "worker_batch_size": 2}), source, target).finish()
    assert target.database.state() == source.database.state()
    assert run.statistics.docs_written == 9
    assert run.entries[0].is_complete


async def test_a_continuous_job_hears_of_changes_and_can_be_cancelled(ends):
    source, target = ends
    job = parse_job({**ENDS, "continuous": True})
    task = asyncio.ensure_future(Runner(job, source, target).finish())
    source.database.extend("later")
    while target.database.state() != source.database.state():
        source.changed.set()
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    asked = len(source.asked)
    source.changed.set()
    await asyncio.sleep(0)
    assert len(source.asked) == asked


async def test_an_error_is_raised_after_its_attempts(ends, monkeypatch):
    monkeypatch.setattr(tasks, "RETRY_MIN_MS", 0)
    source, target = ends
    attempts = []

    def fail(_):
        attempts.append(1)
        raise UnavailableError("down", code="busy")

    monkeypatch.setattr(target.database, "on_Diff", fail, raising=False)
    with pytest.raises(UnavailableError, match="down"):
        await Runner(parse_job(ENDS), source, target).finish()
    assert len(attempts) == tasks.ATTEMPTS_MAX
