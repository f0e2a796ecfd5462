from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.errors import CorruptionError, UnavailableError
from millstream.kv.aio.engine import BucketEngine, new_failover_entry
from millstream.kv.aio.flusher import DISK_FULL_STOP_SECONDS_MAX
from millstream.kv.aio.reading_back import with_documents
from millstream.kv.core.partition.partition import value_of
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.storage.core.by_id import ByIdBatch
from millstream.storage.core.store import EncodedCommit
from millstream.wire.frames import seqno_of

NOW = 1_700_000_000_000_000_000


async def opened(
    path: Path,
    failures: list[Exception] | None = None,
    damages: list[CorruptionError] | None = None,
    on_persisted: Callable[[], None] = lambda: None,
) -> BucketEngine:
    return await BucketEngine.open(
        path,
        name="b",
        uuid="00",
        partition_count=4,
        flush_interval_ms=1,
        on_persisted=on_persisted,
        on_fatal=(failures if failures is not None else []).append,
        on_corrupt=(damages if damages is not None else []).append,
    )


def test_branches_grow_and_stay_exact_in_json() -> None:
    entry = new_failover_entry(5, 0)
    assert 0 < entry.uuid < 1 << 48
    assert entry.branch < 1 << 53
    assert new_failover_entry(5, 1 << 52 | 1 << 51).branch >= (1 << 52 | 1 << 51) + 1


async def test_a_clean_stop_keeps_everything_and_the_history(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    partition = engine.bucket.partitions[1]
    for number in range(100):
        partition.put(b"k%d" % (number % 10), b"%d" % number, 0, 0, 0, 0, NOW)
    await engine.until_persisted(1, 100)
    partition.delete(b"k3", 0, NOW)
    log = partition.failover_log
    await engine.stop()
    engine = await opened(tmp_path)
    partition = engine.bucket.partitions[1]
    assert (partition.high_seqno, partition.failover_log) == (101, log)
    assert value_of(partition.live(b"k9", NOW) or b"") == b"99"
    assert partition.live(b"k3", NOW) is None
    assert partition.last_cas > NOW, "CAS goes on although the clock may have gone back"
    frames = [frame for chunk, _ in partition.backfill(0, 101) for frame in chunk]
    assert [seqno_of(frame) for frame in frames] == [91, 92, 93, 95, 96, 97, 98, 99, 100, 101]
    await engine.stop()


async def test_what_copies_acknowledge_is_told_once_a_turn(tmp_path: Path) -> None:
    told: list[str] = []
    engine = await opened(tmp_path, on_persisted=lambda: told.append("answers"))
    bucket = engine.bucket
    bucket.subscribe_durable(lambda: told.append("durable"))
    nodes = tuple(NodeAddress(name, "h", port, port) for port, name in enumerate("ab", 1))
    bucket.set_map(BucketMap(1, nodes, (("a", "b"),) * 4), "a")
    await asyncio.sleep(0)
    told.clear()
    for partition in bucket.partitions:
        partition.put(b"k", b"v", 0, 0, 0, 0, NOW)
        bucket.on_joined("b", partition.partition_id, 1)
        bucket.on_acknowledged("b", partition.partition_id, 1, 1, 0)
    assert told == []
    await asyncio.sleep(0)
    assert told == ["durable", "answers"]
    await engine.stop()


async def test_a_copy_that_comes_and_acknowledges_during_a_pause_is_noticed(
    tmp_path: Path,
) -> None:
    engine = await opened(tmp_path)
    bucket, told = engine.bucket, asyncio.Event()
    nodes = tuple(NodeAddress(name, "h", port, port) for port, name in enumerate("ab", 1))
    bucket.set_map(BucketMap(1, nodes, (("a", "b"),) * 4), "a")
    bucket.partitions[1].put(b"k", b"v", 0, 0, 0, 0, NOW)
    await engine.until_persisted(1, 1)
    waiting = asyncio.ensure_future(engine.until_lasting(1, 1))
    await asyncio.sleep(0)
    bucket.subscribe_durable(told.set)
    bucket.on_joined("b", 1, 1)
    bucket.on_acknowledged("b", 1, 1, 1, 1)
    await told.wait()
    assert not waiting.done(), "it is in its pause"
    await asyncio.wait_for(waiting, 60)
    await engine.stop()


async def test_what_is_committed_is_on_the_disks_of_a_majority_and_so_in_feeds(
    tmp_path: Path,
) -> None:
    engine = await opened(tmp_path)
    bucket, partition = engine.bucket, engine.bucket.partitions[1]
    nodes = tuple(NodeAddress(name, "h", port, port) for port, name in enumerate("ab", 1))
    bucket.set_map(BucketMap(1, nodes, (("a", "b"),) * 4), "a")
    partition.put(b"k", b"v", 0, 0, 0, 0, NOW)
    await engine.until_persisted(1, 1)
    bucket.on_joined("b", 1, 1)
    bucket.on_acknowledged("b", 1, 1, 1, 0)
    assert partition.majority_seqno == 1
    await engine.until_lasting(1, 1)
    assert partition.durable_mark() == 0, "no feed shows it: the copy has it in memory only"
    waiting = asyncio.ensure_future(engine.until_shown(1, 1))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    assert partition.awaited_seqno == 1
    bucket.on_acknowledged("b", 1, 1, 1, 1)
    await asyncio.wait_for(waiting, 60)
    assert partition.durable_mark() == 1
    await engine.stop()


async def test_a_state_that_was_flushed_is_read_after_more_changes(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    told: list[int] = []
    engine.bucket.subscribe_durable(lambda: told.append(1))
    partition = engine.bucket.partitions[1]
    for key in (b"a", b"b", b"a"):
        partition.put(key, b"old", 0, 0, 0, 0, NOW)
    await engine.until_persisted(1, 3)
    assert told
    assert partition.durable_mark() == 3
    for key in (b"a", b"b", b"c"):
        partition.put(key, b"new", 0, 0, 0, 0, NOW)
    assert partition.open_hold(2) is None
    opened_hold = partition.open_hold(3, start=0)
    assert opened_hold is not None
    for _ in range(2):
        chunks = partition.backfill(0, 3, is_logged=opened_hold.is_logged)
        frames = [frame for chunk, _ in chunks for frame in chunk]
        assert [(seqno_of(frame), value_of(frame)) for frame in frames] == [
            (2, b"old"), (3, b"old"),
        ]  # fmt: skip
        await engine.until_persisted(1, 6)
    await engine.stop()


async def test_a_crash_keeps_what_was_persisted_and_begins_a_new_history(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    partition = engine.bucket.partitions[0]
    partition.put(b"k", b"1", 0, 0, 0, 0, NOW)
    await engine.until_persisted(0, 1)
    partition.put(b"k", b"2", 0, 0, 0, 0, NOW)
    engine.store.close()  # as a kill would leave it: seqno 2 was never written
    again = await opened(tmp_path)
    later = again.bucket.partitions[0]
    assert later.high_seqno == 1
    assert value_of(later.live(b"k", NOW) or b"") == b"1"
    newest, oldest = later.failover_log[0], partition.failover_log[0]
    assert newest.seqno == 1
    assert newest.branch > oldest.branch
    await again.stop()


async def test_purges_are_counted_over_restarts(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    assert engine.purge_epoch == 0
    await asyncio.gather(engine.count_purge(), engine.count_purges(1))
    assert engine.purge_epoch == 1
    await engine.count_purges(2)
    await engine.count_purges(1)
    assert engine.purge_epoch == 2
    engine.store.close()
    engine.local.close()  # as a kill would leave it
    again = await opened(tmp_path)
    assert again.purge_epoch == 2
    await again.stop()


async def test_what_only_memory_had_is_not_named_again_after_a_kill(tmp_path: Path) -> None:
    """A clean stop counts until the next start: readers may have seen what no flush took."""
    engine = await opened(tmp_path)
    engine.bucket.partitions[0].put(b"k", b"1", 0, 0, 0, 0, NOW)
    await engine.stop()
    engine = await opened(tmp_path)
    assert engine.store.was_clean_stop
    partition = engine.bucket.partitions[0]
    partition.put(b"k", b"2", 0, 0, 0, 0, NOW)
    engine.store.close()  # as a kill would leave it: seqno 2 was never written
    again = await opened(tmp_path)
    assert not again.store.was_clean_stop
    newest = again.bucket.partitions[0].failover_log[0]
    assert newest not in partition.failover_log
    assert newest.seqno == 1
    await again.stop()


async def test_an_error_of_the_disk_is_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Exception] = []
    engine = await opened(tmp_path, failures)

    def broken(_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(engine.store, "append", broken)
    engine.bucket.partitions[0].put(b"k", b"1", 0, 0, 0, 0, NOW)
    engine.bucket.changed()
    waiting = asyncio.get_running_loop().create_task(engine.until_persisted(0, 1))
    with pytest.raises(OSError, match="no space"):
        await waiting
    assert len(failures) == 1
    assert engine.bucket.partitions[0].persisted_seqno == 0
    with pytest.raises(UnavailableError, match="disk failed"):
        await engine.until_persisted(0, 1)
    await engine.stop()
    again = await opened(tmp_path)
    assert not again.store.was_clean_stop, "no receipt after an error of the disk"
    await again.stop()


async def test_an_error_of_the_disk_during_the_stop_is_told_and_leaves_no_receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Exception] = []
    engine = await opened(tmp_path, failures)
    engine.bucket.partitions[0].put(b"k", b"1", 0, 0, 0, 0, NOW)

    def broken(_: object) -> None:
        raise UnavailableError("no such luck", code="disk_failed")

    monkeypatch.setattr(engine.store, "append", broken)
    await engine.stop()
    assert len(failures) == 1
    again = await opened(tmp_path)
    assert not again.store.was_clean_stop
    await again.stop()


async def test_one_commit_at_a_time_also_during_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await opened(tmp_path)
    append, flusher = engine.store.append, engine.flusher
    is_written, may_end = asyncio.Event(), threading.Event()
    others = []

    def watched(commit: EncodedCommit) -> None:
        if not is_written.is_set():
            loop.call_soon_threadsafe(is_written.set)
            may_end.wait()
        else:
            others.append((flusher._timer, flusher._task))
        append(commit)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(engine.store, "append", watched)
    for number in range(2):
        engine.bucket.partitions[0].put(b"k%d" % number, b"", 0, 0, 0, 0, NOW)
    engine.bucket.changed()
    await is_written.wait()
    for number in range(2):
        engine.bucket.partitions[1].put(b"k%d" % number, b"", 0, 0, 0, 0, NOW)
    engine.bucket.changed()
    stopping = loop.create_task(engine.stop())
    await asyncio.sleep(0)
    may_end.set()
    await stopping
    assert others == [(None, None)], "a commit of its own waits beside that of the stop"


async def test_a_damaged_record_met_by_a_reader_is_told_of(tmp_path: Path) -> None:
    damages: list[CorruptionError] = []
    engine = await opened(tmp_path)
    engine.bucket.partitions[0].put(b"k", b"value" * 100, 0, 0, 0, 0, NOW)
    await engine.until_persisted(0, 1)
    await engine.stop()
    engine = await opened(tmp_path, damages=damages)
    segment = next((tmp_path / "log").glob("*.seg"))
    segment.write_bytes(segment.read_bytes().replace(b"valuevalue", b"valueVALUE"))
    partition = engine.bucket.partitions[0]
    with pytest.raises(CorruptionError, match=segment.name):
        await with_documents(lambda: partition.live(b"k", NOW))
    with pytest.raises(CorruptionError, match=segment.name):
        list(partition.backfill(0, 1))
    await asyncio.sleep(0)
    assert len(damages) == 2
    engine.store.close()


async def test_a_bucket_without_expiries_says_so_at_a_clean_stop(tmp_path: Path) -> None:
    engine, mark = await opened(tmp_path), tmp_path / "no-expiries"
    engine.bucket.partitions[0].put(b"k", b"1", 0, 0, 0, 0, NOW)
    await engine.stop()
    assert mark.exists()
    mark.unlink()
    engine = await opened(tmp_path)
    assert not engine.pager.knows_of_none, "nothing is known of what is in partition 0"
    await engine.stop()
    assert not mark.exists()
    mark.touch()
    engine = await opened(tmp_path)
    assert engine.pager.knows_of_none
    engine.bucket.partitions[0].put(b"k", b"1", 0, 2_000_000_000, 0, 0, NOW)
    assert not mark.exists()
    await engine.stop()
    assert not mark.exists()


async def test_by_id_waits_for_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[Exception] = []
    engine = await opened(tmp_path, failures)
    apply, calls = engine.store.by_id_steps, []
    pause = asyncio.sleep

    def steps(batch: ByIdBatch) -> Iterator[None]:
        calls.append(batch)
        if len(calls) == 1:
            raise UnavailableError("no space", code="disk_full")
        return apply(batch)

    monkeypatch.setattr(engine.store, "by_id_steps", steps)
    monkeypatch.setattr(asyncio, "sleep", lambda _: pause(0))
    engine.bucket.partitions[0].put(b"k", b"1", 0, 0, 0, 0, NOW)
    await engine.until_persisted(0, 1)
    await engine.flusher.bring_by_id_up()
    assert len(calls) == 2
    assert not failures
    assert engine.store.count_pending_by_id() == 0
    await engine.stop()


async def test_a_stop_does_not_wait_long_for_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Exception] = []
    engine = await opened(tmp_path, failures)
    pause, attempts = asyncio.sleep, []

    def full(commit: EncodedCommit) -> None:
        attempts.append(commit)
        raise UnavailableError("no space", code="disk_full")

    monkeypatch.setattr(engine.store, "append", full)
    monkeypatch.setattr(asyncio, "sleep", lambda _: pause(0))
    engine.bucket.partitions[0].put(b"k", b"1", 0, 0, 0, 0, NOW)
    await engine.stop()
    assert len(attempts) == DISK_FULL_STOP_SECONDS_MAX + 1
    assert len(failures) == 1
