"""Rows as documents: every rule of keys, values and types, and that a bad row is named."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from millstream.client.documents import FLAGS_BINARY, FLAGS_JSON
from millstream.client.writes import Write
from millstream.errors import UsageError
from millstream.model.partitions import text_of_key
from millstream.pipelines.change_stream.schema import SPARK_SCHEMA
from millstream.pipelines.sinks.rows import RowRules

POINT = t.StructType().add("a", t.IntegerType()).add("at", t.TimestampType())
PAIR = t.StructType().add("x", t.StringType()).add("y", t.ArrayType(t.DoubleType()))
KINDS: dict[str, t.DataType] = {
    **{
        kind.simpleString(): kind
        for kind in (
            t.StringType(), t.BinaryType(), t.BooleanType(), t.IntegerType(), t.LongType(),
            t.DoubleType(), t.DecimalType(10, 2), t.DateType(), t.TimestampType(),
            t.TimestampNTZType(), t.NullType(), t.DayTimeIntervalType(), POINT, PAIR,
            t.ArrayType(t.TimestampType()), t.ArrayType(t.VariantType()),
            t.ArrayType(t.LongType()), t.MapType(t.IntegerType(), t.IntegerType()),
            t.MapType(t.StringType(), t.StructType().add("x", t.IntegerType())),
            t.StructType().add("a", t.IntegerType()).add("a", t.IntegerType()),
        )
    },
}  # fmt: skip


def struct(text: str) -> t.StructType:
    """A schema from text: "NAME TYPE;NAME TYPE"."""
    found = t.StructType()
    for column in text.split(";"):
        name, kind = column.split(" ", 1)
        found.add(name, KINDS[kind])
    return found


def writes(
    schema: str,
    *rows: tuple[Any, ...],
    id_field: str = "",
    with_cas: bool = False,
    is_append: bool = False,
) -> list[Write]:
    form = struct(schema)
    rules = RowRules(form, id_field=id_field, with_cas=with_cas, is_append=is_append)
    arrow = to_arrow_schema(form, timezone="Europe/Berlin")
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(form)
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, arrow, strict=True)]
    return list(rules.writes(pa.RecordBatch.from_arrays(arrays, schema=arrow)))


def refused(schema: str, *rows: tuple[Any, ...], code: str = "bad_row", **how: Any) -> str:
    with pytest.raises(UsageError) as failed:
        writes(schema, *rows, **how)
    assert failed.value.code == code
    return str(failed.value)


# -- keys and values


def test_text_is_json_and_binary_is_as_it_is() -> None:
    assert writes("key string;value string", ("a", '{"n": 1}')) == [Write(b"a", b'{"n": 1}')]
    assert writes("id binary;value binary", (b"\xff", b"\x00")) == [
        Write(b"\xff", b"\x00", FLAGS_BINARY, 0)
    ]
    assert writes("key string;value string;id string", ("a", "1", "b"), id_field="id") == [
        Write(b"b", b'{"key":"a","value":"1","id":"b"}')
    ]
    assert "is no JSON" in refused("key string;value string", ("a", "{"))
    assert "row 'a'" in refused("key string;value string", ("a", None))


def test_rows_of_the_change_stream_can_be_copied() -> None:
    schema = SPARK_SCHEMA.replace(", ", ";").replace("ts timestamp", "ts timestamp")
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    def row(op: str, key: str | None, value: bytes | None) -> tuple[Any, ...]:
        return (op, 3, 1, 9, key, -5, 1, 1_900_000_000, 7, 3, value, now, None)

    found = writes(schema, row("put", "\\xff", b"v"), row("delete", "k", None),
                   row("expire", "l", None))  # fmt: skip
    assert found == [
        Write(b"\xff", b"v", 7, 1, 1_900_000_000),
        Write(b"k", None),
        Write(b"l", None),
    ]
    with_cas = writes(schema, row("put", "a", b"v"), with_cas=True)
    assert with_cas[0].cas == 2**64 - 5
    for mark in ("rollback", "sweep"):
        for how in ({}, {"id_field": "key"}):
            said = refused(schema, row(mark, None, None), code="rollback_row", **how)
            assert "apply_changes" in said
            assert "partition 3" in said
    assert "no place in .mode('append')" in refused(
        schema, row("delete", "k", None), is_append=True
    )
    assert "none of put" in refused(schema, row("move", "k", b"1"))


def test_conditions() -> None:
    assert writes("key string;value string", ("a", "1"), is_append=True)[0].is_insert
    schema = "key string;value string;cas bigint"
    assert [w.cas for w in writes(schema, ("a", "1", 5), ("b", "1", None), with_cas=True)] == [
        5,
        0,
    ]
    assert [w.cas for w in writes(schema, ("a", "1", 5))] == [0]
    assert writes("n int;cas bigint", (1, 5), id_field="n", with_cas=True) == [
        Write(b"1", b'{"n":1}', cas=5)
    ]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (None, "no key"),
        ("", "has 0 bytes"),
        ("k" * 251, "has 251 bytes"),
        ("\\xzz", "no text that can be stored"),
        ("_design/d", "begin with _"),
    ],
)
def test_impossible_keys(key: str | None, said: str) -> None:
    assert said in refused("key string;value string", ("good", "1"), (key, "1"))
    assert said in refused("key string;n int", ("good", 1), (key, 1), id_field="key")


def test_numbers_beyond_their_fields_name_the_row() -> None:
    for name in ("flags", "expiry"):
        schema = f"key string;value string;{name} bigint"
        assert "row 'a'" in refused(schema, ("a", "1", -1))
        assert "32 bits" in refused(schema, ("a", "1", 2**32))
        assert writes(schema, ("a", "1", None)) == writes("key string;value string", ("a", "1"))


def test_a_value_that_is_too_long_names_the_row() -> None:
    assert "row 'a': 20971521 bytes" in refused("key string;value binary", ("a", bytes(20971521)))


# -- rows as JSON


def test_every_type_has_one_form() -> None:
    at = datetime.datetime(2026, 7, 1, 12, 30, tzinfo=datetime.UTC)
    schema = (
        "k string;b boolean;i int;d decimal(10,2);f double;day date;at timestamp;"
        "local timestamp_ntz;bin binary;s struct<a:int,at:timestamp>;l array<timestamp>;"
        "m map<string,struct<x:int>>;nothing void"
    )
    row = (
        "a", True, 7, decimal.Decimal("1.50"), float("nan"), at.date(), at,
        at.replace(tzinfo=None), b"\x00\xff", {"a": None, "at": at}, [at, None],
        [("x", {"x": 1})], None,
    )  # fmt: skip
    ((key, value, *_),) = writes(schema, row, id_field="k")
    assert key == b"a"
    assert value is not None
    assert b'"d":1.50' in value
    assert json.loads(value) == {
        "k": "a", "b": True, "i": 7, "d": 1.5, "f": None, "day": "2026-07-01",
        "at": "2026-07-01T12:30:00Z", "local": "2026-07-01T12:30:00", "bin": "AP8=",
        "s": {"a": None, "at": "2026-07-01T12:30:00Z"}, "l": ["2026-07-01T12:30:00Z", None],
        "m": {"x": {"x": 1}}, "nothing": None,
    }  # fmt: skip


def test_the_own_id_of_couchdb_is_the_key_and_not_stored() -> None:
    assert writes("_id string;n int", ("a", 1), id_field="_id") == [Write(b"a", b'{"n":1}')]


def test_a_time_that_python_does_not_have_names_its_row() -> None:
    schema = "k string;at timestamp"
    said = refused(schema, ("good", 0), ("late", 2**62), id_field="k")
    assert said.startswith("row 'late'")


@pytest.mark.parametrize(
    ("schema", "id_field", "said"),
    [
        ("k string;v string", "", "columns key and value"),
        ("key int;value string", "", "not text or binary"),
        ("key string;value struct<x:string,y:array<double>>", "", "to_json"),
        ("key string;value string;extra int;more int", "", "extra, more beside"),
        ("key string;value string;flags string", "", "flags is string"),
        ("key string;value string;op int", "", "op is int"),
        ("n string", "k", "names 'k', the columns are n"),
        ("k double", "k", "a key is text or whole"),
        ("k string;_rev string", "k", "begin with _"),
        ("k string;v interval day to second", "k", "no form in JSON"),
        ("k string;v array<variant>", "k", r"v\[\]"),
        ("k string;v map<int,int>", "k", "names in JSON are text"),
        ("k string;s struct<a:int,a:int>", "k", "a member of column s"),
        ("k string;k string", "k", "occurs twice"),
    ],
)
def test_impossible_schemas_are_refused_at_once(schema: str, id_field: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as failed:
        RowRules(struct(schema), id_field=id_field, with_cas=False, is_append=False)
    assert failed.value.code == "bad_schema"


def test_cas_needs_its_column() -> None:
    with pytest.raises(UsageError, match="needs a column cas"):
        RowRules(struct("k string"), id_field="k", with_cas=True, is_append=False)


SCALARS = {
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "array<bigint>": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    "struct<x:string,y:array<double>>": st.fixed_dictionaries(
        {"x": st.text(max_size=5), "y": st.lists(st.floats(allow_nan=False, allow_infinity=False))}
    ),
}


@given(st.data())
def test_any_row_is_read_back_as_it_was(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(SCALARS)), min_size=1, max_size=6))
    schema = "k string;" + ";".join(f"c{n} {kind}" for n, kind in enumerate(kinds))
    keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60).filter(
        lambda key: not key.startswith(("_", "\\x"))
    )
    rows = data.draw(
        st.lists(
            st.tuples(keys, *(st.none() | SCALARS[kind] for kind in kinds)), min_size=1, max_size=4
        )
    )
    found = writes(schema, *rows, id_field="k")
    names = ["k", *(f"c{n}" for n in range(len(kinds)))]
    assert [text_of_key(write.key) for write in found] == [row[0] for row in rows]
    for write, row in zip(found, rows, strict=True):
        assert json.loads(write.value or b"") == dict(zip(names, row, strict=True))
        assert (write.flags, write.datatype, write.cas) == (FLAGS_JSON, 1, 0)


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=250), st.binary(max_size=50))))
def test_any_key_of_the_source_comes_back(pairs: list[tuple[bytes, bytes]]) -> None:
    kept = [(key, value) for key, value in pairs if not key.startswith(b"_")]
    found = writes("key string;value binary", *((text_of_key(k), v) for k, v in kept))
    assert [(write.key, write.value) for write in found] == kept
