"""What nodes of a cluster tell each other: `/_millstream/shared`, and of each bucket.

    GET /_millstream/shared                      -> which buckets, and a revision of each
    GET /_millstream/buckets/NAME/shared         -> its map, active partitions, design documents
    POST /_millstream/buckets/NAME/documents {"documents": [[id, rev or null], ..]}
                                                 -> {"documents": [document or null, ..]}

Invariants:
1. Only nodes of the cluster, and administrators, ask.
2. Documents are answered in order, of the first ones as many as fit, at least one.

Elsewhere: who asks (`cluster.peers`, `databases.documents.remote_documents`), what is told
(`databases.shared_answers`).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from aiohttp import web

from millstream.errors import UsageError
from millstream.gateway.aio.answers import HOST, answer, raw_answer, read_object, require
from millstream.gateway.core.api.shared import AskedDocument

__all__ = ["ASKED_DOCUMENTS_MAX", "routes"]

ASKED_DOCUMENTS_MAX: Final = 1000
"""Documents in one request."""


async def _list(request: web.Request) -> web.Response:
    require(request, "admin")
    return answer(request.app[HOST].shared.listed())


async def _bucket(request: web.Request) -> web.Response:
    require(request, "admin")
    return answer(await request.app[HOST].shared.bucket(request.match_info["name"]))


async def _documents(request: web.Request) -> web.Response:
    require(request, "admin")
    asked = _asked(await read_object(request))
    found = await request.app[HOST].shared.documents(request.match_info["name"], asked)
    return raw_answer(b'{"documents":[%b]}' % b",".join(text or b"null" for text in found))


def _asked(content: dict[str, Any]) -> list[AskedDocument]:
    try:
        asked = msgspec.convert(content.get("documents"), list[AskedDocument])
    except msgspec.ValidationError as error:
        raise UsageError(f'"documents" must be a list of [id, rev]: {error}') from error
    if not 1 <= len(asked) <= ASKED_DOCUMENTS_MAX:
        raise UsageError(f'"documents" must be 1 to {ASKED_DOCUMENTS_MAX}')
    return asked


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.get("/_millstream/shared", _list),
        web.get("/_millstream/buckets/{name}/shared", _bucket),
        web.post("/_millstream/buckets/{name}/documents", _documents),
    ]
