"""What nodes of a cluster ask each other: pages below `/_millstream/cluster`.

    POST /_millstream/cluster/orders    orders of the orchestrator -> replies
    POST /_millstream/cluster/held      what this node holds, for a node that recovers the cluster
    GET  /_millstream/cluster/member    what a node needs that wants to join
    GET  /_millstream/cluster/reign     the status by the reports that the orchestrator has

Invariants:
1. Only nodes of the cluster give orders; where there are no users, everybody on this machine may.

Elsewhere: the answers (`gateway.core.api.cluster`), pages for administrators
(`gateway.aio.node.cluster_pages`).
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from millstream.access.users import NODE_USER
from millstream.errors import AccessError
from millstream.gateway.aio.answers import NODE_API, USER, answer, raw_answer, read_body, require

__all__ = ["ORDERS_BYTES_MAX", "routes"]

ORDERS_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of the orders to one node, with the maps of all buckets."""


async def _orders(request: web.Request) -> web.Response:
    _require_node(request)
    content = await read_body(request, ORDERS_BYTES_MAX)
    return raw_answer(await request.app[NODE_API].cluster.orders(content))


async def _held(request: web.Request) -> web.Response:
    _require_node(request)
    content = await read_body(request, ORDERS_BYTES_MAX)
    return raw_answer(await request.app[NODE_API].cluster.held(content))


async def _member(request: web.Request) -> web.Response:
    require(request, "admin")
    return answer(await request.app[NODE_API].cluster.member())


async def _reign(request: web.Request) -> web.Response:
    require(request, "admin")
    return answer(await request.app[NODE_API].cluster.reign())


def _require_node(request: web.Request) -> None:
    if request.app[NODE_API].users.is_empty:
        return
    user = request[USER]
    if user is None:
        raise AccessError("log in first", code="unauthorized")
    if user.name != NODE_USER:
        raise AccessError("only nodes of the cluster give orders", code="forbidden")


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.post("/_millstream/cluster/orders", _orders),
        web.post("/_millstream/cluster/held", _held),
        web.get("/_millstream/cluster/member", _member),
        web.get("/_millstream/cluster/reign", _reign),
    ]
