"""Rights of active copies over real connections between two nodes of this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from millstream.kv.aio.serving import ServingWatch
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.takeover_stream import TakingFeed
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.cluster_maps import DataRecord, MapKey
from millstream.model.partitions import PartitionState
from millstream.wire.mcbp import Opcode, Status
from support.kv.log_double import new_bucket
from support.kv.raw_client import RawClient
from support.kv.two_engines import (
    BUCKET,
    PARTITIONS,
    UUID,
    TwoEngines,
    port_of,
    two_engines,
    until,
)

RECORD = DataRecord(MapKey(2, 1), "a", 1, (("a", "b"),))
LONG_MS = 3_600_000


@pytest.fixture(name="two")
async def _two(tmp_path: Path) -> AsyncIterator[TwoEngines]:
    """Partitions 0 and 2 are active on a, and b follows them; nobody has a lease."""
    async with two_engines(tmp_path) as two:
        nodes = tuple(
            NodeAddress(name, "127.0.0.1", port_of(one, "kv"), port_of(one, "http"))
            for name, one in two.engines.items()
        )
        rows = tuple((one, "b" if one == "a" else "a") for one in two.rows)
        for name, engine in two.engines.items():
            bucket_map = BucketMap(two.revision + 1, nodes, rows)
            await engine.set_bucket_map(BUCKET, UUID, PARTITIONS, bucket_map, name)
            engine.served[BUCKET].manage(name, lambda _: RECORD)
        yield two


def source_of(two: TwoEngines) -> Bucket:
    bucket: Bucket = two.engines["a"].served[BUCKET]
    return bucket


async def test_contact_keeps_a_copy_serving_that_has_no_lease(two: TwoEngines) -> None:
    bucket = source_of(two)
    await until(lambda: not bucket.serving.isolated)
    ((_, peer),) = bucket.serving._streams[0].values()
    first = peer.sent_ms
    bucket.set_rules(LONG_MS, "stop")
    assert first is not None
    await until(lambda: (peer.sent_ms or 0) > first + 300)
    assert bucket.may_serve_now(0)
    assert two.engines["b"].served[BUCKET].quiet_ms(0) is not None


async def test_a_follower_that_goes_away_is_no_contact(two: TwoEngines) -> None:
    bucket = source_of(two)
    await until(lambda: not bucket.serving.isolated)
    await two.engines["b"].stop()
    await until(lambda: bucket.serving.isolated == {0, 2})
    assert bucket.published.read("serving")["serving_isolated_partitions"] == 2


async def test_a_follower_that_does_not_answer_is_contact_for_the_window(
    two: TwoEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = source_of(two)
    await until(lambda: not bucket.serving.isolated)
    monkeypatch.setattr(TakingFeed, "receive", lambda *_: None)
    await until(lambda: bucket.partitions[0].unserved)
    ((_, peer),) = bucket.serving._streams[0].values()
    assert peer.sent_ms is not None, "its stream is still open"
    assert peer.sent_ms + 500 <= bucket.now_ms()


async def test_a_promise_of_the_follower_ends_the_contact_before_it_answers_again(
    two: TwoEngines,
) -> None:
    bucket = source_of(two)
    bucket.set_rules(LONG_MS, "stop")
    await until(lambda: not bucket.serving.isolated)
    branch = bucket.partitions[0].failover_log[0].branch + 1
    assert await two.engines["b"]._buckets.copies(BUCKET).promise([0], branch) == [0]
    await until(lambda: bucket.serving.isolated)
    assert bucket.serving.isolated == {0}, "with so long a window only the promise can end it"
    assert not bucket.may_serve_now(0)
    assert bucket.may_serve_now(2)


async def test_both_protocols_refuse_what_may_not_be_served_and_serve_it_again(
    two: TwoEngines,
) -> None:
    key = next(f"k{n}" for n in range(99) if two.owner(f"k{n}") is two.engines["a"])
    two.put(key, {"n": 1})
    bucket, engine = source_of(two), two.engines["a"]
    vbucket = bucket.partition_for(key.encode()).partition_id
    http = f"http://127.0.0.1:{port_of(engine, 'http')}/{BUCKET}/{key}"
    await until(lambda: not bucket.serving.isolated)
    assert await asked(http) == (200, None)
    client = await asyncio.to_thread(RawClient, ("127.0.0.1", port_of(engine, "kv")), BUCKET)
    ask = partial(asyncio.to_thread, client.ask)
    assert (await ask(Opcode.GET, key=key.encode(), vbucket=vbucket)).status == Status.SUCCESS
    await two.engines["b"].stop()
    await until(lambda: bucket.serving.isolated)
    assert await asked(http) == (503, "isolated")
    for opcode, extras in ((Opcode.GET, b""), (Opcode.SET, bytes(8))):
        found = await ask(opcode, key=key.encode(), vbucket=vbucket, extras=extras)
        assert found.status == Status.ETMPFAIL
    bucket.set_right(2**62, is_admitted=True)
    assert await asked(http) == (200, None)
    assert (await ask(Opcode.GET, key=key.encode(), vbucket=vbucket)).status == Status.SUCCESS
    client.close()


async def asked(url: str) -> tuple[int, str | None]:
    """Return status and error of an answer."""
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, (await answer.json()).get("error")


async def test_a_lease_ends_in_time_though_no_request_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    bucket = new_bucket(2)
    loop = asyncio.get_running_loop()
    bucket._monotonic_ns = lambda: int(loop.time() * 1e9)
    watch = ServingWatch(bucket)
    bucket.manage("a", lambda _: RECORD)
    await until(lambda: "2 partitions are isolated, and serve nothing" in caplog.text)
    bucket.set_right(bucket.now_ms() + 20, is_admitted=True)
    bucket.set_right(bucket.now_ms() + 60, is_admitted=True)
    assert bucket.open_partitions == bucket.partitions
    await until(lambda: bucket.open_partitions == [None, None])
    await until(lambda: caplog.text.count("are isolated") == 2)
    assert caplog.text.count("2 partitions serve again") == 1
    assert watch.statistics() == (2, 4)
    watch.stop()


async def test_an_unmanaged_bucket_is_not_watched() -> None:
    bucket = new_bucket(1)
    watch = ServingWatch(bucket)
    bucket.set_right(None, is_admitted=False)
    assert bucket.partitions[0].unserved == ""
    assert watch.statistics() == (0, 0)
    watch.stop()


async def test_a_copy_that_becomes_a_replica_does_not_serve_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    bucket = new_bucket(1)
    watch = ServingWatch(bucket)
    bucket.manage("a", lambda _: RECORD)
    await until(lambda: "isolated" in caplog.text)
    bucket.partitions[0].state = PartitionState.REPLICA
    bucket.partitions[0].resume()
    await until(lambda: not watch.statistics().isolated_partitions)
    await asyncio.sleep(0)
    assert "again" not in caplog.text
    watch.stop()
