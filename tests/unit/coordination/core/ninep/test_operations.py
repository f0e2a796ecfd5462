"""Attaches, and what ends with them."""

from __future__ import annotations

import pytest

from millstream.coordination.core.ninep.connection import (
    End,
)
from millstream.coordination.core.ninep.fids import ATTACHES_MAX, Failed
from millstream.coordination.core.ninep.packets import (
    NO_FID,
    Kind,
)
from support.coordination.ninep_talk import FOUND, Talk


@pytest.fixture
def talk() -> Talk:
    return Talk()


def test_the_session_goes_with_the_last_fid(talk: Talk) -> None:
    talk.say(2, Kind.Twalk, 0, 1, ())
    talk.say(3, Kind.Tclunk, 0)
    assert not [one for one in talk.effects if isinstance(one, End)]
    talk.say(4, Kind.Tclunk, 1)
    assert [one for one in talk.effects if isinstance(one, End)] == [End(1)]


def test_an_attach_that_fails_leaves_nothing(talk: Talk) -> None:
    for _ in range(2 * ATTACHES_MAX):
        talk.say(2, Kind.Tattach, 5, NO_FID, b"", b"/nothing", 0)
        talk.answer({})
        talk.answer(Failed("ERROR_DOES_NOT_EXISTS"))
        assert talk.sent[-1].values == (2,)
        assert isinstance(talk.effects[-1], End)


def test_a_step_above_the_attach_stays_there(talk: Talk) -> None:
    talk.say(2, Kind.Twalk, 0, 1, (b"..",))
    assert talk.asked[0].asks[0].words[1] == b"/app"


def test_only_directories_have_something_in_them(talk: Talk) -> None:
    talk.open(1, b".data")
    talk.say(3, Kind.Tmkdir, 1, b"x", 0, 0)
    assert talk.sent[-1].values == (20,)
    talk.say(3, Kind.Twalk, 1, 2, (b"x",))
    assert talk.sent[-1].values == (20,)


def test_files_go_along_with_a_move(talk: Talk) -> None:
    talk.say(2, Kind.Twalk, 0, 1, (b"a", b"b"))
    talk.answer(FOUND)
    talk.answer(FOUND)
    talk.say(3, Kind.Trenameat, 0, b"a", 0, b"c")
    assert talk.asked[0].asks[0].words == (b"MOVE", b"/app/a", b"/app/c")
    talk.answer(b"OK")
    talk.say(4, Kind.Tgetattr, 1, 0x7FF)
    assert talk.asked[0].asks[0].words[1] == b"/app/c/b"


@pytest.mark.parametrize(("uid", "errno"), [(0, None), (5, 1)])
def test_owners_stay(talk: Talk, uid: int, errno: int | None) -> None:
    talk.say(2, Kind.Tsetattr, 0, 2, 0, uid, 0, 0, 0, 0, 0, 0)
    talk.answer(FOUND)
    assert talk.sent[-1].values == (() if errno is None else (errno,))
