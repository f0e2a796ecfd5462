"""Register commands let in what the state machine understands, within bounds."""

import pytest

from millstream.coordination.core.register_commands import (
    KEY_BYTES_MAX,
    REGISTER_COMMANDS,
    VALUE_BYTES_MAX,
    Wish,
)
from millstream.coordination.core.registers import Registers
from millstream.vsr.core.entries import Body


def parsed(*argv: bytes) -> Wish | bytes:
    return REGISTER_COMMANDS[argv[0].upper()](argv, 0)


def test_what_each_command_asks() -> None:
    assert parsed(b"set", b"k", b"v") == Wish(True, (b"SET", b"k", b"v"), b"k")
    assert parsed(b"CAS", b"k", b"a", b"b") == Wish(True, (b"CAS", b"k", b"a", b"b"), b"k")
    assert parsed(b"Get", b"k") == Wish(False, (b"GET", b"k"), b"k")
    assert parsed(b"GET", b"k", b"stalerEAD") == Wish(False, (b"GET", b"k"), b"k", True)
    meta = Wish(False, (b"GET", b"k", b"META"), b"k")
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
        wish = parsed(*argv)
        assert isinstance(wish, Wish)
        assert not machine.read(Body(argv=wish.argv)).startswith(b"-")
