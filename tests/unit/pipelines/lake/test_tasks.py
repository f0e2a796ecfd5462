from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from backup_double import FalseSpark
from millstream.errors import UsageError
from millstream.pipelines.lake.tasks import run_tasks, spread_items


def halve(number: int) -> int:
    if number % 2:
        raise UsageError("odd")
    return number // 2


def test_results_and_errors_come_back() -> None:
    spark: Any = FalseSpark()
    results = run_tasks(spark, halve, [(1, 4), (1, 3), (1, 8)])
    assert sorted(map(str, results)) == ["2", "4", "odd"]
    assert run_tasks(spark, halve, []) == []


@given(st.lists(st.tuples(st.integers(0, 50), st.integers())), st.integers(1, 5))
def test_every_item_is_in_one_group_and_no_group_is_empty(
    items: list[tuple[int, int]], count: int
) -> None:
    groups = spread_items(items, count)
    assert sorted(i for group in groups for i in group) == sorted(i for _, i in items)
    assert len(groups) <= count
    assert all(groups)


def test_heavy_items_are_apart() -> None:
    assert spread_items([(1, "c"), (9, "a"), (1, "d"), (8, "b")], 2) == [["a", "d"], ["b", "c"]]
