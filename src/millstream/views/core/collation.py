r"""Row order of views: one JSON key becomes one byte string that sorts as the key does.

    null < false < true < numbers < strings < arrays < objects

Encoding: one tag byte, then
    number  big-endian double, sign bit flipped (all bits if negative); a double of 2^53 and more
            is followed by the encoding of what it misses of the exact integer
    string  root collation weights: primaries (2 bytes each) 0000 secondaries (2 bytes each) 0000
            tertiaries (1 byte each) 00; trailing common secondaries and tertiaries left out
    array   its elements, then 00; object: its members in stored order, name and value, then 00

Invariants:
1. encode_key(a) < encode_key(b) iff a sorts before b; equal iff they are equal under collation
   (1 and 1.0; "a" and "\u0000a": control characters are ignorable).
2. No encoding is a proper prefix of another, so encodings may be joined.
3. ASCII strings never load the collation table; both paths give the same bytes.

Elsewhere: document ids, which compare bytewise.
Source: Unicode Technical Standard 10 with the root table of `pyuca`, variables not ignored.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import inf, isfinite
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from millstream.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["COLLATION_VERSION", "KEY_DEPTH_MAX", "encode_key", "encode_string"]

COLLATION_VERSION: Final = "uca-10.0.0/1"
"""Recorded beside stored keys: keys of another version must be encoded anew."""
KEY_DEPTH_MAX: Final = 200
"""Nested arrays and objects in a key."""

_NULL: Final = b"\x01"
_FALSE: Final = b"\x02"
_TRUE: Final = b"\x03"
_NUMBER: Final = b"\x04"
_STRING: Final = b"\x05"
_ARRAY: Final = b"\x06"
_OBJECT: Final = b"\x07"
_END: Final = b"\x00"

_DOUBLE: Final = Struct(">d")
_BITS: Final = Struct(">Q")
_UINT32: Final = Struct(">I")
_SIGN: Final = 1 << 63
_ALL: Final = (1 << 64) - 1
_EXACT: Final = float(2**53)

_COMMON_SECONDARY: Final = b"\x00\x20"
_COMMON_TERTIARY: Final = b"\x02"
_UPPER_TERTIARY: Final = "\x08"
_STRINGS_CACHED: Final = 8192

# Primary weights of tab to carriage return, then of space to tilde; the other control
# characters are ignorable. A test compares them with the table.
_SPACE_WEIGHTS: Final = "02010202020302040205"
_PRINTABLE_WEIGHTS: Final = (
    "02090261030d03991c77039a03970306031803190390062c0222020d02780395"
    "1ca31ca41ca51ca61ca71ca81ca91caa1cab1cac023a02340630063106320267"
    "038f1cad1cc61ce01cf51d101d4b1d5a1d7e1d981db21dcb1ddd1e101e1f1e43"
    "1e721e871e991ed71efb1f1b1f491f5b1f651f711f87031a0396031b049b020b"
    "04981cad1cc61ce01cf51d101d4b1d5a1d7e1d981db21dcb1ddd1e101e1f1e43"
    "1e721e871e991ed71efb1f1b1f491f5b1f651f711f87031c0634031d0636"
)


def _weights(first: int, text: str) -> dict[int, int]:
    return {first + at // 4: int(text[at : at + 4], 16) for at in range(0, len(text), 4)}


_PRIMARY: Final[dict[int, int | None]] = {
    **dict.fromkeys(range(128)),
    **_weights(9, _SPACE_WEIGHTS),
    **_weights(32, _PRINTABLE_WEIGHTS),
}
_TERTIARY: Final[dict[int, str | None]] = {
    code: None if weight is None else _UPPER_TERTIARY if chr(code).isupper() else "\x02"
    for code, weight in _PRIMARY.items()
}


def encode_key(key: Any) -> bytes:
    """Return the byte string by which `key` (decoded JSON) sorts. O(size of the key).

    Raises:
        UsageError: `bad_key`: not JSON (NaN, infinity, another type), or nested deeper than
            KEY_DEPTH_MAX.
    """
    parts: list[bytes] = []
    _append(key, parts.append, KEY_DEPTH_MAX)
    return b"".join(parts)


def _append(key: Any, put: Callable[[bytes], None], depth: int) -> None:
    # The order of the tests matters only for speed: strings and numbers are the usual parts.
    if isinstance(key, str):
        put(_STRING)
        put(encode_string(key))
    elif key is None:
        put(_NULL)
    elif key is True:
        put(_TRUE)
    elif key is False:
        put(_FALSE)
    elif isinstance(key, int | float):
        put(_NUMBER)
        put(_encode_number(key))
    elif not depth:
        raise UsageError(f"view key nested deeper than {KEY_DEPTH_MAX}", code="bad_key")
    elif isinstance(key, list | tuple):
        put(_ARRAY)
        for element in key:
            _append(element, put, depth - 1)
        put(_END)
    elif isinstance(key, dict):
        put(_OBJECT)
        for name, value in key.items():
            put(_STRING)
            put(encode_string(name))
            _append(value, put, depth - 1)
        put(_END)
    else:
        raise UsageError(f"view key of type {type(key).__name__} is not JSON", code="bad_key")


def _encode_number(number: float) -> bytes:
    try:
        # Adding 0.0 turns -0.0 into 0.0.
        double = float(number) + 0.0
    except OverflowError:
        return _encode_giant(int(number))
    if not isfinite(double):
        raise UsageError(f"view key {number!r} is not JSON", code="bad_key")
    if -_EXACT < double < _EXACT:
        return _sortable(double)
    # Integers collide as doubles from here on: what the double misses decides.
    missed = number - int(double) if isinstance(number, int) else 0
    return _sortable(double) + _encode_number(missed)


def _encode_giant(number: int) -> bytes:
    """Encode an integer that no double can hold: infinity, length, magnitude."""
    size = number.bit_length() // 8 + 1
    body = _UINT32.pack(size) + abs(number).to_bytes(size, "big")
    if number > 0:
        return _sortable(inf) + body
    return _sortable(-inf) + bytes(255 - byte for byte in body)


def _sortable(double: float) -> bytes:
    bits: int = _BITS.unpack(_DOUBLE.pack(double))[0]
    return _BITS.pack(bits ^ (_ALL if bits & _SIGN else _SIGN))


@lru_cache(maxsize=_STRINGS_CACHED)
def encode_string(text: str) -> bytes:
    """Return the collation key of a string, terminator included."""
    if text.isascii():
        primary = text.translate(_PRIMARY).encode("utf-16-be")
        # No ASCII character has an accent, so the secondaries are all common and left out.
        tertiary = text.translate(_TERTIARY).encode("ascii")
        return b"%b\0\0\0\0%b\0" % (primary, tertiary.rstrip(_COMMON_TERTIARY))
    return _encode_by_table(text)


def _encode_by_table(text: str) -> bytes:
    levels: list[list[int]] = [[], [], [], []]
    level = 0
    for weight in _sort_key()(text):
        if weight:
            levels[level].append(weight)
        else:
            level += 1
    primary, secondary, tertiary, _ = levels
    seconds = b"".join(weight.to_bytes(2, "big") for weight in secondary)
    while seconds.endswith(_COMMON_SECONDARY):
        seconds = seconds[:-2]
    return b"%b\0\0%b\0\0%b\0" % (
        b"".join(weight.to_bytes(2, "big") for weight in primary),
        seconds,
        bytes(tertiary).rstrip(_COMMON_TERTIARY),
    )


@cache
def _sort_key() -> Callable[[str], tuple[int, ...]]:
    """Load the table once; its version is fixed, whatever the interpreter's Unicode version."""
    from pyuca.collator import Collator_10_0_0

    sort_key: Callable[[str], tuple[int, ...]] = Collator_10_0_0().sort_key
    return sort_key
