"""Parts of an answer on their way to another node, cut anywhere, damaged anyhow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import RemoteProtocolError, UnavailableError
from millstream.views.core.query.executor import find_groups, find_rows
from millstream.views.core.query.parameters import Query
from millstream.views.core.query.partial_answers import (
    PART_MESSAGE_BYTES_MAX,
    Counts,
    End,
    Failure,
    Groups,
    PartCutter,
    Rows,
    group_part,
    part_failure,
    row_part,
)
from support.views.view_rows import Emit, view_of

EMITS = [Emit(name, 0, [number % 2, name], number) for number, name in enumerate("abcdefgh")]


def messages_of(data, size=7):
    cutter = PartCutter()
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    found = [message for chunk in chunks for message in cutter.receive(chunk)]
    assert cutter.held_bytes == 0
    return found


@given(st.integers(1, 200), st.booleans())
def test_rows_arrive_as_they_were_found(size, descending):
    query = Query(keys=([0, "a"], [1, "b"], [0, "a"]), descending=descending)
    expected = [piece for piece in find_rows(view_of(EMITS), query, None).pieces if piece.keys]
    data = b"".join(row_part(find_rows(view_of(EMITS), query, None), "s", "7-x"))
    counts, *rows, end = messages_of(data, size)
    assert counts == Counts("s", 8, 7 if descending else 0, "7-x")
    assert [(row.part, row.keys, row.values) for row in rows] == expected
    assert end == End()


def test_groups_arrive_as_they_were_found():
    query = Query(group_level=1)
    expected = [group for piece in find_groups(view_of(EMITS), query, None) for group in piece]
    counts, groups, end = messages_of(b"".join(group_part([expected], "s")))
    assert (counts, end) == (Counts("s"), End())
    assert isinstance(groups, Groups)
    assert groups.groups == expected
    assert len(expected) == 2


def test_a_failure_gives_its_reason():
    (failure,) = messages_of(part_failure(UnavailableError("too slow", code="snapshot_expired")))
    assert failure == Failure("snapshot_expired", "too slow")


@pytest.mark.parametrize(
    "data",
    [
        (PART_MESSAGE_BYTES_MAX + 1).to_bytes(4, "big"),
        b"\0\0\0\1\xc1",
        b"\0\0\0\2\x91\x09",
        b"\0\0\0\4\x94\x01\x00\x91",
        b"\0\0\0\4\x94\x01\x00\x90",
        b"\0\0\0\5\x94\x01\x00\x90\x90",
        b"\0\0\0\0",
    ],
)
def test_bytes_that_are_not_a_part_are_refused(data):
    with pytest.raises(RemoteProtocolError) as caught:
        PartCutter().receive(data)
    assert caught.value.code == "bad_part"


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(body):
    try:
        found = PartCutter().receive(len(body).to_bytes(4, "big") + body)
    except RemoteProtocolError:
        return
    assert all(isinstance(each, Counts | Rows | Groups | Failure | End) for each in found)
