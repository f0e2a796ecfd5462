"""Documents as rows of a DataFrame, and rows as documents, for `pipelines.documents`.

A row of a document has `_id`, its key, and the columns of a schema, read from its JSON as Spark's
`from_json` does: a member that is missing or of another type is null, and so is all of a document
that is no JSON object.

Invariants:
1. A step makes of each row one row with the same `_id`, or none. Others are refused: by the schema
   when the step is added, by the rows when it runs.
2. A document is written by the rules of the sinks (`sinks.rows`): `from_json` reads it back.
3. Groups are named by their keys as a JSON array, such as `["AA",1]`, cut where it is too long for
   a key (`sinks.grouping`); nulls are a group, too.

Elsewhere: which documents (`sinks.transforming`), which groups (`sinks.grouping`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from millstream.errors import UsageError
from millstream.pipelines.sinks.grouping import group_name
from millstream.pipelines.sinks.rows import RowRules

__all__ = ["ID", "DocumentFrames", "GroupFrames", "Step", "Table", "column", "typed"]

ID: Final = "_id"
Step = Callable[[DataFrame], DataFrame]
_FOUND: Final = "_found"
_TEXTS: Final = pa.schema([("key", pa.string()), ("value", pa.binary())])


class Table(Protocol):
    """A target that can be read: `ParquetTarget`, `DeltaTarget`, `SqlTarget`."""

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the live rows."""
        ...


class DocumentFrames:
    """Documents of one schema and what steps make of them.

    Args:
        spark: where the steps run.
        schema: of the documents.
        steps: in their order.

    Raises:
        UsageError: `bad_schema`.
    """

    def __init__(self, spark: SparkSession, schema: StructType, steps: Sequence[Step]) -> None:
        self._spark = spark
        self._schema = schema
        self._steps = tuple(steps)
        derived = self.frame_of({})
        names = derived.columns
        if names.count(ID) != 1:
            raise _bad_schema(
                f"a step returned the columns {', '.join(names)}: column {ID}, the key of each "
                "document, has to be among them, as it was, once"
            )
        self._rules = RowRules(derived.schema, id_field=ID, with_cas=False, is_append=False)
        self.schema = StructType([field for field in derived.schema if field.name != ID])
        """The schema of what the steps make, without `_id`."""

    def frame_of(self, documents: Mapping[str, bytes]) -> DataFrame:
        """Return the rows that the steps make of documents."""
        frame = typed(self._texts(documents), self._schema)
        return reduce(lambda made, step: step(made), self._steps, frame)

    def derive(self, documents: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return the results of documents, as JSON, by key.

        Raises:
            UsageError: `bad_row`: a step made several rows of one document, or changed `_id`.
        """
        found: dict[str, bytes] = {}
        for key, value in _json_of(self.frame_of(documents), self._rules):
            if key not in documents:
                raise _bad_row(key, "no document has this key: a step has changed _id")
            if key in found:
                raise _bad_row(
                    key,
                    "a step made several rows of this document: each may have one; is a value "
                    "that is joined on in the other frame more than once?",
                )
            found[key] = value
        return found

    def stored(self, documents: Collection[bytes]) -> DataFrame:
        """Return documents that `derive` has made as rows."""
        numbered = {str(number): document for number, document in enumerate(documents)}
        return typed(self._texts(numbered), self.schema)

    def _texts(self, documents: Mapping[str, bytes]) -> DataFrame:
        table = pa.table([list(documents), list(documents.values())], schema=_TEXTS)
        return self._spark.createDataFrame(table)


class GroupFrames:
    """Groups of derived documents.

    Args:
        documents: what is grouped.
        keys: columns.
        aggregates: expressions with a name each.

    Raises:
        UsageError: `bad_schema`.
    """

    def __init__(
        self, documents: DocumentFrames, keys: Sequence[str], aggregates: Sequence[Column]
    ) -> None:
        missing = [key for key in keys if key not in documents.schema.names]
        if missing or not keys or len(set(keys)) < len(keys):
            raise _bad_schema(
                f"documents have the columns {', '.join(documents.schema.names)}: group by some "
                f"of them, each once, not by {', '.join(keys) or 'none'}"
            )
        self._documents = documents
        self._keys = tuple(keys)
        self._aggregates = tuple(aggregates)
        self.schema = self._groups(documents.stored([])).drop(_FOUND).schema
        schema = StructType([*self.schema, *documents.frame_of({}).select(ID).schema])
        self._rules = RowRules(schema, id_field=ID, with_cas=False, is_append=False)

    def results(
        self, documents: DataFrame, touched: Collection[bytes] | None
    ) -> Mapping[str, bytes | None]:
        """Return groups by name, as JSON; None for one without documents.

        Args:
            documents: all rows that count.
            touched: documents whose groups are wanted; None for all groups.
        """
        if touched is None:
            found = self._groups(documents)
        else:
            stored = self._documents.stored(touched)
            wanted = F.broadcast(stored.select(*map(column, self._keys)).distinct())
            groups = self._groups(self._same(documents, wanted, "leftsemi"))
            found = self._same(wanted, groups, "left")
        columns = map(column, self.schema.names)
        table = found.select(*columns, F.lit("-").alias(ID), _FOUND).toArrow()
        flags = table.column(_FOUND).to_pylist()
        named: dict[str, bytes | None] = {}
        values = (write.value for write in _writes(table.drop_columns([_FOUND]), self._rules))
        for is_found, value in zip(flags, values, strict=True):
            assert value is not None, "the rules make documents of rows"
            named[group_name(value, self._keys)] = value if is_found else None
        return named

    def _groups(self, documents: DataFrame) -> DataFrame:
        grouped = documents.groupBy(*map(column, self._keys))
        return grouped.agg(*self._aggregates, F.lit(True).alias(_FOUND))

    def _same(self, left: DataFrame, right: DataFrame, how: str) -> DataFrame:
        """Join on the keys, nulls being equal."""
        renamed = right.select(
            *(column(key).alias(f"_of {key}") for key in self._keys),
            *(column(name) for name in right.columns if name not in self._keys),
        )
        pairs = [column(key).eqNullSafe(column(f"_of {key}")) for key in self._keys]
        return left.join(renamed, reduce(Column.__and__, pairs), how)


def typed(rows: DataFrame, schema: StructType) -> DataFrame:
    """Return rows of `key` and `value`, which is JSON, as rows of `_id` and a schema's columns."""
    parsed = F.from_json(F.col("value").cast("string"), schema)
    return rows.select(F.col("key").alias(ID), parsed.alias("_read")).select(ID, "_read.*")


def column(name: str) -> Column:
    """Return the column of a name, whatever signs it has."""
    return F.col("`" + name.replace("`", "``") + "`")


def _json_of(frame: DataFrame, rules: RowRules) -> Iterator[tuple[str, bytes]]:
    table = frame.toArrow()
    for key, write in zip(table.column(ID).to_pylist(), _writes(table, rules), strict=True):
        assert write.value is not None, "the rules make documents of rows"
        yield key, write.value


def _writes(table: pa.Table, rules: RowRules) -> Iterator[Any]:
    for batch in table.to_batches():
        yield from rules.writes(batch)


def _bad_schema(reason: str) -> UsageError:
    return UsageError(reason, code="bad_schema")


def _bad_row(key: str, reason: str) -> UsageError:
    return UsageError(f"document {key[:80]!r}: {reason}", code="bad_row")
