"""A group's state format rises once every member understands a higher one, and not before."""

from collections.abc import Callable

import pytest

from millstream.coordination.core.group_state import GroupState
from millstream.coordination.core.namespace import machine as namespace_machine
from millstream.coordination.core.namespace.commands.transactions import pack_command
from millstream.errors import CorruptionError
from millstream.vsr.core.effects import Code, Request
from millstream.vsr.core.entries import Body, Kind
from millstream.vsr.core.messages import Learn, Prepare
from millstream.vsr.core.snapshots import Pieces
from millstream.vsr.core.state_machine import StateMachine
from support.coordination.coordination_group import Group


class Newer(GroupState):
    """The program that is to come: it understands one more format, with COUNTER in it."""

    @property
    def format_max(self) -> int:
        return 2


@pytest.fixture(autouse=True)
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace_machine, "SINCE", {b"COUNTER": 2})


def formats(group: Group) -> list[int]:
    return [replica.state.state_format for replica in group.replicas]


def restart(group: Group, number: int, machine: Callable[[], StateMachine]) -> None:
    group.machine = machine
    group.start(number)
    group.settle()


def asked(group: Group, ticket: int, *words: bytes) -> bytes:
    body = Body(b"", (b"admins",), (b"0", *words))
    group.step(group.leader, Request(ticket, body))
    group.settle()
    return group.replies[ticket].value


def frozen(group: Group) -> set[bytes]:
    return {b"".join(replica.parts.execution.freeze()) for replica in group.replicas}


def test_a_group_that_understands_one_format_uses_that() -> None:
    group = Group(3, machine=GroupState)
    group.tick(times=5)
    assert formats(group) == [1, 1, 1]
    report = group.replicas[group.leader].report()
    assert (report.state_format, report.state_format_max) == (1, 1)


@pytest.mark.parametrize("size", [1, 3])
def test_it_is_raised_where_all_understand_it(size: int) -> None:
    group = Group(size, machine=Newer)
    group.tick(times=3)
    assert formats(group) == [2] * size
    entries = [entry for entry in group.disks[0] if entry.header.kind is Kind.RAISE]
    assert [entry.content.argv for entry in entries] == [(b"2",)]
    assert group.replicas[0].report().state_format == 2


def test_members_are_upgraded_one_by_one_and_the_last_one_raises_it() -> None:
    group = Group(3, machine=GroupState)
    assert asked(group, 1, b"CREATENAMESPACE", b"/a") == b"+OK"
    assert asked(group, 2, b"CREATE", b"COUNTER", b"/a/n") == b"+OK"
    for number in range(3):
        assert formats(group) == [1, 1, 1]
        refused = asked(group, 10 + number, b"COUNTER", b"INC", b"/a/n")
        assert refused == b"-UNKNOWN_COMMAND COUNTER needs all members to be upgraded first"
        restart(group, number, Newer)
        group.tick(times=20)
    assert formats(group) == [2, 2, 2]
    assert asked(group, 20, b"COUNTER", b"INC", b"/a/n") == b":1"
    group.tick(times=2)
    assert len(frozen(group)) == 1


def test_a_member_that_is_away_is_waited_for() -> None:
    group = Group(3, machine=GroupState)
    leader = group.leader
    away = (leader + 1) % 3
    group.without(away)
    for number in {0, 1, 2} - {away}:
        restart(group, number, Newer)
        group.tick(times=20)
    assert set(formats(group)) == {1}
    group.whole()
    group.tick(times=20)
    assert set(formats(group)) == {1}
    restart(group, away, Newer)
    group.tick(times=20)
    assert formats(group) == [2, 2, 2]


def test_messages_of_another_view_do_not_count() -> None:
    group = Group(3, machine=GroupState)
    for number in (0, 1):
        restart(group, number, Newer)
        group.tick(times=20)
    group.passes = lambda s, r, e: not (isinstance(e.payload, Prepare) and raises(e.payload))
    restart(group, 2, Newer)
    group.tick(times=20)
    leader = group.leader
    assert group.replicas[leader].log.op_lsn == group.replicas[leader].commit_lsn + 1
    group.without(leader)
    restart(group, (leader + 1) % 3, GroupState)
    group.tick(*({0, 1, 2} - {leader}), times=30)
    group.whole()
    group.tick(times=30)
    assert formats(group) == [1, 1, 1]


def raises(prepare: Prepare) -> bool:
    return any(entry.header.kind is Kind.RAISE for entry in prepare.entries)


def test_a_transaction_has_nothing_of_a_later_format() -> None:
    group = Group(3, machine=GroupState)
    asked(group, 1, b"CREATENAMESPACE", b"/a")
    asked(group, 2, b"CREATE", b"COUNTER", b"/a/n")
    packed = pack_command((b"counter", b"inc", b"/a/n"))
    assert asked(group, 3, b"EXEC", packed).startswith(b"-UNKNOWN_COMMAND COUNTER")


def test_an_older_program_ends_at_what_it_does_not_understand() -> None:
    group = Group(3, machine=Newer)
    group.tick(times=3)
    group.machine = GroupState
    group.start((group.leader + 1) % 3)
    with pytest.raises(CorruptionError) as failure:
        group.tick(times=20)
    assert failure.value.code == "unknown_state"
    assert "state format 2, and this version knows formats up to 1" in str(failure.value)


def test_an_older_program_takes_no_snapshot_of_a_later_format() -> None:
    newer, older = Group(1, machine=Newer), Group(1, machine=GroupState)
    newer.tick(times=2)
    frozen = b"".join(newer.replicas[0].parts.execution.freeze())
    for _ in newer.replicas[0].parts.execution.restore(Pieces([frozen])):
        pass
    assert newer.replicas[0].state.state_format == 2
    with pytest.raises(CorruptionError, match="state format 2"):
        for _ in older.replicas[0].parts.execution.restore(Pieces([frozen])):
            pass


def test_a_node_that_lacks_the_format_becomes_no_member() -> None:
    group = Group(3, 2, machine=Newer)
    group.tick(times=3)
    for learner in (3, 4):
        restart(group, learner, GroupState)
    leader = group.leader
    group.change(0, 1, 2, 3, 4)
    group.tick(times=5)
    reply = group.replies[1000]
    assert reply.code is Code.BADCONFIG
    assert b"understands state formats up to 1, the group is at 2" in reply.value
    taught = [e.payload for s, r, e in group.sent if r > 2 and isinstance(e.payload, Learn)]
    assert taught
    assert not any(learn.entries for learn in taught)
    for learner in (3, 4):
        restart(group, learner, Newer)
    group.replies.clear()
    group.change(0, 1, 2, 3, 4)
    group.tick(times=10)
    assert group.replies[1000].code is Code.OK
    assert group.replicas[leader].state.state_format == 2
    group.tick(times=10)
    assert formats(group) == [2] * 5


def test_no_member_is_exchanged_while_a_higher_format_is_under_way() -> None:
    group = Group(3, 2, machine=GroupState)
    for number in (0, 1):
        restart(group, number, Newer)
        group.tick(times=20)
    group.passes = lambda s, r, e: not (isinstance(e.payload, Prepare) and raises(e.payload))
    restart(group, 2, Newer)
    group.tick(0, 1, 2, times=20)
    assert group.replicas[group.leader].parts.changes.asked_format == 2
    group.change(0, 1, 2, 3, 4)
    assert group.replies[1000].code is Code.BUSY
