"""Rows of leaves in the form in which a reducer filters and reduces many at once.

Where a set of partitions leaves no part of a tree whole, a question for it needs something of
every row. Leaves decoded again and again cost ten times what remains to be done, so what a
reducer makes of their values is kept, beside the partitions of the rows. A node never changes, so
it stays true, for any set; after a commit only changed leaves are read.

Invariants:
1. What is kept depends on the node and the kind alone.
2. At most `COLUMN_BYTES_MAX` are kept, the recently used ones; a tree that has no room in half of
   that is not read so at all.

Elsewhere: who asks (`reader`), what subtrees come to under one set (`filtered`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any, Final, NamedTuple, Protocol

from millstream.trees.core.filtered import Kind
from millstream.trees.core.masks import Mask
from millstream.trees.core.nodes import Nodes
from millstream.trees.core.rewriting import LEAVES_PER_CALL_MAX

__all__ = ["COLUMN_BYTES_MAX", "Column", "ColumnCache", "Columnar", "Columns"]

COLUMN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Columns of one index kept in memory, as reckoned here."""
_ROW_BYTES: Final = 20
"""A row takes some 15, a number of eight bytes being usual."""
_LEAF_BYTES: Final = 250
_KIND_BITS: Final = 16

Column = Any
"""What a reducer makes of a leaf's rows, an iterable with something for each; with a length."""


class Columnar(Protocol):
    """A reducer to which the order of rows does not matter, for rows of which it makes columns."""

    def columns(self, leaves: Sequence[Sequence[bytes]]) -> Sequence[Column | None]:
        """Return the column of each leaf, given its values; None: they are not of that kind."""

    def reduce_columns(self, columns: Iterable[Column], flags: bytes) -> bytes | None:
        """Return the partial of the rows whose flag is 1, at least one; None: it has none."""


class _Kept(NamedTuple):
    partitions: Sequence[int]
    column: Column | None


_NOTHING: Final = _Kept(b"", None)


class ColumnCache:
    """Columns by node and kind; several threads may use it.

    Two halves, as in `nodes.NodeCache`: the older one is forgotten when the younger is full.

    Args:
        bytes_max: of both halves together.
    """

    __slots__ = ("_bytes", "_half_max", "_old", "_young")

    def __init__(self, bytes_max: int = COLUMN_BYTES_MAX) -> None:
        self._half_max = bytes_max // 2
        self._bytes = 0
        self._young: dict[int, _Kept] = {}
        self._old: dict[int, _Kept] = {}

    def has_room(self, rows: int) -> bool:
        """Whether a tree of this many rows may be kept."""
        return rows * _ROW_BYTES <= self._half_max

    def get(self, keys: Sequence[int]) -> list[_Kept | None]:
        """Return what is kept of some leaves."""
        found = list(map(self._young.get, keys))
        if None in found and self._old:
            for at, key in enumerate(keys):
                if found[at] is None and (kept := self._old.get(key)) is not None:
                    found[at] = kept
                    self.put(key, kept)
        return found

    def put(self, key: int, kept: _Kept) -> None:
        """Keep a leaf's as the one used last."""
        each = getattr(kept.column, "itemsize", 2 * _ROW_BYTES)
        self._bytes += _LEAF_BYTES + (1 + each) * len(kept.partitions)
        if self._bytes > self._half_max:
            self._old, self._young, self._bytes = self._young, {}, 0
        self._young[key] = kept


class Columns:
    """What a reader has of columns.

    Args:
        cache: shared by all readers of the index.
        kind: number of the reducer in it.
        maker: the reducer.
    """

    __slots__ = ("_cache", "_kind", "_maker")

    def __init__(self, cache: ColumnCache, kind: Kind, maker: Columnar) -> None:
        self._cache, self._kind, self._maker = cache, kind, maker

    def fit(self, rows: int) -> bool:
        """Whether a tree of this many rows is read by columns."""
        return self._cache.has_room(rows)

    def count(self, number: int, mask: Mask) -> int | None:
        """Return how many rows of a leaf are wanted; None: it is not kept."""
        (kept,) = self._cache.get(self._keys([number]))
        return None if kept is None else mask.flags(kept.partitions).count(1)

    def prepare(self, nodes: Nodes, numbers: Sequence[int]) -> None:
        """Make the columns of these leaves, as far as they are not kept."""
        kept = self._cache.get(self._keys(numbers))
        self._made(nodes, [number for number, one in zip(numbers, kept, strict=True) if not one])

    def reduced(
        self, nodes: Nodes, numbers: Sequence[int], mask: Mask
    ) -> tuple[bytes | None, Sequence[int]]:
        """Reduce the wanted rows of leaves, each of which has some.

        Returns:
            Their partial, and those leaves that have to be read another way.
        """
        found = self._cache.get(self._keys(numbers))
        if None in found:
            missing = [number for number, one in zip(numbers, found, strict=True) if not one]
            made = iter(self._made(nodes, missing))
            found = [one or next(made) for one in found]
        rows_of, columns = zip(*(one or _NOTHING for one in found), strict=True)
        left: Sequence[int] = ()
        if None in columns:
            left = [number for number, one in zip(numbers, columns, strict=True) if one is None]
            rows_of = tuple(compress(rows_of, map(_is_column, columns)))
            columns = tuple(filter(_is_column, columns))
            if not columns:
                return None, left
        if set(map(type, rows_of)) == {bytes}:
            flags = mask.flags(b"".join(rows_of))
        else:
            flags = b"".join(map(mask.flags, rows_of))
        partial = self._maker.reduce_columns(columns, flags)
        return (None, numbers) if partial is None else (partial, left)

    def _keys(self, numbers: Sequence[int]) -> list[int]:
        kind = self._kind
        return [number << _KIND_BITS | kind for number in numbers]

    def _made(self, nodes: Nodes, numbers: Sequence[int]) -> list[_Kept]:
        made: list[_Kept] = []
        for at in range(0, len(numbers), LEAVES_PER_CALL_MAX):
            part = numbers[at : at + LEAVES_PER_CALL_MAX]
            leaves = [nodes.values(number) for number in part]
            columns = self._maker.columns([values for values, _ in leaves])
            for number, (_, rows_of), column in zip(part, leaves, columns, strict=True):
                kept = _Kept(rows_of, column)
                self._cache.put(number << _KIND_BITS | self._kind, kept)
                made.append(kept)
        return made


def _is_column(column: Column | None) -> bool:
    return column is not None
