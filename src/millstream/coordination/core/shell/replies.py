"""What a node says to the shell, with the types that the wire has: values, and bytes again.

Invariants:
1. Nothing is lost: `as_sent` gives the bytes that came.
2. A status and data are told apart, which clients of RESP mostly do not.

Elsewhere: how a reply is shown to people (`output`), how one is made (`vsr.core.values`,
`resp.protocol`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Final, NamedTuple

from millstream.errors import RemoteProtocolError

__all__ = ["DEPTH_MAX", "REPLY_BYTES_MAX", "Reply", "ReplyCutter", "as_sent"]

REPLY_BYTES_MAX: Final = 64 * 1024 * 1024
"""A node that sends more in one reply is not believed."""
DEPTH_MAX: Final = 16
"""Most levels of arrays within arrays."""
_LINES: Final = frozenset((b"+", b"-", b":", b"(", b"_", b"#", b","))
_STRINGS: Final = frozenset((b"$", b"="))
_ARRAYS: Final = frozenset((b"*", b"~", b">"))
_EOL: Final = b"\r\n"


class Reply(NamedTuple):
    """A reply: the sign of its type on the wire, and its text or its parts.

    A map (`%`) has keys and values in turn. Nothing is `_` without text.
    """

    sign: bytes
    text: bytes = b""
    parts: tuple[Reply, ...] = ()

    @property
    def is_error(self) -> bool:
        """Whether the reply is an error."""
        return self.sign == b"-"

    @property
    def value(self) -> Any:
        """What it is in Python: bytes, a number, a truth, None, a list or a dictionary."""
        match self.sign:
            case b":":
                return int(self.text)
            case b"#":
                return self.text == b"t"
            case b"_":
                return None
            case b"*" | b"~" | b">":
                return [part.value for part in self.parts]
            case b"%":
                values = [part.value for part in self.parts]
                return dict(zip(values[::2], values[1::2], strict=True))
        return self.text

    @property
    def words(self) -> tuple[bytes, ...]:
        """The texts of its parts."""
        return tuple(part.text for part in self.parts)


class ReplyCutter:
    """Cuts replies from what comes."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._at = 0
        self._cutting = self._reply(0)

    def feed(self, data: bytes) -> Iterator[Reply]:
        """Take what came; yield replies that are whole.

        Raises:
            RemoteProtocolError: `bad_reply`: this is no RESP.
        """
        self._data += data
        while self._data:
            try:
                next(self._cutting)
            except StopIteration as whole:
                del self._data[: self._at]
                self._at, self._cutting = 0, self._reply(0)
                yield whole.value
            else:
                break
        if len(self._data) > REPLY_BYTES_MAX:
            raise _no_reply("a reply is too long")

    def _reply(self, depth: int) -> Generator[None, None, Reply]:
        """Cut one reply; yields while there is more to come."""
        line = yield from self._line()
        sign, text = line[:1], line[1:]
        if sign in _LINES:
            return Reply(sign, text)
        if depth > DEPTH_MAX or not text.removeprefix(b"-").isdigit():
            raise _no_reply(f"{line[:20]!r} begins no reply")
        length = int(text)
        if length < 0:
            return Reply(b"_")  # as RESP2 says nothing
        if sign in _STRINGS:
            return Reply(sign, (yield from self._string(length)))
        if sign == b"%":
            length *= 2
        elif sign not in _ARRAYS:
            raise _no_reply(f"{line[:20]!r} begins no reply")
        parts: list[Reply] = []
        for _ in range(length):
            parts.append((yield from self._reply(depth + 1)))  # noqa: PERF401 - it yields
        return Reply(sign, b"", tuple(parts))

    def _line(self) -> Generator[None, None, bytes]:
        while (end := self._data.find(_EOL, self._at)) < 0:
            yield
        line = bytes(self._data[self._at : end])
        self._at = end + len(_EOL)
        return line

    def _string(self, length: int) -> Generator[None, None, bytes]:
        while len(self._data) < self._at + length + len(_EOL):
            yield
        text = bytes(self._data[self._at : self._at + length])
        self._at += length + len(_EOL)
        return text


def as_sent(reply: Reply) -> bytes:
    """Return a reply as it is on the wire."""
    sign, text, parts = reply
    if sign in _LINES:
        return sign + text + _EOL
    if sign in _STRINGS:
        return b"%b%d\r\n%b\r\n" % (sign, len(text), text)
    number = len(parts) // 2 if sign == b"%" else len(parts)
    return b"%b%d\r\n%b" % (sign, number, b"".join(map(as_sent, parts)))


def _no_reply(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"the node does not speak RESP: {why}", code="bad_reply")
