from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from millstream.client.columns import Columns, cut_columns
from millstream.errors import UsageError
from millstream.pipelines.change_stream.document_rows import CORRUPT, document_form
from millstream.pipelines.change_stream.schema import MarkRow, branch_table
from millstream.wire.frames import deletion, mutation

BRANCHES = branch_table({3: 33})
META_TYPE = t.StructType(
    [t.StructField("op", t.StringType()), t.StructField("seqno", t.LongType())]
)
ALL_TYPES = t.StructType(
    [
        t.StructField("s", t.StringType()),
        t.StructField("b", t.BooleanType()),
        t.StructField("i", t.IntegerType()),
        t.StructField("l", t.LongType()),
        t.StructField("d", t.DoubleType()),
        t.StructField("n", t.DecimalType(6, 2)),
        t.StructField("at", t.TimestampType()),
        t.StructField("day", t.DateType()),
        t.StructField("raw", t.BinaryType()),
        t.StructField("list", t.ArrayType(t.LongType())),
        t.StructField("map", t.MapType(t.StringType(), t.LongType())),
        t.StructField("in", t.StructType([t.StructField("x", t.LongType())])),
    ]
)


def rows_of(schema: t.StructType, *values: bytes | None, mask: Any = None) -> list[dict[str, Any]]:
    """Return the rows of documents k0, k1, ...; None is a deletion."""
    columns = Columns()
    frames = [
        deletion(3, b"k%d" % n, n + 1, 2, 5, 9)
        if value is None
        else mutation(3, b"k%d" % n, value, n + 1, 1, 5, 0, 0, 1)
        for n, value in enumerate(values)
    ]
    cut_columns(b"".join(frames), columns)
    batch = document_form(schema).batch(columns, BRANCHES, mask)
    assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    batch.validate(full=True)
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def with_corrupt(*fields: t.StructField) -> t.StructType:
    return t.StructType([*fields, t.StructField(CORRUPT, t.StringType())])


def test_members_become_columns_of_their_types() -> None:
    document = {
        "s": "text", "b": True, "i": -5, "l": 2**40, "d": 1, "n": 12.345, "raw": "AAE=",
        "at": "2013-01-01T05:00:00+02:00", "day": "2013-01-31", "list": [1, None],
        "map": {"a": 1}, "in": {"x": 7, "more": 1}, "unknown": 1,
    }  # fmt: skip
    (row,) = rows_of(ALL_TYPES, json.dumps(document).encode())
    assert row == {
        "s": "text", "b": True, "i": -5, "l": 2**40, "d": 1.0, "n": Decimal("12.35"),
        "raw": b"\0\1", "at": datetime(2013, 1, 1, 3, tzinfo=UTC), "day": date(2013, 1, 31),
        "list": [1, None], "map": [("a", 1)], "in": {"x": 7},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (t.BooleanType(), "1"),
        (t.IntegerType(), "2147483648"),
        (t.IntegerType(), "1.0"),
        (t.IntegerType(), "true"),
        (t.LongType(), '"1"'),
        (t.DoubleType(), '"much"'),
        (t.DoubleType(), "false"),
        (t.DecimalType(3, 2), "10"),
        (t.TimestampType(), '"yesterday"'),
        (t.TimestampType(), "1e300"),
        (t.DateType(), "20130101"),
        (t.BinaryType(), '"!"'),
        (t.ArrayType(t.LongType()), "[1, true]"),
        (t.MapType(t.StringType(), t.LongType()), "[]"),
        (t.StructType([t.StructField("x", t.LongType())]), '{"x": "1"}'),
    ],
)
def test_what_does_not_fit_is_null_and_told_and_costs_no_other_member(
    kind: t.DataType, text: str
) -> None:
    schema = with_corrupt(t.StructField("x", kind), t.StructField("other", t.LongType()))
    document = f'{{"x": {text}, "other": 3}}'.encode()
    assert rows_of(schema, document) == [{"x": None, "other": 3, CORRUPT: document.decode()}]


def test_a_text_takes_any_value_as_json() -> None:
    schema = with_corrupt(t.StructField("x", t.StringType()))
    values = [b'{"x":"a"}', b'{"x":1.5}', b'{"x":[1,{"a":null}]}', b'{"x":null}', b"{}"]
    rows = rows_of(schema, *values)
    assert [row["x"] for row in rows] == ["a", "1.5", '[1,{"a":null}]', None, None]
    assert {row[CORRUPT] for row in rows} == {None}


def test_what_is_no_document_is_told_and_deletions_are_not() -> None:
    schema = with_corrupt(t.StructField("_id", t.StringType()), t.StructField("x", t.LongType()))
    rows = rows_of(schema, b"\xff", b"[1]", b"", b'{"x":1}', None)
    assert [row["_id"] for row in rows] == ["k0", "k1", "k2", "k3", "k4"]
    assert [row["x"] for row in rows] == [None, None, None, 1, None]
    assert [row[CORRUPT] for row in rows] == ["�", "[1]", "", None, None]


def test_the_change_is_told_in_meta_also_of_marks_and_of_a_choice() -> None:
    schema = t.StructType([t.StructField("_meta", META_TYPE), t.StructField("x", t.LongType())])
    rows = rows_of(schema, b'{"x":1}', None, b'{"x":3}', mask=pa.array([True, True, False]))
    assert rows == [
        {"_meta": {"op": "put", "seqno": 1}, "x": 1},
        {"_meta": {"op": "delete", "seqno": 2}, "x": None},
    ]
    marks = document_form(schema).marks([MarkRow("rollback", 3, 34, 17, 1)])
    assert marks.to_pylist() == [{"_meta": {"op": "rollback", "seqno": 17}, "x": None}]


@pytest.mark.parametrize(
    "schema",
    [
        t.StructType([t.StructField("_rev", t.StringType())]),
        t.StructType([t.StructField("x", t.LongType(), nullable=False)]),
        t.StructType([t.StructField("x", t.LongType()), t.StructField("x", t.LongType())]),
        t.StructType([t.StructField("_id", t.LongType())]),
        t.StructType([t.StructField("x", t.DayTimeIntervalType())]),
        t.StructType([t.StructField("x", t.MapType(t.LongType(), t.LongType()))]),
        t.StructType(
            [t.StructField("x", t.StructType([t.StructField("y", t.LongType(), nullable=False)]))]
        ),
    ],
)
def test_a_schema_that_documents_cannot_fill_is_refused(schema: t.StructType) -> None:
    with pytest.raises(UsageError):
        document_form(schema)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from(ALL_TYPES.names), JSON), max_size=5), st.binary())
def test_nothing_that_a_client_writes_makes_a_batch_fail(
    documents: list[dict[str, Any]], garbage: bytes
) -> None:
    schema = with_corrupt(*ALL_TYPES.fields)
    texts = [json.dumps(document).encode() for document in documents]
    rows = rows_of(schema, *texts, garbage)
    for row, document, text in zip(rows, documents, texts, strict=False):
        lost = [
            name for name, value in document.items() if value is not None and row[name] is None
        ]
        assert (row[CORRUPT] is None) == (not lost) or b"NaN" in text or b"Infinity" in text
        if isinstance(document.get("s"), str):
            assert row["s"] == document["s"] or row[CORRUPT] is not None
