import asyncio
import os
from types import SimpleNamespace

import pytest

from millstream.errors import ConditionError, CorruptionError, UnavailableError, UsageError
from millstream.kv.core.low_points import PURGE_AGE_S
from millstream.kv.core.memory import MEMORY_QUOTA_BYTES_MIN
from millstream.node import buckets as buckets_module
from millstream.node.buckets import Buckets

NODE_QUOTA = 8 * MEMORY_QUOTA_BYTES_MIN


class FakeEngine:
    """What a bucket's engine looks like from here."""

    def __init__(self, path, name, uuid, partition_count, on_fatal, on_corrupt):
        assert path.is_dir()
        partition = SimpleNamespace(high_seqno=2, persisted_seqno=1)
        self.bucket = SimpleNamespace(
            name=name, uuid=uuid, partitions=[partition] * partition_count
        )
        self.fail = on_fatal
        self.meet_damage = on_corrupt
        self.is_stopped = False
        self.asked = []
        self.compactor = SimpleNamespace(ask=lambda: self.asked.append(name))
        self.stop_error = None

    async def stop(self):
        if self.stop_error is not None:
            raise self.stop_error
        self.is_stopped = True


@pytest.fixture
def make(tmp_path):
    def made(damaged=(), errors=()):
        waiting = list(errors)

        made.purge_ages, made.quotas = {}, {}

        async def open_bucket(
            path,
            *,
            name,
            uuid,
            partition_count,
            on_fatal,
            on_corrupt,
            purge_age_s,
            memory_quota_bytes,
            **_,
        ):
            made.purge_ages[name] = purge_age_s
            made.quotas[name] = memory_quota_bytes
            if waiting:
                (path / "log").mkdir()
                raise waiting.pop()
            if name in damaged:
                raise CorruptionError(f"{name} is damaged at offset 7")
            return FakeEngine(path, name, uuid, partition_count, on_fatal, on_corrupt)

        made.fatal, made.stopped = [], []
        return Buckets(
            tmp_path / "buckets",
            flush_interval_ms=1,
            memory_quota_bytes=NODE_QUOTA,
            on_persisted=lambda: None,
            on_fatal=lambda name, error: made.fatal.append((name, str(error))),
            on_stopped=lambda bucket: made.stopped.append(bucket.name),
            open_bucket=open_bucket,
        )

    return made


async def opened(make, **options):
    buckets = make(**options)
    await buckets.open_all()
    return buckets


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


async def test_a_served_bucket_is_compacted_when_asked(make):
    buckets = await opened(make)
    await buckets.create("a", 4)
    buckets.compact("a")
    engine = buckets.running["a"]
    assert engine.asked == ["a"]
    with pytest.raises(ConditionError, match="no bucket"):
        buckets.compact("b")
    engine.fail(OSError("broken"))
    with pytest.raises(UnavailableError, match="broken"):
        buckets.compact("a")


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
    file.write_text(file.read_text().replace(str(3 * MEMORY_QUOTA_BYTES_MIN), "1"))
    assert "memory quota" in (await opened(make)).statuses()[0].reason


async def test_the_age_of_deletions_may_be_set_by_hand(make, tmp_path):
    buckets = await opened(make)
    status = await buckets.create("a", 4)
    assert make.purge_ages["a"] == PURGE_AGE_S
    file = tmp_path / "buckets" / status.uuid / "bucket.toml"
    text = file.read_text()
    file.write_text(text + "purge_age_s = 60\n")
    await opened(make)
    assert make.purge_ages["a"] == 60
    file.write_text(text + "purge_age_s = -1\n")
    again = await opened(make)
    assert "purge_age_s" in again.statuses()[0].reason


async def test_a_bucket_made_again_is_another(make, tmp_path):
    buckets = await opened(make)
    first = await buckets.create("a", 4)
    engine, told = buckets.running["a"], []
    await buckets.delete("a", told.append)
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
    monkeypatch.setattr(buckets_module, "BUCKETS_MAX", 1)
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
    assert (bad.name, bad.uuid, bad.partitions) == (status.uuid, status.uuid, 0)
    assert str(file) in bad.reason or str(file.parent) in bad.reason
    await again.ensure("a", 4, 64)  # it may be the damaged one: nothing empty in its place
    assert list(again.served) == ["good"]
    await again.delete(status.uuid, print)
    assert os.listdir(tmp_path / "buckets") == [again.statuses()[0].uuid]
    await again.ensure("a", 4, 64)
    assert set(again.served) == {"a", "good"}


async def test_a_bucket_of_a_newer_format_is_not_touched(make, tmp_path):
    buckets = await opened(make)
    status = await buckets.create("a", 4)
    file = tmp_path / "buckets" / status.uuid / "bucket.toml"
    file.write_text(file.read_text().replace("format = 1", "format = 99"))
    with pytest.raises(UsageError, match="format 99"):
        await opened(make)


async def test_two_buckets_of_one_name_are_refused(make, tmp_path):
    buckets = await opened(make)
    status = await buckets.create("a", 4)
    copy = tmp_path / "buckets" / ("f" * 32)
    copy.mkdir()
    text = (tmp_path / "buckets" / status.uuid / "bucket.toml").read_text()
    (copy / "bucket.toml").write_text(text.replace(status.uuid, "f" * 32))
    with pytest.raises(CorruptionError, match="twice"):
        await opened(make)


async def test_a_damaged_record_stops_its_bucket_alone(make):
    buckets = await opened(make)
    for name in ("a", "b"):
        await buckets.create(name, 4)
    for _ in range(2):
        buckets.running["a"].meet_damage(CorruptionError("000001.seg at offset 77 is damaged"))
    assert make.stopped == ["a"]
    assert list(buckets.served) == ["b"]
    status = buckets.statuses()[0]
    assert (status.state, status.reason) == ("failed", "000001.seg at offset 77 is damaged")


async def test_damage_met_while_writing_stops_its_bucket_alone(make):
    buckets = await opened(make)
    await buckets.create("a", 4)
    buckets.running["a"].fail(CorruptionError("data.mdb is damaged"))
    assert (make.fatal, make.stopped) == ([], ["a"])
    assert buckets.statuses()[0].reason == "data.mdb is damaged"


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


async def test_a_directory_that_is_not_durable_is_taken_back(make, tmp_path, monkeypatch):
    buckets = await opened(make)

    def refuse(path):
        raise OSError("cannot sync")

    monkeypatch.setattr(buckets_module, "sync_directory", refuse)
    with pytest.raises(UnavailableError, match="cannot sync"):
        await buckets.create("a", 4)
    assert os.listdir(tmp_path / "buckets") == []


@pytest.mark.parametrize("failing", ["sync_directory", "rmtree"])
async def test_a_failed_deletion_is_listed_and_can_be_repeated(
    make, tmp_path, monkeypatch, failing
):
    buckets = await opened(make)
    await buckets.create("a", 4)

    def refuse(path):
        raise OSError("input/output error")

    with monkeypatch.context() as broken:
        target = buckets_module if failing == "sync_directory" else buckets_module.shutil
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
