"""The connection without sockets: order, flushes, bounds."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.coordination.core.ninep.connection import (
    OUTSTANDING_MAX,
    Begin,
    Close,
    Connection,
    End,
    Send,
)
from millstream.coordination.core.ninep.fids import Failed
from millstream.coordination.core.ninep.packets import (
    MSIZE_MAX,
    NO_FID,
    NO_TAG,
    Kind,
    Packet,
    decode,
    encode,
)
from support.coordination.ninep_talk import FOUND, Talk


@pytest.fixture
def talk() -> Talk:
    return Talk()


def test_requests_are_answered_as_they_are_done(talk: Talk) -> None:
    talk.say(2, Kind.Tgetattr, 0, 0x7FF)
    talk.say(3, Kind.Tgetattr, 0, 0x7FF)
    talk.answer(FOUND, at=1)
    talk.answer(Failed("LOCKED"))
    assert [(one.tag, one.kind) for one in talk.sent] == [(3, Kind.Rgetattr), (2, Kind.Rlerror)]
    assert talk.sent[1].values == (16,)


def test_writes_of_a_file_wait_for_each_other(talk: Talk) -> None:
    talk.open(1, b".data")
    talk.say(4, Kind.Twrite, 1, 0, b"a")
    talk.say(5, Kind.Twrite, 1, 1, b"b")
    talk.answer(b"")
    assert [one.asks[0].words for one in talk.asked] == [(b"PUT", b"/app", b"a")]
    talk.answer(b"OK")
    assert talk.asked[0].asks[0].words == (b"PUT", b"/app", b"ab")
    talk.answer(Failed("TOOBIG"))
    talk.say(6, Kind.Twrite, 1, 1, b"c")
    assert talk.asked[0].asks[0].words == (b"PUT", b"/app", b"ac")


def test_no_more_than_so_many_are_under_way(talk: Talk) -> None:
    for tag in range(OUTSTANDING_MAX + 1):
        talk.say(tag, Kind.Tgetattr, 0, 0x7FF)
    assert talk.connection.is_clogged
    assert len(talk.asked) == OUTSTANDING_MAX
    talk.answer(FOUND)
    talk.connection.advance()
    talk.take()
    assert len(talk.asked) == OUTSTANDING_MAX


def test_a_flush_comes_behind_what_it_is_about(talk: Talk) -> None:
    talk.say(2, Kind.Tgetattr, 0, 0x7FF)
    talk.say(3, Kind.Tflush, 2)
    talk.say(4, Kind.Tflush, 3)
    talk.say(5, Kind.Tflush, 77)
    assert [(one.tag, one.kind) for one in talk.sent] == [(5, Kind.Rflush)]
    talk.answer(FOUND)
    assert [one.tag for one in talk.sent] == [5, 2, 3, 4]


def test_a_new_beginning_ends_what_was(talk: Talk) -> None:
    talk.say(2, Kind.Tgetattr, 0, 0x7FF)
    talk.say(NO_TAG, Kind.Tversion, 8192, b"9P2000.L")
    assert talk.effects[-1] == End(1)
    talk.answer(FOUND)
    assert talk.sent[-1].kind is Kind.Rversion
    talk.say(3, Kind.Tattach, 0, NO_FID, b"", b"/app", 0)
    assert talk.effects[-1] == Begin(2, None, "")


@pytest.mark.parametrize(
    ("tag", "kind", "values"),
    [(NO_TAG, Kind.Tclunk, (0,)), (2, Kind.Tgetattr, (0, 1)), (3, Kind.Rclunk, ())],
)
def test_what_makes_no_sense(talk: Talk, tag: int, kind: Kind, values: tuple[Any, ...]) -> None:
    talk.say(2, Kind.Tgetattr, 0, 0x7FF)
    talk.say(tag, kind, *values)
    is_closed = any(isinstance(one, Close) for one in talk.effects)
    assert is_closed or talk.sent[-1].values == (95,)


def test_nothing_is_done_before_a_version() -> None:
    connection = Connection(lambda: False)
    connection.feed(encode(Packet(Kind.Tversion, NO_TAG, (MSIZE_MAX, b"8P"))))
    connection.feed(encode(Packet(Kind.Tclunk, 1, (0,))))
    connection.advance()
    said, closed = connection.take_effects()
    assert isinstance(said, Send)
    assert decode(said.data).values[1] == b"unknown"
    assert isinstance(closed, Close)
