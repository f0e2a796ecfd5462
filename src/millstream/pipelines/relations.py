"""Rows that depend on several documents: joins of two buckets, elements of arrays, and others.

    orders = changes(spark, "customer string, total double", bucket="orders")
    customers = changes(spark, "customer string, city string", bucket="customers")
    joined = orders.join(customers, "customer", "left", state="/data/joined.state")
    query = joined.to(ParquetTarget("/data/joined"), "/data/joined.checkpoint")

The documents of each side are kept in a table of its own, which repairs itself after a rollback.
One query reads both streams, so a batch is one of both.

Invariants:
1. After a batch a target has the rows that the query makes of the tables. A change on any side
   derives again all rows that it touches.
2. Rows are computed from documents in tables, never from change rows.
3. Impossible shapes and steps are refused before a query starts.

Elsewhere: which rows differ (`pipelines.relation_frames`), the order of what is written
(`sinks.relating`), the steps before (`pipelines.documents`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from millstream.errors import UsageError
from millstream.pipelines.change_stream.options import parse_options
from millstream.pipelines.change_stream.patience import again
from millstream.pipelines.document_frames import ID, Step, Table, typed
from millstream.pipelines.relation_frames import (
    Exploded,
    Joined,
    RelationFrames,
    Shape,
    United,
)
from millstream.pipelines.sinks.applying import query_id_of
from millstream.pipelines.sinks.change_rows import check_columns
from millstream.pipelines.sinks.relating import RelatingSink, SideTable
from millstream.pipelines.sinks.repairing import KeyedTarget

__all__ = ["Relation", "Side", "exploded", "joined", "united"]

HOWS: Final = ("inner", "left")
_SIDE: Final = "_side"


class Side(Protocol):
    """The documents of one bucket: `pipelines.documents.Documents`."""

    spark: SparkSession
    schema: StructType
    source: dict[str, str]

    def stream(self) -> DataFrame:
        """Return the change stream."""

    def apply_table(
        self, rows: pa.Table, batch_id: int, target: KeyedTarget, query_id: str
    ) -> None:
        """Apply rows of the change stream to a target, by way of the steps."""

    def start(
        self,
        take: Any,
        checkpoint: str | Path,
        name: str,
        trigger: Mapping[str, Any],
        stream: DataFrame | None = None,
    ) -> StreamingQuery:
        """Start a query that has `take` applied to each batch of a stream, else of `stream()`."""


class Relation:
    """Rows of one shape, and steps for each row; every step returns another one.

    A step must depend on the row alone: rows are computed again from what documents were, to find
    what has to be removed.

    `schema`: the columns, beside `_id`, which names the row.
    """

    def __init__(
        self,
        sides: Sequence[Side],
        shape: Shape,
        state: str | Path,
        steps: Sequence[Step] = (),
    ) -> None:
        self._sides = tuple(sides)
        self._shape = shape
        self._state = Path(state)
        self._steps = tuple(steps)
        schemas = [side.schema for side in sides]
        self._frames = RelationFrames(sides[0].spark, schemas, shape, steps)
        self.schema: StructType = self._frames.schema

    def map(self, step: Step) -> Relation:
        """Apply a function to the rows, as a DataFrame; it keeps `_id` and adds no rows."""
        return Relation(self._sides, self._shape, self._state, [*self._steps, step])

    def select(self, *columns: str | Column) -> Relation:
        """Keep these columns, SQL expressions or columns, and `_id`."""
        wanted = [F.expr(one) if isinstance(one, str) else one for one in columns]
        return self.map(lambda frame: frame.select(ID, *wanted))

    def filter(self, condition: str | Column) -> Relation:
        """Keep rows that a condition is true of."""
        return self.map(lambda frame: frame.filter(condition))

    def to(
        self, target: KeyedTarget, checkpoint: str | Path, *, name: str = "", **trigger: Any
    ) -> StreamingQuery:
        """Start a query that keeps a target equal to the rows; see `Documents.to`.

        Raises:
            CorruptionError: `damaged`: the directory `state` cannot be read.
        """
        paths = [self._state / str(number) for number, _ in enumerate(self._sides)]
        tables = [SideTable(path) for path in paths]
        sink = RelatingSink(
            tables,
            target,
            lambda before, now: self._frames.changed(paths, before, now),
            self._state,
        )
        waits = [parse_options(side.source).reconnect_s for side in self._sides]

        def take(batch: DataFrame, batch_id: int) -> None:
            rows = batch.select(*check_columns(batch.columns), _SIDE).toArrow()
            query_id = query_id_of(batch)
            for number, (side, table) in enumerate(zip(self._sides, tables, strict=True)):
                mine = rows.filter(pa.compute.equal(rows.column(_SIDE), number))
                side.apply_table(mine.drop_columns([_SIDE]), batch_id, table, query_id)
            again(lambda: sink.update(batch_id, query_id), max(waits))

        streams = [
            side.stream().withColumn(_SIDE, F.lit(number))
            for number, side in enumerate(self._sides)
        ]
        stream = streams[0]
        for other in streams[1:]:
            stream = stream.unionByName(other)
        return self._sides[0].start(take, checkpoint, name, trigger, stream)

    def read(self, target: Table) -> DataFrame:
        """Return the rows that a target holds now, with `_id`."""
        return typed(target.read(self._sides[0].spark), self.schema)


def joined(left: Side, right: Side, on: Sequence[str], how: str, state: str | Path) -> Relation:
    """See `Documents.join`."""
    if how not in HOWS:
        raise UsageError(
            f"a join of kind {how!r} of two buckets cannot be followed: {', '.join(HOWS)} can",
            code="bad_option",
        )
    _check_fields(left.schema, on)
    _check_fields(right.schema, on)
    twice = [name for name in left.schema.names if name in right.schema.names and name not in on]
    if twice:
        raise UsageError(
            f"both sides have the columns {', '.join(twice)}: give one of them another name with "
            "select, or join by them",
            code="bad_schema",
        )
    return Relation([left, right], Joined(tuple(on), how), state)


def exploded(documents: Side, array: str, part: str, state: str | Path) -> Relation:
    """See `Documents.explode`."""
    _check_fields(documents.schema, [array])
    return Relation([documents], Exploded(array, part), state)


def united(one: Side, other: Side, state: str | Path) -> Relation:
    """See `Documents.union`."""
    if sorted(one.schema.names) != sorted(other.schema.names):
        raise UsageError(
            f"the columns {', '.join(one.schema.names)} and {', '.join(other.schema.names)} "
            "are not the same: make them so with select",
            code="bad_schema",
        )
    return Relation([one, other], United(), state)


def _check_fields(schema: StructType, fields: Sequence[str]) -> None:
    missing = [field for field in fields if field not in schema.names]
    if missing or not fields or len(set(fields)) < len(fields):
        raise UsageError(
            f"documents have the columns {', '.join(schema.names)}: name some of them, each "
            f"once, not {', '.join(fields) or 'none'}",
            code="bad_schema",
        )
