"""The members of sets, in the order of their bytes.

Invariants:
1. The size of a set is the number of its members. An empty set has no record.

Elsewhere: commands (`sets`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.state.elements import Elements, key_of
from millstream.coordination.core.namespace.state.family import Family
from millstream.coordination.core.namespace.state.run import Run
from millstream.coordination.core.namespace.tables import Tables, as_bytes

__all__ = ["Sets", "Size"]

_SIZE: Final = Struct(">QQ")


class Size(NamedTuple):
    """How many members a set has, and how many bytes they have."""

    members: int = 0
    size: int = 0


def _encode(size: Size) -> bytes:
    return _SIZE.pack(*size)


def _decode(text: bytes) -> Size:
    if len(text) != _SIZE.size:
        raise ValueError("the size of a set has a wrong length")
    return Size(*_SIZE.unpack(text))


class Sets(Family):
    """The sets by element. One that is empty has no size."""

    def __init__(self, tables: Tables, elements: Elements) -> None:
        self._elements = elements
        self._sizes = tables.add(_encode, _decode)
        self._members = tables.add(as_bytes, as_bytes)
        """Element's number and member -> nothing."""

    def size(self, element: int) -> Size:
        """Return how large a set is."""
        return self._sizes.get(key_of(element)) or Size()

    def has(self, element: int, member: bytes) -> bool:
        """Whether a value is a member."""
        return self._members.get(key_of(element) + member) is not None

    def members(self, element: int, after: bytes | None = None) -> Iterator[bytes]:
        """Yield the members, those behind `after` if it is given; the set must not change."""
        key = key_of(element)
        start = b"" if after is None else after + b"\0"
        for name, _ in self._members.under(key, start):
            yield name[len(key) :]

    def new(self, element: int, members: Sequence[bytes]) -> list[bytes]:
        """Return which of these are no members, each once."""
        return [one for one in dict.fromkeys(members) if not self.has(element, one)]

    def add(self, run: Run, element: int, new: Sequence[bytes]) -> int:
        """Put in what `new` gave; return how many that is."""
        for member in new:
            self._members.put(key_of(element) + member, b"")
        self._resize(run, element, len(new), sum(map(len, new)))
        return len(new)

    def remove(self, run: Run, element: int, unwanted: Sequence[bytes]) -> int:
        """Take members out; return how many were there."""
        old = [one for one in dict.fromkeys(unwanted) if self.has(element, one)]
        for member in old:
            self._members.delete(key_of(element) + member)
        self._resize(run, element, -len(old), -sum(map(len, old)))
        return len(old)

    def _resize(self, run: Run, element: int, count: int, size: int) -> None:
        if count:
            before = self.size(element)
            after = Size(before.members + count, before.size + size)
            if after.members:
                self._sizes.put(key_of(element), after)
            else:
                self._sizes.delete(key_of(element))
            self._elements.touch(run, element, after.size)

    def deleted(self, run: Run, element: int) -> None:
        """Forget its members."""
        if self._sizes.delete(key_of(element)) is not None:
            self._members.clear(key_of(element))
