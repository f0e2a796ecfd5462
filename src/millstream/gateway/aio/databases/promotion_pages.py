"""What a promotion asks of each node: standings, promises, activations.

Invariants:
1. Only administrators ask.
2. A promise, and an activation, is answered once it is durable and in force, with the standings of
   the copies as they are then.
3. Copies are asked together and answer one by one: what one refuses another may do.

Elsewhere: what follows from the answers (`cluster.core.promotion`), what a copy does
(`kv.aio.copies`).
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from millstream.errors import UsageError
from millstream.gateway.aio.answers import NODE_API, answer, read_object, require
from millstream.model.limits import UINT53_MAX
from millstream.model.standing import Standing, standing_to_json

__all__ = ["checked_branch", "checked_number", "routes"]

_PATH = "/_millstream/buckets/{name}"


def checked_number(content: object, what: str, most: int) -> int:
    """Return a number from 0 to `most`.

    Raises:
        UsageError: it is something else.
    """
    if not isinstance(content, int) or isinstance(content, bool) or not 0 <= content <= most:
        raise UsageError(f'"{what}" must be a number from 0 to {most}')
    return content


def checked_branch(content: object) -> int:
    """Return a branch.

    Raises:
        UsageError: it is none.
    """
    return checked_number(content, "branch", UINT53_MAX)


def _listed(content: object, standings: list[Standing]) -> list[Any]:
    """Return what a request lists under "partitions"."""
    if not isinstance(content, list) or not 1 <= len(content) <= len(standings):
        raise UsageError(f'"partitions" must be a list of 1 to {len(standings)}')
    return content


def _result(
    request: web.Request, branch: int, word: str, asked: list[int], done: list[int]
) -> web.Response:
    standings = request.app[NODE_API].standings(request.match_info["name"])
    shown = {p: standing_to_json(standings[p]) for p in asked}
    refused = [shown[p] for p in asked if p not in set(done)]
    return answer({"branch": branch, word: [shown[p] for p in done], "refused": refused})


async def _standings(request: web.Request) -> web.Response:
    """Tell the standing of each copy on this node.

    Right: admin.
    """
    require(request, "admin")
    standings = request.app[NODE_API].standings(request.match_info["name"])
    return answer({"standings": list(map(standing_to_json, standings))})


async def _promise(request: web.Request) -> web.Response:
    """Have copies promise a branch of history.

    Right: admin.
    """
    require(request, "admin")
    name, api = request.match_info["name"], request.app[NODE_API]
    standings, content = api.standings(name), await read_object(request)
    branch = checked_branch(content.get("branch"))
    listed, most = _listed(content.get("partitions"), standings), len(standings) - 1
    asked = sorted({checked_number(number, "partitions", most) for number in listed})
    return _result(request, branch, "promised", asked, await api.promise(name, branch, asked))


async def _activate(request: web.Request) -> web.Response:
    """Make copies active in the branch that they promised.

    Right: admin.
    """
    require(request, "admin")
    name, api = request.match_info["name"], request.app[NODE_API]
    standings, content = api.standings(name), await read_object(request)
    branch = checked_branch(content.get("branch"))
    ends = {}
    for one in _listed(content.get("partitions"), standings):
        if not isinstance(one, dict):
            raise UsageError('each of "partitions" needs "partition" and "complete_end"')
        p = checked_number(one.get("partition"), "partition", len(standings) - 1)
        ends[p] = checked_number(one.get("complete_end"), "complete_end", UINT53_MAX)
    return _result(request, branch, "active", sorted(ends), await api.activate(name, branch, ends))


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.get(_PATH + "/standings", _standings),
        web.post(_PATH + "/promises", _promise),
        web.post(_PATH + "/activations", _activate),
    ]
