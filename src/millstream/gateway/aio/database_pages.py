"""Buckets as databases: `/DB` made, described and deleted.

Invariants:
1. Only administrators make and delete one.
2. What is not known is left out, not guessed.

Elsewhere: the same with all that a bucket has (`bucket_pages`), design documents (`design_pages`).
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
    require,
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


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    whole = (DATABASE_PATH, DATABASE_PATH + "/")  # clients of CouchDB write both
    return [
        *(web.get(path, _info) for path in whole),
        *(web.put(path, _create) for path in whole),
        *(web.delete(path, _delete) for path in whole),
    ]
