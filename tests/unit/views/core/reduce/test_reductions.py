"""Partials of a tree with several reduces: encoding, own functions, errors, the limit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import compress, pairwise
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.views.core.collation import encode_key
from millstream.views.core.reduce.reductions import (
    CAUSED_BY_BYTES_MAX,
    REDUCE_VALUES_MAX,
    TIME_ERRORS_MAX,
    ReduceCall,
    ReduceResult,
    ViewReducer,
)
from millstream.views.core.reduce.values import REDUCE_BYTES_MAX
from millstream.views.core.rows import row_key, row_value

REDUCES = ["_approx_count_distinct", "_count", "_first", "_last", "_stats", "_sum", "_top_2",
           "own sum", "own keys"]  # fmt: skip


class Slice(NamedTuple):
    keys: list[bytes]
    values: list[bytes]


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def slice_of(rows: Sequence[tuple[Any, str, Sequence[Any]]]) -> Slice:
    """Rows (key, id, values of its emits), sorted here."""
    found = [
        (
            row_key(encode_key(key), doc_id.encode()),
            row_value(
                [(json.dumps(key).encode(), json.dumps(value).encode()) for value in values]
            ),
        )
        for key, doc_id, values in rows
    ]
    found.sort()
    return Slice([key for key, _ in found], [value for _, value in found])


def cut(rows: Slice, low: int, high: int) -> Slice:
    return Slice(rows.keys[low:high], rows.values[low:high])


class Own:
    """Two functions: the sum of the values, and the list of all [key, id, value]s as a text."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, number: int, calls: Sequence[ReduceCall]) -> list[ReduceResult]:
        self.calls.append((number, len(calls)))
        return [self._one(number, *call) for call in calls]

    def _one(self, number: int, keys: bytes, values: bytes, is_again: bool) -> ReduceResult:
        listed = json.loads(values)
        assert len(listed) <= REDUCE_VALUES_MAX
        assert (keys == b"null") == is_again
        if number == REDUCES.index("own sum"):
            if "bad" in listed:
                return {"error": "reduce_error", "reason": "bad"}
            return json.dumps(sum(listed)).encode()
        names = listed if is_again else [f"{key}{doc_id}" for key, doc_id in json.loads(keys)]
        return json.dumps(",".join(names)).encode()


def reducer(limit: Any = "false", told: list[str] | None = None) -> tuple[ViewReducer, Own]:
    own = Own()
    return ViewReducer(REDUCES, own, limit, ([] if told is None else told).append), own


NUMBERS = st.integers(-(2**66), 2**66) | st.integers(-9, 9)
ROWS = st.dictionaries(
    st.tuples(st.integers(0, 3), st.text("ab\0", max_size=2)),
    st.lists(NUMBERS, min_size=1, max_size=3),
    min_size=1,
    max_size=10,
).map(lambda rows: [(key, doc_id, values) for (key, doc_id), values in rows.items()])


@given(ROWS, st.data())
def test_partials_of_parts_come_to_that_of_the_whole(rows: list[Any], data: st.DataObject) -> None:
    whole = slice_of(rows)
    borders = sorted(data.draw(st.sets(st.integers(1, len(rows)))) | {0, len(rows)})
    tree, _ = reducer()
    parts = tree.reduce([cut(whole, low, high) for low, high in pairwise(borders)])
    while len(parts) > 1:
        size = data.draw(st.integers(2, len(parts)))
        parts = [*tree.rereduce([parts[:size]]), *parts[size:]]
    (partial,) = tree.reduce([whole])
    for number in range(len(REDUCES)):
        assert tree.finalize(number, parts[0]) == tree.finalize(number, partial)
    ordered = sorted(rows, key=lambda row: (row[0], row[1].encode()))
    values = [value for _, _, values in ordered for value in values]
    shown = {name: tree.finalize(at, partial) for at, name in enumerate(REDUCES)}
    assert shown["_count"] == len(values)
    assert shown["_sum"] == shown["own sum"] == sum(values)
    assert shown["_stats"]["sumsqr"] == sum(value * value for value in values)
    assert (shown["_first"], shown["_last"]) == (values[0], values[-1])
    assert shown["_top_2"] == sorted({*values}, reverse=True)[:2]
    assert shown["_approx_count_distinct"] == len({row[0] for row in rows})
    names = [f"{key}{doc_id}" for key, doc_id, values in ordered for _ in values]
    assert shown["own keys"] == ",".join(names)


FLOATS = st.floats(-1e300, 1e300)
VALUES = st.lists(NUMBERS | FLOATS, min_size=1, max_size=6) | st.lists(
    NUMBERS | FLOATS | st.booleans() | st.lists(NUMBERS, max_size=2), min_size=1, max_size=6
)


@given(st.lists(VALUES, min_size=1, max_size=5), st.integers(0, 400))
def test_numbers_taken_at_once_come_to_the_same(leaves: list[list[Any]], digits: int) -> None:
    """Also where an integer is beyond every double and meets a float."""
    leaves[0].append(10**digits)
    slices = [slice_of([(at, "a", [one]) for at, one in enumerate(leaf)]) for leaf in leaves]
    tree = ViewReducer(["_count", "_sum", "_stats"])
    for one in (tree, tree.only(1), tree.only(2)):
        at_once = one.reduce(slices)
        assert at_once == [one.reduce([leaf])[0] for leaf in slices]
        one._of_numbers = []
        assert at_once == one.reduce(slices)


@given(st.lists(VALUES, min_size=1, max_size=5), st.integers(0, 400), st.data())
def test_chosen_rows_of_columns_come_to_the_same(
    leaves: list[list[Any]], digits: int, data: st.DataObject
) -> None:
    leaves[0].append(10**digits)
    slices = [slice_of([(at, "a", [one]) for at, one in enumerate(leaf)]) for leaf in leaves]
    tree = ViewReducer(["_count", "_sum", "_stats"])
    for number in range(3):
        one = tree.only(number)
        assert one.is_columnar
        made = one.columns([leaf.values for leaf in slices])
        there = [at for at, column in enumerate(made) if column is not None]
        for at, leaf in enumerate(leaves):
            is_plain = {*map(type, leaf)} <= {int, float}
            assert (at in there) == (is_plain or number == 0)
        rows = Slice(
            [key for at in there for key in slices[at].keys],
            [value for at in there for value in slices[at].values],
        )
        size = len(rows.keys)
        flags = bytes(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
        if not any(flags):
            continue
        whole = Slice(list(compress(rows.keys, flags)), list(compress(rows.values, flags)))
        found = one.reduce_columns([made[at] for at in there], flags)
        shown = one.finalize(number, one.reduce([whole])[0])
        if found is None:  # a float beside an integer beyond every double
            assert shown["error"]
        else:
            assert one.finalize(number, found) == shown


def test_rows_that_repeat_themselves_have_no_column() -> None:
    tree = ViewReducer(["_count", "_sum", "_first"])
    rows = [slice_of([(1, "a", [1]), (2, "a", [1, 2])]).values, slice_of([(1, "a", [1])]).values]
    assert tree.only(0).columns(rows) == [None, bytes(1)]
    first, second = tree.only(1).columns(rows)
    assert first is None
    assert list(second) == [1]
    assert not tree.is_columnar
    assert not tree.only(2).is_columnar
    assert not reducer()[0].only(REDUCES.index("own sum")).is_columnar


def test_own_functions_are_called_once_for_all_leaves_and_groups() -> None:
    tree, own = reducer()
    partials = tree.reduce([slice_of([(key, "a", [key])]) for key in range(4)])
    assert own.calls == [(7, 4), (8, 4)]
    own.calls.clear()
    groups = tree.rereduce([partials[:2], partials[2:], partials[:1]])
    assert own.calls == [(7, 2), (8, 2)]
    assert [tree.finalize(7, group) for group in groups] == [1, 5, 0]


def test_a_query_works_on_one_reduce_alone() -> None:
    tree, own = reducer()
    partials = tree.reduce([slice_of([(key, "a", [key])]) for key in range(4)])
    own.calls.clear()
    alone = tree.only(5)
    rows = alone.reduce([slice_of([(9, "a", [9])])])
    assert alone.finalize(5, alone.rereduce([partials + rows])[0]) == 15
    assert tree.finalize(7, tree.merge(7, partials)) == 6
    assert own.calls == [(7, 1)]


def test_a_query_calls_an_own_function_again_that_ran_out_of_time() -> None:
    late = {"error": "reduce_time_error", "reason": "the time was over"}
    answers: list[ReduceResult] = [late, b"7", b'"reduce_time_error"', late, late]
    tree = ViewReducer(["_count", "own"], lambda _, calls: [answers.pop(0) for _ in calls])
    rows = slice_of([(1, "a", [1])])
    was_late, good, named_so = tree.reduce([rows]) + tree.reduce([rows]) + tree.reduce([rows])
    asked = tree.only(1)
    assert [asked.is_lasting(each) for each in (was_late, good, named_so)] == [False, True, True]
    assert asked.is_to_be_tried(was_late)
    assert not asked.is_to_be_tried(good)
    assert tree.only(0).is_lasting(was_late), "another reduce of the tree"
    assert asked.finalize(1, was_late) == late
    for _ in range(TIME_ERRORS_MAX):
        assert asked.is_to_be_tried(was_late)
        asked.reduce([rows])
    assert not asked.is_to_be_tried(was_late), "it seems to be the function"
    assert not asked.is_lasting(was_late)
    assert tree.only(1).is_to_be_tried(was_late), "the next query tries again"


def test_a_row_with_very_many_emits_is_reduced_in_pieces() -> None:
    tree, own = reducer()
    many = 2 * REDUCE_VALUES_MAX + 1
    (partial,) = tree.reduce([slice_of([(1, "a", [1] * many), (2, "b", [5])])])
    assert tree.finalize(REDUCES.index("own sum"), partial) == many + 5
    assert own.calls[0] == (7, 3)


def test_an_error_is_kept_by_its_own_groups_and_reduces_only() -> None:
    tree, _ = reducer()
    leaves = [slice_of([(1, "a", [1])]), slice_of([(2, "b", ["bad"])]), slice_of([(3, "c", [3])])]
    good, bad, other = tree.reduce(leaves)
    first, second = tree.rereduce([[good, bad, other], [good, other]])
    shown = {name: tree.finalize(at, first) for at, name in enumerate(REDUCES)}
    assert shown["_count"] == 3
    assert shown["_top_2"] == ["bad", 3]
    assert shown["_sum"]["error"] == shown["_stats"]["error"] == "builtin_reduce_error"
    assert shown["_sum"]["caused_by"] == "bad"
    assert shown["own sum"] == {"error": "reduce_error", "reason": "bad"}
    assert tree.finalize(5, second) == tree.finalize(7, second) == 4
    (again,) = tree.rereduce([[first, second]])
    assert tree.finalize(5, again) == shown["_sum"]


def test_an_illegal_value_is_shown_only_where_it_is_short() -> None:
    tree = ViewReducer(["_sum"])
    leaves = [slice_of([(1, "a", ["x" * size])]) for size in (10, CAUSED_BY_BYTES_MAX)]
    shown = [tree.finalize(0, partial) for partial in tree.reduce(leaves)]
    assert [value["caused_by"] for value in shown] == ["x" * 10, None]


def test_the_limit_on_results() -> None:
    long = "y" * REDUCE_BYTES_MAX
    rows = slice_of([(long, "a", [1])])
    at = REDUCES.index("own keys")
    told: list[str] = []
    strict, _ = reducer("true", told)
    assert strict.finalize(at, strict.reduce([rows])[0])["error"] == "reduce_overflow_error"
    loose, _ = reducer("false", told)
    assert loose.finalize(at, loose.reduce([rows])[0]) == long + "a"
    assert told == []
    noted, _ = reducer("log", told)
    assert noted.only(at).finalize(at, noted.reduce([rows])[0]) == long + "a"
    assert ["must shrink" in reason for reason in told] == [True]


def test_the_limit_holds_for_sums_that_grow() -> None:
    leaves = [slice_of([(n, "a", [{f"{n:0700}": 1}])]) for n in range(20)]
    tree = ViewReducer(["_sum"])
    partials = tree.reduce(leaves)
    assert tree.finalize(0, tree.rereduce([partials])[0])["error"] == "reduce_overflow_error"
    assert len(tree.finalize(0, tree.rereduce([partials[:7]])[0])) == 7
    same = tree.rereduce([partials[:1] * 20])[0]
    assert tree.finalize(0, same) == {f"{0:0700}": 20}


@pytest.mark.parametrize(
    "reduce", ["_sum", "_stats", "_first", "_top_1", "_approx_count_distinct"]
)
@pytest.mark.parametrize("depth", [150, 300, 700, 5000])
def test_values_of_any_depth_do_not_raise(reduce: str, depth: int) -> None:
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    rows = Slice([row_key(b"\1", b"a")], [row_value([(b"null", nested)])])
    tree = ViewReducer([reduce, "_count"])
    (partial,) = tree.rereduce([tree.reduce([rows, rows])])
    assert tree.finalize(1, partial) == 2
    assert json.dumps(tree.finalize(0, partial))


def test_a_tree_without_reduces_has_partials_of_nothing() -> None:
    tree = ViewReducer([])
    partials = tree.reduce([slice_of([(1, "a", [1])])] * 2)
    assert tree.rereduce([partials]) == [msgspec.msgpack.encode([])]
