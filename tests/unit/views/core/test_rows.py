"""Rows in a tree: order of keys, and what comes back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.views.core.collation import encode_key
from millstream.views.core.rows import (
    ekey_of,
    emits_in,
    in_order_of_values,
    numbers_of,
    pairs_of,
    pairs_of_all,
    row_key,
    row_value,
    split_row_key,
)

# Few distinct bytes, so that ids are often prefixes of one another.
IDS = st.binary(max_size=12) | st.lists(st.sampled_from([b"\0", b"\xff", b"a"])).map(b"".join)
KEYS = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab\0", max_size=3),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
).map(encode_key)
PAIRS = st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=300)), min_size=1)


@given(KEYS, IDS)
def test_a_key_can_be_split_again(ekey: bytes, doc_id: bytes) -> None:
    key = row_key(ekey, doc_id)
    assert split_row_key(key) == (ekey, doc_id)
    assert ekey_of(key) == ekey


@given(st.tuples(KEYS, IDS), st.tuples(KEYS, IDS))
def test_keys_sort_by_encoded_key_and_then_by_id(
    one: tuple[bytes, bytes], other: tuple[bytes, bytes]
) -> None:
    assert (row_key(*one) < row_key(*other)) == (one < other)
    assert (row_key(*one) == row_key(*other)) == (one == other)


def test_an_id_of_full_length_sorts_too() -> None:
    long = b"\0" * 250
    ids = [long[:-1], long, b"\0" * 249 + b"\x01", b"\0" * 249 + b"\x01\0"]
    assert sorted(ids, key=lambda doc_id: row_key(b"\x01", doc_id)) == ids


@given(st.lists(PAIRS))
def test_pairs_come_back_in_order(rows: list[list[tuple[bytes, bytes]]]) -> None:
    values = [row_value(pairs) for pairs in rows]
    assert [pairs_of(value) for value in values] == rows
    assert pairs_of_all(values) == [[text for pair in pairs for text in pair] for pairs in rows]


@given(st.lists(PAIRS))
def test_emits_are_counted_without_taking_rows_apart(
    rows: list[list[tuple[bytes, bytes]]],
) -> None:
    assert emits_in([row_value(pairs) for pairs in rows]) == sum(map(len, rows))


def test_emits_of_documents_with_many() -> None:
    counts = (1, 2, 7, 8, 15, 16, 40_000)
    values = [row_value([(b"1", b"2")] * count) for count in counts]
    assert emits_in(values) == sum(counts)


@given(st.lists(st.integers() | st.floats(allow_nan=False, allow_infinity=False)))
def test_numbers_come_out_of_many_rows_at_once(numbers: list[int | float]) -> None:
    found = numbers_of([row_value([(b"null", json.dumps(one).encode())]) for one in numbers])
    assert found == numbers
    assert list(map(type, found or ())) == list(map(type, numbers))


@pytest.mark.parametrize("text", [b"true", b"null", b'"1"', b"[1]", b"{}", b"[" * 3000, b"1e999"])
def test_values_that_are_not_numbers(text: bytes) -> None:
    assert numbers_of([row_value([(b"1", b"1")]), row_value([(b"1", text)])]) is None


def test_numbers_of_a_document_that_repeats_itself_are_looked_at_one_by_one() -> None:
    assert numbers_of([row_value([(b"1", b"1")]), row_value([(b"1", b"2"), (b"1", b"3")])]) is None


def test_emits_of_equal_keys_stand_in_the_order_of_their_values():
    values = [
        b"-1", b"0.5", b"2", b"false", b"null", b"true", b"{}", b'{"a":1}', b'{"a":[]}',
        b'{"b":0}', b"[]", b"[1]", b"[1,null]", b"[null]", b'""', b'"Z"', b'"a"', '"é"'.encode(),
    ]  # fmt: skip
    pairs = [(b"1", value) for value in values]
    assert in_order_of_values(reversed(pairs)) == pairs
    assert in_order_of_values(pairs) == pairs
    deep = [(b"1", b"[" * 5000 + b"]" * 5000), (b"1", b"1")]
    assert in_order_of_values(deep) == in_order_of_values(deep[::-1])
