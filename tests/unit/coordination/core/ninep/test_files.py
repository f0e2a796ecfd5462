"""Names, numbers and texts of files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.ninep.files import (
    about_element,
    file_name,
    name_of_file,
    text_of,
)
from millstream.coordination.core.ninep.refusals import NinepError

NAMES = st.text(st.sampled_from("a.%2E5/é"), min_size=1, max_size=8).map(str.encode)
FOUND = {
    b"type": b"BINARY", b"id": 7, b"created_version": b"0:1:5", b"version": b"0:1:9",
    b"child_version": b"0:1:12", b"created_ts": 1, b"ts": 2, b"nchildren": 3, b"data_len": 4,
    b"acl": {b"owner": b"ada", b"group": b"", b"mode": b"0640"},
}  # fmt: skip


@given(NAMES.filter(lambda name: b"/" not in name))
def test_every_element_has_one_name_of_a_file(name: bytes) -> None:
    shown = file_name(name)
    assert not shown.startswith(b".")
    assert name_of_file(shown) == name


@given(NAMES)
def test_every_name_is_of_one_element_at_most(name: bytes) -> None:
    try:
        found = name_of_file(name)
    except NinepError:
        return
    assert file_name(found) == name


def test_numbers_stay_and_differ() -> None:
    one = about_element(b"/app/a", None, FOUND)
    assert about_element(b"/app/b/c", None, FOUND).qid == one.qid
    others = [
        about_element(b"/app/a", b".data", FOUND),
        about_element(b"/app/a", b".ctl", FOUND),
        about_element(b"/other/a", None, FOUND),
        about_element(b"/app/a", None, FOUND | {b"id": 8}),
        about_element(b"/app/a", None, FOUND | {b"created_version": b"0:2:5"}),
        about_element(b"/app/a", None, None),
    ]
    assert len({about.qid.path for about in [one, *others]}) == 7
    assert (one.qid.version, one.links, one.mode) == (12, 5, 0o040751)
    assert (others[0].size, others[0].mode) == (4, 0o100640)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"OK", b"OK\n"),
        (12, b"12\n"),
        (None, b"\n"),
        ([b"a", b"\xff\0"], b"a\n/wA=\n"),
        ({b"b", b"a"}, b"a\nb\n"),
        ({b"a": [b"x", 1], b"b": {b"c": None}}, b'a ["x",1]\nb {"c":null}\n'),
    ],
)
def test_replies_become_lines(value: object, text: bytes) -> None:
    assert text_of(value) == text
