"""Groups by encoded keys, against groups by the keys themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.views.core.collation import encode_key, encode_raw_key
from millstream.views.core.query.grouping import group_name, group_namer, shown_key
from millstream.views.core.rows import row_key

numbers = (
    st.integers(-(10**320), 10**320)
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([2**53, -(2**53), 2**53 - 1, 1 - 2**53, 2**53 + 1, 10**400, -(10**400)])
)
scalars = (
    st.none()
    | st.booleans()
    | numbers
    | st.text(max_size=5)
    | st.text(alphabet="\0a", max_size=4)
    | st.sampled_from("Ā ᄀ aB")
)
keys = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("is_raw", [False, True])
@given(st.lists(keys, max_size=6), st.lists(keys, max_size=3), st.integers(1, 5))
def test_the_name_of_an_array_is_the_encoding_of_its_first_elements(is_raw, elements, more, level):
    encode = encode_raw_key if is_raw else encode_key
    name = group_name(encode(elements), level, is_raw=is_raw)
    if len(elements) < level:
        assert name == encode(elements)
    else:
        assert name == encode(elements[:level])[:-1]
        assert name == group_name(encode([*elements, *more]), level, is_raw=is_raw)


@given(scalars | st.dictionaries(st.text(max_size=3), keys, max_size=2), st.integers(1, 3))
def test_other_keys_are_their_own_group(key, level):
    assert group_name(encode_key(key), level) == encode_key(key)
    assert group_name(encode_raw_key(key), level, is_raw=True) == encode_raw_key(key)


@given(st.lists(keys, max_size=8), st.integers(0, 3) | st.none())
def test_names_sort_as_rows_do(several, level):
    row_keys = sorted(row_key(encode_key(key), b"d") for key in several)
    names = [group_namer(level)(key) for key in row_keys]
    assert names == sorted(names)
    for name in names:
        assert [key.startswith(name) for key in row_keys] == [name == other for other in names]
    assert list(map(group_namer(level), row_keys)) == names


@pytest.mark.parametrize(
    ("key", "level", "shown"),
    [([1, 2, 3], 2, [1, 2]), ([1], 2, [1]), ("ab", 1, "ab"), ({"a": 1}, 1, {"a": 1}),
     ([1, 2], None, [1, 2]), ([1, 2], 0, None), (5, 0, None)],
)  # fmt: skip
def test_what_a_group_shows(key, level, shown):
    assert shown_key(key, level) == shown
