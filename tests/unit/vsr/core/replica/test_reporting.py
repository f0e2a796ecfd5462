"""A replica says about itself what is the case."""

from millstream.vsr.core.effects import Damaged, Image, Start
from millstream.vsr.core.messages import Learn, LearnOk, NewState, Prepare
from millstream.vsr.core.replica.requested_changes import LAG_MAX
from support.coordination.coordination_group import Group


def test_a_primary_knows_how_far_the_others_are() -> None:
    group = Group(3)
    leader = group.leader
    group.without((leader + 1) % 3)
    group.set(leader, 1)
    group.tick()
    report = group.replicas[leader].report()
    assert (report.role, report.status, report.primary) == ("primary", "NORMAL", group.ids[leader])
    assert sorted(lag for _, lag in report.lags) == [0, 1]
    assert report.op_lsn == report.commit_lsn == report.applied_lsn == 2
    assert report.is_quorum_ok
    assert report.fault_tolerance == 1


def test_fault_tolerance_is_how_many_more_may_fail_now_on_every_member() -> None:
    group = Group(5)
    group.tick(times=2)
    assert {replica.report().fault_tolerance for replica in group.replicas} == {2}
    gone = [number for number in range(5) if number != group.leader]
    for number, left in zip(gone, (1, 0, 0), strict=False):
        group.without(*gone[: gone.index(number) + 1])
        group.tick(times=6)  # nothing is written: an idle group knows it too
        there = [each for each in range(5) if each not in gone[: gone.index(number) + 1]]
        assert {group.replicas[each].report().fault_tolerance for each in there} == {left}
    group.without()
    group.tick(times=10)
    assert {replica.report().fault_tolerance for replica in group.replicas} == {2}


def test_a_member_that_is_far_behind_cannot_make_up_for_a_loss() -> None:
    group = Group(3)
    leader = group.leader
    late = (leader + 1) % 3
    group.passes = lambda s, r, e: r != late or not isinstance(e.payload, Prepare | NewState)
    for number in range(LAG_MAX + 1):
        group.set(leader, 1 + number)
        group.settle()
    group.tick(times=2)
    assert group.replicas[leader].report().fault_tolerance == 0


def test_trouble_has_a_reason_until_it_is_over() -> None:
    group = Group(3)
    leader = group.leader
    group.tick(times=3)
    assert all(not replica.report().trouble for replica in group.replicas)
    group.without(*(number for number in range(3) if number != leader))
    group.tick(times=10)
    report = group.replicas[leader].report()
    assert report.trouble.startswith("no quorum answers; silent: ") or "vote" in report.trouble
    assert not report.is_stuck
    group.tick(times=110)
    assert group.replicas[leader].report().is_stuck
    group.without()
    group.tick(times=30)
    assert not any(replica.report().trouble or replica.troubled for replica in group.replicas)


def test_an_only_member_that_has_lost_an_entry_says_which() -> None:
    group = Group(1)
    group.set(0, 1, b"kept")
    group.settle()
    lsn = group.disks[0][-1].lsn
    log = tuple(Damaged(one.header) if one.lsn == lsn else one for one in group.disks[0])
    machine = type(group.replicas[0].machine)
    group.replicas[0] = type(group.replicas[0])(machine(), lambda: 0.5)
    group.step(0, Start(Image(group.hard_states[0], log)))
    group.tick(times=10)
    assert f"entry {lsn} of the log is missing or damaged" in group.replicas[0].report().trouble


def test_a_primary_without_a_quorum_says_so() -> None:
    group = Group(3)
    leader = group.leader
    other = (leader + 1) % 3
    group.without(leader, other)
    group.set(leader, 1)
    assert group.replicas[leader].report().queue_depth == 1
    group.tick(times=10)
    assert not group.replicas[leader].report().is_quorum_ok
    assert not group.replicas[other].report().is_quorum_ok


def test_the_end_of_an_epoch_has_a_name() -> None:
    group = Group(3, learners=2)
    leader = group.leader
    group.only(Learn, LearnOk)
    group.change(leader, 3, 4)
    report = group.replicas[leader].report()
    assert report.status == "RECONFIGURATION"
    assert report.role == "primary"


def test_a_node_without_an_epoch_says_so() -> None:
    group = Group(3, learners=3)
    assert group.replicas[3].report().role == "idle"
    assert group.replicas[3].report().primary is None
    group.change(3, 4, 5)
    group.tick(times=10)
    assert group.replicas[0].report().role == "retired"
    assert group.replicas[group.leader].report().view_reason == "a new epoch began"


def test_a_group_of_one_bears_no_failure() -> None:
    assert Group(1).replicas[0].report().fault_tolerance == 0
