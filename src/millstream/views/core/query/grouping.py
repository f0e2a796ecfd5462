"""Groups of a reduced view: which rows belong together, told from their encoded keys alone.

Invariants:
1. Two keys are in one group of level n iff they are equal under collation, or both are arrays of
   at least n elements and the first n are equal.
2. Names of groups sort as their rows do, and a name is the beginning of the row keys it stands
   for, and of no others: rows of one group are neighbours.

Elsewhere: encoded keys (`views.core.collation`), what groups are used for
(`views.core.query.executor`).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.views.core.rows import ekey_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["group_name", "group_namer", "shown_key"]

_ARRAY: Final = 6
"""The tag of arrays in both collations."""
_RAW_STRING: Final = 7
_NO_NAME: Final = b"\xff"
"""No key begins so."""


class _Tags(NamedTuple):
    """What tells values apart that go on behind their tag."""

    number: int
    string: int
    object: int


_UNICODE: Final = _Tags(number=4, string=5, object=7)
_RAW: Final = _Tags(number=1, string=_RAW_STRING, object=5)
_END: Final = b"\0\0"
_BITS: Final = Struct(">Q")
_SIGN: Final = 1 << 63
_EXACT: Final = 0x4340000000000000 | _SIGN  # 2**53, sign bit flipped
_LEAST_EXACT: Final = 0x4340000000000000 ^ (_SIGN - 1)  # -2**53, all bits flipped
_INFINITE: Final = 0x7FF0000000000000 | _SIGN
_LEAST_INFINITE: Final = 0x7FF0000000000000 ^ (_SIGN - 1)


def group_namer(level: int | None, *, is_raw: bool = False) -> Callable[[bytes], bytes]:
    """Return a function from row key to name of its group, for keys that come near each other.

    Args:
        level: 0 one group for all, None exact keys.
        is_raw: keys are encoded by raw collation.
    """
    last = _NO_NAME

    def name_of(key: bytes) -> bytes:
        # Hot path: most keys are of the same group as the one before, which costs no look inside.
        nonlocal last
        if not key.startswith(last):
            ekey = ekey_of(key)
            last = ekey if level is None else group_name(ekey, level, is_raw=is_raw)
        return last

    return (lambda key: b"") if level == 0 else name_of


def group_name(ekey: bytes, level: int, *, is_raw: bool = False) -> bytes:
    """Return the name of the group of level `level` >= 1 that an encoded key belongs to."""
    if ekey[0] != _ARRAY:
        return ekey
    tags = _RAW if is_raw else _UNICODE
    at = 1
    for _ in range(level):
        if not ekey[at]:
            return ekey
        at = _skip(ekey, at, tags)
    return ekey[:at]


def shown_key(key: Any, level: int | None) -> Any:
    """Return what a group shows as its key, of the decoded key of its first row."""
    if level == 0:
        return None
    return key if level is None or not isinstance(key, list) else key[:level]


def _skip(ekey: bytes, at: int, tags: _Tags) -> int:
    """Return where the encoded value that begins at `at` ends."""
    tag = ekey[at]
    at += 1
    if tag == tags.string:
        return _skip_string(ekey, at, is_raw=tag == _RAW_STRING)
    if tag == tags.number:
        return _skip_number(ekey, at)
    if tag in (_ARRAY, tags.object):
        # Names and values of an object stand one after the other, like elements.
        while ekey[at]:
            at = _skip(ekey, at, tags)
        return at + 1
    return at


def _skip_string(ekey: bytes, at: int, *, is_raw: bool) -> int:
    if is_raw:  # a 00 of the text is followed by ff
        return ekey.index(_END, at) + 2
    for _ in range(2):  # weights of two bytes, none of them 0
        end = ekey.index(_END, at)
        while (end - at) & 1:
            end = ekey.index(_END, end + 1)
        at = end + 2
    return ekey.index(b"\0", at) + 1


def _skip_number(ekey: bytes, at: int) -> int:
    while True:
        bits: int = _BITS.unpack_from(ekey, at)[0]
        at += 8
        if _LEAST_EXACT < bits < _EXACT:
            return at
        if bits in (_INFINITE, _LEAST_INFINITE):
            size = int.from_bytes(ekey[at : at + 4], "big")
            return at + 4 + (size if bits == _INFINITE else size ^ 0xFFFFFFFF)
