"""Buckets as databases: `/DB` made, described and deleted; its design documents listed.

Invariants:
1. Only administrators make and delete one.
2. What is not known is left out, not guessed.

Elsewhere: the same with all that a bucket has (`bucket_pages`), documents (`design_pages`).
Source: CouchDB's database API.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from aiohttp import web

from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.gateway.aio.answers import (
    DATABASE,
    DATABASE_PATH,
    HOST,
    answer,
    read_body,
    require,
)
from millstream.gateway.core.listing import Listed, list_documents
from millstream.views.core.query import (
    QUERY_BODY_BYTES_MAX,
    body_options,
    parse_query,
    url_options,
)

__all__ = ["DATABASE_PARTITIONS", "routes"]

DATABASE_PARTITIONS: Final = 16
"""Partitions of a bucket that is made as a database, unless `q` says another number."""


async def _info(request: web.Request) -> web.Response:
    name = request.match_info[DATABASE]
    require(request, "read", name)
    host = request.app[HOST]
    status = next((one for one in host.bucket_statuses() if one.name == name), None)
    if status is None:
        raise ConditionError(f"no bucket {name!r}", code="bucket_not_found")
    if status.state != "ready":
        raise UnavailableError(f"bucket {name} is not served: {status.reason}")
    return answer(
        {
            "db_name": name,
            "update_seq": str(status.high_seqno),
            "instance_start_time": "0",
            "cluster": {"q": status.partitions},
            "uuid": status.uuid,
        }
    )


async def _create(request: web.Request) -> web.Response:
    require(request, "admin")
    name, options = request.match_info[DATABASE], request.query
    partitions = options.get("q", str(DATABASE_PARTITIONS))
    if not (partitions.isascii() and partitions.isdigit()) or len(partitions) > 9:
        raise UsageError(f"q={partitions!r}: a number is wanted", code="bad_partitions")
    if options.get("partitioned", "false") != "false":
        raise UsageError("there are no partitioned databases here", code="not_supported")
    await request.app[HOST].create_bucket(name, int(partitions))
    return answer({"ok": True}, status=201, headers={"Location": f"/{quote(name, safe='')}"})


async def _delete(request: web.Request) -> web.Response:
    require(request, "admin")
    await request.app[HOST].delete_bucket(request.match_info[DATABASE])
    return answer({"ok": True})


async def _design_docs(request: web.Request) -> web.Response:
    bucket = request.match_info[DATABASE]
    require(request, "read", bucket, instead="design")
    options = url_options(request.query.items())
    if request.method == "POST":
        options = body_options(await read_body(request, QUERY_BODY_BYTES_MAX)) | options
    query = parse_query(options)
    query.check(has_reduce=False)
    designs = await request.app[HOST].designs.all(bucket)
    return answer(
        list_documents([Listed(f"_design/{d.name}", d.rev, d.body) for d in designs], query)
    )


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    whole = (DATABASE_PATH, DATABASE_PATH + "/")  # clients of CouchDB write both
    return [
        *(web.get(path, _info) for path in whole),
        *(web.put(path, _create) for path in whole),
        *(web.delete(path, _delete) for path in whole),
        web.get(DATABASE_PATH + "/_design_docs", _design_docs),
        web.post(DATABASE_PATH + "/_design_docs", _design_docs),
    ]
