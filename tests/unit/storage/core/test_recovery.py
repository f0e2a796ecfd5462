import shutil

import pytest

from millstream.errors import CorruptionError
from millstream.storage.aio.by_id import LmdbByIdMap
from millstream.storage.core import recovery
from millstream.storage.core.reached import REACHED_NAME
from millstream.storage.core.receipt import RECEIPT_NAME
from millstream.storage.core.records import (
    StoredChange,
    change_record,
    mark_record,
    rollback_record,
)
from millstream.wire.frames import mutation
from support.kv.compacting import compact


def logs(store):
    return [state.failover_log for state in store.partitions]


def test_by_id_follows_from_its_applied_place(directory):
    store = directory.open()
    directory.fill(30)
    assert store.count_pending_by_id() == 30
    store.commit_by_id()
    assert store.count_pending_by_id() == 0
    directory.fill(10)
    right = {key: directory.value(p, key) for p in range(2) for key in store.keys(p)}
    directory.crash()
    store = directory.open()
    assert 0 < store.count_pending_by_id() <= 10
    assert {key: directory.value(p, key) for p in range(2) for key in store.keys(p)} == right


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_lost_by_id_is_built_anew(directory, is_clean, monkeypatch):
    monkeypatch.setattr(recovery, "BUILD_KEYS_MAX", 3)
    directory.open()
    directory.fill()
    directory.store.roll_back(0, 20)
    directory.highs[0] = 20
    directory.write(0, (b"new", b"1"), (b"key0", None))
    states, before = [directory.state(p) for p in range(2)], logs(directory.store)
    if is_clean:
        directory.store.stop()
    else:
        directory.crash()
    shutil.rmtree(directory.path / "byid")
    store = directory.open()
    assert store.was_clean_stop == is_clean
    assert [log[-len(old) :] for log, old in zip(logs(store), before, strict=True)] == before
    assert [directory.state(p) for p in range(2)] == states
    for p in range(2):
        assert {k: directory.value(p, k) for k in states[p]} == states[p]
        assert set(store.keys(p)) == {*states[p], b"key0"} if p == 0 else set(states[p])
    assert store.find(0, b"key0").frame[1] == 0x58


def test_a_log_that_lacks_what_by_id_has_of_it_stops_the_start(directory, tmp_path):
    directory.open()
    directory.write(0, (b"a", b"1"))
    directory.store.stop()
    shutil.move(directory.path / "log", tmp_path / "log")
    for _ in range(2):
        with pytest.raises(CorruptionError, match="byid belongs to another log"):
            directory.open()  # an empty log under the old by-id
    shutil.rmtree(directory.path / "log")
    shutil.move(tmp_path / "log", directory.path / "log")
    receipt, segment = directory.path / "log" / RECEIPT_NAME, directory.segments()[0]
    receipt.unlink()
    receipt.with_name(REACHED_NAME).unlink()
    segment.write_bytes(segment.read_bytes()[:-10])
    for _ in range(2):
        with pytest.raises(CorruptionError, match="the log ends at segment 1, offset") as raised:
            directory.open()
        assert raised.value.code == "log_lost"
    shutil.rmtree(directory.path / "byid")
    directory.open()
    assert directory.value(0, b"a") == b"1"


@pytest.mark.parametrize("is_written", [False, True])
def test_the_log_of_a_bucket_with_more_partitions_stops_the_start(directory, is_written):
    directory.open()
    if is_written:
        directory.fill()
    directory.store.stop()
    shutil.rmtree(directory.path / "byid")  # copied alone, as from a backup
    directory.partition_count = 2
    for _ in range(2):
        with pytest.raises(CorruptionError, match="partition 2; the bucket has 2: this is the"):
            directory.open()
    directory.partition_count = 4
    directory.open()


def test_a_rollback_written_elsewhere_is_followed(directory):
    """A rollback record that by-id has not seen, of records that it has."""
    store = directory.open()
    directory.write(0, (b"a", b"1"))
    directory.write(0, (b"a", b"2"), (b"b", b"2"))
    store.commit_by_id()
    directory.crash()
    path = directory.segments()[0]
    path.write_bytes(path.read_bytes() + rollback_record(0, 1))
    directory.open()
    assert directory.state(0) == {b"a": b"1"}
    assert (directory.value(0, b"a"), directory.value(0, b"b")) == (b"1", None)


@pytest.mark.parametrize("is_by_id_lost", [False, True])
def test_a_mark_record_keeps_the_mark_of_a_dropped_change(directory, is_by_id_lost):
    store = directory.open()
    directory.write(0, (b"a", b"1"), (b"b", b"1"))
    directory.crash()
    path = directory.segments()[0]
    path.write_bytes(path.read_bytes() + mark_record(0, 7) + mark_record(2, 5))
    if is_by_id_lost:
        shutil.rmtree(directory.path / "byid")
    store = directory.open()
    assert [state.high_seqno for state in store.partitions] == [7, 0, 5, 0]
    assert store.roll_back(0, 6).high_seqno == 2
    store._log.roll()
    directory.crash()
    store = directory.open()
    assert [state.high_seqno for state in store.partitions] == [2, 0, 5, 0]


@pytest.mark.parametrize("begin", [0, 8192, -5])
def test_a_damaged_by_id_is_built_anew(directory, begin):
    store = directory.open()
    directory.fill(60)
    before = directory.state(0)
    store.stop()
    data = directory.path / "byid" / "data.mdb"
    content = data.read_bytes()
    kept = len(content) // 2 if begin < 0 else begin
    with data.open("r+b") as file:
        file.write(content[:kept])
        if begin < 0:
            file.truncate(kept)
        else:
            file.write(b"\xa5" * (len(content) - kept))
    store = directory.open()
    assert store.was_clean_stop
    assert directory.state(0) == before
    assert {key: directory.value(0, key) for key in before} == before
    assert sorted(store.keys(0)) == sorted(before)
    directory.write(0, (b"new", b"1"))
    store.stop()
    directory.open()
    assert directory.value(0, b"new") == b"1"


def test_damaged_summaries_are_built_anew(directory):
    store = directory.open()
    directory.write(1, (b"a", b"1"))
    store.stop()
    by_id = LmdbByIdMap(directory.path / "byid")
    list(by_id.apply_steps([([(b"\xff\xff\x00\x01", b"short")], [])]))
    by_id.close(is_durable=True)
    store = directory.open()
    assert store.partitions[1].high_seqno == 1
    assert directory.value(1, b"a") == b"1"


def test_a_rollback_is_replayed_whatever_its_segment_holds_later(directory):
    directory.open().commit_by_id()
    for key in (b"a", b"b", b"x"):
        directory.write(0, (key, b"old"))
    directory.store._log.roll()
    directory.store.commit_by_id()
    directory.store.roll_back(0, 2)
    directory.highs[0] = 2
    directory.write(0, (b"c", b"new"))
    directory.store.roll_back(0, 0)
    directory.highs[0] = 0
    directory.write(0, (b"d", b"new"))
    directory.crash()
    store = directory.open()
    assert sorted(store.keys(0)) == [b"d"]
    assert directory.value(0, b"a") is None


def test_a_tail_of_many_segments_waits_for_by_id_and_is_applied(directory):
    store = directory.open()
    directory.write(2, (b"older", b"1"))
    store.commit_by_id()
    directory.fill(60)
    directory.write(1, (b"key3", None), (b"last", b"1"))
    right = {(p, key): directory.value(p, key) for p in range(3) for key in store.keys(p)}
    states = [directory.state(p) for p in range(3)]
    directory.crash()
    store = directory.open()
    assert store.count_pending_by_id() == 62
    store.commit_by_id()
    assert store.count_pending_by_id() == 0
    assert {(p, k): directory.value(p, k) for p in range(3) for k in store.keys(p)} == right
    assert [directory.state(p) for p in range(3)] == states


def test_a_torn_batch_behind_the_applied_place_gives_way_to_what_was_before(directory):
    store = directory.open()
    directory.write(0, (b"a", b"1"))
    store.commit_by_id()
    directory.write(0, (b"a", b"2"), (b"b", b"2"))
    directory.crash()
    torn = [
        change_record(
            0, StoredChange(mutation(0, key, b"torn", seqno, 1, 1, 0, 0, 0), before, b"lin"),
            is_mark=False,
        )
        for key, seqno, before in ((b"a", 4, 2), (b"c", 5, 0))
    ]  # fmt: skip
    path = directory.segments()[0]
    path.write_bytes(path.read_bytes() + b"".join(torn))
    for _ in range(2):
        store = directory.open()
        assert store.partition(0).high_seqno == 3
        assert [directory.value(0, key) for key in (b"a", b"b", b"c")] == [b"2", b"2", None]
        assert sorted(store.keys(0)) == [b"a", b"b"]
        directory.crash()


def test_damage_behind_the_applied_place_names_file_and_offset(directory):
    directory.open().commit_by_id()
    directory.fill(60)
    directory.crash()
    first, *_, last = directory.segments()
    content = bytearray(first.read_bytes())
    content[400] ^= 1
    first.write_bytes(content)
    with pytest.raises(CorruptionError, match=f"{first}.*offset") as raised:
        directory.open()
    assert str(last) not in str(raised.value)


def test_a_superseded_record_does_not_hide_a_newer_one_of_its_key(directory):
    """Both stand in one segment, the older one marked by compaction; by-id is lost."""
    store = directory.open()
    directory.write(0, (b"a", b"1"))
    directory.write(0, (b"a", b"2"))
    store._log.roll()
    directory.write(1, (b"x", b"1"))
    store.set_low_points({0: (2, 0)})
    marking = store.reclaiming.begin_marking()
    list(marking.steps())
    directory.crash()
    shutil.rmtree(directory.path / "byid")
    directory.open()
    assert directory.value(0, b"a") == b"2"


def test_a_rollback_is_replayed_without_the_older_records_that_it_killed(directory):
    """Compaction took a@1 away; a@2 names it, and b gets that seqno after the rollback."""
    store = directory.open()
    directory.write(0, (b"a", b"1"))
    directory.write(0, (b"a", b"2"))
    store._log.roll()
    directory.write(1, (b"x", b"1"))
    store.set_low_points({0: (2, 0)})
    compact(store)
    store.roll_back(0, 1)
    directory.highs[0] = 0
    directory.write(0, (b"b", b"3"))
    directory.crash()
    store = directory.open()
    assert (directory.value(0, b"a"), directory.value(0, b"b")) == (None, b"3")
    assert list(store.keys(0)) == [b"b"]
