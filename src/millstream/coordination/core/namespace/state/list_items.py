"""The items of a list, in chunks: a change copies only chunks near it, however long the list is.

Invariants:
1. A chunk has 1 to `CHUNK_ITEMS_MAX` items and, if it has several, at most `CHUNK_BYTES_MAX`
   bytes.
2. No two neighbours fit into half a chunk, so there are few chunks. A change costs the chunks that
   it touches and one pass over the directory.

Elsewhere: commands (`lists`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from struct import Struct
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.state.elements import key_of
from millstream.coordination.core.namespace.state.family import Family
from millstream.coordination.core.namespace.state.run import Run
from millstream.coordination.core.namespace.tables import Table, Tables

__all__ = ["CHUNK_BYTES_MAX", "CHUNK_ITEMS_MAX", "ListItems", "Lists"]

CHUNK_ITEMS_MAX: Final = 256
"""Most items of one chunk."""
CHUNK_BYTES_MAX: Final = 64 * 1024
"""Most bytes of a chunk with more than one item."""

Items = tuple[bytes, ...]
_HEAD: Final = Struct(">QI")
_CHUNK: Final = Struct(">QIQ")
_LENGTH: Final = Struct(">I")


class Directory(NamedTuple):
    """Where the items of a list are: of each chunk its number, items and bytes, in order.

    `next_number` is that of the next new chunk; the list has `total` items with `size` bytes.
    """

    next_number: int = 0
    total: int = 0
    size: int = 0
    numbers: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


class ListItems:
    """The items of one list, in two tables: directories by list, chunks by list and number."""

    def __init__(self, directories: Table[Directory], chunks: Table[Items], key: bytes) -> None:
        self._directories, self._table, self._list = directories, chunks, key
        self._directory = directories.get(key) or Directory()

    @property
    def count(self) -> int:
        """How many items there are."""
        return self._directory.total

    @property
    def size(self) -> int:
        """How many bytes they have."""
        return self._directory.size

    def items(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the items from one index up to, not including, another; both within the list."""
        if begin >= end:
            return
        at, skipped = self._place(begin)
        missing = end - begin
        while missing:
            found = self._chunk(at)[skipped : skipped + missing]
            yield from found
            missing -= len(found)
            at, skipped = at + 1, 0

    def chunks(self) -> Iterator[tuple[int, Items]]:
        """Yield each chunk behind the index of its first item."""
        begin = 0
        for at, count in enumerate(self._directory.counts):
            yield begin, self._chunk(at)
            begin += count

    def splice(self, begin: int, end: int, values: Sequence[bytes]) -> None:
        """Replace the items from `begin` up to, not including, `end` by values."""
        if begin == end and not values:
            return
        now = self._directory
        if not now.numbers:
            self._replace(0, 0, _cut(values))
            return
        first, skipped = self._place(begin)
        last, kept = (first, skipped) if begin == end else self._end_place(end)
        pieces = _cut((*self._chunk(first)[:skipped], *values, *self._chunk(last)[kept:])) or [()]
        if first and _fit(now, first - 1, pieces[0]):
            first -= 1
            pieces[0] = self._chunk(first) + pieces[0]
        if last + 1 < len(now.numbers) and _fit(now, last + 1, pieces[-1]):
            last += 1
            pieces[-1] += self._chunk(last)
        self._replace(first, last + 1, [piece for piece in pieces if piece])

    def _place(self, index: int) -> tuple[int, int]:
        """Return the chunk of an index and the place in it; the end is behind the last item."""
        now = self._directory
        if index == now.total:
            return len(now.numbers) - 1, now.counts[-1]
        starts = list(accumulate(now.counts, initial=0))
        at = bisect_right(starts, index) - 1
        return at, index - starts[at]

    def _end_place(self, end: int) -> tuple[int, int]:
        at, place = self._place(end - 1)
        return at, place + 1

    def _chunk(self, at: int) -> Items:
        found = self._table.get(self._key(self._directory.numbers[at]))
        assert found is not None
        return found

    def _key(self, number: int) -> bytes:
        return self._list + number.to_bytes(8, "big")

    def _replace(self, first: int, last: int, pieces: list[Items]) -> None:
        now = self._directory
        free = now.numbers[first:last]
        fresh = range(now.next_number, now.next_number + max(len(pieces) - len(free), 0))
        numbers = (*free[: len(pieces)], *fresh)
        for number, piece in zip(numbers, pieces, strict=True):
            self._table.put(self._key(number), piece)
        for number in free[len(pieces) :]:
            self._table.delete(self._key(number))
        counts = tuple(map(len, pieces))
        sizes = tuple(map(_size, pieces))
        self._directory = Directory(
            now.next_number + len(fresh),
            now.total + sum(counts) - sum(now.counts[first:last]),
            now.size + sum(sizes) - sum(now.sizes[first:last]),
            now.numbers[:first] + numbers + now.numbers[last:],
            now.counts[:first] + counts + now.counts[last:],
            now.sizes[:first] + sizes + now.sizes[last:],
        )
        self._directories.put(self._list, self._directory)


def _fit(directory: Directory, at: int, piece: Items) -> bool:
    """Return whether a chunk and its new neighbour fit into half a chunk."""
    count = directory.counts[at] + len(piece)
    size = directory.sizes[at] + _size(piece)
    return count <= CHUNK_ITEMS_MAX // 2 and size <= CHUNK_BYTES_MAX // 2


def _cut(items: Sequence[bytes]) -> list[Items]:
    """Return the items as chunks, about equally full."""
    if len(items) <= CHUNK_ITEMS_MAX and _size(items) <= CHUNK_BYTES_MAX:
        return [tuple(items)] if items else []
    parts = -(-len(items) // CHUNK_ITEMS_MAX)
    pieces, begin, size = [], 0, 0
    for at, item in enumerate(items):
        size += len(item)
        if at > begin and (size > CHUNK_BYTES_MAX or (at - begin) * parts >= len(items)):
            pieces.append(tuple(items[begin:at]))
            begin, size = at, len(item)
    return [*pieces, tuple(items[begin:])]


def _size(items: Sequence[bytes]) -> int:
    return sum(map(len, items))


# ---- encoding


def _encode_directory(directory: Directory) -> bytes:
    """Return the next number, the number of chunks, then of each its number, items and bytes."""
    chunks = zip(directory.numbers, directory.counts, directory.sizes, strict=True)
    head = _HEAD.pack(directory.next_number, len(directory.numbers))
    return head + b"".join(_CHUNK.pack(*chunk) for chunk in chunks)


def _decode_directory(text: bytes) -> Directory:
    """Return what was encoded; ValueError."""
    if len(text) < _HEAD.size:
        raise ValueError("a list's directory is cut off")
    next_number, count = _HEAD.unpack_from(text)
    if len(text) != _HEAD.size + count * _CHUNK.size:
        raise ValueError("a list's directory has a wrong length")
    chunks = list(_CHUNK.iter_unpack(text[_HEAD.size :]))
    numbers, counts, sizes = zip(*chunks, strict=True) if chunks else ((), (), ())
    return Directory(next_number, sum(counts), sum(sizes), numbers, counts, sizes)


def _encode_items(items: Items) -> bytes:
    """Return the items, each behind its length."""
    return b"".join(part for item in items for part in (_LENGTH.pack(len(item)), item))


def _decode_items(text: bytes) -> Items:
    """Return what was encoded; ValueError."""
    items, at = [], 0
    while at < len(text):
        begin = at + _LENGTH.size
        at = begin + int.from_bytes(text[at:begin], "big")
        items.append(text[begin:at])
    if at != len(text):
        raise ValueError("a list's items have another length")
    return tuple(items)


class Lists(Family):
    """The lists by element."""

    def __init__(self, tables: Tables) -> None:
        self._directories = tables.add(_encode_directory, _decode_directory)
        self._chunks = tables.add(_encode_items, _decode_items)

    def of(self, element: int) -> ListItems:
        """Return the items of a list."""
        return ListItems(self._directories, self._chunks, key_of(element))

    def deleted(self, run: Run, element: int) -> None:
        """Forget its items."""
        if self._directories.delete(key_of(element)) is not None:
            self._chunks.clear(key_of(element))
