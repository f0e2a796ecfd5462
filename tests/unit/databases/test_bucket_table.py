import asyncio
import os
import threading

import pytest

from millstream.data_directory import bucket_files
from millstream.databases import bucket_table
from millstream.errors import CorruptionError, UnavailableError
from support.kv.node_buckets import UUID, opened, placed


async def test_a_damaged_bucket_stops_alone(make):
    first = await opened(make)
    await first.create("bad", 4)
    await first.create("good", 4)
    again = await opened(make, damaged=("bad",))
    assert list(again.served) == ["good"]
    bad, good = again.statuses()
    assert (bad.state, good.state) == ("failed", "ready")
    assert "offset 7" in bad.reason
    await again.ensure("bad", None, 64)
    await again.delete("bad", print)
    assert [s.name for s in again.statuses()] == ["good"]


async def test_a_failed_disk_ends_a_bucket(make):
    buckets = await opened(make)
    await buckets.create("a", 4)
    engine = buckets.running["a"]
    engine.fail(OSError("no space"))
    assert make.fatal == [("a", "no space")]
    assert not buckets.served
    assert "no space" in buckets.statuses()[0].reason
    await buckets.stop()
    assert not engine.is_stopped


async def test_a_damaged_record_stops_its_bucket_alone(make):
    buckets = await opened(make)
    for name in ("a", "b"):
        await buckets.create(name, 4)
    for _ in range(2):
        buckets.running["a"].meet_damage(CorruptionError("000001.seg at offset 77 is damaged"))
    assert make.stopped == ["a"]
    assert list(buckets.served) == ["b"]
    status = buckets.statuses()[0]
    assert status.state == "failed"
    assert status.reason.startswith("000001.seg at offset 77 is damaged; to go on with what is ")
    assert status.reason.endswith(f"--accept buckets/{status.uuid}/log")


async def test_damage_met_while_writing_stops_its_bucket_alone(make):
    buckets = await opened(make)
    await buckets.create("a", 4)
    buckets.running["a"].fail(CorruptionError("data.mdb is damaged"))
    assert (make.fatal, make.stopped) == ([], ["a"])
    assert buckets.statuses()[0].reason.startswith("data.mdb is damaged; to go on")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError("too many files"), UnavailableError),
        (UnavailableError("disk full"), UnavailableError),
        (asyncio.CancelledError(), asyncio.CancelledError),
    ],
)
async def test_a_bucket_that_could_not_be_made_leaves_nothing(make, tmp_path, error, told):
    buckets = await opened(make, errors=[error])
    with pytest.raises(told):
        await buckets.create("a", 4)
    assert os.listdir(tmp_path / "buckets") == []
    assert buckets.statuses() == []
    await buckets.create("a", 4)
    again = await opened(make)
    assert list(again.served) == ["a"]


async def test_a_creation_that_is_cancelled_while_its_directory_is_made_leaves_nothing(
    make, tmp_path, monkeypatch
):
    begun, gate, ended = threading.Event(), threading.Event(), threading.Event()
    make_directory = bucket_table.make_directory

    def slow(*given):
        begun.set()
        assert gate.wait(60)
        make_directory(*given)
        ended.set()

    buckets = await opened(make)
    monkeypatch.setattr(bucket_table, "make_directory", slow)
    creating = asyncio.ensure_future(buckets.create("orders", 4))
    assert await asyncio.to_thread(begun.wait, 60)
    creating.cancel()
    asyncio.get_running_loop().call_later(0.05, gate.set)
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert await asyncio.to_thread(ended.wait, 60)
    assert os.listdir(tmp_path / "buckets") == []
    assert buckets.statuses() == []


async def test_a_directory_that_is_not_durable_is_taken_back(make, tmp_path, monkeypatch):
    buckets = await opened(make)

    def refuse(path):
        raise OSError("cannot sync")

    monkeypatch.setattr(bucket_files, "sync_directory", refuse)
    with pytest.raises(UnavailableError, match="cannot sync"):
        await buckets.create("a", 4)
    assert os.listdir(tmp_path / "buckets") == []


async def test_at_a_start_missing_replicas_keep_no_bucket_down(make):
    await (await opened(make)).maps.set_map("m", UUID, 2, placed())
    again = make()
    make.copy_errors.append(UnavailableError("full", code="disk_full"))
    await again.open_all()
    assert again.statuses()[0].state == "ready"
    stopped = make()
    make.copy_errors.append(RuntimeError("unforeseen"))
    with pytest.raises(RuntimeError):
        await stopped.open_all()
    assert not stopped.running
