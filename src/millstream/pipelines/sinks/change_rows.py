"""Rows of the change stream between Arrow and `repairing.Row`.

Invariants:
1. Times are microseconds; they pass through no time zone.
2. What a mark row has null in Arrow it has as 0 or empty text in Python, and the other way round.

Elsewhere: the columns and their types (`pipelines.change_stream.schema`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from millstream.errors import UsageError
from millstream.pipelines.change_stream.schema import ARROW_SCHEMA
from millstream.pipelines.sinks.repairing import OP_ROLLBACK, OP_SWEEP, Row

__all__ = ["check_columns", "rows_from", "table_of"]

_NEEDED: Final = ("op", "partition", "branch", "seqno", "key", "rev")
_MARKS: Final = (OP_ROLLBACK, OP_SWEEP)
_DEFAULTS: Final = Row("", 0, 0, 0)


def check_columns(names: Sequence[str]) -> list[str]:
    """Return the columns of the source among `names`.

    Raises:
        UsageError: `bad_schema`: one is missing without which rows cannot be applied.
    """
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        raise UsageError(
            f"column {', '.join(missing)} is missing: versions and marks of the change stream are "
            f"needed as they were read ({', '.join(_NEEDED)})",
            code="bad_schema",
        )
    return [name for name in Row._fields if name in names]


def rows_from(batch: pa.Table | pa.RecordBatch) -> Iterator[Row]:
    """Yield the rows of some columns; what a row lacks is 0 or None."""
    columns = []
    for name, default in zip(Row._fields, _DEFAULTS, strict=True):
        if name not in batch.schema.names:
            columns.append([default] * batch.num_rows)
            continue
        column = batch.column(name)
        if name == "ts":
            column = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        columns.append(column.to_pylist())
    for row in map(Row._make, zip(*columns, strict=True)):
        if row.op in _MARKS:
            yield Row(row.op, row.partition, row.branch, row.seqno, rev=row.rev)
        else:
            yield row


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Return rows that are no marks as a table with all columns."""
    columns = zip(*rows, strict=True) if rows else ([] for _ in Row._fields)
    arrays = []
    for column, field in zip(columns, ARROW_SCHEMA, strict=True):
        if field.name == "ts":
            arrays.append(pa.array(column, pa.int64()).cast(field.type))
        else:
            arrays.append(pa.array(column, field.type))
    return pa.Table.from_arrays(arrays, schema=ARROW_SCHEMA)
