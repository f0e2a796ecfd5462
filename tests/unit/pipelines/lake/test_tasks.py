from __future__ import annotations

from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JError

from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.pipelines.lake.tasks import (
    WAVE_ROWS,
    Watch,
    Wave,
    Work,
    results_of,
    run_tasks,
    spread_items,
    waves_of,
)
from support.pipelines.backup_double import FalseSpark


def halve(number: int) -> int:
    if number % 2:
        raise UsageError("odd")
    return number // 2


def works(*items: int, rows: int = 1) -> list[Work[int]]:
    return [Work(partition, rows, item) for partition, item in enumerate(items)]


def test_results_and_errors_come_back() -> None:
    spark: Any = FalseSpark()
    results = run_tasks(spark, halve, works(4, 3, 8))
    assert sorted(map(str, results)) == ["2", "4", "odd"]
    assert run_tasks(spark, halve, []) == []
    assert sorted(results_of(spark, halve, works(4, 8))) == [2, 4]
    with pytest.raises(UsageError, match="odd"):
        results_of(spark, halve, works(4, 3))


def test_waves_are_told_with_what_is_left() -> None:
    spark: Any = FalseSpark()
    told: list[Wave] = []
    many = [Work(p, WAVE_ROWS, 2 * p) for p in range(5)]
    assert sorted(results_of(spark, halve, many, watch=Watch(told.append))) == [0, 1, 2, 3, 4]
    assert [wave.number for wave in told] == [1, 2, 3]
    assert [wave.rows for wave in told] == [2 * WAVE_ROWS, 2 * WAVE_ROWS, WAVE_ROWS]
    assert [dict(wave.left) for wave in told] == [
        {2: WAVE_ROWS, 3: WAVE_ROWS, 4: WAVE_ROWS}, {4: WAVE_ROWS}, {},
    ]  # fmt: skip


def test_a_stop_is_seen_between_waves() -> None:
    spark: Any = FalseSpark()
    watch = Watch(lambda wave: watch.stop(), advice="run it again")
    with pytest.raises(ConditionError, match="stopped before its end: run it again") as caught:
        run_tasks(spark, halve, [Work(0, 9 * WAVE_ROWS, 2)] * 3, watch=watch)
    assert caught.value.code == "stopped"


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_stop_cancels_the_wave_under_way(is_asked: bool) -> None:
    spark: Any = FalseSpark()
    watch = Watch()

    def run() -> None:
        if is_asked:
            watch.stop()
            assert spark.is_cancelled.wait(60)
        raise Py4JError("cancelled")

    with pytest.raises(ConditionError if is_asked else UnavailableError) as caught:
        watch.wave(spark, run)
    assert caught.value.code == ("stopped" if is_asked else "tasks_failed")


def test_a_stop_before_spark_has_the_job_is_repeated() -> None:
    spark: Any = FalseSpark()
    watch = Watch()

    def run() -> None:
        watch.stop()
        for _ in range(2):  # the first one finds no job
            assert spark.is_cancelled.wait(60)
            spark.is_cancelled.clear()
        raise Py4JError("cancelled")

    with pytest.raises(ConditionError, match="stopped"):
        watch.wave(spark, run)


def test_a_stop_that_no_job_sees_counts_after_the_wave() -> None:
    spark: Any = FalseSpark()
    watch = Watch(advice="run it again")
    with pytest.raises(ConditionError, match="run it again"):
        watch.wave(spark, watch.stop)


def test_a_session_that_is_gone_ends_no_stop() -> None:
    spark: Any = FalseSpark()
    watch = Watch()
    asked = Event()

    def cancel() -> None:
        asked.set()
        raise Py4JError("no Java")

    spark.cancelAllJobs = cancel

    def run() -> None:
        watch.stop()
        assert asked.wait(60)

    with pytest.raises(ConditionError, match="stopped"):
        watch.wave(spark, run)


@given(st.lists(st.integers(0, 3 * WAVE_ROWS)), st.integers(1, 4))
def test_every_item_is_in_one_wave(rows: list[int], tasks: int) -> None:
    made = [Work(0, count, number) for number, count in enumerate(rows)]
    waves = list(waves_of(made, tasks))
    assert [work for wave in waves for work in wave] == made
    assert all(len(wave) >= tasks for wave in waves[:-1])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers())), st.integers(1, 5))
def test_every_item_is_in_one_group_and_no_group_is_empty(
    items: list[tuple[int, int]], count: int
) -> None:
    groups = spread_items(items, count)
    assert sorted(i for group in groups for i in group) == sorted(i for _, i in items)
    assert len(groups) <= count
    assert all(groups)


def test_heavy_items_are_in_separate_groups() -> None:
    assert spread_items([(1, "c"), (9, "a"), (1, "d"), (8, "b")], 2) == [["a", "d"], ["b", "c"]]
