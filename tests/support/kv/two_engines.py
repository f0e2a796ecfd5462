"""Two nodes in this process that share a bucket by a map, each with some partitions alone."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.partitions import PartitionState, partition_of
from millstream.node.engine import Engine
from millstream.node.settings import LISTENERS, Address, Settings

BUCKET = "shared"
UUID = "0123456789abcdef0123456789abcdef"
PARTITIONS = 4
SECRET = "a secret of nodes"
FREE = Address("127.0.0.1", 0)


def settings_at(path: Path, **more: Any) -> Settings:
    fields = {"kv": FREE, "http": FREE, "cluster_secret": SECRET, **more}
    return Settings(data=str(path), **{**dict.fromkeys(LISTENERS), **fields})


def port_of(node: Any, listener: str) -> int:
    return int(node.addresses()[listener].rpartition(":")[2])


class TwoEngines:
    """`engines` by name; `rows` says who has what active."""

    def __init__(self, engines: dict[str, Engine]) -> None:
        self.engines = engines
        self.rows = "abab"
        self.revision = 0

    async def give_map(self, rows: str) -> None:
        """Place partitions, of one copy each, and make them active there."""
        self.rows, self.revision = rows, self.revision + 1
        nodes = tuple(
            NodeAddress(name, "127.0.0.1", port_of(one, "kv"), port_of(one, "http"))
            for name, one in self.engines.items()
        )
        bucket_map = BucketMap(self.revision, nodes, tuple((name,) for name in rows))
        for name, engine in self.engines.items():
            await engine.set_bucket_map(BUCKET, UUID, PARTITIONS, bucket_map, name)
        for name, engine in self.engines.items():
            for partition in range(PARTITIONS):
                if rows[partition] == name:
                    await engine.set_partition_state(BUCKET, partition, PartitionState.ACTIVE)

    def owner(self, key: str) -> Engine:
        return self.engines[self.rows[partition_of(key.encode(), PARTITIONS)]]

    def put(self, key: str, value: Any) -> None:
        bucket = self.owner(key).served[BUCKET]
        body = json.dumps(value).encode()
        bucket.partition_for(key.encode()).put(key.encode(), body, 0, 0, 0, 1, time.time_ns())
        bucket.changed()

    async def design(self, name: str, content: Any, rev: str | None = None) -> str:
        body = None if content is None else json.dumps(content).encode()
        designs = self.owner(f"_design/{name}").designs
        return (await designs.write(BUCKET, name, body, rev, is_durable=True)).rev

    def design_of(self, node: str) -> str:
        """A name for a design document that a node has."""
        return next(
            f"d{n}" for n in range(100) if self.owner(f"_design/d{n}") is self.engines[node]
        )


@asynccontextmanager
async def two_engines(path: Path) -> AsyncIterator[TwoEngines]:
    async with AsyncExitStack() as stack:
        engines = {}
        for name in "ab":
            engines[name] = await Engine.start(settings_at(path / name, flush_interval_ms=1))
            stack.push_async_callback(engines[name].stop)
        two = TwoEngines(engines)
        await two.give_map("abab")
        yield two


async def asked_of(indexes: Any) -> None:
    """Wait until views can be asked: on a busy machine that takes longer than a query waits."""
    indexes.process.start()
    await until(lambda: indexes.process.link is not None)


async def until(condition: Callable[[], Any]) -> None:
    """Wait until something is so; an awaitable condition is awaited."""
    async with asyncio.timeout(60):
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.01)
