"""Sketches of how many different keys there are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.views.core.reduce.distinct import REGISTERS, estimate, merge_sketches, sketch

KEYS = st.lists(st.integers(0, 5000).map(lambda number: b"%d" % number), max_size=60)


def keys(count: int) -> list[bytes]:
    return [b"key %d" % number for number in range(count)]


@given(st.lists(KEYS, min_size=1, max_size=6))
def test_a_sketch_is_that_of_the_set(parts: list[list[bytes]]) -> None:
    whole = sketch(key for part in parts for key in part)
    assert merge_sketches([sketch(part) for part in parts]) == whole
    assert merge_sketches([sketch(part) for part in reversed(parts)]) == whole
    assert merge_sketches([whole, whole]) == whole


@pytest.mark.parametrize("count", [400, 3000])
def test_many_keys_merge_exactly_too(count: int) -> None:
    parts = [sketch(keys(count)[low : low + 700]) for low in range(0, count, 350)]
    assert merge_sketches(parts) == sketch(keys(count))


@pytest.mark.parametrize("count", [0, 1, 2, 10, 100, 1000, 5000, 20_000, 100_000])
def test_the_estimate_is_near(count: int) -> None:
    assert estimate(sketch(keys(count))) == pytest.approx(count, rel=0.06)


def test_a_sketch_is_small() -> None:
    assert len(sketch(keys(50))) <= 151
    assert len(sketch(keys(100_000))) < REGISTERS * 0.6
