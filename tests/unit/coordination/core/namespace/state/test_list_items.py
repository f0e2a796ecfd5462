"""Items in chunks are a list, whatever is spliced; and the chunks stay few."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.namespace.state import list_items
from millstream.coordination.core.namespace.state.list_items import ListItems, Lists
from millstream.coordination.core.namespace.tables import Tables
from millstream.errors import CorruptionError
from millstream.vsr.core.snapshots import Pieces

splices = st.lists(
    st.tuples(
        st.integers(0, 40), st.integers(0, 40), st.lists(st.binary(max_size=9), max_size=12)
    ),
    max_size=25,
)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_items, "CHUNK_ITEMS_MAX", 4)
    monkeypatch.setattr(list_items, "CHUNK_BYTES_MAX", 16)


def check(found: ListItems, expected: list[bytes]) -> None:
    assert list(found.items(0, found.count)) == expected
    assert (found.count, found.size) == (len(expected), sum(map(len, expected)))
    chunks = [items for _, items in found.chunks()]
    sizes = [(len(items), sum(map(len, items))) for items in chunks]
    assert all(1 <= count <= 4 and (count == 1 or size <= 16) for count, size in sizes)
    pairs = pairwise(sizes)
    assert all(one[0] + other[0] > 2 or one[1] + other[1] > 8 for one, other in pairs)


@given(splices)
def test_it_is_a_list(changes: list[tuple[int, int, list[bytes]]]) -> None:
    tables = Tables()
    lists, expected = Lists(tables), list[bytes]()
    lists.of(6).splice(0, 0, [b"another"])
    for one, other, values in changes:
        begin, end = sorted((one % (len(expected) + 1), other % (len(expected) + 1)))
        lists.of(7).splice(begin, end, values)
        expected[begin:end] = values
        check(lists.of(7), expected)
    again = Tables()
    restored = Lists(again)
    for _ in again.restore(Pieces(tables.freeze())):
        pass
    check(restored.of(7), expected)
    check(restored.of(6), [b"another"])
    tables.roll_back(0)
    check(lists.of(7), [])


def test_a_change_leaves_other_chunks_as_they_are() -> None:
    lists = Lists(Tables())
    lists.of(7).splice(0, 0, [b"item"] * 40)
    before = [items for _, items in lists.of(7).chunks()]
    lists.of(7).splice(20, 20, [b"more"])
    after = [items for _, items in lists.of(7).chunks()]
    assert sum(any(one is other for other in before) for one in after) == len(before) - 1


@pytest.mark.parametrize(
    ("ends", "left"),
    [([(0, 2), (2, 3)], [b"c", b"d"]), ([(3, 4), (0, 2)], [b"c", b"e"])],
)
def test_a_small_chunk_joins_its_neighbour(ends: list[tuple[int, int]], left: list[bytes]) -> None:
    lists = Lists(Tables())
    lists.of(7).splice(0, 0, [b"a", b"b", b"c", b"d", b"e"])
    for begin, end in ends:
        assert len(list(lists.of(7).chunks())) == 2
        lists.of(7).splice(begin, end, [])
    check(lists.of(7), left)


@pytest.mark.parametrize(
    "text", [b"", b"\0" * 11, b"\0" * 11 + b"\1", b"\0" * 11 + b"\1" + b"\0" * 19]
)
def test_an_invalid_directory_is_not_read(text: bytes) -> None:
    tables = Tables()
    Lists(tables)
    one = (1).to_bytes(8, "big")
    record = one + (8).to_bytes(4, "big") + len(text).to_bytes(4, "big") + one + text
    with pytest.raises(CorruptionError):
        for _ in tables.restore(Pieces([record + bytes(8)])):
            pass


def test_invalid_items_are_not_read() -> None:
    tables = Tables()
    Lists(tables)
    one = (1).to_bytes(8, "big")
    record = bytes(8) + one + (8).to_bytes(4, "big") + (5).to_bytes(4, "big") + one + b"\0\0\0\2a"
    with pytest.raises(CorruptionError):
        for _ in tables.restore(Pieces([record])):
            pass
