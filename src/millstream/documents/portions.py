"""A large JSON text in portions, each of which is quickly decoded.

    portions = portioned(text)       # in a helper process
    assembly = Assembly()
    for step in portions.steps():    # others may have a turn after each
        assembly.take(step)
    assembly.value

Invariants:
1. The value is the one that `json_text.parse` returns of the text.
2. A portion is longer than `PORTION_BYTES_MAX` only if it is one string or number.

Elsewhere: who gives others a turn (`gateway.aio.parsing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from millstream.documents.json_text import check_values, parse
from millstream.documents.large_texts import Slices
from millstream.errors import UsageError

__all__ = ["PORTION_BYTES_MAX", "Assembly", "Portions", "portioned"]

PORTION_BYTES_MAX: Final = 16 * 1024
"""Bytes of a large body that are decoded before other requests may have a turn."""
_VALUE: Final = ord("v")
_LIST: Final = ord("[")
_OBJECT: Final = ord("{")
_NAME: Final = ord("n")
_SOME: Final = ord("s")
"""Some elements, or some members, of what is being assembled."""
_END: Final = ord("e")
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode


class Portions(NamedTuple):
    """What is to be done, step by step, to assemble a value."""

    kinds: bytes
    texts: Sequence[bytes]

    def steps(self) -> Iterator[tuple[int, bytes]]:
        """Return the steps."""
        return zip(self.kinds, self.texts, strict=True)


def portioned(text: bytes) -> Portions:
    """Return the portions of a text.

    Raises:
        UsageError: `bad_json`, `too_large`.
    """
    check_values(text)
    kinds, texts = bytearray(), list[bytes]()
    try:
        _divide(text.strip(b" \t\r\n"), kinds, texts)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UsageError(f"the body is not JSON: {error}", code="bad_json") from error
    return Portions(bytes(kinds), Slices(texts))


def _divide(text: bytes, kinds: bytearray, texts: list[bytes]) -> None:
    def step(kind: int, what: bytes = b"") -> None:
        kinds.append(kind)
        texts.append(what)

    first = text[:1]
    if len(text) <= PORTION_BYTES_MAX or first not in (b"[", b"{"):
        step(_VALUE, text)
    elif first == b"[":
        step(_LIST)
        some, size = list[msgspec.Raw](), 0
        for element in _elements(text):
            if size + len(element) > PORTION_BYTES_MAX and some:
                step(_SOME, _encode(some))
                some, size = [], 0
            if len(element) > PORTION_BYTES_MAX:
                _divide(bytes(element), kinds, texts)
                continue
            some.append(element)
            size += len(element)
        step(_SOME, _encode(some))
        step(_END)
    else:
        step(_OBJECT)
        few, size = dict[str, msgspec.Raw](), 0
        for name, value in _members(text).items():
            size_of_one = len(name) + len(value)
            if size + size_of_one > PORTION_BYTES_MAX and few:
                step(_SOME, _encode(few))
                few, size = {}, 0
            if size_of_one > PORTION_BYTES_MAX:
                step(_NAME, _encode(name))
                _divide(bytes(value), kinds, texts)
                continue
            few[name] = value
            size += size_of_one
        step(_SOME, _encode(few))
        step(_END)


class Assembly:
    """Puts a value together."""

    def __init__(self) -> None:
        self.value: Any = None
        """Once all steps were taken."""
        self._open: list[Any] = []
        self._names: list[str] = []

    def take(self, step: tuple[int, bytes]) -> None:
        """Take the next step; raises `bad_json`."""
        kind, text = step
        if kind == _VALUE:
            self._put(parse(text))
        elif kind in (_LIST, _OBJECT):
            made: Any = [] if kind == _LIST else {}
            self._put(made)
            self._open.append(made)
        elif kind == _NAME:
            self._names.append(parse(text))
        elif kind == _END:
            self._open.pop()
        else:
            some, into = parse(text), self._open[-1]
            if isinstance(into, list):
                into.extend(some)
            else:
                into.update(some)

    def _put(self, value: Any) -> None:
        if not self._open:
            self.value = value
        elif isinstance(self._open[-1], list):
            self._open[-1].append(value)
        else:
            self._open[-1][self._names.pop()] = value
