"""The indexes of a bucket, kept fresh from a real engine in the same loop."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from millstream.node.engine import Engine
from millstream.node.settings import LISTENERS, BucketSpec, Settings
from millstream.views.aio.serving.bucket_order import BucketOrder
from millstream.views.aio.serving.hosted_bucket import HostedBucket

PARTITIONS = 4
MAP = "function (doc) { emit(doc.kind, doc.n); }"
SUM = {"views": {"v": {"map": MAP, "reduce": "_sum"}}}
OTHER = {"views": {"v": {"map": "function (doc) { emit(doc.n, null); }"}}}


class Hosted:
    """A bucket of an engine, and its indexes."""

    def __init__(self, engine, path, design):
        self.engine = engine
        self.path = path
        self.running = engine._buckets.engine("b")
        self.executor = ThreadPoolExecutor(2)
        self.designs = {"d": design}
        self.bucket = None

    @property
    def indexes(self):
        return sorted(path.name for path in (self.path / "indexes").iterdir())

    def order(self, active=None, passive=(), resting=()):
        active = list(range(PARTITIONS)) if active is None else active
        return BucketOrder(
            self.running.bucket.uuid, "b", PARTITIONS, active, list(passive), list(resting),
            self.designs,
        )  # fmt: skip

    async def start(self):
        kv = f"unix:{self.engine._run_directory.kv}"
        self.bucket = HostedBucket(self.order(), self.path, kv, self.executor)
        await self.bucket.start()
        await self.bucket.apply(self.order())

    async def stop(self):
        if self.bucket is not None:
            bucket, self.bucket = self.bucket, None
            await bucket.stop()

    async def apply(self, designs=None, **sets):
        self.designs = self.designs if designs is None else designs
        await self.bucket.apply(self.order(**sets))

    def put(self, key, **members):
        bucket = self.running.bucket
        partition = bucket.partition_for(key.encode())
        value = json.dumps(members).encode()
        partition.put(key.encode(), value, 0, 0, 0, 1, time.time_ns())
        bucket.changed()

    async def ask(self, name="d", view="v", **options):
        return await self.bucket.query(name, view, {"timeout": 20_000, **options})

    async def query(self, name="d", view="v", **options):
        return json.loads(await read((await self.ask(name, view, **options)).body))

    async def ask_for(self, partitions, name="d", view="v"):
        return await self.bucket.query(name, view, {"timeout": 20_000}, partitions)

    async def sums(self, **options):
        rows = (await self.query(group=True, **options))["rows"]
        return {row["key"]: row["value"] for row in rows}

    @property
    def commit(self):
        (hosted,) = self.bucket._open.values()
        return hosted.index.newest.commit


async def read(body):
    if isinstance(body, tuple):
        return b"".join(body)
    return b"".join([piece async for piece in body])


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - several kinds of it
            await asyncio.sleep(0.005)


@asynccontextmanager
async def hosted_views(tmp_path, design=SUM) -> AsyncIterator[Hosted]:
    closed = dict.fromkeys(LISTENERS)
    settings = Settings(
        **closed, data=str(tmp_path / "node"), buckets=(BucketSpec("b", PARTITIONS),),
        roles=("data",),
    )  # fmt: skip
    engine = await Engine.start(settings)
    made = Hosted(engine, tmp_path / "b", design)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()
        made.executor.shutdown()
        await engine.stop()
