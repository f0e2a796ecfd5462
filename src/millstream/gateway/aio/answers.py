"""Answers and request bodies in JSON, and the node as the pages reach it.

Elsewhere: which errors have which status (`gateway.core.errors`).
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, cast

import msgspec
from aiohttp import web

from millstream.access.users import Right, User
from millstream.documents.json_text import LARGE_BYTES
from millstream.errors import AccessError, MillstreamError, UsageError
from millstream.gateway.aio.parsing import decoded
from millstream.gateway.aio.room import hold
from millstream.gateway.core.api.node import CommonNodeApi, NodeApi, NodeMetrics
from millstream.gateway.core.api.tokens import TokenApi
from millstream.gateway.core.cookies import CookieSigner
from millstream.kv.core.statistics import Figures
from millstream.runtime.guests import Guests
from millstream.runtime.pace import Turns
from millstream.runtime.shares import LoopShares

__all__ = [
    "BODY_SECONDS",
    "DATABASE",
    "DATABASE_PATH",
    "DESIGN",
    "GUESTS",
    "NODE_API",
    "OBJECT_BYTES_MAX",
    "SHARES",
    "SIGNER",
    "STILL",
    "TOKENS",
    "USER",
    "answer",
    "asker",
    "design_of",
    "is_bearer",
    "joined",
    "loggable",
    "page_of",
    "raw_answer",
    "read_body",
    "read_metrics",
    "read_object",
    "read_text",
    "require",
]

OBJECT_BYTES_MAX: Final = 1024 * 1024
"""Body of a request that is one object, where nothing else is said."""
BODY_SECONDS: Final = 30.0
"""How long a request's body may take to arrive."""
_PIECE_BYTES: Final = 64 * 1024
"""Inflated at once."""
_GZIP_WINDOW: Final = 31
"""zlib's way to say: with a gzip header."""
NODE_API: Final = web.AppKey("node_api", NodeApi)
GUESTS: Final = web.AppKey("guests", Guests)
SHARES: Final = web.AppKey("shares", LoopShares)
SIGNER: Final = web.AppKey("signer", CookieSigner)
TOKENS: Final[web.AppKey[TokenApi | None]] = web.AppKey(
    "tokens", cast("type[TokenApi | None]", TokenApi)
)
"""Key of who judges tokens, None where none are taken."""
USER: Final[web.RequestKey[User | None]] = web.RequestKey("user", cast("type[User | None]", User))
"""Key under which a request holds its user, None for nobody."""
STILL: Final[web.RequestKey[Callable[[], bool]]] = web.RequestKey(
    "still", cast("type[Callable[[], bool]]", Callable)
)
"""Key under which a request says whether who asks would still be let in: for what lasts."""
DATABASE: Final = "db"
DATABASE_PATH: Final = "/{db:(?:[A-Za-z0-9][^/]*|_users|_replicator|_global_changes)}"
"""The path of a database; the name is percent-encoded."""
DESIGN: Final = DATABASE_PATH + "/{design:_design(?:/|%2F)[^/]+}"
"""The path of a design document, whose slash may be percent-encoded."""


def answer(
    content: Any, *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """Return JSON, with a line end for people's terminals."""
    return raw_answer(msgspec.json.encode(content) + b"\n", status=status, headers=headers)


def raw_answer(
    body: bytes, *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """Return JSON text."""
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def asker(request: web.Request) -> str:
    """Return the name of the user who asks, empty for nobody."""
    user = request[USER]
    return "" if user is None else user.name


def design_of(request: web.Request) -> tuple[str, str]:
    """Return (bucket, name of the design document) that an address speaks of."""
    return request.match_info[DATABASE], request.match_info["design"].removeprefix("_design/")


def is_bearer(authorization: str) -> bool:
    """Return whether the header `Authorization` shows a token."""
    return authorization.partition(" ")[0].lower() == "bearer"


def page_of(request: web.Request) -> str:
    """Return the address of a page as it is declared: logs name no documents."""
    resource = request.match_info.route.resource
    return "?" if resource is None else resource.canonical


def loggable(error: MillstreamError) -> str:
    """Return an error as logs have it: what a function threw may be a document."""
    is_thrown = type(error) is MillstreamError
    return "a function of a design document failed" if is_thrown else str(error)


async def read_body(request: web.Request, bytes_max: int) -> bytes:
    """Return a request's body.

    Raises:
        UsageError: `too_large`, `body_timeout`.
        UnavailableError: `temporarily_unavailable`: there is no room for it.
    """
    pieces, size = list[bytes](), 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in _plain_pieces(request):
                size += len(piece)
                if size > bytes_max:
                    raise UsageError(
                        f"the body is longer than the {bytes_max} bytes of this address",
                        code="too_large",
                    )
                hold(size)
                pieces.append(piece)
    except TimeoutError as error:
        raise UsageError(
            f"the body did not arrive within {BODY_SECONDS:g} s", code="body_timeout"
        ) from error
    return await joined(pieces, size)


async def joined(pieces: Sequence[bytes | memoryview], size: int) -> bytes:
    """Return pieces as one; if they are long, put together in a thread, which holds no lock."""
    return b"".join(pieces) if size <= LARGE_BYTES else await asyncio.to_thread(b"".join, pieces)


async def _plain_pieces(request: web.Request) -> AsyncIterator[bytes]:
    """Yield a body, inflated if it came compressed.

    Raises:
        UsageError: `bad_request`, `bad_content_type`.
    """
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding == "identity":
        async for piece in request.content.iter_any():
            yield piece
        return
    if encoding != "gzip":
        raise UsageError("Content-Encoding must be gzip or identity", code="bad_content_type")
    inflate = zlib.decompressobj(_GZIP_WINDOW)
    try:
        async for piece in request.content.iter_any():
            rest = piece
            while rest and not inflate.eof:
                yield inflate.decompress(rest, _PIECE_BYTES)
                rest = inflate.unconsumed_tail
    except zlib.error as error:
        raise UsageError(f"the body is no gzip: {error}", code="bad_request") from error
    if not inflate.eof:
        raise UsageError("the body is no whole gzip stream", code="bad_request")


async def read_text(request: web.Request, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
    """Return a request's body, which should be a JSON object; an empty body is an empty object.

    Raises:
        UsageError: `bad_content_type`, `too_large`, `body_timeout`.
    """
    body = await read_body(request, bytes_max)
    if not body:
        return b"{}"
    if request.content_type != "application/json":
        raise UsageError("the body must be of type application/json", code="bad_content_type")
    return body


async def read_object(request: web.Request, bytes_max: int = OBJECT_BYTES_MAX) -> dict[str, Any]:
    """Return the JSON object in a request's body; an empty body is an empty object.

    Raises:
        UsageError: `bad_content_type`, `bad_json`, `too_large`, `body_timeout`.
    """
    content = await decoded(await read_text(request, bytes_max))
    if not isinstance(content, dict):
        raise UsageError("the body must be a JSON object", code="bad_json")
    return content


async def read_metrics(api: CommonNodeApi) -> NodeMetrics:
    """Return the statistics of the node and of all buckets, which are read one by one."""
    turns, found = Turns(), dict[str, Figures]()
    for status in api.bucket_statuses():
        await turns.give()
        found |= api.metrics((status.name,)).buckets
    await turns.give()
    return NodeMetrics(api.metrics(()).node, found)


def require(
    request: web.Request, right: Right, bucket: str = "", *, instead: Right | None = None
) -> None:
    """Refuse a request whose user lacks a right, and the one that does instead.

    Raises:
        AccessError: `unauthorized` (nobody is logged in), `forbidden`.
    """
    if request.app[NODE_API].users.is_empty:
        return
    user = request[USER]
    if user is None:
        raise AccessError("log in first", code="unauthorized")
    if not user.may(right, bucket) and not (instead and user.may(instead, bucket)):
        where = f" in bucket {bucket!r}" if bucket else ""
        raise AccessError(f"user {user.name!r} lacks the right {right!r}{where}", code="forbidden")
