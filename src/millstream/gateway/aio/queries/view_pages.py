"""Views over HTTP: queries, what is known of an index, what may be done with one.

Invariants:
1. Whoever asks a view needs the right `read`; whoever compacts or cleans up, `design`.
2. An answer that the client has already, by its ETag, is not made.
3. Whoever asks is not blamed for a design document that cannot be used: that is 500.

Elsewhere: parameters (`views.core.query.parameters`), the answers
(`gateway.core.api.node.IndexApi`), how they leave (`streaming`), design documents
(`design_pages`).
Source: CouchDB's view API.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from aiohttp import web

from millstream.errors import AccessError, ConditionError, MillstreamError, UsageError
from millstream.gateway.aio.answers import (
    DATABASE,
    DATABASE_PATH,
    DESIGN,
    NODE_API,
    USER,
    answer,
    design_of,
    read_body,
    require,
)
from millstream.gateway.aio.parsing import interpreted
from millstream.gateway.aio.streaming import WhileThere, stream
from millstream.gateway.core.api.node import ViewAnswer
from millstream.gateway.core.documents import names_etag
from millstream.views.core.query.large_bodies import view_options, view_queries
from millstream.views.core.query.parameters import (
    QUERY_BODY_BYTES_MAX,
    url_options,
)

__all__ = ["routes"]

_VIEW: Final = DESIGN + "/_view/{view}"
_UNUSABLE: Final = frozenset({"invalid_design_doc", "compilation_error", "unknown_function"})
"""Codes of refusals that are about the design document, not about what is asked of it."""


async def _query(request: web.Request) -> web.StreamResponse:
    bucket, _ = design_of(request)
    require(request, "read", bucket)
    options = url_options(request.query.items())
    if request.method == "POST":
        options = await interpreted(view_options, await _json_body(request), options)
    with WhileThere(request):
        found = await _asked(request, options)
        try:
            headers = {"Cache-Control": "must-revalidate"}
            if "etag" in found.head:
                headers["ETag"] = f'"{found.head["etag"]}"'
                if names_etag(request.headers.get("If-None-Match"), headers["ETag"]):
                    return web.Response(status=304, headers=headers)
            if request.method == "HEAD":
                return web.Response(headers=headers, content_type="application/json")
            return await stream(request, aiter(found), headers)
        finally:
            await found.close()


async def _queries(request: web.Request) -> web.StreamResponse:
    bucket, _ = design_of(request)
    require(request, "read", bucket)
    common = url_options(request.query.items())
    queries = await interpreted(view_queries, await _json_body(request), common)
    with WhileThere(request):
        return await stream(request, _results(request, queries), {})


async def _results(request: web.Request, queries: list[dict[str, Any]]) -> AsyncIterator[bytes]:
    """Yield the answers one after the other: only one of them is under way at a time."""
    yield b'{"results":['
    for number, options in enumerate(queries):
        found = await _asked(request, options)
        try:
            if number:
                yield b","
            async for piece in found:
                yield piece
        finally:
            await found.close()
    yield b"]}\n"


async def _asked(request: web.Request, options: Mapping[str, Any]) -> ViewAnswer:
    bucket, name = design_of(request)
    api = request.app[NODE_API]
    try:
        return await api.indexes.query(bucket, name, request.match_info["view"], options)
    except (ConditionError, UsageError) as error:
        raise await _named(request, error) from error


async def _named(request: web.Request, error: MillstreamError) -> MillstreamError:
    """Raise why a design document does not answer: it was deleted, or cannot be used."""
    if error.code in _UNUSABLE:
        return MillstreamError(str(error), code="compilation_error")
    if error.code == "missing":
        found = await request.app[NODE_API].designs.read(*design_of(request))
        if found is not None and found.is_deleted:
            return ConditionError("deleted", code="not_found")
    return error


async def _json_body(request: web.Request) -> bytes:
    if request.body_exists and request.content_type != "application/json":
        raise UsageError("the body must be of type application/json", code="bad_content_type")
    return await read_body(request, QUERY_BODY_BYTES_MAX)


async def _info(request: web.Request) -> web.Response:
    bucket, name = design_of(request)
    require(request, "read", bucket)
    try:
        info = await request.app[NODE_API].indexes.info(bucket, name)
    except (ConditionError, UsageError) as error:
        raise await _named(request, error) from error
    return answer({"name": name, "view_index": info})


async def _compact(request: web.Request) -> web.Response:
    bucket = request.match_info[DATABASE]
    require(request, "design", bucket)
    await request.app[NODE_API].indexes.compact(bucket, request.match_info["name"])
    return answer({"ok": True}, status=202)


async def _clean_up(request: web.Request) -> web.Response:
    bucket = request.match_info[DATABASE]
    require(request, "design", bucket)
    await request.app[NODE_API].indexes.cleanup(bucket)
    return answer({"ok": True}, status=202)


async def _tasks(request: web.Request) -> web.Response:
    api, user = request.app[NODE_API], request[USER]
    if user is None and not api.users.is_empty:
        raise AccessError("log in first", code="unauthorized")
    tasks = await api.indexes.tasks()
    found = [t for t in tasks if user is None or user.may("read", str(t.get("database")))]
    is_admin = user is None or user.may("admin", "")
    return answer(found + (api.replication_tasks() if is_admin else []))


async def _temporary(request: web.Request) -> web.Response:
    return answer(
        {"error": "gone", "reason": "Temporary views are not supported: use a design document."},
        status=410,
    )


async def _rendered(request: web.Request) -> web.Response:
    """Answer that show and list functions and rewrites are not supported."""
    bucket, _ = design_of(request)
    require(request, "read", bucket)
    reason = (
        f"{request.match_info['what'].removeprefix('_')} functions are not run here: read the "
        "document or the view and render it in the client, or have an update function (_update) "
        "answer"
    )
    return answer({"error": "gone", "reason": reason}, status=410)


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.get(_VIEW, _query),
        web.post(_VIEW, _query),
        web.post(_VIEW + "/queries", _queries),
        web.get(DESIGN + "/_info", _info),
        web.post(DATABASE_PATH + "/_compact/{name}", _compact),
        web.post(DATABASE_PATH + "/_view_cleanup", _clean_up),
        web.post(DATABASE_PATH + "/_temp_view", _temporary),
        web.route("*", DESIGN + "/{what:_show|_list|_rewrite}/{rest:.+}", _rendered),
        web.get("/_active_tasks", _tasks),
    ]
