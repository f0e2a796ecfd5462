import os
from types import SimpleNamespace

import pytest

from millstream.errors import ConditionError, CorruptionError, UnavailableError, UsageError
from millstream.node import buckets as buckets_module
from millstream.node.buckets import Buckets


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

    async def stop(self):
        self.is_stopped = True


@pytest.fixture
def make(tmp_path):
    def made(damaged=()):
        async def open_bucket(path, *, name, uuid, partition_count, on_fatal, on_corrupt, **_):
            if name in damaged:
                raise CorruptionError(f"{name} is damaged at offset 7")
            return FakeEngine(path, name, uuid, partition_count, on_fatal, on_corrupt)

        made.fatal, made.stopped = [], []
        return Buckets(
            tmp_path / "buckets",
            flush_interval_ms=1,
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
async def test_a_damaged_bucket_file_is_named(make, tmp_path, change):
    buckets = await opened(make)
    status = await buckets.create("a", 4)
    file = tmp_path / "buckets" / status.uuid / "bucket.toml"
    file.write_text(change(file.read_text()))
    with pytest.raises(CorruptionError, match=status.uuid):
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
