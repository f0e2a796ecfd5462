"""Buckets as databases: `/DB` made, described, set and deleted; all of them at once.

Invariants:
1. Only administrators make, set and delete one.
2. Whoever may not read a database is not told of it.

Elsewhere: the same with all that a bucket has (`bucket_pages`), documents (`document_pages`), what
is known of one (`gateway.core.api.documents`).
Source: CouchDB's database API.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import quote

import msgspec
from aiohttp import web

from millstream.documents.json_text import parse
from millstream.errors import AccessError, ConditionError, MillstreamError, UsageError
from millstream.gateway.aio.answers import (
    DATABASE,
    DATABASE_PATH,
    NODE_API,
    USER,
    answer,
    asker,
    raw_answer,
    read_body,
    require,
)
from millstream.gateway.aio.databases.making import create_bucket, drop_bucket
from millstream.gateway.aio.streaming import stream
from millstream.gateway.core.api.documents import DatabaseInfo

__all__ = [
    "DATABASES_ASKED_MAX", "DATABASE_PARTITIONS", "REVS_LIMIT_MAX",
    "SECURITY_BYTES_MAX", "UUIDS_MAX", "routes",
]  # fmt: skip

DATABASE_PARTITIONS: Final = 16
"""Partitions of a bucket that is made as a database, unless `q` says another number."""
PARTITIONS_ASKED_MAX: Final = 1024
UUIDS_MAX: Final = 1000
"""Ids given at a time."""
DATABASES_ASKED_MAX: Final = 100
"""Databases that are asked for by name, described at a time."""
REVS_LIMIT_MAX: Final = 1_000_000
SECURITY_BYTES_MAX: Final = 64 * 1024
_DISK_FORMAT: Final = 8
"""What clients of CouchDB are told; they only show it."""


def _shown(info: DatabaseInfo) -> dict[str, Any]:
    return {
        "db_name": info.name,
        "update_seq": info.update_seq,
        "purge_seq": str(info.purge_seq),
        "doc_count": info.document_count,
        "doc_del_count": info.deleted_count,
        "instance_start_time": info.instance_start_time,
        "sizes": {
            "file": info.file_bytes,
            "active": info.active_bytes,
            "external": info.external_bytes,
        },
        "compact_running": info.compact_running,
        "disk_format_version": _DISK_FORMAT,
        "props": {},
        "cluster": {"q": info.partitions, "n": 1, "w": 1, "r": 1},
        "uuid": info.uuid,
        "branches": info.branches,
        "purge_epoch": info.purge_epoch,
    }


async def _info(request: web.Request) -> web.Response:
    name = request.match_info[DATABASE]
    require(request, "read", name)
    return answer(_shown(await request.app[NODE_API].documents.info(name)))


def _partitions(q: str) -> int:
    """Return the power of two that is wanted, or the next one."""
    if not (q.isascii() and q.isdigit()) or not 1 <= int(q[:10]) <= PARTITIONS_ASKED_MAX:
        raise UsageError(
            f"q={q!r}: must be a number from 1 to {PARTITIONS_ASKED_MAX}", code="bad_partitions"
        )
    return 1 << (int(q) - 1).bit_length()


async def _create(request: web.Request) -> web.Response:
    require(request, "admin")
    name, options = request.match_info[DATABASE], request.query
    if options.get("partitioned", "false") != "false":
        raise UsageError("there are no partitioned databases here", code="not_supported")
    partitions = _partitions(options.get("q", str(DATABASE_PARTITIONS)))
    made = await create_bucket(request.app[NODE_API], name, partitions, by=asker(request))
    status = 201 if made.is_served else 202
    return answer({"ok": True}, status=status, headers={"Location": f"/{quote(name, safe='')}"})


async def _delete(request: web.Request) -> web.Response:
    require(request, "admin")
    if "rev" in request.query:
        raise UsageError(
            "You tried to DELETE a database with a ?rev= parameter. Did you mean to DELETE a "
            "document instead?",
            code="bad_request",
        )
    name = request.match_info[DATABASE]
    is_gone = await drop_bucket(request.app[NODE_API], name, by=asker(request))
    return answer({"ok": True}, status=200 if is_gone else 202)


# -- settings


async def _security(request: web.Request) -> web.Response:
    name = request.match_info[DATABASE]
    require(request, "read", name)
    return raw_answer((await request.app[NODE_API].documents.settings(name)).security + b"\n")


async def _set_security(request: web.Request) -> web.Response:
    require(request, "admin")
    data = await read_body(request, SECURITY_BYTES_MAX)
    content = parse(data)
    if not isinstance(content, dict):
        raise UsageError("Request body must be a JSON object", code="bad_request")
    for group in ("admins", "members"):
        _check_names(group, content.get(group, {}))
    documents = request.app[NODE_API].documents
    await documents.set_security(request.match_info[DATABASE], msgspec.json.encode(content))
    return answer({"ok": True})


def _check_names(group: str, value: object) -> None:
    if not isinstance(value, dict):
        raise UsageError(f"{group} must be an object", code="bad_request")
    for part in ("names", "roles"):
        names = value.get(part, [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UsageError(f"{part} must be a JSON list of strings", code="bad_request")


async def _revs_limit(request: web.Request) -> web.Response:
    name = request.match_info[DATABASE]
    require(request, "read", name)
    return answer((await request.app[NODE_API].documents.settings(name)).revs_limit)


async def _set_revs_limit(request: web.Request) -> web.Response:
    require(request, "admin")
    text = (await read_body(request, 64)).strip()
    if not text.isdigit() or not 1 <= int(text) <= REVS_LIMIT_MAX:
        raise UsageError(
            f"Rev limit must be an integer from 1 to {REVS_LIMIT_MAX}", code="bad_request"
        )
    name = request.match_info[DATABASE]
    await request.app[NODE_API].documents.set_revs_limit(name, int(text))
    return answer({"ok": True})


async def _compact(request: web.Request) -> web.Response:
    require(request, "admin")
    await request.app[NODE_API].documents.compact(request.match_info[DATABASE])
    return answer({"ok": True}, status=202)


# -- many


def _readable(request: web.Request) -> list[str]:
    """Return the names of the databases that the user may read, sorted."""
    api, user = request.app[NODE_API], request[USER]
    if user is None and not api.users.is_empty:
        raise AccessError("log in first", code="unauthorized")
    api.check_buckets_known()
    names = [status.name for status in api.bucket_statuses()]
    return sorted(n for n in names if user is None or user.may("read", n))


def _asked_for(request: web.Request) -> list[str]:
    """Return those of them that are in the range that is asked for."""
    names, options = _readable(request), request.query
    start, end = (_key(options, *pair) for pair in _KEYS)
    if options.get("descending") == "true":
        names.reverse()
        start, end = end, start
    found = [n for n in names if (start is None or n >= start) and (end is None or n <= end)]
    skip, limit = (_count(options, name) for name in ("skip", "limit"))
    return found[skip or 0 :][:limit]


async def _all(request: web.Request) -> web.Response:
    return answer(_asked_for(request))


_KEYS: Final = (("startkey", "start_key"), ("endkey", "end_key"))


def _key(options: Any, *names: str) -> str | None:
    for name in names:
        if name in options:
            try:
                return str(msgspec.json.decode(options[name]))
            except (msgspec.DecodeError, RecursionError) as error:
                raise UsageError(f"{name} is not JSON", code="query_parse_error") from error
    return None


def _count(options: Any, name: str) -> int | None:
    if name not in options:
        return None
    text = options[name]
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise UsageError(f"Invalid value for {name}: {text!r}", code="query_parse_error")
    return int(text)


async def _infos(request: web.Request) -> web.StreamResponse:
    if request.method == "POST":
        names = frozenset(_readable(request))
        content = parse(await read_body(request, SECURITY_BYTES_MAX))
        asked = content.get("keys") if isinstance(content, dict) else None
        if not isinstance(asked, list) or not all(isinstance(name, str) for name in asked):
            raise UsageError("`keys` member must exist.", code="bad_request")
        if len(asked) > DATABASES_ASKED_MAX:
            raise UsageError(
                f"at most {DATABASES_ASKED_MAX} databases are described at a time",
                code="bad_request",
            )
        return answer([await _one(request, name, name in names) for name in asked])
    return await stream(request, _described(request, _asked_for(request)), {})


async def _described(request: web.Request, names: list[str]) -> AsyncIterator[bytes]:
    before = b"["
    for name in names:
        one = await _one(request, name, True)
        if one.get("error") != "not_found":  # it is gone by now
            yield before + msgspec.json.encode(one)
            before = b",\n"
    yield b"[]\n" if before == b"[" else b"]\n"


async def _one(request: web.Request, name: str, is_there: bool) -> dict[str, Any]:
    if not is_there:
        return {"key": name, "error": "not_found"}
    try:
        return {"key": name, "info": _shown(await request.app[NODE_API].documents.info(name))}
    except MillstreamError as error:
        gone = isinstance(error, ConditionError)
        return {"key": name, "error": "not_found" if gone else "unavailable"}


async def _uuids(request: web.Request) -> web.Response:
    count = _count(request.query, "count")
    count = 1 if count is None else count
    if count > UUIDS_MAX:
        raise UsageError(f"count parameter too large: at most {UUIDS_MAX}", code="bad_request")
    made = {"uuids": [secrets.token_hex(16) for _ in range(count)]}
    headers = {"Cache-Control": "no-cache, no-store", "Pragma": "no-cache"}
    return answer(made, headers=headers)


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    whole = (DATABASE_PATH, DATABASE_PATH + "/")  # clients of CouchDB write both
    return [
        *(web.get(path, _info) for path in whole),
        *(web.put(path, _create) for path in whole),
        *(web.delete(path, _delete) for path in whole),
        web.get(DATABASE_PATH + "/_security", _security),
        web.put(DATABASE_PATH + "/_security", _set_security),
        web.get(DATABASE_PATH + "/_revs_limit", _revs_limit),
        web.put(DATABASE_PATH + "/_revs_limit", _set_revs_limit),
        web.post(DATABASE_PATH + "/_compact", _compact),
        web.get("/_all_dbs", _all),
        web.get("/_dbs_info", _infos),
        web.post("/_dbs_info", _infos),
        web.get("/_uuids", _uuids),
    ]
