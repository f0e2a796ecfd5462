"""Update functions of design documents: `/DB/_design/NAME/_update/FUNCTION[/ID]`.

A function is given the document, or null, and the request; it says what is to be stored, if
anything, and what is answered.

Invariants:
1. Whoever calls one needs the rights `read` and `write`: it shows documents and changes them.
2. What it wants stored is a change like any other: the document's present revision has to be
   named in it, `validate_doc_update` functions are asked, and 201 means durable.

Elsewhere: what functions see and may answer (`gateway.core.function_calls`), running them
(`views.aio.sandbox.functions`), changes (`writing`).
Source: CouchDB's update functions.
"""

from __future__ import annotations

import secrets
from typing import Any, Final
from urllib.parse import quote

import msgspec
from aiohttp import web

from millstream.documents.reading import Shown, text_of
from millstream.documents.sent import checked_id, parse_sent
from millstream.errors import UsageError
from millstream.gateway.aio.answers import DESIGN, NODE_API, design_of, read_body, require
from millstream.gateway.aio.documents.attaching import keep_inline
from millstream.gateway.aio.documents.writing import Edit, Stored, user_context, write_one
from millstream.gateway.core.documents import is_batch
from millstream.gateway.core.function_calls import (
    form_of,
    rendered,
    seen_headers,
    seen_path,
    seen_text,
)

__all__ = ["UPDATE_BODY_BYTES_MAX", "routes"]

UPDATE_BODY_BYTES_MAX: Final = 1024 * 1024
"""Most bytes of a request that calls an update function, which gets it as one text."""
_PATH: Final = DESIGN + "/_update/{function:[^/]+}"
_ID: Final = "id"
_SHOWN: Final = Shown(conflicts=True)


async def _update(request: web.Request) -> web.Response:
    bucket, design = design_of(request)
    require(request, "read", bucket)
    require(request, "write", bucket)
    doc_id = request.match_info.get(_ID)
    if doc_id is not None:
        checked_id(doc_id)
    seen = msgspec.json.encode(await _seen(request, bucket, doc_id))
    document = None if doc_id is None else await _present(request, bucket, doc_id)
    function = request.match_info["function"]
    wanted = await request.app[NODE_API].functions.update(bucket, design, function, document, seen)
    answer = rendered(wanted.answer)
    headers, code = answer.headers, 200
    if wanted.document is not None:
        written_id, done = await _write(request, bucket, wanted.document)
        headers |= {"X-Couch-Id": _header(written_id), "X-Couch-Update-NewRev": done.rev}
        code = 202 if is_batch(request.query) else 201
    return web.Response(status=answer.code or code, headers=headers, body=answer.body)


async def _seen(request: web.Request, bucket: str, doc_id: str | None) -> dict[str, Any]:
    """Return the request as the function sees it."""
    body = (await read_body(request, UPDATE_BODY_BYTES_MAX)).decode(errors="replace")
    api, path = request.app[NODE_API], seen_path(request.rel_url.raw_path)
    settings = await api.documents.settings(bucket)
    database = await api.changes.whole(bucket)
    return {
        "info": {"db_name": bucket, "update_seq": database.latest().text()},
        "id": doc_id,
        "uuid": secrets.token_hex(16),
        "method": request.method,
        "path": path,
        "requested_path": path,
        "raw_path": seen_text(request.raw_path),
        "query": {seen_text(name): seen_text(text) for name, text in request.query.items()},
        "headers": seen_headers(request.headers.items()),
        "body": body,
        "form": form_of(request.content_type, body),
        "cookie": {},
        "peer": request.remote or "",
        "userCtx": user_context(request, bucket),
        "secObj": msgspec.Raw(settings.security),
    }


async def _present(request: web.Request, bucket: str, doc_id: str) -> bytes | None:
    """Return the current document; None if it does not exist."""
    found = await request.app[NODE_API].documents.read(bucket, doc_id)
    if found is None or not found.exists or found.winner.is_deleted:
        return None
    return text_of(doc_id, found, found.winner, _SHOWN)


async def _write(
    request: web.Request, bucket: str, document: dict[str, Any]
) -> tuple[str, Stored]:
    sent = parse_sent(msgspec.json.encode(document))
    if sent.id is None:
        raise UsageError("the document of an update function needs an _id", code="illegal_docid")
    doc_id, kept = checked_id(sent.id), {}
    if sent.attachments:
        kept = await keep_inline(request.app[NODE_API].documents, bucket, sent.attachments)
    edit = Edit(doc_id, sent, kept)
    return doc_id, await write_one(request, bucket, edit, is_durable=not is_batch(request.query))


def _header(doc_id: str) -> str:
    """Return an id as a header has it, percent-encoded as CouchDB does."""
    return quote(doc_id, safe=":")


def routes() -> list[web.RouteDef]:
    """Return the pages of this module; they come before those of attachments."""
    one = _PATH + "/{id:(?s:.)+}"
    return [make(path, _update) for path in (_PATH, one) for make in (web.post, web.put)]
