"""Every built-in reduce against a model that looks at all rows at once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.views.core.collation import encode_key
from millstream.views.core.reduce.builtin_reduces import RANKED_MAX, Rows, is_builtin, rule_of
from millstream.views.core.reduce.values import IllegalValueError
from millstream.views.core.rows import row_key
from support.views.reduce_model import model, stats

SMALL = st.integers(-9, 9)
# Floats that add without rounding, so that the order does not show.
QUARTERS = SMALL.map(lambda n: n / 4)
VALUES = {
    "integers": st.integers(-(2**70), 2**70),
    "numbers": SMALL | QUARTERS,
    "arrays": st.lists(SMALL, max_size=3) | SMALL,
    "objects": st.dictionaries(
        st.sampled_from("abc"), SMALL | st.lists(SMALL, max_size=2), max_size=3
    ),
    "stats": st.lists(SMALL, min_size=1, max_size=9).map(stats) | SMALL,
    "columns": st.lists(SMALL, min_size=2, max_size=2),
    "any": st.recursive(
        st.none() | st.booleans() | SMALL | st.text("ab\0A", max_size=3),
        lambda inner: st.lists(inner, max_size=2),
        max_leaves=4,
    ),
}
CASES = [
    ("_count", "any"), ("_sum", "numbers"), ("_sum", "integers"),
    ("_stats", "integers"), ("_sum", "arrays"), ("_sum", "objects"),
    ("_stats", "numbers"), ("_stats", "stats"), ("_stats", "columns"), ("_top_1", "numbers"),
    ("_top_3", "any"), ("_bottom_2", "any"), ("_bottom_100", "numbers"), ("_first", "any"),
    ("_last", "any"), ("_approx_count_distinct", "any"),
]  # fmt: skip


def rows_of(rows: list[tuple[bytes, Any]]) -> Rows:
    values = [value for _, value in rows]
    texts = [[b"0", msgspec.json.encode(value)] for value in values]
    keys = [row_key(ekey, b"%06d" % at) for at, (ekey, _) in enumerate(rows)]
    return Rows(keys, texts, values, len(rows))


def cut(rows: Rows, low: int, high: int) -> Rows:
    part = [column[low:high] for column in rows[:3]]
    return Rows(part[0], part[1], part[2], len(part[0]))


@pytest.mark.parametrize(("name", "kind"), CASES)
@given(data=st.data())
def test_reduced_in_any_grouping_and_order_is_reduced_at_once(
    name: str, kind: str, data: st.DataObject
) -> None:
    values = data.draw(st.lists(VALUES[kind], min_size=1, max_size=12))
    ekeys = sorted(
        data.draw(st.lists(st.integers(0, 5), min_size=len(values), max_size=len(values)))
    )
    rows = [(encode_key(key), value) for key, value in zip(ekeys, values, strict=True)]
    found = rows_of(rows)
    rule = rule_of(name)
    assert rule is not None
    borders = sorted(data.draw(st.sets(st.integers(1, len(rows)))) | {0, len(rows)})
    parts = [rule.rows_part(cut(found, low, high)) for low, high in pairwise(borders)]
    parts = data.draw(st.permutations(parts))
    while len(parts) > 1:
        size = data.draw(st.integers(2, len(parts)))
        parts = [rule.merge(parts[:size]), *parts[size:]]
    shown, expected = rule.final(parts[0]), model(name, rows)
    if name[1:4] in ("top", "bot"):  # of equal values either may be listed
        assert [encode_key(one) for one in shown] == [encode_key(one) for one in expected]
    else:
        assert shown == expected
        assert type(shown) is type(expected) or kind == "arrays"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("_sum", ["x"]), ("_sum", [True]), ("_sum", [None]), ("_sum", [1, {"a": 1}]),
        ("_sum", [[1, "x"]]), ("_sum", [{"a": "x"}]), ("_stats", ["x"]), ("_stats", [[1], [1, 2]]),
        ("_stats", [1, [1]]), ("_stats", [[1], 1]), ("_stats", [{"sum": 1}]), ("_stats", [[None]]),
    ],
)  # fmt: skip
def test_illegal_values_are_named_in_rows_and_in_parts(name: str, values: list[Any]) -> None:
    rule = rule_of(name)
    assert rule is not None
    with pytest.raises(IllegalValueError):
        rule.rows_part(rows_of([(b"", value) for value in values]))
    with pytest.raises(IllegalValueError):
        rule.merge([rule.rows_part(rows_of([(b"", value)])) for value in values])


def test_statistics_of_arrays_and_of_numbers_do_not_merge() -> None:
    rule = rule_of("_stats")
    assert rule is not None
    parts = [rule.rows_part(rows_of([(b"", value)])) for value in (1, [1], [1, 2], [])]
    for first in parts:
        for second in parts:
            if first is not second:
                with pytest.raises(IllegalValueError):
                    rule.merge([first, second])
    assert rule.final(rule.merge([parts[3], parts[3]])) == []


def test_unordered_values_are_illegal() -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    rule = rule_of("_top_1")
    assert rule is not None
    with pytest.raises(IllegalValueError):
        rule.rows_part(Rows([b""], [], [deep], 1))


def test_names() -> None:
    assert is_builtin(f"_top_{RANKED_MAX}")
    assert is_builtin("_bottom_1")
    for name in ("", "_top_0", "_top_101", "_top_", "_top_01", "_top_1 ", "_top_١", "_mean"):
        assert not is_builtin(name)
