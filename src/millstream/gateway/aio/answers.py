"""Answers and request bodies in JSON, and the node as the pages reach it.

Elsewhere: which errors have which status (`gateway.core.errors`).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

import msgspec
from aiohttp import web

from millstream.access.users import Right, User
from millstream.errors import AccessError, UsageError
from millstream.gateway.core.cookies import CookieSigner
from millstream.gateway.core.host import NodeHost

__all__ = ["BODY_SECONDS", "HOST", "SIGNER", "USER", "answer", "read_object", "require"]

BODY_SECONDS: Final = 30.0
"""How long a request's body may take to arrive."""
HOST: Final = web.AppKey("host", NodeHost)
SIGNER: Final = web.AppKey("signer", CookieSigner)
USER: Final[web.RequestKey[User | None]] = web.RequestKey("user", cast("type[User | None]", User))
"""Key under which a request holds its user, None for nobody."""


def answer(
    content: Any, *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """Return JSON, with a line end for people's terminals."""
    body = msgspec.json.encode(content) + b"\n"
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


async def read_object(request: web.Request) -> dict[str, Any]:
    """Return the JSON object in a request's body; an empty body is an empty object.

    Raises:
        UsageError: `bad_content_type`, `bad_json`, `body_timeout`.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await request.read()
    except TimeoutError as error:
        raise UsageError(
            f"the body did not arrive within {BODY_SECONDS:g} s", code="body_timeout"
        ) from error
    if not body:
        return {}
    if request.content_type != "application/json":
        raise UsageError("a body of type application/json is wanted", code="bad_content_type")
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the body is not JSON: {error}", code="bad_json") from error
    if not isinstance(content, dict):
        raise UsageError("the body must be a JSON object", code="bad_json")
    return content


def require(request: web.Request, right: Right, bucket: str = "") -> None:
    """Refuse a request whose user lacks a right.

    Raises:
        AccessError: `unauthorized` (nobody is logged in), `forbidden`.
    """
    if request.app[HOST].users.is_empty:
        return
    user = request[USER]
    if user is None:
        raise AccessError("log in first", code="unauthorized")
    if not user.may(right, bucket):
        where = f" in bucket {bucket!r}" if bucket else ""
        raise AccessError(f"user {user.name!r} lacks the right {right!r}{where}", code="forbidden")
