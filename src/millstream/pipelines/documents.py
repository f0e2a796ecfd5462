"""A few lines from a bucket to a table derived from its documents, rollbacks included.

    flights = changes(spark, "carrier string, dep_delay int", bucket="flights")
    late = flights.filter("dep_delay > 15").join(airlines, "carrier")
    query = late.to(ParquetTarget("/data/late"), "/data/late.checkpoint")
    mean = flights.aggregate("carrier", "avg(dep_delay) as minutes", state="/data/flights")
    query = mean.to(BucketTarget({"bucket": "means"}), "/data/means.checkpoint")

Invariants:
1. After a batch a target has exactly the results of the steps for the newest documents of the
   bucket. Documents that are overwritten during the batch come in a later one, so the target is
   exact at the end of a snapshot. A document that is deleted, or that a filter no longer accepts,
   is removed. After a rollback the target has the documents of that state. If the frame of a
   function is joined, its rows count as they were when the document was read.
2. Groups are computed from documents in a table, never from change rows.
3. Impossible steps are refused before a query starts.

Elsewhere: rows that depend on several documents (`pipelines.relations`), how one is computed
(`pipelines.document_frames`), what a target gets (`sinks.transforming`, `sinks.grouping`),
rollbacks (`sinks.repairing`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, overload

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from millstream.errors import UsageError
from millstream.pipelines.change_stream.options import parse_options
from millstream.pipelines.change_stream.patience import again
from millstream.pipelines.classic import require_classic
from millstream.pipelines.document_frames import (
    ID,
    DocumentFrames,
    GroupFrames,
    Step,
    Table,
    typed,
)
from millstream.pipelines.relations import Relation, exploded, joined, united
from millstream.pipelines.sinks.applying import apply_changes, apply_table, query_id_of
from millstream.pipelines.sinks.grouping import GroupingSink, StateTable
from millstream.pipelines.sinks.repairing import KeyedTarget
from millstream.pipelines.sinks.sql_target import SqlTarget
from millstream.pipelines.sinks.transforming import TransformingTarget
from millstream.pipelines.source import register

__all__ = ["Documents", "Groups", "Table", "changes"]

BATCH_ROWS_MAX: Final = 100_000
"""Default of `maxRowsPerBatch`: a batch is applied in the driver."""
BATCH_BYTES_MAX: Final = 32 * 1024 * 1024
"""Default of `maxBytesPerBatch`; one larger document is a batch of its own."""
JOINS: Final = ("inner", "left", "leftsemi", "leftanti")
"""Kinds of join that make one row of a document, or none."""


def changes(spark: SparkSession, schema: str | StructType, **options: object) -> Documents:
    """Return the newest documents of a bucket, to be followed.

    Args:
        spark: the session.
        schema: the members of the documents that are wanted, as Spark says it:
            `"carrier string, dep_delay int"`.
        options: of `format("millstream")`: `bucket`, `hosts`, `user`, `passwordFile`, and others.

    Raises:
        UsageError: `bad_option`, `unknown_option`, `bad_schema`; `needs_classic_session`.
    """
    require_classic(spark, "a pipeline of documents")
    source = {
        "maxRowsPerBatch": str(BATCH_ROWS_MAX), "maxBytesPerBatch": str(BATCH_BYTES_MAX),
    }  # fmt: skip
    for name, value in options.items():
        source[name] = str(value).lower() if isinstance(value, bool) else str(value)
    source["rollback"] = "rows"
    checked = parse_options(source)
    if not checked.has_values:
        raise UsageError(
            "documents are read with their values: leave noValue out", code="bad_option"
        )
    wanted = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    if not isinstance(wanted, StructType):
        raise UsageError(
            f"schema {schema!r} names no columns, such as 'carrier string, dep_delay int'",
            code="bad_schema",
        )
    reserved = [name for name in wanted.names if name.startswith("_")]
    if reserved:
        raise UsageError(
            f"schema names {', '.join(reserved)}: members that begin with _ are the node's own",
            code="bad_schema",
        )
    return Documents(spark, wanted, source)


class Documents:
    """What steps make of each document; `changes` makes one. Every step returns another one.

    `schema`: the columns, beside `_id`, the key of the document.
    """

    def __init__(
        self,
        spark: SparkSession,
        schema: StructType,
        source: Mapping[str, str],
        steps: Sequence[Step] = (),
    ) -> None:
        self.spark = spark
        self._read_schema = schema
        self.source = dict(source)
        self._steps = tuple(steps)
        self._frames = DocumentFrames(spark, schema, steps)
        self.schema: StructType = self._frames.schema

    def map(self, step: Step) -> Documents:
        """Apply a function to the rows, as a DataFrame; it keeps `_id` and the number of rows.

        It may be called with any of the documents, in any order, and more than once with one.
        """
        return Documents(self.spark, self._read_schema, self.source, [*self._steps, step])

    def select(self, *columns: str | Column) -> Documents:
        """Keep these columns, SQL expressions or columns, and `_id`."""
        wanted = [F.expr(one) if isinstance(one, str) else one for one in columns]
        return self.map(lambda frame: frame.select(ID, *wanted))

    def filter(self, condition: str | Column) -> Documents:
        """Keep documents that a condition is true of; one that no longer is goes."""
        return self.map(lambda frame: frame.filter(condition))

    @overload
    def join(
        self,
        other: DataFrame | Callable[[], DataFrame],
        on: str | Sequence[str] | Column,
        how: str = "inner",
    ) -> Documents: ...

    @overload
    def join(
        self,
        other: Documents,
        on: str | Sequence[str],
        how: str = "inner",
        *,
        state: str | Path,
    ) -> Relation: ...

    def join(
        self,
        other: DataFrame | Callable[[], DataFrame] | Documents,
        on: str | Sequence[str] | Column,
        how: str = "inner",
        *,
        state: str | Path = "",
    ) -> Documents | Relation:
        """Join the documents of a bucket, which are followed, too, or a frame that is no stream.

        A frame has at most one row for each document; documents that were written before stay as
        they are. Of two buckets each pair is a row, and a change on either side reaches the rows
        that it touches. Null fields are equal to nothing.

        Args:
            other: what `changes` and steps return; or the frame, or for a table that changes a
                function that returns it, such as `lambda: table.read(spark)`: it is called for
                each batch. A frame of files that is given as it is keeps the files that there
                were when it was made.
            on: columns, as `DataFrame.join` takes them; of two buckets names that both have.
            how: kind of join; of two buckets `inner` or `left`.
            state: for two buckets the directory of tables that keep the documents of both; of
                this query alone.

        Raises:
            UsageError: `bad_option`: a kind of join that makes other rows; a stream; no `state`.
                `bad_schema`.
        """
        if isinstance(other, Documents):
            if isinstance(on, Column) or not state:
                raise UsageError(
                    "a join of two buckets needs the names of columns that both have, and "
                    "state=, a directory of its own",
                    code="bad_option",
                )
            return joined(self, other, [on] if isinstance(on, str) else list(on), how, state)
        if how not in JOINS:
            raise UsageError(
                f"a join of kind {how!r} makes rows that are no documents: {', '.join(JOINS)} "
                "do not",
                code="bad_option",
            )
        names: Any = on if isinstance(on, str | Column) else list(on)
        _frame_now(other)
        return self.map(lambda frame: frame.join(_frame_now(other), names, how))

    def explode(self, array: str, *, state: str | Path, part: str = "") -> Relation:
        """Make a row of each element of an array, in the place of the array.

        Args:
            array: column; a document in which it is null or empty has no rows.
            state: directory of a table, which keeps the documents; of this query alone.
            part: SQL expression that tells the rows of a document apart, such as `"lines.sku"`;
                the position in the array if it is empty.

        Raises:
            UsageError: `bad_schema`.
        """
        return exploded(self, array, part, state)

    def union(self, other: Documents, *, state: str | Path) -> Relation:
        """Put the documents of two buckets together.

        Args:
            other: documents with the same columns.
            state: directory of tables, which keep the documents; of this query alone.

        Raises:
            UsageError: `bad_schema`.
        """
        return united(self, other, state)

    def aggregate(
        self, keys: str | Sequence[str], *aggregates: str | Column, state: str | Path
    ) -> Groups:
        """Group the documents.

        Args:
            keys: columns.
            aggregates: such as `"count(*) as flights"`.
            state: directory of a table, which keeps the documents; of this query alone.

        Raises:
            UsageError: `bad_schema`.
        """
        named = [F.expr(one) if isinstance(one, str) else one for one in aggregates]
        columns = [keys] if isinstance(keys, str) else list(keys)
        return Groups(self, GroupFrames(self._frames, columns, named), state)

    def to(
        self, target: KeyedTarget, checkpoint: str | Path, *, name: str = "", **trigger: Any
    ) -> StreamingQuery:
        """Start a query that keeps a target equal to the rows.

        Args:
            target: of this query alone. Rows are in it as JSON, under the keys of the documents.
            checkpoint: directory; a new one needs an empty target.
            name: of the query.
            trigger: as `DataStreamWriter.trigger` takes it, such as `availableNow=True`.
        """

        def take(batch: DataFrame, batch_id: int) -> None:
            self.apply(batch, batch_id, target)

        return self.start(take, checkpoint, name, trigger)

    def read(self, target: Table) -> DataFrame:
        """Return the rows that a target holds now, with `_id`."""
        return _rows_in(self.spark, target, self.schema)

    def apply(self, batch: DataFrame, batch_id: int, target: KeyedTarget) -> None:
        """Apply a batch of the change stream to a target, by way of the steps."""
        derived = TransformingTarget(target, self._frames.derive)
        if not isinstance(target, SqlTarget):
            apply_changes(batch, batch_id, derived, self.source)
            return
        try:
            apply_changes(batch, batch_id, derived, self.source)
        finally:
            target.close()  # undoes what has not been committed, so that its lock keeps nobody out

    def apply_table(
        self, rows: pa.Table, batch_id: int, target: KeyedTarget, query_id: str
    ) -> None:
        """Do the same with rows that were read."""
        derived = TransformingTarget(target, self._frames.derive)
        apply_table(rows, batch_id, derived, self.source, query_id)

    def stream(self) -> DataFrame:
        """Return the change stream."""
        format_name = f"millstream-{secrets.token_hex(8)}"
        register(self.spark, format_name)  # two queries may begin at the same moment
        return self.spark.readStream.format(format_name).options(**self.source).load()

    def start(
        self,
        take: Any,
        checkpoint: str | Path,
        name: str,
        trigger: Mapping[str, Any],
        stream: DataFrame | None = None,
    ) -> StreamingQuery:
        """Start a query that has `take` applied to each batch of a stream, else of `stream()`."""
        writer = (self.stream() if stream is None else stream).writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(checkpoint))
        if name:
            writer = writer.queryName(name)
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.start()


class Groups:
    """Groups of documents; `Documents.aggregate` makes one.

    `schema`: the keys and what was computed for each group.
    """

    def __init__(self, documents: Documents, frames: GroupFrames, state: str | Path) -> None:
        self._documents = documents
        self._frames = frames
        self._state = state
        self.schema: StructType = frames.schema

    def to(
        self, target: KeyedTarget, checkpoint: str | Path, *, name: str = "", **trigger: Any
    ) -> StreamingQuery:
        """Start a query that keeps a target equal to the groups; see `Documents.to`.

        A group is in it as JSON; its key is the array of the columns it is grouped by, as JSON,
        or the beginning of it and a digest where that has more bytes than a key may have.
        """
        state = StateTable(self._state)

        def results(touched: Sequence[bytes] | None) -> Mapping[str, bytes | None]:
            return self._frames.results(self._documents.read(state), touched)

        groups = GroupingSink(state, target, results)
        reconnect_s = parse_options(self._documents.source).reconnect_s

        def take(batch: DataFrame, batch_id: int) -> None:
            self._documents.apply(batch, batch_id, state)
            query_id = query_id_of(batch)
            again(lambda: groups.update(batch_id, query_id), reconnect_s)

        return self._documents.start(take, checkpoint, name, trigger)

    def read(self, target: Table) -> DataFrame:
        """Return the groups that a target holds now."""
        return _rows_in(self._documents.spark, target, self.schema).drop(ID)


def _rows_in(spark: SparkSession, target: Table, schema: StructType) -> DataFrame:
    return typed(target.read(spark), schema)


def _frame_now(other: DataFrame | Callable[[], DataFrame]) -> DataFrame:
    frame: DataFrame = other() if callable(other) else other
    if frame.isStreaming:
        raise UsageError(
            "the frame to be joined is a stream: write it to a table, and join a function that "
            "reads that, such as lambda: table.read(spark)",
            code="bad_option",
        )
    return frame
