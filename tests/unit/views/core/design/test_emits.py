"""Rows counted and cut by emits, against lists of emits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.views.core.design.emits import cut_rows, emits_in, turned
from millstream.views.core.rows import pairs_of, row_value


@pytest.mark.parametrize("count", [1, 2, 7, 8, 20, 32_767, 33_000])
def test_emits_are_counted_in_the_bytes_of_a_value(count):
    value = row_value([(b"1", b"2")] * count)
    assert emits_in([value]) == count
    assert emits_in([value, row_value([(b"1", b"2")])]) == count + 1


@given(
    st.lists(st.integers(1, 4) | st.just(1), max_size=8),
    st.integers(0, 12),
    st.none() | st.integers(0, 12),
)
def test_cutting(counts, skip, limit):
    emits = [(b"%d" % row, b"%d" % at) for row, count in enumerate(counts) for at in range(count)]
    keys = [b"%d" % row for row in range(len(counts))]
    values = [row_value([emit for emit in emits if emit[0] == key]) for key in keys]
    cut_keys, cut_values = cut_rows(keys, values, skip, limit)
    assert [pair for value in cut_values for pair in pairs_of(value)] == emits[skip:][:limit]
    assert list(cut_keys) == [pairs_of(value)[0][0] for value in cut_values]


def test_turning():
    one, two = row_value([(b"1", b"a")]), row_value([(b"1", b"a"), (b"1", b"b")])
    assert turned(one) is one
    assert pairs_of(turned(two)) == [(b"1", b"b"), (b"1", b"a")]
