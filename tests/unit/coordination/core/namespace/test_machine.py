"""Entries of a log become replies, whatever is in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.namespace.machine import COMMANDS, Namespace
from support.coordination.coordination_logs import entry_of
from support.coordination.namespace_machine import Tree


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


def test_unused_marks_take_no_room() -> None:
    tree = Tree()
    assert tree.machine.state.tables.is_empty
    tree.do("CREATENAMESPACE", "/ns")
    assert not tree.machine.state.tables.is_empty


HEARTBEAT = "NAMESPACE.SESSION.HEARTBEAT.DURATION"


def silence_tree() -> Tree:
    tree = Tree()
    for line in ("CREATENAMESPACE /ns", "CREATE BINARY /ns/a", "CREATE BINARY /ns/a/b"):
        tree.do(*line.split())
    assert tree.machine.silence_ms(7) is None, "nothing is set"
    tree.do("CREATE", "QUEUE", "/ns/q")
    tree.do("CONFIG", "SET", "/ns/a", HEARTBEAT, "3 seconds")
    return tree


@pytest.mark.parametrize(
    "line", ["LOCK WRITE /ns/a/b", "CREATE BINARY EPHEMERAL /ns/a/c", "SEMAPHORE ACQUIRE /ns/a/b"]
)
def test_held_elements_decide_how_long_a_session_may_be_silent(line: str) -> None:
    tree = silence_tree()
    assert tree.machine.silence_ms(7) == 10_000, "it holds nothing"
    if line.startswith("SEMAPHORE"):
        tree.do("SEMAPHORE", "INIT", "2", "/ns/a/b")
    assert not tree.do(*line.split(), csn=1).startswith(b"-")
    assert tree.machine.silence_ms(7) == 3000
    assert tree.machine.silence_ms(8) == 10_000, "another one"
    tree.again()
    assert tree.machine.silence_ms(7) == 3000
    tree.end(7)
    assert tree.machine.silence_ms(7) == 10_000


def test_the_shortest_time_counts_and_longer_ones_as_well() -> None:
    tree = silence_tree()
    tree.do("CONFIG", "SET", "/ns", HEARTBEAT, "1 hour")
    tree.do("QUEUE", "PUSH", "/ns/q", "item")
    assert not tree.do("QUEUE", "TAKE", "/ns/q", csn=2).startswith(b"-")
    assert tree.machine.silence_ms(7) == 3_600_000
    tree.do("LOCK", "WRITE", "/ns/a/b", csn=3)
    assert tree.machine.silence_ms(7) == 3000
    tree.do("CONFIG", "SET", "/ns/a/b", HEARTBEAT, "700")
    assert tree.machine.silence_ms(7) == 700
