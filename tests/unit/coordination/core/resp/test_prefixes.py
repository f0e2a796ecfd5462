"""What is said before a command."""

from __future__ import annotations

import pytest

from millstream.coordination.core.resp.prefixes import CSN_MAX, Prefixes, prefixes_of


def test_in_any_order() -> None:
    words = [b"SEEN", b"1:2:3", b"csn", b"7", b"GROUP", b"4", b"CTS", b"9", b"GET", b"/a"]
    assert prefixes_of(words) == (Prefixes(7, 9, 3, 4), 8)
    assert prefixes_of([b"GET"]) == (Prefixes(), 0)


@pytest.mark.parametrize("place", range(3))
def test_force_stands_anywhere_among_them_and_has_no_value(place: int) -> None:
    words = [b"CSN 7".split(), b"CTS 9".split()]
    words.insert(place, [b"force"])
    flat = [word for part in words for word in part]
    assert prefixes_of([*flat, b"PUT", b"/a", b"FORCE"]) == (Prefixes(7, 9, passes_locks=True), 5)
    assert prefixes_of([b"DELETENAMESPACE", b"/a", b"FORCE"]) == (Prefixes(), 0)


@pytest.mark.parametrize(
    "words",
    [
        [b"CSN"], [b"CSN", b"1"], [b"CSN", b"0", b"PING"], [b"CSN", b"x", b"PING"],
        [b"CSN", b"%d" % (CSN_MAX + 1), b"PING"], [b"SEEN", b"3", b"PING"],
        [b"FORCE"], [b"CSN", b"1", b"FORCE"],
        [b"CTS", b"-1", b"PING"], [b"GROUP", b"%d" % (1 << 64), b"PING"],
    ],
)  # fmt: skip
def test_what_makes_no_sense(words: list[bytes]) -> None:
    assert prefixes_of(words) is None
