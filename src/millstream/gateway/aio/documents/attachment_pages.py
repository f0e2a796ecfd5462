"""Attachments by themselves: `/DB/ID/NAME` read, also in part, written and deleted.

Invariants:
1. An attachment is written by a change of its document, like any other.
2. What is stored compressed is sent so to who can read it, else as it was.

Elsewhere: how they come and go with their documents (`document_pages`).
Source: CouchDB's attachment API.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from aiohttp import web

from millstream.documents.json_text import parse
from millstream.documents.reading import open_leaves
from millstream.documents.sent import Sent
from millstream.documents.stored import Attachment, Content
from millstream.errors import ConditionError, UsageError
from millstream.gateway.aio.answers import DATABASE, NODE_API
from millstream.gateway.aio.documents.attaching import PIECE_BYTES, content_of, keep
from millstream.gateway.aio.documents.document_pages import (
    DOCUMENT_ID,
    DOCUMENT_PATHS,
    document_of,
    may_read,
    may_write,
    written,
)
from millstream.gateway.aio.documents.documents_in import PART_SECONDS
from millstream.gateway.aio.documents.documents_out import pieces_of, send_attachment_pieces
from millstream.gateway.aio.documents.old_contents import with_old
from millstream.gateway.aio.documents.writing import Edit, write_one
from millstream.gateway.aio.parsing import prepare
from millstream.gateway.core.attachments import (
    ATTACHMENT_BYTES_MAX,
    Said,
    accepts_gzip,
    asked_range,
    checked_name,
    checked_type,
    digest_of,
    said_md5,
)
from millstream.gateway.core.documents import is_batch, named_rev, names_etag
from millstream.gateway.core.multipart import disposition_of, filename, one_line

__all__ = ["answer_attachment", "routes"]

_NAME: Final = "name"
_PATHS: Final = tuple(path + "/{name:[^_].*}" for path in DOCUMENT_PATHS)
_NOTHING: Final[Mapping[str, Attachment]] = {}


async def _get(request: web.Request) -> web.StreamResponse:
    bucket, doc_id = document_of(request)
    may_read(request, bucket, doc_id)
    name = checked_name(request.match_info[_NAME])
    documents = request.app[NODE_API].documents
    document = await documents.read(bucket, doc_id, is_durable="rev" in request.query)
    rev = named_rev(request.query, None)
    if rev is not None and document is not None:
        await prepare(document)
        document = await with_old(documents, bucket, doc_id, document, [rev])
    if document is None or not document.exists or (rev is None and document.winner.is_deleted):
        raise ConditionError("missing", code="not_found")
    [leaf] = open_leaves(document, [rev or document.winner.rev], latest=False)
    if isinstance(leaf, str) or name not in document.contents[leaf.rev].attachments:
        raise ConditionError("Document is missing attachment", code="not_found")
    one = document.contents[leaf.rev].attachments[name]
    headers = {
        "ETag": f'"{b64encode(one.md5).decode()}"',
        "Content-Type": one_line(one.content_type),
        "Accept-Ranges": "none" if one.encoding else "bytes",
        "Cache-Control": "must-revalidate",
        "Content-Disposition": f"{disposition_of(one.content_type)}; {filename(name)}",
    }
    if names_etag(request.headers.get("If-None-Match"), headers["ETag"]):
        return web.Response(status=304, headers=headers)
    whole = {"Content-MD5": digest_of(one.md5).removeprefix("md5-")}  # of what is stored
    is_plain = not (one.encoding and accepts_gzip(request.headers.get("Accept-Encoding")))
    if not is_plain:
        headers["Content-Encoding"] = one.encoding
        pieces = content_of(documents, bucket, one, is_plain=False)
        return await _send(request, 200, headers | whole, one.stored_length, pieces)
    wanted = None if one.encoding else asked_range(request.headers.get("Range"), one.length)
    if wanted is None or not one.sha256:
        pieces = pieces_of(documents, bucket, document, leaf.rev, name, is_plain=True)
        headers |= {} if one.encoding else whole
        return await _send(request, 200, headers, one.length, pieces)
    headers["Content-Range"] = wanted.header(one.length)
    pieces = documents.open_blob(bucket, one.sha256, wanted.begin, wanted.end)
    return await _send(request, 206, headers, wanted.end - wanted.begin, pieces)


async def _send(
    request: web.Request,
    status: int,
    headers: Mapping[str, str],
    length: int,
    pieces: AsyncIterator[bytes],
) -> web.StreamResponse:
    response = web.StreamResponse(status=status, headers=headers)
    response.content_length = length
    return await send_attachment_pieces(request, response, pieces)


async def _put(request: web.Request) -> web.Response:
    bucket, doc_id = document_of(request)
    may_write(request, bucket, doc_id)
    name = checked_name(request.match_info[_NAME])
    length = request.content_length
    if length is not None and length > ATTACHMENT_BYTES_MAX:
        raise UsageError(
            f"an attachment has at most {ATTACHMENT_BYTES_MAX} bytes", code="attachment_too_large"
        )
    kind = checked_type(request.headers.get("Content-Type", "application/octet-stream"))
    encoding = request.headers.get("Content-Encoding", "")
    if encoding not in ("", "identity", "gzip"):
        raise UsageError(
            "Only gzip and identity content-encodings are supported", code="bad_content_type"
        )
    said = Said(said_md5(request.headers.get("Content-MD5", "")))
    kept = await keep(
        request.app[NODE_API].documents, bucket, _body(request), kind,
        "gzip" if encoding == "gzip" else "", said,
    )  # fmt: skip
    return await _change(request, {name: kept})


async def _body(request: web.Request) -> AsyncIterator[bytes]:
    """Yield what is in a request's body, as it came."""
    while True:
        try:
            async with asyncio.timeout(PART_SECONDS):
                piece = await request.content.read(PIECE_BYTES)
        except TimeoutError as error:
            raise UsageError("the body does not arrive", code="body_timeout") from error
        if not piece:
            return
        yield piece


async def _delete(request: web.Request) -> web.Response:
    bucket, doc_id = document_of(request)
    may_write(request, bucket, doc_id)
    checked_name(request.match_info[_NAME])
    return await _change(request, _NOTHING)


async def _change(request: web.Request, kept: Mapping[str, Attachment]) -> web.Response:
    """Replace the attachment of the leaf that is named by one; none: delete it."""
    bucket, doc_id = document_of(request)
    name = request.match_info[_NAME]
    rev = named_rev(request.query, request.headers.get("If-Match"))
    documents = request.app[NODE_API].documents
    document = await documents.read(bucket, doc_id)
    before: Content | None = None
    if document is not None and document.exists:
        shown = rev if rev is not None else document.winner.rev
        begins_anew = rev is None and document.winner.is_deleted
        before = None if begins_anew else document.contents.get(shown)
    if before is None and not kept:
        raise ConditionError("missing", code="not_found")
    body = b"{}" if before is None else before.body
    others = () if before is None else before.attachments
    if not kept and name not in others:
        raise ConditionError("Document is missing attachment", code="not_found")
    table: dict[str, dict[str, Any]] = {one: {} for one in kept}  # first, as in CouchDB
    table |= {one: {"stub": True} for one in others if one != name}
    sent = Sent(doc_id, rev, False, None, table, body, parse(body))
    is_later = is_batch(request.query)
    done = await write_one(request, bucket, Edit(doc_id, sent, kept), is_durable=not is_later)
    return written(bucket, doc_id, done, 202 if is_later else 201 if kept else 200)


async def answer_attachment(request: web.Request, bucket: str, doc_id: str) -> web.StreamResponse:
    """Answer a request that another page took for its own; below `/BUCKET/DOCUMENT`.

    Raises:
        MillstreamError: as the pages of attachments.
    """
    name = request.path.removeprefix(f"/{bucket}/{doc_id}/")
    request.match_info.update({DATABASE: bucket, DOCUMENT_ID: doc_id, _NAME: name})
    pages = {"GET": _get, "HEAD": _get, "PUT": _put, "DELETE": _delete}
    if request.method not in pages:
        raise web.HTTPMethodNotAllowed(request.method, pages)
    return await pages[request.method](request)


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    found: list[web.RouteDef] = []
    for path in _PATHS:
        found += [web.get(path, _get), web.put(path, _put), web.delete(path, _delete)]
    return found
