"""The copies of a bucket's partitions over HTTP: `/_millstream/buckets/NAME/partitions`.

Invariants:
1. Only administrators see or change them.
2. A change is answered once it is durable and in force.

Elsewhere: what they do (`kv.aio.copies`), legal moves (`kv.core.partition.states`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from aiohttp import web

from millstream.errors import ConditionError, UsageError
from millstream.gateway.aio.answers import NODE_API, answer, read_object, require
from millstream.gateway.aio.databases.promotion_pages import checked_branch
from millstream.gateway.aio.streaming import as_they_come, stream
from millstream.gateway.core.api.node import PartitionStatus
from millstream.model.partitions import PartitionState

__all__ = ["routes"]

_PATH = "/_millstream/buckets/{name}/partitions"
_STATES = {state.name.lower(): state for state in PartitionState}


def _shown(status: PartitionStatus) -> dict[str, Any]:
    histories = [
        {"uuid": f"{entry.uuid:012x}", "seqno": entry.seqno, "branch": entry.branch}
        for entry in status.failover_log
    ]
    return asdict(status) | {"failover_log": histories}


async def _of(request: web.Request) -> tuple[str, int]:
    """Return the bucket and the partition that a request names."""
    name, number = request.match_info["name"], request.match_info["number"]
    known = await request.app[NODE_API].partition_statuses(name)
    if not number.isascii() or not number.isdigit() or int(number) >= len(known):
        message = f"bucket {name!r} has no partition {number!r}, only 0 to {len(known) - 1}"
        raise ConditionError(message, code="partition_not_found")
    return name, int(number)


def _texts(statuses: Sequence[PartitionStatus]) -> Iterator[bytes]:
    before = b'{"partitions":['
    for one in statuses:
        yield before + msgspec.json.encode(_shown(one))
        before = b","
    yield b"]}\n"


async def _list(request: web.Request) -> web.StreamResponse:
    """Tell of the copies of partitions that this node has.

    Right: admin.
    """
    require(request, "admin")
    statuses = await request.app[NODE_API].partition_statuses(request.match_info["name"])
    return await stream(request, as_they_come(_texts(statuses)), {})


async def _one(request: web.Request) -> web.Response:
    """Tell of one such copy.

    Right: admin.
    """
    require(request, "admin")
    name, number = await _of(request)
    return answer(_shown((await request.app[NODE_API].partition_statuses(name))[number]))


async def _set_state(request: web.Request) -> web.Response:
    """Set the state of a copy.

    Right: admin.
    """
    require(request, "admin")
    name, number = await _of(request)
    content, api = await read_object(request), request.app[NODE_API]
    state = _STATES.get(str(content.get("state")))
    if state is None:
        raise UsageError(f'"state" must be one of {", ".join(_STATES)}', code="bad_state")
    is_take_over = content.get("take_over", False)
    if not isinstance(is_take_over, bool):
        raise UsageError('"take_over" is true or false', code="bad_state")
    if is_take_over and (state is not PartitionState.ACTIVE or "branch" in content):
        message = '"take_over" is of a copy that becomes active, in the branch there is'
        raise UsageError(message, code="bad_state")
    if is_take_over:
        await api.take_over(name, number)
    elif "branch" not in content:
        await api.set_partition_state(name, number, state)
    elif state is not PartitionState.ACTIVE:
        raise UsageError('"branch" is of a copy that becomes active', code="bad_state")
    elif not await api.activate(name, checked_branch(content["branch"]), {number: 0}):
        raise ConditionError(
            f"partition {number} has not promised that branch, or another one since: begin the "
            "promotion again",
            code="not_promised",
        )
    return answer(_shown((await request.app[NODE_API].partition_statuses(name))[number]))


async def _roll_back(request: web.Request) -> web.Response:
    """Roll a copy back.

    Right: admin.
    """
    require(request, "admin")
    name, number = await _of(request)
    seqno = (await read_object(request)).get("seqno")
    if not isinstance(seqno, int) or isinstance(seqno, bool) or seqno < 0:
        raise UsageError('"seqno" must be a number from 0 up', code="bad_seqno")
    await request.app[NODE_API].roll_back_partition(name, number, seqno)
    return answer(_shown((await request.app[NODE_API].partition_statuses(name))[number]))


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.get(_PATH, _list),
        web.get(_PATH + "/{number}", _one),
        web.put(_PATH + "/{number}", _set_state),
        web.post(_PATH + "/{number}/rollback", _roll_back),
    ]
