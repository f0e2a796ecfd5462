"""Documents with attachments on their way from one peer to another, piece by piece.

Invariants:
1. At most a document's JSON and one piece of an attachment are held.
2. Attachments go in the order in which they come, as the bytes that are stored.

Elsewhere: which documents go this way (`core.batches`), parts (`parts`).
Source: CouchDB's multipart bodies.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from millstream.errors import RemoteProtocolError, UsageError
from millstream.replication.aio.parts import Part, Parts, Stream
from millstream.replication.core.asking import TOO_LARGE

__all__ = ["DOCUMENT_BYTES_MAX", "Related", "related_documents"]

DOCUMENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""JSON of one document, attachments apart."""
_KEPT_HEADERS: Final = (
    "Content-Disposition", "Content-Type", "Content-Length", "Content-Encoding",
)  # fmt: skip
_BOUNDARY: Final = "millstream-5c1f0d6a2b9e4d17a8035b6e91c24f7d"
_MARK: Final = _BOUNDARY.encode()


class _Head(msgspec.Struct):
    rev: str = msgspec.field(name="_rev", default="")


@dataclass
class Related:
    """One revision that came: JSON, and attachments that are read once, behind it."""

    body: bytes
    parts: Parts | None = None

    @property
    def rev(self) -> str:
        """Its revision; empty if that cannot be read."""
        try:
            return msgspec.json.decode(self.body, type=_Head).rev
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ""

    @property
    def content_type(self) -> str:
        """The content type of a request that sends the attachment."""
        if self.parts is None:
            return "application/json"
        return f'multipart/related; boundary="{_BOUNDARY}"'

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body of such a request."""
        if self.parts is None:
            yield self.body
            return
        yield b"--%b\r\nContent-Type: application/json\r\n\r\n%b" % (_MARK, self.body)
        while (part := await self.parts.next()) is not None:
            lines = [f"{name}: {part.head[name.lower()]}\r\n" for name in _KEPT_HEADERS
                     if name.lower() in part.head]  # fmt: skip
            yield b"\r\n--%b\r\n%b\r\n" % (_MARK, "".join(lines).encode())
            async for piece in part.pieces():
                yield piece
        yield b"\r\n--%b--" % _MARK


async def related_documents(
    stream: Stream, content_type: str
) -> AsyncGenerator[Related | tuple[str, str], None]:
    """Yield revisions of an `open_revs` answer, or ("missing", revision).

    Each has to be read before the next one is asked for.

    Raises:
        RemoteProtocolError: it is no such answer.
        UsageError: `too_large`: a document is too large, or too deep where it is decoded.
    """
    if not content_type.startswith("multipart/"):
        for found in _of_json(await stream.read()):
            yield found
        return
    outer = Parts.of(stream, content_type)
    while (part := await outer.next()) is not None:
        yield await _revision(part)


def _of_json(data: bytes) -> list[Related | tuple[str, str]]:
    found = _json(data)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise RemoteProtocolError("the peer sends no list of revisions")
    return [
        Related(json.dumps(each["ok"]).encode())
        if "ok" in each
        else ("missing", str(each.get("missing", "")))
        for each in found
    ]


async def _revision(part: Part) -> Related | tuple[str, str]:
    content_type = part.head.get("content-type", "")
    if content_type.startswith("multipart/"):
        parts = part.parts()
        first = await parts.next()
        if first is None:
            raise RemoteProtocolError("the peer sends a revision without a document")
        return Related(await _bounded(first), parts)
    body = await _bounded(part)
    if "error=" in content_type:
        told = _json(body)
        return "missing", str(told.get("missing", "")) if isinstance(told, dict) else ""
    return Related(body)


async def _bounded(part: Part) -> bytes:
    body = bytearray()
    async for piece in part.pieces():
        body += piece
        if len(body) > DOCUMENT_BYTES_MAX:
            raise UsageError(
                f"the peer sends a document of over {DOCUMENT_BYTES_MAX} bytes", code=TOO_LARGE
            )
    return bytes(body)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError as error:
        raise UsageError("the peer sends a document that is too deep", code=TOO_LARGE) from error
    except ValueError as error:
        raise RemoteProtocolError(f"the peer sends no JSON: {error}") from error
