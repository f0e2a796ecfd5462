from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from millstream.errors import ConditionError, UnavailableError
from millstream.kv.aio.documents.design_documents import DesignStore
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.aio.majority import MajorityWait
from millstream.kv.core.revisions.design_documents import DesignDocuments

OpenEngine = Callable[[], Awaitable[BucketEngine]]


@pytest.fixture
def open_engine(tmp_path: Path) -> OpenEngine:
    async def opened() -> BucketEngine:
        return await BucketEngine.open(
            tmp_path, name="b", uuid="00", partition_count=4, flush_interval_ms=1,
            on_persisted=lambda: None, on_fatal=[].append, on_corrupt=[].append,
        )  # fmt: skip

    return opened


async def test_documents_are_there_again_after_a_start(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    assert await engine.designs.all() == []
    written = await engine.designs.write("a/b", b"{}", None, is_durable=True)
    stored = await engine.designs.read("a/b")
    assert stored is not None
    assert stored.is_persisted
    second = await engine.designs.write("x", b'{"a":1}', None, is_durable=False)
    gone = await engine.designs.write("gone", b"{}", None, is_durable=True)
    await engine.designs.write("gone", None, gone.rev, is_durable=True)
    await engine.stop()
    engine = await open_engine()
    found = await engine.designs.all()
    assert [(one.name, one.rev, one.body) for one in found] == [
        ("a/b", written.rev, b"{}"), ("x", second.rev, b'{"a":1}'),
    ]  # fmt: skip
    deleted = await engine.designs.read("gone")
    assert deleted is not None
    assert deleted.is_deleted
    with pytest.raises(ConditionError, match="conflict"):
        await engine.designs.write("x", b"{}", None, is_durable=True)
    await engine.stop()


async def test_a_write_that_went_back_too_early_is_unsure(
    open_engine: OpenEngine,
) -> None:
    engine = await open_engine()
    bucket = engine.bucket
    begun, end = asyncio.Event(), asyncio.Event()

    async def until_persisted(partition_id: int, seqno: int) -> None:
        begun.set()
        await end.wait()

    store = DesignStore(
        bucket, DesignDocuments(bucket), until_persisted, MajorityWait(lambda: 1), lambda: 1
    )
    writing = asyncio.ensure_future(store.write("x", b"{}", None, is_durable=True))
    await begun.wait()
    for partition in bucket.partitions:
        partition.epoch += 1
    end.set()
    with pytest.raises(UnavailableError) as caught:
        await writing
    assert caught.value.code == "ambiguous"
    await engine.stop()
