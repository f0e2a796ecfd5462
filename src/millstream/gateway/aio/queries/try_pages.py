"""A map and a reduce function tried on a few documents: `POST /_millstream/buckets/NAME/try`.

    {"map": "function (doc) { emit(doc._id, 1); }", "reduce": "_sum", "limit": 10}

Invariants:
1. Nothing is stored. The functions run in a sandbox of their own, with the limits of views.
2. At most `TRIES_MAX` run at a time; others wait for `WAIT_S`.
3. Only JavaScript is tried: functions in Python are the operator's own code.

Elsewhere: the sandbox (`views.aio.sandbox`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated, Any, Final, Literal, TypedDict

import msgspec
from aiohttp import web

from millstream.errors import MillstreamError, UnavailableError, UsageError
from millstream.gateway.aio.answers import NODE_API, answer, read_object, require
from millstream.gateway.aio.describing import gives, takes
from millstream.views.aio.sandbox.mapping import open_functions
from millstream.views.core.design.design_documents import Functions
from millstream.views.core.reduce.values import reduce_values

__all__ = ["DOCUMENTS_MAX", "TRIES", "TRIES_MAX", "routes"]

DOCUMENTS_MAX: Final = 100
BYTES_MAX: Final = 32 * 1024 * 1024
"""The documents end with the one that exceeds this."""
ROWS_SHOWN_MAX: Final = 1_000
"""Rows of one document that are shown; a reduce gets no more either."""
TRIES_MAX: Final = 2
WAIT_S: Final = 10.0
_BUILT_IN: Final = ("_sum", "_count", "_stats")


class Try(msgspec.Struct, forbid_unknown_fields=True):
    map: str
    reduce: str = ""
    language: Literal["javascript"] = "javascript"
    limit: Annotated[int, msgspec.Meta(ge=1, le=DOCUMENTS_MAX)] = 10
    start: str | None = None
    """Documents from this id on."""


class RowTold(TypedDict):
    """A row that a map emitted."""

    key: Any
    value: Any


class TriedDocument(TypedDict):
    """What a map made of a document: its first rows, and how many it emitted."""

    id: str
    rows: list[RowTold]
    emitted: int
    error: str | None


class Tried(TypedDict):
    """What functions made of documents."""

    documents: list[TriedDocument]
    reduced: Any
    error: str | None


TRIES: Final = web.AppKey("tries", asyncio.Semaphore)


@takes(Try)
@gives(Tried)
async def _try(request: web.Request) -> web.Response:
    """Run a map, and a reduce, on the first documents of a bucket.

    Right: design.
    """
    bucket = request.match_info["name"]
    require(request, "design", bucket)
    require(request, "read", bucket)
    content = await read_object(request)
    try:
        asked = msgspec.convert(content, Try)
    except msgspec.ValidationError as error:
        raise UsageError(f"the body of {request.path}: {error}") from error
    found, size = list[tuple[str, bytes]](), 0
    documents = request.app[NODE_API].scan.documents(
        bucket, asked.start, None, descending=False, conflicts=False
    )
    async with aclosing(documents):
        async for one in documents:
            found.append(one)
            size += len(one[1])
            if len(found) >= asked.limit or size > BYTES_MAX:
                break
    try:
        async with asyncio.timeout(WAIT_S):
            await request.app[TRIES].acquire()
    except TimeoutError as error:
        raise UnavailableError(
            "other functions are being tried: try again", code="temporarily_unavailable"
        ) from error
    try:
        return answer(await asyncio.to_thread(_tried, asked, found))
    finally:
        request.app[TRIES].release()


def _tried(asked: Try, documents: Sequence[tuple[str, bytes]]) -> Tried:
    """Return what the functions make of documents."""
    is_own = bool(asked.reduce) and asked.reduce not in _BUILT_IN
    own = ((0, asked.reduce),) if is_own else ()
    try:
        mapper = open_functions(Functions("try", asked.language, (asked.map,), own, ""))
    except MillstreamError as error:
        return {"documents": [], "reduced": None, "error": str(error)}
    decode = msgspec.json.decode
    try:
        shown, keys, values = list[TriedDocument](), list[Any](), list[Any]()
        mapped = mapper.map([text for _, text in documents])
        for (name, _), one in zip(documents, mapped, strict=True):
            rows = [(decode(key), decode(value)) for _, key, value in one.rows[:ROWS_SHOWN_MAX]]
            keys += [[key, name] for key, _ in rows]
            values += [value for _, value in rows]
            shown.append(
                {
                    "id": name,
                    "rows": [{"key": key, "value": value} for key, value in rows],
                    "emitted": len(one.rows),
                    "error": one.errors[0].message if one.errors else None,
                }
            )
        reduced = None
        if is_own and keys:
            (reduced,) = mapper.reduce(0, [(keys, values, False)])
        elif asked.reduce and not is_own:
            reduced = reduce_values(asked.reduce, values)
        return {"documents": shown, "reduced": reduced, "error": None}
    except (MillstreamError, ValueError, ArithmeticError) as error:
        return {"documents": [], "reduced": None, "error": str(error)}
    finally:
        mapper.close()


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [web.post("/_millstream/buckets/{name}/try", _try)]
