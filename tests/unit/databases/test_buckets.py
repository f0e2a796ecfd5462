import asyncio
import errno
import os
import shutil
import threading
from types import SimpleNamespace

import pytest

from millstream.data_directory import bucket_files, map_file
from millstream.data_directory.map_file import MAP_FILE, PlacedMap
from millstream.data_directory.small_files import sealed
from millstream.databases import buckets as buckets_module
from millstream.databases.buckets import Buckets
from millstream.errors import ConditionError, CorruptionError, UnavailableError, UsageError
from millstream.kv.core.queue.low_points import PURGE_AGE_S
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.limits import MEMORY_QUOTA_BYTES_MIN

NODE_QUOTA = 8 * MEMORY_QUOTA_BYTES_MIN


class FakeCopies:
    def __init__(self):
        self.asked, self.errors = 0, []

    async def take_places(self):
        self.asked += 1
        if self.errors:
            raise self.errors.pop()


class FakeEngine:
    """What a bucket's engine looks like from here."""

    def __init__(self, path, name, uuid, partition_count, on_fatal, on_corrupt):
        assert path.is_dir()
        partition = SimpleNamespace(high_seqno=2, persisted_seqno=1)
        self.bucket = SimpleNamespace(
            name=name, uuid=uuid, partitions=[partition] * partition_count, set_map=self.set_map
        )
        self.copies = FakeCopies()
        self.fail = on_fatal
        self.meet_damage = on_corrupt
        self.is_stopped = False
        self.asked = []
        self.compactor = SimpleNamespace(ask=lambda: self.asked.append(name))
        self.stop_error = None

    def set_map(self, bucket_map, node_name):
        self.bucket.map, self.bucket.node_name = bucket_map, node_name

    async def stop(self):
        if self.stop_error is not None:
            raise self.stop_error
        self.is_stopped = True


@pytest.fixture
def make(tmp_path):
    def made(damaged=(), errors=()):
        waiting = list(errors)

        made.purge_ages, made.quotas = {}, {}
        made.copy_errors = []

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
            bucket_map,
            node_name,
            **_,
        ):
            made.purge_ages[name] = purge_age_s
            made.quotas[name] = memory_quota_bytes
            if waiting:
                (path / "log").mkdir()
                raise waiting.pop()
            if name in damaged:
                raise CorruptionError(f"{name} is damaged at offset 7")
            engine = FakeEngine(path, name, uuid, partition_count, on_fatal, on_corrupt)
            engine.bucket.map, engine.bucket.node_name = bucket_map, node_name
            engine.copies.errors = made.copy_errors
            return engine

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
    make_directory = buckets_module.make_directory

    def slow(*given):
        begun.set()
        assert gate.wait(60)
        make_directory(*given)
        ended.set()

    buckets = await opened(make)
    monkeypatch.setattr(buckets_module, "make_directory", slow)
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


# -- maps

UUID = "0123456789abcdef" * 2
NODES = (NodeAddress("a", "h", 1, 2), NodeAddress("b", "h", 3, 4))


def placed(revision=1, rows=(("a", "b"), ("b", "a")), this="b", nodes=NODES):
    return PlacedMap(BucketMap(revision, nodes, rows), this)


async def test_a_map_makes_the_bucket_with_its_uuid(make, tmp_path):
    buckets = await opened(make)
    await buckets.set_map("m", UUID, 2, placed())
    assert buckets.map_of("m") == placed()
    (status,) = buckets.statuses()
    assert (status.name, status.uuid, status.partitions, status.state) == ("m", UUID, 2, "ready")
    assert buckets.copies("m").asked == 2, "when it was brought up, and to be told of failure"
    again = await opened(make)
    assert again.map_of("m") == placed()
    assert again.copies("m").asked == 1


async def test_a_bucket_is_given_a_map_and_newer_ones(make):
    buckets = await opened(make)
    uuid = (await buckets.create("m", 2)).uuid
    assert buckets.map_of("m") is None
    assert (await opened(make)).map_of("m") is None
    for one in (placed(), placed(), placed(7, rows=(("b", None), (None, "b")))):
        await buckets.set_map("m", uuid, 2, one)
        assert buckets.map_of("m") == one
        assert (await opened(make)).map_of("m") == one


@pytest.mark.parametrize(
    ("uuid", "partitions", "given", "code"),
    [
        ("f" * 32, 2, placed(6), "other_uuid"),
        (UUID, 4, placed(6, rows=(("a", "b"),) * 4), "other_partitions"),
        (UUID, 2, placed(6, this="a"), "other_node_name"),
        (UUID, 2, placed(5, this="a"), "other_node_name"),
        (UUID, 2, placed(4), "older_map"),
        (UUID, 2, placed(5, rows=(("b", "a"), ("b", "a"))), "other_map"),
        (UUID, 2, placed(5, nodes=(*NODES, NodeAddress("c", "h", 5, 6))), "other_map"),
    ],
)
async def test_a_map_that_must_not_take_its_place(make, uuid, partitions, given, code):
    buckets = await opened(make)
    await buckets.set_map("m", UUID, 2, placed(5))
    with pytest.raises(ConditionError) as caught:
        await buckets.set_map("m", uuid, partitions, given)
    assert caught.value.code == code
    assert buckets.map_of("m") == placed(5)
    assert (await opened(make)).map_of("m") == placed(5)


@pytest.mark.parametrize("uuid", ["", "f" * 31, "F" * 32, "../" + "f" * 29, "f" * 31 + "\n"])
async def test_a_uuid_is_one(make, uuid):
    buckets = await opened(make)
    with pytest.raises(UsageError) as caught:
        await buckets.set_map("m", uuid, 2, placed())
    assert caught.value.code == "bad_bucket_uuid"


async def test_what_a_new_bucket_may_not_be_by_map_either(make, tmp_path):
    buckets = await opened(make)
    await buckets.set_map("m", UUID, 2, placed())
    for name, uuid, partitions, code in (
        ("n", UUID, 2, "uuid_taken"),
        ("_n", "f" * 32, 2, "bad_bucket_name"),
        ("n", "f" * 32, 3, "bad_partitions"),
        ("n", "f" * 32, 4, "bad_map_rows"),
    ):
        with pytest.raises((ConditionError, UsageError)) as caught:
            await buckets.set_map(name, uuid, partitions, placed())
        assert caught.value.code == code
    assert [path.name for path in (tmp_path / "buckets").iterdir()] == [UUID]


async def test_replicas_that_could_not_be_made_are_asked_for_again(make):
    buckets = await opened(make)
    await buckets.set_map("m", UUID, 2, placed())
    buckets.copies("m").errors.append(UnavailableError("full", code="disk_full"))
    with pytest.raises(UnavailableError, match="full"):
        await buckets.set_map("m", UUID, 2, placed(2))
    assert buckets.map_of("m") == placed(2)
    asked = buckets.copies("m").asked
    await buckets.set_map("m", UUID, 2, placed(2))
    assert buckets.copies("m").asked == asked + 1


async def test_at_a_start_missing_replicas_keep_no_bucket_down(make):
    await (await opened(make)).set_map("m", UUID, 2, placed())
    again = make()
    make.copy_errors.append(UnavailableError("full", code="disk_full"))
    await again.open_all()
    assert again.statuses()[0].state == "ready"
    stopped = make()
    make.copy_errors.append(RuntimeError("unforeseen"))
    with pytest.raises(RuntimeError):
        await stopped.open_all()
    assert not stopped.running


@pytest.mark.parametrize("content", [None, b"", b"{}"])
async def test_without_its_map_a_bucket_is_not_served_and_a_map_heals_it(make, tmp_path, content):
    await (await opened(make)).set_map("m", UUID, 2, placed(3))
    file = tmp_path / "buckets" / UUID / MAP_FILE
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    buckets = await opened(make)
    (status,) = buckets.statuses()
    assert status.state == "failed"
    assert MAP_FILE in status.reason
    assert not buckets.served
    with pytest.raises(UnavailableError, match=MAP_FILE):
        buckets.map_of("m")
    with pytest.raises(ConditionError, match="has the uuid"):
        await buckets.set_map("m", "f" * 32, 2, placed(4))
    await buckets.set_map("m", UUID, 2, placed(4))
    assert buckets.statuses()[0].state == "ready"
    assert buckets.map_of("m") == placed(4)
    assert (await opened(make)).map_of("m") == placed(4)


async def test_a_bucket_damaged_elsewhere_is_not_healed_by_a_map(make, tmp_path):
    await (await opened(make)).set_map("m", UUID, 2, placed(3))
    (tmp_path / "buckets" / UUID / MAP_FILE).unlink()
    buckets = await opened(make, damaged=("m",))
    with pytest.raises(UnavailableError, match="offset 7"):
        await buckets.set_map("m", UUID, 2, placed(4))
    with pytest.raises(UnavailableError, match="offset 7"):
        await buckets.set_map("m", UUID, 2, placed(4))
    assert buckets.statuses()[0].state == "failed"


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_map_that_cannot_be_written_is_not_in_force(make, tmp_path, monkeypatch, is_new):
    buckets = await opened(make)
    if not is_new:
        await buckets.set_map("m", UUID, 2, placed())

    def refuse(path, content, **_):
        raise OSError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(map_file, "write_atomically", refuse)
        with pytest.raises(UnavailableError, match="no space left") as caught:
            await buckets.set_map("m", UUID, 2, placed(2))
        assert caught.value.code == "disk_error"
    if is_new:
        assert not buckets.statuses()
        assert list((tmp_path / "buckets").iterdir()) == []
    else:
        assert buckets.map_of("m") == placed()
    await buckets.set_map("m", UUID, 2, placed(2))
    assert buckets.map_of("m") == placed(2)
