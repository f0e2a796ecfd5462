"""The index process: keeps the indexes of all buckets and answers the calls of the engine.

Invariants:
1. Buckets are identified by uuid: a recreated bucket has nothing of the old one.
2. Buckets are independent: a failure of one affects no other.
3. After a bucket was dropped nothing of it is open.

Elsewhere: one bucket (`hosted_bucket`), the socket (`index_server`), the process
(`node.processes.index_child`), answers of one node (`answering`) and of several
(`distributed_queries`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec

from millstream.errors import ConditionError, UsageError
from millstream.model.cluster_maps import MapKey
from millstream.runtime.metrics import LoopLag, processor_seconds, resident_bytes
from millstream.views.aio.sandbox.mapping import open_mapper
from millstream.views.aio.serving.bucket_order import BucketOrder
from millstream.views.aio.serving.distributed_queries import DistributedQueries
from millstream.views.aio.serving.gathering import NOBODY, NodeAccess
from millstream.views.aio.serving.hosted_bucket import HostedBucket
from millstream.views.aio.serving.index_server import Answer
from millstream.views.core.design.design_documents import parse_design
from millstream.views.core.reduce.reductions import ReduceLimit

__all__ = ["WORK_THREADS_MAX", "IndexHost"]

WORK_THREADS_MAX: Final = 8
"""Threads that map, sort and commit, for all buckets together."""


class IndexHost:
    """All indexes of a node.

    Args:
        path: the directory `buckets` of the data directory.
        kv: address of the engine's socket, `unix:` and a path.
        access: how other nodes are asked for their parts, and followed.
        reduce_limit: what becomes of reduce results that do not shrink.
    """

    def __init__(
        self,
        path: Path,
        kv: str,
        access: NodeAccess = NOBODY,
        reduce_limit: ReduceLimit = "true",
    ) -> None:
        self._reduce_limit = reduce_limit
        self._distributed = DistributedQueries(access)
        self._access = access
        self._path = path
        self._kv = kv
        self._buckets: dict[str, HostedBucket] = {}
        self._changes: dict[str, asyncio.Lock] = {}
        threads = min(WORK_THREADS_MAX, 1 + (os.cpu_count() or 1))
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="index work")
        self._lag = LoopLag()
        self._lag.start()

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
        """Finish what is being committed, and close everything."""
        self._lag.stop()
        await self._distributed.close()
        await asyncio.gather(*(bucket.stop() for bucket in self._buckets.values()))
        self._executor.shutdown()

    def _bucket(self, arguments: dict[str, Any]) -> HostedBucket:
        bucket = self._buckets.get(str(arguments["uuid"]))
        if bucket is None:
            raise ConditionError("missing", code="missing")
        return bucket

    async def _set_bucket(self, arguments: dict[str, Any]) -> Answer:
        order = msgspec.convert(arguments, BucketOrder, str_keys=True)
        async with self._changes.setdefault(order.uuid, asyncio.Lock()):
            bucket = self._buckets.get(order.uuid)
            if bucket is None:
                path = self._path / order.uuid
                bucket = HostedBucket(
                    order, path, self._kv, self._executor, self._reduce_limit, self._access
                )
                await bucket.start()
                self._buckets[order.uuid] = bucket
            await bucket.apply(order)
        return Answer({})

    async def _drop_bucket(self, arguments: dict[str, Any]) -> Answer:
        uuid = str(arguments["uuid"])
        async with self._changes.setdefault(uuid, asyncio.Lock()):
            bucket = self._buckets.pop(uuid, None)
            if bucket is not None:
                await bucket.stop()
        return Answer({})

    async def _query(self, arguments: dict[str, Any]) -> Answer:
        bucket = self._bucket(arguments)
        await bucket.until_open(str(arguments["design"]))
        asked = (arguments["design"], arguments["view"], arguments["options"])
        partitions, keys = arguments.get("partitions"), arguments.get("keys")
        if partitions is None and (bucket.order.nodes or bucket.order.owned is not None):
            is_in_step = arguments.get("is_in_step", True)
            return await self._distributed.query(bucket, *asked, is_in_step=is_in_step)
        if keys is not None:
            keys = msgspec.convert(keys, dict[int, MapKey], str_keys=True)
        return await bucket.query(*asked, partitions, arguments.get("form", "json"), keys)

    async def _parts(self, arguments: dict[str, Any]) -> Answer:
        return Answer(await self._bucket(arguments).parts(arguments["known"]))

    async def _prepare(self, arguments: dict[str, Any]) -> Answer:
        bucket = self._bucket(arguments)
        is_whole = await bucket.prepare(arguments["partitions"], arguments["timeout_s"])
        return Answer({"is_whole": is_whole})

    async def _info(self, arguments: dict[str, Any]) -> Answer:
        return Answer(self._bucket(arguments).info(arguments["design"]))

    async def _check(self, arguments: dict[str, Any]) -> Answer:
        design = parse_design(arguments["content"], str(arguments["design"]))
        # Opened and closed in one go: whoever asked may be gone meanwhile.
        await asyncio.to_thread(lambda: open_mapper(design).close())
        return Answer({})

    async def _compact(self, arguments: dict[str, Any]) -> Answer:
        self._bucket(arguments).compact(arguments["design"])
        return Answer({})

    async def _take_over(self, arguments: dict[str, Any]) -> Answer:
        writer = self._bucket(arguments).writer(arguments["design"])
        return Answer(await writer.take_over(arguments["writer"]))

    async def _index(self, arguments: dict[str, Any]) -> Answer:
        return Answer(self._bucket(arguments).writer(arguments["design"]).state())

    async def _judge(self, arguments: dict[str, Any]) -> Answer:
        writer = self._bucket(arguments).writer(arguments["design"])
        return Answer(await writer.judge(arguments["fence"]))

    async def _keep(self, arguments: dict[str, Any]) -> Answer:
        writer = self._bucket(arguments).writer(arguments["design"])
        return Answer(await writer.keep(arguments["fence"]))

    async def _place(self, arguments: dict[str, Any]) -> Answer:
        writer = self._bucket(arguments).writer(arguments["design"])
        return Answer(await writer.place(arguments["fence"], arguments["run"]))

    async def _staged(self, arguments: dict[str, Any]) -> Answer:
        writer = self._bucket(arguments).writer(arguments["design"])
        return Answer(await writer.staged(arguments["fence"], arguments["run"]))

    async def _load(self, arguments: dict[str, Any]) -> Answer:
        writer = self._bucket(arguments).writer(arguments["design"])
        return Answer(await writer.load(arguments["fence"], arguments["said"]))

    async def _publish(self, arguments: dict[str, Any]) -> Answer:
        writer = self._bucket(arguments).writer(arguments["design"])
        return Answer(await writer.publish(arguments["fence"], arguments["said"]))

    async def _offers(self, arguments: dict[str, Any]) -> Answer:
        return Answer({"offers": self._bucket(arguments).offers(arguments["building"])})

    async def _cleanup(self, arguments: dict[str, Any]) -> Answer:
        await self._bucket(arguments).clean_up()
        return Answer({})

    async def _tasks(self, _: dict[str, Any]) -> Answer:
        found = [task for bucket in self._buckets.values() for task in bucket.tasks()]
        return Answer({"tasks": [{**task, "pid": os.getpid()} for task in found]})

    async def _figures(self, _: dict[str, Any]) -> Answer:
        process = {
            "resident_bytes": resident_bytes(),
            "processor_seconds_total": processor_seconds(),
            "loop_lag_worst_ms": self._lag.worst_ms,
        }
        buckets = {uuid: bucket.figures() for uuid, bucket in self._buckets.items()}
        return Answer({"process": process, "buckets": buckets})


_CALLS: Final[Mapping[str, Callable[[IndexHost, dict[str, Any]], Awaitable[Answer]]]] = {
    "set_bucket": IndexHost._set_bucket,
    "drop_bucket": IndexHost._drop_bucket,
    "query": IndexHost._query,
    "parts": IndexHost._parts,
    "prepare": IndexHost._prepare,
    "info": IndexHost._info,
    "check": IndexHost._check,
    "compact": IndexHost._compact,
    "offers": IndexHost._offers,
    "cleanup": IndexHost._cleanup,
    "tasks": IndexHost._tasks,
    "figures": IndexHost._figures,
    "index": IndexHost._index,
    "take_over": IndexHost._take_over,
    "judge": IndexHost._judge,
    "keep": IndexHost._keep,
    "place": IndexHost._place,
    "staged": IndexHost._staged,
    "load": IndexHost._load,
    "publish": IndexHost._publish,
}
