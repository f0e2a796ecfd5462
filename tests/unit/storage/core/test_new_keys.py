from __future__ import annotations

import random

import pytest

from millstream.storage.core import new_keys as module
from millstream.storage.core.new_keys import LOOKS_MAX, SLICE_KEYS, KeyPage, NewKeys, keys_within

pytestmark = pytest.mark.usefixtures("variant")


def within(
    keys: NewKeys, low: bytes, high: bytes, count: int = 1 << 20, *, descending: bool = False
) -> list[bytes]:
    page = KeyPage(low, high, count, descending=descending)
    keys.add_to(page)
    return page.keys


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def test_a_range_ends_before_its_high_key() -> None:
    keys = NewKeys()
    keys.add([b"c", b"a", b"b"])
    assert within(keys, b"a", b"c") == [b"a", b"b"]
    assert within(keys, b"a\0", b"b") == []
    assert within(keys, b"", b"z") == [b"a", b"b", b"c"]


def test_all_keys_are_found_however_many_pages_were_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SLICE_KEYS", 8)
    monkeypatch.setattr(module, "LOOKS_MAX", 3)
    dice, keys, known = random.Random(3), NewKeys(), list[bytes]()
    for number in range(300):
        more = [b"%03d" % dice.randrange(300) for _ in range(dice.randrange(6))]
        keys.add(more)
        known += more
        if number % 50 == 49:
            earlier, keys = keys, NewKeys()
            keys.add(more)
            known += more
            keys = keys.after(earlier)
        low, high = sorted(b"%03d" % dice.randrange(300) for _ in range(2))
        wanted = sorted({key for key in known if low <= key < high})
        assert within(keys, low, high) == wanted
        assert within(keys, low, high, 3) == wanted[:3]
        assert within(keys, low, high, 3, descending=True) == wanted[::-1][:3]


def test_a_slice_is_sorted_once_many_pages_have_looked_into_it() -> None:
    keys = NewKeys()
    keys.add(reversed(numbered(SLICE_KEYS + 1)))
    for _ in range(LOOKS_MAX):
        assert keys._runs == []
        assert within(keys, b"000010", b"000020") == numbered(10, 10)
    assert keys._runs == [numbered(SLICE_KEYS, 1)]
    assert keys._loose == [b"000000"]
    assert within(keys, b"", b"1", 2) == numbered(2)
    assert within(keys, b"000010", b"000020", 2, descending=True) == [b"000019", b"000018"]


def test_one_page_sorts_one_slice_at_most() -> None:
    keys = NewKeys()
    keys.add(numbered(3 * SLICE_KEYS + 5))
    for number in range(LOOKS_MAX + 3):
        assert len(keys._runs) == max(0, number - LOOKS_MAX + 1)
        assert within(keys, b"", b"1") == numbered(3 * SLICE_KEYS + 5)
    assert len(keys._runs) == 3


def test_a_slice_whose_keys_are_behind_the_page_is_not_looked_into() -> None:
    keys = NewKeys()
    keys.add(numbered(3 * SLICE_KEYS))
    for _ in range(LOOKS_MAX):
        assert within(keys, b"", b"1", 5) == numbered(5)
    assert [each.looks for each in keys._slices] == [0, 0], "the first was sorted"


def test_a_page_has_each_key_once_and_knows_what_else_belongs_there() -> None:
    page = KeyPage(b"b", b"y", 3, descending=False)
    page.add([b"m", b"c", b"m"])
    assert (page.keys, page.low, page.high) == ([b"c", b"m"], b"b", b"y")
    page.add_sorted([b"a", b"b", b"c", b"d", b"z"])
    assert (page.keys, page.low, page.high) == ([b"b", b"c", b"d"], b"b", b"d")
    assert page.may_have(b"", b"b")
    assert not page.may_have(b"", b"a")
    assert not page.may_have(b"d", b"z")
    page = KeyPage(b"b", b"y", 2, descending=True)
    page.add_sorted([b"pa", b"pb", b"pc", b"pd", b"py", b"qc"], b"p")
    assert (page.keys, page.low, page.high) == ([b"d", b"c"], b"c", b"y")


def test_keys_of_a_part_of_a_list_stay_in_its_order() -> None:
    keys = [b"c", b"", b"b", b"bb", b"a\0", b"a"]
    assert keys_within(keys, 0, 6, b"", b"z") == keys
    assert keys_within(keys, 1, 5, b"a", b"bb") == [b"b", b"a\0"]
    assert keys_within(keys, 4, 99, b"", b"z") == [b"a\0", b"a"]
    assert keys_within(keys, 7, 9, b"", b"z") == keys_within(keys, 3, 2, b"", b"z") == []
