from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.kv.core.measuring import Piece, Pieces


@given(
    st.lists(st.lists(st.integers(1, 40), max_size=12), max_size=6),
    st.integers(1, 9),
    st.integers(1, 60),
)
def test_pieces_are_as_large_as_the_limits_allow(
    chunks: list[list[int]], rows_max: int, bytes_max: int
) -> None:
    sizes = [size for chunk in chunks for size in chunk]
    pieces, first = Pieces(rows_max, bytes_max, 10**6), 0
    for chunk in chunks:
        pieces.add(chunk, lambda at, first=first: 2 * (first + at) + 2)  # type: ignore[misc]
        first += len(chunk)
    wanted = [Piece(0, 0, 0)]
    for number, size in enumerate(sizes, 1):
        _, rows, total = wanted[-1]
        if rows and (rows == rows_max or total + size > bytes_max):
            wanted.append(Piece(0, 0, 0))
            rows = total = 0
        wanted[-1] = Piece(2 * number, rows + 1, total + size)
    wanted[-1] = wanted[-1]._replace(end=1000)
    assert pieces.finish(1000) == wanted


def test_what_is_beyond_the_last_piece_is_left() -> None:
    pieces = Pieces(2, 100, 3)
    pieces.add([1] * 9, lambda at: at + 1)
    assert pieces.is_full
    pieces.add([1], lambda at: 10)
    assert pieces.finish(10) == [Piece(2, 2, 2), Piece(4, 2, 2), Piece(6, 2, 2)]


def test_a_stop_leaves_the_rest_once_there_is_a_piece() -> None:
    pieces = Pieces(2, 100, 9)
    pieces.stop()
    pieces.add([1] * 9, lambda at: at + 1)
    assert pieces.finish(9) == [Piece(2, 2, 2)]
    small = Pieces(20, 100, 9)
    small.stop()
    small.add([1] * 9, lambda at: at + 1)
    assert small.finish(9) == [Piece(9, 9, 9)]


def test_nothing_is_one_empty_piece() -> None:
    assert Pieces(2, 100, 3).finish(7) == [Piece(7, 0, 0)]
