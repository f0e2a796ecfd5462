"""Replies of commands as bytes that depend on no protocol version: made at apply, shown later.

The first byte gives the kind: `+` a status, `-` an error (code, space, words), `=` bytes, `:` a
number, `#` a truth value (t, f), `_` nothing, `*` a list, `%` a map, `~` a set. The last three go
on with their number of values (4 bytes) and, for each, its length (4 bytes) and the value. `>` is
like `*`, for a push; it is never stored.

Invariants:
1. One value has one encoding, so replies of all members are equal.
2. A value is shown in RESP2 and RESP3 from the same bytes.

Elsewhere: RESP (`coordination.core.resp.protocol`), which values a command gives (the state
machine, the pool).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final

__all__ = [
    "NULL",
    "OK",
    "array",
    "bulk",
    "error",
    "integer",
    "items",
    "mapping",
    "members",
    "push",
    "status",
    "truth",
]

OK: Final = b"+OK"
NULL: Final = b"_"
_SIZE: Final = Struct(">I")


def status(word: bytes) -> bytes:
    """A result in one word."""
    return b"+" + word


def error(code: str, text: str = "") -> bytes:
    """Why a command was not done; codes are those of the reference."""
    return f"-{code} {text}".rstrip().encode()


def bulk(data: bytes) -> bytes:
    """Bytes as they are."""
    return b"=" + data


def integer(number: int) -> bytes:
    """A whole number of any size."""
    return b":%d" % number


def truth(is_so: bool) -> bytes:
    """Yes or no."""
    return b"#t" if is_so else b"#f"


def array(values: Sequence[bytes]) -> bytes:
    """Values in their order."""
    return b"*" + _joined(values)


def members(values: Sequence[bytes]) -> bytes:
    """A set, in the order given."""
    return b"~" + _joined(values)


def push(values: Sequence[bytes]) -> bytes:
    """Values in their order that are no reply."""
    return b">" + _joined(values)


def mapping(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A map from names to values, in the order given."""
    return b"%" + _joined([part for name, value in pairs for part in (bulk(name), value)])


def items(value: bytes) -> list[bytes]:
    """Return the values of a list, map (names and values in turn) or set."""
    (number,) = _SIZE.unpack_from(value, 1)
    at, found = 1 + _SIZE.size, []
    for _ in range(number):
        (length,) = _SIZE.unpack_from(value, at)
        at += _SIZE.size
        found.append(value[at : at + length])
        at += length
    return found


def _joined(values: Sequence[bytes]) -> bytes:
    parts = [_SIZE.pack(len(values))]
    for value in values:
        parts.append(_SIZE.pack(len(value)))
        parts.append(value)
    return b"".join(parts)
