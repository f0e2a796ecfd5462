"""While a hard state is on its way to the disk, a member does nothing else."""

from millstream.vsr.core.effects import Timer
from millstream.vsr.core.replica.member import Status
from support.coordination.coordination_group import Group


def test_while_a_promise_is_written_everything_waits() -> None:
    group = Group(3)
    leader = group.leader
    other = (leader + 1) % 3
    group.without(leader)
    group.holds_disk = {other}
    for _ in range(12):
        group.tick(*(number for number in range(3) if number != leader))
    replica = group.replicas[other]
    assert replica.is_persisting
    assert group.hard_states[other].view == replica.view
    said = len(group.sent)
    group.step(other, Timer())
    group.set(other, 1)
    assert replica.status is Status.VIEWCHANGE
    assert (group.net, group.replies, len(group.sent)) == ([], {}, said)
    group.release_disk(other)
    group.settle()
    group.tick(*(number for number in range(3) if number != leader), times=20)
    assert not replica.is_persisting
    assert 1 in group.replies
