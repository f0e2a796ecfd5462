"""Documents that come with their attachments: multipart/related bodies.

Invariants:
1. Parts are matched with the attachments that `follows`, by their order; a name that a part says
   has to be that of the attachment.
2. An attachment is on the disk before the next part is read; nothing is kept in memory whole but
   the document.

Elsewhere: keeping the bytes (`attaching`), what is sent that way (`documents_out`).
Source: RFC 2387; CouchDB's multipart bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http_exceptions import BadHttpMessage

from millstream.documents.sent import Sent
from millstream.documents.stored import Attachment
from millstream.errors import UsageError
from millstream.gateway.aio.answers import NODE_API, joined
from millstream.gateway.aio.documents.attaching import (
    PIECE_BYTES,
    content_type_of,
    keep,
    keep_inline,
)
from millstream.gateway.aio.parsing import parsed
from millstream.gateway.aio.room import hold
from millstream.gateway.core.attachments import said_of

__all__ = ["PART_SECONDS", "part_of", "read_related"]

PART_SECONDS: Final = 60.0
"""How long the next piece of a part may take to arrive."""


async def read_related(
    request: web.Request, bucket: str, bytes_max: int, *, is_replicated: bool = False
) -> tuple[Sent, dict[str, Attachment]]:
    """Return the document of a request, and its attachments, whose bytes are kept by now.

    Raises:
        UsageError: `bad_request`, `too_large`, `body_timeout`.
    """
    try:
        reader = MultipartReader(request.headers, request.content)
        return await part_of(request, bucket, reader, bytes_max, is_replicated=is_replicated)
    except TimeoutError as error:
        raise UsageError("the body does not arrive", code="body_timeout") from error
    except (
        ValueError,
        AssertionError,
        BadHttpMessage,
    ) as error:  # what the reader of parts says of bad ones
        raise UsageError(
            f"the multipart body cannot be read: {error}", code="bad_request"
        ) from error


async def part_of(
    request: web.Request,
    bucket: str,
    reader: MultipartReader,
    bytes_max: int,
    *,
    is_replicated: bool = False,
) -> tuple[Sent, dict[str, Attachment]]:
    """Return what one multipart/related holds; raises as `read_related`, and as its reader."""
    documents = request.app[NODE_API].documents
    first = await _next(reader)
    if first is None:
        raise UsageError("the multipart body is empty", code="bad_request")
    sent = await parsed(await _whole(first, bytes_max))
    table = sent.attachments or {}
    kept = await keep_inline(documents, bucket, table, is_replicated=is_replicated)
    for name, entry in table.items():
        if entry.get("follows") is not True:
            continue
        part = await _next(reader)
        if part is None:
            raise UsageError(f"attachment {name!r} does not follow", code="bad_request")
        if part.filename not in (None, name):
            raise UsageError(
                f"attachment {part.filename!r} was sent instead of {name!r}", code="bad_request"
            )
        encoding = part.headers.get("Content-Encoding", entry.get("encoding", ""))
        kept[name] = await keep(
            documents, bucket, _pieces(part), content_type_of(entry),
            "gzip" if encoding == "gzip" else "", said_of(entry),
        )  # fmt: skip
    if await _next(reader) is not None:
        raise UsageError("more parts than attachments that follow", code="bad_request")
    return sent, kept


async def _next(reader: MultipartReader) -> BodyPartReader | None:
    async with asyncio.timeout(PART_SECONDS):
        part = await reader.next()
    if part is not None and not isinstance(part, BodyPartReader):
        raise UsageError("a part with parts of its own", code="bad_request")
    return part


async def _whole(part: BodyPartReader, bytes_max: int) -> bytes:
    pieces, size = list[bytes](), 0
    async for piece in _pieces(part):
        size += len(piece)
        hold(size)
        if size > bytes_max:
            raise UsageError(f"a document has at most {bytes_max} bytes", code="too_large")
        pieces.append(piece)
    return await joined(pieces, size)


async def _pieces(part: BodyPartReader) -> AsyncIterator[bytes]:
    while not part.at_eof():
        async with asyncio.timeout(PART_SECONDS):
            piece = await part.read_chunk(PIECE_BYTES)
        if piece:
            yield bytes(piece)
