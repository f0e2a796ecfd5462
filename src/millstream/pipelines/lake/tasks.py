"""Runs a function over many items on Spark's executors: all that backups need of Spark.

Invariants:
1. An error that Millstream raises on purpose comes back as what it is; it is no failed task, which
   Spark would try again without being asked.
2. There are at most as many tasks as the session runs at a time: each costs as much as thousands
   of rows. Heavy items are spread first.

Elsewhere: what is done (`backup`, `restore`, `verify`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from pyspark.sql import SparkSession

from millstream.errors import MillstreamError
from millstream.pipelines.classic import require_classic
from millstream.pipelines.spark_version import PYSPARK_MIN

__all__ = ["PYSPARK_MIN", "run_tasks", "spread_items"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_tasks(
    spark: SparkSession,
    function: Callable[[Item], Result],
    items: Iterable[tuple[int, Item]],
) -> list[Result | MillstreamError]:
    """Return what `function` returns or raises of each item, in no order.

    Args:
        spark: a classic session.
        function: importable, as are the items' types.
        items: (weight, item).

    Raises:
        UsageError: `needs_classic_session`.
    """
    require_classic(spark, "backup, restore and verify")
    context = spark.sparkContext
    groups = spread_items(items, context.defaultParallelism)
    if not groups:
        return []

    def run(group: Sequence[Item]) -> list[Result | MillstreamError]:
        return [_result(function, item) for item in group]

    return context.parallelize(groups, len(groups)).flatMap(run).collect()


def spread_items(items: Iterable[tuple[int, Item]], group_count: int) -> list[list[Item]]:
    """Share (weight, item) out over at most `group_count` groups of about equal weight."""
    groups: list[list[Item]] = [[] for _ in range(group_count)]
    weights = [0] * group_count
    for weight, item in sorted(items, key=lambda pair: pair[0], reverse=True):
        lightest = min(range(group_count), key=lambda n: (weights[n], len(groups[n])))
        groups[lightest].append(item)
        weights[lightest] += weight
    return [group for group in groups if group]


def _result(function: Callable[[Item], Result], item: Item) -> Result | MillstreamError:
    try:
        return function(item)
    except MillstreamError as error:
        return error
