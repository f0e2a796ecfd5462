"""The values of counters: integers in a range, at whose ends they stop or wrap around.

Invariants:
1. A counter has `BITS_MIN` to `BITS_MAX` bits, a multiple of eight, set when it is created. Its
   value is always in its range: 0 to 2^bits - 1 if unsigned, else -2^(bits-1) to 2^(bits-1) - 1.

Elsewhere: commands (`counters`).
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.state.elements import Elements, key_of
from millstream.coordination.core.namespace.state.family import Family
from millstream.coordination.core.namespace.state.run import Run
from millstream.coordination.core.namespace.tables import Tables

__all__ = ["BITS", "BITS_MAX", "BITS_MIN", "Counter", "Counters"]

BITS: Final = 64
"""Unless it is said."""
BITS_MIN: Final = 8
BITS_MAX: Final = 2048
_HEAD: Final = Struct(">HBB")


class Counter(NamedTuple):
    """One counter."""

    bits: int = BITS
    is_unsigned: bool = False
    is_wrapping: bool = False
    value: int = 0

    def moved(self, count: int, *, is_wrapping: bool) -> Counter:
        """Return it so much further, up or down; at an end it stops, or goes on at the other."""
        least = 0 if self.is_unsigned else -(1 << (self.bits - 1))
        changed = self.value + count
        if is_wrapping or self.is_wrapping:
            return self._replace(value=(changed - least) % (1 << self.bits) + least)
        most = least + (1 << self.bits) - 1
        return self._replace(value=min(max(changed, least), most))


def _encode(counter: Counter) -> bytes:
    bits, is_unsigned, is_wrapping, value = counter
    digits = value.to_bytes(bits // 8, "big", signed=not is_unsigned)
    return _HEAD.pack(bits, is_unsigned, is_wrapping) + digits


def _decode(text: bytes) -> Counter:
    if len(text) < _HEAD.size:
        raise ValueError("a counter is cut off")
    bits, is_unsigned, is_wrapping = _HEAD.unpack_from(text)
    digits = text[_HEAD.size :]
    if len(digits) * 8 != bits:
        raise ValueError("a counter has a wrong length")
    value = int.from_bytes(digits, "big", signed=not is_unsigned)
    return Counter(bits, bool(is_unsigned), bool(is_wrapping), value)


class Counters(Family):
    """The counters by element."""

    def __init__(self, tables: Tables, elements: Elements) -> None:
        self._elements = elements
        self._counters = tables.add(_encode, _decode)

    def of(self, element: int) -> Counter:
        """Return a counter that is there."""
        counter = self._counters.get(key_of(element))
        assert counter is not None
        return counter

    def put(self, run: Run, element: int, counter: Counter) -> None:
        """Replace a counter."""
        self._counters.put(key_of(element), counter)
        self._elements.touch(run, element, counter.bits // 8)

    def deleted(self, run: Run, element: int) -> None:
        """Forget it."""
        self._counters.delete(key_of(element))
