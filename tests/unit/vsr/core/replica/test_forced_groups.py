"""`vsr.core.replica.forced_groups`: a group that lost its majority goes on from one member."""

from __future__ import annotations

import pytest

from millstream.coordination.core.group_state import GroupState
from millstream.vsr.core.configuration import generation
from millstream.vsr.core.effects import (
    Code,
    CopyState,
    Damaged,
    Force,
    Image,
    Reply,
    Start,
    Superseded,
)
from millstream.vsr.core.messages import Recovery
from millstream.vsr.core.replica.execution import epoch_in
from millstream.vsr.core.replica.forced_groups import LISTEN_MS
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.replica import Replica
from support.coordination.coordination_group import Group

TICKS = int(LISTEN_MS / 100) + 2


def force(group: Group, number: int, ticket: int = 900, *, is_confirmed: bool = True) -> Reply:
    group.step(number, Force(ticket, is_confirmed))
    group.settle()
    return group.replies[ticket]


def alone(size: int = 3, survivor: int = 0) -> Group:
    """A group of which only one member has been there for long."""
    group = Group(size)
    group.tick(times=15)
    group.set(group.leader, 1, b"before")
    group.tick(times=2)
    group.without(*(number for number in range(size) if number != survivor))
    group.tick(survivor, times=TICKS)
    return group


def says(reply: Reply, *words: bytes) -> None:
    for word in words:
        assert word in reply.value, reply


def test_a_survivor_goes_on_alone_with_all_that_it_has() -> None:
    group = alone()
    epoch = group.replicas[0].epoch
    before = group.replicas[0].log.op_lsn
    reply = force(group, 0)
    assert reply.code is Code.OK
    replica = group.replicas[0]
    assert replica.leading
    assert replica.members == (group.ids[0],)
    assert generation(replica.epoch) > generation(epoch)
    assert replica.log.op_lsn == before + 1
    group.get(0, 2)
    group.settle()
    assert group.replies[2].value == b"=before"
    assert group.hard_states[0].configuration == replica.configuration


def test_nothing_changes_until_it_is_confirmed_and_what_may_be_lost_is_said() -> None:
    group = alone()
    hard_state = group.hard_states[0]
    reply = force(group, 0, is_confirmed=False)
    assert reply.code is Code.OK
    says(reply, b"kept_lsn", b"silent", group.ids[1].hex().encode(), b"may_be_lost", b"is lost")
    assert group.hard_states[0] == hard_state
    assert not group.replicas[0].leading


def test_a_former_primary_reports_the_positions_of_others() -> None:
    group = Group(3)
    group.tick(times=15)
    leader = group.leader
    group.set(leader, 1, b"v")
    group.tick(times=2)
    acknowledged = group.replicas[leader].commit_lsn
    group.without(*(number for number in range(3) if number != leader))
    group.tick(leader, times=TICKS)
    reply = force(group, leader, is_confirmed=False)
    assert reply.value.count(b"acknowledged_lsn") == 2
    assert reply.value.count(b":%d" % acknowledged) >= 2


def test_entries_not_known_to_be_committed_are_kept_and_named() -> None:
    group = Group(3)
    group.tick(times=15)
    leader = group.leader
    group.without(*(number for number in range(3) if number != leader))
    group.set(leader, 1, b"unsure")
    group.tick(leader, times=TICKS)
    replica = group.replicas[leader]
    assert replica.commit_lsn < replica.log.op_lsn
    unsure = replica.log.op_lsn
    says(force(group, leader, 901, is_confirmed=False), b"kept, though not known to be committed")
    assert force(group, leader).code is Code.OK
    assert replica.commit_lsn > unsure
    group.get(leader, 2)
    group.settle()
    assert group.replies[2].value == b"=unsure"


def test_it_is_refused_while_a_primary_is_heard_or_leads() -> None:
    group = Group(3)
    group.tick(times=TICKS)
    for number in range(3):
        reply = force(group, number, 900 + number)
        assert reply.code is Code.CONFLICT
        says(reply, b"it has a primary")
    assert {replica.epoch for replica in group.replicas} == {0}


def test_it_is_refused_while_a_quorum_of_members_answers() -> None:
    """Two live, and no view comes about: each hears the other ask for one."""
    group = Group(3)
    group.tick(times=15)
    group.passes = lambda s, r, e: 2 not in (s, r) and type(e.payload).__name__ in (
        "StartViewChange", "GetView",
    )  # fmt: skip
    group.tick(0, 1, times=TICKS)
    reply = force(group, 0)
    assert reply.code is Code.CONFLICT
    says(reply, b"a quorum of its members answers", group.ids[1].hex().encode())
    assert group.replicas[0].epoch == 0


def test_members_that_only_ask_for_their_lost_logs_do_not_answer() -> None:
    group = Group(3)
    group.set(group.leader, 1, b"kept")
    group.tick(times=15)
    group.passes = lambda s, r, e: isinstance(e.payload, Recovery)
    for number in (1, 2):
        group.start(number, lost=True)
    group.tick(times=TICKS)
    assert {group.replicas[number].status for number in (1, 2)} == {Status.LOST}
    assert force(group, 1, 901).code is Code.BADCONFIG
    assert force(group, 0).code is Code.OK


def test_a_process_listens_before_it_takes_others_for_silent() -> None:
    group = Group(3)
    group.tick(times=15)
    group.without(1, 2)
    group.start(0)
    group.tick(0, times=20)
    reply = force(group, 0)
    assert reply.code is Code.NOTREADY
    says(reply, b"not listened for long enough")
    group.tick(0, times=TICKS)
    assert force(group, 0, 901).code is Code.OK


def test_old_members_that_come_back_are_refused_and_form_no_quorum() -> None:
    group = alone(5)
    assert force(group, 0).code is Code.OK
    epoch = group.replicas[0].epoch
    group.whole()
    group.tick(times=40)
    assert {replica.status for replica in group.replicas[1:]} == {Status.RETIRED}
    assert group.replicas[0].leading
    assert group.replicas[0].epoch == epoch
    assert all(replica.report().contradiction.encode() == b"" for replica in group.replicas)
    assert "forced to go on without this member" in group.replicas[1].report().trouble
    for number in range(1, 5):  # that they are none any more outlives their processes
        group.start(number)
    group.without(0)
    group.tick(times=60)
    assert not any(replica.leading for replica in group.replicas[1:])


def test_a_forced_group_grows_with_new_nodes_and_not_with_another_history() -> None:
    group = Group(3, learners=2)
    group.tick(times=15)
    group.without(0)
    group.tick(1, 2, times=20)
    for ticket in range(1, 6):
        group.set(group.leader, ticket, b"lost")
        group.tick(1, 2)
    group.without(1, 2)
    group.tick(0, times=TICKS)
    assert force(group, 0).code is Code.OK
    group.whole()
    group.tick(times=30)
    group.change(0, 1, 3)
    group.tick(times=20)
    reply = group.replies.pop(1000)
    assert reply.code is Code.BADCONFIG
    says(reply, b"another history", group.ids[1].hex().encode())
    group.change(0, 3, 4)
    group.tick(times=20)
    assert group.replies.pop(1000).code is Code.OK
    assert [group.replicas[n].epoch for n in (0, 3, 4)] == [group.replicas[0].epoch] * 3
    assert not group.replicas[0].configuration.is_fork


def test_a_second_fork_is_of_a_later_generation_though_nothing_else_has_happened() -> None:
    group = alone()
    assert force(group, 0).code is Code.OK
    replica = group.replicas[0]
    group.step(0, CopyState(77))
    group.tick(0)
    assert group.replies[77].code is Code.OK
    copy = replica.take_copy()
    assert copy is not None
    assert epoch_in(copy, 1) == replica.epoch
    assert replica.take_copy() is None


def test_a_group_of_one_and_a_node_outside_have_nothing_to_force() -> None:
    group = Group(1, learners=1)
    group.tick(times=TICKS)
    assert force(group, 0).code is Code.CONFLICT
    assert force(group, 1, 901).code is Code.BADCONFIG


def test_a_damaged_end_is_cut_and_said_and_what_is_before_it_kept() -> None:
    group = alone()
    log = list(group.replicas[0].log.after(0, 100, 1 << 20))
    log[-1] = Damaged(log[-1].header)  # type: ignore[call-overload]
    replica = group.replicas[0] = Replica(GroupState(), lambda: 0.5)
    group.held.clear()
    image = Image(group.hard_states[0]._replace(commit_hint=0), tuple(log))
    group.disks[0] = log
    group.step(0, Start(image))
    group.tick(0, times=TICKS)
    says(force(group, 0, 901, is_confirmed=False), b"is damaged: it and all up to")
    assert force(group, 0).code is Code.OK
    assert not replica.log.holes
    assert replica.leading
    assert len(group.disks[0]) == replica.log.op_lsn


@pytest.mark.parametrize("number", [0, 1])
def test_a_copy_of_the_state_is_had_of_any_member(number: int) -> None:
    group = Group(3)
    group.set(group.leader, 1, b"kept")
    group.tick(times=10)
    group.step(number, CopyState(50))
    group.tick()
    reply = group.replies[50]
    assert (reply.code, reply.value) == (Code.OK, b"%d" % group.replicas[number].commit_lsn)
    copy = group.replicas[number].take_copy()
    assert copy is not None
    assert copy.id.lsn == int(reply.value)


def test_a_forced_group_goes_on_after_a_restart_and_still_tells_the_old_members() -> None:
    group = alone()
    assert force(group, 0).code is Code.OK
    epoch = group.replicas[0].epoch
    group.start(0)
    group.tick(0, times=5)
    assert group.replicas[0].leading
    assert group.replicas[0].epoch == epoch
    group.passes = lambda s, r, e: s == 0 or r == 0
    group.tick(0, times=5)
    assert {replica.status for replica in group.replicas[1:]} == {Status.RETIRED}


def test_a_group_without_a_journal_goes_on_too_and_says_that_a_restart_loses_it() -> None:
    group = Group(3, journalled=False)
    group.tick(times=15)
    group.set(group.leader, 1, b"before")
    group.tick(times=2)
    group.without(1, 2)
    group.tick(0, times=TICKS)
    reply = force(group, 0)
    assert reply.code is Code.OK
    says(reply, b"it keeps no journal")
    group.get(0, 2)
    group.settle()
    assert group.replies[2].value == b"=before"


def test_hearing_of_a_forced_group_asks_its_members() -> None:
    """From anybody who knows them: it may have no way to the survivor."""
    group = alone()
    assert force(group, 0).code is Code.OK
    configuration = group.replicas[0].configuration
    group.passes = lambda s, r, e: {s, r} == {0, 1}
    group.step(1, Superseded(configuration.epoch, configuration.members))
    group.settle()
    assert group.replicas[1].status is Status.RETIRED
    assert group.replicas[2].status is not Status.RETIRED


def test_old_members_that_hear_of_a_fork_go_on_no_more_though_nobody_of_it_is_there() -> None:
    """Any node of the pool may have told them; the survivor and all new members are away."""
    group = alone()
    assert force(group, 0).code is Code.OK
    configuration = group.replicas[0].configuration
    group.passes = lambda s, r, e: 0 not in (s, r)
    for number in (1, 2):
        group.step(number, Superseded(configuration.epoch, configuration.members))
    group.settle()
    for number in (1, 2):
        group.tick(number, times=3 * TICKS)
        assert group.replicas[number].status is Status.RETIRED
        group.start(number)
        group.tick(number, times=TICKS)
        replica = group.replicas[number]
        assert replica.status is Status.RETIRED, "durably"
        assert "forced to go on without this member" in replica.report().trouble
    group.passes = lambda s, r, e: True
    group.tick(times=TICKS)
    assert group.replicas[0].leading


def test_hearsay_of_a_fork_proves_nothing() -> None:
    group = alone()
    assert force(group, 0).code is Code.OK
    configuration = group.replicas[0].configuration
    group.passes = lambda s, r, e: 0 not in (s, r)
    group.step(1, Superseded(configuration.epoch, configuration.members))
    group.settle()
    group.tick(1, 2, times=TICKS)
    assert group.replicas[1].status is Status.RETIRED
    heard = group.replicas[2].parts.reconfiguration.newest.epoch
    assert heard < configuration.epoch, "nobody has told that one"


@pytest.mark.parametrize("is_member", [False, True])
def test_an_epoch_of_the_same_generation_or_of_ones_own_is_only_asked_for(is_member: bool) -> None:
    group = alone()
    replica = group.replicas[1]
    later = replica.epoch + (1 << 16 if is_member else 1)
    members = group.ids if is_member else group.ids[:1]
    group.passes = lambda s, r, e: False
    group.step(1, Superseded(later, tuple(members)))
    group.settle()
    assert replica.status is not Status.RETIRED
