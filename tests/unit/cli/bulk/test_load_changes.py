"""What rows of a load do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.bulk.load_changes import is_mark, is_unchanged, write_of_row
from millstream.client.extensions import Versioned
from millstream.client.writes import Write
from millstream.errors import UsageError
from millstream.upr.core.lines import line_of_barrier, line_of_change, line_of_rollback
from millstream.wire.frames import change_of, deletion, expiration, mutation

NOW_S = 2_000_000_000


def row_write(text: bytes, field: str = "id") -> Write:
    fields: dict[str, Any] = msgspec.json.decode(text)
    assert not is_mark(fields)
    return write_of_row(fields, msgspec.Raw(text), field, NOW_S)


@given(
    st.binary(min_size=1, max_size=250),
    st.binary(max_size=50) | st.just(b'{"a":1.0}'),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, NOW_S + 9]),
)
def test_a_line_of_tail_writes_what_was_written(
    key: bytes, value: bytes, flags: int, expiry: int
) -> None:
    change = change_of(mutation(3, key, value, 9, 1, 1234, flags, expiry, 1))
    write = row_write(line_of_change(change, 0xAB, 7).rstrip())
    assert (write.key, write.flags, write.expiry, write.cas) == (key, flags, expiry, 0)
    assert write.value is not None
    assert write.value.split() == value.split() or b" " not in write.value


@pytest.mark.parametrize(
    "frame",
    [
        deletion(0, b"k", 9, 2, 5, 77),
        expiration(0, b"k", 9, 2, 5, 77),
        mutation(0, b"k", b"{}", 9, 2, 5, 0, NOW_S, 1),
    ],
)
def test_what_is_gone_by_a_line_of_tail_is_deleted(frame: bytes) -> None:
    line = line_of_change(change_of(frame), 0xAB, 7).rstrip()
    assert row_write(line) == Write(b"k", None)


def test_a_document_that_looks_like_a_change_in_part_is_a_document() -> None:
    line = msgspec.json.decode(line_of_change(change_of(deletion(0, b"k", 9, 2, 5, 77)), 1, 7))
    for text in (msgspec.json.encode({**line, "id": "d"}), b'{"op":"delete","key":"k","id":"d"}'):
        write = row_write(text)
        assert (write.key, write.value) == (b"d", text)


@pytest.mark.parametrize(
    "changed", [{"op": "other"}, {"key": ""}, {"key": r"\xzz"}, {"flags": "1"}, {"key": "k" * 251}]
)
def test_a_change_with_other_values_is_the_users_error(changed: dict[str, Any]) -> None:
    line = msgspec.json.decode(line_of_change(change_of(deletion(0, b"k", 9, 2, 5, 77)), 1, 7))
    with pytest.raises(UsageError):
        row_write(msgspec.json.encode({**line, **changed}))


def test_a_barrier_changes_nothing_and_a_rollback_cannot_be_loaded() -> None:
    assert is_mark(msgspec.json.decode(line_of_barrier({})))
    assert not is_mark({"event": "concert", "id": "a"})
    assert not is_mark({"event": "barrier", "id": "a"})
    with pytest.raises(UsageError) as failed:
        is_mark(msgspec.json.decode(line_of_rollback(3, 4, 5, 6)))
    assert failed.value.code == "rollback"


@pytest.mark.parametrize(
    ("fields", "key"), [({"id": "a"}, b"a"), ({"id": 7}, b"7"), ({"id": "é"}, "é".encode())]
)
def test_the_key_of_a_row_is_one_of_its_fields(fields: dict[str, Any], key: bytes) -> None:
    assert write_of_row(fields, fields, "id", NOW_S).key == key


@pytest.mark.parametrize("key", [None, "", True, 1.5, "x" * 251, []])
def test_other_keys_are_the_users_error(key: Any) -> None:
    with pytest.raises(UsageError, match="--key"):
        write_of_row({"id": key}, {}, "id", NOW_S)


def test_unchanged_is_what_has_the_same_value_kind_and_expiry() -> None:
    def found(value: bytes, flags: int = 1, expiry: int = 0, datatype: int = 0) -> Versioned:
        return Versioned(value, 9, flags, 0, 0, 0, 3, expiry, False, datatype)

    write = Write(b"k", b"{}", 1, 0)
    assert is_unchanged(write, found(b"{}"))
    assert not is_unchanged(write, found(b"{ }"))
    assert not is_unchanged(write, found(b"{}", flags=2))
    assert not is_unchanged(write, found(b"{}", expiry=5))
    assert is_unchanged(write._replace(datatype=1), found(b"{}", flags=2, datatype=1))
    gone = found(b"")._replace(is_deleted=True)
    assert not is_unchanged(write, gone)
    assert not is_unchanged(write, None)
    for there, expected in ((gone, True), (None, True), (found(b"{}"), False)):
        assert is_unchanged(Write(b"k", None), there) is expected
