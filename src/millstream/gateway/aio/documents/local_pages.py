"""Documents that stay in their database, `/DB/_local/ID`: checkpoints of replicators, mostly.

Invariants:
1. A revision that is named has to be the present one; none at all replaces whatever is there.
2. What was answered is durable.

Elsewhere: where they are stored, and which go when history is rolled back
(`databases.documents.local_documents`).
Source: CouchDB's `_local` documents.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from aiohttp import web

from millstream.documents.reading import Piece
from millstream.documents.sent import local_rev, parse_local
from millstream.errors import ConditionError, UsageError
from millstream.gateway.aio.answers import (
    DATABASE,
    DATABASE_PATH,
    NODE_API,
    answer,
    read_body,
    require,
)
from millstream.gateway.aio.listing import asked_list
from millstream.gateway.aio.parsing import interpreted
from millstream.gateway.aio.streaming import as_they_come, stream
from millstream.gateway.core.api.documents import LocalDocument
from millstream.gateway.core.documents import document_pieces
from millstream.gateway.core.listing import Listed, list_documents

__all__ = ["LOCAL_BYTES_MAX", "local_pieces", "routes"]

LOCAL_BYTES_MAX: Final = 8 * 1024 * 1024
"""Body of a request that stores one."""
_LOCAL: Final = DATABASE_PATH + "/{local:_local(?:/|%2F)[^/]+}"


def local_pieces(found: LocalDocument) -> tuple[Piece, Piece]:
    """Return the text of one."""
    return document_pieces(f"_local/{found.id}", f"0-{found.rev}", found.body)


def _of(request: web.Request) -> tuple[str, str]:
    require(request, "read", request.match_info[DATABASE])
    return request.match_info[DATABASE], request.match_info["local"].removeprefix("_local/")


async def _get(request: web.Request) -> web.StreamResponse:
    bucket, doc_id = _of(request)
    found = await request.app[NODE_API].documents.read_local(bucket, doc_id)
    if found is None:
        raise ConditionError("missing", code="not_found")
    return await stream(request, as_they_come([*local_pieces(found), b"\n"]), {})


async def _attachment(request: web.Request) -> web.Response:
    bucket, _ = _of(request)
    if request.method != "GET":
        require(request, "write", bucket)
    raise UsageError("_local documents do not accept attachments.", code="bad_request")


async def _put(request: web.Request) -> web.Response:
    bucket, doc_id = _of(request)
    require(request, "write", bucket)
    body, rev = await interpreted(parse_local, await read_body(request, LOCAL_BYTES_MAX))
    if rev is None:
        rev = local_rev(request.query.get("rev"))
    number = await request.app[NODE_API].documents.write_local(bucket, doc_id, body, rev)
    return _written(doc_id, number, 201)


async def _delete(request: web.Request) -> web.Response:
    bucket, doc_id = _of(request)
    require(request, "write", bucket)
    rev = local_rev(request.query.get("rev"))
    await request.app[NODE_API].documents.write_local(bucket, doc_id, None, rev)
    return _written(doc_id, 0, 200)


async def _copy(request: web.Request) -> web.Response:
    bucket, doc_id = _of(request)
    require(request, "write", bucket)
    header = unquote(request.headers.get("Destination", "")).lstrip("/")
    target = header.removeprefix("_local/")
    if not target or target == header:
        raise UsageError("Destination must be _local/ID", code="bad_request")
    documents = request.app[NODE_API].documents
    found = await documents.read_local(bucket, doc_id)
    if found is None:
        raise ConditionError("missing", code="not_found")
    return _written(target, await documents.write_local(bucket, target, found.body, None), 201)


def _written(doc_id: str, number: int, status: int) -> web.Response:
    return answer({"ok": True, "id": f"_local/{doc_id}", "rev": f"0-{number}"}, status=status)


async def _list(request: web.Request) -> web.StreamResponse:
    bucket = request.match_info[DATABASE]
    require(request, "read", bucket)
    query = await asked_list(request)
    found = await request.app[NODE_API].documents.locals(bucket)
    listed = [Listed(f"_local/{one.id}", f"0-{one.rev}", one.body) for one in found]
    listed.sort(key=lambda one: one.id.encode())
    pieces = list_documents(listed, query, is_counted=False)
    return await stream(request, as_they_come(pieces), {})


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.get(_LOCAL, _get),
        web.get(_LOCAL + "/{name:.+}", _attachment),
        web.put(_LOCAL + "/{name:.+}", _attachment),
        web.put(_LOCAL, _put),
        web.delete(_LOCAL, _delete),
        web.route("COPY", _LOCAL, _copy),
        web.get(DATABASE_PATH + "/_local_docs", _list),
        web.post(DATABASE_PATH + "/_local_docs", _list),
    ]
