"""What nodes that answer for all of a bucket ask of each other, each for its own partitions.

    POST /_millstream/buckets/NAME/parts/histories  {"uuid", "partitions", "positions", "wait_s"}
    POST /_millstream/buckets/NAME/parts/changes    {"uuid", "partitions", "positions", "restarts"}
    POST /_millstream/buckets/NAME/parts/documents  {"uuid", "partitions", "start", "end", ..}
    POST /_millstream/buckets/NAME/parts/figures    {"uuid", "partitions"}
    POST /_millstream/buckets/NAME/parts/purges     {"uuid", "is_made"}

Invariants:
1. Only nodes of the cluster, and administrators, ask.
2. No more of a stream is made than is taken.

Elsewhere: the forms (`gateway.core.bucket_parts`), who answers
(`databases.documents.local_parts`), who asks (`databases.remote_parts`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from millstream.errors import UsageError
from millstream.gateway.aio.answers import HOST, answer, raw_answer, read_body, require
from millstream.gateway.aio.streaming import WhileThere, stream
from millstream.gateway.core.bucket_parts import (
    WantedChanges,
    WantedDocuments,
    WantedHistories,
    WantedPart,
)

__all__ = ["WANTED_BYTES_MAX", "routes"]

WANTED_BYTES_MAX: Final = 1024 * 1024
"""Of a request: a thousand positions take 80 KB."""
_PATH: Final = "/_millstream/buckets/{name}/parts"
_CONTENT_TYPE: Final = "application/octet-stream"
_Wanted = TypeVar("_Wanted", bound=msgspec.Struct)


class _Purge(msgspec.Struct):
    uuid: str
    is_made: bool


async def _histories(request: web.Request) -> web.Response:
    wanted = await _wanted(request, WantedHistories)
    with WhileThere(request):
        found = await request.app[HOST].parts.histories(request.match_info["name"], wanted)
    return raw_answer(msgspec.json.encode(found))


async def _changes(request: web.Request) -> web.StreamResponse:
    wanted = await _wanted(request, WantedChanges)
    parts = request.app[HOST].parts
    return await _stream(request, parts.changes(request.match_info["name"], wanted))


async def _documents(request: web.Request) -> web.StreamResponse:
    wanted = await _wanted(request, WantedDocuments)
    parts = request.app[HOST].parts
    return await _stream(request, parts.documents(request.match_info["name"], wanted))


async def _figures(request: web.Request) -> web.Response:
    wanted = await _wanted(request, WantedPart)
    found = await request.app[HOST].parts.figures(request.match_info["name"], wanted)
    return raw_answer(msgspec.json.encode(found))


async def _purges(request: web.Request) -> web.Response:
    wanted = await _wanted(request, _Purge)
    parts, name = request.app[HOST].parts, request.match_info["name"]
    await parts.count_purge(name, wanted.uuid, is_made=wanted.is_made)
    return answer({"ok": True})


async def _wanted(request: web.Request, form: type[_Wanted]) -> _Wanted:
    require(request, "admin")
    try:
        return msgspec.json.decode(await read_body(request, WANTED_BYTES_MAX), type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"this asks for no part of a bucket: {error}") from error


async def _stream(
    request: web.Request, pieces: AsyncGenerator[bytes, None]
) -> web.StreamResponse:  # fmt: skip
    with WhileThere(request):
        async with aclosing(pieces):
            return await stream(request, pieces, {}, content_type=_CONTENT_TYPE)


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.post(_PATH + "/histories", _histories),
        web.post(_PATH + "/changes", _changes),
        web.post(_PATH + "/documents", _documents),
        web.post(_PATH + "/figures", _figures),
        web.post(_PATH + "/purges", _purges),
    ]
