import json
from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.upr.core.bookkeeper import Apply, Document, Forget, Restore, Rewind, Sweep
from millstream.upr.core.lines import (
    line_of_barrier,
    line_of_change,
    line_of_rollback,
    lines_of,
)
from millstream.upr.core.messages import Reached
from millstream.wire.frames import change_of, deletion, expiration, mutation

MEMBERS = [
    "partition", "uuid", "branch", "seqno", "op", "key", "cas", "rev", "expiry", "flags",
    "datatype",
]  # fmt: skip


def line_of_value(value: bytes) -> Any:
    change = change_of(mutation(3, b"k", value, 9, 2, 7, 0xFFFFFFFF, 5, 1))
    line = line_of_change(change, 0xAB, 6)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    return json.loads(line)


def test_members_in_order() -> None:
    found = line_of_value(b'{"a":\n 1}')
    assert list(found) == [*MEMBERS, "value"]
    assert found == {
        "partition": 3, "uuid": "0000000000ab", "branch": 6, "seqno": 9, "op": "put", "key": "k",
        "cas": 7, "rev": 2, "expiry": 5, "flags": 0xFFFFFFFF, "datatype": 1, "value": {"a": 1},
    }  # fmt: skip


def test_a_barrier_names_places_in_partition_order() -> None:
    line = line_of_barrier({10: Reached(0xAB, 5), 2: Reached(0xC, 0)})
    assert line == (
        b'{"event":"barrier","reached":{"2":["00000000000c",0],"10":["0000000000ab",5]}}\n'
    )


def test_numbers_stay_as_written() -> None:
    frame = mutation(3, b"k", b"[1.0, 1e999, 123456789012345678901]", 9, 2, 7, 0, 0, 1)
    line = line_of_change(change_of(frame), 1, 1)
    assert b'"value":[1.0,1e999,123456789012345678901]' in line


@given(value=st.binary(max_size=60))
def test_any_value_makes_one_line(value: bytes) -> None:
    found = line_of_value(value)
    assert ("value" in found) != ("value_base64" in found)
    if "value_base64" in found:
        assert b64decode(found["value_base64"]) == value


@pytest.mark.parametrize("value", [b'"\xff"', b"", b"{", b"[" * 100_000, b"NaN"])
def test_what_is_no_json_is_base64(value: bytes) -> None:
    assert b64decode(line_of_value(value)["value_base64"]) == value


def test_deletions() -> None:
    for frame, op in (
        (deletion(3, b"\xff", 9, 2, 7, 1234), "delete"),
        (expiration(3, b"\xff", 9, 2, 7, 1234), "expire"),
    ):
        found = json.loads(line_of_change(change_of(frame), 0xAB, 6))
        assert list(found) == [*MEMBERS, "value"]
        assert (found["op"], found["key"], found["expiry"]) == (op, "\\xff", 1234)
        assert found["value"] is None


def test_rollback() -> None:
    assert line_of_rollback(3, 40, 0xAB, 6) == (
        b'{"event":"rollback","partition":3,"seqno":40,"uuid":"0000000000ab","branch":6}\n'
    )


def test_effects_as_lines() -> None:
    change = change_of(mutation(3, b"k", b"1", 9, 2, 7, 0, 5, 1))
    applied = json.loads(lines_of(Apply(3, 2, 0xAB, 6, [change]))[0])
    assert list(applied) == [*MEMBERS, "value", "load"]
    assert applied["load"] == 2
    documents = [Document(b"a", b"[ 1]", 4, 8, 6, 1), Document(b"b", None, 9)]
    assert lines_of(Restore(3, 2, documents)) == [
        b'{"event":"restore","partition":3,"seqno":4,"key":"a","cas":8,"flags":6,"datatype":1,'
        b'"value":[1],"load":2}\n',
        b'{"event":"restore","partition":3,"seqno":9,"key":"b","cas":0,"flags":0,"datatype":0,'
        b'"value":null,"load":2}\n',
    ]
    assert lines_of(Sweep(3, 2)) == [b'{"event":"sweep","partition":3,"load":2}\n']
    assert lines_of(Rewind(3, 40, 0xAB, 6)) == [line_of_rollback(3, 40, 0xAB, 6)]
    assert lines_of(Forget(3, [])) == []
