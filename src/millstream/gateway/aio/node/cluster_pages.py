"""The cluster for administrators: `/_millstream/cluster`.

| page | does |
| --- | --- |
| GET | tells members, buckets, plan and fail-overs |
| POST init | makes a cluster of this node |
| POST join | has this node join a cluster |
| POST recover | rebuilds the state of the cluster from what its nodes hold |
| POST requests | asks the orchestrator for something: `{op, args, timeout_s}` |

Invariants:
1. Only administrators are answered.
2. A page waits for `TIMEOUT_S_MAX` at most; what was asked for may still be done after that.

Elsewhere: what is asked for (`cluster.core.requests`), orders of the orchestrator
(`gateway.aio.peers.order_pages`).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from aiohttp import web

from millstream.errors import ConditionError, UsageError
from millstream.gateway.aio.answers import NODE_API, answer, asker, read_object, require
from millstream.gateway.aio.describing import takes
from millstream.gateway.core.api.cluster import ClusterApi

__all__ = ["TIMEOUT_S_DEFAULT", "TIMEOUT_S_MAX", "routes"]

TIMEOUT_S_DEFAULT: Final = 30.0
TIMEOUT_S_MAX: Final = 300.0
"""Longest wait for the answer of the orchestrator."""
NAME_DEFAULT: Final = "millstream"
"""Of a cluster that is made without a name."""
NAME_LENGTH_MAX: Final = 100
"""Characters of the name of a cluster, or of a zone."""
_T = TypeVar("_T")


def _cluster(request: web.Request) -> ClusterApi:
    """Return the cluster.

    Raises:
        ConditionError: `not_managed`: the node takes no part in coordination.
    """
    require(request, "admin")
    cluster = request.app[NODE_API].cluster
    if cluster is None:
        raise ConditionError(
            "this node takes no part in coordination, so it can be in no cluster: start it with "
            "its coord and peer listeners",
            code="not_managed",
        )
    return cluster


def _managed(request: web.Request) -> ClusterApi:
    cluster = _cluster(request)
    if not cluster.is_managed:
        raise ConditionError(
            "this node is in no cluster: make one with `millstream cluster init`, or join one "
            "with `millstream cluster join`",
            code="not_managed",
        )
    return cluster


async def _status(request: web.Request) -> web.Response:
    """Tell the status of the cluster.

    Right: admin.
    """
    return answer(await _managed(request).status())


class InitCluster(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)] = ""
    coordinators: Literal[1, 3, 5, 7] = 3


class JoinCluster(msgspec.Struct, forbid_unknown_fields=True):
    address: str
    zone: Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)] = ""
    roles: tuple[Literal["data", "index", "coord"], ...] = ()


class RecoverCluster(msgspec.Struct, forbid_unknown_fields=True):
    without: tuple[str, ...] = ()
    from_nodes: bool = False
    trial: bool = False


class ClusterRequest(msgspec.Struct, forbid_unknown_fields=True):
    op: str
    args: dict[str, Any] = {}
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=TIMEOUT_S_MAX)] = TIMEOUT_S_DEFAULT


@takes(InitCluster)
async def _init(request: web.Request) -> web.Response:
    """Make a cluster of this node.

    Right: admin.
    """
    cluster = _cluster(request)
    content = await _content(request, InitCluster)
    if not content.name.isprintable():
        raise UsageError("a cluster's name has no control characters")
    name = content.name
    if not name:
        is_member = cluster.is_managed
        name = (await cluster.status())["cluster"]["name"] if is_member else NAME_DEFAULT
    return answer(await cluster.init(name, content.coordinators))


@takes(JoinCluster)
async def _join(request: web.Request) -> web.Response:
    """Have this node join a cluster.

    Right: admin.
    """
    cluster = _cluster(request)
    content = await _content(request, JoinCluster)
    roles = tuple(dict.fromkeys(content.roles))
    return answer(await cluster.join(content.address, zone=content.zone, roles=roles))


@takes(RecoverCluster)
async def _recover(request: web.Request) -> web.Response:
    """Rebuild the state of the cluster from what its nodes hold.

    Right: admin.
    """
    cluster = _managed(request)
    content = await _content(request, RecoverCluster)
    told = await cluster.recover(
        without=content.without, from_nodes=content.from_nodes, is_trial=content.trial
    )
    return answer(told)


@takes(ClusterRequest)
async def _request(request: web.Request) -> web.Response:
    """Ask the orchestrator of the cluster for something.

    Right: admin.
    """
    cluster = _managed(request)
    content = await _content(request, ClusterRequest)
    by, timeout_s = asker(request), content.timeout_s
    return answer(await cluster.request(content.op, content.args, by, timeout_s=timeout_s))


async def _content(request: web.Request, kind: type[_T]) -> _T:
    """Return the body.

    Raises:
        UsageError: `bad_request`: a member is missing, unknown, or wrong.
    """
    content = await read_object(request)
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"the body of {request.path}: {error}") from error


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    path = "/_millstream/cluster"
    return [
        web.get(path, _status),
        web.post(f"{path}/init", _init),
        web.post(f"{path}/join", _join),
        web.post(f"{path}/recover", _recover),
        web.post(f"{path}/requests", _request),
    ]
