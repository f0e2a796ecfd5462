"""Registers do what they are told and nothing else; commands that are let in are understood."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.namespace.admission import ClientRequest
from millstream.coordination.core.registers import (
    KEY_BYTES_MAX,
    REGISTER_COMMANDS,
    VALUE_BYTES_MAX,
    Registers,
)
from millstream.vsr.core.entries import GENESIS, Body, Entry, Kind, chain
from millstream.vsr.core.snapshots import Pieces
from millstream.vsr.core.values import array
from millstream.vsr.core.versions import Version
from support.coordination.coordination_logs import GROUP


def request(*argv: bytes) -> Entry:
    return chain(
        GENESIS, group_id=GROUP, epoch=2, view=3, kind=Kind.REQUEST, ts_ms=0, body=Body(argv=argv)
    )


def test_what_is_set_is_read() -> None:
    machine = Registers()
    assert machine.read(Body(argv=(b"GET", b"k"))) == b"="
    assert machine.apply(request(b"SET", b"k", b"v")) == b"+OK"
    assert machine.read(Body(argv=(b"GET", b"k"))) == b"=v"


def test_a_comparison_decides() -> None:
    machine = Registers()
    assert machine.apply(request(b"CAS", b"k", b"", b"1")) == b"+OK"
    assert machine.apply(request(b"CAS", b"k", b"", b"2")) == b"-CAS_MISMATCH"
    assert list(machine.values.items()) == [(b"k", (b"1", Version(2, 3, 1)))]


def test_a_register_tells_which_entry_changed_it_last() -> None:
    machine = Registers()
    meta = Body(argv=(b"GET", b"k", b"META"))
    assert machine.read(meta) == array((b"=", b"=0:0:0"))
    machine.apply(request(b"SET", b"k", b"v"))
    assert machine.read(meta) == array((b"=v", b"=2:3:1"))


def test_nonsense_changes_nothing() -> None:
    machine = Registers()
    assert machine.apply(request(b"DEL", b"k")) == b"-BADARG DEL"
    assert machine.read(Body()) == b"-BADARG nothing"
    assert not machine.values


@given(st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=9)), max_size=30), st.data())
def test_a_frozen_state_is_that_moments_and_can_be_restored(
    sets: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    machine, frozen_at = Registers(), data.draw(st.integers(0, len(sets)))
    for key, value in sets[:frozen_at]:
        machine.apply(request(b"SET", key, value))
    before, frozen = list(machine.values.items()), machine.freeze()
    for key, value in sets[frozen_at:]:
        machine.apply(request(b"SET", key, value))
    other = Registers()
    other.apply(request(b"SET", b"forgotten", b""))
    written = b"".join(frozen)
    for _ in other.restore(Pieces([written])):
        pass
    assert list(other.values.items()) == before
    assert b"".join(other.freeze()) == written


# ---- how clients write the commands


def parsed(*argv: bytes) -> ClientRequest | bytes:
    return REGISTER_COMMANDS[argv[0].upper()](argv, 0)


def test_what_each_command_asks() -> None:
    assert parsed(b"set", b"k", b"v") == ClientRequest(True, (b"SET", b"k", b"v"), b"k")
    assert parsed(b"CAS", b"k", b"a", b"b") == ClientRequest(
        True, (b"CAS", b"k", b"a", b"b"), b"k"
    )
    assert parsed(b"Get", b"k") == ClientRequest(False, (b"GET", b"k"), b"k")
    assert parsed(b"GET", b"k", b"stalerEAD") == ClientRequest(False, (b"GET", b"k"), b"k", True)
    meta = ClientRequest(False, (b"GET", b"k", b"META"), b"k")
    assert parsed(b"GET", b"k", b"meta") == meta
    assert parsed(b"GET", b"k", b"meta", b"staleread") == meta._replace(is_stale=True)


@pytest.mark.parametrize(
    "argv",
    [
        (b"SET", b"k"), (b"SET", b"k", b"v", b"EX"), (b"CAS", b"k", b"v"), (b"GET",),
        (b"GET", b"k", b"CAS"), (b"GET", b"k", b"STALEREAD", b"META"),
        (b"GET", b"k", b"META", b"META"),
    ],
)  # fmt: skip
def test_other_words_are_refused(argv: tuple[bytes, ...]) -> None:
    refused = parsed(*argv)
    assert isinstance(refused, bytes)
    assert refused.startswith(b"-BADARG")


@pytest.mark.parametrize(
    "argv",
    [
        (b"SET", b"k", bytes(VALUE_BYTES_MAX + 1)), (b"SET", bytes(KEY_BYTES_MAX + 1), b""),
        (b"CAS", b"k", bytes(VALUE_BYTES_MAX + 1), b""), (b"GET", bytes(KEY_BYTES_MAX + 1)),
        (b"CAS", b"k", b"", bytes(VALUE_BYTES_MAX + 1)),
        (b"GET", bytes(KEY_BYTES_MAX + 1), b"META"),
    ],
)  # fmt: skip
def test_bounds(argv: tuple[bytes, ...]) -> None:
    refused = parsed(*argv)
    assert isinstance(refused, bytes)
    assert refused.startswith(b"-TOOBIG")


def test_what_is_let_in_is_understood() -> None:
    machine = Registers()
    for argv in ((b"GET", b"k"), (b"GET", b"k", b"META")):
        request = parsed(*argv)
        assert isinstance(request, ClientRequest)
        assert not machine.read(Body(argv=request.argv)).startswith(b"-")
