"""A JSON array of objects, read piece by piece: each element as it is written.

Invariants:
1. The bytes of all elements, with what stands before them, are the bytes read, in order.
2. At most one element of `ELEMENT_BYTES_MAX` and the bytes of one read are held.

Elsewhere: files and their places (`cli.bulk.load_rows`).
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, NoReturn

__all__ = ["ELEMENT_BYTES_MAX", "READ_BYTES", "Element", "elements", "is_array"]

ELEMENT_BYTES_MAX: Final = 32 * 1024 * 1024
READ_BYTES: Final = 1024 * 1024
_NEAR_THE_END: Final = 16
"""Characters: an error so near the end of what was read may be that the rest is missing."""
_SPACES: Final = " \t\r\n"


class Element(NamedTuple):
    """One element: its `text`, and the text `before` it since the last element."""

    before: bytes
    text: bytes


def is_array(head: bytes) -> bool:
    """Return whether a file that begins so is a JSON array."""
    return head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"["


def elements(read: Callable[[int], bytes], *, is_begun: bool) -> Iterator[Element]:
    """Yield the elements of an array.

    Args:
        read: returns at most so many of the next bytes, nothing at the end.
        is_begun: it is read from behind an element on.

    Raises:
        ValueError: it is no array of objects, or ends early.
    """
    array = _Array(read)
    if not is_begun:
        array.expect("[", "an array begins with [")
    is_first = not is_begun
    while (found := array.next(is_first=is_first)) is not None:
        yield found
        is_first = False


class _Array:
    """Text that was read and not taken yet; `_begin` is where the last element ended."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._scan = json.JSONDecoder(parse_constant=_no_constant, parse_float=str).raw_decode
        self._text = ""
        self._begin = self._at = 0
        self._is_ended = False

    def next(self, *, is_first: bool) -> Element | None:
        """Return the next element, None behind the last one."""
        found = self._look()
        if found == "]":
            self._at += 1
            if self._look():
                raise ValueError("there is text after the array")
            return None
        if not is_first:
            self.expect(",", "a comma or ] is expected behind an element")
            found = self._look()
        if found != "{":
            raise ValueError(
                "the array ends early" if not found else "the elements of an array are objects"
            )
        end = self._end_of_object()
        at = self._at
        element = Element(self._text[self._begin : at].encode(), self._text[at:end].encode())
        self._begin = self._at = end
        return element

    def expect(self, character: str, otherwise: str) -> None:
        """Pass over a character; raises ValueError if it is not the next one."""
        found = self._look()
        if self._begin == 0 and found == "\ufeff":
            self._at += 1
            found = self._look()
        if found != character:
            raise ValueError(otherwise if found else "the array ends early")
        self._at += 1

    def _look(self) -> str:
        """Return the next character that is no space, empty at the end."""
        while True:
            text, at = self._text, self._at
            while at < len(text) and text[at] in _SPACES:
                at += 1
            self._at = at
            if at < len(text):
                return text[at]
            if at - self._begin > ELEMENT_BYTES_MAX:
                raise ValueError(f"more than {ELEMENT_BYTES_MAX} spaces")
            if not self._more(READ_BYTES):
                return ""

    def _end_of_object(self) -> int:
        """Return where the object ends that begins here, reading on until it is whole."""
        while True:
            try:
                _, end = self._scan(self._text, self._at)
            except json.JSONDecodeError as error:
                left = len(self._text) - self._at
                is_cut = error.msg.startswith("Unterminated") or (
                    error.pos >= len(self._text) - _NEAR_THE_END
                )
                if not is_cut:
                    raise ValueError(error.msg) from error
                if left > ELEMENT_BYTES_MAX:
                    raise ValueError(
                        f"an element is longer than {ELEMENT_BYTES_MAX} bytes"
                    ) from error
                if not self._more(max(READ_BYTES, left)):
                    raise ValueError(error.msg) from error
            except RecursionError as error:
                raise ValueError("it is nested too deeply") from error
            else:
                return end

    def _more(self, size: int) -> bool:
        """Read on; False at the end. Forgets what was taken."""
        if self._is_ended:
            return False
        data = self._read(size)
        self._is_ended = not data
        self._text = self._text[self._begin :] + self._decoder.decode(data, final=not data)
        self._at -= self._begin
        self._begin = 0
        return not self._is_ended


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
