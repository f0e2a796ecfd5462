"""A map in the order of its keys, of which a frozen view costs next to nothing.

Invariants:
1. `items` and `after` give keys ascending, whatever the order they came in.
2. A frozen view shows what was there when it was taken. It shares chunks of at most
   `CHUNK_KEYS_MAX` keys with the map, and a change copies the one chunk that it falls into, once
   for each view: no call does more work than that, but for a list of all chunks.
3. What was looked up or put lately is found without a search: `_recent` says what the chunks say,
   of at most `RECENT_MAX` keys.

Elsewhere: what is kept in one (`registers`), who freezes (`vsr.core.replica.snapshot_taking`).
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import takewhile
from typing import Final, Generic, NamedTuple, TypeVar

from millstream import accelerated

__all__ = ["CHUNK_KEYS_MAX", "Cut", "SortedMap"]

CHUNK_KEYS_MAX: Final = 512
"""Most keys of one chunk. A fuller one is split in two."""
RECENT_MAX: Final = 8_192
"""Keys found without a search; when they are as many, they are forgotten."""
V = TypeVar("V")


class _Chunk(Generic[V]):
    __slots__ = ("age", "keys", "values")

    def __init__(self, age: int, keys: list[bytes], values: list[V]) -> None:
        self.age, self.keys, self.values = age, keys, values


class Cut(NamedTuple, Generic[V]):
    """What was cut out of a map: chunks as they were, and the ends of those that stayed."""

    chunks: list[_Chunk[V]]
    items: list[tuple[bytes, V]]


class SortedMap(Generic[V]):
    """Keys are bytes, and None is no value.

    Chunks that become small are not joined: their number is bounded by that of the keys there ever
    were at once.
    """

    def __init__(self) -> None:
        self._age = 0
        self._size = 0
        self._firsts: list[bytes] = []
        self._chunks: list[_Chunk[V]] = []
        self._recent: dict[bytes, V] = {}

    def __len__(self) -> int:
        return self._size

    def get(self, key: bytes) -> V | None:
        """Return what is kept under a key."""
        found = self._recent.get(key)
        return found if found is not None else self._searched(key)

    def _searched(self, key: bytes) -> V | None:
        index = bisect_right(self._firsts, key) - 1
        if index < 0:
            return None
        chunk = self._chunks[index]
        at = bisect_left(chunk.keys, key)
        if at == len(chunk.keys) or chunk.keys[at] != key:
            return None
        self._remember(key, chunk.values[at])
        return chunk.values[at]

    def _remember(self, key: bytes, value: V) -> None:
        if len(self._recent) >= RECENT_MAX:
            self._recent.clear()
        self._recent[key] = value

    def put(self, key: bytes, value: V) -> V | None:
        """Keep something under a key, instead of what was there; return that."""
        recent = self._recent
        if len(recent) >= RECENT_MAX:
            recent.clear()
        recent[key] = value
        index = bisect_right(self._firsts, key) - 1
        if index < 0:
            index = self._lowest()
        chunk = self._chunks[index]
        if chunk.age != self._age:
            chunk = self._own(index)
        keys = chunk.keys
        at = bisect_left(keys, key)
        if at < len(keys) and keys[at] == key:
            before, chunk.values[at] = chunk.values[at], value
            return before
        keys.insert(at, key)
        chunk.values.insert(at, value)
        self._size += 1
        self._firsts[index] = keys[0]
        if len(keys) > CHUNK_KEYS_MAX:
            self._split(index, chunk)
        return None

    def _lowest(self) -> int:
        """Return the index of the lowest chunk; there is one from now on."""
        if not self._chunks:
            self._firsts.append(b"")
            self._chunks.append(_Chunk(self._age, [], []))
        return 0

    def delete(self, key: bytes) -> V | None:
        """Forget a key; return what was kept under it."""
        index = bisect_right(self._firsts, key) - 1
        if index < 0:
            return None
        chunk = self._chunks[index]
        at = bisect_left(chunk.keys, key)
        if at == len(chunk.keys) or chunk.keys[at] != key:
            return None
        chunk = self._own(index)
        self._recent.pop(key, None)
        del chunk.keys[at]
        gone = chunk.values.pop(at)
        self._size -= 1
        if chunk.keys:
            self._firsts[index] = chunk.keys[0]
        else:
            del self._firsts[index], self._chunks[index]
        return gone

    def after(self, key: bytes) -> Iterator[tuple[bytes, V]]:
        """Yield keys from this one on, and what they stand for; nothing may change meanwhile."""
        index = max(bisect_right(self._firsts, key) - 1, 0)
        while index < len(self._chunks):
            chunk = self._chunks[index]
            for at in range(bisect_left(chunk.keys, key), len(chunk.keys)):
                yield chunk.keys[at], chunk.values[at]
            index += 1

    def under(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, V]]:
        """Yield keys that begin so, from `prefix + start` on; nothing may change meanwhile."""
        return takewhile(lambda item: item[0].startswith(prefix), self.after(prefix + start))

    def number(self, begin: bytes, end: bytes) -> int:
        """Return how many keys there are from one on up to, not including, another."""
        found, index = 0, max(bisect_right(self._firsts, begin) - 1, 0)
        while index < len(self._chunks) and self._firsts[index] < end:
            keys = self._chunks[index].keys
            found += bisect_left(keys, end) - bisect_left(keys, begin)
            index += 1
        return found

    def cut(self, begin: bytes, end: bytes) -> Cut[V]:
        """Forget the keys from one on up to, not including, another; whole chunks go at once."""
        cut = Cut[V]([], [])
        self._recent.clear()
        index = max(bisect_right(self._firsts, begin) - 1, 0)
        while index < len(self._chunks) and self._firsts[index] < end:
            keys = self._chunks[index].keys
            first, last = bisect_left(keys, begin), bisect_left(keys, end)
            if first == 0 and last == len(keys):
                cut.chunks.append(self._chunks.pop(index))
                del self._firsts[index]
            else:
                chunk = self._chunks[index]
                values = chunk.values[first:last]
                cut.items.extend(zip(keys[first:last], values, strict=True))
                index += 1
        for key, _ in cut.items:
            self.delete(key)
        self._size -= sum(len(chunk.keys) for chunk in cut.chunks)
        return cut

    def paste(self, cut: Cut[V]) -> None:
        """Put back what was cut. Nothing has changed since."""
        at = bisect_left(self._firsts, cut.chunks[0].keys[0]) if cut.chunks else 0
        self._chunks[at:at] = cut.chunks
        self._firsts[at:at] = [chunk.keys[0] for chunk in cut.chunks]
        self._size += sum(len(chunk.keys) for chunk in cut.chunks)
        for key, value in cut.items:
            self.put(key, value)

    def _own(self, index: int) -> _Chunk[V]:
        """Return a chunk that no frozen view shares."""
        chunk = self._chunks[index]
        if chunk.age != self._age:
            chunk = _Chunk(self._age, chunk.keys[:], chunk.values[:])
            self._chunks[index] = chunk
        return chunk

    def _split(self, index: int, chunk: _Chunk[V]) -> None:
        half = len(chunk.keys) // 2
        upper = _Chunk(self._age, chunk.keys[half:], chunk.values[half:])
        del chunk.keys[half:], chunk.values[half:]
        self._firsts.insert(index + 1, upper.keys[0])
        self._chunks.insert(index + 1, upper)

    def items(self) -> Iterator[tuple[bytes, V]]:
        """Return all keys, ascending, and what they stand for, as of now."""
        self._age += 1
        return _items(self._chunks[:])


def _items(chunks: list[_Chunk[V]]) -> Iterator[tuple[bytes, V]]:
    chunks.reverse()
    while chunks:
        chunk = chunks.pop()  # each goes when it is done: all at once would take long
        yield from zip(chunk.keys, chunk.values, strict=True)


accelerated.bind(sys.modules[__name__], "SortedMap", Cut, also=(_Chunk, _items))
