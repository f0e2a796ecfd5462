import asyncio

import pytest

from millstream.runtime.pace import REST_FACTOR, STEP_S, Pace


@pytest.fixture
def clock(monkeypatch):
    """A clock that only rests and the test itself turn; index 1 counts the rests."""
    now = [100.0]
    rests = []

    async def sleep(seconds):
        rests.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return now, rests


async def test_a_job_rests_longer_than_it_worked(clock):
    now, rests = clock
    pace = Pace(lambda: now[0])
    now[0] += STEP_S / 2
    assert not pace.is_over
    await pace.breathe()
    assert rests == []
    assert pace.longest_s == 0
    now[0] += STEP_S
    assert pace.is_over
    await pace.breathe()
    assert rests == [pytest.approx(1.5 * STEP_S * REST_FACTOR)]
    assert pace.longest_s == pytest.approx(1.5 * STEP_S)
    assert not pace.is_over


async def test_time_spent_waiting_is_not_work(clock):
    now, rests = clock
    pace = Pace(lambda: now[0])
    now[0] += 10
    pace.restart()
    await pace.breathe()
    assert rests == []


async def test_a_job_may_ask_for_more_of_the_loop(clock):
    now, rests = clock
    pace = Pace(lambda: now[0])
    now[0] += 2 * STEP_S
    await pace.breathe(0)
    assert rests == [0]
