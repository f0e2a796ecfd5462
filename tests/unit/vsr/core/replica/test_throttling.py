"""A primary lets in less while a live member falls behind, for a time, and never nothing."""

from __future__ import annotations

import pytest

from millstream.vsr.core.effects import Code, Request, Timer
from millstream.vsr.core.entries import Body, Kind
from millstream.vsr.core.messages import NewState, Prepare, QuorumCheck, StartView
from millstream.vsr.core.replica.throttling import (
    THROTTLE_MS,
    THROTTLED_ENTRIES_MIN,
    Throttling,
)
from millstream.vsr.core.tuning import Tuning
from support.coordination.coordination_group import Group


@pytest.fixture(autouse=True)
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tuning, "retain_entries", 100)


def let_in(group: Group, number: int, first: int) -> int:
    """Ask for so many changes; return how many were not refused."""
    for ticket in range(first, first + number):
        group.set(group.leader, ticket)
        group.settle()
    return sum(group.replies[first + i].code is Code.OK for i in range(number))


def lagging() -> Group:
    """A group of which one member lives and never gets an entry."""
    group = Group(3)
    slow = (group.leader + 1) % 3
    group.passes = lambda sender, receiver, envelope: (
        not (receiver == slow and isinstance(envelope.payload, Prepare | NewState | StartView))
    )
    return group


def test_while_a_member_lags_less_is_let_in() -> None:
    group = lagging()
    assert let_in(group, 60, 1) == 60
    group.tick()
    assert let_in(group, 60, 100) == THROTTLED_ENTRIES_MIN
    assert group.replies[159].code is Code.BUSY


def test_a_member_that_never_comes_nearer_is_left_behind() -> None:
    group = lagging()
    let_in(group, 60, 1)
    group.tick(times=int(THROTTLE_MS / 100) + 2)
    assert let_in(group, 60, 100) == 60


def test_a_dead_member_is_not_waited_for() -> None:
    group = Group(3)
    group.without((group.leader + 1) % 3)
    group.tick(times=9)
    assert let_in(group, 60, 1) == 60
    group.tick()
    assert let_in(group, 60, 100) == 60


def test_members_that_caught_up_are_not_waited_for() -> None:
    group = lagging()
    let_in(group, 60, 1)
    group.tick()
    group.whole()
    group.tick(times=3)
    assert let_in(group, 60, 100) == 60


def test_checks_alone_are_no_sign_that_it_lags() -> None:
    group = Group(3)
    group.passes = lambda sender, receiver, envelope: not isinstance(envelope.payload, QuorumCheck)
    assert let_in(group, 60, 1) == 60
    group.tick()
    assert let_in(group, 60, 100) == 60


def wait(group: Group, seconds: int, near: int = 0) -> None:
    """Let time pass in which the slow one lacks 60 entries, and now and then only so many."""
    leader = group.replicas[group.leader]
    slow = group.replicas[(group.leader + 1) % 3].id
    for number in range(seconds * 10):
        lacks = near if near and number % 50 == 25 else 60
        leader.state.acks[slow] = leader.commit_lsn - lacks
        group.tick(*{0, 1, 2} - {group.leader})
        leader.parts.heard_from(slow)
        group.step(group.leader, Timer())
        group.settle()


def test_a_member_that_hovers_is_waited_for_so_long_in_all() -> None:
    """Each time that it came a little nearer the time began anew: it held up all for ever."""
    group = lagging()
    let_in(group, 60, 1)
    wait(group, 20, near=40)
    assert let_in(group, 60, 100) < 60
    wait(group, 12, near=40)
    assert let_in(group, 60, 200) == 60


def test_the_time_does_not_begin_anew_with_another_view() -> None:
    group = lagging()
    let_in(group, 60, 1)
    wait(group, 20)
    leader = group.replicas[group.leader]
    leader.parts.stand_down()
    leader.parts.views.lead(leader.commit_lsn)
    wait(group, 5)
    assert let_in(group, 60, 100) < 60
    wait(group, 7)
    assert let_in(group, 60, 200) == 60


def test_members_that_caught_up_once_are_waited_for_again() -> None:
    group = lagging()
    let_in(group, 60, 1)
    wait(group, 32)
    assert let_in(group, 60, 100) == 60
    wait(group, 6, near=1)
    assert let_in(group, 60, 200) < 60


def test_sessions_end_while_requests_are_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(3)
    leader = group.leader
    opened = Request(1, Body(argv=(b"1000",)), b"i" * 16, kind=Kind.SESSION_OPEN)
    group.step(leader, opened)
    group.settle()
    assert len(group.replicas[leader].table) == 1
    monkeypatch.setattr(Throttling, "full", property(lambda _: True))
    group.set(leader, 2)
    assert group.replies[2].code is Code.BUSY
    group.tick(times=15)
    assert len(group.replicas[leader].table) == 0
