from __future__ import annotations

import pyarrow as pa
import pytest

from millstream.errors import UsageError
from millstream.pipelines.change_stream.schema import ARROW_SCHEMA, MarkRow, RowForm
from millstream.pipelines.sinks.change_rows import check_columns, rows_from, table_of
from millstream.pipelines.sinks.repairing import OP_ROLLBACK, Row

ROW = Row("put", 1, 2, 3, "k", 4, 5, 6, 7, 1, b"v", 1_700_000_000_000_001, b"m")
DELETION = Row("delete", 1, 2, 4, "k")


def test_rows_go_to_arrow_and_back() -> None:
    table = table_of([ROW, DELETION])
    assert table.schema == ARROW_SCHEMA
    assert list(rows_from(table)) == [ROW, DELETION]
    assert list(rows_from(table_of([]))) == []


def test_missing_columns_of_a_mark_are_null() -> None:
    form = RowForm(ARROW_SCHEMA)
    marks = form.marks([MarkRow(OP_ROLLBACK, 3, 9, 7, 2)])
    assert list(rows_from(marks)) == [Row(OP_ROLLBACK, 3, 9, 7, rev=2)]


def test_columns_that_were_not_read_are_null() -> None:
    some = table_of([ROW]).select(["op", "partition", "branch", "seqno", "key", "rev"])
    assert list(rows_from(some)) == [Row("put", 1, 2, 3, "k", rev=5)]


def test_versions_are_needed() -> None:
    assert check_columns(["value", "key", "op", "partition", "branch", "seqno", "rev", "x"]) == [
        "op", "partition", "branch", "seqno", "key", "rev", "value",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="column branch, rev is missing"):
        check_columns(["op", "partition", "seqno", "key"])


def test_times_pass_through_any_zone() -> None:
    local = table_of([ROW]).column("ts").cast(pa.timestamp("us", tz="Europe/Berlin"))
    table = table_of([ROW]).set_column(11, "ts", local)
    assert next(rows_from(table)).ts == ROW.ts
