"""A member that has lost its log is nobody until a quorum and a primary have told it all."""

from millstream.vsr.core.effects import Code, Message
from millstream.vsr.core.messages import Entries, RecoveryResponse, StartView
from millstream.vsr.core.replica.member import Status
from support.coordination.coordination_group import Group


def filled() -> tuple[Group, int]:
    group = Group(3)
    for ticket in range(3):
        group.set(group.leader, ticket, b"%d" % ticket)
    group.settle()
    return group, (group.leader + 1) % 3


def test_the_log_comes_back_from_the_primary() -> None:
    group, hurt = filled()
    group.start(hurt, lost=True)
    assert group.replicas[hurt].status is Status.LOST
    group.tick(times=3)
    assert group.replicas[hurt].status is Status.NORMAL
    assert group.disks[hurt] == group.disks[group.leader]


def test_it_takes_no_part_before_a_quorum_has_answered() -> None:
    group, hurt = filled()
    third = ({0, 1, 2} - {group.leader, hurt}).pop()
    group.without(third)
    group.start(hurt, lost=True)
    group.set(group.leader, 9)
    group.tick(group.leader, hurt, times=30)
    assert group.replicas[hurt].status is Status.LOST
    assert 9 not in group.replies or group.replies[9].value != b"+OK"
    group.whole()
    group.tick(times=60)
    assert {replica.status for replica in group.replicas} == {Status.NORMAL}


def test_a_log_that_was_sent_before_it_asked_is_not_taken() -> None:
    group, hurt = filled()
    late = next(
        item for item in group.sent if item[1] == hurt and isinstance(item[2].payload, StartView)
    )
    group.without(hurt)
    group.start(hurt, lost=True)
    group.step(hurt, Message(late[2]))
    assert (group.replicas[hurt].status, group.replicas[hurt].log.op_lsn) == (Status.LOST, 0)


def test_answers_to_another_question_do_not_count() -> None:
    group, hurt = filled()
    group.start(hurt, lost=True)
    group.tick(times=3)
    answers = [e for _, _, e in group.sent if isinstance(e.payload, RecoveryResponse)]
    assert len(answers) >= 2
    group.without(hurt)
    group.start(hurt, lost=True)
    group.tick(hurt)
    for answer in answers:
        group.step(hurt, Message(answer))
    assert group.replicas[hurt].status is Status.LOST


def test_a_member_that_promised_a_higher_view_is_heard() -> None:
    group, hurt = filled()
    leader = group.leader
    promised = group.replicas[leader].view + 2
    group.hard_states[hurt] = group.hard_states[hurt]._replace(view=promised)
    group.start(hurt, lost=True)
    group.tick(times=40)
    assert {replica.status for replica in group.replicas} == {Status.NORMAL}
    assert group.replicas[group.leader].view >= promised


# ---- groups without a journal


def test_without_a_journal_only_hard_states_are_written() -> None:
    group = Group(3, journalled=False)
    group.set(group.leader, 1)
    group.settle()
    assert group.replies[1].code is Code.OK
    assert group.disks == [[], [], []]
    assert {hard_state.commit_hint for hard_state in group.hard_states} == {0}


def test_without_a_journal_a_restarted_member_gets_the_log_from_the_others() -> None:
    group = Group(3, journalled=False)
    leader = group.leader
    for ticket in range(5):
        group.set(leader, ticket, b"%d" % ticket)
    group.settle()
    other = (leader + 1) % 3
    group.start(other)
    assert group.replicas[other].status is Status.LOST
    assert not group.replicas[other].report().is_data_lost
    group.tick(times=5)
    assert group.replicas[other].status is Status.NORMAL
    assert group.replicas[other].log.head == group.replicas[leader].log.head


def test_without_a_journal_the_loss_of_more_than_a_minority_is_told() -> None:
    group = Group(3, journalled=False)
    group.set(group.leader, 1)
    group.settle()
    for number in range(3):
        group.start(number)
    group.tick(times=30)
    assert {replica.status for replica in group.replicas} == {Status.LOST}
    assert all(replica.report().is_data_lost for replica in group.replicas)


def test_a_group_without_a_journal_grows_and_stays_one() -> None:
    group = Group(3, learners=2, journalled=False)
    leader = group.leader
    group.set(leader, 1, b"kept")
    group.change(leader, 3, 4)
    group.tick(times=6)
    assert group.replies[1000].code is Code.OK
    assert not group.replicas[3].configuration.journalled
    group.start(3)
    assert group.replicas[3].status is Status.LOST
    group.tick(times=5)
    assert group.replicas[3].status is Status.NORMAL


def test_a_log_that_takes_longer_to_come_is_not_begun_anew_while_it_comes() -> None:
    """All that was found was once thrown away ten seconds after the question, again and again."""
    group, hurt = filled()
    for ticket in range(10, 160):
        group.set(group.leader, ticket)
        group.settle()
    group.start(hurt, lost=True)
    for replica in group.replicas:
        replica.state.tuning.batch_entries_max = 1
    group.tick_with_a_line(hurt, Entries, 1, 158)
    assert group.replicas[hurt].status is Status.NORMAL
    assert group.disks[hurt] == group.disks[group.leader]
