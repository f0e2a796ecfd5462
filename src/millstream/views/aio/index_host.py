"""What the index process does for the engine: keeps the indexes of all buckets, answers calls.

Invariants:
1. A bucket is known by its uuid: one made again under an old name has nothing of the old one.

Elsewhere: the socket (`index_server`), the process (`node.index_child`), how a query is answered,
by one node (`millstream.views.aio.answering`) and by several (`millstream.views.aio.gathering`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from millstream.errors import ConditionError, UsageError
from millstream.runtime.metrics import processor_seconds, resident_bytes
from millstream.views.aio.index_server import Answer

__all__ = ["BucketOrder", "IndexHost"]


class BucketOrder(msgspec.Struct, frozen=True):
    """What the engine says of a bucket: all of it, each time."""

    uuid: str
    name: str
    partition_count: int
    active: list[int]
    """Partitions that queries are answered from."""
    passive: list[int]
    """Partitions that are indexed and not answered from."""
    resting: list[int]
    """Partitions whose copy here is not active: an index that has them keeps them, passive."""
    designs: dict[str, dict[str, Any]]
    """Name without `_design/` -> the document; only those that are persisted."""


class IndexHost:
    """All indexes of a node.

    Args:
        path: the directory `buckets` of the data directory.
        kv: address of the engine's socket, `unix:` and a path.
    """

    def __init__(self, path: Path, kv: str) -> None:
        self._path = path
        self._kv = kv
        self._orders: dict[str, BucketOrder] = {}

    async def call(self, name: str, arguments: dict[str, Any]) -> Answer:
        """Do what the engine asks.

        Raises:
            UsageError: `unknown_call`, engine and index process differ; what the call says.
        """
        method = _CALLS.get(name)
        if method is None:
            raise UsageError(f"there is no call {name!r}", code="unknown_call")
        return await method(self, arguments)

    async def stop(self) -> None:
        """Close everything."""

    async def _set_bucket(self, arguments: dict[str, Any]) -> Answer:
        order = msgspec.convert(arguments, BucketOrder)
        self._orders[order.uuid] = order
        return Answer({})

    async def _drop_bucket(self, arguments: dict[str, Any]) -> Answer:
        self._orders.pop(str(arguments["uuid"]), None)
        return Answer({})

    async def _info(self, arguments: dict[str, Any]) -> Answer:
        order = self._orders.get(str(arguments["uuid"]))
        if order is None or arguments["design"] not in order.designs:
            raise ConditionError("missing", code="missing")
        return Answer({"updater_running": False})

    async def _tasks(self, _: dict[str, Any]) -> Answer:
        return Answer({"tasks": []})

    async def _figures(self, _: dict[str, Any]) -> Answer:
        process = {
            "resident_bytes": resident_bytes(),
            "processor_seconds_total": processor_seconds(),
        }
        return Answer({"process": process, "buckets": {}})


_CALLS: Final[Mapping[str, Callable[[IndexHost, dict[str, Any]], Awaitable[Answer]]]] = {
    "set_bucket": IndexHost._set_bucket,
    "drop_bucket": IndexHost._drop_bucket,
    "info": IndexHost._info,
    "tasks": IndexHost._tasks,
    "figures": IndexHost._figures,
}
