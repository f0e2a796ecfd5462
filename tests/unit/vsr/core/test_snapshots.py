"""The bytes of a snapshot are cut into parts and read across them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptionError
from millstream.vsr.core.entries import GENESIS
from millstream.vsr.core.snapshots import (
    PART_BYTES,
    SLICE_BYTES_MAX,
    Making,
    Pieces,
    cut_into_parts,
    snapshot_of,
)


@given(st.lists(st.binary(max_size=9), max_size=9), st.lists(st.integers(0, 9), max_size=9))
def test_what_is_read_does_not_depend_on_the_parts(parts: list[bytes], sizes: list[int]) -> None:
    whole, pieces = b"".join(parts), Pieces(parts)
    for size in sizes:
        if size > len(whole):
            with pytest.raises(CorruptionError, match="newer version"):
                pieces.take(size)
            return
        assert pieces.take(size) == whole[:size]
        whole = whole[size:]


def test_numbers_and_texts() -> None:
    pieces = Pieces([b"\0\0\1", b"\2\0\0\0", b"\3abc"])
    assert (pieces.number(4), pieces.text()) == (258, b"abc")


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1])
def test_a_snapshot_knows_its_size(size: int) -> None:
    snapshot = snapshot_of(3, GENESIS, bytes(size))
    assert snapshot.size == size
    assert snapshot.parts == cut_into_parts(bytes(size))
    assert all(len(part) == PART_BYTES for part in snapshot.parts[:-1])


@given(st.lists(st.binary(max_size=5), max_size=9), st.integers(1, 4))
def test_a_snapshot_is_made_in_slices_and_sent_in_parts(pieces: list[bytes], size: int) -> None:
    making, made = Making(1, GENESIS, iter(pieces), size), None
    while made is None:
        made = making.go_on()
    data = b"".join(pieces)
    assert made.id == snapshot_of(1, GENESIS, data).id
    assert made.size == len(data)
    sent = b""
    while part := made.part_at(len(sent)):
        assert len(part) <= size
        sent += part
    assert sent == data


def test_a_slice_is_bounded() -> None:
    pieces = iter([bytes(1000)] * 1000)
    making = Making(1, GENESIS, pieces)
    assert making.go_on() is None
    assert len(list(pieces)) > 1000 - SLICE_BYTES_MAX / 1000
