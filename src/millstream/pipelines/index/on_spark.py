"""The pipeline that keeps an index: Spark maps, and wakes the cycle.

    stream changes ---> a micro-batch is there ---> cycle: header, bounded read, map, commit
                        (`foreachBatch`, it carries nothing)

The streaming query only schedules: what is read starts at the header's position, so that a
checkpoint that is lost, old or of another run does no harm. With `is_loop` there is no query: the
node is asked how far it is.

Invariants:
1. One commit ends before the next begins, and a stop waits for the one under way.
2. A node, or a partition, that is away for less than `AWAY_S` does not end the pipeline; one that
   is away when a stop is asked for does not make the stop a failure.
3. Pipelines of one process read formats of their own: see `source.register`.

Elsewhere: the cycle (`writer`), tasks (`mapping`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.errors import MillstreamError, RoutingError, UnavailableError
from millstream.pipelines.batch_edge import BatchGate
from millstream.pipelines.classic import require_classic
from millstream.pipelines.index.mapping import MapSpec, TaskDone, run_task
from millstream.pipelines.index.planning import PartPlan
from millstream.pipelines.index.writer import ROWS_PER_COMMIT, Cycle, IndexWriter
from millstream.pipelines.source import register
from millstream.views.core.index_messages import error_from

__all__ = ["AWAY_S", "CycleReport", "IndexPipeline", "spark_tasks"]

AWAY_S: Final = 60.0
"""How long node or executors may be away before the pipeline ends."""
PAUSE_S: Final = 0.25
"""Before it is tried again."""
RESTARTS_MAX: Final = 3
"""How often in a row a streaming query is started again that ended soon after its start."""
POLL_S: Final = 0.02
"""How often a loop asks whether there is something new."""
_AWAY: Final = (UnavailableError, RoutingError)
"""A node, or what has some partition, is away."""
_SCHEMA: Final = pa.schema([pa.field("done", pa.binary())])


class CycleReport(msgspec.Struct, frozen=True):
    """What one commit did, for people; `lag`: seqnos not read yet, by partition."""

    ddoc: str
    commit: int
    seconds: float
    changes: int
    partitions: int
    left_out: int
    rows: list[int]
    is_first: bool
    lag: dict[int, int]


def spark_tasks(
    spark: SparkSession,
) -> Callable[[MapSpec, Sequence[Sequence[PartPlan]]], list[TaskDone]]:
    """Return what runs tasks on a session's executors, one Spark task for each."""

    def run(spec: MapSpec, tasks: Sequence[Sequence[PartPlan]]) -> list[TaskDone]:
        numbers = spark.range(0, len(tasks), 1, len(tasks))
        try:
            done = numbers.mapInArrow(partial(_run_rows, spec, tasks), "done binary").collect()
        except PySparkException as error:
            raise UnavailableError(
                f"tasks failed on Spark: {error}", code="tasks_failed"
            ) from error
        return [_done_of(bytes(row.done)) for row in done]

    return run


def _run_rows(
    spec: MapSpec, tasks: Sequence[Sequence[PartPlan]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run the tasks of an executor's batches; errors that trying again does not cure are rows."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            try:
                done = b"+" + msgspec.json.encode(run_task(spec, tasks[number]))
            except UnavailableError:
                raise
            except MillstreamError as error:
                told = {
                    "kind": type(error).__name__, "code": error.code, "retry": error.retry,
                    "reason": str(error),
                }  # fmt: skip
                done = b"-" + msgspec.json.encode(told)
            yield pa.RecordBatch.from_arrays([pa.array([done], pa.binary())], schema=_SCHEMA)


def _done_of(told: bytes) -> TaskDone:
    if told[:1] == b"-":
        raise error_from(told[1:])
    return msgspec.json.decode(told[1:], type=TaskDone)


@dataclass(slots=True)
class IndexPipeline:
    """One run of the pipeline for one index.

    Args:
        spec: of the index.
        checkpoint: directory of Spark's query, of this pipeline alone.
        task_count: Spark tasks of one commit.
        rows_max: changes of one commit after the first.
        source_options: further options of `format("millstream")`, such as `passwordFile`.
        is_loop: ask the node instead of running a streaming query.
        on_cycle: told after each commit.
    """

    spec: MapSpec
    checkpoint: Path
    task_count: int = 2
    rows_max: int = ROWS_PER_COMMIT
    source_options: dict[str, str] = field(default_factory=dict)
    is_loop: bool = False
    on_cycle: Callable[[CycleReport], None] = lambda report: None
    is_stopping: bool = False

    @property
    def design(self) -> str:
        """The name of the design document."""
        return self.spec.address.design

    def run(self, spark: SparkSession, *, once: bool = False) -> None:
        """Keep the index until `is_stopping` is set; with `once`, until it has all there is.

        Raises:
            ConditionError: `index_fenced`: another writer keeps it now; `not_spark_engine`;
                `other_index`.
            UnavailableError, RoutingError: node or Spark failed for long, and nobody asked for a
                stop; running again goes on.
            UsageError: `needs_classic_session`.
        """
        require_classic(spark, "the pipeline views")
        try:
            self._run(spark, once)
        except _AWAY:
            if not self.is_stopping:
                raise

    def _run(self, spark: SparkSession, once: bool) -> None:
        name = f"Spark pipeline {secrets.token_hex(4)}"
        with IndexWriter(
            self.spec, spark_tasks(spark), name=name, task_count=self.task_count,
            rows_max=self.rows_max,
        ) as writer:  # fmt: skip
            self._patiently(writer.take_over)
            self._catch_up(writer)
            if once:
                return
            if self.is_loop:
                self._loop(writer)
            else:
                self._keep_following(spark, writer)

    def _loop(self, writer: IndexWriter) -> None:
        while not self.is_stopping:
            if self._patiently(writer.is_behind):
                self._catch_up(writer)
            else:
                time.sleep(POLL_S)

    def _catch_up(self, writer: IndexWriter) -> None:
        """Commit until there is nothing new."""
        while not self.is_stopping:
            began = time.monotonic()
            cycle = self._patiently(writer.cycle)
            if cycle is None:
                return
            self.on_cycle(self._report(writer, cycle, time.monotonic() - began))

    def _report(self, writer: IndexWriter, cycle: Cycle, seconds: float) -> CycleReport:
        return CycleReport(
            self.design, cycle.state.commit, seconds, cycle.changes, cycle.parts,
            len(cycle.state.left_out), cycle.state.rows, cycle.is_first, writer.lag(),
        )  # fmt: skip

    def _patiently(self, work: Callable[[], Any]) -> Any:
        """Try again while node or executors are away."""
        until = 0.0
        while True:
            try:
                return work()
            except _AWAY:
                until = until or time.monotonic() + AWAY_S
                if self.is_stopping or time.monotonic() > until:
                    raise
                time.sleep(PAUSE_S)

    # -- the streaming query

    def _keep_following(self, spark: SparkSession, writer: IndexWriter) -> None:
        """Follow; a query that Spark gave up is started again, since it carries nothing."""
        left = RESTARTS_MAX
        while not self.is_stopping:
            began = time.monotonic()
            gate = BatchGate(lambda *_: self._catch_up(writer), lambda: self.is_stopping)
            try:
                gate.wait(self._started(spark, gate))
                if not self.is_stopping:
                    raise UnavailableError(
                        "the streaming query ended by itself", code="query_ended"
                    )
            except _AWAY:
                left = RESTARTS_MAX if time.monotonic() - began > AWAY_S else left - 1
                if gate.failure is not None or left < 0:
                    raise

    def _started(self, spark: SparkSession, gate: BatchGate) -> StreamingQuery:
        source = self.spec.source
        format_name = f"millstream-{secrets.token_hex(8)}"
        register(spark, format_name)
        options = {
            "hosts": source.hosts, "bucket": source.bucket, "noValue": "true",
            "rollback": "rows", **self.source_options,
        }  # fmt: skip
        if source.user:
            options["user"] = source.user
        changes = spark.readStream.format(format_name).options(**options)

        return (
            changes.schema("partition int")
            .load()
            .writeStream.queryName(f"views-{source.bucket}-{self.design}-{format_name[-4:]}")
            .option("checkpointLocation", str(self.checkpoint / "spark"))
            .foreachBatch(gate.take)
            .start()
        )
