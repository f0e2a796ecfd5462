"""Runs a function over many items on Spark's executors: all that backups need of Spark.

Items are run in waves, one Spark job each, so that a long run tells how far it is.

Invariants:
1. An error that Millstream raises on purpose comes back as what it is; it is no failed task, which
   Spark would try again without being asked.
2. There are at most as many tasks as the session runs at a time: each costs as much as thousands
   of rows. Heavy items come first, and are spread.
3. Who asks for a stop gets it at once: what tasks have done counts only when the caller says so.
   Jobs are cancelled again and again, as Spark may get to know of one after the stop; and of a
   wave that ended all the same nothing counts.

Elsewhere: what is done (`backup`, `restore`, `verify`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import Final, Generic, NamedTuple, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millstream.errors import ConditionError, MillstreamError, UnavailableError
from millstream.pipelines.classic import require_classic
from millstream.pipelines.spark_version import PYSPARK_MIN

__all__ = ["PYSPARK_MIN", "Watch", "Wave", "Work", "results_of", "run_tasks", "spread_items"]

WAVE_ROWS: Final = 500_000
"""Rows of one task of a wave, where single items are not larger: some seconds."""
CANCEL_PAUSE_S: Final = 0.2
"""Pause between two attempts to cancel jobs, until all have ended."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Work(NamedTuple, Generic[Item]):
    """An item, its partition, and about how many rows it has."""

    partition: int
    rows: int
    item: Item


class Wave(NamedTuple):
    """What a wave did; `left`: partition -> about how many rows are to be done yet."""

    number: int
    rows: int
    seconds: float
    left: Mapping[int, int]


class Watch:
    """What a run tells while it goes on, and whether it shall stop.

    Args:
        on_wave: called after each wave.
        advice: what to do when it was stopped, for its message.
    """

    def __init__(
        self, on_wave: Callable[[Wave], None] = lambda wave: None, *, advice: str = ""
    ) -> None:
        self._on_wave = on_wave
        self._advice = advice
        self._count = 0
        self._cancel: Callable[[], None] | None = None
        self._has_ended = Event()
        self._is_stopping = False

    def stop(self) -> None:
        """Ask the run to stop; may be called in a signal handler."""
        self._is_stopping = True
        if self._cancel is not None:
            Thread(target=self._keep_cancelling, name="cancel", daemon=True).start()

    def check(self) -> None:
        """Raise ConditionError `stopped` if a stop was asked for."""
        if self._is_stopping:
            raise ConditionError(f"stopped before its end: {self._advice}", code="stopped")

    def wave(self, spark: SparkSession, run: Callable[[], Result]) -> Result:
        """Return what `run` returns, one job of Spark, which a stop cuts off.

        Raises:
            ConditionError: `stopped`.
            UnavailableError: `tasks_failed`.
        """
        self._has_ended.clear()
        self._cancel = spark.sparkContext.cancelAllJobs
        try:
            self.check()
            result = run()
            self.check()
        except (PySparkException, Py4JError) as error:
            self.check()
            raise UnavailableError(
                f"tasks failed on Spark: {error}", code="tasks_failed"
            ) from error
        finally:
            self._cancel = None
            self._has_ended.set()
        return result

    def tell(self, rows: int, seconds: float, left: Mapping[int, int]) -> None:
        """Tell that a wave has ended."""
        self._count += 1
        self._on_wave(Wave(self._count, rows, seconds, left))

    def _keep_cancelling(self) -> None:
        while (cancel := self._cancel) is not None:
            with suppress(Py4JError):  # the session is gone, and its jobs with it
                cancel()
            self._has_ended.wait(CANCEL_PAUSE_S)


def results_of(
    spark: SparkSession,
    function: Callable[[Item], Result],
    works: Iterable[Work[Item]],
    *,
    watch: Watch | None = None,
) -> list[Result]:
    """Return what `function` returns of each item; raise the first error, as `run_tasks` else."""
    found = []
    for result in run_tasks(spark, function, works, watch=watch):
        if isinstance(result, MillstreamError):
            raise result
        found.append(result)
    return found


def run_tasks(
    spark: SparkSession,
    function: Callable[[Item], Result],
    works: Iterable[Work[Item]],
    *,
    watch: Watch | None = None,
) -> list[Result | MillstreamError]:
    """Return what `function` returns or raises of each item, in no order.

    Args:
        spark: a classic session.
        function: importable, as are the items' types.
        works: what there is to do.
        watch: told after each wave.

    Raises:
        ConditionError: `stopped`.
        UnavailableError: `tasks_failed`.
        UsageError: `needs_classic_session`.
    """
    require_classic(spark, "backup, restore and verify")
    context = spark.sparkContext
    task_count = context.defaultParallelism
    watch = watch or Watch()

    def run(group: Sequence[Item]) -> list[Result | MillstreamError]:
        return [_result(function, item) for item in group]

    results: list[Result | MillstreamError] = []
    left = sorted(works, key=lambda work: work.rows, reverse=True)
    for wave in waves_of(left, task_count):
        started = time.monotonic()
        groups = spread_items(
            ((work.rows, work.item) for work in wave), context.defaultParallelism
        )
        job = context.parallelize(groups, len(groups)).flatMap(run)
        results += watch.wave(spark, job.collect)
        left = left[len(wave) :]
        behind: dict[int, int] = {}
        for work in left:
            behind[work.partition] = behind.get(work.partition, 0) + work.rows
        watch.tell(sum(work.rows for work in wave), time.monotonic() - started, behind)
    return results


def waves_of(works: Sequence[Work[Item]], task_count: int) -> Iterator[Sequence[Work[Item]]]:
    """Cut works, heavy ones first, into waves that keep all tasks busy."""
    wave: list[Work[Item]] = []
    rows = 0
    for work in works:
        if len(wave) >= task_count and rows + work.rows > WAVE_ROWS * task_count:
            yield wave
            wave, rows = [], 0
        wave.append(work)
        rows += work.rows
    if wave:
        yield wave


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
