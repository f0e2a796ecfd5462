"""The pipeline that keeps an index: Spark maps, and wakes the cycle.

    stream changes ---> a micro-batch is there ---> cycle: header, bounded read, map, commit
                        (`foreachBatch`, it carries nothing)

The streaming query only schedules: what is read starts at the header's position, so that a
checkpoint that is lost, old or of another run does no harm. With `is_loop` there is no query: the
node is asked how far it is.

Invariants:
1. Commits of an index follow each other, and a stop waits for those under way.
2. A node, or a partition, that is away for less than `AWAY_S` does not end the pipeline; one that
   is away when a stop is asked for does not make the stop a failure.
3. Pipelines of one process read formats of their own: see `source.register`.
4. While nodes are away the query may fail, and is begun again: nothing depends on it but how soon
   an index is looked at.

Elsewhere: the indexes of all nodes (`shards`), one's cycle (`writer`), tasks (`mapping`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.client.kv import Client
from millstream.errors import MillstreamError, UnavailableError
from millstream.pipelines.change_stream.batch_edge import BatchGate
from millstream.pipelines.change_stream.control import open_client
from millstream.pipelines.classic import require_classic
from millstream.pipelines.index.mapping import MapSpec, TaskDone, run_task
from millstream.pipelines.index.nodes import hosts_of, index_addresses, shown
from millstream.pipelines.index.planning import PartPlan
from millstream.pipelines.index.shard import IndexAddress, IndexShard
from millstream.pipelines.index.shards import AWAY, AWAY_S, Shards
from millstream.pipelines.index.writer import ROWS_PER_COMMIT, Cycle, IndexWriter
from millstream.pipelines.source import register
from millstream.views.core.index_messages import error_from, told_of

__all__ = ["CycleReport", "IndexPipeline", "spark_tasks"]

RESTARTS_MAX: Final = 3
"""How often in a row a streaming query is started again that ended soon after its start."""
QUERY_PAUSE_S: Final = 1.0
"""Pause before a failed query is started again."""
NODE_S: Final = 30.0
"""How long an index, or the query, waits for nodes before it begins anew with those of the map."""
PLACED_S_MAX: Final = 3.0
"""How long a node may take to say which nodes the index map places."""
_LOOK_S: Final = 0.02
_QUERY: Final = frozenset({"query_failed", "query_ended"})
_SCHEMA: Final = pa.schema([pa.field("done", pa.binary())])


class CycleReport(msgspec.Struct, frozen=True):
    """What one commit did, for people.

    `node`: whose index, its HTTP address. `commit`: of that index. `rows`: by tree, of all nodes.
    `lag`: partition -> seqnos not read yet, of all nodes.
    """

    ddoc: str
    commit: int
    seconds: float
    changes: int
    partitions: int
    left_out: int
    rows: list[int]
    is_first: bool
    lag: dict[int, int]
    node: str = ""


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
                done = b"-" + msgspec.json.encode(told_of(error))
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
        index_nodes: HTTP addresses of nodes that only index, which no map names.
        on_cycle: told after each commit, by one thread at a time.
    """

    spec: MapSpec
    checkpoint: Path
    task_count: int = 2
    rows_max: int = ROWS_PER_COMMIT
    source_options: dict[str, str] = field(default_factory=dict)
    is_loop: bool = False
    index_nodes: tuple[str, ...] = ()
    on_cycle: Callable[[CycleReport], None] = lambda report: None
    is_stopping: bool = False
    _client: Client | None = None
    _where: list[IndexAddress] = field(default_factory=list)
    _placed: list[str] = field(default_factory=list)
    _rows: dict[IndexAddress, list[int]] = field(default_factory=dict)
    _lag: dict[IndexAddress, dict[int, int]] = field(default_factory=dict)

    @property
    def design(self) -> str:
        """The name of the design document."""
        return self.spec.address.design

    def run(self, spark: SparkSession, *, once: bool = False) -> None:
        """Keep the indexes until `is_stopping` is set; with `once`, until they have all there is.

        Raises:
            ConditionError: `index_fenced`: another writer keeps one now; `not_spark_engine`;
                `other_index`.
            UnavailableError, RoutingError: nodes or Spark failed for long, and nobody asked for a
                stop; running again goes on.
            UsageError: `needs_classic_session`.
        """
        require_classic(spark, "the pipeline views")
        try:
            self._run(spark, once)
        except AWAY:
            if not self.is_stopping:
                raise
        finally:
            if self._client is not None:
                self._client.close()

    def _run(self, spark: SparkSession, once: bool) -> None:
        wait_s = min(NODE_S, self.spec.source.reconnect_s)
        source = replaced(self.spec.source, reconnect_s=wait_s)
        self.spec = msgspec.structs.replace(self.spec, source=source)
        name = f"Spark pipeline {secrets.token_hex(4)}"
        tasks = spark_tasks(spark)

        def opened(address: IndexAddress) -> IndexWriter:
            return IndexWriter(
                self._spec_at(address), tasks, name=name, task_count=self.task_count,
                rows_max=self.rows_max,
            )  # fmt: skip

        with Shards(self._find, opened, self._report, once=once, is_loop=self.is_loop) as shards:
            if once or self.is_loop:
                while not self.is_stopping and not (once and shards.is_over):
                    shards.look()
                    time.sleep(_LOOK_S)
                shards.look()
            else:
                self._keep_following(spark, shards)

    def _find(self) -> list[IndexAddress]:
        """Return where the indexes are by now; where the nodes are is remembered for tasks."""
        if self._client is None:
            self._client = open_client(self.spec.source)
        else:
            self._client.refresh_map()
        map_ = self._client.cluster_map
        hosts = hosts_of(self.spec.source.hosts, map_)
        if hosts != self.spec.source.hosts:
            source = replaced(self.spec.source, hosts=hosts)
            self.spec = msgspec.structs.replace(self.spec, source=source)
        places = index_addresses(self.spec.address, map_, self.index_nodes)
        self._placed = self._index_map([*self._where, *places])
        also = (*self.index_nodes, *self._placed)
        self._where = index_addresses(self.spec.address, map_, also)
        return self._where

    def _index_map(self, addresses: Sequence[IndexAddress]) -> list[str]:
        """Return the nodes that the index map places, also those without data, as last told."""
        for address in dict.fromkeys(addresses):
            with suppress(MillstreamError):
                return IndexShard(address).state(PLACED_S_MAX).nodes
        return self._placed

    def _spec_at(self, address: IndexAddress) -> MapSpec:
        return msgspec.structs.replace(self.spec, address=address)

    def _report(
        self, address: IndexAddress, writer: IndexWriter, cycle: Cycle, seconds: float
    ) -> None:
        self._rows[address] = cycle.state.rows
        self._lag[address] = writer.lag()
        there = [each for each in self._rows if each in self._where]
        rows = [self._rows[each] for each in there]
        lag: dict[int, int] = {}
        for each in there:
            for partition, behind in self._lag[each].items():
                lag[partition] = max(behind, lag.get(partition, 0))
        self.on_cycle(
            CycleReport(
                self.design, cycle.state.commit, seconds, cycle.changes, cycle.parts,
                len(cycle.state.left_out), [*map(sum, zip(*rows, strict=True))],
                cycle.is_first, lag, shown(address),
            )
        )  # fmt: skip

    # -- the streaming query

    def _keep_following(self, spark: SparkSession, shards: Shards) -> None:
        """Follow; a query that Spark gave up is started again, since it carries nothing."""
        left = RESTARTS_MAX
        while not self.is_stopping:
            began = time.monotonic()
            gate = BatchGate(lambda *_: shards.wake(), lambda: self._is_stopped(shards))
            try:
                gate.wait(self._started(spark, gate), lambda _: self._look(shards))
                if not self.is_stopping:
                    raise UnavailableError(
                        "the streaming query ended by itself", code="query_ended"
                    )
            except UnavailableError as error:
                if error.code not in _QUERY:
                    raise
                left = RESTARTS_MAX if time.monotonic() - began > AWAY_S else left - 1
                if left < 0 and not shards.is_any_away:
                    raise
                self._pause(shards)

    def _is_stopped(self, shards: Shards) -> bool:
        if self.is_stopping:
            shards.end()
        return self.is_stopping

    def _look(self, shards: Shards) -> None:
        if not self.is_stopping:
            shards.look()

    def _pause(self, shards: Shards) -> None:
        until = time.monotonic() + QUERY_PAUSE_S
        while not self.is_stopping and time.monotonic() < until:
            shards.look()
            time.sleep(_LOOK_S)

    def _started(self, spark: SparkSession, gate: BatchGate) -> StreamingQuery:
        source = self.spec.source
        format_name = f"millstream-{secrets.token_hex(8)}"
        register(spark, format_name)
        options = {
            "hosts": source.hosts, "bucket": source.bucket, "noValue": "true",
            "rollback": "rows", "reconnectTimeout": f"{source.reconnect_s * 1000:.0f}ms",
            **self.source_options,
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
