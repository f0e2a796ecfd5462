"""Makes, changes and drops buckets: of this node alone, or of the whole cluster that it is in.

In a managed cluster a bucket belongs to all nodes, whichever is asked. The request goes to the
orchestrator; then this waits, for `SERVED_S` at most, until what was asked for can be seen here.

Invariants:
1. A caller is told whether the bucket is served here, or that it is only asked for so far.
2. A bucket that was dropped is gone here, and its name is free, if this says so.

Elsewhere: what the orchestrator does (`cluster.core.bucket_requests`), pages (`bucket_pages`,
`database_pages`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from millstream.errors import ConditionError, UnavailableError
from millstream.gateway.core.api.cluster import ClusterApi
from millstream.gateway.core.api.node import BucketStatus, NodeApi

__all__ = ["REQUEST_S", "SERVED_S", "Made", "change_bucket", "create_bucket", "drop_bucket"]

REQUEST_S: Final = 30.0
"""How long the orchestrator may take to answer a request."""
SERVED_S: Final = 30.0
"""How long a new bucket may take until it is served, a dropped one until it is gone."""
_POLL_S: Final = 0.1


class Made(NamedTuple):
    """A bucket that was made."""

    status: BucketStatus | None
    """None: this node does not have it yet."""
    is_served: bool
    """Whether all its partitions are served, and this node knows it."""
    answer: Mapping[str, Any]
    """Of the orchestrator; empty if the node is alone."""


async def create_bucket(
    host: NodeApi,
    name: str,
    partitions: int,
    memory_quota_bytes: int | None = None,
    *,
    by: str = "",
    copies: Mapping[str, Any] | None = None,
) -> Made:
    """Make a bucket and wait until it is served here.

    Args:
        host: the node.
        name: of the bucket.
        partitions: their number.
        memory_quota_bytes: on each node; None: the node's own.
        by: user who asks.
        copies: `replicas`, `index_replicas`, `strict`; only in a managed cluster.

    Raises:
        UsageError, ConditionError, UnavailableError: as `NodeApi.create_bucket`, and as
            `ClusterApi.request`.
        ConditionError: `not_managed`: copies are asked for, and the node is alone.
    """
    cluster = _cluster_of(host)
    if cluster is None:
        if copies:
            raise _not_managed()
        return Made(await host.create_bucket(name, partitions, memory_quota_bytes), True, {})
    uuid = secrets.token_hex(16)
    args = {"name": name, "partitions": partitions, "uuid": uuid, **(copies or {})}
    if memory_quota_bytes is not None:
        args["settings"] = {"memory_quota_bytes": memory_quota_bytes}
    answer = await cluster.request("create_bucket", args, by, timeout_s=REQUEST_S)

    async def is_served() -> bool:
        return _is_here(host, name, uuid) and await _is_served(cluster, uuid)

    is_there = await _wait(is_served)
    return Made(_status(host, name, uuid), is_there, answer)


async def drop_bucket(host: NodeApi, name: str, *, by: str = "") -> bool:
    """Drop a bucket; return whether it is gone and its name is free, or that is only asked for.

    Raises:
        ConditionError: `bucket_not_found`; as `ClusterApi.request`.
        UnavailableError: as `ClusterApi.request`.
    """
    cluster = _cluster_of(host)
    if cluster is None:
        await host.delete_bucket(name)
        return True
    answer = await cluster.request("drop_bucket", {"name": name}, by, timeout_s=REQUEST_S)
    uuid = str(answer.get("uuid", ""))

    async def is_gone() -> bool:
        if _status(host, name, uuid) is not None:
            return False
        buckets = (await cluster.status())["buckets"]
        return all(one["uuid"] != uuid and one["name"] != name for one in buckets)

    return await _wait(is_gone)


async def change_bucket(
    host: NodeApi, name: str, changes: Mapping[str, Any], *, by: str = ""
) -> Mapping[str, Any]:
    """Change copies or settings of a bucket of a managed cluster; return the answer.

    Raises:
        ConditionError: `not_managed`, `bucket_not_found`; as `ClusterApi.request`.
        UsageError, UnavailableError: as `ClusterApi.request`.
    """
    cluster = _cluster_of(host)
    if cluster is None:
        raise _not_managed()
    args = {"name": name, **changes}
    return await cluster.request("set_bucket", args, by, timeout_s=REQUEST_S)


def _cluster_of(host: NodeApi) -> ClusterApi | None:
    cluster = host.cluster
    return cluster if cluster is not None and cluster.is_managed else None


def _not_managed() -> ConditionError:
    return ConditionError(
        "this node is in no cluster, so a bucket has no copies on other nodes: make one with "
        "`millstream cluster init`",
        code="not_managed",
    )


def _status(host: NodeApi, name: str, uuid: str) -> BucketStatus | None:
    """Return the status of this bucket, if the node has it."""
    found = (one for one in host.bucket_statuses() if one.name == name)
    return next((one for one in found if uuid in ("", one.uuid)), None)


def _is_here(host: NodeApi, name: str, uuid: str) -> bool:
    status = _status(host, name, uuid)
    return status is not None and status.state == "ready" and bool(host.cluster_config(name))


async def _is_served(cluster: ClusterApi, uuid: str) -> bool:
    buckets = (await cluster.status())["buckets"]
    found = next((one for one in buckets if one["uuid"] == uuid), None)
    return found is not None and found["served"] == found["partitions"]


async def _wait(is_so: Callable[[], Awaitable[bool]]) -> bool:
    """Return whether it is so within `SERVED_S`; while the status is not known, it is not."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + SERVED_S
    while loop.time() < until_s:
        try:
            async with asyncio.timeout_at(until_s):
                if await is_so():
                    return True
        except (TimeoutError, UnavailableError):
            pass
        await asyncio.sleep(_POLL_S)
    return False
