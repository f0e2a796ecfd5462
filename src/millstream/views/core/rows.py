"""How one row of a view is kept in a tree: the bytes of its key and of its value.

    key    encoded key, document id with 00 written as 00 ff, 00, length of that id (u16)
    value  msgpack array of byte strings: JSON key, JSON value, and so on, one pair per emit

Invariants:
1. Keys sort as (encoded key, document id), ids bytewise: no encoded key is a prefix of another,
   and an id that continues where another ends has a greater byte than its 00, or 00 and then ff,
   which is greater than any high byte of a length.
2. A document that emits equal encoded keys has one row with all its pairs, in the order of their
   values that CouchDB has: numbers, false, null, true, objects, arrays, strings by their bytes.
   (Indexes made before that order was kept have them in the order of emits.)
3. JSON texts are kept as they came: answers are joined from them, not encoded anew.

Elsewhere: encoded keys (`views.core.collation`), the tree (`trees`).
"""

from __future__ import annotations

from operator import attrgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "EKEY_BYTES_MAX",
    "ekey_of",
    "emits_in",
    "in_order_of_values",
    "numbers_of",
    "pairs_of",
    "pairs_of_all",
    "row_key",
    "row_value",
    "split_row_key",
]

EKEY_BYTES_MAX: Final = 32 * 1024
"""Bytes of an encoded key; a document that emits a longer one loses its rows of that view."""

_TAIL: Final = Struct(">xH").pack
_TAIL_BYTES: Final = 3
_ARRAY_OF: Final = Struct(">BI")
_ARRAY32: Final = 0xDD
_ONE_PAIR: Final = 0x92  # a msgpack array of two
_encode: Final = msgspec.msgpack.encode
_decode: Final = msgspec.msgpack.Decoder(list[bytes]).decode
_decode_json: Final = msgspec.json.decode
_decode_all: Final = msgspec.msgpack.Decoder(list[list[bytes]]).decode
_decode_numbers: Final = msgspec.json.Decoder(list[int | float]).decode


class _Pair(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """The one pair of a row: made with less than a list or a tuple."""

    key: bytes
    value: bytes


_decode_pairs: Final = msgspec.msgpack.Decoder(list[_Pair]).decode
_value_text: Final = attrgetter("value")


def row_key(ekey: bytes, doc_id: bytes) -> bytes:
    """Return the key of a document's row (`doc_id` of at most 32,000 bytes). Hot path."""
    if 0 in doc_id:
        doc_id = doc_id.replace(b"\0", b"\0\xff")
    return ekey + doc_id + _TAIL(len(doc_id))


def split_row_key(key: bytes) -> tuple[bytes, bytes]:
    """Reverse `row_key`: return (encoded key, document id)."""
    end = len(key) - _TAIL_BYTES
    start = end - int.from_bytes(key[-2:], "big")
    doc_id = key[start:end]
    return key[:start], doc_id.replace(b"\0\xff", b"\0") if b"\0" in doc_id else doc_id


def ekey_of(key: bytes) -> bytes:
    """Return the encoded key alone."""
    return key[: len(key) - _TAIL_BYTES - int.from_bytes(key[-2:], "big")]


def row_value(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the value of a row: at least one (JSON key, JSON value)."""
    return _encode([text for pair in pairs for text in pair])


def in_order_of_values(pairs: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the pairs of one row in the order in which they are kept."""
    try:
        return sorted(pairs, key=lambda pair: _rank(_decode_json(pair[1])))
    except (msgspec.DecodeError, RecursionError):  # nested too deeply to be compared
        return sorted(pairs, key=lambda pair: pair[1])


def _rank(value: Any) -> tuple[int, Any]:
    """Return what compares values of JSON as Erlang does what CouchDB makes of them."""
    if value is None or isinstance(value, bool):
        return 1, "null" if value is None else str(value).lower()
    if isinstance(value, int | float):
        return 0, value
    if isinstance(value, dict):
        return 2, [(name.encode(), _rank(member)) for name, member in value.items()]
    if isinstance(value, list):
        return 3, list(map(_rank, value))
    return 4, value.encode()


def pairs_of(value: bytes) -> list[tuple[bytes, bytes]]:
    """Reverse `row_value`."""
    texts = _decode(value)
    if len(texts) == 2:
        return [(texts[0], texts[1])]
    return list(zip(texts[::2], texts[1::2], strict=True))


def pairs_of_all(values: Sequence[bytes]) -> list[list[bytes]]:
    """Return, for each of many row values, its texts: JSON key, JSON value, and so on.

    One call for a whole leaf: values are joined and decoded at once.
    """
    return _decode_all(_ARRAY_OF.pack(_ARRAY32, len(values)) + b"".join(values))


def numbers_of(values: Sequence[bytes]) -> list[int | float] | None:
    """Return the decoded value of each of many row values where all are of one emit and a number.

    Two calls for any number of leaves; None: something is not, or cannot be decoded. Hot path.
    """
    try:
        pairs = _decode_pairs(_ARRAY_OF.pack(_ARRAY32, len(values)) + b"".join(values))
        return _decode_numbers(b"[%b]" % b",".join(map(_value_text, pairs)))
    except (msgspec.DecodeError, RecursionError):
        return None


def emits_in(values: Sequence[bytes]) -> int:
    """Return how many pairs many row values have; the usual ones, of one pair, are not decoded."""
    several = [value for value in values if value[0] != _ONE_PAIR]
    return len(values) - len(several) + sum(map(len, pairs_of_all(several))) // 2
