"""Requests of other nodes that share a bucket.

    POST /_millstream/buckets/NAME/stored        a request -> its answer, or a stream of messages
    GET /_millstream/buckets/NAME/blobs/HEX?begin=N&end=N    -> bytes of an attachment
    PUT /_millstream/buckets/NAME/blobs/HEX      keeps them

Invariants:
1. Only nodes of the cluster, and administrators, ask.
2. A refusal of what was understood is an answer with status 200.
3. No more of a stream is made than is taken.

Elsewhere: requests and answers (`gateway.core.api.stored`), who asks (`databases.remote_node`),
who answers (`databases.documents.local_node`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Final

from aiohttp import web

from millstream.errors import MillstreamError, UnavailableError, UsageError
from millstream.gateway.aio.answers import NODE_API, answer, read_body, require
from millstream.gateway.aio.documents.attaching import PIECE_BYTES
from millstream.gateway.aio.streaming import WhileThere, stream
from millstream.gateway.core.api.stored import (
    REQUEST_BYTES_MAX,
    Answer,
    Streamed,
    decode_asked,
    encode,
    refused,
)

__all__ = ["PIECE_SECONDS", "routes"]

PIECE_SECONDS: Final = 30.0
"""How long the next bytes of an attachment may take to arrive."""
_BINARY: Final = "application/octet-stream"
_BLOB: Final = "/_millstream/buckets/{name}/blobs/{sha256:[0-9a-f]{64}}"


async def _stored(request: web.Request) -> web.StreamResponse:
    require(request, "admin")
    asked = decode_asked(await read_body(request, REQUEST_BYTES_MAX))
    node, name = request.app[NODE_API].stored, request.match_info["name"]
    found: Answer
    with WhileThere(request):
        if isinstance(asked, Streamed):
            async with aclosing(node.stream(name, asked)) as messages:
                return await stream(request, messages, {}, content_type=_BINARY)
        try:
            found = await node.answer(name, asked)
        except MillstreamError as error:
            found = refused(error)
    return web.Response(body=encode(found), content_type=_BINARY)


async def _get(request: web.Request) -> web.StreamResponse:
    require(request, "admin")
    begin, end = _number(request.query, "begin"), _number(request.query, "end")
    if begin > end:
        raise UsageError("begin must not be larger than end")
    pieces = request.app[NODE_API].stored.open_blob(
        request.match_info["name"], _name_of(request), begin, end
    )
    return await stream(request, pieces, {}, content_type=_BINARY)


async def _put(request: web.Request) -> web.Response:
    require(request, "admin")
    kept = await request.app[NODE_API].stored.put_blob(request.match_info["name"], _body(request))
    if kept.sha256 != _name_of(request):
        raise UsageError("these bytes have another name", code="bad_blob")
    return answer({"ok": True})


def _name_of(request: web.Request) -> bytes:
    return bytes.fromhex(request.match_info["sha256"])


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise UsageError(f"{name} must be a number")
    return int(text)


async def _body(request: web.Request) -> AsyncIterator[bytes]:
    while True:
        try:
            async with asyncio.timeout(PIECE_SECONDS):
                piece = await request.content.read(PIECE_BYTES)
        except TimeoutError as error:
            raise UsageError("the bytes do not arrive", code="body_timeout") from error
        except web.RequestPayloadError as error:
            raise UnavailableError(f"the bytes broke off: {error}") from error
        if not piece:
            return
        yield piece


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.post("/_millstream/buckets/{name}/stored", _stored),
        web.get(_BLOB, _get),
        web.put(_BLOB, _put),
    ]
