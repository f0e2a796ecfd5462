"""RESP: splits what a client sent into requests, and writes replies in both versions.

Invariants:
1. The result does not depend on how the bytes were divided on their way.
2. A request that is invalid or exceeds a limit is found as soon as its head has arrived. Nothing
   after it is read: the connection has to end.
3. An incomplete request is examined again only once enough of it has arrived.
4. Replies never contain a line break that a client could take for the end of the reply.

Requests are cut by splitting at line ends and comparing the lengths. Only a chunk where this
fails, such as one with line breaks in its data, is scanned byte by byte
(docs/design/0023-coordination-clients.md).

Elsewhere: the meaning of requests (`session`), values (`vsr.core.values`).
"""

from __future__ import annotations

from typing import Final

from millstream.errors import RemoteProtocolError
from millstream.vsr.core.values import items

__all__ = [
    "ARGUMENTS_MAX",
    "INLINE_BYTES_MAX",
    "REQUEST_BYTES_MAX",
    "RequestCutter",
    "render",
    "render_message",
    "words_of",
]

REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
"""Most bytes of one request with its lengths."""
ARGUMENTS_MAX: Final = 1024
"""Most arguments of one request."""
INLINE_BYTES_MAX: Final = 64 * 1024
"""Most bytes of a request written as a line of words."""
_HEAD_BYTES_MAX: Final = 32
_SPLIT_BYTES_MAX: Final = 320 * 1024
"""Most bytes of a chunk that is split. A larger one is one long request, or begins with it."""
_COUNTS: Final = {b"*%d" % number: number for number in range(1, ARGUMENTS_MAX + 1)}
_EOL: Final = b"\r\n"
_BLANKS: Final = " \t\r\n\v\f"
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "a": "\a"}


class RequestCutter:
    """Cuts requests: `feed` what came, `cut` some of the requests that are whole."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._need = 1
        self._data = b""
        self._at = 0
        self._parts: list[bytes] = []
        self._index = 0
        self._error: RemoteProtocolError | None = None
        self.empty = 0
        """Requests that asked for nothing, of those that the last `cut` looked at."""
        self.is_spent = True
        """Whether nothing arrived since `cut` found no more whole request."""

    def feed(self, data: bytes) -> None:
        """Take what came."""
        self._pieces.append(data)
        self._size += len(data)
        self.is_spent = False

    @property
    def held_bytes(self) -> int:
        """How much is kept of requests that are not whole, or not begun."""
        return self._size + len(self._data) - self._at

    @property
    def unfinished_bytes(self) -> int:
        """How long the request that has begun is at least, once `cut` finds nothing."""
        return max(self._size, self._need)

    def cut(self, most: int) -> list[list[bytes]]:
        """Return whole requests without empty ones. At most so many are examined.

        Raises:
            RemoteProtocolError: `bad_request_frame`, `too_large`. Earlier calls have returned all
                whole requests before it.
        """
        found: list[list[bytes]] = []
        self.empty = 0
        if self._error is not None:
            raise self._error
        try:
            self._cut(found, most)
        except RemoteProtocolError as error:
            if not found:
                raise
            self._error = error
        return found

    def _cut(self, found: list[list[bytes]], most: int) -> None:
        while len(found) + self.empty < most:
            if self._parts:
                self._split_off(found, most - self.empty)
            elif not (self._walk(found) if self._at < len(self._data) else self._gather()):
                self.is_spent = True
                break

    def _gather(self) -> bool:
        """Put pieces together if there are enough to go on with."""
        if self._size < self._need:
            return False
        self._data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self._size, self._need = [], 0, 1
        self._at = self._index = 0
        if len(self._data) <= _SPLIT_BYTES_MAX:
            self._parts = self._data.split(_EOL)
        return True

    def _split_off(self, found: list[list[bytes]], most: int) -> None:
        parts, at = self._parts, self._index
        last = len(parts) - 1
        while len(found) < most:
            number = _COUNTS.get(parts[at], last)
            end = at + 1 + 2 * number
            if end > last:
                break
            words = parts[at + 2 : end : 2]
            if parts[at + 1 : end : 2] != [b"$%d" % len(word) for word in words]:
                break
            found.append(words)
            at = end
        else:
            self._index = at
            return
        # Whatever is left is walked through: mostly nothing, or the beginning of a request.
        self._at = len(self._data) - sum(map(len, parts[at:])) - 2 * (last - at)
        self._parts = []

    def _walk(self, found: list[list[bytes]]) -> bool:
        """Take one request from the data; False if it is not all there, which is kept."""
        data, at = self._data, self._at
        request, end = (_walk_array if data[at] == 0x2A else _walk_line)(data, at)
        if request is None:
            self._data, self._at = b"", 0
            rest = data[at:]
            self._pieces.insert(0, rest)
            self._size += len(rest)
            self._need = max(end - at, len(rest) + 1)
            return self._gather()
        self._at = end
        if request:
            found.append(request)
        else:
            self.empty += 1
        return True


_Walked = tuple[list[bytes] | None, int]
"""A request, empty if it asks for nothing, and its end; or None, and where it ends at least."""


def _walk_array(data: bytes, at: int) -> _Walked:
    number, at_next = _number(data, at, b"*", ARGUMENTS_MAX)
    if number is None:
        return None, at_next
    words: list[bytes] = []
    for _ in range(number):
        length, begin = _number(data, at_next, b"$", REQUEST_BYTES_MAX)
        if length is None:
            return None, begin
        at_next = begin + length + 2
        if at_next - at > REQUEST_BYTES_MAX:
            raise _too_large(f"a request has at most {REQUEST_BYTES_MAX} bytes")
        if at_next > len(data):
            return None, at_next
        if data[begin + length : at_next] != _EOL:
            raise _no_request("a string is longer than its length says")
        words.append(data[begin : begin + length])
    return words, at_next


def _number(data: bytes, at: int, mark: bytes, most: int) -> tuple[int | None, int]:
    """Return the number in a head, and where the head ends; None if it is not all there."""
    end = data.find(_EOL, at, at + _HEAD_BYTES_MAX)
    if end < 0:
        if len(data) - at >= _HEAD_BYTES_MAX:
            raise _no_request(f"a line of {mark.decode()} and a number does not end")
        if data[at : at + 1] not in (b"", mark):
            raise _no_request(f"expected {mark.decode()} and a number")
        return None, len(data) + 1
    digits = data[at + 1 : end]
    if data[at : at + 1] != mark:
        raise _no_request(f"expected {mark.decode()} and a number")
    if mark == b"*" and digits[:1] == b"-" and digits[1:].isdigit():
        return 0, end + 2
    if not digits.isdigit():
        raise _no_request(f"no number behind {mark.decode()}")
    number = int(digits)
    if number > most:
        raise _too_large(f"at most {most} are allowed behind {mark.decode()}")
    return number, end + 2


def _walk_line(data: bytes, at: int) -> _Walked:
    end = data.find(b"\n", at, at + INLINE_BYTES_MAX)
    if end < 0:
        if len(data) - at >= INLINE_BYTES_MAX:
            raise _too_large(f"a line has at most {INLINE_BYTES_MAX} bytes")
        return None, len(data) + 1
    words = words_of(data[at:end])
    if len(words) > ARGUMENTS_MAX:
        raise _too_large(f"a request has at most {ARGUMENTS_MAX} arguments")
    return words, end + 1


def words_of(line: bytes) -> list[bytes]:
    """Take a line apart: words, 'quoted', and "quoted" with escapes as in C.

    Raises:
        RemoteProtocolError: `bad_request_frame`: a quote is not closed.
    """
    text, at = line.decode("latin-1"), 0
    words: list[bytes] = []
    while True:
        while at < len(text) and text[at] in _BLANKS:
            at += 1
        if at == len(text):
            return words
        word, at = _word(text, at)
        words.append(word.encode("latin-1"))


def _word(text: str, at: int) -> tuple[str, int]:
    word: list[str] = []
    quote = ""
    while at < len(text):
        sign = text[at]
        if quote and sign == quote:
            if text[at + 1 : at + 2].strip(_BLANKS):
                raise _no_request("a closing quote is followed by something")
            return "".join(word), at + 1
        if not quote and sign in _BLANKS:
            break
        if not quote and sign in "\"'" and not word:
            quote = sign
        elif quote == '"' and sign == "\\":
            sign, at = _escaped(text, at + 1)
            word.append(sign)
        elif quote == "'" and text.startswith("\\'", at):
            word.append("'")
            at += 1
        else:
            word.append(sign)
        at += 1
    if quote:
        raise _no_request("a quote is not closed")
    return "".join(word), at


def _escaped(text: str, at: int) -> tuple[str, int]:
    """Return what a backslash before `at` makes of what is there, and where its last sign is."""
    digits = text[at + 1 : at + 3]
    if text[at : at + 1] == "x" and len(digits) == 2 and _HEX.issuperset(digits):
        return chr(int(digits, 16)), at + 2
    sign = text[at : at + 1]
    return _ESCAPES.get(sign, sign), at


def _no_request(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"Protocol error: {why}; the connection is closed", code="bad_request_frame"
    )


def _too_large(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"Protocol error: {why}; the connection is closed", code="too_large"
    )


# ---- replies

_LINE_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")
_BIG: Final = 1 << 63


def render(value: bytes, protocol: int) -> bytes:
    """Return a value as RESP of version 2 or 3."""
    sign = value[:1]
    if sign == b"=":
        return b"$%d\r\n%b\r\n" % (len(value) - 1, value[1:])
    if sign == b"+" or sign == b"-":
        return value.translate(_LINE_BREAKS) + _EOL
    if sign == b":":
        return _render_number(value, protocol)
    if sign == b"_":
        return b"_\r\n" if protocol == 3 else b"$-1\r\n"
    if sign == b"#":
        return value + _EOL if protocol == 3 else (b":1\r\n" if value == b"#t" else b":0\r\n")
    inside = items(value)
    number = len(inside)
    if protocol == 3 and sign == b"%":
        head = b"%%%d\r\n" % (number // 2)
    elif protocol == 3 and sign == b">":
        head = b">%d\r\n" % number
    elif protocol == 3 and sign == b"~":
        head = b"~%d\r\n" % number
    else:
        head = b"*%d\r\n" % number
    return head + b"".join([render(item, protocol) for item in inside])


def render_message(path: bytes, payload: bytes, protocol: int) -> bytes:
    """Return what a subscription is told, as such clients know it of Redis."""
    sign = b">" if protocol == 3 else b"*"
    return b"%b3\r\n$7\r\nmessage\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
        sign, len(path), path, len(payload), payload,
    )  # fmt: skip


def _render_number(value: bytes, protocol: int) -> bytes:
    digits = value[1:]
    if -_BIG <= int(digits) < _BIG:
        return value + _EOL
    return b"(%b\r\n" % digits if protocol == 3 else b"$%d\r\n%b\r\n" % (len(digits), digits)
