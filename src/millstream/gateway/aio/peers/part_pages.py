"""A node's part of a view's answer, for another node: `POST /_millstream/buckets/NAME/part`.

    {"design": .., "view": .., "options": {..}, "partitions": [N, ..], "form": "part" | "json"}

Invariants:
1. Only nodes of the cluster, and administrators, ask for parts.
2. Answered is for the partitions named, all of them, or it is refused (`not_my_partition`). The
   refusal has `records`: newer index records than those by which this node was asked.

Elsewhere: what a part is (`views.core.query.partial_answers`), who asks
(`views.aio.serving.node_link`), views as clients ask them (`view_pages`).
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from millstream.errors import RoutingError, UsageError, http_status_of
from millstream.gateway.aio.answers import NODE_API, answer, read_object, require
from millstream.gateway.aio.streaming import WhileThere, stream
from millstream.gateway.core.api.node import PartRequest
from millstream.gateway.core.errors import body_of

__all__ = ["routes"]


async def _part(request: web.Request) -> web.StreamResponse:
    require(request, "admin")
    asked = _asked(await read_object(request))
    with WhileThere(request):
        try:
            found = await request.app[NODE_API].indexes.part(request.match_info["name"], asked)
        except RoutingError as error:
            told = {"records": error.records} if error.records else {}
            return answer({**body_of(error, request.path), **told}, status=http_status_of(error))
        try:
            headers = {"ETag": f'"{found.head["etag"]}"'} if "etag" in found.head else {}
            return await stream(
                request, aiter(found), headers, content_type="application/octet-stream"
            )
        finally:
            await found.close()


def _asked(content: dict[str, Any]) -> PartRequest:
    try:
        return msgspec.convert(content, PartRequest, str_keys=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"this asks for no part of a view: {error}") from error


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [web.post("/_millstream/buckets/{name}/part", _part)]
