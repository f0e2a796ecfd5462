"""Several nodes answer as one would."""

from __future__ import annotations

from itertools import count

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import RemoteProtocolError, RoutingError, UsageError
from millstream.model.position import Position
from millstream.views.core.query.executor import Group, find_groups, find_rows
from millstream.views.core.query.merging import GroupMerge, RowMerge, merge_counts, part_query
from millstream.views.core.query.parameters import Query, parse_query
from millstream.views.core.query.partial_answers import (
    Counts,
    End,
    Groups,
    PartCutter,
    Rows,
    group_part,
    row_part,
)
from millstream.views.core.query.wait_for import vector_from_json, vector_to_text
from millstream.views.core.rows import pairs_of, row_value, split_row_key
from support.views.view_rows import Emit, SumAndCount, answer_of, groups_of, view_of


def parts_of(emits, query, masks, leaf_size):
    """What each node sends, message by message, through bytes."""
    asked = part_query(query)
    for node, mask in masks.items():
        view = view_of(emits, leaf_size=leaf_size)
        if query.is_reduced(has_reduce=True):
            sent = group_part(find_groups(view, asked, mask), "s")
        else:
            sent = row_part(find_rows(view, asked, mask), "s")
        yield node, iter(PartCutter().receive(b"".join(sent)))


def merged(emits, query, masks, leaf_size=2):
    """The answer to a query whose partitions lie on several nodes."""
    parts = dict(parts_of(emits, query, masks, leaf_size))
    counts = [next(part) for part in parts.values()]
    assert all(isinstance(each, Counts) for each in counts)
    heads = merge_counts(counts, query)
    is_reduced = query.is_reduced(has_reduce=True)
    merge = GroupMerge(masks, query, SumAndCount()) if is_reduced else RowMerge(masks, query)
    taken = []
    for turn in count():
        assert turn < 1000, "it does not come to an end"
        if merge.is_done:
            break
        for node in merge.waiting():
            message = next(parts[node])
            if isinstance(message, End):
                merge.end(node)
            else:
                merge.receive(node, message)
        if is_reduced:
            taken += merge.take()
        else:
            taken += zip(*merge.take(), strict=True)
    if is_reduced:
        return [
            (msgspec.json.decode(group.key_json), msgspec.json.decode(group.partial))
            for group in taken
        ]
    rows = [
        {
            "id": split_row_key(key)[1].decode(),
            "key": msgspec.json.decode(key_json),
            "value": msgspec.json.decode(value_json),
        }
        for key, value in taken
        for key_json, value_json in pairs_of(value)
    ]
    return {"total_rows": heads.total_rows, "offset": heads.offset, "rows": rows}


EMITS = [Emit(chr(97 + n), n % 5, [n % 3, n // 4], n) for n in range(20)]
MASKS = {"x": 0b00011, "y": 0b00100, "z": 0b11000}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"descending": True},
        {"skip": 3, "limit": 4},
        {"skip": 30},
        {"limit": 0},
        {"startkey": [1], "endkey": [2, 1]},
        {"keys": [[1, 1], [0, 0], [1, 1], 7]},
        {"keys": [[1, 1], [0, 0], [1, 1]], "descending": True, "skip": 1, "limit": 2},
        {"startkey": [2, 1], "endkey": [0, 2], "descending": True, "inclusive_end": False},
    ],
)
def test_rows_of_three_nodes(options):
    query = parse_query({**options, "reduce": False})
    assert merged(EMITS, query, MASKS) == answer_of(EMITS, query)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"group": True},
        {"group_level": 1},
        {"group_level": 1, "descending": True, "skip": 1, "limit": 1},
        {"group": True, "keys": [[1, 1], 7, [0, 0], [1, 1]]},
        {"group": True, "keys": [[n % 3, n] for n in range(5)], "descending": True},
        {"startkey": [8], "endkey": [9]},
    ],
)
def test_groups_of_three_nodes(options):
    query = parse_query(options)
    assert merged(EMITS, query, MASKS) == groups_of(EMITS, query)


def test_rows_that_need_no_order_are_not_counted():
    query = Query(sorted=False, reduce=False)
    assert merged(EMITS, query, MASKS) == {
        "total_rows": None, "offset": None, "rows": answer_of(EMITS, query)["rows"]
    }  # fmt: skip


def test_no_row_is_sent_before_all_nodes_answered():
    merge = RowMerge("ab", Query())
    merge.receive("a", Rows(0, [b"1", b"3"], [row_value([(b"1", b"1")])] * 2))
    assert merge.waiting() == ["b"]
    assert merge.take() == ([], [])
    merge.receive("b", Rows(0, [b"2", b"5"], [row_value([(b"2", b"2")])] * 2))
    assert merge.take()[0] == [b"1", b"2", b"3"]
    assert merge.waiting() == ["a"]
    merge.end("a")
    assert merge.take()[0] == [b"5"]
    assert merge.waiting() == ["b"]
    merge.end("b")
    assert merge.is_done


def test_unexpected_messages_of_a_node_are_refused():
    merge = RowMerge("ab", Query())
    merge.receive("a", Rows(1, [b"1"], [row_value([(b"1", b"1")])]))
    groups = Groups([Group(0, b"", b"", b"null", b"")])
    for message in (Rows(0, [b"2"], [row_value([(b"1", b"1")])]), groups, Counts("s")):
        with pytest.raises(RemoteProtocolError) as caught:
            merge.receive("a", message)
        assert caught.value.code == "bad_part"
    for message in (Rows(0, [b"2"], [b"\x92"]), Groups([])):
        with pytest.raises(RemoteProtocolError):
            GroupMerge("ab", Query(), SumAndCount()).receive("a", message)


def test_parts_of_different_indexes_are_not_merged():
    with pytest.raises(RoutingError) as caught:
        merge_counts([Counts("s", 1, 0), Counts("t", 1, 0)], Query())
    assert (caught.value.code, caught.value.retry) == ("design_differs", "refresh_map")


def test_the_update_seq_names_the_positions_of_all():
    texts = [vector_to_text({p: Position(9, p, p, p)}) for p in (3, 1)]
    heads = merge_counts(
        [Counts("s", 1, 0, text) for text in texts] + [Counts("s", 0, 0)], Query(update_seq=True)
    )
    assert heads.update_seq is not None
    assert sorted(vector_from_json(heads.update_seq)) == [1, 3]
    assert merge_counts([Counts("s", 1, 0, texts[0])], Query()).update_seq is None


keys = st.integers(0, 4) | st.lists(st.integers(0, 2), max_size=2)
emits_strategy = st.lists(
    st.builds(Emit, st.sampled_from("abcdefgh"), st.just(0), keys, st.integers(-9, 9)).map(
        lambda emit: emit._replace(partition=ord(emit.doc_id) % 6)
    ),
    max_size=30,
)
options_strategy = st.fixed_dictionaries(
    {},
    optional={
        "startkey": keys, "endkey": keys, "keys": st.lists(keys, max_size=4),
        "descending": st.booleans(), "skip": st.integers(0, 6), "limit": st.integers(0, 9),
        "group": st.booleans(), "group_level": st.integers(0, 2), "reduce": st.booleans(),
    },
)  # fmt: skip


@given(
    emits_strategy,
    options_strategy,
    st.lists(st.sampled_from("xyz"), min_size=6, max_size=6),
    st.integers(1, 4),
)
def test_random_nodes_answer_as_one(emits, options, owners, leaf_size):
    query = parse_query(options)
    try:
        query.check(has_reduce=True)
    except UsageError:
        return
    masks = {
        node: sum(1 << p for p, owner in enumerate(owners) if owner == node) for node in "xyz"
    }
    expected = (groups_of if query.is_reduced(has_reduce=True) else answer_of)(emits, query)
    assert merged(emits, query, masks, leaf_size) == expected
