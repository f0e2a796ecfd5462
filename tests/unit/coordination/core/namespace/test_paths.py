"""Paths are what they may be, or refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.namespace.paths import (
    DEPTH_MAX,
    joined,
    parse_path,
    parse_root,
)
from millstream.coordination.core.namespace.refused import Refused

NAMES = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/"), min_size=1, max_size=20
).filter(lambda name: name not in (".", ".."))


@given(st.lists(NAMES, min_size=1, max_size=5))
def test_a_path_is_its_names(names: list[str]) -> None:
    text = "/" + "/".join(names)
    path = parse_path(text.encode())
    assert path == tuple(name.encode() for name in names)
    assert joined(path) == text.encode()


@pytest.mark.parametrize(
    "text",
    [
        b"", b"a", b"/", b"//", b"/a/", b"/a//b", b"/.", b"/a/..", b"/a\x00", b"/a\n",
        b"/\xc2\x85", b"/\xff", b"/" + b"n" * 256,
    ],
)  # fmt: skip
def test_others_are_refused(text: bytes) -> None:
    with pytest.raises(Refused) as refused:
        parse_path(text)
    assert refused.value.code == "BADPATH"


@given(st.binary(max_size=12))
def test_any_bytes_are_a_path_or_refused(text: bytes) -> None:
    with suppress(Refused):
        assert joined(parse_path(text)) == text


def test_a_namespace_is_one_name() -> None:
    assert parse_root(b"/ns") == (b"ns",)
    with pytest.raises(Refused):
        parse_root(b"/ns/a")


def test_a_path_has_so_many_names_at_most() -> None:
    assert len(parse_path(b"/a" * DEPTH_MAX)) == DEPTH_MAX
    with pytest.raises(Refused, match="names"):
        parse_path(b"/a" * (DEPTH_MAX + 1))
