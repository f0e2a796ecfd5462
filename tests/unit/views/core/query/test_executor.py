"""Queries over a list of rows instead of a tree, against the slow answers."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import RoutingError, UsageError
from millstream.views.core.collation import encode_raw_key
from millstream.views.core.query.executor import (
    GROUPS_PER_PIECE_MAX,
    View,
    find_groups,
    find_rows,
    wanted_partitions,
)
from millstream.views.core.query.parameters import Query, parse_query
from millstream.views.core.rows import pairs_of, row_key, row_value, split_row_key
from support.views.view_rows import (
    TREE_REDUCER,
    Emit,
    ListReader,
    SumAndCount,
    answer_of,
    groups_of,
    tree_view_of,
    view_of,
)

EMITS = [
    Emit(doc_id, number % 3, key, number)
    for number, (doc_id, key) in enumerate(
        [("a", 1), ("b", 1), ("c", 2), ("c", 2.0), ("d", [1, "x"]), ("e", [1, "x", 3]),
         ("f", [1]), ("g", []), ("h", "x"), ("i", {"a": 1}), ("j", None), ("k", [1, "y"]),
         ("a", [2]), ("b", 2), ("l\0", 1), ("l", 1), ("ü\"", 1)]
    )
]  # fmt: skip


def rows_found(view, query, wanted=None):
    """The answer as the caller would show it."""
    found = find_rows(view, query, wanted)
    rows = [
        {
            "id": split_row_key(key)[1].decode(),
            "key": msgspec.json.decode(key_json),
            "value": msgspec.json.decode(value_json),
        }
        for piece in found.pieces
        for key, value in zip(piece.keys, piece.values, strict=True)
        for key_json, value_json in pairs_of(value)
    ]
    return {"total_rows": found.total_rows, "offset": found.offset, "rows": rows}


def groups_found(view, query, wanted=None):
    return [
        (msgspec.json.decode(group.key_json), msgspec.json.decode(group.partial))
        for piece in find_groups(view, query, wanted)
        for group in piece
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"descending": True},
        {"key": 1},
        {"key": 2},
        {"key": 2, "descending": True, "skip": 1},
        {"key": 1, "inclusive_end": False},
        {"startkey": 2, "endkey": [1]},
        {"startkey": 2, "endkey": [1], "inclusive_end": False},
        {"startkey": [1, "x", 3], "endkey": 2, "descending": True},
        {"startkey": [1, "x", 3], "endkey": 2, "descending": True, "inclusive_end": False},
        {"startkey": 1, "startkey_docid": "b", "endkey": 2, "endkey_docid": "c"},
        {"startkey": 1, "startkey_docid": "l", "endkey": 2, "endkey_docid": "b"},
        {"startkey": 1, "startkey_docid": "b", "endkey": 2, "endkey_docid": "c",
         "inclusive_end": False},
        {"startkey": 2, "startkey_docid": "c", "endkey": 1, "endkey_docid": "b",
         "descending": True},
        {"startkey": 2, "startkey_docid": "c", "endkey": 1, "endkey_docid": "b",
         "descending": True, "inclusive_end": False},
        {"startkey_docid": "b", "endkey_docid": "b"},
        {"keys": ["x", 1, 7, "x", 2]},
        {"keys": [2, 1], "descending": True, "skip": 2, "limit": 3},
        {"keys": []},
        {"startkey": "y", "endkey": "z"},
        {"skip": 5, "limit": 2},
        {"skip": 100},
        {"limit": 0},
        {"startkey": [], "endkey": [1, {}]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("wanted", [None, 0b101, 0b010, 0])
def test_rows(options, wanted):
    query = parse_query({**options, "reduce": False})
    query.check(has_reduce=False)
    assert rows_found(view_of(EMITS), query, wanted) == answer_of(EMITS, query, wanted)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"group": True},
        {"group_level": 1},
        {"group_level": 2},
        {"group_level": 2, "descending": True, "skip": 1, "limit": 3},
        {"group_level": 0, "startkey": [1], "endkey": [1, {}]},
        {"group": True, "keys": ["x", 2, 7, 2]},
        {"group_level": 1, "startkey": [1, "x"], "endkey": [2]},
        {"startkey": "y", "endkey": "z"},
        {"startkey": "y", "endkey": "z", "group": True},
        {"group": True, "startkey": 1, "startkey_docid": "l", "endkey": 2, "endkey_docid": "b"},
        {"limit": 0},
    ],
)
@pytest.mark.parametrize("wanted", [None, 0b101, 0])
def test_groups(options, wanted):
    query = parse_query(options)
    query.check(has_reduce=True)
    assert groups_found(view_of(EMITS), query, wanted) == groups_of(EMITS, query, wanted)


def test_an_empty_range_has_no_group_at_all():
    query = Query(startkey="y", endkey="z")
    assert list(find_groups(view_of(EMITS), query, None)) == [[]]


def test_a_group_shows_the_full_text_of_its_first_key_if_possible():
    emits = [Emit("b", 0, [1.0, 2], 1), Emit("a", 0, [1, 2], 1), Emit("c", 0, [1.0, 3], 1)]
    view = view_of(emits)

    def texts(**options):
        pieces = find_groups(view, parse_query(options), None)
        return [group.key_json for piece in pieces for group in piece]

    assert texts(group=True) == [b"[1,2]", b"[1.0,3]"]
    assert texts(group_level=1) == [b"[1]"]
    assert texts() == [b"null"]


def test_groups_of_a_view_with_raw_collation():
    keys = [["a", {"b": "\0"}, 1], ["a", {"b": "\0"}, 2], ["B", [2**60], 3], "a", 7, [True]]
    rows = sorted(
        (row_key(encode_raw_key(key), b"%d" % n), 0,
         row_value([(msgspec.json.encode(key), b"1")])) for n, key in enumerate(keys)
    )  # fmt: skip
    reader = ListReader(rows)
    view = View(reader, encode_raw_key, lambda partial: msgspec.json.decode(partial)[1])
    assert groups_found(view, Query(group_level=2)) == [
        (7, [1, 1]), ([True], [1, 1]), (["B", [2**60]], [1, 1]), (["a", {"b": "\0"}], [2, 2]),
        ("a", [1, 1]),
    ]  # fmt: skip
    assert groups_found(view, Query(group=True, key=["B", [2**60], 3])) == [
        (["B", [2**60], 3], [1, 1])
    ]


def test_nothing_is_read_beyond_the_limit():
    view = view_of([Emit(f"{n:04}", 0, n, n) for n in range(100)])
    query = Query(limit=5)
    assert len(rows_found(view, query)["rows"]) == 5
    assert view.reader.leaves_read == 2
    pieces = find_rows(view, Query(), None).pieces
    assert view.reader.leaves_read == 2
    next(pieces)
    assert view.reader.leaves_read == 3


def test_groups_come_in_pieces():
    view = view_of([Emit(f"{n:04}", 0, n, n) for n in range(GROUPS_PER_PIECE_MAX + 1)])
    pieces = list(find_groups(view, Query(group=True), None))
    assert [len(piece) for piece in pieces] == [GROUPS_PER_PIECE_MAX, 1]


def test_keys_without_rows_are_passed_over_one_at_a_time():
    view = view_of([Emit("a", 0, 5, 1)])
    found = find_rows(view, Query(keys=tuple(range(1000, 1050))), None)
    assert [piece.keys for piece in found.pieces] == [()] * 50
    found = find_rows(view, Query(keys=(5, *range(1000, 1050)), skip=1), None)
    assert [piece.keys for piece in found.pieces] == [()] * 51
    query = Query(group=True, keys=tuple(range(1000, 1050)))
    assert list(find_groups(view, query, None)) == [[]] * 50


def test_only_active_partitions_are_answered():
    assert wanted_partitions(active=0b0110) == 0b0110
    assert wanted_partitions(active=0b0110, asked=0b0010) == 0b0010
    assert wanted_partitions(active=0b0110, lacking=0b0100) == 0b0010
    with pytest.raises(RoutingError) as caught:
        wanted_partitions(active=0b0110, asked=0b1011)
    assert (caught.value.code, caught.value.retry) == ("not_my_partition", "refresh_map")
    assert "partition 0 (2 of those asked for)" in str(caught.value)


keys = st.integers(0, 4) | st.lists(st.integers(0, 2) | st.just("a"), max_size=3) | st.just(2.0)
emits_strategy = st.lists(
    st.builds(
        Emit, st.sampled_from("abcdef"), st.just(0), keys, st.integers(-9, 9)
    ).map(lambda emit: emit._replace(partition=ord(emit.doc_id) % 4)),
    max_size=25,
)  # fmt: skip
options_strategy = st.fixed_dictionaries(
    {},
    optional={
        "startkey": keys, "endkey": keys, "key": keys, "keys": st.lists(keys, max_size=4),
        "startkey_docid": st.sampled_from("abcd"), "endkey_docid": st.sampled_from("cdef"),
        "inclusive_end": st.booleans(), "descending": st.booleans(),
        "skip": st.integers(0, 4), "limit": st.integers(0, 6),
        "group": st.booleans(), "group_level": st.integers(0, 3), "reduce": st.booleans(),
    },
)  # fmt: skip


@given(emits_strategy, options_strategy, st.none() | st.integers(0, 15), st.integers(1, 5))
def test_random_queries_against_the_slow_answers(emits, options, wanted, leaf_size):
    query = parse_query(options)
    try:
        query.check(has_reduce=True)
    except UsageError:
        return
    view = view_of(emits, leaf_size=leaf_size)
    if query.is_reduced(has_reduce=True):
        assert groups_found(view, query, wanted) == groups_of(emits, query, wanted)
    else:
        assert rows_found(view, query, wanted) == answer_of(emits, query, wanted)


@given(emits_strategy, options_strategy, st.none() | st.integers(0, 15))
def test_random_queries_over_a_tree(emits, options, wanted):
    query = parse_query(options)
    try:
        query.check(has_reduce=True)
    except UsageError:
        return
    view = tree_view_of(emits)
    if query.is_reduced(has_reduce=True):
        found = [
            (
                msgspec.json.decode(group.key_json),
                [TREE_REDUCER.finalize(number, group.partial) for number in (1, 0)],
            )
            for piece in find_groups(view, query, wanted)
            for group in piece
        ]
        assert found == groups_of(emits, query, wanted)
    else:
        assert rows_found(view, query, wanted) == answer_of(emits, query, wanted)


def test_only_what_is_needed_is_read_of_a_tree():
    emits = [Emit(f"{n:06}", n % 8, n, 1) for n in range(2000)]
    view = tree_view_of(emits)
    read = []
    nodes = view.reader._nodes
    nodes._cache = None
    source, nodes._source = nodes._source, nodes

    def counted(number):
        read.append(number)
        return source.read(number)

    nodes._source = type("Source", (), {"read": staticmethod(counted)})()

    def reads(query):
        read.clear()
        if query.is_reduced(has_reduce=True):
            list(find_groups(view, query, None))
        else:
            list(find_rows(view, query, None).pieces)
        return len(read)

    assert reads(Query()) == 0
    assert reads(Query(startkey=10, endkey=1900)) <= 8
    assert reads(Query(reduce=False, skip=1500, limit=1)) <= 4
    assert reads(Query(reduce=False, startkey=1000, skip=500, limit=1, descending=True)) <= 16
    assert reads(Query(reduce=False, key=77)) <= 8


@given(emits_strategy, st.integers(0, 3) | st.none())
def test_partial_results_of_groups_add_up(emits, level):
    view = view_of(emits)
    groups = [
        group
        for piece in find_groups(view, Query(group=level is None, group_level=level), None)
        for group in piece
    ]
    assert all(a.name < b.name for a, b in pairwise(groups))
    if groups:
        whole = SumAndCount().rereduce([[group.partial for group in groups]])[0]
        assert msgspec.json.decode(whole) == [sum(emit.value for emit in emits), len(emits)]
