import errno
import os
import shutil

import pytest

from millstream.data_directory import bucket_files
from millstream.data_directory.small_files import sealed
from millstream.databases import bucket_table
from millstream.errors import ConditionError, CorruptionError, UnavailableError, UsageError
from millstream.kv.core.queue.low_points import PURGE_AGE_S
from millstream.model.limits import MEMORY_QUOTA_BYTES_MIN
from support.kv.node_buckets import NODE_QUOTA, opened


async def test_buckets_outlive_a_restart(make, tmp_path):
    buckets = await opened(make)
    status = await buckets.create("b/1", 8)
    await buckets.create("a", 1)
    assert (status.name, status.partitions, status.state) == ("b/1", 8, "ready")
    assert (status.high_seqno, status.persisted_seqno) == (16, 8)
    assert list(buckets.served) == ["b/1", "a"]
    engines = list(buckets.running.values())
    await buckets.stop()
    assert all(engine.is_stopped for engine in engines)
    assert not buckets.served
    again = await opened(make)
    assert [s.name for s in again.statuses()] == ["a", "b/1"]
    assert again.statuses()[1].uuid == status.uuid
    assert again.statuses()[1].created == status.created
    assert (tmp_path / "buckets" / status.uuid / "bucket.toml").exists()


async def test_a_bucket_has_the_memory_quota_it_was_made_with_or_that_of_the_node(make, tmp_path):
    buckets = await opened(make)
    own = await buckets.create("own", 4, 3 * MEMORY_QUOTA_BYTES_MIN)
    nodes = await buckets.create("the-nodes", 4)
    wanted = {"own": 3 * MEMORY_QUOTA_BYTES_MIN, "the-nodes": NODE_QUOTA}
    assert make.quotas == wanted
    assert {s.name: s.memory_quota_bytes for s in (own, nodes)} == wanted
    again = await opened(make)
    assert make.quotas == wanted
    assert {s.name: s.memory_quota_bytes for s in again.statuses()} == wanted
    with pytest.raises(UsageError, match="at least"):
        await buckets.create("too-small", 4, MEMORY_QUOTA_BYTES_MIN - 1)
    file = tmp_path / "buckets" / own.uuid / "bucket.toml"
    write_sealed(file, file.read_text().replace(str(3 * MEMORY_QUOTA_BYTES_MIN), "1"))
    assert "memory quota" in (await opened(make)).statuses()[0].reason


def write_sealed(file, text):
    """As this program writes it, with its checksum."""
    lines = text.splitlines(keepends=True)
    file.write_bytes(sealed("".join(x for x in lines if not x.startswith(("sealed", "# crc32")))))


async def test_the_age_of_deletions_may_be_set_by_hand_and_accepted(make, tmp_path):
    buckets = await opened(make)
    status = await buckets.create("a", 4)
    assert make.purge_ages["a"] == PURGE_AGE_S
    file = tmp_path / "buckets" / status.uuid / "bucket.toml"
    text = file.read_text()
    file.write_text(text + "purge_age_s = 60\n")
    (failed,) = (await opened(make)).statuses()
    assert "its checksum does not match" in failed.reason
    assert failed.reason.endswith(f"--accept buckets/{status.uuid}/bucket.toml")
    write_sealed(file, text + "purge_age_s = 60\n")
    await opened(make)
    assert make.purge_ages["a"] == 60
    write_sealed(file, text + "purge_age_s = -1\n")
    again = await opened(make)
    assert "purge_age_s" in again.statuses()[0].reason


async def test_a_bucket_made_again_is_another(make, tmp_path):
    buckets = await opened(make)
    first = await buckets.create("a", 4)
    engine, told = buckets.running["a"], []

    def told_of(bucket):
        told.append(bucket)
        with pytest.raises(ConditionError, match="no bucket"):  # while its files are still there
            buckets.engine("a")

    await buckets.delete("a", told_of)
    assert told == [engine.bucket]
    assert engine.is_stopped
    assert os.listdir(tmp_path / "buckets") == []
    second = await buckets.create("a", 4)
    assert second.uuid != first.uuid


async def test_what_may_not_be(make, monkeypatch):
    buckets = await opened(make)
    await buckets.create("a", 4)
    with pytest.raises(ConditionError, match="exists already"):
        await buckets.create("a", 4)
    with pytest.raises(UsageError):
        await buckets.create("_a", 4)
    with pytest.raises(UsageError):
        await buckets.create("b", 5)
    with pytest.raises(ConditionError, match="no bucket"):
        await buckets.delete("b", print)
    monkeypatch.setattr(bucket_table, "BUCKETS_MAX", 1)
    with pytest.raises(UnavailableError, match="at most"):
        await buckets.create("b", 4)


async def test_ensure_makes_what_is_missing_and_never_changes(make):
    buckets = await opened(make)
    await buckets.ensure("a", None, 64)
    await buckets.ensure("b", 8, 64)
    await buckets.ensure("b", None, 64)
    await buckets.ensure("b", 8, 64)
    assert [(s.name, s.partitions) for s in buckets.statuses()] == [("a", 64), ("b", 8)]
    with pytest.raises(ConditionError, match="exists with 8 partitions"):
        await buckets.ensure("b", 16, 64)


async def test_unfinished_directories_are_removed_and_others_left(make, tmp_path):
    for name in ("u1.creating", "u2.deleted", "other"):
        (tmp_path / "buckets" / name).mkdir(parents=True)
    buckets = await opened(make)
    assert os.listdir(tmp_path / "buckets") == ["other"]
    assert buckets.statuses() == []


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('name = "a"', 'name = "_a"'),
        lambda text: text.replace("partitions = 4", "partitions = 5"),
        lambda text: text.replace("uuid", "uid"),
        lambda text: text.replace('uuid = "', 'uuid = "x'),
        lambda text: "",
    ],
)
async def test_a_damaged_bucket_file_stops_its_bucket_alone(make, tmp_path, change):
    buckets = await opened(make)
    status = await buckets.create("a", 4)
    await buckets.create("good", 4)
    file = tmp_path / "buckets" / status.uuid / "bucket.toml"
    file.write_text(change(file.read_text()))
    again = await opened(make)
    assert list(again.served) == ["good"]
    (bad,) = [one for one in again.statuses() if one.state == "failed"]
    assert (bad.name, bad.uuid, bad.partitions) == ("a", status.uuid, 4)
    assert str(file) in bad.reason
    assert f"millstream check {tmp_path} --accept buckets/{status.uuid}" in bad.reason
    await again.ensure("a", 4, 64)  # nothing empty in its place
    assert list(again.served) == ["good"]
    await again.delete("a", print)
    assert os.listdir(tmp_path / "buckets") == [again.statuses()[0].uuid]
    await again.ensure("a", 4, 64)
    assert set(again.served) == {"a", "good"}


async def test_a_bucket_of_a_newer_format_is_not_touched(make, tmp_path):
    buckets = await opened(make)
    status = await buckets.create("a", 4)
    file = tmp_path / "buckets" / status.uuid / "bucket.toml"
    write_sealed(file, file.read_text().replace("format = 1", "format = 99"))
    with pytest.raises(UsageError, match="format 99"):
        await opened(make)


@pytest.mark.parametrize("what", ["directory", "file", "other name", "other number"])
async def test_a_bucket_that_is_gone_or_altered_is_missed_and_not_made_anew(make, tmp_path, what):
    buckets = await opened(make)
    status = await buckets.create("a", 4)
    await buckets.create("good", 4)
    directory = tmp_path / "buckets" / status.uuid
    file = directory / "bucket.toml"
    text = file.read_text()
    if what == "directory":
        shutil.rmtree(directory)
    elif what == "file":
        file.unlink()
    else:
        old, new = ('"a"', '"b"') if what == "other name" else ("= 4", "= 8")
        write_sealed(file, text.replace(old, new))
    again = await opened(make)
    assert list(again.served) == ["good"]
    (bad,) = [one for one in again.statuses() if one.state == "failed"]
    assert (bad.name, bad.partitions) == ("a", 4)
    place = status.uuid if what == "directory" else f"{status.uuid}/bucket.toml"
    assert bad.reason.endswith(f"millstream check {tmp_path} --accept buckets/{place}")
    await again.ensure("a", 4, 64)
    with pytest.raises(ConditionError, match="exists already"):
        await again.create("a", 4)
    assert list(again.served) == ["good"]
    await again.delete("a", print)
    assert [one.name for one in (await opened(make)).statuses()] == ["good"]


async def test_a_directory_of_an_older_program_gets_checksums_and_is_missed_from_then_on(
    make, tmp_path
):
    buckets = await opened(make)
    status = await buckets.create("a", 4)
    (tmp_path / "inventory.toml").unlink()
    file = tmp_path / "buckets" / status.uuid / "bucket.toml"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[1:-1]))
    assert [one.state for one in (await opened(make)).statuses()] == ["ready"]
    assert file.read_text().splitlines(keepends=True) == lines
    shutil.rmtree(file.parent)
    assert [one.state for one in (await opened(make)).statuses()] == ["failed"]


@pytest.mark.parametrize(
    "error",
    [UnavailableError("full", code="disk_full"), OSError(errno.ENOSPC, "No space left on device")],
)
async def test_a_bucket_for_which_there_was_no_space_comes_back_by_itself(make, error):
    buckets = await opened(make)
    await buckets.create("a", 4)
    await buckets.create("b", 4)
    again = await opened(make, errors=[error])
    (failed,) = [one for one in again.statuses() if one.state == "failed"]
    assert failed.reason.endswith("it is tried again by itself")
    assert await again.try_again() == [failed.name]
    assert sorted(again.served) == ["a", "b"]
    assert [one.state for one in again.statuses()] == ["ready", "ready"]
    assert await again.try_again() == []


async def test_a_damaged_bucket_is_not_tried_again(make):
    buckets = await opened(make)
    await buckets.create("a", 4)
    again = await opened(make, damaged=["a"])
    assert await again.try_again() == []
    assert not again.served


async def test_two_buckets_of_one_name_are_refused(make, tmp_path):
    buckets = await opened(make)
    status = await buckets.create("a", 4)
    copy = tmp_path / "buckets" / ("f" * 32)
    copy.mkdir()
    text = (tmp_path / "buckets" / status.uuid / "bucket.toml").read_text()
    write_sealed(copy / "bucket.toml", text.replace(status.uuid, "f" * 32))
    with pytest.raises(CorruptionError, match="twice"):
        await opened(make)


@pytest.mark.parametrize("failing", ["sync_directory", "rmtree"])
async def test_a_failed_deletion_is_listed_and_can_be_repeated(
    make, tmp_path, monkeypatch, failing
):
    buckets = await opened(make)
    await buckets.create("a", 4)

    def refuse(path):
        raise OSError("input/output error")

    with monkeypatch.context() as broken:
        target = bucket_files if failing == "sync_directory" else bucket_files.shutil
        broken.setattr(target, failing, refuse)
        with pytest.raises(UnavailableError, match="input/output"):
            await buckets.delete("a", print)
    assert not buckets.served
    status = buckets.statuses()[0]
    assert status.state == "failed"
    assert "input/output" in status.reason
    await buckets.delete("a", print)
    assert os.listdir(tmp_path / "buckets") == []
    assert buckets.statuses() == []


async def test_a_bucket_that_cannot_be_written_any_more_can_be_deleted(make, tmp_path):
    buckets = await opened(make)
    await buckets.create("a", 4)
    buckets.running["a"].stop_error = UnavailableError("disk full")
    await buckets.delete("a", print)
    assert os.listdir(tmp_path / "buckets") == []
    assert buckets.statuses() == []
