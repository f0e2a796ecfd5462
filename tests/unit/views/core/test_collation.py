"""Order of view keys, against the reference list, a comparison function and the full table."""

from __future__ import annotations

from functools import cmp_to_key
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.views.core import collation
from millstream.views.core.collation import (
    encode_key,
    encode_raw_key,
    encode_string,
    encoder_of,
)

ASCII_ORDER = " _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$0123456789aAbBcCdDeEfF"
MIXED = [
    None, False, True,
    -1e300, -(2**70), -(2**53) - 1, -(2**53), -1.5, -1, 0, 0.5, 1, 2, 10, 2**53, 2**53 + 1,
    2**53 + 2, 2**63, 2**63 + 1, 10**30, 10**30 + 1, 1e300, 10**400, 10**401,
    "", "_", "a", "A", "Á", "aa", "b", "B", "ba", "bb", "e", "é", "日本",
    ["a"], ["b"], ["b", "c"], ["b", "c", "a"], ["b", "d"], ["b", "d", "e"],
    {"a": 1}, {"a": 2}, {"b": 1}, {"b": 2}, {"b": 2, "a": 1}, {"b": 2, "c": 2},
]  # fmt: skip

numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
json_keys = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def rank(key):
    for position, kind in enumerate((type(None), bool, int | float, str, list)):
        if isinstance(key, kind):
            return position
    return 5


def sign(a, b):
    return (a > b) - (a < b)


def compare(a, b):
    """The rules of the order, written down a second time as a comparison of two keys."""
    if rank(a) != rank(b):
        return sign(rank(a), rank(b))
    if isinstance(a, str):
        return sign(collation._sort_key()(a), collation._sort_key()(b))
    if isinstance(a, list | dict):
        left = a if isinstance(a, list) else [part for pair in a.items() for part in pair]
        right = b if isinstance(b, list) else [part for pair in b.items() for part in pair]
        for x, y in zip(left, right, strict=False):
            if order := compare(x, y):
                return order
        return sign(len(left), len(right))
    return 0 if a is None else sign(a, b)


RAW = [
    -(2**60), -1.5, -1, 0, 0.5, 1, 2**53, 2**53 + 1, False, None, True, {}, {"a": 1}, {"a": 2},
    {"a": 2, "b": 0}, {"b": 1}, [], [1], [1, 1], ["a"], "", "\0", "\0a", "A", "B", "a", "a\0",
    "aa", "b", "é", "日本",
]  # fmt: skip


def raw_rank(key):
    if isinstance(key, bool) or key is None:
        return [False, None, True].index(key) + 1
    for place, kind in ((0, int | float), (4, dict), (5, list), (6, str)):
        if isinstance(key, kind):
            return place
    raise AssertionError


def raw_compare(a, b):
    """The rules of the raw order, written down a second time."""
    if raw_rank(a) != raw_rank(b):
        return sign(raw_rank(a), raw_rank(b))
    if isinstance(a, str):
        return sign(*(text.encode(errors="surrogatepass") for text in (a, b)))
    if isinstance(a, list | dict):
        left = a if isinstance(a, list) else [part for pair in a.items() for part in pair]
        right = b if isinstance(b, list) else [part for pair in b.items() for part in pair]
        for x, y in zip(left, right, strict=False):
            if order := raw_compare(x, y):
                return order
        return sign(len(left), len(right))
    return 0 if isinstance(a, bool) or a is None else sign(a, b)


def test_the_raw_list_is_in_order():
    assert all(a < b for a, b in pairwise(map(encode_raw_key, RAW)))
    assert encoder_of("raw") is encode_raw_key
    assert encoder_of("unicode") is encode_key


@given(json_keys, json_keys)
def test_raw_bytes_sort_as_the_rules_say(a, b):
    first, second = encode_raw_key(a), encode_raw_key(b)
    assert sign(first, second) == raw_compare(a, b)
    assert first == second or not second.startswith(first)


def test_the_reference_list_is_in_order():
    encoded = [encode_key(key) for key in MIXED]
    assert all(a < b for a, b in pairwise(encoded))


def test_ascii_characters_are_in_the_order_of_the_root_locale():
    encoded = [encode_key(character) for character in ASCII_ORDER]
    assert encoded == sorted(encoded)
    assert len(set(encoded)) == len(encoded)


def test_equal_values_have_equal_keys():
    assert encode_key(1) == encode_key(1.0)
    assert encode_key(0) == encode_key(-0.0)
    assert encode_key("\u0000a") == encode_key("a")
    assert encode_key(2**60) == encode_key(float(2**60))
    assert encode_key([1, ["x"]]) == encode_key((1.0, ("x",)))


def test_bounds_of_prefix_and_of_array_prefix():
    assert encode_key("abc") < encode_key("abczzz") < encode_key("abc\ufff0") < encode_key("abd")
    assert encode_key(["a"]) < encode_key(["a", "zz", 9]) < encode_key(["a", {}])
    assert encode_key(["a", {}]) < encode_key(["b"])


@given(st.text(alphabet=st.characters(max_codepoint=127), max_size=20))
def test_the_fast_path_gives_the_bytes_of_the_table(text):
    assert encode_string(text) == collation._encode_by_table(text)


@given(json_keys, json_keys)
def test_bytes_sort_as_the_rules_say(a, b):
    assert sign(encode_key(a), encode_key(b)) == compare(a, b)


@given(st.lists(json_keys, max_size=8))
def test_sorting_by_bytes_is_sorting_by_the_rules(keys):
    by_rules = sorted(keys, key=cmp_to_key(compare))
    assert [encode_key(k) for k in by_rules] == sorted(encode_key(k) for k in keys)


@given(json_keys, json_keys)
def test_no_key_is_a_proper_prefix_of_another(a, b):
    first, second = encode_key(a), encode_key(b)
    assert first == second or not second.startswith(first)


@pytest.mark.parametrize("key", [float("nan"), float("inf"), b"bytes", {1, 2}])
def test_input_that_is_not_json_is_refused(key):
    with pytest.raises(UsageError) as caught:
        encode_key(key)
    assert caught.value.code == "bad_key"


def test_depth_is_bounded():
    deep: object = 1
    for _ in range(collation.KEY_DEPTH_MAX):
        deep = [deep]
    for encode in (encode_key, encode_raw_key):
        encode(deep)
        with pytest.raises(UsageError):
            encode([deep])


def test_lone_surrogates_do_not_raise():
    assert encode_key("\ud800") > encode_key("z")
