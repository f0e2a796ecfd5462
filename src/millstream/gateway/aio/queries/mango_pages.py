"""Declarative queries over HTTP: `POST /DB/_find`, and how one would be answered: `_explain`.

Invariants:
1. Whoever asks needs the right `read`.
2. The loop is given back after `TURN_DOCUMENTS` documents or `STEP_S`, also of those that
   are looked at in vain; what may take long of one document runs elsewhere (`selecting`).
3. A wrong query is refused before anything is read; what fails later is cut off.

Elsewhere: indexes (`mango_index_pages`), queries and which index serves (`views.core.mango`), the
rows of an index (`gateway.core.api.node.IndexApi`), all documents
(`gateway.core.api.node.DocumentScan`). Source: CouchDB's `_find`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

from aiohttp import web

from millstream.documents.json_text import parse_object
from millstream.gateway.aio.answers import (
    DATABASE,
    DATABASE_PATH,
    NODE_API,
    raw_answer,
    read_text,
    require,
)
from millstream.gateway.aio.parsing import SMALL_TEXT_BYTES, understood
from millstream.gateway.aio.queries.mango_index_pages import indexes_of_bucket
from millstream.gateway.aio.queries.selecting import selected
from millstream.gateway.aio.streaming import WhileThere, stream
from millstream.gateway.core.api.node import NodeApi
from millstream.gateway.core.mango_answers import (
    LargeSelector,
    Selection,
    explained_by,
    planned,
    planned_by,
    rows_in,
)
from millstream.runtime.long_calls import run_apart
from millstream.runtime.pace import Turns
from millstream.views.core.mango.finding import Find, Place, parse_find
from millstream.views.core.mango.planning import Index, Plan
from millstream.views.core.mango.selectors import Selector

__all__ = ["TURN_DOCUMENTS", "routes"]

TURN_DOCUMENTS: Final = 50
"""Looked at before others have a turn."""
_Rows = AsyncGenerator[tuple[Place, bytes], None]


async def _find(request: web.Request) -> web.StreamResponse:
    text, indexes = await _asked(request)
    selector: Selector | LargeSelector
    if len(text) > SMALL_TEXT_BYTES:
        find, plan = await run_apart(planned_by, text, indexes)
        selector = LargeSelector(text, has_fields=True)
    else:
        find, plan = await understood(request, _planned, text, indexes)
        selector = find.selector
    with WhileThere(request):
        api, bucket = request.app[NODE_API], request.match_info[DATABASE]
        pieces = _answered(api, bucket, find, plan, selector)
        async with aclosing(pieces):
            return await stream(request, pieces, {})


async def _explain(request: web.Request) -> web.Response:
    text, indexes = await _asked(request)
    bucket = request.match_info[DATABASE]
    if len(text) > SMALL_TEXT_BYTES:
        shown = await run_apart(explained_by, text, bucket, indexes)
    else:
        shown = await understood(request, explained_by, text, bucket, indexes)
    return raw_answer(shown + b"\n")


async def _asked(request: web.Request) -> tuple[bytes, list[Index]]:
    """Return the body of a request, and the indexes that may serve it."""
    bucket = request.match_info[DATABASE]
    require(request, "read", bucket)
    text = await read_text(request)
    return text, await indexes_of_bucket(request.app[NODE_API], bucket)


def _planned(text: bytes, indexes: Sequence[Index]) -> tuple[Find, Plan]:
    find = parse_find(parse_object(text))
    return find, planned(find, indexes)


async def _answered(
    api: NodeApi, bucket: str, find: Find, plan: Plan, selector: Selector | LargeSelector
) -> AsyncGenerator[bytes, None]:
    """Yield an answer's text."""
    loop = asyncio.get_running_loop()
    started, selection = loop.time(), Selection(find, plan)
    if plan.is_empty or not find.limit:
        yield b'{"docs":[' + selection.tail(loop.time() - started)
        return
    read = _all_documents if plan.index.is_all_docs else _rows_of_index
    before, turns = b'{"docs":[\r\n', Turns()
    async with aclosing(read(api, bucket, find, plan)) as rows:
        async for place, text in rows:
            matched = await selected(selector, find.paths, text)
            shown = selection.take(place, matched)
            if shown is not None:
                yield before + shown
                before = b",\r\n"
                if selection.is_full:
                    break
            if selection.examined % TURN_DOCUMENTS == 0:
                await asyncio.sleep(0)
            await turns.give()
    if not selection.answered:
        yield b'{"docs":['
    yield selection.tail(loop.time() - started)


async def _all_documents(api: NodeApi, bucket: str, find: Find, plan: Plan) -> _Rows:
    low, high = plan.ids
    if find.after is not None:
        low, high = (low, find.after.id) if find.descending else (find.after.id, high)
    documents = api.scan.documents(
        bucket, low, high, descending=find.descending, conflicts=find.conflicts
    )
    async with aclosing(documents) as found:
        async for doc_id, text in found:
            yield Place(None, doc_id), text


async def _rows_of_index(api: NodeApi, bucket: str, find: Find, plan: Plan) -> _Rows:
    index = plan.index
    found = await api.indexes.query(bucket, index.design, index.name, _options(find, plan))
    try:
        async for piece in found:
            for row in rows_in(piece):
                yield row.place, bytes(row.doc)
    finally:
        await found.close()


def _options(find: Find, plan: Plan) -> dict[str, Any]:
    """Return the parameters of the view that is read."""
    start, end = plan.start_key, plan.end_key
    options: dict[str, Any] = {"reduce": False, "include_docs": True}
    if find.descending:
        options |= {"descending": True, "startkey": end, "endkey": start}
    else:
        options |= {"startkey": start, "endkey": end}
    if find.after is not None:
        options |= {"startkey": find.after.key, "startkey_docid": find.after.id}
    if not find.update:
        options["update"] = "false"
    if find.stable:
        options["stable"] = True
    if find.conflicts:
        options["conflicts"] = True
    return options


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.post(DATABASE_PATH + "/_find", _find),
        web.post(DATABASE_PATH + "/_explain", _explain),
    ]
