import json
from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.tail import line_of_change, line_of_rollback
from millstream.model.position import Position
from millstream.upr.aio.client import RolledBack
from millstream.wire.frames import deletion, expiration, mutation

MEMBERS = [
    "partition", "uuid", "branch", "seqno", "op", "key", "cas", "rev", "expiry", "flags",
    "datatype",
]  # fmt: skip


def line_of_value(value: bytes) -> Any:
    line = line_of_change(mutation(3, b"k", value, 9, 2, 7, 0xFFFFFFFF, 5, 1), 0xAB, 6)
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


def test_numbers_stay_as_written() -> None:
    line = line_of_change(
        mutation(3, b"k", b"[1.0, 1e999, 123456789012345678901]", 9, 2, 7, 0, 0, 1), 1, 1
    )
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
        found = json.loads(line_of_change(frame, 0xAB, 6))
        assert list(found) == [*MEMBERS, "value"]
        assert (found["op"], found["key"], found["expiry"]) == (op, "\\xff", 1234)
        assert found["value"] is None


def test_rollback() -> None:
    event = RolledBack(3, 40, 0xAB, 6, Position())
    assert line_of_rollback(event) == (
        b'{"event":"rollback","partition":3,"seqno":40,"uuid":"0000000000ab","branch":6}\n'
    )


def test_barrier_is_refused_clearly(call: Any) -> None:
    code, out, err = call("tail", "b", "--barrier")
    assert (code, out) == (2, b"")
    assert "--barrier" in err


def test_unreachable_node(call: Any) -> None:
    code, _, err = call("tail", "b", "--connect", "127.0.0.1:1")
    assert code == 1
    assert "127.0.0.1:1" in err
