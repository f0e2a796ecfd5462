"""Design documents over HTTP: `/DB/_design/NAME`, and all of them: `/DB/_design_docs`.

Invariants:
1. Whoever changes one needs the right `design`, who reads one that or `read`; administrators have
   both.
2. What is stored was compiled before; 201 and 200 mean durable, 202 (`batch=ok`) accepted.

Elsewhere: bodies and conditions (`gateway.core.documents`), lists (`gateway.core.listing`), the
documents (`kv.core.revisions.design_documents`), queries (`view_pages`).
Source: CouchDB's design document API.
"""

from __future__ import annotations

from urllib.parse import quote

from aiohttp import web

from millstream.errors import ConditionError
from millstream.gateway.aio.answers import (
    DATABASE,
    DATABASE_PATH,
    DESIGN,
    NODE_API,
    answer,
    design_of,
    read_body,
    require,
)
from millstream.gateway.aio.listing import asked_list
from millstream.gateway.aio.parsing import interpreted
from millstream.gateway.aio.streaming import as_they_come, stream
from millstream.gateway.core.documents import (
    DESIGN_BYTES_MAX,
    as_etag,
    checked_rev,
    document_pieces,
    is_batch,
    named_rev,
    names_etag,
    parse_destination,
    parse_document,
    refuse_document_options,
)
from millstream.gateway.core.listing import Listed, list_documents
from millstream.kv.core.revisions.design_documents import StoredDesign

__all__ = ["routes"]


async def _get(request: web.Request) -> web.StreamResponse:
    bucket, name = design_of(request)
    require(request, "read", bucket, instead="design")
    refuse_document_options(request.query)
    found = await request.app[NODE_API].designs.read(bucket, name)
    wanted = request.query.get("rev")
    if wanted:
        checked_rev(wanted)
    if found is None or (wanted and wanted != found.rev) or (found.is_deleted and wanted):
        raise ConditionError("missing", code="not_found")
    if found.is_deleted:
        raise ConditionError("deleted", code="not_found")
    etag = as_etag(found.rev)
    if names_etag(request.headers.get("If-None-Match"), etag):
        return web.Response(status=304, headers={"ETag": etag})
    pieces = document_pieces(f"_design/{name}", found.rev, found.body)
    return await stream(request, as_they_come([*pieces, b"\n"]), {"ETag": etag})


async def _put(request: web.Request) -> web.Response:
    bucket, name = design_of(request)
    require(request, "design", bucket)
    refuse_document_options(request.query)
    data = await read_body(request, DESIGN_BYTES_MAX)
    sent = await interpreted(parse_document, data, f"_design/{name}")
    rev = named_rev(request.query, request.headers.get("If-Match"), sent.rev)
    designs, is_durable = request.app[NODE_API].designs, not is_batch(request.query)
    if sent.is_deleted:
        written = await designs.write(bucket, name, None, rev, is_durable=is_durable)
    else:
        await designs.check(bucket, name, sent.body)
        written = await designs.write(bucket, name, sent.body, rev, is_durable=is_durable)
    return _written(request, written, 201)


async def _delete(request: web.Request) -> web.Response:
    bucket, name = design_of(request)
    require(request, "design", bucket)
    rev = named_rev(request.query, request.headers.get("If-Match"))
    written = await request.app[NODE_API].designs.write(
        bucket, name, None, rev, is_durable=not is_batch(request.query)
    )
    return _written(request, written, 200)


async def _copy(request: web.Request) -> web.Response:
    bucket, name = design_of(request)
    require(request, "design", bucket)
    target, rev = parse_destination(request.headers.get("Destination"))
    designs = request.app[NODE_API].designs
    found = await designs.read(bucket, name)
    if found is None or found.is_deleted:
        raise ConditionError("deleted" if found else "missing", code="not_found")
    wanted = request.query.get("rev")
    if wanted and checked_rev(wanted) != found.rev:
        raise ConditionError("missing", code="not_found")
    is_durable = not is_batch(request.query)
    written = await designs.write(bucket, target, found.body, rev, is_durable=is_durable)
    return _written(request, written, 201)


async def _design_docs(request: web.Request) -> web.StreamResponse:
    bucket = request.match_info[DATABASE]
    require(request, "read", bucket, instead="design")
    query = await asked_list(request)
    designs = await request.app[NODE_API].designs.all(bucket)
    pieces = list_documents([Listed(f"_design/{d.name}", d.rev, d.body) for d in designs], query)
    return await stream(request, as_they_come(pieces), {})


def _written(request: web.Request, written: StoredDesign, status: int) -> web.Response:
    headers = {"ETag": as_etag(written.rev)}
    if status == 201:
        database = quote(request.match_info[DATABASE], safe="")
        headers["Location"] = f"/{database}/_design/{quote(written.name, safe='')}"
    return answer(
        {"ok": True, "id": f"_design/{written.name}", "rev": written.rev},
        status=202 if is_batch(request.query) else status,
        headers=headers,
    )


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.get(DESIGN, _get),
        web.put(DESIGN, _put),
        web.delete(DESIGN, _delete),
        web.route("COPY", DESIGN, _copy),
        web.get(DATABASE_PATH + "/_design_docs", _design_docs),
        web.post(DATABASE_PATH + "/_design_docs", _design_docs),
    ]
