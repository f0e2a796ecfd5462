"""Rows that depend on several documents, for `pipelines.relations`: which rows a change concerns.

A shape says what rows are made of tables of documents (`combine`), and which documents have to be
looked at again when some have changed (`restrict`). `RelationFrames` compares the rows of two
states of the tables, restricted to these.

Invariants:
1. Documents that `restrict` leaves out make the same rows before and after the change.
2. A changed document counts with what it was and what it is: a row is found by the old value of a
   field too.
3. Each row has one `_id`, text that is made of the keys of its documents. A name that is too
   long for a key ends with a digest.
4. Comparing is work of the executors. The driver is handed the rows that differ, a piece at a
   time.

Elsewhere: what is done with the rows (`sinks.relating`), documents as rows
(`pipelines.document_frames`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from millstream.errors import UsageError
from millstream.model.limits import KEY_BYTES_MAX
from millstream.pipelines.document_frames import ID, Step, column, typed
from millstream.pipelines.sinks.relating import Snapshot
from millstream.pipelines.sinks.repairing import OP_PUT
from millstream.pipelines.sinks.rows import RowRules

__all__ = ["Exploded", "Joined", "RelationFrames", "Shape", "United"]

Frames = Sequence[DataFrame]
_CUT_CHARACTERS: Final = 46
"""Of four bytes at most each, so that a digest of 64 bytes and a sign fit into a key, too."""
_VERSIONS: Final = "key string, value binary"


class Shape(Protocol):
    """How rows are made of tables; each has `_id` and the columns of its documents."""

    def restrict(self, tables: Frames, changed: Frames) -> Frames:
        """Return what is to be looked at again of tables; `changed`: old and new documents."""
        ...

    def combine(self, tables: Frames) -> DataFrame:
        """Return the rows."""
        ...


@dataclass(frozen=True)
class Joined:
    """Two tables joined by fields that both have; a row has the keys of its two documents."""

    on: Sequence[str]
    how: str

    def restrict(self, tables: Frames, changed: Frames) -> Frames:
        """Of the left one what changed itself, or had or has a value of a changed right one."""
        left, right = tables
        is_own = changed[0].select(ID).distinct()
        values = changed[1].select(*map(column, self.on)).distinct()
        others = left.join(values, list(self.on), "leftsemi").join(is_own, ID, "leftanti")
        return left.join(is_own, ID, "leftsemi").unionByName(others), right

    def combine(self, tables: Frames) -> DataFrame:
        """Return the pairs, and with `left` a row for each left document without a partner."""
        left, right = (
            table.withColumnRenamed(ID, name)
            for table, name in zip(tables, ("_left", "_right"), strict=True)
        )
        pairs = left.join(right, list(self.on), self.how)
        return pairs.withColumn(ID, _name("_left", "_right")).drop("_left", "_right")


@dataclass(frozen=True)
class Exploded:
    """A row for each element of an array; `part`: what tells the rows of a document apart."""

    array: str
    part: str

    def restrict(self, tables: Frames, changed: Frames) -> Frames:
        """What changed."""
        return [_only(tables[0], changed[0])]

    def combine(self, tables: Frames) -> DataFrame:
        """Return the elements in place of the array."""
        (table,) = tables
        others = [column(name) for name in table.columns if name != self.array]
        rows = table.select(*others, F.posexplode(column(self.array)).alias("_at", self.array))
        part = F.expr(self.part) if self.part else F.col("_at")
        rows = rows.withColumn("_part", part.cast(StringType()))
        return rows.withColumn(ID, _name(ID, "_part")).drop("_at", "_part")


@dataclass(frozen=True)
class United:
    """The documents of two tables; a row has the number of its table, 0 or 1, and its key."""

    def restrict(self, tables: Frames, changed: Frames) -> Frames:
        """What changed."""
        return [_only(*pair) for pair in zip(tables, changed, strict=True)]

    def combine(self, tables: Frames) -> DataFrame:
        """Return the rows of both."""
        numbered = [
            table.withColumn("_side", F.lit(str(side))).withColumn(ID, _name("_side", ID))
            for side, table in enumerate(tables)
        ]
        return reduce(DataFrame.unionByName, numbered).drop("_side")


class RelationFrames:
    """Rows of one shape.

    Args:
        spark: where it is computed.
        schemas: of the documents of each table.
        shape: what rows are made of them.
        steps: what is made of the rows, each of its own.

    Raises:
        UsageError: `bad_schema`.
    """

    def __init__(
        self,
        spark: SparkSession,
        schemas: Sequence[StructType],
        shape: Shape,
        steps: Sequence[Step] = (),
    ) -> None:
        self._spark = spark
        self._schemas = tuple(schemas)
        self._shape = shape
        self._steps = tuple(steps)
        empty = self.rows([typed(self._empty(), schema) for schema in schemas])
        if empty.columns.count(ID) != 1:
            raise UsageError(
                f"a step returned the columns {', '.join(empty.columns)}: column {ID} has to be "
                "among them, as it was, once",
                code="bad_schema",
            )
        self._rules = RowRules(empty.schema, id_field=ID, with_cas=False, is_append=False)
        self.schema = StructType([field for field in empty.schema if field.name != ID])
        """The schema of the rows, without `_id`."""

    def rows(self, tables: Frames) -> DataFrame:
        """Return the rows of tables, with `_id`."""
        return reduce(lambda made, step: step(made), self._steps, self._shape.combine(tables))

    def changed(
        self, paths: Sequence[Path], before: Sequence[Snapshot], now: Snapshot
    ) -> Iterator[tuple[str, bytes | None]]:
        """Yield the rows that differ: key and JSON, None for a row that is gone.

        Args:
            paths: directories of the tables.
            before: snapshots; a row that is not the same in all of them differs.
            now: the snapshot wanted.

        Raises:
            UsageError: `bad_row`: several rows have one `_id`.
        """
        sides = range(len(paths))
        states = [[self._files(paths[n], state[n]) for n in sides] for state in (*before, now)]
        replaced = [
            reduce(DataFrame.unionByName, [
                self._replaced(paths[n], state[n], now[n]) for state in before
            ])
            for n in sides
        ]  # fmt: skip
        yield from self.compare(states[:-1], states[-1], replaced)

    def compare(
        self, before: Sequence[Frames], now: Frames, replaced: Frames
    ) -> Iterator[tuple[str, bytes | None]]:
        """Do the same with frames of `key` and `value`.

        Args:
            before: the tables, once or more.
            now: the tables.
            replaced: of each table the versions that are in one of these states only.
        """
        changed = [
            typed(versions, schema).persist()
            for versions, schema in zip(replaced, self._schemas, strict=True)
        ]
        try:
            old = [
                self._json(state, changed).withColumn("is_new", F.lit(False)) for state in before
            ]
            new = self._json(now, changed).withColumn("is_new", F.lit(True))
            found = self._differing(reduce(DataFrame.unionByName, [new, *old]), len(before))
            for row in found.toLocalIterator():
                if row.n > 1:
                    raise _several(row.key)
                yield row.key, None if row.value is None else bytes(row.value)
        finally:
            for frame in changed:
                frame.unpersist()

    def _differing(self, versions: DataFrame, states: int) -> DataFrame:
        """Return what is not the same in all states."""
        is_new = F.col("is_new")
        old, new = F.when(~is_new, F.col("value")), F.when(is_new, F.col("value"))
        found = versions.groupBy("key").agg(
            F.max(new).alias("value"),
            F.count(new).alias("n"),
            F.min(old).alias("lowest"),
            F.max(old).alias("highest"),
            F.count(old).alias("n_old"),
        )
        is_same = F.expr(f"n = 1 and n_old = {states} and lowest = value and highest = value")
        return found.where(~F.coalesce(is_same, F.lit(False))).select("key", "value", "n")

    def _json(self, state: Frames, changed: Frames) -> DataFrame:
        tables = [typed(rows, schema) for rows, schema in zip(state, self._schemas, strict=True)]
        rules, names = self._rules, [ID, *self.schema.names]

        def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                writes = rules.writes(batch)
                values = pa.array([write.value for write in writes], pa.binary())
                yield pa.record_batch([batch.column(0), values], names=["key", "value"])

        rows = self.rows(self._shape.restrict(tables, changed))
        return rows.select(*map(column, names)).mapInArrow(encode, _VERSIONS)

    def _replaced(self, path: Path, before: Sequence[str], now: Sequence[str]) -> DataFrame:
        """Return the versions that are in one of two states only."""
        kept = {*before} & {*now}
        sides = [
            self._files(path, [name for name in state if name not in kept])
            for state in (before, now)
        ]
        return replaced_versions(*sides)

    def _files(self, path: Path, names: Sequence[str]) -> DataFrame:
        if not names:
            return self._empty()
        files = self._spark.read.parquet(*(str(path / name) for name in names))
        return files.where(f"op = '{OP_PUT}'").select("key", "value")

    def _empty(self) -> DataFrame:
        return self._spark.createDataFrame([], _VERSIONS)


def replaced_versions(before: DataFrame, now: DataFrame) -> DataFrame:
    """Return the rows of `key` and `value` that one of the frames has, and the other has not."""
    counted = before.unionByName(now).groupBy("key", "value").agg(F.count("*").alias("n"))
    return counted.where("n = 1").drop("n")


def _only(table: DataFrame, changed: DataFrame) -> DataFrame:
    return table.join(changed.select(ID).distinct(), ID, "leftsemi")


def _name(*columns: str) -> Column:
    """Return the `_id` of a row: an array of texts, as JSON."""
    return _cut(F.to_json(F.array(*columns)))


def _cut(name: Column) -> Column:
    digest = F.concat(F.substring(name, 1, _CUT_CHARACTERS), F.lit("#"), F.sha2(name, 256))
    return F.when(F.octet_length(name) > KEY_BYTES_MAX, digest).otherwise(name)


def _several(key: Any) -> UsageError:
    return UsageError(
        f"row {str(key)[:80]!r}: several rows have this _id. Does a part occur twice in a "
        "document, or has a step made several rows of one?",
        code="bad_row",
    )
