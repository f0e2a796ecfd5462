from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from millstream.client.columns import Columns, cut_columns, encode_meta
from millstream.errors import UsageError
from millstream.pipelines.change_stream.schema import SPARK_SCHEMA, MarkRow, branch_table, row_form
from millstream.wire.frames import deletion, described, expiration, mutation

TYPES = {
    "string": t.StringType(),
    "int": t.IntegerType(),
    "bigint": t.LongType(),
    "binary": t.BinaryType(),
    "timestamp": t.TimestampType(),
}


def schema_of(text: str) -> t.StructType:
    pairs = [column.split() for column in text.split(", ")]
    return t.StructType([t.StructField(name, TYPES[kind]) for name, kind in pairs])


def cut(*frames: bytes) -> Columns:
    columns = Columns()
    cut_columns(b"".join(frames), columns)
    return columns


BRANCHES = branch_table({3: 33, 4: 44})
CAS = 1_700_000_000_123_456_789


def test_a_batch_has_exactly_the_schema_that_spark_derives() -> None:
    schema = schema_of(SPARK_SCHEMA)
    batch = row_form(schema).batch(cut(mutation(3, b"k", b"v", 1, 1, CAS, 0, 0, 1)), BRANCHES)
    assert to_arrow_schema(schema, timezone="UTC").equals(batch.schema)
    batch.validate(full=True)


def test_every_column_is_filled() -> None:
    columns = cut(
        mutation(3, b"k", b"v", 1, 2, CAS, 0xFFFFFFFF, 0xFFFFFFFF, 1),
        deletion(4, b"\xff", 5, 6, CAS, 99),
        expiration(4, b"\\x", 7, 8, CAS, 99),
    )
    put, deleted, expired = row_form(schema_of(SPARK_SCHEMA)).batch(columns, BRANCHES).to_pylist()
    assert put == {
        "op": "put", "partition": 3, "branch": 33, "seqno": 1, "key": "k", "cas": CAS, "rev": 2,
        "expiry": 0xFFFFFFFF, "flags": 0xFFFFFFFF, "datatype": 1, "value": b"v",
        "ts": datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC), "meta": None,
    }  # fmt: skip
    assert (deleted["op"], deleted["key"], deleted["value"]) == ("delete", "\\xff", None)
    assert (expired["op"], expired["branch"], expired["key"]) == ("expire", 44, "\\x5c78")


def test_numbers_of_64_bits_are_twos_complement_and_their_time_is_not_lost() -> None:
    columns = cut(mutation(3, b"k", b"", 1, 2**64 - 1, 2**64 - 1, 0, 0, 0))
    batch = row_form(schema_of("rev bigint, cas bigint, ts timestamp")).batch(columns, BRANCHES)
    row = batch.to_pylist()[0]
    assert (row["rev"], row["cas"]) == (-1, -1)
    assert row["ts"].year == 2554


def test_columns_come_in_the_order_asked_for() -> None:
    form = row_form(schema_of("seqno bigint, op string"))
    assert not form.has_values
    batch = form.batch(cut(mutation(3, b"k", b"v", 1, 1, 1, 0, 0, 0)), BRANCHES)
    assert batch.to_pydict() == {"seqno": [1], "op": ["put"]}


def test_values_are_null_where_they_are_not_wanted() -> None:
    form = row_form(schema_of("value binary, datatype int"), has_values=False)
    assert not form.has_values
    batch = form.batch(cut(mutation(3, b"k", b"", 1, 1, 1, 0, 0, 1)), BRANCHES)
    assert batch.to_pydict() == {"value": [None], "datatype": [1]}


def test_meta_is_there_where_it_is_wanted_and_was_read() -> None:
    pair = described(mutation(3, b"k", b"v", 1, 1, 1, 0, 0, 0), b"\x03\x01")
    wanting = row_form(schema_of("meta binary, key string"), has_meta=True)
    assert wanting.has_meta
    assert wanting.batch(cut(pair), BRANCHES).to_pydict() == {
        "meta": [encode_meta(b"\x03\x01")], "key": ["k"],
    }  # fmt: skip
    assert not row_form(schema_of("key string"), has_meta=True).has_meta
    unread = row_form(schema_of("meta binary"))
    assert not unread.has_meta
    assert unread.batch(cut(mutation(3, b"k", b"v", 1, 1, 1, 0, 0, 0)), BRANCHES).to_pydict() == {
        "meta": [None]
    }


def test_a_mask_chooses_rows() -> None:
    columns = cut(*[mutation(3, key, b"", 1, 1, 1, 0, 0, 0) for key in (b"a", b"b", b"c")])
    form = row_form(schema_of("key string"))
    mask = pa.array([True, False, True])
    assert form.batch(columns, BRANCHES, mask).to_pydict() == {"key": ["a", "c"]}


def test_marks_are_null_where_they_say_nothing() -> None:
    form = row_form(schema_of(SPARK_SCHEMA))
    row = form.marks([MarkRow("rollback", 3, 33, 7, 2)]).to_pylist()[0]
    said = {name: value for name, value in row.items() if value is not None}
    assert said == {"op": "rollback", "partition": 3, "branch": 33, "seqno": 7, "rev": 2}
    assert row_form(schema_of("key string")).marks([MarkRow("sweep", 3, 33, 7, 2)]).num_rows == 1


def test_the_schema_keeps_whether_a_column_may_be_null() -> None:
    form = row_form(t.StructType([t.StructField("seqno", t.LongType(), nullable=False)]))
    assert form.schema == pa.schema([pa.field("seqno", pa.int64(), nullable=False)])


@pytest.mark.parametrize("text", ["keys string", "seqno int", "key binary"])
def test_another_column_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"column {text} is not one of") as caught:
        row_form(schema_of(text))
    assert caught.value.code == "bad_schema"
    assert SPARK_SCHEMA in str(caught.value)
