"""Reduces in a tree that is changed: ranges, groups and sets of partitions, against all rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.trees.core.reader import TreeReader
from millstream.trees.core.writer import TreeWriter
from millstream.views.core.collation import encode_key
from millstream.views.core.reduce.reductions import ReduceCall, ViewReducer
from millstream.views.core.rows import ekey_of, row_key, row_value
from support.budget import budget
from support.views.reduce_model import model
from support.views.tree_model import Store, small_nodes

OWN = "function (keys, values) { return sum(values); }"
REDUCES = ["_approx_count_distinct", "_bottom_3", "_count", "_first", "_last", "_stats", "_sum",
           "_top_2", OWN]  # fmt: skip
PARTITIONS = 4

# (first element, second element, id), values of its emits; None: the row goes.
CHANGES = st.dictionaries(
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.text("abc", min_size=1, max_size=2)),
    st.none() | st.lists(st.integers(-5, 5), min_size=1, max_size=2),
    max_size=25,
)
Row = tuple[int, int, str]


def add_up(number: int, calls: Sequence[ReduceCall]) -> list[bytes]:
    return [json.dumps(sum(json.loads(values))).encode() for _, values, _ in calls]


def key_of(row: Row) -> bytes:
    return row_key(encode_key(list(row[:2])), row[2].encode())


def partition_of(row: Row) -> int:
    return sum(row[2].encode()) % PARTITIONS


def shown(reducer: ViewReducer, number: int, partial: bytes | None) -> Any:
    return None if partial is None else reducer.finalize(number, partial)


def expected(name: str, rows: list[tuple[Row, list[int]]]) -> Any:
    emits = [(ekey_of(key_of(row)), value) for row, values in rows for value in values]
    return model("_sum" if name == OWN else name, emits) if emits else None


def ascending(rows: dict[Row, list[int]], wanted: int) -> list[tuple[Row, list[int]]]:
    found = [(row, values) for row, values in rows.items() if wanted >> partition_of(row) & 1]
    return sorted(found, key=lambda each: key_of(each[0]))


@settings(max_examples=budget(40))
@given(
    st.lists(CHANGES, min_size=1, max_size=5),
    st.integers(0, 2**PARTITIONS - 1),
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 3), st.integers(0, 4)),
)
def test_every_range_and_group_of_a_changed_tree_is_that_of_its_rows(
    batches: list[dict[Row, list[int] | None]], wanted: int, borders: tuple[int, int, int, int]
) -> None:
    reducer, store, root, number = ViewReducer(REDUCES, add_up), Store(), None, 1
    rows: dict[Row, list[int]] = {}
    low, high = encode_key(list(borders[:2])), encode_key(list(borders[2:]))
    with small_nodes():
        for changes in batches:
            operations = [
                (key_of(row), partition_of(row), values and row_value(
                    [(b"%d" % row[1], b"%d" % value) for value in values]
                ))
                for row, values in changes.items()
            ]  # fmt: skip
            writer = TreeWriter(store, number)
            root = writer.apply(root, sorted(operations), reducer)
            store.update(writer.written)
            number = writer.next_number
            rows.update({row: values for row, values in changes.items() if values is not None})
            for row, values in changes.items():
                if values is None:
                    rows.pop(row, None)
    everything = ascending(rows, 2**PARTITIONS - 1)
    some = ascending(rows, wanted)
    ranged = [each for each in some if low <= ekey_of(key_of(each[0])) < high]
    for at, name in enumerate(REDUCES):
        alone = reducer.only(at)
        reader = TreeReader(store, root, reducer=alone)
        assert shown(alone, at, reader.reduce()) == expected(name, everything)
        assert shown(alone, at, reader.reduce(wanted=wanted)) == expected(name, some)
        partial = reader.reduce((low, True), (high, False), wanted)
        assert shown(alone, at, partial) == expected(name, ranged)
        groups = reader.groups(lambda key: ekey_of(key)[:10], wanted=wanted)
        assert [shown(alone, at, partial) for _, _, partial in groups] == [
            expected(name, list(group)) for _, group in groupby(some, key=lambda each: each[0][0])
        ]
