"""What a node without data answers where documents would be needed: which node has them.

Invariants:
1. These pages come last: whatever no other page of such a node answers is refused here.
2. Whoever is not logged in learns nothing, where there are users.

Elsewhere: the pages that such a node has (`server.DATALESS_PAGES`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn, cast

from aiohttp import web

from millstream.errors import AccessError, MillstreamError
from millstream.gateway.aio.answers import NODE_API, USER

__all__ = ["REFUSAL", "Refusal", "routes"]

Refusal = Callable[[str], MillstreamError]
"""Given the name of a bucket, which may not exist: why a page is not answered."""
REFUSAL: Final[web.AppKey[Refusal]] = web.AppKey("refusal", cast("type[Refusal]", Callable))


async def _refuse(request: web.Request) -> NoReturn:
    if not request.app[NODE_API].users.is_empty and request[USER] is None:
        raise AccessError("log in first", code="unauthorized")
    steps = request.path.strip("/").split("/")
    is_own = steps[0] == "_millstream" and len(steps) > 2
    raise request.app[REFUSAL](steps[2] if is_own else steps[0])


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [web.route("*", "/{path:.*}", _refuse)]
