"""Writers of indexes outside the node, over HTTP: `/_millstream/indexes/BUCKET/DDOC`.

    GET  ...                              where the index stands
    POST .../writer    {"writer": name}   become the writer: the fencing number
    POST .../judge     {"fence"}          go back where the source refuses positions
    POST .../keep      {"fence"}        I am at work; which files are staged
    PUT  .../runs/NAME?fence=N            stage a file; the body is its bytes
    POST .../load      {"fence", "parts", "back", "trees"}
    POST .../publish   {"fence", "parts", "documents"}

    POST /_millstream/offers/BUCKET    {"building": [ddoc]}    which builds may be taken

Invariants:
1. Whoever writes an index needs the right `design` in its bucket, as who writes its design
   document; whoever looks, `read`.
2. A file is taken in piece by piece, and given up if nothing of it comes for `BODY_SECONDS`.

Elsewhere: what the calls do (`views.aio.serving.outside_writer`), who asks
(`millstream.pipelines.index`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from millstream.errors import UsageError
from millstream.gateway.aio.answers import BODY_SECONDS, NODE_API, answer, read_body, require
from millstream.gateway.core.api.node import WriterCall

__all__ = ["PARTS_BYTES_MAX", "routes"]

PARTS_BYTES_MAX: Final = 8 * 1024 * 1024
"""Most bytes of the description of a commit: parts and names of files."""
PIECE_BYTES: Final = 256 * 1024
_INDEX: Final = "/_millstream/indexes/{bucket}/{design}"
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])
_Said = TypeVar("_Said")


class _Taking(msgspec.Struct):
    writer: str


class _Asking(msgspec.Struct):
    building: list[str]


class _Judging(msgspec.Struct):
    fence: int


async def _state(request: web.Request) -> web.Response:
    """Tell the status of the index of a design document.

    Right: read.
    """
    require(request, "read", request.match_info["bucket"])
    return await _written(request, "index", {})


async def _take_over(request: web.Request) -> web.Response:
    """Become the writer of an index.

    Right: design.
    """
    require(request, "design", request.match_info["bucket"])
    said = _as(await _object(request), _Taking)
    return await _written(request, "take_over", {"writer": said.writer})


async def _judge(request: web.Request) -> web.Response:
    """Have an index follow the rollbacks of its source.

    Right: design.
    """
    require(request, "design", request.match_info["bucket"])
    said = _as(await _object(request), _Judging)
    return await _written(request, "judge", {"fence": said.fence})


async def _keep(request: web.Request) -> web.Response:
    """Keep the staged files of a writer for another hour.

    Right: design.
    """
    require(request, "design", request.match_info["bucket"])
    said = _as(await _object(request), _Judging)
    return await _written(request, "keep", {"fence": said.fence})


async def _offers(request: web.Request) -> web.Response:
    """Tell which design documents a pipeline may build.

    Right: design.
    """
    bucket = request.match_info["bucket"]
    require(request, "design", bucket)
    said = _as(await _object(request), _Asking)
    return answer({"offers": await request.app[NODE_API].indexes.offers(bucket, said.building)})


async def _load(request: web.Request) -> web.Response:
    """Commit sorted rows as the first commit of an index, or in place of all its rows.

    Right: design.
    """
    return await _commit(request, "load")


async def _publish(request: web.Request) -> web.Response:
    """Commit rows of changed documents.

    Right: design.
    """
    return await _commit(request, "publish")


async def _commit(request: web.Request, call: WriterCall) -> web.Response:
    require(request, "design", request.match_info["bucket"])
    said = await _object(request)
    fence = _as(said, _Judging).fence
    return await _written(request, call, {"fence": fence, "said": said})


async def _stage(request: web.Request) -> web.Response:
    """Stage a file of a writer.

    Right: design.
    """
    bucket, design = request.match_info["bucket"], request.match_info["design"]
    require(request, "design", bucket)
    fence = request.query.get("fence", "")
    if not fence.isdecimal():
        raise UsageError("say under which fencing number: ?fence=N")
    await request.app[NODE_API].indexes.stage(
        bucket, design, int(fence), request.match_info["run"], _pieces(request)
    )
    return answer({"ok": True}, status=201)


async def _pieces(request: web.Request) -> AsyncIterator[bytes]:
    while True:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                piece = await request.content.read(PIECE_BYTES)
        except TimeoutError as error:
            raise UsageError(
                f"nothing of the body came for {BODY_SECONDS:g} s", code="body_timeout"
            ) from error
        if not piece:
            return
        yield piece


async def _written(
    request: web.Request, call: WriterCall, arguments: dict[str, Any]
) -> web.Response:
    bucket, design = request.match_info["bucket"], request.match_info["design"]
    return answer(await request.app[NODE_API].indexes.write(bucket, design, call, arguments))


async def _object(request: web.Request) -> dict[str, Any]:
    try:
        return _OBJECT.decode(await read_body(request, PARTS_BYTES_MAX))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the body is no JSON object: {error}", code="bad_json") from error


def _as(content: dict[str, Any], kind: type[_Said]) -> _Said:
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"this is not what a writer says: {error}") from error


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.post("/_millstream/offers/{bucket}", _offers),
        web.get(_INDEX, _state),
        web.post(_INDEX + "/writer", _take_over),
        web.post(_INDEX + "/judge", _judge),
        web.post(_INDEX + "/keep", _keep),
        web.put(_INDEX + "/runs/{run}", _stage),
        web.post(_INDEX + "/load", _load),
        web.post(_INDEX + "/publish", _publish),
    ]
