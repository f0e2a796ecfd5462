"""One line in the log for every request, at the level `debug`.

Invariants:
1. Nothing is measured or made while the level is above that.
2. A line has no header, no body and no query: nothing that a client may take for secret.

Elsewhere: how lines look (`runtime.logs`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from millstream.gateway.aio.answers import USER

__all__ = ["CLIENT_GONE", "log_access"]

_LOG = logging.getLogger(__name__)
CLIENT_GONE: Final = 499
"""Status of a request whose client left before it was answered."""


@web.middleware
async def log_access(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a request and log it."""
    if not _LOG.isEnabledFor(logging.DEBUG):
        return await handler(request)
    began = time.monotonic()
    try:
        response = await handler(request)
    except asyncio.CancelledError:
        _log(request, CLIENT_GONE, 0, began)
        raise
    size = response.body_length
    if not size and isinstance(response, web.Response) and isinstance(response.body, bytes):
        size = len(response.body)
    _log(request, response.status, size, began)
    return response


def _log(request: web.Request, status: int, size: int, began: float) -> None:
    user = request.get(USER)
    extra = {
        "method": request.method,
        "path": request.path,
        "status": status,
        "ms": round((time.monotonic() - began) * 1000, 3),
        "bytes": size,
        "user": user.name if user is not None else "",
    }
    _LOG.debug("request", extra=extra)
