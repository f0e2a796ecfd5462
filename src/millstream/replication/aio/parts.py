"""Bodies that have parts, and parts inside parts, read piece by piece.

Invariants:
1. At most `BUFFER_BYTES_MAX` and one piece that came are held; heads are bounded.
2. A part ends where its boundary says, whatever lengths its head tells. A boundary may follow
   another one at once, and what stands before the first or behind the last one is passed over.

Elsewhere: what the parts are (`attachments`).
Source: RFC 2046, section 5.1.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from email.message import Message
from typing import Final, Protocol

from millstream.errors import RemoteProtocolError, UsageError
from millstream.replication.core.asking import TOO_LARGE

__all__ = ["BUFFER_BYTES_MAX", "HEAD_BYTES_MAX", "HEAD_LINES_MAX", "Part", "Parts", "boundary_of"]

BUFFER_BYTES_MAX: Final = 64 * 1024
HEAD_BYTES_MAX: Final = 16 * 1024
"""Most bytes of one line of a head."""
HEAD_LINES_MAX: Final = 64
_LINE_END: Final = b"\r\n"


class Stream(Protocol):
    """Where bytes come from."""

    async def read(self, n: int = -1, /) -> bytes:
        """Return at most `n` bytes, nothing at the end."""


def boundary_of(content_type: str) -> bytes:
    """Return the boundary that a content type names.

    Raises:
        RemoteProtocolError: it names none.
    """
    message = Message()
    message["Content-Type"] = content_type
    boundary = message.get_param("boundary")
    if message.get_content_maintype() != "multipart" or not isinstance(boundary, str):
        raise RemoteProtocolError(f"the peer sends {content_type!r} instead of parts")
    return boundary.encode()


class _Buffered:
    """Bytes of a stream, some of them looked at."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.held = bytearray(_LINE_END)  # a boundary may stand at the very beginning

    async def more(self) -> None:
        """Hold more.

        Raises:
            RemoteProtocolError: there is no more.
        """
        piece = await self._stream.read(BUFFER_BYTES_MAX)
        if not piece:
            raise RemoteProtocolError("the peer's parts end in the middle")
        self.held += piece

    def take(self, size: int) -> bytes:
        """Return the next bytes that are held."""
        taken = bytes(self.held[:size])
        del self.held[:size]
        return taken

    async def line(self) -> bytes:
        """Return a line without its end."""
        while (at := self.held.find(_LINE_END)) < 0:
            if len(self.held) > HEAD_BYTES_MAX:
                raise UsageError("the head of one of the peer's parts is too long", code=TOO_LARGE)
            await self.more()
        return self.take(at + len(_LINE_END))[:at]


class Part:
    """One part: head, and a body that is read once, or has parts itself."""

    def __init__(self, head: Mapping[str, str], buffered: _Buffered, end: bytes) -> None:
        self.head = head
        self._buffered, self._end = buffered, end
        self.is_over = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        buffered, end = self._buffered, self._end
        while not self.is_over:
            at = buffered.held.find(end)
            if at >= 0:
                piece = buffered.take(at)
                buffered.take(len(end))
                self.is_over = True
            else:
                piece = buffered.take(max(0, len(buffered.held) - len(end) + 1))
                await buffered.more()
            if piece:
                yield piece

    def parts(self) -> Parts:
        """Return the parts that it consists of."""
        self._buffered.held[:0] = _LINE_END
        return Parts(self._buffered, boundary_of(self.head.get("content-type", "")))


class Parts:
    """Parts of a body, one after the other."""

    def __init__(self, buffered: _Buffered, boundary: bytes) -> None:
        self._buffered = buffered
        self._end = _LINE_END + b"--" + boundary
        self._part = Part({}, buffered, self._end)  # what stands before the first one

    @classmethod
    def of(cls, stream: Stream, content_type: str) -> Parts:
        """Return the parts of a whole body."""
        return cls(_Buffered(stream), boundary_of(content_type))

    async def next(self) -> Part | None:
        """Return the next part, None behind the last; what was not read of the one before is lost.

        Raises:
            RemoteProtocolError: these are no parts.
        """
        async for _ in self._part.pieces():
            pass
        while len(self._buffered.held) < len(_LINE_END):
            await self._buffered.more()
        if self._buffered.held.startswith(b"--"):
            return None
        await self._buffered.line()
        self._part = Part(await self._head(), self._buffered, self._end)
        return self._part

    async def _head(self) -> dict[str, str]:
        head: dict[str, str] = {}
        for _ in range(HEAD_LINES_MAX):
            line = (await self._buffered.line()).decode("utf-8", "replace")
            if not line:
                return head
            name, _, value = line.partition(":")
            head[name.strip().lower()] = value.strip()
        raise RemoteProtocolError("the head of one of the peer's parts has too many lines")
