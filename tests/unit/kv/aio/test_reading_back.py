from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millstream.errors import CorruptionError
from millstream.kv.aio import reading_back
from millstream.kv.aio.reading_back import ReadingBack, with_documents
from millstream.kv.core.partition.memory import Memory
from millstream.kv.core.partition.residents import Residents
from millstream.model.position import FailoverEntry
from millstream.runtime.disk import OsDisk, OsFile
from millstream.storage.aio.by_id import LmdbByIdMap
from millstream.storage.core.store import FlushBatch, LogStore, StoredChange
from millstream.wire.frames import change_of, mutation


def opened(path: Path) -> LogStore:
    branches = iter(range(1, 100))
    store = LogStore.open(
        OsDisk(path / "log"),
        LmdbByIdMap(path / "byid", map_bytes=16 * 1024 * 1024),
        partition_count=2,
        new_entry=lambda seqno, branch: FailoverEntry(1, seqno, branch + next(branches)),
    )
    store.withdraw_receipt()
    return store


def write(store: LogStore, seqno: int, key: bytes, value: bytes) -> None:
    frame = mutation(1, key, value, seqno, 1, 1, 0, 0, 0)
    commit = store.encode([FlushBatch.of(1, [StoredChange(frame, 0, b"lineage")])])
    store.append(commit)
    store.absorb(commit)


@asynccontextmanager
async def reading(tmp_path: Path) -> AsyncIterator[tuple[LogStore, ReadingBack]]:
    """Partition 1 has `a` at seqno 1 and `b` at seqno 2."""
    store = opened(tmp_path)
    write(store, 1, b"a", b"va")
    write(store, 2, b"b", b"vb")
    reader = ReadingBack("b", store, [].append)
    yield store, reader
    await reader.stop()
    store.close()


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is in the page cache."""

    def refuse(self: OsFile, offset: int, size: int) -> bytes:
        raise BlockingIOError

    monkeypatch.setattr(OsFile, "read_resident", refuse)


async def fetched(reader: ReadingBack, key: bytes) -> object:
    """Fetch, and look up as soon as the thread has read."""
    found: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        try:
            assert error is None
            found.set_result(reader.find(1, key))
        except BlockingIOError:
            found.set_result("it would wait")

    assert reader.fetch(1, key, done)
    return await found


async def test_what_the_page_cache_has_is_read_in_the_loop(tmp_path: Path) -> None:
    async with reading(tmp_path) as (_, reader):
        found = reader.find(1, b"a")
        assert found is not None
        assert (found.key, change_of(found.frame).value, found.side) == (
            b"a",
            b"va",
            b"lineage",
        )
        assert reader.find(1, b"none") is None
        assert reader.find(0, b"a") is None
        assert reader.statistics() == (1, 0, 0)


async def test_the_rest_is_read_by_a_thread_and_there_for_one_call(
    tmp_path: Path, cold: None
) -> None:
    async with reading(tmp_path) as (_, reader):
        with pytest.raises(BlockingIOError):
            reader.find(1, b"a")
        found = await fetched(reader, b"a")
        assert change_of(found.frame).value == b"va"  # type: ignore[attr-defined]
        with pytest.raises(BlockingIOError):
            reader.find(1, b"a")
        assert reader.find(1, b"none") is None
        assert await fetched(reader, b"none") is None
        assert reader.statistics() == (0, 1, 0)


@pytest.mark.parametrize("is_rolled_back", [False, True])
async def test_what_happened_meanwhile_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: None, is_rolled_back: bool
) -> None:
    async with reading(tmp_path) as (store, reader):
        write(store, 3, b"a", b"va3")
        may_read, read = threading.Event(), store.read

        def slow_read(*arguments: object) -> object:
            found = read(*arguments)  # type: ignore[arg-type]
            may_read.wait(60)
            return found

        monkeypatch.setattr(store, "read", slow_read)
        task = asyncio.ensure_future(fetched(reader, b"a"))
        await asyncio.sleep(0)
        if is_rolled_back:
            store.roll_back(1, 2)
            write(store, 3, b"a", b"va3 of another history")
        else:
            write(store, 4, b"a", b"va4")
        may_read.set()
        assert await task == "it would wait"
        found = await fetched(reader, b"a")
        wanted = b"va3 of another history" if is_rolled_back else b"va4"
        assert change_of(found.frame).value == wanted  # type: ignore[attr-defined]


async def test_only_so_many_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: None
) -> None:
    monkeypatch.setattr(reading_back, "READS_WAITING_MAX", 2)
    async with reading(tmp_path) as (_, reader):
        tasks = [asyncio.ensure_future(fetched(reader, key)) for key in (b"a", b"b")]
        await asyncio.sleep(0)
        assert not reader.fetch(1, b"a", lambda _: None)
        await asyncio.gather(*tasks)
        assert reader.statistics().waiting == 0
        assert await fetched(reader, b"a") is not None


@pytest.mark.parametrize("error", [CorruptionError("damaged"), OSError(5, "I/O error")])
async def test_errors_of_a_thread_are_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: None, error: Exception
) -> None:
    told: list[Exception] = []
    store = opened(tmp_path)
    write(store, 1, b"a", b"va")
    reader = ReadingBack("b", store, told.append)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(store, "read", fail)
    met: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    assert reader.fetch(1, b"a", met.set_result)
    assert await met is error
    assert told == ([error] if isinstance(error, CorruptionError) else [])
    await reader.stop()
    store.close()


async def test_a_job_is_done_once_its_document_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: None
) -> None:
    monkeypatch.setattr(reading_back, "READS_WAITING_MAX", 0)
    async with reading(tmp_path) as (store, reader):
        residents = Residents(1, reader, Memory(), is_complete=False)  # type: ignore[arg-type]
        assert await with_documents(lambda: residents.find(b"none")) is None
        task = asyncio.ensure_future(with_documents(lambda: residents.find(b"a")))
        await asyncio.sleep(0)
        monkeypatch.setattr(reading_back, "READS_WAITING_MAX", 1)  # from now on there is room
        found = await task
        assert found is residents.table[b"a"]
        monkeypatch.setattr(store, "read", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await with_documents(lambda: residents.find(b"b"))


async def test_a_job_whose_document_changed_meanwhile_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: None
) -> None:
    async with reading(tmp_path) as (store, reader):
        residents = Residents(1, reader, Memory(), is_complete=False)  # type: ignore[arg-type]
        read, loop = store.read, asyncio.get_running_loop()
        changes: list[concurrent.futures.Future[None]] = []

        async def change() -> None:
            write(store, 3, b"a", b"newer")

        def read_while_it_changes(*arguments: object) -> object:
            if not changes:
                changes.append(asyncio.run_coroutine_threadsafe(change(), loop))
                changes[0].result()
            return read(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "read", read_while_it_changes)
        found = await with_documents(lambda: residents.find(b"a"))
        assert found is not None
        assert change_of(found.frame).value == b"newer"


async def test_stop_gives_up_what_has_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: None
) -> None:
    async with reading(tmp_path) as (store, reader):
        may_read, begun, read = threading.Event(), threading.Event(), store.read
        calls: list[object] = []

        def slow_read(*arguments: object) -> object:
            calls.append(arguments)
            begun.set()
            may_read.wait(60)
            return read(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "read", slow_read)
        monkeypatch.setattr(reader._threads, "_max_workers", 1)
        for _ in range(3):
            assert reader.fetch(1, b"a", lambda _: None)
        await asyncio.to_thread(begun.wait)
        stopping = asyncio.ensure_future(reader.stop())
        await asyncio.sleep(0)
        may_read.set()
        await stopping
        assert len(calls) == 1


async def test_what_by_id_names_and_the_log_lacks_is_told_as_damage_not_as_absent(
    tmp_path: Path,
) -> None:
    told: list[CorruptionError] = []
    async with reading(tmp_path) as (store, reader):
        reader._on_corrupt = told.append
        store.commit_by_id()
        store._by_id.pending[b"\0\1b"] = (77, 1, 64)
        residents = Residents(1, reader, Memory(), is_complete=False)  # type: ignore[arg-type]
        with pytest.raises(CorruptionError, match="it names seqno 77"):
            await with_documents(lambda: residents.find(b"b"))
    assert [error.code for error in told] == ["by_id_damaged"]
