"""The description of this node's own pages for programs: `/_millstream/openapi.json`.

Elsewhere: how it is made (`gateway.aio.describing`).
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from millstream.errors import AccessError
from millstream.gateway.aio.answers import NODE_API, USER, answer
from millstream.gateway.aio.describing import description_of

__all__ = ["routes"]


async def _openapi(request: web.Request) -> web.Response:
    """Tell the pages below `/_millstream/`, as OpenAPI 3.1 has it.

    Right: any user.
    """
    if not request.app[NODE_API].users.is_empty and request[USER] is None:
        raise AccessError("log in first", code="unauthorized")
    return answer(await asyncio.to_thread(description_of, request.app))


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [web.get("/_millstream/openapi.json", _openapi)]
