"""Registers and namespaces beside one another, in one log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.group_state import GROUP_COMMANDS, GroupState
from millstream.coordination.core.namespace.admission import ClientRequest
from millstream.coordination.core.namespace.audience import Subscriber
from millstream.coordination.core.namespace.state.run import Asker
from millstream.coordination.core.namespace.state.updates import Place, Scope
from millstream.coordination.core.registers import Registers
from millstream.vsr.core.entries import Body
from millstream.vsr.core.snapshots import Pieces
from support.coordination.coordination_logs import entry_of

LINES = [
    (b"SET", b"k", b"1"), (b"CAS", b"k", b"1", b"2"), (b"CREATENAMESPACE", b"/ns"),
    (b"CREATE", b"BINARY", b"/ns/a", b"x"), (b"PUT", b"/ns/a", b"y"), (b"DELETE", b"/ns/a"),
]  # fmt: skip


def done(state: GroupState, line: tuple[bytes, ...]) -> bytes:
    request = GROUP_COMMANDS[line[0]](line, 3)
    assert isinstance(request, ClientRequest)
    return state.apply(entry_of(request.argv))


def asked(state: GroupState, *line: bytes) -> bytes:
    request = GROUP_COMMANDS[line[0]](line, 0)
    assert isinstance(request, ClientRequest)
    return state.read(Body(argv=request.argv))


def whole(state: GroupState) -> bytes:
    return b"".join(state.freeze())


def test_each_command_finds_its_own() -> None:
    state = GroupState()
    assert [done(state, line) for line in LINES[:4]] == [b"+OK"] * 4
    assert asked(state, b"GET", b"k") == b"=2"
    assert asked(state, b"GET", b"/ns/a") == b"=x"
    assert asked(state, b"GET", b"/ns/none").startswith(b"-ERROR_DOES_NOT_EXISTS")
    assert asked(state, b"LOOKUP", b"/ns/a") == b"+OK"


@given(st.lists(st.sampled_from(LINES), max_size=12))
def test_a_snapshot_gives_both_again(lines: list[tuple[bytes, ...]]) -> None:
    state, other = GroupState(), GroupState()
    for line in lines:
        done(state, line)
    done(other, LINES[2])
    before = whole(state)
    for _ in other.restore(Pieces([before[:3], before[3:]])):
        pass
    assert whole(other) == before


def test_settings_of_a_group_without_namespaces_are_stored() -> None:
    state, other = GroupState(), GroupState()
    state.apply(entry_of((b"3", b"CONFIG", b"SET", b"GROUP", b"SUBS.MIN.HISTORY", b"5")))
    for _ in other.restore(Pieces([whole(state)])):
        pass
    assert whole(other) == whole(state)
    found = other.read(Body(argv=(b"CONFIG", b"GET", b"GROUP", b"SUBS.*")))
    assert found.endswith(b"=5")


def test_subscribers_are_told_of_a_replaced_state() -> None:
    state = GroupState()
    done(state, LINES[2])
    audience, woken = state.audience, []
    subscriber = Subscriber(lambda: woken.append(1), Asker())
    audience.add(subscriber, b"/ns", Place(1, Scope.TREE), with_data=False, after_lsn=None)
    for _ in state.restore(Pieces([whole(state)])):
        pass
    assert state.audience is audience
    assert audience.is_empty
    assert woken
    assert [b"overrun" in message.payload for message in subscriber.take(1000)] == [False, True]


def test_a_snapshot_of_registers_alone_is_that_of_a_version_without_namespaces() -> None:
    state, registers = GroupState(), Registers()
    for line in LINES[:2]:
        done(state, line)
        registers.apply(entry_of(line))
    assert whole(state) == b"".join(registers.freeze())


def test_settings_of_the_group_are_told_once_they_change() -> None:
    state = GroupState()
    assert state.take_settings() == {}
    assert state.take_settings() is None
    done(state, (b"CONFIG", b"SET", b"GROUP", b"GROUP.PIPELINE", b"8"))
    assert state.take_settings() == {b"GROUP.PIPELINE": b"8"}
    done(state, LINES[2])
    assert state.take_settings() is None
    other = GroupState()
    for _ in other.restore(Pieces([whole(state)])):
        pass
    assert other.take_settings() == {b"GROUP.PIPELINE": b"8"}
