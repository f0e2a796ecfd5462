"""The map of a bucket over HTTP: `/_millstream/buckets/NAME/map`.

Invariants:
1. Only administrators see or give one.
2. What is answered is durable and in force. A map makes replicas where it places them; it makes
   no copy active, and none that is active stand down.

Elsewhere: what is a map (`model.bucket_map`), what follows from one (`databases.buckets`).
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from millstream.errors import ConditionError, UsageError
from millstream.gateway.aio.answers import NODE_API, answer, read_object, require
from millstream.model.bucket_map import (
    bucket_map_from_json,
    bucket_map_to_json,
    checked_node_name,
)
from millstream.model.partitions import PartitionState

__all__ = ["routes"]

_PATH = "/_millstream/buckets/{name}/map"
_ABSENT = PartitionState.ABSENT.name.lower()


async def _shown(request: web.Request, name: str) -> dict[str, Any]:
    api = request.app[NODE_API]
    copies, placed = await api.partition_statuses(name), api.bucket_map(name)
    if placed is None:
        raise ConditionError(
            f"bucket {name!r} has no map: this node is alone with it", code="map_not_found"
        )
    bucket_map, node_name = placed
    uuid = next(status.uuid for status in api.bucket_statuses() if status.name == name)
    left_over = [
        copy.partition
        for copy, row in zip(copies, bucket_map.rows, strict=True)
        if copy.state != _ABSENT and node_name not in row
    ]
    return {
        "uuid": uuid,
        "partitions": len(copies),
        "this": node_name,
        **bucket_map_to_json(bucket_map),
        "left_over": left_over,
    }


async def _one(request: web.Request) -> web.Response:
    """Tell the map of a bucket.

    Right: admin.
    """
    require(request, "admin")
    return answer(await _shown(request, request.match_info["name"]))


async def _put(request: web.Request) -> web.Response:
    """Give a bucket its map; without the bucket, create it.

    Right: admin.
    """
    require(request, "admin")
    name = request.match_info["name"]
    content = await read_object(request)
    bucket_map = bucket_map_from_json(content)
    this = checked_node_name(content.get("this"))
    if not bucket_map.has_node(this):
        raise UsageError(f'"this" is {this}, which is not one of "nodes"', code="unknown_node")
    uuid, partitions = content.get("uuid"), content.get("partitions")
    if not isinstance(uuid, str):
        raise UsageError('"uuid" of the bucket is missing', code="bad_bucket_uuid")
    if not isinstance(partitions, int) or isinstance(partitions, bool):
        raise UsageError('"partitions" must be a number', code="bad_partitions")
    await request.app[NODE_API].set_bucket_map(name, uuid, partitions, bucket_map, this)
    return answer(await _shown(request, name))


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [web.get(_PATH, _one), web.put(_PATH, _put)]
