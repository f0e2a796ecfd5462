r"""Row order of views: one JSON key becomes one byte string that sorts as the key does.

    unicode   null < false < true < numbers < strings < arrays < objects
    raw       numbers < false < null < true < objects < arrays < strings

Encoding: one tag byte, then
    number  big-endian double, sign bit flipped (all bits if negative); a double of 2^53 and more
            is followed by the encoding of what it misses of the exact integer
    string  root collation weights: primaries (2 bytes each) 0000 secondaries (2 bytes each) 0000
            tertiaries (1 byte each) 00; trailing common secondaries and tertiaries left out;
            raw: UTF-8 with 00 written as 00 ff, then 00 00
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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "COLLATION_VERSION",
    "KEY_DEPTH_MAX",
    "encode_key",
    "encode_raw_key",
    "encode_string",
    "encoder_of",
]

COLLATION_VERSION: Final = "uca-10.0.0/1 raw/1"
"""Version of both collations, stored beside keys. Keys of another version are encoded anew."""
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

_DOUBLE: Final = Struct(">d").pack
_TAGGED: Final = Struct(">cd").pack
_UINT32: Final = Struct(">I")
_INVERTED: Final = bytes(range(255, -1, -1))
_EXACT: Final = 2**53

_COMMON_SECONDARY: Final = b"\x00\x20"
_COMMON_TERTIARY: Final = b"\x02"
_UPPER_TERTIARY: Final = 8
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


_PRIMARY: Final = {**_weights(9, _SPACE_WEIGHTS), **_weights(32, _PRINTABLE_WEIGHTS)}
_HIGH: Final = bytes(_PRIMARY.get(code, 0) >> 8 for code in range(256))
_LOW: Final = bytes(_PRIMARY.get(code, 0) & 0xFF for code in range(256))
_TERTIARY: Final = bytes(
    _UPPER_TERTIARY if 0x41 <= code <= 0x5A else _COMMON_TERTIARY[0] for code in range(256)
)
_IGNORED: Final = bytes(code for code in range(128) if code not in _PRIMARY)


def encode_key(key: Any) -> bytes:
    """Return the byte string by which `key` (decoded JSON) sorts. O(size of the key). Hot path.

    Raises:
        UsageError: `bad_key`: not JSON (NaN, infinity, another type), or nested deeper than
            KEY_DEPTH_MAX.
    """
    kind = type(key)
    if kind is str:
        return _string_key(key)
    if kind is int and -_EXACT < key < _EXACT:
        # The double of a negative number has its sign bit set, so that of -key has it if key > 0.
        return _TAGGED(_NUMBER, -float(key)) if key >= 0 else _number_key(_NUMBER, key)
    if kind is list:
        return b"%b%b\0" % (_ARRAY, b"".join(map(_element_key, key)))
    return _encode(key, _UNICODE, KEY_DEPTH_MAX)


def encode_raw_key(key: Any) -> bytes:
    """Do what `encode_key` does, for views with raw collation."""
    return _encode(key, _RAW, KEY_DEPTH_MAX)


def encoder_of(collation: str) -> Callable[[Any], bytes]:
    """Return what encodes keys of a view with this collation: unicode or raw."""
    return encode_raw_key if collation == "raw" else encode_key


class _Order(NamedTuple):
    """What differs between the collations."""

    null: bytes
    false: bytes
    true: bytes
    number: bytes
    array: bytes
    object: bytes
    string: Callable[[str], bytes]


def _element_key(key: Any) -> bytes:
    kind = type(key)
    if kind is str:
        return _string_key(key)
    if kind is int and 0 <= key < _EXACT:
        return _TAGGED(_NUMBER, -float(key))
    return _encode(key, _UNICODE, KEY_DEPTH_MAX - 1)


def _encode(key: Any, order: _Order, depth: int) -> bytes:
    # The order of the tests matters only for speed: strings and numbers are the usual parts.
    if isinstance(key, str):
        return order.string(key)
    if key is None:
        return order.null
    if key is True:
        return order.true
    if key is False:
        return order.false
    if isinstance(key, int | float):
        return _number_key(order.number, key)
    if not isinstance(key, list | tuple | dict):
        raise UsageError(f"view key of type {type(key).__name__} is not JSON", code="bad_key")
    if not depth:
        raise UsageError(f"view key nested deeper than {KEY_DEPTH_MAX}", code="bad_key")
    depth -= 1
    if isinstance(key, dict):
        members = [part for pair in key.items() for part in pair]
        return _joined(order.object, members, order, depth)
    return _joined(order.array, key, order, depth)


def _joined(tag: bytes, parts: Sequence[Any], order: _Order, depth: int) -> bytes:
    return tag + b"".join([_encode(part, order, depth) for part in parts]) + _END


def _number_key(tag: bytes, number: float) -> bytes:
    try:
        # Adding 0.0 turns -0.0 into 0.0.
        double = float(number) + 0.0
    except OverflowError:
        return tag + _encode_giant(int(number))
    if not isfinite(double):
        raise UsageError(f"view key {number!r} is not JSON", code="bad_key")
    encoded = tag + _sortable(double)
    if -_EXACT < double < _EXACT:
        return encoded
    # Integers collide as doubles from here on: what the double misses decides.
    missed = number - int(double) if isinstance(number, int) else 0
    return encoded + _number_key(b"", missed)


def _encode_giant(number: int) -> bytes:
    """Encode an integer that no double can hold: infinity, length, magnitude."""
    size = number.bit_length() // 8 + 1
    body = _UINT32.pack(size) + abs(number).to_bytes(size, "big")
    if number > 0:
        return _sortable(inf) + body
    return _sortable(-inf) + body.translate(_INVERTED)


def _sortable(double: float) -> bytes:
    return _DOUBLE(-double) if double >= 0 else _DOUBLE(double).translate(_INVERTED)


@lru_cache(maxsize=_STRINGS_CACHED)
def _string_key(text: str) -> bytes:
    return _STRING + encode_string(text)


def encode_string(text: str) -> bytes:
    """Return the collation key of a string, terminator included."""
    if not text.isascii():
        return _encode_by_table(text)
    data = text.encode().translate(None, _IGNORED)
    primary = bytearray(2 * len(data))
    primary[::2], primary[1::2] = data.translate(_HIGH), data.translate(_LOW)
    # No ASCII character has an accent, so the secondaries are all common and left out.
    tertiary = data.translate(_TERTIARY).rstrip(_COMMON_TERTIARY)
    return b"%b\0\0\0\0%b\0" % (bytes(primary), tertiary)


def _raw_string_key(text: str) -> bytes:
    data = text.encode(errors="surrogatepass").replace(b"\0", b"\0\xff")
    return b"%b%b\0\0" % (_RAW_STRING, data)


_RAW_STRING: Final = b"\x07"
_UNICODE: Final = _Order(_NULL, _FALSE, _TRUE, _NUMBER, _ARRAY, _OBJECT, _string_key)
_RAW: Final = _Order(
    null=b"\x03", false=b"\x02", true=b"\x04", number=b"\x01", array=b"\x06", object=b"\x05",
    string=_raw_string_key,
)  # fmt: skip


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
