"""Buckets over HTTP: `/_millstream/buckets`.

Invariants:
1. Only administrators create, delete and compact; others see the buckets they have a right in.

Elsewhere: the buckets (`databases.buckets`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import asdict
from typing import Any, Final, TypedDict

from aiohttp import web

from millstream.access.users import Right
from millstream.errors import AccessError, ConditionError, UsageError
from millstream.gateway.aio.answers import (
    NODE_API,
    USER,
    answer,
    asker,
    read_object,
    require,
)
from millstream.gateway.aio.databases.making import (
    SERVED_S,
    change_bucket,
    create_bucket,
    drop_bucket,
)
from millstream.gateway.aio.describing import gives, takes
from millstream.gateway.core.api.node import BucketStatus
from millstream.model.limits import KEY_BYTES_MAX, PARTITIONS_DEFAULT
from millstream.model.partitions import key_from_text, text_of_key

__all__ = ["KEYS_MAX", "routes"]

KEYS_MAX: Final = 1000
"""Keys in one answer."""

_COPIES: Final[tuple[str, ...]] = ("replicas", "index_replicas", "strict")
"""Members of a body that only a managed cluster knows."""
_BUCKET_RIGHTS: Final[tuple[Right, ...]] = ("read", "write", "stream", "design")


class BucketsTold(TypedDict):
    """The buckets in which the user has a right."""

    buckets: list[BucketStatus]


def _may_see(request: web.Request, name: str) -> bool:
    if request.app[NODE_API].users.is_empty:
        return True
    user = request[USER]
    if user is None:
        raise AccessError("log in first", code="unauthorized")
    return any(user.may(right, name) for right in _BUCKET_RIGHTS)


def _shown(status: BucketStatus) -> dict[str, Any]:
    shown = asdict(status)
    if not status.reason:
        del shown["reason"]
    return shown


@gives(BucketsTold)
async def _list(request: web.Request) -> web.Response:
    """Tell the buckets in which the user has a right.

    Right: any user.
    """
    request.app[NODE_API].check_buckets_known()
    statuses = request.app[NODE_API].bucket_statuses()
    return answer({"buckets": [_shown(s) for s in statuses if _may_see(request, s.name)]})


@gives(BucketStatus)
async def _one(request: web.Request) -> web.Response:
    """Tell of one bucket.

    Right: a right in the bucket.
    """
    name = request.match_info["name"]
    is_seen = _may_see(request, name)
    for status in request.app[NODE_API].bucket_statuses():
        if status.name == name and is_seen:
            return answer(_shown(status))
    request.app[NODE_API].check_buckets_known()
    raise ConditionError(f"no bucket {name!r}", code="bucket_not_found")


@takes(
    prefix="Keys that begin so.",
    after="Keys behind this one.",
    limit="Most keys. Default 1000, which is the most.",
)
async def _keys(request: web.Request) -> web.Response:
    """Answer keys in their order, as many as are asked for, behind one of them.

    Right: read.
    """
    name, query = request.match_info["name"], request.query
    require(request, "read", name)
    prefix = _key_of(query.get("prefix", ""))
    start = prefix
    if "after" in query:
        start = max(prefix, _key_of(query["after"]) + b"\0")
    text = query.get("limit", str(KEYS_MAX))
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= KEYS_MAX:
        raise UsageError(f"limit is 1 to {KEYS_MAX}", code="bad_request")
    left, found = int(text), list[str]()
    end = prefix + b"\xff" * (KEY_BYTES_MAX + 1)
    async with aclosing(request.app[NODE_API].documents.keys(name, start, end)) as keys:
        async for key in keys:
            found.append(text_of_key(key))
            left -= 1
            if not left:
                break
    return answer({"keys": found})


def _key_of(text: str) -> bytes:
    try:
        return key_from_text(text)
    except ValueError as error:
        raise UsageError(f"no key: {text!r}", code="bad_key") from error


async def _create(request: web.Request) -> web.Response:
    """Create a bucket.

    Right: admin.
    """
    require(request, "admin")
    content = await read_object(request)
    name = request.match_info.get("name", content.get("name"))
    partitions = content.get("partitions", PARTITIONS_DEFAULT)
    if not isinstance(name, str) or content.get("name", name) != name:
        raise UsageError('the body must hold "name", the same as in the address')
    if not isinstance(partitions, int) or isinstance(partitions, bool):
        raise UsageError('"partitions" must be a number', code="bad_partitions")
    quota = content.get("memory_quota_bytes")
    if quota is not None and (not isinstance(quota, int) or isinstance(quota, bool)):
        raise UsageError('"memory_quota_bytes" must be a number', code="bad_memory_quota")
    copies = {name: content[name] for name in _COPIES if name in content}
    made = await create_bucket(
        request.app[NODE_API], name, partitions, quota, by=asker(request), copies=copies
    )
    if made.status is None or not made.is_served:
        reason = f"bucket {name!r} is made, and was not served here within {SERVED_S:g} s"
        told = {"name": name, "partitions": partitions, **_answered(made.answer)}
        return answer({**told, "reason": reason}, status=202)
    return answer({**_shown(made.status), **_answered(made.answer)}, status=201)


def _answered(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of copies in an answer of the orchestrator."""
    wanted = ("replicas", "replicas_wanted")
    return {name: told[name] for name in wanted if name in told}


async def _delete(request: web.Request) -> web.Response:
    """Delete a bucket with all that is in it.

    Right: admin.
    """
    require(request, "admin")
    name = request.match_info["name"]
    if await drop_bucket(request.app[NODE_API], name, by=asker(request)):
        return answer({"ok": True})
    reason = f"bucket {name!r} is being dropped, and was not gone within {SERVED_S:g} s"
    return answer({"ok": True, "reason": reason}, status=202)


async def _change(request: web.Request) -> web.Response:
    """Change copies and settings of a bucket of a managed cluster.

    Right: admin.
    """
    require(request, "admin")
    content = await read_object(request)
    if unknown := content.keys() - {*_COPIES, "memory_quota_bytes"}:
        raise UsageError(f"there is no setting {', '.join(sorted(unknown))} of a bucket")
    changes = {name: content[name] for name in _COPIES if name in content}
    if "memory_quota_bytes" in content:
        changes["settings"] = {"memory_quota_bytes": content["memory_quota_bytes"]}
    name = request.match_info["name"]
    return answer(await change_bucket(request.app[NODE_API], name, changes, by=asker(request)))


async def _compact(request: web.Request) -> web.Response:
    """Have the log of a bucket compacted soon.

    Right: admin.
    """
    require(request, "admin")
    await request.app[NODE_API].documents.compact(request.match_info["name"])
    return answer({"ok": True}, status=202)


async def _index_replicas(request: web.Request) -> web.Response:
    """Set whether views also index the replicas on this node.

    Right: admin.
    """
    require(request, "admin")
    wanted = (await read_object(request)).get("wanted")
    if not isinstance(wanted, bool):
        raise UsageError('the body must hold "wanted", true or false')
    host, name = request.app[NODE_API], request.match_info["name"]
    if host.cluster is not None and host.cluster.is_managed:
        await change_bucket(host, name, {"index_replicas": int(wanted)}, by=asker(request))
    else:
        await host.set_index_replicas(name, wanted)
    return answer({"ok": True})


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.get("/_millstream/buckets", _list),
        web.post("/_millstream/buckets", _create),
        web.get("/_millstream/buckets/{name}", _one),
        web.get("/_millstream/buckets/{name}/keys", _keys),
        web.put("/_millstream/buckets/{name}", _create),
        web.patch("/_millstream/buckets/{name}", _change),
        web.delete("/_millstream/buckets/{name}", _delete),
        web.post("/_millstream/buckets/{name}/compact", _compact),
        web.put("/_millstream/buckets/{name}/index_replicas", _index_replicas),
    ]
