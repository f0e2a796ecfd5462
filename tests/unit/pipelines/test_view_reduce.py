"""What the JVM grouped is finished here: numbers, odd values, counters, errors."""

from __future__ import annotations

import json

import msgspec
import pyarrow as pa

from millstream.pipelines.view_reduce import (
    COUNTERS,
    ERRORS,
    ERRORS_SHOWN_MAX,
    ViewRow,
    reduce_own_batches,
    reduced_rows,
)
from millstream.views.core.design import parse_design

DESIGN = parse_design(
    {
        "views": {
            "counted": {"map": "m", "reduce": "_count"},
            "listed": {"map": "m"},
            "stats": {"map": "m", "reduce": "_stats"},
            "summed": {"map": "m", "reduce": "_sum"},
        }
    },
    "t",
)
COUNTED, LISTED, STATS, SUMMED = range(4)
FIELDS = [
    ("view", pa.int32()), ("key", pa.string()), ("doc_id", pa.string()), ("value", pa.string()),
    ("rows", pa.int64()), ("ints", pa.int64()), ("int_sum", pa.string()), ("int_min", pa.int64()),
    ("int_max", pa.int64()), ("int_sumsqr", pa.string()), ("reals", pa.int64()),
    ("real_sum", pa.float64()), ("real_min", pa.float64()), ("real_max", pa.float64()),
    ("real_sumsqr", pa.float64()), ("sample_id", pa.string()),
]  # fmt: skip


def group(view, key, rows=1, **members):
    return {"view": view, "key": key, "rows": rows, "ints": 0, "reals": 0, **members}


def ints(*numbers):
    return {
        "rows": len(numbers), "ints": len(numbers), "int_sum": str(sum(numbers)),
        "int_min": min(numbers), "int_max": max(numbers),
        "int_sumsqr": str(sum(n * n for n in numbers)),
    }  # fmt: skip


def reals(*numbers):
    return {
        "reals": len(numbers), "real_sum": sum(numbers), "real_min": min(numbers),
        "real_max": max(numbers), "real_sumsqr": sum(n * n for n in numbers),
    }  # fmt: skip


def finish(*groups, own=None):
    return reduced_rows(DESIGN, pa.Table.from_pylist(list(groups), schema=pa.schema(FIELDS)), own)


def values(batch):
    return {(row.view, row.key, row.doc_id): json.loads(row.content) for row in batch.rows}


def test_counts_and_integers_stay_exact():
    batch = finish(
        group(COUNTED, '"a"', 3), group(COUNTED, '"a"', 2, value="null"),
        group(STATS, "1", **ints(2**53, -1)), group(SUMMED, "1", **ints(2**53, 2**53)),
    )  # fmt: skip
    assert values(batch) == {
        (COUNTED, '"a"', None): 5,
        (STATS, "1", None): {
            "sum": 2**53 - 1, "count": 2, "min": -1, "max": 2**53, "sumsqr": 2**106 + 1,
        },
        (SUMMED, "1", None): 2**54,
    }  # fmt: skip


def test_integers_and_floats_of_one_group():
    batch = finish(group(STATS, "1", **{**ints(1, 4), **reals(0.5), "rows": 3}))
    assert values(batch)[STATS, "1", None] == {
        "sum": 5.5, "count": 3, "min": 0.5, "max": 4, "sumsqr": 17.25,
    }  # fmt: skip


def test_values_that_the_jvm_cannot_add():
    batch = finish(
        group(SUMMED, "1", **ints(1, 2)), group(SUMMED, "1", 2, value="[10,1]"),
        group(SUMMED, "2", value=str(2**60)), group(SUMMED, "2", **ints(1)),
        group(SUMMED, "3", **ints(1)), group(SUMMED, "3", value='"x"'),
        group(STATS, "3", **ints(1)), group(STATS, "3", value="null"),
        group(STATS, "4", value="9" * 5000),
    )  # fmt: skip
    found = values(batch)
    assert found[SUMMED, "1", None] == [23, 2]
    assert found[SUMMED, "2", None] == 2**60 + 1
    assert found[SUMMED, "3", None]["error"] == "builtin_reduce_error"
    assert found[STATS, "3", None]["caused_by"] is None
    assert "error" in found[STATS, "4", None] or found[STATS, "4", None]["count"] == 1


def test_rows_of_a_map_only_view_are_kept_by_document():
    batch = finish(
        group(LISTED, "1", 2, doc_id="a", value='"y"'), group(LISTED, "1", doc_id="a", value="1"),
        group(LISTED, "1", doc_id="b", value="null"),
    )  # fmt: skip
    assert values(batch) == {
        (LISTED, "1", "a"): ["y", "y", 1],
        (LISTED, "1", "b"): [None],
    }


def test_counters():
    batch = finish(
        group(COUNTERS, "1,1,1", 10), group(COUNTERS, "3,3,1", 2), group(COUNTERS, "1,2,0", 4),
        group(COUNTERS, "0,1,0", 5),
    )  # fmt: skip
    assert batch.documents == 12
    assert batch.rows_streamed == 10 + 6 + 8 + 5
    assert batch.updates == 4
    assert batch.deletes == 4


def test_errors_are_counted_and_some_are_shown():
    groups = [
        group(ERRORS, "1", 2, value=f"message {at}", sample_id=f"doc{at}") for at in range(30)
    ]
    batch = finish(*groups, group(ERRORS, "-1", value="late", sample_id="x"))
    assert batch.map_errors == {1: 60, -1: 1}
    assert len(batch.error_samples) == ERRORS_SHOWN_MAX
    assert batch.error_samples[0] == (1, "doc0", "message 0")


def test_own_reduces_run_on_groups():
    design = {
        "_id": "_design/t",
        "views": {"v": {"map": "d => emit(1)", "reduce": "(k, v, r) => [k && k[0][1], sum(v)]"}},
    }
    batch = pa.RecordBatch.from_pylist(
        [
            {"view": 0, "key": key, "members": [{"doc_id": "a", "value": v} for v in members]}
            for key, members in (("1", ["1", "2"]), ('"x"', ["5"]))
        ]
    )
    (out,) = reduce_own_batches(msgspec.json.encode(design), (), [batch])
    table = pa.Table.from_batches([out])
    assert finish(own=table).rows == [
        ViewRow(0, "1", None, b'["a",3]'),
        ViewRow(0, '"x"', None, b'["a",5]'),
    ]
