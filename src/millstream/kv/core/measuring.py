"""Cuts what a lease shows of a partition into pieces of bounded rows and bytes, by lengths alone.

A row is a change that a stream under the lease would send. A superseded change is no row.

Invariants:
1. A piece has at most `rows_max` rows and `bytes_max` bytes, except a single row that is larger.
2. Each piece ends at a row, the last one at the seqno that was asked for if all was measured.
3. There are at most `pieces_max`: the rest is left for another request.

Elsewhere: who takes the lengths from memory and log (`kv.aio.measuring`), the wire form
(`kv.core.session.introspection`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

__all__ = ["Piece", "Pieces"]


class Piece(NamedTuple):
    """The rows from the end of the piece before up to seqno `end`."""

    end: int
    rows: int
    bytes: int


class Pieces:
    """The pieces of one partition, in the making."""

    def __init__(self, rows_max: int, bytes_max: int, pieces_max: int) -> None:
        self.rows_max = rows_max
        self.bytes_max = bytes_max
        self.pieces_max = pieces_max
        self.found: list[Piece] = []
        self._last = Piece(0, 0, 0)

    @property
    def is_full(self) -> bool:
        """Return whether no more rows are taken."""
        return len(self.found) >= self.pieces_max

    def stop(self) -> None:
        """Take no more rows once there is a piece: the others are left for another request."""
        self.pieces_max = max(1, len(self.found))

    def add(self, sizes: Sequence[int], seqno_at: Callable[[int], int]) -> None:
        """Add rows by their bytes; `seqno_at` returns the seqno of one by its index."""
        totals, begin = [0, *accumulate(sizes)], 0
        while begin < len(sizes) and not self.is_full:
            _, rows, size = self._last
            fitting = bisect_right(totals, totals[begin] + self.bytes_max - size) - 1
            end = min(begin + self.rows_max - rows, fitting, len(sizes))
            if end <= begin and rows:
                self.found.append(self._last)
                self._last = Piece(0, 0, 0)
                continue
            end = max(end, begin + 1)
            size += totals[end] - totals[begin]
            self._last = Piece(seqno_at(end - 1), rows + end - begin, size)
            begin = end

    def finish(self, at: int) -> list[Piece]:
        """Return the pieces; `at`: all rows up to it were added, unless the pieces are full."""
        if not self.is_full:
            self.found.append(self._last._replace(end=at))
        return self.found
