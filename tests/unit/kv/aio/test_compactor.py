"""The compactor beside a running bucket, on real files."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from millstream.errors import CorruptionError, UnavailableError
from millstream.kv.aio import compactor as module
from millstream.kv.aio import engine as engine_module
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.core.bucket import Bucket as CoreBucket
from millstream.kv.core.partition.partition import value_of
from millstream.kv.core.queue.low_points import HistoryWindow
from millstream.model.position import Position
from millstream.runtime.disk import OsDisk, OsFile
from millstream.upr.core.messages import StreamRequest, encode_stream_request
from millstream.upr.core.producer import Producer
from millstream.wire.frames import seqno_of
from millstream.wire.mcbp import OpenFlag, cut_packets

NOW = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
DAY_NS = 24 * 3600 * SECOND_NS


class Bucket:
    """A running bucket with a clock of its own, whose history is over at once, or as told."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.failures: list[Exception] = []
        self.damages: list[CorruptionError] = []
        self.now_ns = NOW
        self.set_back_ns = 0
        self._patch = monkeypatch
        monkeypatch.setattr(
            engine_module,
            "time",
            SimpleNamespace(
                monotonic_ns=lambda: self.now_ns + self.set_back_ns, time_ns=lambda: self.now_ns
            ),
        )

    async def open(
        self, window: HistoryWindow | None = None, purge_age_s: int = 0
    ) -> BucketEngine:
        window = window or HistoryWindow(0, 0)
        self._patch.setattr(engine_module, "HistoryWindow", lambda: window)
        self.window = window
        self.engine = await BucketEngine.open(
            self.path, name="b", uuid="00", partition_count=4, flush_interval_ms=1,
            on_persisted=lambda: None, on_fatal=self.failures.append,
            on_corrupt=self.damages.append, purge_age_s=purge_age_s,
        )  # fmt: skip
        return self.engine

    async def sampled(self, seconds: float = 60) -> None:
        """Time goes on, and the compactor notes where the bucket stands."""
        self.now_ns += int(seconds * 1_000_000_000)
        self.engine.compactor._wake.set()
        await until(lambda: self.window._samples[-1].now_ns == self.now_ns)

    async def write(self, rounds: int, keys: int = 100, size: int = 1000) -> None:
        """Overwrite the same documents in all partitions, with commits in between."""
        for n in range(rounds):
            for partition in self.engine.bucket.partitions:
                for key in range(keys):
                    partition.put(
                        b"key%d" % key, b"%d." % n + bytes(size), 0, 0, 0, 0, self.now_ns
                    )
            await self.persisted()

    async def persisted(self) -> None:
        for partition in self.engine.bucket.partitions:
            await self.engine.until_persisted(partition.partition_id, partition.high_seqno)

    def log_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.path / "log").glob("*.seg*"))

    def read(self) -> dict[tuple[int, bytes], bytes]:
        """Everything there is, from the log."""
        found = {}
        for p in range(4):
            for key in self.engine.store.keys(p):
                change = self.engine.store.find(p, key)
                if change is not None and change.frame[1] == 0x57:
                    found[p, key] = value_of(change.frame)
        return found


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - nobody tells when it comes true
        await asyncio.sleep(0.001)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    return Bucket(tmp_path, monkeypatch)


async def test_a_small_data_set_written_again_and_again_stays_small(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_BYTES", 256 * 1024)
    window_bytes = 512 * 1024
    engine = await bucket.open(HistoryWindow(3600, window_bytes))
    live, compactor = 4 * 100 * 1100, engine.compactor
    slack = 3 * engine.store.reclaiming.sizes.segment_bytes_min  # the open segment, and one begun
    history = 2 * window_bytes  # as much again may be dead before a pass begins
    for _ in range(40):
        await bucket.write(1)
        await until(lambda: not (compactor._is_passing or compactor._wake.is_set()))
        assert bucket.log_bytes() <= 2 * live + history + slack
    written = engine.store.appended_bytes
    assert written > 15 * 1024 * 1024
    figures = engine.compactor.statistics()
    assert figures.runs_total >= 5
    assert figures.reclaimed_bytes_total > written / 2
    assert figures.live_bytes + figures.dead_bytes <= bucket.log_bytes()
    assert len(bucket.read()) == 400
    assert all(value.startswith(b"0.") for value in bucket.read().values())
    await engine.stop()
    assert bucket.failures == bucket.damages == []
    await bucket.open()
    assert len(bucket.read()) == 400
    await bucket.engine.stop()


async def test_a_pass_that_is_late_takes_longer_steps(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_BYTES", 256 * 1024)
    monkeypatch.setattr(module, "LATE_BYTES", 0)
    steps_s: list[float] = []
    take = module._take_steps

    def noted(steps: Iterator[None], step_s: float) -> bool:
        steps_s.append(step_s)
        return take(steps, step_s)

    monkeypatch.setattr(module, "_take_steps", noted)
    engine = await bucket.open(HistoryWindow(3600, 512 * 1024))
    compactor = engine.compactor
    for _ in range(12):
        await bucket.write(1)
    assert set(steps_s) == {module.STEP_S, module.LATE_STEP_S}
    await until(lambda: not (compactor._is_passing or compactor._wake.is_set()))
    bucket.read()
    await engine.stop()


async def test_a_pass_that_is_asked_for_leaves_nothing_dead(bucket: Bucket) -> None:
    engine = await bucket.open()
    await bucket.write(12)
    before = bucket.log_bytes()
    await engine.compactor.compact()
    assert bucket.log_bytes() < before / 2
    assert engine.compactor.statistics().dead_bytes == 0
    assert engine.compactor.statistics().segments == 2
    for partition in engine.bucket.partitions:
        frames = [
            frame for chunk, _ in partition.backfill(0, partition.high_seqno) for frame in chunk
        ]
        assert len(frames) == 100 or partition.memory_floor == 0
    await engine.stop()
    with pytest.raises(UnavailableError, match="not compacted any more"):
        await engine.compactor.compact()


async def test_history_is_kept_for_the_window_and_for_leases(bucket: Bucket) -> None:
    engine = await bucket.open(HistoryWindow(600, 10**9))
    partition = engine.bucket.partitions[1]
    await bucket.write(4)
    lease = engine.bucket.leases.open([(1, None)], 3600)
    assert lease is not None
    at = lease[2][1].at
    await bucket.write(4)
    await bucket.sampled()
    await engine.compactor.compact()
    assert [state.history_seqno for state in engine.store.partitions] == [0, 0, 0, 0]
    bucket.now_ns += 600 * 1_000_000_000
    await bucket.write(1)
    await engine.compactor.compact()
    points = [state.history_seqno for state in engine.store.partitions]
    assert points == [800, at, 800, 800]
    skip = engine.store.superseded(1, 0, at)
    kept = [c for chunk in engine.store.scan(1, 0, at, skip) for c in chunk]
    assert [value_of(c.frame)[:2] for c in kept] == [b"3."] * 100
    assert partition.is_held(lease[2][1])
    engine.bucket.leases.release(lease[0])
    await engine.compactor.compact()
    assert engine.store.partition(1).history_seqno == 800
    await engine.stop()


async def test_a_lease_that_holds_back_too_much_is_lost(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 3_000_000)
    engine = await bucket.open()
    compactor = engine.compactor
    await bucket.write(1)
    costly = engine.bucket.leases.open([(1, None)], 600)
    cheap = engine.bucket.leases.open([(2, None)], 600)
    assert costly is not None
    assert cheap is not None

    async def write_and_renew(rounds: int) -> None:
        for n in range(rounds):
            for key in range(100):
                value = b"%d." % n + bytes(5000)
                engine.bucket.partitions[1].put(b"key%d" % key, value, 0, 0, 0, 0, NOW)
            await bucket.persisted()
            assert engine.bucket.leases.renew(cheap[0], 600)
        await compactor.compact()

    await write_and_renew(4)
    found = engine.bucket.leases.renew(costly[0], 600)
    assert found is not None
    assert list(found[1]) == [1], "so much it may hold back, renewed or not"
    await write_and_renew(8)
    assert engine.bucket.leases.renew(costly[0], 600) is None
    assert engine.bucket.leases.renew(cheap[0], 600) is not None
    await compactor.compact()
    assert bucket.log_bytes() < 3_000_000
    await engine.stop()


async def test_a_hold_that_came_too_late_is_lost(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await bucket.open()
    await bucket.write(3)
    partition = engine.bucket.partitions[0]
    opened = []
    move = engine.store.set_low_points

    def hold_in_between(points: dict[int, tuple[int, int]]) -> None:
        opened.append(partition.queue.holds.open_logged(100))
        move(points)

    monkeypatch.setattr(engine.store, "set_low_points", hold_in_between)
    await engine.compactor.compact()
    assert engine.store.partition(0).history_seqno == 300
    assert not partition.queue.is_held(opened[0])
    await engine.stop()


async def test_deletions_are_forgotten_by_age(bucket: Bucket) -> None:
    engine = await bucket.open(purge_age_s=3 * 24 * 3600)
    await bucket.write(4)
    partition = engine.bucket.partitions[2]
    for key in range(50):
        partition.delete(b"key%d" % key, 0, bucket.now_ns)
    await bucket.persisted()
    bucket.now_ns += DAY_NS
    for key in range(50, 60):
        partition.delete(b"key%d" % key, 0, bucket.now_ns)
    await bucket.write(4, keys=0)
    for n in range(3):
        engine.bucket.partitions[3].put(b"big%d" % n, bytes(300_000), 0, 0, 0, 0, bucket.now_ns)
        await bucket.persisted()
    await engine.compactor.compact()
    assert partition.purge_seqno == 0
    assert engine.compactor.statistics().tombstones == 60
    bucket.now_ns += 2 * DAY_NS + 1000
    await engine.compactor.compact()
    assert partition.purge_seqno == engine.store.partition(2).purge_seqno == 450
    assert engine.compactor.statistics().tombstones == 10
    assert len(list(engine.store.keys(2))) == 50
    bucket.now_ns += DAY_NS
    reader = engine.bucket.partitions[2].open_hold()
    assert reader is not None
    await engine.compactor.compact()
    assert partition.purge_seqno == 450, "a reader may still have to be told of them"
    partition.release_hold(reader)
    bucket.now_ns += 3_600_000_000_000
    await engine.compactor.compact()
    assert partition.purge_seqno == 459, "the newest change stays: it has the largest CAS"
    assert {key for p, key in bucket.read() if p == 2} == {b"key%d" % n for n in range(60, 100)}
    assert len(list(engine.store.keys(2))) == 41
    await engine.stop()
    engine = await bucket.open()
    assert streamed(engine.bucket, 2)[-1] == 460, "a snapshot ends with a change that is sent"
    await engine.stop()


async def test_pages_have_documents_that_are_made_again_after_their_deletion_was_purged(
    bucket: Bucket,
) -> None:
    engine = await bucket.open(purge_age_s=24 * 3600)
    await bucket.write(1)
    partition = engine.bucket.partitions[2]
    again = [b"key%d" % number for number in range(40)]
    for key in again:
        partition.delete(key, 0, bucket.now_ns)
    await bucket.persisted()
    for n in range(3):
        engine.bucket.partitions[3].put(b"big%d" % n, bytes(300_000), 0, 0, 0, 0, bucket.now_ns)
        await bucket.persisted()
    bucket.now_ns += 3 * DAY_NS
    await engine.compactor.compact()
    assert not set(partition.page(b"", b"z", 1000, descending=False)) & set(again[:39])
    for key in again:
        partition.put(key, b"{}", 0, 0, 0, 1, bucket.now_ns)
    assert set(partition.page(b"", b"z", 1000, descending=False)) >= set(again), "in memory"
    await bucket.persisted()
    assert set(partition.page(b"", b"z", 1000, descending=False)) >= set(again), "in the log"
    await engine.stop()


async def test_cas_goes_on_where_the_newest_deletion_was_old(bucket: Bucket) -> None:
    engine = await bucket.open(purge_age_s=3 * 24 * 3600)
    await bucket.write(1)
    partition = engine.bucket.partitions[2]
    bucket.now_ns += DAY_NS
    for key in range(50):
        partition.delete(b"key%d" % key, 0, bucket.now_ns)
    await bucket.persisted()
    cas = partition.last_cas
    lock_cas = partition.lock(b"key60", 30, bucket.now_ns)[1]  # type: ignore[index]
    assert lock_cas > cas
    for n in range(3):
        engine.bucket.partitions[3].put(b"big%d" % n, bytes(300_000), 0, 0, 0, 0, NOW)
        await bucket.persisted()
    bucket.now_ns += 4 * DAY_NS
    await engine.compactor.compact()
    assert len(list(engine.store.keys(2))) == 51, "but for the newest they are forgotten"
    await engine.stop()
    bucket.now_ns = NOW
    engine = await bucket.open()
    for partition in engine.bucket.partitions:
        partition.put(b"new", b"", 0, 0, 0, 0, bucket.now_ns)
        assert partition.last_cas > lock_cas
    await engine.stop()


async def test_a_clock_that_is_set_back_stalls_nothing(bucket: Bucket) -> None:
    engine = await bucket.open(purge_age_s=3 * 24 * 3600)
    compactor, window = engine.compactor, bucket.window
    await bucket.write(4)
    lease = engine.bucket.partitions[0].open_hold()
    assert lease is not None
    await bucket.write(4)
    await compactor.compact()
    assert compactor._next_pass_ns > bucket.now_ns, "history that was held is tried again later"
    engine.bucket.partitions[0].release_hold(lease)
    bucket.now_ns -= 3600 * SECOND_NS
    bucket.set_back_ns = 3600 * SECOND_NS + int(module.HELD_PAUSE_S) * SECOND_NS
    passes = compactor.statistics().passes_total
    await bucket.write(8)
    await bucket.sampled(0)
    await until(lambda: compactor.statistics().passes_total > passes)
    assert window._samples[-1].now_ns == bucket.now_ns
    await engine.stop()


def streamed(bucket: CoreBucket, partition_id: int) -> list[int]:
    """The seqnos that a consumer without extensions is sent from the beginning; it is told their
    end by a marker."""
    producer = Producer(bucket, OpenFlag.PRODUCER, is_extended=False, has_json=True)
    asked = encode_stream_request(StreamRequest(partition_id, Position()), 0)
    producer.on_packet(cut_packets(asked, 1 << 20)[0][0])
    data = b""
    for _ in range(9):
        data += producer.produce() or b""
        for read in producer.take_reads():
            producer.on_chunk(read, next(read.chunks, None))
    producer.close()
    packets, _ = cut_packets(data, 1 << 20)
    assert int.from_bytes(packets[0].extras[8:16], "big") == bucket.partitions[2].high_seqno
    return [int.from_bytes(packet.extras[:8], "big") for packet in packets[1:]]


async def test_writes_reads_and_rollbacks_go_on(bucket: Bucket) -> None:
    engine = await bucket.open(HistoryWindow(0, 0))
    await bucket.write(10)
    compacting = asyncio.ensure_future(engine.compactor.compact())
    rounds = 0
    while not compacting.done():
        rounds += 1
        await bucket.write(1, keys=20, size=200)
        for p, partition in enumerate(engine.bucket.partitions):
            assert value_of(partition.live(b"key7", NOW) or b"")[:2] == b"0."
            found = engine.store.find(p, b"key50")
            assert found is not None
            assert value_of(found.frame)[:2] == b"9."
        if rounds == 2:
            await engine.copies.roll_back(3, engine.bucket.partitions[3].high_seqno)
    await compacting
    state = bucket.read()
    await engine.stop()
    await bucket.open()
    assert bucket.read() == state
    assert len(state) == 400
    await bucket.engine.stop()
    assert bucket.failures == bucket.damages == []


async def test_a_stop_leaves_no_trace_of_a_run(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await bucket.open()
    await bucket.write(12)
    state, before = bucket.read(), sorted((bucket.path / "log").iterdir())
    began = asyncio.Event()
    loop, take = asyncio.get_running_loop(), module._take_steps

    def slowly(steps: object, step_s: float) -> bool:
        if list((bucket.path / "log").glob("*.new")):
            loop.call_soon_threadsafe(began.set)
            time.sleep(0.001)  # in the thread of a step
            next(steps)  # type: ignore[call-overload]
            return False
        return take(steps, step_s)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "STEP_S", 0.0)
    monkeypatch.setattr(module, "_take_steps", slowly)
    asked = asyncio.ensure_future(engine.compactor.compact())
    await began.wait()
    await engine.compactor.stop()
    with pytest.raises(UnavailableError, match="stopped"):
        await asked
    assert sorted((bucket.path / "log").iterdir()) == before
    assert bucket.read() == state
    await engine.stop()


async def test_a_full_disk_is_waited_for(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DISK_FULL_PAUSE_S", 0.0)
    engine = await bucket.open()
    await bucket.write(6)
    opened = OsDisk.open

    def full(disk: OsDisk, name: str, *, create: bool = False) -> OsFile:
        if name.endswith(".new"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(disk, name, create=create)

    with monkeypatch.context() as context:
        context.setattr(OsDisk, "open", full)
        with pytest.raises(UnavailableError, match="free space"):
            await engine.compactor.compact()
    before = bucket.log_bytes()
    await engine.compactor.compact()
    assert bucket.log_bytes() < before
    assert bucket.failures == []
    await engine.stop()


async def test_what_was_asked_for_is_done_once_the_disk_has_room(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DISK_FULL_PAUSE_S", 0.0)
    monkeypatch.setattr(module, "LOOK_INTERVAL_S", 0.01)
    engine = await bucket.open()
    compactor, opened, refused = engine.compactor, OsDisk.open, asyncio.Event()
    monkeypatch.setattr(compactor, "_is_due", lambda: False)
    await bucket.write(6)
    loop = asyncio.get_running_loop()

    def full(disk: OsDisk, name: str, *, create: bool = False) -> OsFile:
        if name.endswith(".new") and not refused.is_set():
            loop.call_soon_threadsafe(refused.set)
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(disk, name, create=create)

    monkeypatch.setattr(OsDisk, "open", full)
    async with asyncio.timeout(60):
        compactor.ask()
        await refused.wait()
        await until(lambda: not compactor._is_passing)
        await until(lambda: compactor.statistics().runs_total > 0)
    await engine.stop()


@pytest.mark.parametrize("name", ["sync", "write_at"])
async def test_any_other_error_of_the_disk_ends_the_writing(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    engine = await bucket.open()
    await bucket.write(6)
    method = getattr(OsFile, name)
    opened: list[OsFile] = []
    open_file = OsDisk.open

    def watched(disk: OsDisk, path: str, *, create: bool = False) -> OsFile:
        file = open_file(disk, path, create=create)
        if path.endswith(".new"):
            opened.append(file)
        return file

    def broken(file: OsFile, *arguments: object) -> None:
        if file in opened:
            raise OSError(errno.EIO, "Input/output error")
        method(file, *arguments)

    monkeypatch.setattr(OsDisk, "open", watched)
    monkeypatch.setattr(OsFile, name, broken)
    with pytest.raises(UnavailableError, match="failed"):
        await engine.compactor.compact()
    assert len(bucket.failures) == 1
    assert not list((bucket.path / "log").glob("*.new"))
    await engine.stop()


async def test_no_space_for_the_directory_after_the_swap_ends_the_writing(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new segment stands where the log expects the old one: nothing may be read by it."""
    engine = await bucket.open()
    await bucket.write(6)
    renamed: list[str] = []
    rename = OsDisk.rename

    def watched(disk: OsDisk, old: str, new: str) -> None:
        rename(disk, old, new)
        renamed.append(new)

    def full(disk: OsDisk) -> None:
        if renamed:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(OsDisk, "rename", watched)
    monkeypatch.setattr(OsDisk, "sync_directory", full)
    with pytest.raises(UnavailableError, match="the disk failed") as caught:
        await engine.compactor.compact()
    assert caught.value.code == "disk_failed"
    assert len(bucket.failures) == 1
    await engine.stop()


async def test_a_damaged_record_stops_the_bucket(bucket: Bucket) -> None:
    engine = await bucket.open()
    await bucket.write(6)
    await bucket.write(2, keys=10, size=30_000)  # seals the segment before
    good, bad = b"5." + bytes(9), b"5." + b"\1" * 9
    segment = next(p for p in (bucket.path / "log").glob("*.seg") if good in p.read_bytes())
    segment.write_bytes(segment.read_bytes().replace(good, bad))
    engine.store._log.forget_files()
    with pytest.raises(CorruptionError, match=segment.name):
        await engine.compactor.compact()
    assert [segment.name in str(damage) for damage in bucket.damages] == [True]
    await engine.stop()


async def test_low_points_follow_a_rollback(bucket: Bucket) -> None:
    engine = await bucket.open(HistoryWindow(600, 10**9))
    await bucket.write(3)
    await bucket.sampled()
    await engine.copies.roll_back(0, 150)
    assert engine.bucket.partitions[0].high_seqno == 100
    await bucket.write(2)
    bucket.now_ns += 600 * 1_000_000_000
    await engine.compactor.compact()
    assert [state.history_seqno for state in engine.store.partitions] == [100, 300, 300, 300]
    assert seqno_of(engine.store.find(0, b"key1").frame) == 202  # type: ignore[union-attr]
    await engine.stop()
