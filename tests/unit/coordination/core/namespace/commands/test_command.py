"""Words are taken in their order, keywords in any case, and what is left over is an error."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.namespace.commands.command import (
    Call,
    Words,
    parse,
    sub_commands,
)
from millstream.coordination.core.namespace.machine import QUEUED
from millstream.coordination.core.namespace.refused import Refused
from millstream.vsr.core.values import OK

WORDS = st.lists(
    st.sampled_from([*QUEUED, b"/ns", b"/ns/a", b"ATTR", b"CAS", b"1:2:3", b"-1", b"9" * 30, b""])
    | st.binary(max_size=6),
    max_size=8,
)


@given(WORDS)
def test_any_words_are_a_command_or_refused(words: list[bytes]) -> None:
    with suppress(Refused):
        assert isinstance(parse(words, QUEUED), Call)  # some have no path, as ACL WHOAMI


def test_words_are_taken_in_order() -> None:
    words = Words([b"a", b"Flag", b"-12", b"x", b"y", b"END"], "usage")
    assert words.ends_with(b"END")
    assert not words.ends_with(b"END")
    assert (words.take(), words.has(b"NONE"), words.has(b"FLAG")) == (b"a", False, True)
    assert words.number(-20, 20) == -12
    assert (len(words), words.peek(), words.rest()) == (2, b"X", (b"x", b"y"))
    words.end()
    with pytest.raises(Refused):
        words.take()


@pytest.mark.parametrize("text", [b"", b"x", b"1.5", b"--1", b"+1", b"\xb2", b"9" * 21, b"11"])
def test_numbers_are_digits_within_bounds(text: bytes) -> None:
    with pytest.raises(Refused) as refused:
        Words([text], "usage").number(0, 10)
    assert refused.value.code == "BADARG"


def test_the_first_word_says_which_command_it_is() -> None:
    def taken(words: Words) -> Call:
        assert words.usage == "ONE x"
        words.take()
        words.end()
        return Call(lambda _job: OK, ())

    command = sub_commands({b"ONE": ("ONE x", taken)})
    assert command(Words([b"one", b"x"], "usage")).is_change
    for wrong in ([], [b"two"], [b"one"], [b"one", b"x", b"y"]):
        with pytest.raises(Refused):
            command(Words(wrong, "usage"))
