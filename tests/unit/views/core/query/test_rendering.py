"""Answers as text: what a JSON reader makes of them is what was found."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.views.core.collation import encode_key
from millstream.views.core.query.executor import find_groups, find_rows
from millstream.views.core.query.parameters import Query
from millstream.views.core.query.rendering import (
    head_text,
    ids_json,
    render_groups,
    render_rows,
    rendered,
    tail_text,
)
from millstream.views.core.rows import row_key
from support.views.view_rows import Emit, SumAndCount, answer_of, groups_of, view_of

EMITS = [Emit("a", 0, 1, 10), Emit("b\"\\\0\n", 0, [1, "x"], 1), Emit("ü", 0, 1, 2),
         Emit("a", 0, 1.0, 3), Emit("c", 0, [1, "y"], 4)]  # fmt: skip


@pytest.mark.parametrize(
    "query", [Query(), Query(descending=True), Query(key=1), Query(skip=1, limit=2), Query(key=9)]
)
def test_rows(query):
    found = find_rows(view_of(EMITS), query, None)
    assert msgspec.json.decode(b"".join(render_rows(found))) == answer_of(EMITS, query)


def test_an_answer_has_a_line_for_each_row():
    found = find_rows(view_of(EMITS[:1] + EMITS[2:3]), Query(), None)
    assert b"".join(render_rows(found, "7-x")).decode() == (
        '{"total_rows":2,"offset":0,"update_seq":"7-x","rows":[\r\n'
        '{"id":"a","key":1,"value":10},\r\n{"id":"ü","key":1,"value":2}\r\n]}\n'
    )


@pytest.mark.parametrize("number", [0, 1])
def test_groups(number):
    query = Query(group_level=1)
    pieces = find_groups(view_of(EMITS), query, None)
    text = b"".join(render_groups(pieces, SumAndCount(), number))
    expected = [{"key": key, "value": value[number]} for key, value in groups_of(EMITS, query)]
    assert msgspec.json.decode(text) == {"rows": expected}


def test_errors_come_after_the_rows():
    text = head_text() + tail_text([{"from": "n1", "reason": "gone"}])
    assert msgspec.json.decode(text) == {"rows": [], "errors": [{"from": "n1", "reason": "gone"}]}


def test_empty_pieces_are_skipped():
    pieces = [b"", b"1", b"", b"", b"2,3", b"", b"4", b""]
    assert b"".join(rendered(b"[", pieces, b"]")) == b"[1,\r\n2,3,\r\n4]"
    assert len(list(rendered(b"[", pieces, b"]"))) == len(pieces) + 2


@given(st.lists(st.text(max_size=5), max_size=5))
def test_document_ids(ids):
    keys = [row_key(encode_key(1), doc_id.encode()) for doc_id in ids]
    assert [msgspec.json.decode(text) for text in ids_json(keys)] == ids
