"""Order of view keys, against the reference list, a comparison function and the full table."""

from __future__ import annotations

from functools import cmp_to_key
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.views.core import collation
from millstream.views.core.collation import encode_key, encode_string

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
def test_what_is_not_json_is_refused(key):
    with pytest.raises(UsageError) as caught:
        encode_key(key)
    assert caught.value.code == "bad_key"


def test_depth_is_bounded():
    deep: object = 1
    for _ in range(collation.KEY_DEPTH_MAX):
        deep = [deep]
    encode_key(deep)
    with pytest.raises(UsageError):
        encode_key([deep])


def test_lone_surrogates_do_not_raise():
    assert encode_key("\ud800") > encode_key("z")
