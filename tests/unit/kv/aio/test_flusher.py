"""A full disk, and where commits are appended; their errors are tested with the engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from zlib import crc32

import pytest
import pytest_asyncio

from millstream.errors import UnavailableError
from millstream.kv.aio import flusher as module
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.aio.flusher import (
    DISK_FULL,
    DISK_FULL_SECONDS_MAX,
    QUICK_APPEND_BYTES_MAX,
    QUICK_APPEND_S_MAX,
    SLOW_APPEND_PAUSE,
    SLOW_APPEND_PAUSE_MAX,
)
from millstream.storage.core.store import EncodedCommit

NOW = 1_700_000_000_000_000_000


class FullDisk:
    """Appends fail while it is full; seconds pass when somebody waits for one."""

    def __init__(self, engine: BucketEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = engine
        self.is_full = True
        self.seconds: list[int] = []
        self.free_at = 10**9
        append, pause = engine.store.append, asyncio.sleep

        def append_if_there_is_space(commit: EncodedCommit) -> None:
            if self.is_full:
                raise UnavailableError("no space", code="disk_full")
            append(commit)

        async def sleep(seconds: float) -> None:
            if seconds == 1:
                self.seconds.append(len(engine.bucket.writes.refusals))
                self.is_full = len(self.seconds) < self.free_at
            await pause(0)

        monkeypatch.setattr(engine.store, "append", append_if_there_is_space)
        monkeypatch.setattr(module.asyncio, "sleep", sleep)


@pytest_asyncio.fixture
async def engine(tmp_path: Path) -> AsyncIterator[BucketEngine]:
    failures: list[Exception] = []
    made = await BucketEngine.open(
        tmp_path, name="b", uuid="00", partition_count=4, flush_interval_ms=1,
        on_persisted=lambda: None, on_fatal=failures.append, on_corrupt=failures.append,
    )  # fmt: skip
    yield made
    await made.stop()
    assert not failures


async def test_while_the_disk_is_full_writes_are_refused_and_what_was_accepted_is_kept(
    engine: BucketEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, bucket = FullDisk(engine, monkeypatch), engine.bucket
    disk.free_at = 3 * DISK_FULL_SECONDS_MAX
    bucket.partitions[0].put(b"k", b"1", 0, 0, 0, 0, NOW)
    await engine.until_persisted(0, 1)
    assert disk.seconds == [1] * disk.free_at, "writes were refused all the time"
    assert not bucket.writes.refusals
    assert bucket.partitions[0].persisted_seqno == 1
    assert engine.flusher.statistics().disk_full_total == disk.free_at


async def test_durable_writes_are_told_after_some_seconds_that_nobody_knows(
    engine: BucketEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, partition = FullDisk(engine, monkeypatch), engine.bucket.partitions[0]
    partition.put(b"k", b"1", 0, 0, 0, 0, NOW)
    doubts: list[tuple[int, int]] = []
    monkeypatch.setattr(
        engine.flusher, "_on_persisted",
        lambda: doubts.append((len(disk.seconds), partition.doubtful_seqno)),
    )  # fmt: skip
    disk.free_at = DISK_FULL_SECONDS_MAX + 5
    await engine.until_persisted(0, 1)
    assert doubts[0] == (DISK_FULL_SECONDS_MAX, 1)
    assert len(doubts) == 2, "and told again once it is durable after all"


async def test_a_short_lack_of_space_leaves_no_doubt(
    engine: BucketEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, partition = FullDisk(engine, monkeypatch), engine.bucket.partitions[0]
    disk.free_at = 2
    partition.put(b"k", b"1", 0, 0, 0, 0, NOW)
    await engine.until_persisted(0, 1)
    assert partition.doubtful_seqno == 0
    assert DISK_FULL not in engine.bucket.writes.refusals


class Disk:
    """Where commits are appended, and what that takes on a clock of its own."""

    def __init__(self, engine: BucketEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = engine
        self.takes_s = 0.0
        self.now_s = 1000.0
        self.places: list[str] = []
        append = engine.store.append

        def append_timed(commit: EncodedCommit) -> None:
            is_in_loop = threading.current_thread() is threading.main_thread()
            self.places.append("loop" if is_in_loop else "thread")
            self.now_s += self.takes_s
            append(commit)

        monkeypatch.setattr(engine.store, "append", append_timed)
        monkeypatch.setattr(module, "perf_counter", lambda: self.now_s)

    async def write(self, *, bytes_count: int = 1) -> str:
        """Write something that somebody waits for; return where it was appended."""
        partition = self.engine.bucket.partitions[0]
        partition.put(b"k", b"v" * bytes_count, 0, 0, 0, 0, NOW)
        await self.engine.until_persisted(0, partition.high_seqno)
        return self.places.pop()


async def test_what_somebody_waits_for_is_appended_in_the_loop_while_the_disk_is_quick(
    engine: BucketEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(engine, monkeypatch)
    disk.takes_s = QUICK_APPEND_S_MAX / 2
    assert [await disk.write() for _ in range(3)] == ["loop"] * 3
    assert await disk.write(bytes_count=QUICK_APPEND_BYTES_MAX) == "thread", "it is large"
    assert await disk.write() == "thread", "the segment is full, and sealed"
    assert await disk.write() == "loop"


async def test_after_a_slow_append_the_loop_is_left_alone_for_a_while(
    engine: BucketEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(engine, monkeypatch)
    disk.takes_s = 1.0
    pause = SLOW_APPEND_PAUSE
    for _ in range(10):
        assert await disk.write() == "loop"
        disk.now_s += pause - 1.5
        assert await disk.write() == "thread"
        assert pause <= SLOW_APPEND_PAUSE_MAX
        disk.now_s += 1
        pause = min(2 * pause, SLOW_APPEND_PAUSE_MAX)
    disk.takes_s = 0.0
    assert [await disk.write() for _ in range(3)] == ["loop"] * 3
    disk.takes_s = 1.0
    assert await disk.write() == "loop"
    disk.now_s += SLOW_APPEND_PAUSE + 0.1
    assert await disk.write() == "loop", "as after the first slow one"


async def test_writers_that_were_told_are_in_the_next_commit_with_those_who_waited(
    engine: BucketEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(engine, monkeypatch)
    disk.takes_s = 4 * QUICK_APPEND_S_MAX
    await disk.write()
    disk.takes_s = 0.0  # the clock stands: the thread makes all that follow
    before = engine.flusher.statistics()
    started = asyncio.Event()
    append = engine.store.append

    def append_first(commit: EncodedCommit) -> None:
        loop.call_soon_threadsafe(started.set)
        append(commit)

    async def write(key: bytes, times: int) -> None:
        partition = engine.bucket.partitions[0]
        for _ in range(times):
            partition.put(key, b"v", 0, 0, 0, 0, NOW)
            await engine.until_persisted(0, partition.high_seqno)

    async def write_later(key: bytes, times: int) -> None:
        await started.wait()
        await write(key, times)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(engine.store, "append", append_first)
    await asyncio.gather(write(b"a", 21), write_later(b"b", 20))
    commits = engine.flusher.statistics().commits_total - before.commits_total
    assert commits <= 24, "one beside the other: not two halves in turns, 41 commits"
    assert set(disk.places) == {"thread"}


async def test_what_nobody_waits_for_does_not_keep_the_loop(
    engine: BucketEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(engine, monkeypatch)
    told = asyncio.Event()
    monkeypatch.setattr(engine.flusher, "_on_persisted", told.set)
    engine.bucket.partitions[0].put(b"k", b"v", 0, 0, 0, 0, NOW)
    engine.bucket.changed()
    await told.wait()
    assert disk.places == ["thread"]


async def test_what_there_was_is_in_the_log_once_all_is_flushed(engine: BucketEngine) -> None:
    partitions = engine.bucket.partitions
    for partition in partitions:
        partition.put(b"k", b"1", 0, 0, 0, 0, NOW)
        partition.put(b"k", b"2", 0, 0, 0, 0, NOW)
    await engine.flusher.flush_all()
    assert [p.persisted_seqno for p in partitions] == [p.high_seqno for p in partitions]
    commits = engine.flusher.commit_total
    await engine.flusher.flush_all()
    assert engine.flusher.commit_total == commits


async def test_once_by_id_rests_its_pages_have_a_checksum_for_a_start_after_a_kill(
    engine: BucketEngine, tmp_path: Path
) -> None:
    engine.bucket.partitions[0].put(b"k", b"1", 0, 0, 0, 0, NOW)
    await engine.until_persisted(0, 1)
    await engine.flusher.bring_by_id_up()
    await until_sealed(tmp_path)


async def test_a_by_id_map_that_lacks_nothing_has_a_checksum_from_the_start(
    engine: BucketEngine, tmp_path: Path
) -> None:
    assert not engine.store.count_pending_by_id()
    await until_sealed(tmp_path)


async def test_pages_that_changed_while_their_checksum_was_made_get_another_one(
    engine: BucketEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await until_sealed(tmp_path)
    made, may_go_on, checksum = threading.Event(), threading.Event(), engine.store.checksum_by_id

    def slow() -> tuple[int, str]:
        found = checksum()
        made.set()
        may_go_on.wait(10)
        return found

    monkeypatch.setattr(engine.store, "checksum_by_id", slow)
    engine.flusher.seal_by_id()
    await asyncio.to_thread(made.wait)
    engine.bucket.partitions[0].put(b"k", b"1", 0, 0, 0, 0, NOW)
    await engine.until_persisted(0, 1)
    await engine.flusher.bring_by_id_up()
    assert len((tmp_path / "byid" / "origin").read_text().split()) == 2
    may_go_on.set()
    await until_sealed(tmp_path)


async def until_sealed(path: Path) -> None:
    origin = path / "byid" / "origin"
    while len(origin.read_text().split()) < 3:  # noqa: ASYNC110 - it is another thread's
        await asyncio.sleep(0)
    data = (origin.parent / "data.mdb").read_bytes()
    assert origin.read_text().split()[2] == f"{crc32(data):08x}"
