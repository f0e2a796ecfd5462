"""Limits: how much an element may hold, and how much a namespace may have in all.

Invariants:
1. The sums of a namespace always equal the number of its elements and of their bytes, including
   user attributes.
2. A limit is checked where something grows. A limit below the present size removes nothing, and
   allows no growth.

Elsewhere: the limits (`keys`, `configuration`), items of lists, sets and queues (their modules;
`State.items_max`).
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.configuration import Settings
from millstream.coordination.core.namespace.state.elements import Elements, Type, key_of
from millstream.coordination.core.namespace.state.family import Family
from millstream.coordination.core.namespace.state.run import Run
from millstream.coordination.core.namespace.tables import Tables

__all__ = ["Limits", "Sums"]

_SUMS: Final = Struct(">QQ")


class Sums(NamedTuple):
    """What a namespace has: elements, the root among them, and bytes that they hold."""

    elements: int = 0
    bytes: int = 0


_NONE: Final = Sums()
_OF_CHILDREN: Final = (b"LIMIT.CHILDREN", b"LIMIT.DATA")
_OF_ROOTS: Final = (b"LIMIT.ELEMENTS", b"LIMIT.BYTES")


def _encode(sums: Sums) -> bytes:
    return _SUMS.pack(*sums)


def _decode(text: bytes) -> Sums:
    if len(text) != _SUMS.size:
        raise ValueError("sums have another length")
    return Sums(*_SUMS.unpack(text))


class Limits(Family):
    """The sums by namespace, and what they may be."""

    def __init__(self, tables: Tables, elements: Elements, settings: Settings) -> None:
        self._elements, self._settings = elements, settings
        self._sums = tables.add(_encode, _decode)

    def sums(self, root: int) -> Sums:
        """Return what a namespace has."""
        return self._sums.get(key_of(root)) or _NONE

    def _check(self, element: int, name: bytes, number: int) -> None:
        most = self._settings.number(element, name)
        if number > most:
            path = self._elements.path(element).decode()
            raise Refused("QUOTA", f"{path}: {name.decode()} is {most}; delete some, or raise it")

    def created(self, run: Run, element: int, parent: int, size: int) -> None:
        """Count an element, what it holds, and its parent's children.

        Raises:
            Refused: QUOTA.
        """
        if not parent or not self._has_room(parent, size):
            self._check_parent(element)
            self._check_data(element, size)
        self._count(element, 1, size)

    def _has_room(self, parent: int, size: int) -> bool:
        """Return whether a new element may be there, for which nothing was set yet."""
        children_max, size_max = self._settings.numbers(parent, _OF_CHILDREN)
        return self._elements.there(parent).nchildren <= children_max and size <= size_max

    def _check_parent(self, element: int) -> None:
        parent = self._elements.there(element).parent
        if parent:
            self._check(parent, b"LIMIT.CHILDREN", self._elements.there(parent).nchildren)

    def _count(self, element: int, more: int, more_bytes: int) -> None:
        root = self._elements.line(element)[-1]
        key = key_of(root)
        before, size_before = self._sums.get(key) or _NONE
        elements, size = before + more, size_before + more_bytes
        assert elements >= 0 <= size, "a namespace has less than nothing"
        elements_max, size_max = self._settings.numbers(root, _OF_ROOTS)
        if more > 0 and elements > elements_max:
            self._check(root, b"LIMIT.ELEMENTS", elements)
        if more_bytes > 0 and size > size_max:
            self._check(root, b"LIMIT.BYTES", size)
        if elements or size:
            self._sums.put(key, Sums(elements, size))
        else:
            self._sums.delete(key)

    def resized(self, run: Run, element: int, more: int) -> None:
        """Count bytes that an element holds.

        Raises:
            Refused: QUOTA.
        """
        self._check_data(element, more)
        self._count(element, 0, more)

    def _check_data(self, element: int, more: int) -> None:
        one = self._elements.there(element)
        if more > 0 and one.type in (Type.ROOT, Type.BINARY):
            self._check(element, b"LIMIT.DATA", one.data_len)

    def counted(self, run: Run, element: int, more: int) -> None:
        """Count bytes that an element holds besides its data.

        Raises:
            Refused: QUOTA.
        """
        self._count(element, 0, more)

    def moved(self, run: Run, element: int) -> None:
        """Look at how many children its parent has now.

        Raises:
            Refused: QUOTA.
        """
        self._check_parent(element)

    def deleted(self, run: Run, element: int) -> None:
        """Count an element no more."""
        self._count(element, -1, -self._elements.there(element).data_len)
