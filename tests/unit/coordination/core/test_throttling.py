"""A primary lets in less while a live member falls behind, for a time, and never nothing."""

from __future__ import annotations

import pytest

from coordination_group import Group
from millstream.coordination.core.effects import Code
from millstream.coordination.core.messages import NewState, Prepare, QuorumCheck
from millstream.coordination.core.replica import Replica
from millstream.coordination.core.throttling import THROTTLE_MS, THROTTLED_ENTRIES_MIN


@pytest.fixture(autouse=True)
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replica, "retain_entries", 100)


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
        not (receiver == slow and isinstance(envelope.payload, Prepare | NewState))
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


def test_nobody_waits_for_a_dead_member() -> None:
    group = Group(3)
    group.without((group.leader + 1) % 3)
    group.tick(times=9)
    assert let_in(group, 60, 1) == 60
    group.tick()
    assert let_in(group, 60, 100) == 60


def test_whoever_catches_up_is_waited_for_no_more() -> None:
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
