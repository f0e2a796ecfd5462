"""What is committed is applied in order, once, and answered."""

from millstream.vsr.core.effects import CallSoon, Code, Message, Request, Soon, Timer
from millstream.vsr.core.entries import Body, Kind
from millstream.vsr.core.messages import Prepare
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


def test_a_setting_counts_from_its_entry_on_and_is_taken_back() -> None:
    group = Group(3)
    replicas = [group.replicas[n] for n in range(3)]
    before = replicas[0].state.tuning.batch_entries_max
    for number, (settings, found) in enumerate(
        (({b"GROUP.BATCH.MAX": b"7"}, 7), (None, 7), ({}, before)), start=1
    ):
        for replica in replicas:
            replica.machine.take_settings = lambda settings=settings: settings
        group.set(group.leader, number)
        group.settle()
        group.step(group.leader, Timer())
        group.settle()
        assert [replica.state.tuning.batch_entries_max for replica in replicas] == [found] * 3


def test_a_long_way_is_applied_in_slices() -> None:
    """Of what a backup has when it is told that all is committed, one slice a step."""
    group = Group(3)
    backup = (group.leader + 1) % 3
    replica = group.replicas[backup]
    replica.state.tuning.apply_entries_max = 3
    first = replica.log.hash_at(1)
    for ticket in range(10):
        group.set(group.leader, ticket)
    seen = []
    while group.net:
        _, receiver, envelope = group.net.pop(0)
        if receiver != backup:
            group.step(receiver, Message(envelope))
        elif isinstance(envelope.payload, Prepare):  # that it is committed, it is not told yet
            told = envelope.payload._replace(commit_lsn=1, commit_hash=first or b"")
            group.step(backup, Message(envelope._replace(payload=told)))
        else:
            assert replica.log.op_lsn == 11
            effects = replica.step(group.now, int(group.now), Message(envelope))
            while any(isinstance(effect, CallSoon) for effect in effects):
                seen.append(replica.commit_lsn)
                effects = replica.step(group.now, int(group.now), Soon())
    assert [*seen, replica.commit_lsn] == [4, 7, 10, 11]
    assert not replica.parts.execution.has_to_apply
