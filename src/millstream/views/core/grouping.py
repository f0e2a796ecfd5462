"""Groups of a reduced view: which rows belong together, told from their encoded keys alone.

Invariants:
1. Two keys are in one group of level n iff they are equal under collation, or both are arrays of
   at least n elements and the first n are equal.
2. Names of groups sort as their rows do, and a name is the beginning of the row keys it stands
   for: rows of one group are neighbours.

Elsewhere: encoded keys (`views.core.collation`), what groups are used for (`views.core.executor`).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from millstream.views.core.rows import ekey_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["group_name", "group_namer", "shown_key"]

_NUMBER, _STRING, _ARRAY, _OBJECT = b"\x04\x05\x06\x07"
_END: Final = b"\0\0"
_BITS: Final = Struct(">Q")
_SIGN: Final = 1 << 63
_EXACT: Final = 0x4340000000000000 | _SIGN  # 2**53, sign bit flipped
_LEAST_EXACT: Final = 0x4340000000000000 ^ (_SIGN - 1)  # -2**53, all bits flipped
_INFINITE: Final = 0x7FF0000000000000 | _SIGN
_LEAST_INFINITE: Final = 0x7FF0000000000000 ^ (_SIGN - 1)


def group_namer(level: int | None) -> Callable[[bytes], bytes]:
    """Return the function from row key to name of its group.

    Args:
        level: 0 one group for all, None exact keys.
    """
    if level == 0:
        return lambda key: b""
    if level is None:
        return ekey_of
    return lambda key: group_name(ekey_of(key), level)


def group_name(ekey: bytes, level: int) -> bytes:
    """Return the name of the group of level `level` >= 1 that an encoded key belongs to."""
    if ekey[0] != _ARRAY:
        return ekey
    at = 1
    for _ in range(level):
        if not ekey[at]:
            return ekey
        at = _skip(ekey, at)
    return ekey[:at]


def shown_key(key: Any, level: int | None) -> Any:
    """Return what a group shows as its key, of the decoded key of its first row."""
    if level == 0:
        return None
    return key if level is None or not isinstance(key, list) else key[:level]


def _skip(ekey: bytes, at: int) -> int:
    """Return where the encoded value that begins at `at` ends."""
    tag = ekey[at]
    at += 1
    if tag == _STRING:
        return _skip_string(ekey, at)
    if tag == _NUMBER:
        return _skip_number(ekey, at)
    if tag in (_ARRAY, _OBJECT):
        # Names and values of an object stand one after the other, like elements.
        while ekey[at]:
            at = _skip(ekey, at)
        return at + 1
    return at


def _skip_string(ekey: bytes, at: int) -> int:
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
