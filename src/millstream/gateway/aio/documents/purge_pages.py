"""Purges over HTTP: `_purge`, `_purged_infos` and `_purged_infos_limit`.

Elsewhere: what a purge makes of a document (`documents.updating`).
Source: CouchDB's purge API.
"""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from millstream.documents.purge_list import PURGED_INFOS_LIMIT_MAX, Purged
from millstream.documents.sent import checked_id
from millstream.documents.stored import StoredDocument
from millstream.documents.updating import Purge, purge
from millstream.errors import MillstreamError, UsageError
from millstream.gateway.aio.answers import (
    DATABASE,
    DATABASE_PATH,
    NODE_API,
    answer,
    read_body,
    require,
)
from millstream.gateway.aio.documents.bulk_pages import revs_by_id
from millstream.gateway.aio.documents.writing import PORTION_EDITS
from millstream.gateway.core.api.documents import Written

__all__ = ["PURGED_AT_ONCE_MAX", "routes"]

PURGED_AT_ONCE_MAX: Final = 10_000
"""Documents in one `_purge`. CouchDB takes 100 where nothing else is set."""


async def _purge(request: web.Request) -> web.Response:
    bucket = request.match_info[DATABASE]
    require(request, "admin")
    asked: dict[str, list[str]] = {}
    async for some in revs_by_id(request, PURGED_AT_ONCE_MAX):
        asked |= some
    done: dict[str, Purge] = {}

    def decide_of(doc_id: str, revs: list[str]) -> Any:
        def decide(document: StoredDocument | None) -> StoredDocument | None:
            done[doc_id] = purge(document, revs)
            return done[doc_id].document

        return decide

    ids, documents = list(map(checked_id, asked)), request.app[NODE_API].documents
    if ids:
        made = list[Written | MillstreamError]()
        async with request.app[NODE_API].changes.purging(bucket):
            for begin in range(0, len(ids), PORTION_EDITS):
                portion = ids[begin : begin + PORTION_EDITS]
                edits = [(doc_id, decide_of(doc_id, asked[doc_id])) for doc_id in portion]
                made += await documents.update(bucket, edits, is_durable=True)
            noted = [
                Purged(doc_id, done[doc_id].revs)
                for doc_id, one in zip(ids, made, strict=True)
                if not isinstance(one, MillstreamError) and done[doc_id].revs
            ]
            if noted:
                await documents.note_purges(bucket, noted)
        for one in made:
            if isinstance(one, MillstreamError):
                raise one
    purged = {doc_id: one.revs for doc_id, one in done.items()}
    return answer({"purge_seq": None, "purged": purged}, status=201)


async def _purged_infos_limit(request: web.Request) -> web.Response:
    name = request.match_info[DATABASE]
    require(request, "read", name)
    return answer((await request.app[NODE_API].documents.purges(name)).limit)


async def _set_purged_infos_limit(request: web.Request) -> web.Response:
    require(request, "admin")
    text = (await read_body(request, 64)).strip()
    if not text.isdigit() or not 1 <= int(text) <= PURGED_INFOS_LIMIT_MAX:
        raise UsageError(
            f"`purged_infos_limit` must be an integer from 1 to {PURGED_INFOS_LIMIT_MAX}",
            code="bad_request",
        )
    name = request.match_info[DATABASE]
    await request.app[NODE_API].documents.set_purged_infos_limit(name, int(text))
    return answer({"ok": True})


async def _purged_infos(request: web.Request) -> web.Response:
    name = request.match_info[DATABASE]
    require(request, "read", name)
    infos = (await request.app[NODE_API].documents.purges(name)).infos
    return answer({"purged_infos": [info._asdict() for info in infos]})


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.post(DATABASE_PATH + "/_purge", _purge),
        web.get(DATABASE_PATH + "/_purged_infos", _purged_infos),
        web.get(DATABASE_PATH + "/_purged_infos_limit", _purged_infos_limit),
        web.put(DATABASE_PATH + "/_purged_infos_limit", _set_purged_infos_limit),
    ]
