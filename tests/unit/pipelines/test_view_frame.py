"""Stored documents to rows of a DataFrame."""

from __future__ import annotations

import json

import pyarrow as pa

from millstream.pipelines.view_frame import _read


def document(view="v", signature="s", **members):
    stamp = {"run": "r", "batch": 4}
    return json.dumps(
        {"ddoc": "d", "view": view, "signature": signature, **members, "stamp": stamp},
        separators=(",", ":"),
    ).encode()


def test_rows_of_one_view_and_version():
    values = [
        document(key=["a", 1], value={"sum": 3}), document(view="w", key=1, value=1),
        document(signature="old", key=1, value=1), document(key=None, id="x", rows=[1, "two"]),
        b"no row at all",
    ]  # fmt: skip
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    (out,) = _read("d", "v", "s", [batch])
    assert [tuple(row.values()) for row in out.to_pylist()] == [
        ('["a",1]', None, '{"sum":3}', 4), ("null", "x", "1", 4), ("null", "x", '"two"', 4),
    ]  # fmt: skip


def test_an_empty_batch():
    batch = pa.RecordBatch.from_pydict({"value": pa.array([], pa.binary())})
    (out,) = _read("d", "v", "s", [batch])
    assert out.num_rows == 0
