"""Configuration in the replicated state: settings of elements, of the group and of all groups.

Invariants:
1. The value for an element is the setting at the nearest element upwards, else the setting of the
   group, else the default of the key.
2. Only values that the key accepts are stored.

Elsewhere: keys (`keys`), commands (`settings`), who may change it (`permissions`).

Source: V2R2, "Sessions and Heartbeating" and "Subscribe to an element" on what elements override.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.state.elements import Elements, key_of
from millstream.coordination.core.namespace.state.family import Family
from millstream.coordination.core.namespace.state.keys import (
    KEYS,
    Key,
    Owner,
    in_key_pattern,
    number_of,
)
from millstream.coordination.core.namespace.state.run import Run
from millstream.coordination.core.namespace.tables import Tables, as_bytes
from millstream.vsr.core.values import bulk, mapping

__all__ = ["GLOBAL", "GROUP", "Setting", "Settings", "may_be_set"]

GROUP: Final = 0
"""Stands for the group where others have an element's number; no element has it."""
GLOBAL: Final = 2**64 - 1
"""Stands for all groups; kept in the system group."""
NUMBERS_MAX: Final = 8_192
"""Numbers known without a search; when they are as many, they are forgotten."""


class Setting(NamedTuple):
    """What counts, and where it was set: an element, `GROUP`, `GLOBAL`, or None: nowhere."""

    key: Key
    value: bytes
    where: int | None


def may_be_set(key: Key, where: int, *, is_root: bool) -> bool:
    """Return whether a key belongs to what is set there."""
    if where == GLOBAL:
        return key.owner is Owner.GLOBAL
    if where == GROUP:
        return key.owner in (Owner.GROUP, Owner.NAMESPACE, Owner.ELEMENT)
    return key.owner is Owner.ELEMENT or (is_root and key.owner is Owner.NAMESPACE)


class Settings(Family):
    """What was set, by where and key."""

    def __init__(self, tables: Tables, elements: Elements) -> None:
        self._elements, self._tables = elements, tables
        self.values = tables.add(as_bytes, as_bytes)
        """(Place, key) -> value."""
        self._numbers: dict[tuple[int, bytes], int] = {}
        """What counts for an element and a key, since something was set or moved."""
        self._several: dict[tuple[int, tuple[bytes, ...]], tuple[int, ...]] = {}
        """The same for several keys at once."""
        self._numbers_as_of = 0, 0

    def put(self, where: int, key: Key, value: bytes) -> None:
        """Keep a value that the key has read."""
        self.values.put(key_of(where) + key.name, value)

    def remove(self, where: int, key: Key) -> None:
        """Keep no value."""
        self.values.delete(key_of(where) + key.name)

    def own(self, where: int) -> Iterator[tuple[bytes, bytes]]:
        """Return names and values of what was set there, in order."""
        prefix = key_of(where)
        for at, value in self.values.under(prefix):
            yield at[len(prefix) :], value

    def find(self, where: int, key: Key) -> Setting:
        """Return what counts for an element, for the group, or for all groups."""
        if len(self.values):
            for at in self._upwards(where):
                value = self.values.get(key_of(at) + key.name)
                if value is not None:
                    return Setting(key, value, at)
        return Setting(key, key.default, None)

    def _upwards(self, where: int) -> tuple[int, ...]:
        if where in (GROUP, GLOBAL):
            return (where,)
        return (*self._elements.line(where), GROUP)

    def number(self, where: int, name: bytes) -> int:
        """Return the number that counts for a key of an element."""
        self._forget_numbers_if_old()
        known = self._numbers.get((where, name))
        return known if known is not None else self._found_number(where, name)

    def numbers(self, where: int, names: tuple[bytes, ...]) -> tuple[int, ...]:
        """Return the numbers that count for some keys of an element."""
        self._forget_numbers_if_old()
        known = self._several.get((where, names))
        if known is None:
            known = self._several[where, names] = tuple(self.number(where, n) for n in names)
        return known

    def _forget_numbers_if_old(self) -> None:
        as_of = self.values.changes, self._tables.reversals
        known = max(len(self._numbers), len(self._several))
        if self._numbers_as_of != as_of or known >= NUMBERS_MAX:
            self._numbers.clear()
            self._several.clear()
            self._numbers_as_of = as_of

    def _found_number(self, where: int, name: bytes) -> int:
        above = self._elements.line(where)[1:2]
        own = self.values.get(key_of(where) + name)
        if own is not None or not above:
            number = number_of(self.find(where, KEYS[name]).value)
        else:
            number = self.number(above[0], name)
        self._numbers[where, name] = number
        return number

    def least_number(self, elements: Iterable[int], name: bytes) -> int | None:
        """Return the least number that counts for one of these, without any the group's.

        None if nothing at all is set.
        """
        if not len(self.values):
            return None
        numbers = [self.number(element, name) for element in elements]
        return min(numbers) if numbers else number_of(self.find(GROUP, KEYS[name]).value)

    def truth(self, where: int, name: bytes) -> bool:
        """Return what counts for a key that is true or false."""
        return self.find(where, KEYS[name]).value == b"true"

    def matching(self, where: int, pattern: bytes, owners: Iterable[Owner]) -> list[Setting]:
        """Return what counts for all keys of these owners that fit, in order."""
        wanted = tuple(owners)
        return [
            self.find(where, key)
            for key in KEYS.values()
            if key.owner in wanted and in_key_pattern(key.name, pattern)
        ]

    def deleted(self, run: Run, element: int) -> None:
        """Forget what was set for it."""
        for name in [name for name, _ in self.own(element)]:
            self.remove(element, KEYS[name])

    def attributes(self, run: Run, element: int) -> Iterable[tuple[bytes, bytes]]:
        """Give what was set for the element itself."""
        yield b"config", mapping([(name, bulk(value)) for name, value in self.own(element)])
