"""What a database has of others, over HTTP: `/DB/_coverage`.

    GET  /DB/_coverage?origin=UUID...     {"records": [...]}
    POST /DB/_coverage                    {"records": [...], "removed": [name]}
    POST /DB/_coverage/verify             {"claims": [{"log", "ckpt", "vec", "content"}]}
                                          -> {"vectors": [vector or null]}

Invariants:
1. Who may write into a database may store records, as it may write logs of replications.
2. A record that is none is passed over.

Elsewhere: what records mean (`replication.core.coverage`), records in a feed (`changes_pages`).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from aiohttp import web

from millstream.documents.json_text import check_values
from millstream.documents.tokens import vector_from_json, vector_to_json
from millstream.errors import UsageError
from millstream.gateway.aio.answers import (
    DATABASE,
    DATABASE_PATH,
    NODE_API,
    answer,
    read_body,
    require,
)
from millstream.replication.core.coverage import Claim, record_of_json, record_to_json
from millstream.replication.core.places import Place

__all__ = ["CLAIMS_MAX", "COVERAGE_BYTES_MAX", "routes"]

COVERAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Most bytes of records or claims in a request: a vector of a thousand partitions takes 100 KB."""
CLAIMS_MAX: Final = 2000
"""Most claims in one request."""


class _Storing(msgspec.Struct):
    records: list[Any] = []
    removed: list[str] = []


class _Claimed(msgspec.Struct):
    log: str
    ckpt: str
    vec: dict[str, Any] | None = None
    content: bool = False


class _Verifying(msgspec.Struct):
    claims: list[_Claimed]


async def _records(request: web.Request) -> web.Response:
    bucket = request.match_info[DATABASE]
    require(request, "read", bucket)
    origins = request.query.getall("origin", [])
    found = await request.app[NODE_API].coverage.records(bucket, origins)
    return answer({"records": [record_to_json(record) for record in found]})


async def _store(request: web.Request) -> web.Response:
    bucket = request.match_info[DATABASE]
    require(request, "write", bucket)
    asked = await _body(request, _Storing)
    records = [record for record in map(record_of_json, asked.records) if record is not None]
    await request.app[NODE_API].coverage.store(bucket, records, asked.removed)
    return answer({"ok": True}, status=201)


async def _verify(request: web.Request) -> web.Response:
    bucket = request.match_info[DATABASE]
    require(request, "read", bucket)
    asked = await _body(request, _Verifying)
    if len(asked.claims) > CLAIMS_MAX:
        raise UsageError(f"at most {CLAIMS_MAX} claims are verified at a time", code="bad_request")
    claims = [_claim(each) for each in asked.claims]
    found = await request.app[NODE_API].coverage.verify(bucket, claims)
    return answer({"vectors": [None if one is None else vector_to_json(one) for one in found]})


def _claim(claimed: _Claimed) -> Claim:
    vector = None
    if claimed.vec is not None:
        try:
            vector = vector_from_json(claimed.vec)
        except ValueError as error:
            raise UsageError(f"vec: {error}", code="bad_request") from error
    return Claim(claimed.log, claimed.ckpt, Place(0, vector), claimed.content)


async def _body(request: web.Request, form: Any) -> Any:
    data = await read_body(request, COVERAGE_BYTES_MAX)
    check_values(data)
    try:
        return msgspec.json.decode(data, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"the body is not as it should be: {error}", code="bad_request"
        ) from error


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.get(DATABASE_PATH + "/_coverage", _records),
        web.post(DATABASE_PATH + "/_coverage", _store),
        web.post(DATABASE_PATH + "/_coverage/verify", _verify),
    ]
