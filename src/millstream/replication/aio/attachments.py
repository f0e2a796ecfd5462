"""Documents with attachments on their way from one peer to another, piece by piece.

Invariants:
1. At most a document's JSON and one piece of an attachment are held.
2. Attachments go in the order in which they come, as the bytes that are stored.
3. A length is told if all lengths are known; else the body comes in chunks.

Elsewhere: which documents go this way (`core.batches`).
Source: RFC 2046; CouchDB's multipart bodies.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from millstream.errors import RemoteProtocolError

__all__ = ["DOCUMENT_BYTES_MAX", "PIECE_BYTES", "Related", "related_documents"]

DOCUMENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""JSON of one document, attachments apart."""
PIECE_BYTES: Final = 64 * 1024
_KEPT_HEADERS: Final = (
    "Content-Disposition", "Content-Type", "Content-Length", "Content-Encoding",
)  # fmt: skip
_BOUNDARY: Final = "millstream-5c1f0d6a2b9e4d17"


@dataclass
class Related:
    """One revision that came: JSON, and attachments that are read once, behind it."""

    body: bytes
    parts: aiohttp.MultipartReader | None = None

    @property
    def head(self) -> Mapping[str, Any]:
        """The document's members."""
        found = json.loads(self.body)
        if not isinstance(found, dict):
            raise RemoteProtocolError("the peer sends a document that is no object")
        return found

    @property
    def content_type(self) -> str:
        """Of a request that sends it on."""
        if self.parts is None:
            return "application/json"
        return f'multipart/related; boundary="{_BOUNDARY}"'

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body of such a request."""
        if self.parts is None:
            yield self.body
            return
        yield b"--%b\r\nContent-Type: application/json\r\n\r\n%b" % (
            _BOUNDARY.encode(), self.body,
        )  # fmt: skip
        while (part := await self.parts.next()) is not None:
            if not isinstance(part, aiohttp.BodyPartReader):
                raise RemoteProtocolError("the peer sends an attachment that has parts itself")
            yield _part_head(part)
            while piece := await part.read_chunk(PIECE_BYTES):
                yield bytes(piece)
        yield b"\r\n--%b--" % _BOUNDARY.encode()


def _part_head(part: aiohttp.BodyPartReader) -> bytes:
    lines = [f"{name}: {part.headers[name]}" for name in _KEPT_HEADERS if name in part.headers]
    return (
        f"\r\n--{_BOUNDARY}\r\n{''.join(line + chr(13) + chr(10) for line in lines)}\r\n".encode()
    )


async def related_documents(
    response: aiohttp.ClientResponse,
) -> AsyncIterator[Related | tuple[str, str]]:
    """Yield revisions of an `open_revs` answer, or ("missing", revision).

    Each has to be read before the next one is asked for.

    Raises:
        RemoteProtocolError: it is no such answer.
    """
    try:
        if not response.content_type.startswith("multipart/"):
            for found in _of_json(await response.read()):
                yield found
            return
        outer = aiohttp.MultipartReader.from_response(response)
        while (part := await outer.next()) is not None:
            yield await _revision(part)
    except (ValueError, AssertionError) as error:
        raise RemoteProtocolError(f"the peer's parts are malformed: {error}") from error


def _of_json(data: bytes) -> list[Related | tuple[str, str]]:
    return [
        Related(json.dumps(each["ok"]).encode()) if "ok" in each else ("missing", each["missing"])
        for each in json.loads(data)
    ]


async def _revision(part: Any) -> Related | tuple[str, str]:
    if isinstance(part, aiohttp.BodyPartReader):
        body = await _bounded(part)
        if "error" in part.headers.get("Content-Type", ""):
            return "missing", str(json.loads(body).get("missing", ""))
        return Related(body)
    if isinstance(part, aiohttp.MultipartReader | aiohttp.multipart.MultipartResponseWrapper):
        first = await part.next()
        if isinstance(first, aiohttp.BodyPartReader):
            reader = part if isinstance(part, aiohttp.MultipartReader) else part.stream
            return Related(await _bounded(first), reader)
    raise RemoteProtocolError("the peer sends a revision without a document")


async def _bounded(part: aiohttp.BodyPartReader) -> bytes:
    body = bytearray()
    while piece := await part.read_chunk(PIECE_BYTES):
        body += piece
        if len(body) > DOCUMENT_BYTES_MAX:
            raise RemoteProtocolError(
                f"the peer sends a document of over {DOCUMENT_BYTES_MAX} bytes"
            )
    return bytes(body)
