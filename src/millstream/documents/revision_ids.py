"""Signatures of revisions as CouchDB makes them: the same change on two peers is one revision.

The MD5 of a list in Erlang's external term format: whether it is a deletion, generation and
signature of the parent, body, attachments.

Invariants:
1. The signature is a function of what stands in the change: no time, no chance, no place.
2. Members count in the document's order, and 1.0 is not 1. Numbers are those that CouchDB's
   decoder reads, also where it loses precision.

Elsewhere: bodies as text (`documents.json_text`); signatures of what kv wrote (`model.revision`,
`documents.stored`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import md5
from itertools import repeat
from struct import Struct
from typing import Any, Final

from millstream.documents.json_text import LARGE_BYTES, may_repeat, parse_exactly
from millstream.documents.revisions import parse_rev, to_bytes
from millstream.documents.stored import Attachment

__all__ = ["signature_of", "term_of_body"]

_COUNT: Final = Struct(">BI").pack
_INTEGER: Final = Struct(">Bi").pack
_FLOAT: Final = Struct(">Bd").pack
_BINARY: Final = 109
_LIST: Final = 108
_BYTES_OF_INTEGERS: Final = Struct(">BH").pack
_STRING_LIST: Final = 107
_STRING_LIST_MAX: Final = 65_535
_SMALL: Final = tuple(bytes((97, number)) for number in range(256))
_ATOMS: Final[dict[Any, bytes]] = {
    None: b"d\x00\x04null",
    True: b"d\x00\x04true",
    False: b"d\x00\x05false",
}
_UNDEFINED: Final = b"d\x00\x09undefined"
_NORMAL_MIN: Final = 2.0**-1022
"""The least positive float of full precision."""
_LONG_NUMBER: Final = 32
"""Characters from which on CouchDB's decoder reads a number in another way."""
_SHORT_MAX: Final = 1e20
"""Below it no integer times a power of ten, of so many characters, that is not divided."""
_LOOK_AGAIN: Final = -(1 << 60)
"""Makes the count of members wrong, so that the body is parsed again from its text."""
_NIL: Final = b"j"
_TUPLE_OF_2: Final = b"h\x02"
_NAME_CHARACTERS_MAX: Final = 64
"""Most characters of a member name whose term is cached."""
_JOINED_MAX: Final = 4096
"""Values of an array that are joined at a time: other threads wait meanwhile."""
_NAMES_MAX: Final = 4096
"""Member names whose terms are remembered."""
_HEADS: Final = {
    is_deleted: b"\x83l\x00\x00\x00\x05" + _ATOMS[is_deleted] for is_deleted in (False, True)
}
_NO_PARENT: Final = b"a\x00a\x00"
_HEX_DIGITS: Final = 32


def signature_of(
    body: bytes,
    content: Mapping[str, Any],
    *,
    is_deleted: bool = False,
    parent: str | None = None,
    attachments: Mapping[str, Attachment] | None = None,
    begins_anew: bool = False,
    term: bytes | None = None,
) -> str:
    """Return the 32 hex digits of a new revision. Hot path.

    Args:
        body: as it is stored.
        content: the body decoded, by `json_text.parse`.
        is_deleted: whether it is a deletion.
        parent: the revision that it replaces.
        attachments: all that it has, in the document's order.
        begins_anew: whether it goes on from a deletion that it does not name: CouchDB counts only
            how many attachments it has then, not which.
        term: what `term_of_body` returned of body and content, if it was asked before.
    """
    if term is None:
        term = term_of_body(body, content)
    head = _HEADS[is_deleted] + _parent(parent)
    attached = _NIL
    if attachments:
        attached = _counted(len(attachments)) if begins_anew else _attached(attachments)
    if len(term) <= LARGE_BYTES:
        return md5(b"".join((head, term, attached, _NIL)), usedforsecurity=False).hexdigest()
    digest = md5(head, usedforsecurity=False)
    digest.update(term)  # other threads run meanwhile
    digest.update(attached + _NIL)
    return digest.hexdigest()


def term_of_body(body: bytes, content: Mapping[str, Any]) -> bytes:
    """Return what of a revision's term is the body's: most of the work. Hot path."""
    sizes: list[int] = []
    term = _object(content, sizes)
    if may_repeat(body, sum(sizes)):
        term = _object(parse_exactly(body, _float_of), sizes)
    return term


def _float_of(text: str) -> float:
    """Return the number that CouchDB's decoder makes of a text.

    It takes a text without a fraction for a product where it is long, or too small for a normal
    number: 5e-324 is 5 times 0.
    """
    number = float(text)
    if "." in text or (len(text) < _LONG_NUMBER and not 0 < abs(number) < _NORMAL_MIN):
        return number
    whole, _, exponent = text.lower().partition("e")
    try:
        return float(int(whole) * pow(10.0, int(exponent)))
    except (OverflowError, ValueError):
        return number


def _counted(count: int) -> bytes:
    return _COUNT(_LIST, count) + (b"h\x03" + _UNDEFINED * 3) * count + _NIL


def _parent(rev: str | None) -> bytes:
    if rev is None:
        return _NO_PARENT
    generation, text = parse_rev(rev)
    signature = to_bytes(text)
    if signature.hex() != text:
        signature = text.encode()
    return _integer(generation) + _binary(signature)


def _attached(attachments: Mapping[str, Attachment]) -> bytes:
    parts = [_COUNT(_LIST, len(attachments))]
    for name in reversed(list(attachments)):
        one = attachments[name]
        parts.append(
            b"h\x03" + _binary(name.encode()) + _binary(one.content_type.encode())
            + _binary(one.md5)
        )  # fmt: skip
    parts.append(_NIL)
    return b"".join(parts)


def _object(members: Mapping[str, Any], sizes: list[int]) -> bytes:
    """Return the term of an object; how many members it has is put behind `sizes`.

    `_LOOK_AGAIN` is put there, too, where it depends on the text of a number.
    """
    if not members:
        return b"h\x01j"
    sizes.append(len(members))
    parts = [b"h\x01", _COUNT(_LIST, len(members))]
    add = parts.append
    for name, value in members.items():
        add(_known_name(name) if len(name) <= _NAME_CHARACTERS_MAX else _name(name))
        kind = type(value)
        if kind is str:
            text = value.encode()
            add(_COUNT(_BINARY, len(text)) + text)
        elif kind is dict:
            add(_object(value, sizes))
        elif kind is list:
            add(_array(value, sizes))
        else:
            add(_scalar(value, sizes))
    add(_NIL)
    return b"".join(parts)


def _array(values: list[Any], sizes: list[int]) -> bytes:
    if not values:
        return _NIL
    if len(values) <= _STRING_LIST_MAX and set(map(type, values)) == {int}:
        try:
            return _BYTES_OF_INTEGERS(_STRING_LIST, len(values)) + bytes(values)
        except (ValueError, OverflowError):
            pass  # integers, but not all from 0 to 255
    parts = [_COUNT(_LIST, len(values))]
    for begin in range(0, len(values), _JOINED_MAX):
        # Two frames a level: as deep as a text may be, the interpreter goes.
        some = values[begin : begin + _JOINED_MAX]
        parts.append(b"".join(map(_term, some, repeat(sizes))))
    parts.append(_NIL)
    return b"".join(parts)


def _term(value: Any, sizes: list[int]) -> bytes:
    kind = type(value)
    if kind is str:
        return _binary(value.encode())
    if kind is dict:
        return _object(value, sizes)
    if kind is list:
        return _array(value, sizes)
    return _scalar(value, sizes)


def _scalar(value: float | bool | None, sizes: list[int]) -> bytes:
    kind = type(value)
    if kind is int:
        return _integer(value)  # type: ignore[arg-type]  # the line above says so
    if kind is float:
        if not _NORMAL_MIN <= abs(value) < _SHORT_MAX and value:  # type: ignore[arg-type]
            sizes.append(_LOOK_AGAIN)
        return _FLOAT(70, value)
    return _ATOMS[value]


def _integer(number: int) -> bytes:
    if 0 <= number <= 255:
        return _SMALL[number]
    if -(1 << 31) <= number < 1 << 31:
        return _INTEGER(98, number)
    size = abs(number)
    magnitude = size.to_bytes((size.bit_length() + 7) // 8, "little")
    sign = bytes((number < 0,))
    if len(magnitude) <= 255:
        return b"n" + bytes((len(magnitude),)) + sign + magnitude
    return _COUNT(111, len(magnitude)) + sign + magnitude


def _binary(data: bytes) -> bytes:
    return _COUNT(_BINARY, len(data)) + data


def _name(name: str) -> bytes:
    return _TUPLE_OF_2 + _binary(name.encode())


_known_name: Final = lru_cache(_NAMES_MAX)(_name)
