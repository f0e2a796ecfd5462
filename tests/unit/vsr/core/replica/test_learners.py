"""Learners fetch what is committed while the group works, and count for nothing."""

from typing import Any

import pytest

from millstream.vsr.core.effects import Append, Code, Damaged, Install, Message, Refused
from millstream.vsr.core.entries import Entry
from millstream.vsr.core.messages import Learn, LearnOk, Prepare
from millstream.vsr.core.replica import requested_changes as changing
from millstream.vsr.core.replica.member import Status
from support.coordination.coordination_group import Group


def filled(size: int, learners: int, entries: int) -> Group:
    group = Group(size, learners)
    for replica in group.replicas:
        replica.state.tuning.batch_entries_max = 4
    for ticket in range(entries):
        group.set(group.leader, ticket, b"%d" % ticket)
    group.settle()
    return group


def learned(group: Group, number: int) -> tuple[int, Any]:
    replica = group.replicas[number]
    return replica.commit_lsn, replica.machine.registers.values.get(b"k")  # type: ignore[attr-defined]


def test_a_learner_has_the_state_before_the_epoch_ends() -> None:
    group = filled(3, 2, 30)
    leader = group.leader
    group.passes = lambda s, r, e: not isinstance(e.payload, Prepare)
    group.change(leader, 3, 4)
    assert group.replicas[leader].state.closing
    assert learned(group, 3) == learned(group, leader)
    report = group.replicas[3].report()
    assert (report.role, report.status, report.epoch) == ("learner", "INITIALIZATION", 0)
    assert dict(group.replicas[leader].report().lags)[group.ids[3]] == 0


def test_one_batch_is_under_way_at_a_time() -> None:
    group = filled(3, 2, 30)
    leader = group.leader
    group.only(Learn)
    group.change(leader, 3, 4)
    group.tick(leader, times=2)
    group.net.clear()
    group.only(Learn, LearnOk)
    group.tick(leader)
    for sender, receiver, envelope in group.sent:
        if sender == leader and receiver == 3 and isinstance(envelope.payload, Learn):
            assert len(envelope.payload.entries) <= 4
    assert group.replicas[leader].state.closing


def test_an_address_where_nobody_answers_changes_nothing() -> None:
    group = filled(3, 2, 3)
    leader = group.leader
    group.without(3, 4)
    group.change(leader, 3, 4)
    group.set(leader, 900)
    group.tick(times=60)
    assert group.replies[1000].code is Code.NOTREADY
    lags = dict(zip(*[iter(group.replies[1000].value.split())] * 2, strict=True))
    assert lags == {group.ids[number].hex().encode(): b"5" for number in (3, 4)}
    assert group.replies[900].code is Code.OK
    assert group.replicas[leader].epoch == 0
    assert not group.replicas[leader].state.closing
    assert group.replicas[leader].report().lags == tuple(
        (group.ids[number], 0) for number in range(3) if number != leader
    )


def test_every_new_member_fetches_the_log_first() -> None:
    group = filled(3, 2, 3)
    leader = group.leader
    group.without(4)
    group.change(leader, 3, 4)
    group.tick(times=5)
    assert 1000 not in group.replies
    group.tick(times=60)
    assert group.replies[1000].code is Code.NOTREADY
    assert group.replies[1000].value.split()[0] == group.ids[4].hex().encode()
    assert group.replicas[leader].epoch == 0
    group.whole()
    group.change(leader, 3, 4, ticket=1001)
    group.tick(times=5)
    assert group.replies[1001].code is Code.OK
    assert group.replicas[4].status is Status.NORMAL


def test_a_quorum_of_the_next_members_is_enough_if_no_fewer_losses_are_survived() -> None:
    group = filled(3, 2, 3)
    leader = group.leader
    gone = (leader + 1) % 3
    group.without(gone)
    group.tick(times=6)
    group.change(leader, 3, 4)  # three of five answer instead of two of three
    group.tick(times=6)
    assert group.replies[1000].code is Code.OK
    group.tick(times=6)
    assert group.replicas[group.leader].report().fault_tolerance == 1


def test_a_change_that_leaves_fewer_losses_to_survive_is_refused() -> None:
    group = filled(5, 0, 3)
    leader = group.leader
    others = [number for number in range(5) if number != leader]
    group.without(others[0])
    group.tick(times=6)
    assert group.replicas[leader].report().fault_tolerance == 1
    group.change(leader, *others[:2])  # of these three one is silent: none more may fail
    group.tick(times=60)
    assert group.replies[1000].code is Code.NOTREADY
    assert group.replicas[leader].epoch == 0
    group.change(leader, *others[1:3], ticket=1001)
    group.tick(times=6)
    assert group.replies[1001].code is Code.OK


def test_what_got_lost_is_sent_again() -> None:
    group = filled(3, 2, 30)
    leader = group.leader
    lost = 0

    def every_third(sender: int, receiver: int, envelope: Any) -> bool:
        nonlocal lost
        lost += isinstance(envelope.payload, Learn | LearnOk)
        return not isinstance(envelope.payload, Learn | LearnOk) or lost % 3 != 0

    group.passes = every_third
    group.change(leader, 3, 4)
    group.tick(times=60)
    assert group.replies[1000].code is Code.OK


def test_a_learner_goes_on_with_the_next_teacher_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changing, "LAG_MAX", 0)
    group = filled(3, 2, 30)
    old = group.leader
    budget = 5

    def few(sender: int, receiver: int, envelope: Any) -> bool:
        nonlocal budget
        budget -= isinstance(envelope.payload, Learn)
        return budget > 0 or not isinstance(envelope.payload, Learn)

    group.passes = few
    group.change(old, 3, 4)
    stopped = group.replicas[3].commit_lsn
    assert 0 < stopped < 30
    group.start(3)
    group.without(old)
    rest = [number for number in range(5) if number != old]
    while group.leader == old:
        group.tick(*rest)
    group.tick(*rest, times=3)
    group.sent.clear()
    group.change(group.leader, 3, 4, ticket=1001)
    group.tick(*rest, times=5)
    assert group.replies[1001].code is Code.OK
    assert learned(group, 3) == learned(group, group.leader)


def test_a_retired_member_learns_over_what_was_never_committed() -> None:
    group = filled(3, 3, 3)
    leader = group.leader
    group.without(leader)
    group.set(leader, 800, b"lost")
    group.settle()
    rest = [number for number in range(6) if number != leader]
    while group.leader == leader:
        group.tick(*rest)
    group.tick(*rest, times=3)
    group.change(3, 4, 5)
    group.tick(*rest, times=10)
    group.whole()
    group.tick(times=20)
    assert group.replicas[leader].status is Status.RETIRED
    group.set(group.leader, 801, b"kept")
    group.settle()
    group.change(leader, 4, 5, ticket=1001)
    group.tick(times=20)
    assert group.replies[1001].code is Code.OK
    assert group.replicas[leader].status is Status.NORMAL
    assert learned(group, leader)[1][0] == b"kept"


def test_damage_in_a_learners_log_is_mended_by_what_it_is_taught() -> None:
    group = filled(3, 2, 30)
    leader = group.leader
    group.replicas[leader].state.tuning.batch_entries_max = 512
    group.passes = lambda s, r, e: not isinstance(e.payload, Prepare)
    group.change(leader, 3, 4)
    log: list[Any] = group.disks[3]
    log[4] = Damaged(log[4].header)
    group.start(3)
    group.tick(times=8)
    assert learned(group, 3) == learned(group, leader)
    assert isinstance(group.disks[3][4], Entry)


def test_a_learner_that_has_lost_its_log_takes_it_over_by_an_install() -> None:
    group = filled(3, 2, 30)
    leader = group.leader
    group.passes = lambda s, r, e: not isinstance(e.payload, Prepare)
    group.change(leader, 3, 4)
    group.start(3, lost=True)
    learn = next(
        e
        for s, r, e in group.sent
        if r == 3 and isinstance(e.payload, Learn) and e.payload.entries
    )
    effects = group.replicas[3].step(group.now, 0, Message(learn))
    assert not any(isinstance(effect, Append) for effect in effects)
    installed = next(effect for effect in effects if isinstance(effect, Install))
    assert installed.suffix == learn.payload.entries


def test_a_member_takes_no_lessons() -> None:
    group = filled(3, 0, 3)
    leader = group.leader
    other = (leader + 1) % 3
    teacher = group.replicas[leader]
    group.without()
    teacher.state.send(group.ids[other], Learn(4, teacher.log.head.hash, ()))
    before = group.replicas[other].commit_lsn
    group.net.append((leader, other, teacher.state.effects.pop().envelope))  # type: ignore[union-attr]
    group.sent.clear()
    group.settle()
    assert not any(isinstance(envelope.payload, LearnOk) for _, _, envelope in group.sent)
    assert group.replicas[other].commit_lsn == before


def test_a_learner_asks_for_no_view_if_a_member_refuses_connections() -> None:
    group = Group(3, 1)
    view = group.replicas[0].view
    group.step(3, Refused(group.ids[group.leader]))
    group.settle()
    assert {replica.view for replica in group.replicas[:3]} == {view}
