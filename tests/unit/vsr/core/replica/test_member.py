"""A member commits in order, applies once, and does nothing while its promises are written."""

from millstream.vsr.core.effects import Code, Request, Timer
from millstream.vsr.core.entries import Body, Kind
from millstream.vsr.core.replica.member import Status
from support.coordination.coordination_group import Group

ME = b"i" * 16


def opened(group: Group) -> int:
    group.step(group.leader, Request(900, instance=ME, kind=Kind.SESSION_OPEN))
    group.settle()
    return int(group.replies[900].value)


def test_a_group_of_one_needs_nobody() -> None:
    group = Group(1)
    group.set(0, 1)
    assert group.replies[1][1:] == (Code.OK, b"+OK", 2)


def test_a_request_is_executed_once_and_answered_again() -> None:
    group = Group(3)
    session = opened(group)
    for ticket in (1, 2):
        group.step(group.leader, Request(ticket, Body(argv=(b"CAS", b"k", b"", b"1")), ME,
                                         session, 1))  # fmt: skip
        group.settle()
    assert group.replies[1][1:] == group.replies[2][1:]
    assert group.replies[1].value == b"+OK"


def test_a_request_that_is_under_way_is_joined() -> None:
    group = Group(3)
    session, lsn = opened(group), group.replicas[group.leader].log.op_lsn
    for ticket in (1, 2):
        group.step(group.leader, Request(ticket, Body(argv=(b"SET", b"k", b"1")), ME, session, 1))
    group.settle()
    assert group.replies[1][1:] == group.replies[2][1:]
    assert group.replicas[group.leader].log.op_lsn == lsn + 1


def test_a_closed_session_is_told_so() -> None:
    group = Group(3)
    session = opened(group)
    group.step(group.leader, Request(1, instance=ME, session=session, kind=Kind.SESSION_CLOSE))
    group.settle()
    group.step(group.leader, Request(2, Body(argv=(b"SET", b"k", b"1")), ME, session, 1))
    group.settle()
    assert group.replies[2].code is Code.SESSIONEXPIRED


def test_while_a_promise_is_written_everything_waits() -> None:
    group = Group(3)
    leader = group.leader
    other = (leader + 1) % 3
    group.without(leader)
    group.holds_disk = {other}
    for _ in range(12):
        group.tick(*(number for number in range(3) if number != leader))
    replica = group.replicas[other]
    assert replica.flipping
    assert group.standings[other].view == replica.view
    said = len(group.sent)
    group.step(other, Timer())
    group.set(other, 1)
    assert replica.status is Status.VIEWCHANGE
    assert (group.net, group.replies, len(group.sent)) == ([], {}, said)
    group.release_disk(other)
    group.settle()
    group.tick(*(number for number in range(3) if number != leader), times=20)
    assert not replica.flipping
    assert 1 in group.replies


def test_a_setting_counts_from_its_entry_on_and_is_taken_back() -> None:
    group = Group(3)
    replicas = [group.replicas[n] for n in range(3)]
    before = replicas[0].batch_entries_max
    for number, (settings, found) in enumerate(
        (({b"GROUP.BATCH.MAX": b"7"}, 7), (None, 7), ({}, before)), start=1
    ):
        for replica in replicas:
            replica.machine.take_settings = lambda settings=settings: settings
        group.set(group.leader, number)
        group.settle()
        group.step(group.leader, Timer())
        group.settle()
        assert [replica.batch_entries_max for replica in replicas] == [found] * 3
