"""Locks without sockets."""

from __future__ import annotations

import pytest

from millstream.coordination.core.ninep.connection import (
    Wait,
)
from millstream.coordination.core.ninep.packets import (
    Kind,
)
from support.coordination.ninep_talk import FOUND, Talk


@pytest.fixture
def talk() -> Talk:
    return Talk()


def test_a_flushed_lock_is_cancelled_and_not_answered(talk: Talk) -> None:
    talk.say(2, Kind.Twalk, 0, 1, (b".data",))
    talk.answer(FOUND)
    talk.sent.clear()
    talk.say(2, Kind.Tlock, 1, 1, 1, 0, 0, 5, b"")
    talk.answer(b"PENDING")
    assert isinstance(talk.effects[-1], Wait)
    talk.say(3, Kind.Tflush, 2)
    assert talk.asked[0].asks[0].words == (b"LOCK", b"CANCEL", b"/app")
    talk.answer(b"OK")
    assert [(one.tag, one.kind) for one in talk.sent] == [(3, Kind.Rflush)]


def test_a_lock_granted_while_it_is_given_up_is_had(talk: Talk) -> None:
    talk.say(2, Kind.Twalk, 0, 1, (b".data",))
    talk.answer(FOUND)
    talk.sent.clear()
    talk.say(2, Kind.Tlock, 1, 1, 1, 0, 0, 5, b"")
    talk.say(3, Kind.Tflush, 2)
    talk.answer(b"OK")
    assert [(one.tag, one.kind) for one in talk.sent] == [(2, Kind.Rlock), (3, Kind.Rflush)]
    talk.say(4, Kind.Tclunk, 1)
    assert talk.asked[0].asks[0].words == (b"LOCK", b"RELEASE", b"/app")


def test_a_clunk_while_a_lock_waits_gives_it_up(talk: Talk) -> None:
    talk.say(2, Kind.Twalk, 0, 1, (b".data",))
    talk.answer(FOUND)
    talk.say(2, Kind.Tlock, 1, 1, 1, 0, 0, 5, b"")
    talk.answer(b"PENDING")
    talk.say(3, Kind.Tclunk, 1)
    (wait,) = [one for one in talk.effects if isinstance(one, Wait)]
    talk.connection.paused(wait.ticket)
    talk.take()
    assert talk.asked[0].asks[0].words == (b"LOCK", b"CANCEL", b"/app")
