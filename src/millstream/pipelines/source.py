"""`format("millstream")`: the Spark data source, batch and streaming.

    pipelines.register(spark)
    spark.readStream.format("millstream").option("hosts", "127.0.0.1:11210")
        .option("bucket", "flights").load()

Invariants:
1. Method and parameter names are Spark's: some are passed by keyword, others by position.
2. What a reader keeps besides its options belongs to one process and is never pickled. State
   travels in offsets and in `RangesPartition` only.
3. A batch read's end is fixed, under leases, when it is planned.

Elsewhere: rules of offsets (`planner`, `ranges`), executors (`reading`), options (`options`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from millstream.pipelines.spark_version import PYSPARK_MIN  # refuses an older PySpark first

# isort: split
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from millstream.errors import UsageError
from millstream.pipelines.change_stream.batch_plan import plan_batch
from millstream.pipelines.change_stream.document_rows import (
    ID,
    META,
    META_TYPE,
    DocumentForm,
    document_form,
)
from millstream.pipelines.change_stream.inference import inferred_members
from millstream.pipelines.change_stream.meta_source import MetaDataSource
from millstream.pipelines.change_stream.offsets import offset_from_json
from millstream.pipelines.change_stream.options import SourceOptions, parse_options
from millstream.pipelines.change_stream.query import Query
from millstream.pipelines.change_stream.ranges import RangeRead, ranges_between, spread
from millstream.pipelines.change_stream.reading import committed_batches, pinned_batches
from millstream.pipelines.change_stream.schema import SPARK_SCHEMA, RowForm, row_form
from millstream.pipelines.sinks.sink_options import parse_sink_options
from millstream.pipelines.sinks.transactional import TransactionalStreamWriter
from millstream.pipelines.sinks.writers import BatchWriter, UpsertStreamWriter
from millstream.pipelines.views.source import ViewDataSource

__all__ = [
    "PYSPARK_MIN",
    "MillstreamDataSource",
    "MillstreamReader",
    "MillstreamStreamReader",
    "RangesPartition",
    "register",
]


def register(spark: SparkSession, name: str = "") -> None:
    """Make our formats known to a session, or `millstream` under another name.

    Formats are `millstream`, `millstream.view` and `millstream.meta`. Not needed where this
    package is installed beside Spark: it finds the modules `pyspark_millstream*` by itself.

    Streaming queries of one process that may begin at the same moment need a name each. Spark
    keeps one map of environment variables per registered format, puts four into it whenever a
    stream begins, and does not lock it (PySpark 4.3): two that begin together can break the map,
    and then every batch of every query that reads this format ends with "Task not serializable
    ... Illegal size 5 of collection, expected 6" until the process ends.

    Args:
        spark: the session.
        name: of letters, digits, - and _; no other format of the session has it.
    """
    if not name:
        for source in (MillstreamDataSource, ViewDataSource, MetaDataSource):
            spark.dataSource.register(source)
        return

    class Named(MillstreamDataSource):
        @classmethod
        def name(cls) -> str:
            return name

    spark.dataSource.register(Named)


class RangesPartition(InputPartition):
    """The ranges that one Spark task reads."""

    def __init__(self, reads: Sequence[RangeRead]) -> None:
        super().__init__(None)
        self.reads = tuple(reads)


class MillstreamDataSource(DataSource):
    """A bucket's change stream as a table of changes."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "millstream"

    def schema(self) -> str:
        """Return all columns; a reader can ask for fewer with `.schema(...)`."""
        options = parse_options(self.options)
        if not options.is_typed:
            return SPARK_SCHEMA
        members = options.document_schema or inferred_members(options)
        meta = f", {META} {META_TYPE}" if options.includes_meta else ""
        return f"{ID} string, {members}{meta}"

    def reader(self, schema: StructType) -> MillstreamReader:
        """Return the reader of a batch."""
        options = parse_options(self.options)
        if options.selector and options.has_tombstones:
            raise UsageError(
                "option selector: the changes since a place would lack documents that do not "
                "match any more. Where that is no matter, set tombstones to false",
                code="bad_option",
            )
        return MillstreamReader(options, _form(options, schema))

    def streamReader(self, schema: StructType) -> MillstreamStreamReader:
        """Return the reader of a stream."""
        options = parse_options(self.options)
        if options.ending_offsets != "latest":
            raise UsageError("option endingOffsets: a stream has no end", code="bad_option")
        if options.selector:
            raise UsageError(
                "option selector: a stream has documents that do not match any more, or what it "
                "keeps would keep them; filter its rows",
                code="bad_option",
            )
        if "tombstones" in self.options and not options.has_tombstones:
            raise UsageError(
                "option tombstones: a stream always has deletions, or what it keeps would keep "
                "documents that are gone; leave them out with .where(\"op = 'put'\")",
                code="bad_option",
            )
        if options.infers_schema:
            found = ", ".join(
                f"`{one.name}` {one.dataType.simpleString()}"
                for one in schema.fields
                if one.name not in (ID, META)
            )
            raise UsageError(
                "option inferSchema: a stream that is started again must have the columns it had. "
                f"Name them; the documents there are now have documentSchema: {found}",
                code="bad_option",
            )
        if options.is_typed and META not in schema.names:
            raise UsageError(
                "option includeMeta: a stream has deletions, which only the column _meta tells "
                "from documents (_meta.op). Set includeMeta to true",
                code="bad_option",
            )
        return MillstreamStreamReader(options, _form(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch: inserts, or with `overwrite` upserts."""
        options = parse_sink_options(self.options, is_stream=False, overwrite=overwrite)
        return BatchWriter(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of a stream's micro-batches; `overwrite` is output mode complete."""
        options = parse_sink_options(self.options, is_stream=True, overwrite=overwrite)
        if options.sink_id:
            return TransactionalStreamWriter(options, schema)
        return UpsertStreamWriter(options, schema)


class MillstreamReader(DataSourceReader):
    """Reads each partition from its start to an end fixed at planning."""

    def __init__(self, options: SourceOptions, form: RowForm | DocumentForm) -> None:
        self._options = options
        self._form = form

    def partitions(self) -> Sequence[InputPartition]:
        """Fix the end and share the ranges out over tasks."""
        tasks = spread(plan_batch(self._options), self._options.task_count)
        return [RangesPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        # Spark puts in an empty partition of its own where there is nothing to read.
        reads = partition.reads if isinstance(partition, RangesPartition) else ()
        return pinned_batches(self._options, self._form, reads)


class MillstreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the change stream in micro-batches."""

    def __init__(self, options: SourceOptions, form: RowForm | DocumentForm) -> None:
        self._options = options
        self._form = form
        self._query: Query | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the query behind: it holds sockets and a thread (invariant 2)."""
        return type(self), (self._options, self._form)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set; with both, `latestOffset` keeps the other too."""
        rows_max, bytes_max = self._options.rows_max, self._options.bytes_max
        if rows_max is not None:
            return ReadMaxRows(rows_max)
        return ReadAllAvailable() if bytes_max is None else ReadMaxBytes(bytes_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """Take the present end of every partition as the goal of this run."""
        self._running().prepare_available_now()

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins."""
        return self._running().initial_offset()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next batch ends; `start` itself if nothing is new."""
        return self._running().latest_offset(start, *_limits(limit, self._options))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the end of every partition, for the lag that the progress shows."""
        return self._running().high_offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Share the ranges between two logged offsets out over tasks."""
        reads = ranges_between(offset_from_json(start), offset_from_json(end))
        return [RangesPartition(task) for task in spread(reads, self._options.task_count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        reads = partition.reads if isinstance(partition, RangesPartition) else ()
        return committed_batches(self._options, self._form, reads)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the next `latestOffset` says all (Spark omits the last commit of a run)."""

    def stop(self) -> None:
        """Close what the query holds; its leases end by themselves, for a restart to find."""
        if self._query is not None:
            self._query.stop()
            self._query = None

    def _running(self) -> Query:
        if self._query is None:
            self._query = Query(self._options)
        return self._query


def _form(options: SourceOptions, schema: StructType) -> RowForm | DocumentForm:
    if options.is_typed:
        return document_form(schema)
    return row_form(schema, has_values=options.has_values, has_meta=options.has_meta)


def _limits(limit: ReadLimit, options: SourceOptions) -> tuple[int | None, int | None]:
    """Return the rows and bytes of a batch; a limit of Spark's stands in for that option."""
    if isinstance(limit, ReadMaxRows):
        return max(1, limit.max_rows), options.bytes_max
    if isinstance(limit, ReadMaxBytes):
        return options.rows_max, max(1, limit.max_bytes)
    return None, None
