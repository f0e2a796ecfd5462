"""The map side on Arrow batches: odd keys and values, exact numbers, lists aligned with rows."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.pipelines.view_map import NUMBER_MAX, OUT_SCHEMA, import_modules, map_batches
from millstream.views import register

IN_SCHEMA = pa.schema(
    [("op", pa.string()), ("partition", pa.int32()), ("branch", pa.int64()),
     ("seqno", pa.int64()), ("key", pa.string()), ("value", pa.binary())]
)  # fmt: skip


@register("test.view_map.members")
def members(document):
    for name, value in document.items():
        if name != "_id":
            yield name, value


DESIGN = {
    "_id": "_design/t",
    "language": "python",
    "views": {
        "counted": {"map": "registered:test.view_map.members", "reduce": "_count"},
        "listed": {"map": "registered:test.view_map.members"},
        "summed": {"map": "registered:test.view_map.members", "reduce": "_sum"},
    },
}


def mapped(*changes):
    rows = [
        {"op": op, "partition": 1, "branch": 2, "seqno": at, "key": key, "value": value}
        for at, (op, key, value) in enumerate(changes)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=IN_SCHEMA)
    (out,) = map_batches(msgspec.json.encode(DESIGN), (), [batch])
    assert out.schema == OUT_SCHEMA
    out.validate(full=True)
    return out.to_pylist()


def test_each_change_is_one_row():
    rows = mapped(
        ("put", "a", b'{"n":1}'), ("delete", "b", None), ("put", "c", b"\xff"),
        ("expire", "d", None), ("put", "e", b'{"n":2,"m":3}'), ("put", "_design/x", b"{}"),
    )  # fmt: skip
    assert [(row["key"], row["is_put"], row["is_document"]) for row in rows] == [
        ("a", True, True), ("b", False, False), ("c", True, False), ("d", False, False),
        ("e", True, True), ("_design/x", True, False),
    ]  # fmt: skip
    assert [len(row["emitted"]) for row in rows] == [3, 0, 0, 0, 6, 0]
    assert rows[4]["seqno"] == 4


def test_values_take_the_form_that_their_view_reduces():
    (row,) = mapped(("put", "a", b'{"n":7}'))
    assert row["emitted"] == [
        {"view": 0, "key": '"n"', "number": None, "real": None, "value": None},
        {"view": 1, "key": '"n"', "number": None, "real": None, "value": "7"},
        {"view": 2, "key": '"n"', "number": 7, "real": None, "value": None},
    ]


@pytest.mark.parametrize(
    ("text", "number", "real", "value"),
    [
        ("0", 0, None, None), ("-5", -5, None, None), (str(NUMBER_MAX), NUMBER_MAX, None, None),
        (str(NUMBER_MAX + 1), None, None, str(NUMBER_MAX + 1)), ("1.5", None, 1.5, None),
        ("null", None, None, "null"), ("true", None, None, "true"), ('"1"', None, None, '"1"'),
        ('"inf"', None, None, '"inf"'), ("[1,2]", None, None, "[1,2]"),
    ],
)  # fmt: skip
def test_numbers_are_told_from_the_rest(text, number, real, value):
    (row,) = mapped(("put", "a", b'{"n":' + text.encode() + b"}"))
    summed = row["emitted"][2]
    assert (summed["number"], summed["real"], summed["value"]) == (number, real, value)


def test_rows_that_are_no_changes_are_left_out():
    rows = mapped(("rollback", None, None), ("put", "a", b"{}"), ("sweep", None, None))
    assert [row["key"] for row in rows] == ["a"]


def test_map_errors_travel_with_the_row():
    design = {"views": {"v": {"map": "d => { if (d.bad) throw 'no'; emit(d.n) }"}}}
    batch = pa.RecordBatch.from_pylist(
        [
            {"op": "put", "partition": 0, "branch": 1, "seqno": at, "key": str(at), "value": value}
            for at, value in enumerate([b'{"n":1}', b'{"bad":1}', b'{"n":2}'])
        ],
        schema=IN_SCHEMA,
    )
    (out,) = map_batches(msgspec.json.encode({**design, "_id": "_design/t"}), (), [batch])
    rows = out.to_pylist()
    assert [row["errors"] for row in rows] == [[], [{"view": 0, "message": "no"}], []]
    assert [len(row["emitted"]) for row in rows] == [1, 0, 1]


def test_an_empty_batch_is_an_empty_batch():
    assert mapped() == []


@given(st.lists(st.tuples(st.text(max_size=6), st.binary(max_size=20)), max_size=6))
def test_no_key_or_value_raises(changes):
    assert len(mapped(*(("put", key, value) for key, value in changes))) == len(changes)


def test_modules_are_imported():
    import_modules(["millstream.demo.views"])
    with pytest.raises(ImportError):
        import_modules(["no_such_module_of_views"])
