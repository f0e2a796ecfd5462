"""Built-in reduces against their rules, and merging against reducing everything at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.views.core.reduce.values import (
    BUILTIN_REDUCES,
    is_error,
    merge,
    overflow_error,
    reduce_values,
)

integers = st.integers(-(2**60), 2**60)
stats_objects = st.fixed_dictionaries(
    dict.fromkeys(("sum", "count", "min", "max", "sumsqr"), integers)
)
sum_values = st.one_of(
    st.lists(integers | st.lists(integers, max_size=3), min_size=1, max_size=12),
    st.lists(st.dictionaries(st.sampled_from("abc"), integers), min_size=1, max_size=12),
)
stats_values = st.one_of(
    st.lists(integers | stats_objects, min_size=1, max_size=12),
    st.lists(st.lists(integers, min_size=2, max_size=2), min_size=1, max_size=12),
)


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([1, 2, 3], 6),
        ([1, [1, 2]], [2, 2]),
        ([[1], [1, 2, 3], 4], [6, 2, 3]),
        ([{"a": 1}, {"a": 2, "b": {"c": [1]}}], {"a": 3, "b": {"c": [1]}}),
        ([2**70, 1], 2**70 + 1),
    ],
)
def test_sum(values, total):
    assert reduce_values("_sum", values) == total


@pytest.mark.parametrize("value", ["x", None, True, ["x"], [[1]], {"a": "x"}, {"a": None}])
def test_an_illegal_sum_is_an_error_value_that_names_it(value):
    result = reduce_values("_sum", [1, value])
    assert is_error(result)
    assert result["caused_by"] == value or result["caused_by"] in (value, "x", None)


def test_objects_do_not_mix_with_numbers():
    assert is_error(reduce_values("_sum", [1, {"a": 1}]))
    assert is_error(reduce_values("_sum", [{"a": 1}, [1]]))


@pytest.mark.parametrize("value", ["x", None, True, {"sum": 1}, [1], {"sum": "1"}])
def test_an_illegal_stats_value_is_an_error_value(value):
    assert is_error(reduce_values("_stats", [1, value]))


def test_stats_of_numbers_objects_and_arrays():
    two = {"sum": 5, "count": 2, "min": 2, "max": 3, "sumsqr": 13}
    assert reduce_values("_stats", [2, 3]) == two
    assert reduce_values("_stats", [two | {"extra": "ignored"}, 1]) == {
        "sum": 6, "count": 3, "min": 1, "max": 3, "sumsqr": 14,
    }  # fmt: skip
    assert reduce_values("_stats", [[1, 2], [3, 4]])[1]["sum"] == 6
    assert is_error(reduce_values("_stats", [[1, 2], [3]]))


@given(st.lists(st.integers(), min_size=1), st.integers(0, 9))
def test_counts_merge(values, cut):
    parts = [part for part in (values[:cut], values[cut:]) if part]
    partials = [reduce_values("_count", part) for part in parts]
    assert merge("_count", partials) == len(values)


@given(sum_values, st.integers(0, 12))
def test_sums_merge_exactly(values, cut):
    parts = [part for part in (values[:cut], values[cut:]) if part]
    whole = reduce_values("_sum", values)
    merged = merge("_sum", [reduce_values("_sum", part) for part in parts])
    assert merged == whole or (is_error(merged) and is_error(whole))


@given(stats_values, st.integers(0, 12))
def test_stats_merge_exactly(values, cut):
    parts = [part for part in (values[:cut], values[cut:]) if part]
    merged = merge("_stats", [reduce_values("_stats", part) for part in parts])
    assert merged == reduce_values("_stats", values)


@given(
    st.sampled_from(sorted(BUILTIN_REDUCES)),
    st.lists(st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
        max_leaves=6,
    ), max_size=5),
)  # fmt: skip
def test_any_value_is_reduced_or_an_error_value(name, values):
    merge(name, [reduce_values(name, values), reduce_values(name, values)])


def test_huge_and_deep_values_are_error_values():
    assert is_error(reduce_values("_sum", [10**400, 1.5]))
    deep: object = 1
    for _ in range(100_000):
        deep = {"a": deep}
    assert is_error(reduce_values("_sum", [deep]))


def test_errors_survive_merges():
    poisoned = reduce_values("_sum", ["x"])
    assert merge("_sum", [1, poisoned, 2]) == poisoned
    assert merge("_stats", [poisoned]) == poisoned


def test_a_result_must_shrink():
    wide = {f"member{at}": at for at in range(1000)}
    assert reduce_values("_sum", [wide])["error"] == "reduce_overflow_error"
    assert overflow_error("short", 0) is None
    assert overflow_error("x" * 6000, 20_000) is None
    assert overflow_error("x" * 6000, 10_000)


def test_an_unknown_builtin_is_refused():
    with pytest.raises(UsageError):
        reduce_values("_mean", [1])
