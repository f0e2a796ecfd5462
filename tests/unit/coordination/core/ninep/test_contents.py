"""Reading and listing without sockets."""

from __future__ import annotations

import pytest

from millstream.coordination.core.ninep.fids import KEPT_BYTES_MAX, Failed
from millstream.coordination.core.ninep.packets import (
    Kind,
)
from support.coordination.ninep_talk import FOUND, Talk


@pytest.fixture
def talk() -> Talk:
    return Talk()


def test_open_files_keep_only_so_much(talk: Talk) -> None:
    content = bytes(1024 * 1024)
    kept = KEPT_BYTES_MAX // len(content)
    for fid in range(1, kept + 2):
        talk.open(fid, b".data", 0)
        talk.say(3, Kind.Tread, fid, 0, 10)
        talk.answer(content)
    assert talk.sent[-1].values == (12,)
    talk.say(3, Kind.Tclunk, 1)
    talk.say(3, Kind.Tread, kept + 1, 0, 10)
    talk.answer(content)
    assert talk.sent[-1].kind is Kind.Rread


def test_a_listing_goes_on_behind_what_has_vanished(talk: Talk) -> None:
    talk.say(2, Kind.Tlopen, 0, 0)
    talk.answer(FOUND)
    talk.sent.clear()
    talk.say(3, Kind.Treaddir, 0, 0, 4096)
    talk.answer(FOUND)
    talk.answer([None, [b"gone", b"there"]])
    talk.answer(FOUND)
    talk.answer(Failed("ERROR_DOES_NOT_EXISTS"), FOUND)
    (data,) = talk.sent[-1].values
    assert b"there" in data
    assert b"gone" not in data
