"""The data of binary elements, and attributes that users give to elements of any type.

Invariants:
1. A binary element has a data record if and only if it is not empty, and `data_len` is its length.

Elsewhere: the contents of elements of other types (their modules).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.elements import Elements, key_of
from millstream.coordination.core.namespace.state.family import Family
from millstream.coordination.core.namespace.state.run import Run
from millstream.coordination.core.namespace.tables import Tables, as_bytes
from millstream.vsr.core.values import bulk

__all__ = ["ATTRIBUTES_BYTES_MAX", "Data"]

ATTRIBUTES_BYTES_MAX: Final = 4096
"""Most bytes of one element's user attributes, names and values."""


class Data(Family):
    """Bytes and user attributes by element."""

    def __init__(self, tables: Tables, elements: Elements) -> None:
        self._elements = elements
        self._bytes = tables.add(as_bytes, as_bytes)
        self._attributes = tables.add(as_bytes, as_bytes)
        """Element's number and name -> value."""

    def of(self, number: int) -> bytes:
        """Return the bytes of a binary element or a namespace."""
        return self._bytes.get(key_of(number)) or b""

    def fill(self, number: int, data: bytes) -> None:
        """Store a new element's bytes, and count them. There is at least one."""
        self._bytes.put(key_of(number), data)

    def put(self, run: Run, number: int, data: bytes) -> None:
        """Store an element's bytes. `touch` counts them."""
        if data:
            self._bytes.put(key_of(number), data)
        else:
            self._bytes.delete(key_of(number))
        self._elements.touch(run, number, len(data))

    def put_attributes(self, run: Run, number: int, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """Give an element attributes; an empty value takes one away.

        Raises:
            Refused: TOOBIG, if they are too long together.
        """
        key, before = key_of(number), self._attributes_bytes(number)
        for name, value in pairs:
            if value:
                self._attributes.put(key + name, value)
            else:
                self._attributes.delete(key + name)
        size = self._attributes_bytes(number)
        if size > ATTRIBUTES_BYTES_MAX:
            raise Refused("TOOBIG", f"attributes have {ATTRIBUTES_BYTES_MAX} bytes together")
        self._elements.count_bytes(run, number, size - before)
        self._elements.touch(run, number)

    def _attributes_bytes(self, number: int) -> int:
        key = key_of(number)
        return sum(len(k) - len(key) + len(v) for k, v in self._attributes.under(key))

    def deleted(self, run: Run, element: int) -> None:
        """Forget what it held."""
        key = key_of(element)
        self._elements.count_bytes(run, element, -self._attributes_bytes(element))
        self._bytes.delete(key)
        for name in [name for name, _ in self._attributes.under(key)]:
            self._attributes.delete(name)

    def attributes(self, run: Run, element: int) -> Iterable[tuple[bytes, bytes]]:
        """Give those of users, by name."""
        key = key_of(element)
        return [(name[len(key) :], bulk(value)) for name, value in self._attributes.under(key)]
