"""What nodes of a cluster tell each other: `/_millstream/shared`, and of each bucket.

    GET /_millstream/shared                      -> which buckets, and a revision of each
    GET /_millstream/buckets/NAME/shared         -> its map, active partitions, design documents

Invariants:
1. Only nodes of the cluster, and administrators, ask.

Elsewhere: who asks (`cluster.peers`), what is told (`databases.shared_answers`), documents
(`gateway.aio.peers.stored_pages`).
"""

from __future__ import annotations

from aiohttp import web

from millstream.gateway.aio.answers import NODE_API, answer, require

__all__ = ["routes"]


async def _list(request: web.Request) -> web.Response:
    require(request, "admin")
    return answer(request.app[NODE_API].shared.listed())


async def _bucket(request: web.Request) -> web.Response:
    require(request, "admin")
    return answer(await request.app[NODE_API].shared.bucket(request.match_info["name"]))


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.get("/_millstream/shared", _list),
        web.get("/_millstream/buckets/{name}/shared", _bucket),
    ]
