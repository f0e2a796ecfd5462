"""`coordination.core.client.resumed_subscription`: each part once, in order, whatever is repeated
or breaks off."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.client.events import (
    ErrorReply,
)
from millstream.coordination.core.client.resumed_subscription import Again, Change, Following, Over
from millstream.errors import AccessError, ConditionError, UsageError
from millstream.vsr.core.versions import Version


def message(op: str, lsn: int, **more: object) -> list[bytes]:
    told = {"lsn": lsn, "version": f"0:1:{lsn}", "op": op, "path": "/a", "type": "BINARY", "ts": 5}
    return [b"message", b"/a", json.dumps(told | more).encode()]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.data())
def test_each_part_once_over_any_breaks(parts: list[int], data: Any) -> None:
    """Connections break after any message; the node begins behind what it is asked for."""
    log = [
        (lsn, part, number) for lsn, number in enumerate(parts, 1) for part in range(number)
    ]  # fmt: skip
    following = Following("/a", after=0)
    heard = []
    while len(heard) < len(log):
        asked = following.request()
        after = int(asked[asked.index(b"FROM") + 1].split(b":")[-1])
        sent = [one for one in log if one[0] > after]
        again = len(heard) - (len(log) - len(sent))
        for lsn, part, number in sent[: data.draw(st.integers(again + 1, len(sent)))]:
            change = following.take(message("put", lsn, part=part, parts=number))
            if change is not None:
                assert isinstance(change, Change)
                heard.append((change.lsn, change.part, change.parts))
        assert following.lsn is not None
    assert heard == log
    assert following.lsn == len(parts)


def test_what_is_said_of_the_subscription_moves_it_on() -> None:
    following = Following("/a", "TREE", with_data=True)
    assert following.request() == (b"SUBSCRIBE", b"/a", b"TREE", b"MODE", b"DATA")
    assert following.take({b"server": b"x"}) is None
    assert following.take([b"subscribe", b"/a", 1]) is None
    assert following.take(message("start", 4)) is None
    assert following.take(message("progress", 9)) is None
    assert following.request()[-2:] == (b"FROM", b"0:1:9")
    assert following.take(message("overrun", 12)) == Again()
    assert following.lsn == 12
    following.seen = 20
    assert following.request()[:2] == (b"SEEN", b"0:0:20")
    denied = following.take(message("denied", 12))
    assert isinstance(denied, Over)
    assert isinstance(denied.error, AccessError)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("NOTPRIMARY 1 0:2 10.0.0.1:7379", Again("10.0.0.1:7379")),
        ("NOTPRIMARY 1 0:2 ?", Again()),
        ("BEHIND 0:0:5", Again()),
        ("NOQUORUM", Again()),
    ],
)
def test_some_refusals_are_for_this_moment_or_member(text: str, wanted: Again) -> None:
    assert Following("/a").take(ErrorReply(text)) == wanted


def test_who_goes_on_after_a_version_names_the_history() -> None:
    following = Following("/a", after=Version(3, 1, 9))
    assert following.lsn == 9
    assert following.request()[-2:] == (b"FROM", b"3:1:9")


def test_others_are_final() -> None:
    lost = Following("/a", after=1).take(ErrorReply("HISTORY_LOST 9"))
    assert isinstance(lost, Over)
    assert isinstance(lost.error, ConditionError)
    assert lost.error.code == "history_lost"
    with pytest.raises(UsageError, match="no scope"):
        Following("/a", "ALL")


def test_the_element_is_followed_where_it_goes() -> None:
    following = Following("/a", "TREE")
    below = following.take(message("delete", 1, path="/a/b"))
    assert isinstance(below, Change)
    assert not following.ends_with(below)
    assert following.take(message("move", 2, to="/z")) is not None
    for path, ends in (("/a", False), ("/z", True)):
        gone = following.take(message("delete", 3 + ends, path=path))
        assert isinstance(gone, Change)
        assert following.ends_with(gone) == ends


def test_a_lock_keeps_out_who_begins_and_not_who_goes_on() -> None:
    following = Following("/a")
    refusal = ErrorReply("LOCKED /a WRITE somebody 0:1:2")
    assert isinstance(following.take(refusal), Over)
    assert following.take([b"subscribe", b"/a", 1]) is None
    assert following.take(refusal) == Again()
