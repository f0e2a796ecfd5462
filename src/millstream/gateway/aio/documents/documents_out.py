"""Documents on their way to a client: text, attachments in it, or several parts.

Invariants:
1. No more than one attachment's piece is in memory where attachments leave as parts; those that
   leave inside JSON are bounded by `INLINE_BYTES_MAX` together.
2. What is sent is durable: it is never taken back from who was told of it.

Elsewhere: texts (`documents.reading`), heads of parts (`gateway.core.multipart`).
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

import msgspec
from aiohttp import web

from millstream.documents.reading import Piece, Shown, newer_attachments, pieces_of_text
from millstream.documents.stored import Attachment, StoredDocument
from millstream.documents.tree import Leaf
from millstream.errors import UsageError
from millstream.gateway.aio.documents.attaching import content_of, in_base64, in_pieces
from millstream.gateway.aio.room import hold_copies
from millstream.gateway.aio.streaming import send_pieces
from millstream.gateway.core.api.documents import DocumentApi
from millstream.gateway.core.multipart import (
    PART_END,
    attachment_head,
    end,
    inner_head,
    json_head,
    missing_part,
)

__all__ = [
    "INLINE_BYTES_MAX", "inline_pieces", "mixed", "parts_of", "pieces_of", "related",
    "send_attachment_pieces",
]  # fmt: skip

INLINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Attachments inside one JSON document, before base64."""


async def pieces_of(
    documents: DocumentApi,
    bucket: str,
    document: StoredDocument,
    rev: str,
    name: str,
    *,
    is_plain: bool,
) -> AsyncIterator[bytes]:
    """Yield the bytes of an attachment of a leaf; `is_plain`: not compressed."""
    content = document.contents[rev]
    one = content.attachments[name]
    if one.sha256:
        async for piece in content_of(documents, bucket, one, is_plain=is_plain):
            yield piece
        return
    async for piece in in_pieces(content.value or b""):
        yield piece


async def inline_pieces(
    documents: DocumentApi,
    bucket: str,
    doc_id: str,
    document: StoredDocument,
    leaf: Leaf,
    shown: Shown,
    since: Sequence[str] | None,
) -> list[Piece]:
    """Return a leaf's text with attachments in it, of those that `since` lacks (None: all).

    Raises:
        UsageError: `too_large`: ask for `multipart/related`, or attachment by attachment.
        UnavailableError: `temporarily_unavailable`: there is no room for them.
    """
    wanted = newer_attachments(document, leaf.rev, since)
    size = sum(one.length for one in wanted.values())
    if size > INLINE_BYTES_MAX:
        raise UsageError(
            f"attachments of {size} bytes do not go into one JSON text: ask for "
            "multipart/related, or for one after the other",
            code="too_large",
        )
    hold_copies(size)
    data = {
        name: [
            piece
            async for piece in in_base64(
                pieces_of(documents, bucket, document, leaf.rev, name, is_plain=True)
            )
        ]
        for name in wanted
    }
    return pieces_of_text(doc_id, document, leaf, shown, data=data)


async def related(
    documents: DocumentApi,
    bucket: str,
    boundary: str,
    doc_id: str,
    document: StoredDocument,
    leaf: Leaf,
    shown: Shown,
    wanted: Mapping[str, Attachment],
) -> AsyncIterator[Piece]:
    """Yield a multipart/related body: text, then the attachments `wanted`."""
    yield json_head(boundary)
    for text in pieces_of_text(doc_id, document, leaf, shown, following=wanted.keys()):
        yield text
    yield PART_END
    for name, one in wanted.items():
        length = one.stored_length if one.sha256 else one.length
        yield attachment_head(boundary, name, one.content_type, length, one.encoding)
        async for piece in pieces_of(documents, bucket, document, leaf.rev, name, is_plain=False):
            yield piece
        yield b"\r\n"
    yield end(boundary)


async def mixed(
    documents: DocumentApi,
    bucket: str,
    boundary: str,
    doc_id: str,
    document: StoredDocument | None,
    found: Sequence[Leaf | str],
    shown: Shown,
    since: Sequence[str] | None,
) -> AsyncIterator[Piece]:
    """Yield a multipart/mixed body of revisions of one document."""
    for one in found:
        async for piece in parts_of(
            documents, bucket, boundary, doc_id, document, one, shown, since
        ):
            yield piece
    yield end(boundary)


async def parts_of(
    documents: DocumentApi,
    bucket: str,
    boundary: str,
    doc_id: str,
    document: StoredDocument | None,
    one: Leaf | str,
    shown: Shown,
    since: Sequence[str] | None,
) -> AsyncIterator[Piece]:
    """Yield one revision, or that it is missing, as a part."""
    if isinstance(one, str):
        yield missing_part(boundary, msgspec.json.encode({"missing": one}))
        return
    assert document is not None, "a leaf is of a document"
    wanted = newer_attachments(document, one.rev, since)
    if not wanted:
        yield json_head(boundary)
        for text in pieces_of_text(doc_id, document, one, shown):
            yield text
        yield PART_END
        return
    inner = secrets.token_hex(16)
    yield inner_head(boundary, inner)
    async for piece in related(documents, bucket, inner, doc_id, document, one, shown, wanted):
        yield piece
    yield b"\r\n"


async def send_attachment_pieces(
    request: web.Request, response: web.StreamResponse, pieces: AsyncIterator[Piece]
) -> web.StreamResponse:
    """Send a body in pieces, as fast as the client takes them.

    Raises what they raise before the first one; after that the connection is cut.
    """
    first = await anext(pieces, b"")
    if request.method == "HEAD":
        await response.prepare(request)
        return response
    return await send_pieces(request, response, pieces, [first])
