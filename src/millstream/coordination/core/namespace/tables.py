"""The state as tables of records whose changes can be undone.

Invariants:
1. Every change of a table is noted with the old record. So `roll_back` restores the state as it
   was at `mark`, byte for byte.
2. Records are immutable: a change replaces one. So a frozen view does not change.
3. Equal states give equal bytes: tables in their order, keys ascending, lengths before texts.

Elsewhere: the records (the modules of their commands), marks (`machine`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, Final, Generic, TypeVar, cast

from millstream import accelerated
from millstream.coordination.core import sorted_map
from millstream.coordination.core.sorted_map import Cut, SortedMap
from millstream.vsr.core.snapshots import Pieces, unknown_state

__all__ = ["Table", "Tables", "as_bytes"]

_LENGTHS: Final = Struct(">II")
_NUMBER: Final = Struct(">Q")
V = TypeVar("V")
_Undo = list[tuple["Table[Any]", bytes, Any]]


def as_bytes(value: bytes) -> bytes:
    """Encode or decode a record that is bytes already."""
    return value


class Table(Generic[V]):
    """Records by key, in the order of their keys. Keys are bytes: numbers big-endian, 8 bytes."""

    def __init__(
        self, undo: _Undo, encode: Callable[[V], bytes], decode: Callable[[bytes], V], since: int
    ) -> None:
        self._undo, self._encode, self._decode = undo, encode, decode
        self.since = since
        """The state format that it is part of, and all later ones."""
        self.changes = 0
        """How often it has been changed, on this member."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._map: SortedMap[V] = sorted_map.SortedMap()
        self.get: Callable[[bytes], V | None] = self._map.get
        """Return the record of a key."""

    def __len__(self) -> int:
        return len(self._map)

    def descend(self, names: Sequence[bytes]) -> int | None:
        """Return where names lead from number 0, each kept under a number and itself as one."""
        key = _NUMBER.pack(0)
        for name in names:
            found = self.get(key + name)
            if found is None:
                return None
            key = cast("bytes", found)
        return int.from_bytes(key, "big")

    def put(self, key: bytes, value: V) -> None:
        """Store a record under a key."""
        self.changes += 1
        self._undo.append((self, key, self._map.put(key, value)))

    def delete(self, key: bytes) -> V | None:
        """Remove and return the record under a key."""
        gone = self._map.delete(key)
        if gone is not None:
            self.changes += 1
            self._undo.append((self, key, gone))
        return gone

    def after(self, key: bytes) -> Iterator[tuple[bytes, V]]:
        """Yield keys from this one on, with their records; the table must not change meanwhile."""
        return self._map.after(key)

    def under(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, V]]:
        """Yield keys that begin so, from `prefix + start` on; the same holds."""
        return self._map.under(prefix, start)

    def number_under(self, prefix: bytes) -> int:
        """Return how many keys begin so, at little cost however many they are."""
        return self._map.number(prefix, _end_of(prefix))

    def clear(self, prefix: bytes) -> None:
        """Remove all keys with this prefix, at little cost however many they are.

        The prefix is a number, and not the largest possible one.
        """
        self._undo.append((self, prefix, self._map.cut(prefix, _end_of(prefix))))

    def revert(self, key: bytes, value: V | Cut[V] | None) -> None:
        """Restore what was there before, without a note."""
        self.changes += 1
        if isinstance(value, Cut):
            self._map.paste(value)
        elif value is None:
            self._map.delete(key)
        else:
            self._map.put(key, value)

    def freeze(self) -> Iterator[bytes]:
        """Return the bytes of this moment's records, in small pieces, while they change."""
        return self._pieces(len(self._map), self._map.items())

    def _pieces(self, count: int, items: Iterator[tuple[bytes, V]]) -> Iterator[bytes]:
        yield count.to_bytes(8, "big")
        for key, value in items:
            text = self._encode(value)
            yield b"".join((_LENGTHS.pack(len(key), len(text)), key, text))

    def restore(self, pieces: Pieces) -> Iterator[None]:
        """Replace the records by what `freeze` wrote, one with each step.

        Raises:
            CorruptionError: `unknown_state`.
        """
        self._begin_anew()
        self.changes += 1
        for _ in range(pieces.number()):
            size, length = pieces.number(4), pieces.number(4)
            key = pieces.take(size)
            try:
                self._map.put(key, self._decode(pieces.take(length)))
            except (ValueError, LookupError, TypeError, StructError) as wrong:
                raise unknown_state(f"a record cannot be read ({wrong})") from wrong
            yield


class Tables:
    """All tables of a state. They are made once, in a fixed order."""

    def __init__(self) -> None:
        self._undo: _Undo = []
        self._tables: list[Table[Any]] = []
        self.state_format = 1
        """Tables of later ones are empty, and no part of what is frozen."""
        self.reversals = 0
        """How often, on this member, records became what they had been, or elements moved: what
        is remembered of the places of elements is worth nothing then."""

    def add(
        self, encode: Callable[[V], bytes], decode: Callable[[bytes], V], since: int = 1
    ) -> Table[V]:
        """Return a new table, behind the others. `decode` raises ValueError for what is none."""
        made = Table(self._undo, encode, decode, since)
        self._tables.append(made)
        return made

    @property
    def is_empty(self) -> bool:
        """Whether there is no record in any of them."""
        return not any(map(len, self._tables))

    def mark(self) -> int:
        """Return what `roll_back` goes back to."""
        return len(self._undo)

    def roll_back(self, mark: int) -> None:
        """Undo every change since."""
        self.reversals += len(self._undo) > mark
        while len(self._undo) > mark:
            table, key, before = self._undo.pop()
            table.revert(key, before)

    def settle(self) -> None:
        """Keep every change: nothing before this can be undone."""
        self._undo.clear()

    def freeze(self) -> Iterator[bytes]:
        """Return the bytes of all tables, of this moment."""
        return _chained([table.freeze() for table in self._in_format()])

    def restore(self, pieces: Pieces) -> Iterator[None]:
        """Replace all tables by what `freeze` wrote."""
        self._undo.clear()
        self.reversals += 1
        for table in self._in_format():
            yield from table.restore(pieces)
        self.reversals += 1

    def _in_format(self) -> list[Table[Any]]:
        return [table for table in self._tables if table.since <= self.state_format]


def _chained(parts: list[Iterator[bytes]]) -> Iterator[bytes]:
    for part in parts:
        yield from part


def _end_of(prefix: bytes) -> bytes:
    """Return the least key behind all that begin so."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])


accelerated.bind(sys.modules[__name__], "Table", also=(_end_of,))
