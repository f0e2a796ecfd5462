"""Entries of a log become replies, whatever is in them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordination_logs import entry_of
from millstream.coordination.core.namespace.machine import COMMANDS, Namespace
from namespace_machine import Tree


@given(st.lists(st.sampled_from([*COMMANDS, b"/ns", b"/ns/a", b"7"]) | st.binary(max_size=5)))
def test_nothing_that_is_logged_ends_it(argv: list[bytes]) -> None:
    machine = Namespace()
    before = b"".join(machine.freeze())
    reply = machine.apply(entry_of(tuple(argv)))
    assert reply[:1] in b"+-=:#_*%~"
    if reply.startswith(b"-"):
        assert b"".join(machine.freeze()) == before


def test_the_client_s_time_is_kept() -> None:
    machine = Namespace()
    machine.apply(entry_of((b"1234", b"CREATENAMESPACE", b"/ns")))
    assert machine.state.elements.there(1).cts == 1234


def test_a_time_that_has_no_room_is_none() -> None:
    machine = Namespace()
    machine.apply(entry_of((b"9" * 20, b"CREATENAMESPACE", b"/ns")))
    assert machine.state.elements.there(1).cts == 0
    assert b"".join(machine.freeze())


def test_what_was_never_used_takes_no_room() -> None:
    tree = Tree()
    assert list(tree.machine.freeze_if_any()) == []
    tree.do("CREATENAMESPACE", "/ns")
    assert b"".join(tree.machine.freeze_if_any()) == tree.bytes
