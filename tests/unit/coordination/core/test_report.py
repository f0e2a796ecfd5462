"""A replica says about itself what is the case."""

from coordination_group import Group
from millstream.coordination.core.messages import Learn, LearnOk


def test_a_primary_knows_how_far_the_others_are() -> None:
    group = Group(3)
    leader = group.leader
    group.without((leader + 1) % 3)
    group.set(leader, 1)
    group.settle()
    report = group.replicas[leader].report()
    assert (report.role, report.status, report.primary) == ("primary", "NORMAL", group.ids[leader])
    assert sorted(lag for _, lag in report.lags) == [0, 1]
    assert report.op_lsn == report.commit_lsn == report.applied_lsn == 2
    assert report.is_quorum_ok
    assert report.fault_tolerance == 1


def test_who_loses_the_quorum_says_so() -> None:
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


def test_who_belongs_to_no_epoch_says_so() -> None:
    group = Group(3, learners=3)
    assert group.replicas[3].report().role == "idle"
    assert group.replicas[3].report().primary is None
    group.change(3, 4, 5)
    group.tick(times=10)
    assert group.replicas[0].report().role == "retired"
    assert group.replicas[group.leader].report().view_reason == "a new epoch began"


def test_a_group_of_one_bears_no_failure() -> None:
    assert Group(1).replicas[0].report().fault_tolerance == 0
