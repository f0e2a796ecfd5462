"""Whose turn it is."""

import pytest

from millstream.errors import UnavailableError, UsageError
from millstream.replication.core import scheduling
from millstream.replication.core.scheduling import (
    HEALTHY_MS,
    HISTORY_MAX,
    PENALTY_MAX_MS,
    PENALTY_MIN_MS,
    TURN_MS,
    Schedule,
)

DOWN = UnavailableError("down")


def of(schedule):
    return {name: job.state for name, job in schedule.jobs.items()}


def test_a_job_runs_and_is_completed():
    schedule = Schedule()
    schedule.add("a", 0)
    assert of(schedule) == {"a": "initializing"}
    assert schedule.turn(0) == (("a",), (), None)
    assert of(schedule) == {"a": "running"}
    schedule.ended("a", None, 5)
    assert of(schedule) == {"a": "completed"}
    assert schedule.turn(6) == ((), (), None)


def test_a_completed_job_may_be_asked_for_again_and_a_running_one_stays():
    schedule = Schedule()
    schedule.add("a", 0)
    schedule.turn(0)
    schedule.add("a", 1)
    assert of(schedule) == {"a": "running"}
    schedule.ended("a", None, 5)
    schedule.add("a", 6)
    assert schedule.turn(6).begin == ("a",)


def test_crashes_wait_twice_as_long_each_time_but_no_longer_than_the_maximum():
    schedule, now = Schedule(), 0.0
    schedule.add("a", now)
    waits = []
    for _ in range(14):
        assert schedule.turn(now).begin == ("a",)
        schedule.ended("a", DOWN, now)
        next_ms = schedule.turn(now).next_ms
        waits.append(next_ms - now)
        assert schedule.turn(next_ms - 1).begin == ()
        now = next_ms
    assert waits[:3] == [PENALTY_MIN_MS, 2 * PENALTY_MIN_MS, 4 * PENALTY_MIN_MS]
    assert waits[-1] == PENALTY_MAX_MS
    assert schedule.jobs["a"].reason == "down"


def test_who_ran_well_begins_anew():
    schedule = Schedule()
    schedule.add("a", 0)
    schedule.turn(0)
    schedule.ended("a", DOWN, 0)
    now = schedule.turn(0).next_ms
    schedule.turn(now)
    schedule.ended("a", DOWN, now + HEALTHY_MS)
    assert schedule.jobs["a"].crashes == 1


def test_jobs_take_turns():
    schedule = Schedule(running_max=2)
    for at, name in enumerate("abcd"):
        schedule.add(name, at)
    first = schedule.turn(10)
    assert first == (("a", "b"), (), 10 + TURN_MS)
    assert schedule.turn(10 + TURN_MS - 1).pause == ()
    second = schedule.turn(10 + TURN_MS)
    assert second[:2] == (("c", "d"), ("a", "b"))
    third = schedule.turn(10 + 2 * TURN_MS)
    assert third[:2] == (("a", "b"), ("c", "d"))


def test_no_more_make_room_than_wait():
    schedule = Schedule(running_max=2)
    for name in "abc":
        schedule.add(name, 0)
    schedule.turn(0)
    turn = schedule.turn(TURN_MS)
    assert len(turn.pause) == len(turn.begin) == 1


def test_what_can_never_be_done_is_failed():
    schedule = Schedule()
    schedule.add("a", 0)
    schedule.turn(0)
    schedule.failed("a", UsageError("no"), 1)
    assert of(schedule) == {"a": "failed"}
    assert schedule.turn(10**9).begin == ()


def test_a_removed_job_is_forgotten_and_its_end_is_not_missed():
    schedule = Schedule()
    schedule.add("a", 0)
    schedule.remove("a")
    schedule.ended("a", DOWN, 1)
    schedule.failed("a", DOWN, 1)
    assert schedule.turn(1) == ((), (), None)


def test_jobs_are_bounded(monkeypatch):
    monkeypatch.setattr(scheduling, "JOBS_MAX", 1)
    schedule = Schedule()
    schedule.add("a", 0)
    with pytest.raises(UsageError, match="at most 1 jobs"):
        schedule.add("b", 0)


def test_what_happened_to_a_job_is_told_newest_first_and_bounded():
    schedule = Schedule(running_max=1)
    schedule.add("a", 0)
    schedule.add("b", 1)
    schedule.turn(2)
    schedule.turn(2 + TURN_MS)
    assert [event.kind for event in schedule.jobs["a"].history] == ["stopped", "started", "added"]
    assert schedule.jobs["b"].history[0] == (2 + TURN_MS, "started", "")
    now = 2.0 + TURN_MS
    for _ in range(HISTORY_MAX):
        schedule.ended("b", DOWN, now)
        now += PENALTY_MAX_MS
        schedule.ended("a", None, now)
        schedule.turn(now)
    history = schedule.jobs["b"].history
    assert len(history) == HISTORY_MAX
    assert {event.kind for event in history} == {"crashed", "started"}
    assert {event.reason for event in history if event.kind == "crashed"} == {"down"}
