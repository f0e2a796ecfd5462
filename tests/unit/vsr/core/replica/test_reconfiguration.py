"""Members change between two entries, and no request is refused for it."""

import pytest

from millstream.vsr.core.effects import Code, Message, MovePrimary, Read, TakeSnapshot, Timer
from millstream.vsr.core.entries import Body
from millstream.vsr.core.messages import (
    Envelope,
    EpochStarted,
    Learn,
    LearnOk,
    Prepare,
    StartEpoch,
    StartView,
)
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.requested_changes import RequestedChanges
from support.coordination.coordination_group import Group


def changed(group: Group, *members: int) -> None:
    group.change(*members)
    group.tick(times=6)
    assert group.replies.pop(1000).code is Code.OK


def test_a_group_of_one_grows_to_three() -> None:
    group = Group(1, learners=2)
    group.set(0, 1, b"kept")
    changed(group, 0, 1, 2)
    assert {replica.epoch for replica in group.replicas} == {1}
    assert {replica.status for replica in group.replicas} == {Status.NORMAL}
    group.get(group.leader, 2)
    group.settle()
    assert group.replies[2].value == b"=kept"


def test_all_members_may_change_at_once() -> None:
    group = Group(3, learners=3)
    group.set(group.leader, 1, b"kept")
    group.settle()
    changed(group, 3, 4, 5)
    group.tick(times=20)
    assert group.leader == 3
    assert [replica.status for replica in group.replicas[:3]] == [Status.RETIRED] * 3
    group.get(3, 2)
    group.settle()
    assert group.replies[2].value == b"=kept"


def test_requests_wait_for_the_next_epoch_and_none_is_refused() -> None:
    group = Group(3, learners=2)
    leader = group.leader
    group.passes = lambda s, r, e: not isinstance(e.payload, Prepare)
    assert group.change(leader, 3, 4).state.closing
    group.set(leader, 1, b"held")
    group.get(leader, 2)
    group.settle()
    assert group.replies == {}
    assert group.replicas[leader].state.closing
    group.whole()
    group.tick(times=5)
    assert group.replicas[leader].epoch == 1
    assert group.replies[1].code is Code.OK
    assert group.replies[2].code is Code.OK


def test_a_primary_that_is_not_in_the_next_epoch_says_so() -> None:
    group = Group(3, learners=3)
    leader = group.leader
    group.only(Learn, LearnOk)
    assert group.change(3, 4, 5).state.closing
    group.whole()
    group.set(leader, 1)
    group.get(leader, 2)
    group.step(leader, Timer())
    group.settle()
    group.tick(times=3)
    assert {group.replies[ticket].code for ticket in (1, 2)} == {Code.NOTPRIMARY}


def test_one_change_runs_at_a_time() -> None:
    group = Group(3, learners=2)
    group.only(Learn, LearnOk)
    assert group.change(2, 3, 4).state.closing
    group.change(0, 1, 2, 3, 4, ticket=1001)
    assert group.replies[1001].code is Code.BUSY


def test_a_retired_member_comes_back_in_a_later_epoch() -> None:
    group = Group(3, learners=3)
    changed(group, 3, 4, 5)
    group.tick(times=10)
    changed(group, 0, 4, 5)
    group.tick(times=20)
    assert group.replicas[0].epoch == 2
    assert group.replicas[0].status is Status.NORMAL


def test_a_retired_member_sends_stale_reads_to_the_group_also_those_that_wait() -> None:
    group = Group(3, learners=1)
    retired = (group.leader + 1) % 3
    read = Read(2000, Body(argv=(b"GET", b"k")), seen=1000)
    group.step(retired, read)
    assert 2000 not in group.replies
    changed(group, *(number for number in range(4) if number != retired))
    group.tick(times=6)
    assert group.replicas[retired].status is Status.RETIRED
    group.tick(retired)
    group.step(retired, read._replace(ticket=2001, seen=0))
    assert [group.replies[ticket].code for ticket in (2000, 2001)] == [Code.NOTPRIMARY] * 2


def test_a_member_that_slept_through_an_epoch_is_told() -> None:
    group = Group(3, learners=2)
    sleeper = (group.leader + 1) % 3
    rest = [number for number in range(3) if number != sleeper]
    group.without(sleeper)
    changed(group, *sorted([*rest, 3]))
    group.whole()
    group.tick(times=30)
    assert group.replicas[sleeper].status is Status.RETIRED


def test_more_is_requested_from_the_member_that_sent_entries() -> None:
    group = Group(3, learners=3)
    for replica in group.replicas:
        replica.state.tuning.batch_entries_max = 1
    for ticket in range(30):
        group.set(group.leader, ticket)
        group.settle()
    group.passes = lambda s, r, e: not (isinstance(e.payload, Learn) and e.payload.entries)
    group.change(3, 4, 5)
    group.tick(times=4)
    assert group.replies[1000].code is Code.OK


def test_a_late_start_view_is_no_log_for_who_began_the_epoch_with_a_later_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended the process: the log it speaks of ends before the snapshot."""
    # The new member has fetched the log, and loses its disk before it enters the epoch.
    monkeypatch.setattr(RequestedChanges, "_may_begin", lambda *_: True)
    group = Group(3, learners=2)
    group.tick(times=12)
    late: list[tuple[int, Envelope]] = []
    cut = 4
    group.passes = lambda sender, receiver, envelope: (
        not (receiver == cut and isinstance(envelope.payload, StartEpoch))
    )
    group.change(0, 1, cut)
    group.tick(times=10)
    old, new = group.leader, 1 - group.leader
    assert group.replicas[new].epoch == 1

    def keeps_start_views(sender: int, receiver: int, envelope: Envelope) -> bool:
        if receiver == cut and isinstance(envelope.payload, StartView) and envelope.epoch:
            late.append((sender, envelope))
        return cut not in (sender, receiver)

    group.passes = keeps_start_views
    group.step(old, MovePrimary(2000, group.ids[new]))
    group.settle()
    group.tick(times=10)
    assert group.leader == new
    for number in (old, new):
        group.replicas[number].state.tuning.retain_entries = 0
    for ticket in range(3000, 3020):
        group.set(new, ticket)
        group.settle()
    group.step(new, TakeSnapshot(4000))
    group.settle()
    group.tick(times=10)
    group.passes = lambda sender, receiver, envelope: {sender, receiver} <= {old, cut}
    start = StartEpoch(group.replicas[old].configuration)
    group.replicas[old].state.send(group.ids[cut], start)
    group.tick(old, cut, times=3)
    member = group.replicas[cut]
    assert (member.epoch, member.status) == (1, Status.GAP)
    assert late
    assert all(envelope.payload.op_lsn < member.log.base.lsn for _, envelope in late)
    for _, envelope in late:
        group.step(cut, Message(envelope))
    group.whole()
    group.tick(times=5)
    assert member.status is Status.NORMAL
    assert member.log.head == group.replicas[new].log.head


def test_reads_at_a_primary_that_the_next_epoch_leaves_out_are_refused_at_once() -> None:
    """They once waited for ever: its quorum lives, but nothing of its epoch is read any more."""
    group = Group(3, learners=3)
    group.tick(times=5)
    group.passes = lambda sender, receiver, envelope: (
        not isinstance(envelope.payload, StartEpoch | EpochStarted)
    )
    group.change(3, 4, 5)
    group.tick(times=20)
    leader = group.leader
    assert group.replicas[leader].parts.reconfiguration.next_known is not None
    group.get(leader, 77)
    assert group.replies[77].code is Code.NOTPRIMARY
