from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from millstream.kv.aio import memory_keeper
from millstream.kv.aio.memory_keeper import MEMORY, WAKE_MAX, MemoryKeeper
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.partition.memory import Memory
from support.kv.log_double import NOW, new_bucket, persist


@asynccontextmanager
async def kept(
    quota_bytes: int = 200_000,
    pending_bytes: Callable[[], int] = lambda: 0,
    known_keys: int = 0,
) -> AsyncIterator[tuple[Bucket, Memory, MemoryKeeper]]:
    memory = Memory(quota_bytes)
    bucket = new_bucket(memory=memory)
    keeper = MemoryKeeper(bucket, memory, pending_bytes, known_keys)
    yield bucket, memory, keeper
    await keeper.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the keeper's own timer is waited for
            await asyncio.sleep(0)


def fill(bucket: Bucket, first: int, count: int) -> None:
    for n in range(first, first + count):
        key = b"key%d" % n
        bucket.partition_for(key).store(key, key + bytes(100), 0, 0, 0, NOW)


def persist_all(bucket: Bucket) -> None:
    for partition in bucket.partitions:
        persist(partition)


async def test_documents_are_evicted_down_to_the_low_mark() -> None:
    async with kept() as (bucket, memory, keeper):
        fill(bucket, 0, 420)
        assert keeper.statistics().resident_share == 1
        assert memory.is_high
        persist_all(bucket)
        bucket.changed()
        await until(lambda: memory.used_bytes <= memory.low_bytes)
        figures = keeper.statistics()
        resident = sum(len(partition.table) for partition in bucket.partitions)
        assert figures.evicted_total == 420 - resident > 0
        assert figures.resident_share == resident / 420
        assert figures.evicted_bytes_total > 414 * figures.evicted_total / 2
        assert figures.quota_bytes == 200_000
        assert not figures.is_refusing
        assert not bucket.writes.refusals


async def test_the_flusher_is_hurried_where_only_what_is_not_persisted_could_go() -> None:
    async with kept() as (bucket, memory, _):
        hurried: list[bool] = []
        bucket.hurry = lambda: hurried.append(memory.is_high)
        fill(bucket, 0, 420)
        bucket.changed()
        await until(lambda: bool(hurried))
        assert hurried == [True]


async def test_what_the_log_had_at_the_start_is_not_in_memory() -> None:
    async with kept(known_keys=300) as (bucket, _, keeper):
        assert keeper.statistics().resident_share == 0
        fill(bucket, 0, 100)
        assert keeper.statistics().resident_share == 0.25


async def test_below_the_high_mark_nothing_goes() -> None:
    async with kept() as (bucket, memory, keeper):
        fill(bucket, 0, 340)
        persist_all(bucket)
        bucket.changed()
        await until(lambda: memory.other_bytes > 0)  # it was looked at
        assert memory.low_bytes < memory.used_bytes <= memory.high_bytes
        assert keeper.statistics().evicted_total == 0


async def test_writes_wait_for_room_before_any_is_refused() -> None:
    async with kept() as (bucket, memory, keeper):
        fill(bucket, 0, 600)
        bucket.changed()
        assert memory.is_exhausted
        assert bucket.writes.is_delaying
        assert not bucket.writes.refusals
        assert bucket.open_partitions == [None] * 4
        woken: list[int] = []
        for n in range(WAKE_MAX + 1):
            bucket.writes.when_room(lambda n=n: woken.append(n))  # type: ignore[misc]
        persist_all(bucket)
        keeper.on_persisted()
        await until(lambda: bool(woken))
        assert memory.has_room
        assert woken == list(range(WAKE_MAX))  # the others have the next turn
        await until(lambda: len(woken) == WAKE_MAX + 1)
        assert bucket.open_partitions == bucket.partitions
        assert keeper.statistics().delayed_total == 1
        assert keeper.statistics().exhausted_total == 0


async def test_writes_are_refused_while_nothing_may_go_and_taken_again_by_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_keeper, "DELAY_S_MAX", 0.0)
    async with kept() as (bucket, memory, keeper):
        fill(bucket, 0, 600)
        bucket.changed()
        await until(lambda: bucket.writes.refusals == {MEMORY})
        assert memory.is_exhausted
        assert not bucket.writes.is_delaying
        assert bucket.open_partitions == [None] * 4
        await until(lambda: keeper._is_at_a_loss)
        assert len(bucket.partition_for(b"key7").table) > 0
        persist_all(bucket)
        keeper.on_persisted()
        await until(lambda: not bucket.writes.refusals)
        assert bucket.open_partitions == bucket.partitions
        assert not memory.is_high
        assert keeper.statistics().exhausted_total == 1


async def test_memory_that_readers_and_the_map_hold_counts() -> None:
    pending = 0
    async with kept(pending_bytes=lambda: pending) as (bucket, memory, _):
        fill(bucket, 0, 10)
        bucket.changed()
        await until(lambda: memory.other_bytes > 0)
        slots = memory.other_bytes
        assert slots == sum(p.queue.bytes_beside for p in bucket.partitions)
        pending = 200_000
        bucket.changed()
        await until(lambda: bucket.writes.is_delaying)
        assert memory.other_bytes >= 200_000
        pending = 0
        await until(lambda: not bucket.writes.is_delaying)
        assert not bucket.writes.refusals


async def test_reading_back_above_the_high_mark_evicts() -> None:
    async with kept() as (bucket, memory, keeper):
        fill(bucket, 0, 900)
        persist_all(bucket)
        bucket.changed()
        await until(lambda: memory.used_bytes <= memory.low_bytes)
        await until(lambda: not keeper._is_evicting)
        for n in range(900):
            key = b"key%d" % n
            assert bucket.partition_for(key).newest(key) is not None
        assert memory.is_high
        await until(lambda: memory.used_bytes <= memory.low_bytes)
        assert sum(p.residents.read_back_total for p in bucket.partitions) > 400


async def test_slow_readers_are_sent_to_the_log_when_the_quota_is_exhausted() -> None:
    class Slow:
        sent = memory_after = 0

    async with kept() as (bucket, memory, _):
        for partition in bucket.partitions:
            partition.add_reader(Slow())
        fill(bucket, 0, 600)
        persist_all(bucket)
        assert all(partition.queue.floor == 0 for partition in bucket.partitions)
        bucket.changed()
        await until(lambda: not memory.is_high)
        assert any(partition.queue.floor > 0 for partition in bucket.partitions)


async def test_others_run_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_keeper, "Pace", HastyPace)
    async with kept(8_000_000) as (bucket, memory, _):
        fill(bucket, 0, 18_000)
        persist_all(bucket)
        assert memory.is_high
        bucket.changed()
        turns = 0
        async with asyncio.timeout(60):
            while memory.used_bytes > memory.low_bytes:
                turns += 1
                await asyncio.sleep(0)
        assert turns > 3


class HastyPace(memory_keeper.Pace):
    """Every step is over at once."""

    @property
    def is_over(self) -> bool:
        return True

    async def breathe(self, rest_factor: float = 1) -> None:
        await asyncio.sleep(0)


async def test_after_stop_nothing_is_evicted() -> None:
    async with kept() as (bucket, memory, keeper):
        fill(bucket, 0, 420)
        persist_all(bucket)
        await keeper.stop()
        bucket.changed()
        keeper.look()
        await asyncio.sleep(0)
        assert memory.is_high
        assert keeper.statistics().evicted_total == 0
