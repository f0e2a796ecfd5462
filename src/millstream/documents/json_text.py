"""JSON text of documents: read strictly, and cut into special members and the rest.

Invariants:
1. What is stored is the members' values as they were written, spaces and escapes included, and
   between them nothing but their names, `:` and `,`. Those whose name begins with `_` are cut out,
   but for the few that CouchDB keeps as ordinary members (`KEPT_MEMBERS`).
2. Of members with the same name the last counts, and stands where the last stands, as in CouchDB.
   Inside values the text of the others stays, too.
3. A number with a fraction or exponent is a float, any other an integer, however large.
4. Refused: NaN and infinities, also those of exponents; lone surrogates; what is not UTF-8; what
   is nested deeper than `JSON_DEPTH_MAX`; integers of more than `INTEGER_DIGITS_MAX` digits; more
   than `VALUES_MAX` values, before any of them takes memory.

Elsewhere: what special members say (`documents.sent`), ids made of bodies
(`documents.revision_ids`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from math import isinf
from typing import Any, Final, NamedTuple

import msgspec

from millstream.errors import UsageError
from millstream.model.limits import VALUE_BYTES_MAX

__all__ = [
    "INTEGER_DIGITS_MAX",
    "JSON_DEPTH_MAX",
    "KEPT_MEMBERS",
    "LARGE_BYTES",
    "VALUES_MAX",
    "Cut",
    "check_values",
    "cut",
    "emptied",
    "is_plain_here",
    "is_plain_object",
    "is_special",
    "judge_large_values",
    "may_repeat",
    "parse",
    "parse_exactly",
    "parse_object",
]

JSON_DEPTH_MAX: Final = 256
"""Objects and arrays inside each other."""
INTEGER_DIGITS_MAX: Final = 20_000
"""Most digits of one number: the time to convert it grows faster than its length."""
VALUES_MAX: Final = 4_000_000
"""Most values in one text: each takes up to a hundred bytes of memory, however short it is. Commas
and brackets are counted, also those in strings."""
LARGE_BYTES: Final = 512 * 1024
"""A longer text takes so long to be copied or looked through, up to some milliseconds a time, that
it is done as seldom as possible, and not in one step with other work."""
KEPT_MEMBERS: Final = frozenset((
    "_access", "_replication_id", "_replication_state", "_replication_state_reason",
    "_replication_state_time", "_replication_stats",
))  # fmt: skip
"""Members of documents that mean nothing here and are content all the same, as in CouchDB."""
_VALUE_BYTES_MIN: Final = 2
"""Fewest bytes of a value with its separator."""
_INT_DIGITS: Final = 4000
"""What `int` converts whatever the interpreter's own limit is."""
_BACKSLASH: Final = 0x5C
_STRINGS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_TOKENS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{\]}]', re.DOTALL).finditer
"""Strings, and the brackets outside of them."""
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""One down, or, as signed bytes, one up."""
_COLON: Final = b'":'
"""What stands behind a name, unless there are spaces between."""
_SPACED_COLON: Final = re.compile(rb'"[ \t\r\n]+:')
_QUOTE_AND_SPACE: Final = re.compile(rb'"[ \t\r\n]').search
_OUTSIDE: Final = re.compile(rb'(?:[^"]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL).match
"""What is no string, and whole strings."""
WINDOW_BYTES: Final = 256 * 1024
"""Bytes of a text that are examined at a time: other threads wait meanwhile."""


class _Anything(msgspec.Struct):
    """Decoding into it checks that a text is one JSON object, and keeps nothing."""


_check: Final = msgspec.json.Decoder(_Anything).decode
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode
_NO_DOCUMENT: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class Cut(NamedTuple):
    """A document's text in two."""

    special: dict[str, bytes]
    """Texts of the special members."""
    body: bytes
    """Object of the other members."""
    content: dict[str, Any]
    """The body, decoded; repeated members stand where the first does (`parse_exactly`)."""


def is_special(name: str) -> bool:
    """Return whether a document's member is no content: its name begins with `_`."""
    return name[:1] == "_" and name not in KEPT_MEMBERS


_judges: Final[list[Callable[[bytes], bool]]] = []


def judge_large_values(judge: Callable[[bytes], bool] | None) -> None:
    """Have `is_plain_object` call this function for large values; None: no longer."""
    _judges[:] = [] if judge is None else [judge]


def is_plain_object(value: bytes) -> bool:
    """Return whether a value is a JSON object without a special top-level member.

    An object of more than `VALUES_MAX` values does not count: it would be too large to be read.
    """
    if len(value) > LARGE_BYTES and _judges:
        return _judges[0](value)
    return is_plain_here(value)


def is_plain_here(value: bytes) -> bool:
    """Return what `is_plain_object` returns, without the function for large values."""
    if _has_too_many(value):
        return False
    try:
        _check(value)
        if not value.isascii():
            value.decode()
        # A name begins with `_` or its escape `\u005f`: a text without both needs no closer look.
        # `rfind` takes half the time of `find`.
        return not (
            (value.rfind(b'"_') >= 0 or (_BACKSLASH in value and b"\\u005" in value))
            and any(map(is_special, _members(value)))
        )
    except _NO_DOCUMENT:
        return False


def cut(text: bytes) -> Cut:
    """Return a document's special members and its body. Hot path.

    Raises:
        UsageError: `bad_request`: no object; `bad_json`: no JSON, or what is refused; `too_large`;
            `document_too_large`.
    """
    check_values(text)
    try:
        members = _members(text)
    except msgspec.ValidationError as error:
        raise UsageError("Document must be a JSON object", code="bad_request") from error
    except _NO_DOCUMENT as error:
        raise _no_json(error) from error
    colons = _count(text, _COLON)
    special, kept = {}, {}
    for name, raw in members.items():
        colons -= _count(bytes(raw), _COLON)
        if name[:1] == "_" and name not in KEPT_MEMBERS:
            special[name] = bytes(raw)
        else:
            kept[name] = raw
    if colons != len(members) or _has_spaced_colon(text):  # members may be repeated
        kept = {name: kept[name] for name in parse_exactly(text) if name in kept}
    body = _encode(kept)
    if len(body) > VALUE_BYTES_MAX:
        raise UsageError(
            f"a document has at most {VALUE_BYTES_MAX} bytes", code="document_too_large"
        )
    return Cut(special, body, parse(body))


def check_values(text: bytes) -> None:
    """Refuse a text of more values than are taken apart at a time.

    Raises:
        UsageError: `too_large`.
    """
    if _has_too_many(text):
        raise UsageError(
            f"a body has at most {VALUES_MAX} values, commas and brackets inside of strings "
            "counted; send less at a time",
            code="too_large",
        )


def _has_too_many(text: bytes) -> bool:
    if len(text) <= VALUES_MAX * _VALUE_BYTES_MIN:
        return False
    return sum(_count(text, mark) for mark in (b",", b"[", b"{")) > VALUES_MAX


def may_repeat(text: bytes, members: int) -> bool:
    """Return whether objects in a text may have members of the same name. Hot path.

    Args:
        text: of a value.
        members: how many there are in the value, at all depths.
    """
    return _count(text, _COLON) != members or _has_spaced_colon(text)


def _count(text: bytes, mark: bytes) -> int:
    """Do what `text.count` does."""
    size = len(text)
    if size <= WINDOW_BYTES:
        return text.count(mark)
    more = len(mark) - 1
    return sum(
        text.count(mark, begin, min(size, begin + WINDOW_BYTES + more))
        for begin in range(0, size, WINDOW_BYTES)
    )


def _has_spaced_colon(text: bytes) -> bool:
    """Return whether there are spaces between some string and a colon behind it."""
    size = len(text)
    if size <= WINDOW_BYTES:
        return _SPACED_COLON.search(text) is not None
    for begin in range(0, size, WINDOW_BYTES):
        at, end = begin, min(size, begin + WINDOW_BYTES + 1)
        while (found := _QUOTE_AND_SPACE(text, at, end)) is not None:
            if _SPACED_COLON.match(text, found.start()):
                return True
            at = found.end()
    return False


def parse(text: bytes) -> Any:
    """Return a JSON text's value; of repeated members the last at the place of the first.

    Raises:
        UsageError: `bad_json`, `too_large`.
    """
    check_values(text)
    try:
        value = _decode(text)
    except msgspec.ValidationError:
        return parse_exactly(text)  # a number that is too large, or larger than the decoder knows
    except _NO_DOCUMENT as error:
        raise _no_json(error) from error
    _check_depth(text)
    return value


def parse_object(text: bytes) -> dict[str, Any]:
    """Return the object that the body of a request is; raises as `parse`."""
    content = parse(text)
    if not isinstance(content, dict):
        raise UsageError("the body must be a JSON object", code="bad_json")
    return content


def parse_exactly(text: bytes, float_of: Callable[[str], float] = float) -> Any:
    """Return a JSON text's value, members where the last of their name stands.

    Some six times as slow as `parse`.

    Args:
        text: of the value.
        float_of: makes a float of the text of a number with a fraction or an exponent.

    Raises:
        UsageError: `bad_json`.
    """
    try:
        _raw(text)
        _check_depth(text)
        return json.loads(
            text.decode(), object_pairs_hook=_last_ones, parse_int=_integer,
            parse_float=partial(_float, float_of),
        )  # fmt: skip
    except (*_NO_DOCUMENT, ValueError) as error:
        raise _no_json(error) from error


def _last_ones(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        members.clear()
        for name, value in pairs:
            members.pop(name, None)
            members[name] = value
    return members


def _integer(digits: str) -> int:
    if len(digits) <= _INT_DIGITS:
        return int(digits)
    if len(digits) > INTEGER_DIGITS_MAX:
        raise ValueError(f"an integer of more than {INTEGER_DIGITS_MAX} digits")
    if digits[0] == "-":
        return -_integer(digits[1:])
    half = len(digits) // 2
    shift: int = 10 ** (len(digits) - half)
    return _integer(digits[:half]) * shift + _integer(digits[half:])


def _float(float_of: Callable[[str], float], text: str) -> float:
    number = float_of(text)
    if isinf(number):
        raise ValueError("a number out of range")
    return number


def _check_depth(text: bytes) -> None:
    if _count(text, b"[") + _count(text, b"{") <= JSON_DEPTH_MAX:
        return
    depth = begin = 0
    while begin < len(text):
        end = _end_outside(text, begin)
        brackets = _STRINGS.sub(b"", text[begin:end]).translate(_STEPS, _NO_BRACKETS)
        depths = accumulate(memoryview(brackets).cast("b"), initial=depth)
        if max(depths) > JSON_DEPTH_MAX:
            raise UsageError(
                f"the body is not JSON that is taken here: deeper than {JSON_DEPTH_MAX}",
                code="bad_json",
            )
        depth += 2 * (brackets.count(b"\x01")) - len(brackets)
        begin = end


def _end_outside(text: bytes, begin: int) -> int:
    """Return the end of a window of a valid text, or of a longer string, outside of strings."""
    found = _OUTSIDE(text, begin, min(len(text), begin + WINDOW_BYTES))
    assert found is not None, "it matches nothing, too"
    end = found.end()
    if end > begin:
        return end
    while True:  # a string that is longer than a window begins here
        end = text.index(b'"', end + 1)
        slashes = end
        while text[slashes - 1] == _BACKSLASH:
            slashes -= 1
        if (end - slashes) % 2 == 0:
            return end + 1


def emptied(text: bytes, depth: int) -> bytes:
    """Return a JSON text without what lies in objects and arrays nested deeper than `depth`.

    Those themselves stay, so the text is still seen to be deeper. What no decoder reads can be
    taken apart then. It takes time for each string and bracket, whatever their depth.
    """
    pieces, level, begin = list[bytes](), 0, 0
    for token in _TOKENS(text):
        kind = token[0]
        if kind in (b"[", b"{"):
            level += 1
            if level == depth + 1:
                pieces.append(text[begin : token.end()])
        elif kind in (b"]", b"}"):
            if level == depth + 1:
                begin = token.start()
            level -= 1
    return b"".join(pieces) + (text[begin:] if level <= depth else b"")


def _no_json(error: Exception) -> UsageError:
    return UsageError(f"the body is not JSON: {error}", code="bad_json")
