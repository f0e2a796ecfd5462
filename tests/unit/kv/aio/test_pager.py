from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import CorruptionError
from millstream.kv.aio import pager as pager_module
from millstream.kv.aio.pager import NoExpiries, Pager
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.partition.partition import Partition
from millstream.model.cluster_maps import DataRecord, MapKey
from millstream.model.partitions import PartitionState
from millstream.model.serving_rights import Isolation
from millstream.wire.frames import change_of
from millstream.wire.mcbp import Opcode
from support.kv.log_double import NOW, SECOND, LogDouble, items_of, new_bucket, new_partition

NOW_S = NOW // SECOND
MakePager = Callable[..., Pager]


class Clock:
    def __init__(self) -> None:
        self.now_ns = NOW

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def make_pager(tmp_path: Path, clock: Clock) -> AsyncIterator[MakePager]:
    made: list[Pager] = []

    def make(bucket: Bucket, **options: object) -> Pager:
        defaults = {"mark": NoExpiries(tmp_path), "on_fatal": pytest.fail, "interval_s": 0.001}
        made.append(Pager(bucket, now_ns=clock, **{**defaults, **options}))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for pager in made:
        await pager.stop()


async def told(bucket: Bucket, is_true: Callable[[], bool]) -> None:
    """Return once something is true, looking whenever the bucket changes."""
    changed = asyncio.Event()
    bucket.subscribe(changed.set)
    while not is_true():
        await asyncio.wait_for(changed.wait(), 60)
        changed.clear()


def put(partition: Partition, key: bytes, expiry: int) -> None:
    assert isinstance(partition.put(key, b"v", 0, expiry, 0, 0, NOW), bytes)


def opcode(partition: Partition, key: bytes) -> int:
    return change_of(partition.newest(key) or b"").opcode


def stored(keys: list[bytes], expiry: int) -> LogDouble:
    """A log with documents of partition 0 that no table knows."""
    before, log = new_partition(), LogDouble()
    for key in keys:
        put(before, key, expiry)
    log.items += items_of(before.freeze())
    return log


def reopened(log: LogDouble) -> Bucket:
    bucket = new_bucket(1)
    partition = bucket.partitions[0] = new_partition(log=log)
    high = len(log.items)
    partition.queue.restart(high)
    partition.persisted_seqno = high
    return bucket


async def test_documents_expire_unasked(make_pager: MakePager, clock: Clock) -> None:
    bucket = new_bucket()
    make_pager(bucket)
    for number in range(300):
        put(bucket.partitions[number % 4], b"%d" % number, NOW_S + 5)
    put(bucket.partitions[0], b"stays", NOW_S + 50)
    clock.now_ns += 5 * SECOND
    await told(bucket, lambda: sum(p.expired_total for p in bucket.partitions) == 300)
    assert opcode(bucket.partitions[3], b"3") == Opcode.DCP_EXPIRATION
    assert opcode(bucket.partitions[0], b"stays") == Opcode.DCP_MUTATION


async def test_documents_that_nobody_loaded_expire_too(
    make_pager: MakePager, clock: Clock
) -> None:
    bucket = reopened(stored([b"%d" % number for number in range(100)], NOW_S + 5))
    pager = make_pager(bucket)
    clock.now_ns += 5 * SECOND
    partition = bucket.partitions[0]
    await told(bucket, lambda: partition.expired_total == 100)
    figures = pager.statistics()
    assert (figures.scans_total, figures.scanned_changes_total) == (1, 100)
    assert (figures.expired_total, figures.index_keys, figures.unscanned_partitions) == (100, 0, 0)


async def test_more_than_the_index_holds_expire_scan_by_scan(
    make_pager: MakePager, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pager_module, "EXPIRIES_PER_PARTITION_MAX", 16)
    bucket = reopened(stored([b"%d" % number for number in range(100)], NOW_S + 5))
    pager = make_pager(bucket)
    clock.now_ns += 5 * SECOND
    await told(bucket, lambda: bucket.partitions[0].expired_total == 100)
    assert 100 / 16 < pager.statistics().scans_total < 100 / 16 * 3


async def test_a_clock_set_back_makes_it_wait(make_pager: MakePager, clock: Clock) -> None:
    bucket = new_bucket()
    make_pager(bucket)
    partition = bucket.partitions[0]
    put(partition, b"gone", NOW_S + 5)
    put(partition, b"waits", NOW_S + 6)
    clock.now_ns += 5 * SECOND
    await told(bucket, lambda: partition.expired_total == 1)
    clock.now_ns -= 3600 * SECOND
    put(partition, b"short", NOW_S - 3595 + 5)
    clock.now_ns += 10 * SECOND
    await told(bucket, lambda: partition.expired_total == 2)
    assert opcode(partition, b"short") == Opcode.DCP_EXPIRATION
    assert opcode(partition, b"waits") == Opcode.DCP_MUTATION, "an hour later than meant"
    assert opcode(partition, b"gone") == Opcode.DCP_EXPIRATION, "what is gone stays so"
    clock.now_ns += 3600 * SECOND
    await told(bucket, lambda: partition.expired_total == 3)


async def test_only_active_copies_expire_documents(make_pager: MakePager, clock: Clock) -> None:
    bucket = new_bucket()
    make_pager(bucket)
    active, replica = bucket.partitions[:2]
    replica.state = PartitionState.REPLICA
    put(active, b"a", NOW_S + 5)
    put(replica, b"b", NOW_S + 5)
    clock.now_ns += 5 * SECOND
    await told(bucket, lambda: active.expired_total == 1)
    assert opcode(replica, b"b") == Opcode.DCP_MUTATION
    replica.state = PartitionState.ACTIVE
    await told(bucket, lambda: replica.expired_total == 1)


@pytest.mark.parametrize("isolation", ["stop", "read_only"])
async def test_a_copy_that_may_not_serve_expires_its_documents_later(
    make_pager: MakePager, clock: Clock, isolation: Isolation
) -> None:
    bucket = new_bucket()
    alone, shared = (DataRecord(MapKey(2, 1), "a", 1, (row,)) for row in (("a",), ("a", "b")))
    bucket.set_rules(500, isolation)
    bucket.manage("a", lambda p: shared if p else alone)
    make_pager(bucket)
    free, isolated = bucket.partitions[:2]
    for partition in (isolated, free):
        put(partition, b"k", NOW_S + 5)
    clock.now_ns += 5 * SECOND
    await told(bucket, lambda: free.expired_total == 1)
    put(free, b"again", NOW_S + 5)
    await told(bucket, lambda: free.expired_total == 2)
    assert isolated.expired_total == 0
    bucket.set_right(10**9, is_admitted=True)
    await told(bucket, lambda: isolated.expired_total == 1)


async def test_others_run_between_two_steps(
    make_pager: MakePager, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.runtime.pace.STEP_S", 0.0)
    bucket, seen = new_bucket(1), list[int]()
    partition = bucket.partitions[0]
    make_pager(bucket)
    for number in range(20):
        put(partition, b"%d" % number, NOW_S + 5)
    clock.now_ns += 5 * SECOND
    bucket.subscribe(lambda: seen.append(partition.expired_total))
    await told(bucket, lambda: partition.expired_total == 20)
    assert seen == list(range(1, 21))


async def test_damage_ends_the_search_but_not_the_bucket(
    make_pager: MakePager, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = reopened(stored([b"k"], NOW_S + 5))
    called = asyncio.Event()
    loop = asyncio.get_running_loop()

    def backfill(*_: object, **__: object) -> Iterator[tuple[list[bytes], int]]:
        yield [], 0
        loop.call_soon_threadsafe(called.set)
        raise CorruptionError("segment 1 at 4096 is damaged", code="bad_record")

    bucket.partitions[0]._log.backfill = backfill  # type: ignore[method-assign]
    pager = make_pager(bucket)
    await asyncio.wait_for(called.wait(), 60)
    await asyncio.wait_for(asyncio.shield(pager._pager), 60)
    assert "segment 1 at 4096" in caplog.text
    assert bucket.partitions[0].expiries.needs_scan(NOW_S), "what the scan did not see is missing"


async def test_a_scan_begins_anew_where_the_partition_became_another(
    make_pager: MakePager, clock: Clock
) -> None:
    log = stored([b"%d" % number for number in range(50)], NOW_S + 5)
    bucket, read, asked = reopened(log), log.backfill, list[int]()
    partition = bucket.partitions[0]

    def backfill(
        partition_id: int, after: int, *rest: Any, **_: Any
    ) -> Iterator[tuple[list[bytes], int]]:
        asked.append(after)
        if len(asked) > 1:
            yield from read(partition_id, after, *rest)
        else:
            yield [], 20
            partition.epoch += 1  # a rollback, say

    log.backfill = backfill  # type: ignore[method-assign]
    pager = make_pager(bucket)
    clock.now_ns += 5 * SECOND
    await told(bucket, lambda: partition.expired_total == 50)
    assert asked == [0, 0]
    assert pager.statistics().scans_total == 1


async def test_a_stop_waits_for_the_read_under_way(make_pager: MakePager) -> None:
    bucket = reopened(stored([b"k"], NOW_S + 5))
    reading, go_on = asyncio.Event(), threading.Event()
    loop, read = asyncio.get_running_loop(), list[str]()

    def backfill(*_: object, **__: object) -> Iterator[tuple[list[bytes], int]]:
        loop.call_soon_threadsafe(reading.set)
        go_on.wait(60)
        read.append("done")
        yield [], 1

    bucket.partitions[0]._log.backfill = backfill  # type: ignore[method-assign]
    pager = make_pager(bucket)
    await asyncio.wait_for(reading.wait(), 60)
    stopping = asyncio.ensure_future(pager.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    go_on.set()
    await asyncio.wait_for(stopping, 60)
    assert read == ["done"]


async def test_everything_is_wiped_now_or_later(make_pager: MakePager, clock: Clock) -> None:
    bucket = new_bucket()
    pager = make_pager(bucket)
    partition = bucket.partition_for(b"k")
    put(partition, b"k", 0)
    later, done = list[str](), asyncio.Event()
    pager.wipe(NOW + 3600 * SECOND, lambda: later.append("accepted"))
    assert later == ["accepted"]
    assert pager._wipe_timer is not None
    pager.wipe(NOW, done.set)
    assert pager._wipe_timer is None, "the newest command counts"
    await asyncio.wait_for(done.wait(), 60)
    assert partition.live(b"k", NOW) is None
    put(partition, b"k", 0)
    pager.wipe(NOW + 1_000_000, lambda: None)
    assert partition.live(b"k", NOW) is not None
    await told(bucket, lambda: partition.live(b"k", NOW) is None)


async def test_the_mark_goes_before_the_first_expiry(
    make_pager: MakePager, tmp_path: Path
) -> None:
    mark = NoExpiries(tmp_path)
    mark.write()
    bucket = new_bucket()
    pager = make_pager(bucket, mark=NoExpiries(tmp_path))
    assert pager.knows_of_none
    put(bucket.partitions[0], b"for ever", 0)
    assert (tmp_path / "no-expiries").exists()
    put(bucket.partitions[0], b"k", NOW_S + 5)
    assert not (tmp_path / "no-expiries").exists()
    assert not pager.knows_of_none


async def test_a_mark_that_cannot_be_removed_is_fatal(
    make_pager: MakePager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, failures = NoExpiries(tmp_path), list[Exception]()
    mark.write()
    bucket = new_bucket()
    make_pager(bucket, mark=mark, on_fatal=failures.append)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    put(bucket.partitions[0], b"k", NOW_S + 5)
    assert [str(failure) for failure in failures] == ["read-only file system"]
