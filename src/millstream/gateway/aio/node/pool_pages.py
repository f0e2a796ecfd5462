"""What Couchbase SDKs ask over HTTP to begin, to wait and to ping: `/pools` and what is below.

Invariants:
1. What is shown is the state of this node's buckets and maps; nothing is made up for SDKs.
2. Management that is not here answers 400 in words by which SDKs know that the feature is not
   available. Only where the named bucket is missing it answers 404: SDKs take that as "bucket not
   found".
3. A stream sends a map when it begins and whenever it has changed; it ends with its bucket or with
   the rights of who asked. Without changes it repeats the map every `HEARTBEAT_SECONDS`.

Elsewhere: the map (`kv.core.copies.cluster_config`), our own pages about buckets (`bucket_pages`).
Source: the REST API of Couchbase Server, as far as its SDKs and go-dcp use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import msgspec
from aiohttp import web

from millstream.access.users import Right
from millstream.errors import AccessError
from millstream.gateway.aio.answers import NODE_API, STILL, USER, answer, require
from millstream.gateway.core.api.node import BucketStatus
from millstream.version import __version__

__all__ = ["HEARTBEAT_SECONDS", "not_here", "routes"]

HEARTBEAT_SECONDS: Final = 10.0
"""After which a stream repeats what it last sent, so that either side notices a lost other."""
_LOOK_SECONDS: Final = 0.2
"""How often a stream looks whether its map has changed."""
_END: Final = b"\n\n\n\n"
"""Behind each map of a stream."""
_RIGHTS: Final[tuple[Right, ...]] = ("read", "write", "stream", "design")
_RUST: Final = "rust/"
"""The Rust SDK takes 404 for a feature that is not here; to most others that is no bucket."""
_VERSION: Final = f"7.0.0-0000-millstream-{__version__}"
"""The version in the form that SDKs parse, of the server whose pages these imitate."""


def _need_login(request: web.Request) -> None:
    if not request.app[NODE_API].users.is_empty and request[USER] is None:
        raise AccessError("log in first", code="unauthorized")


def _may_see(request: web.Request, name: str) -> bool:
    user = request[USER]
    is_open = request.app[NODE_API].users.is_empty
    return is_open or (user is not None and any(user.may(right, name) for right in _RIGHTS))


def _seen(request: web.Request) -> list[BucketStatus]:
    _need_login(request)
    request.app[NODE_API].check_buckets_known()
    return [one for one in request.app[NODE_API].bucket_statuses() if _may_see(request, one.name)]


async def not_here(_: web.Request) -> web.Response:
    """Say that a feature is not here, in words that SDKs know."""
    return web.Response(status=404, text="Not found.")


async def _no_management(request: web.Request) -> web.Response:
    """Answer in the words of a server before collections, which the SDKs know."""
    if request.method == "GET":
        _need_login(request)
    else:
        require(request, "admin")
    name = request.match_info.get("name")
    if name is not None and _one(request) is None:
        return _no_bucket()
    if request.match_info.get("rest") == "controller/doFlush":
        return web.Response(status=400, text='{"_":"Flush is disabled for the bucket"}')
    knows_no_words = request.headers.get("User-Agent", "").startswith(_RUST)
    status = 404 if knows_no_words else 400
    return web.Response(status=status, text="Not allowed on this version of cluster")


def _map(request: web.Request, name: str | None) -> dict[str, Any] | None:
    """Return the map of a bucket that is served here, None if there is none; None: the nodes."""
    config = request.app[NODE_API].cluster_config(name)
    if config is None:
        return None
    found: dict[str, Any] = msgspec.json.decode(config)
    for node in found["nodesExt"]:
        if node["hostname"] in ("0.0.0.0", "::", ""):
            node["hostname"] = request.url.host
    return found


def _links(name: str) -> dict[str, str]:
    path = quote(name, safe="")
    return {
        "uri": f"/pools/default/buckets/{path}",
        "streamingUri": f"/pools/default/bucketsStreaming/{path}",
    }


def _nodes(request: web.Request, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes of a map with their health, as far as this node knows it."""
    shown = []
    alone = len(config["nodesExt"]) == 1
    silent = request.app[NODE_API].silent_nodes()
    for node in config["nodesExt"]:
        is_this = alone or node.get("thisNode", False)
        host, services = node["hostname"], node["services"]
        bracketed = f"[{host}]" if ":" in host else host
        address = f"{bracketed}:{services['mgmt']}"
        entry = {
            "hostname": address,
            "otpNode": f"ns_1@{host}",
            "status": "unhealthy" if address in silent and not is_this else "healthy",
            "clusterMembership": "active",
            "version": _VERSION,
            "ports": {"direct": services["kv"]},
            "services": ["kv"],
        }
        shown.append(entry | {"thisNode": True} if is_this else entry)
    return shown


def _bucket(request: web.Request, status: BucketStatus) -> dict[str, Any] | None:
    config = _map(request, status.name)
    if config is None:
        return None
    return (
        config
        | _links(status.name)
        | {
            "bucketType": "membase",
            "storageBackend": "couchstore",
            "evictionPolicy": "fullEviction",
            "conflictResolutionType": "seqno",
            "compressionMode": "off",
            "maxTTL": 0,
            "durabilityMinLevel": "none",
            "controllers": {},
            "replicaNumber": config["vBucketServerMap"]["numReplicas"],
            "replicaIndex": status.index_replicas,
            "numVBuckets": status.partitions,
            "quota": {"ram": status.memory_quota_bytes, "rawRAM": status.memory_quota_bytes},
            "nodes": [
                known | health
                for known, health in zip(config["nodes"], _nodes(request, config), strict=True)
            ],
        }
    )


async def _pools(request: web.Request) -> web.Response:
    _need_login(request)
    host, user = request.app[NODE_API], request[USER]
    pool = {"name": "default", "uri": "/pools/default", "streamingUri": "/poolsStreaming/default"}
    return answer(
        {
            "isAdminCreds": user is None or user.is_admin,
            "isEnterprise": False,
            "implementationVersion": _VERSION,
            "uuid": host.uuid,
            "pools": [pool],
            "componentsVersion": {},
        }
    )


async def _pool(request: web.Request) -> web.Response:
    _need_login(request)
    nodes = _map(request, None)
    assert nodes is not None, "the nodes are always known"
    return answer(
        {
            "name": "default",
            "nodes": _nodes(request, nodes),
            "buckets": {
                "uri": "/pools/default/buckets",
                "terseBucketsBase": "/pools/default/b/",
                "terseStreamingBucketsBase": "/pools/default/bs/",
            },
            "nodeServicesUri": "/pools/default/nodeServices",
            "clusterName": "",
        }
    )


async def _buckets(request: web.Request) -> web.Response:
    found = [_bucket(request, status) for status in _seen(request)]
    return answer([one for one in found if one is not None])


def _one(request: web.Request) -> BucketStatus | None:
    name = request.match_info["name"]
    return next((status for status in _seen(request) if status.name == name), None)


async def _one_bucket(request: web.Request) -> web.Response:
    status = _one(request)
    found = _bucket(request, status) if status is not None else None
    if status is not None and found is None:
        return answer({"errors": {"bucket": status.reason or "not served now"}}, status=503)
    return answer(found) if found is not None else _no_bucket()


def _no_bucket() -> web.Response:
    return web.Response(status=404, text="Requested resource not found.\r\n")


async def _terse(request: web.Request) -> web.Response:
    status = _one(request)
    found = _map(request, status.name) if status is not None else None
    return answer(found) if found is not None else _no_bucket()


async def _node_services(request: web.Request) -> web.Response:
    _need_login(request)
    return answer(_map(request, None))


async def _stream_of(request: web.Request, look: Callable[[], Any]) -> web.StreamResponse:
    """Send what `look` returns whenever it has changed, until it returns None."""
    response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
    await response.prepare(request)
    loop, sent, sent_s = asyncio.get_running_loop(), b"", 0.0
    while request[STILL]() and (found := look()) is not None:
        data = msgspec.json.encode(found)
        if data != sent or loop.time() - sent_s >= HEARTBEAT_SECONDS:
            await response.write(data + _END)
            sent, sent_s = data, loop.time()
        await asyncio.sleep(_LOOK_SECONDS)
    return response


async def _terse_stream(request: web.Request) -> web.StreamResponse:
    status = _one(request)
    if status is None or _map(request, status.name) is None:
        return _no_bucket()

    def look() -> dict[str, Any] | None:
        now = _one(request)
        return _map(request, now.name) if now is not None and now.uuid == status.uuid else None

    return await _stream_of(request, look)


async def _bucket_stream(request: web.Request) -> web.StreamResponse:
    status = _one(request)
    if status is None or _map(request, status.name) is None:
        return _no_bucket()

    def look() -> dict[str, Any] | None:
        now = _one(request)
        return _bucket(request, now) if now is not None and now.uuid == status.uuid else None

    return await _stream_of(request, look)


async def _node_services_stream(request: web.Request) -> web.StreamResponse:
    _need_login(request)
    return await _stream_of(request, lambda: _map(request, None))


async def _whoami(request: web.Request) -> web.Response:
    _need_login(request)
    user = request[USER]
    if user is None:
        return answer({"id": "", "domain": "anonymous", "roles": [{"role": "admin"}]})
    roles = [{"role": "admin"}] if user.is_admin else []
    return answer({"id": user.name, "domain": "local", "roles": roles})


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    pages = [
        web.get("/pools", _pools),
        web.get("/pools/default", _pool),
        web.get("/pools/default/buckets", _buckets),
        web.get("/pools/default/buckets/", _buckets),  # as Couchbase's Java SDK asks
        web.get("/pools/default/buckets/{name}", _one_bucket),
        web.get("/pools/default/bucketsStreaming/{name}", _bucket_stream),
        web.get("/pools/default/b/{name}", _terse),
        web.get("/pools/default/bs/{name}", _terse_stream),
        web.get("/pools/default/nodeServices", _node_services),
        web.get("/pools/default/nodeServicesStreaming", _node_services_stream),
        web.get("/whoami", _whoami),
    ]
    bucket = "/pools/default/buckets/{name}"
    return [
        *pages,
        web.route("*", "/pools/default/buckets", _no_management),
        web.route("*", "/pools/default/buckets/", _no_management),
        web.route("*", bucket, _no_management),
        web.route("*", bucket + "/{rest:.*}", _no_management),
        web.route("*", "/pools/{rest:.+}", not_here),
    ]
