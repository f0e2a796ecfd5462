"""Generators that ask and wait."""

import pytest

from millstream.errors import ConditionError, UnavailableError
from millstream.replication.core.asking import Ask, Pause, ReadInfo
from millstream.replication.core.tasks import ATTEMPTS_MAX, RETRY_MIN_MS, Tasks, asked

ASK = Ask("source", ReadInfo())


@pytest.fixture
def ended():
    return []


@pytest.fixture
def tasks(ended):
    tasks = Tasks()
    tasks.spawn(asked("source", ReadInfo()), lambda *end: ended.append(end))
    return tasks


def test_an_answer_ends_a_task(tasks, ended):
    ((ticket, step),) = tasks.take()
    assert step == ASK
    tasks.answer(ticket, "info")
    tasks.answer(ticket, "again")
    assert ended == [("info", None)]
    assert tasks.take() == []


def test_what_may_go_well_later_is_asked_again(tasks, ended):
    error, waits = UnavailableError("down"), []
    for _ in range(ATTEMPTS_MAX - 1):
        tasks.fail(tasks.take()[0].ticket, error)
        ((ticket, step),) = tasks.take()
        assert isinstance(step, Pause)
        waits.append(step.wait_ms)
        tasks.answer(ticket, None)
    tasks.fail(tasks.take()[0].ticket, error)
    assert waits == [RETRY_MIN_MS * 2**n for n in range(ATTEMPTS_MAX - 1)]
    assert ended == [(None, error)]


def test_what_stays_wrong_is_not(tasks, ended):
    error = ConditionError("no")
    tasks.fail(tasks.take()[0].ticket, error)
    assert ended == [(None, error)]


def test_after_the_end_nothing_runs(tasks, ended):
    (effect,) = tasks.take()
    tasks.close()
    tasks.answer(effect.ticket, 1)
    tasks.fail(effect.ticket, UnavailableError("x"))
    assert ended == []
    assert tasks.take() == []
