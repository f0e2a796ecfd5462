"""Names of namespaces as the system group has them, and the roots of a group with their ids.

Invariants:
1. Each root has an id: that of its reservation, or the version of the entry that created it.
2. A refused id is refused forever: it is never removed from the list.

Elsewhere: the protocol (`names`), the commands (`naming`).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from millstream.coordination.core.namespace.names import Answer, Name, NameStatus
from millstream.coordination.core.namespace.state.elements import Elements, key_of
from millstream.coordination.core.namespace.state.family import Family
from millstream.coordination.core.namespace.state.run import Run
from millstream.coordination.core.namespace.tables import Tables
from millstream.vsr.core.versions import Version

__all__ = ["Registry"]

_VERSION: Final = Struct(">IIQ")
_NAME: Final = Struct(">QBIIQIIQ")
_IS_FORCED, _PASSES_LOCKS = 1, 2
"""Flags of a name."""


def _encode_version(version: Version) -> bytes:
    return _VERSION.pack(*version)


def _decode_version(text: bytes) -> Version:
    if len(text) != _VERSION.size:
        raise ValueError("a version has a wrong length")
    return Version(*_VERSION.unpack(text))


def _encode_name(name: Name) -> bytes:
    flags = _IS_FORCED * name.is_forced | _PASSES_LOCKS * name.passes_locks
    packed = _NAME.pack(name.gid, flags, *name.id, *name.deletion)
    return packed + name.status.value


def _decode_name(text: bytes) -> Name:
    if len(text) < _NAME.size:
        raise ValueError("a name has a wrong length")
    gid, flags, *numbers = _NAME.unpack_from(text)
    status = NameStatus(text[_NAME.size :])
    return Name(
        gid, Version(*numbers[:3]), status, Version(*numbers[3:]),
        bool(flags & _IS_FORCED), bool(flags & _PASSES_LOCKS),
    )  # fmt: skip


def _encode_answer(answer: Answer) -> bytes:
    return answer.value


class Registry(Family):
    """The names, by root; ids of roots, by element; ids that are refused."""

    def __init__(self, tables: Tables, elements: Elements) -> None:
        self._elements = elements
        self.names = tables.add(_encode_name, _decode_name)
        self._ids = tables.add(_encode_version, _decode_version)
        self._refused = tables.add(_encode_answer, Answer)

    def unfinished(self) -> Iterator[tuple[bytes, Name]]:
        """Yield names that are reserved or being deleted, in order."""
        for root, name in self.names.after(b""):
            if name.status is not NameStatus.CONFIRMED:
                yield root, name

    def settled(self) -> Iterator[tuple[bytes, int]]:
        """Yield names that are there, and the number of the group of each, in order."""
        for root, name in self.names.after(b""):
            if name.status is not NameStatus.RESERVED:
                yield root, name.gid

    def id_of(self, element: int) -> Version | None:
        """Return the id of a root."""
        return self._ids.get(key_of(element))

    def set_id(self, element: int, version: Version) -> None:
        """Set the id of a root."""
        self._ids.put(key_of(element), version)

    def refusal_of(self, refused: Version) -> Answer | None:
        """Return what is answered to an id that is refused."""
        return self._refused.get(_encode_version(refused))

    def refuse(self, refused: Version, answer: Answer) -> None:
        """Refuse an id for ever."""
        self._refused.put(_encode_version(refused), answer)

    def created(self, run: Run, element: int, parent: int, size: int) -> None:
        """Give a root an id."""
        if not parent:
            self.set_id(element, run.version)

    def deleted(self, run: Run, element: int) -> None:
        """Forget the id of a root."""
        self._ids.delete(key_of(element))
