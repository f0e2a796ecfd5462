import pytest

from millstream.errors import CorruptionError
from millstream.runtime.disk import OsDisk
from millstream.storage.aio.by_id import LmdbByIdMap
from millstream.storage.core.by_id import ById
from millstream.storage.core.log_check import check_log
from millstream.storage.core.segment_log import SegmentLog
from millstream.storage.core.store import FlushBatch
from support.kv.compacting import compact, mark


def checked(directory, *, with_by_id=True):
    """As of a directory that is not open."""
    log = SegmentLog(OsDisk(directory.path / "log"), directory.sizes)
    found = LmdbByIdMap.unchanged(directory.path / "byid") if with_by_id else None
    try:
        return check_log(log, directory.partition_count, found and ById(found))
    finally:
        log.close()
        if found is not None:
            found.close(is_durable=False)


def written(directory):
    """Overwritten, deleted, rolled back, partly compacted; stopped cleanly."""
    store = directory.open()
    for n in range(4):
        directory.write(0, *((b"k%d" % k, b"%d" % n) for k in range(6)))
    directory.write(0, (b"k0", None), (b"k1", None))
    directory.write(1, (b"x", b"1"), (b"y", b"1"))
    store._log.roll()
    directory.write(1, (b"x", b"2"))
    store.roll_back(1, 2)
    directory.highs[1] = 2
    directory.write(1, (b"z", b"3"))
    store._log.roll()
    directory.write(2, (b"o", b"1"))
    store.set_low_points({0: (12, 0)})
    return store


def test_a_sound_log_is_counted(directory):
    store = written(directory)
    for _ in mark(store):
        pass
    store.stop()
    found = checked(directory)
    assert (found.segments, found.compacted_segments, found.by_id) == (4, 0, "current")
    zero, one = found.partitions[:2]
    assert (zero.changes, zero.documents, zero.tombstones, zero.replaced) == (26, 4, 2, 20)
    assert (zero.marked, zero.dead, zero.marks) == (6, 0, 5)
    assert (zero.high_seqno, zero.history_seqno, zero.purge_seqno) == (26, 12, 0)
    assert (one.changes, one.documents, one.dead, one.marks) == (4, 3, 1, 2)
    assert found.by_id_keys == 6 + 3 + 1
    assert found.bytes == sum(p.stat().st_size for p in directory.segments()) - trailers(directory)


def test_the_wanted_sidecars_of_the_newest_records_are_returned(directory):
    store = directory.open()
    for key, value, sidecar in (
        (b"a", b"1", b"wanted old"),
        (b"a", b"2", b"wanted new"),
        (b"b", b"1", b"other"),
        (b"c", b"1", b"wanted gone"),
        (b"c", b"2", b""),
    ):
        change = directory.change(0, key, value, sidecar)
        commit = store.encode([FlushBatch.of(0, [change])])
        store.withdraw_receipt()
        store.append(commit)
        store.absorb(commit)
    store.stop()
    log = SegmentLog(OsDisk(directory.path / "log"), directory.sizes)
    found = check_log(log, 4, None, is_wanted=lambda sidecar: sidecar.startswith(b"wanted"))
    log.close()
    assert list(found.sidecars.values()) == [b"wanted new"]


def trailers(directory):
    log = SegmentLog(OsDisk(directory.path / "log"), directory.sizes)
    found = sum(log.size_of(number) - log.end_of(number) for number in log.numbers[:-1])
    log.close()
    return found


def test_a_compacted_log_is_counted(directory):
    store = written(directory)
    compact(store)
    store.stop()
    found = checked(directory)
    assert (found.segments, found.compacted_segments) == (2, 1)
    zero, one = found.partitions[:2]
    assert (zero.changes, zero.documents, zero.tombstones, zero.replaced) == (20, 4, 2, 14)
    assert (one.changes, one.documents, one.dead) == (3, 3, 0)
    assert found.by_id == "current"
    assert checked(directory, with_by_id=False).by_id == "rebuilt"


def test_after_a_kill_by_id_is_behind(directory):
    store = written(directory)
    store.commit_by_id()
    directory.write(3, (b"new", b"1"))
    directory.write(0, (b"k5", b"new"))
    directory.crash()
    found = checked(directory)
    assert (found.by_id, found.by_id_keys) == ("behind", 6 + 3 + 1 - 1)


def test_a_map_that_names_another_record_is_damage(directory):
    store = written(directory)
    store.stop()
    damaged = LmdbByIdMap(directory.path / "byid")
    value = damaged.get(b"\0\0k5")
    list(damaged.apply_steps([([(b"\0\0k5", bytes(7) + b"\1" + value[8:])], [])]))
    damaged.close(is_durable=True)
    with pytest.raises(CorruptionError, match=r"seqno 24 of partition 0, key b'k5'"):
        checked(directory)


def test_records_that_contradict_each_other_are_damage(directory):
    store = directory.open()
    directory.write(0, (b"a", b"1"))
    change = directory.change(0, b"a", b"2")._replace(previous_seqno=0)
    store.append(commit := store.encode([FlushBatch.of(0, [change])]))
    store.absorb(commit)
    store.stop()
    with pytest.raises(
        CorruptionError, match=r"partition 0, seqno 2: it does not know of seqno 1"
    ):
        checked(directory)


def test_a_mark_without_right_is_damage(directory):
    store = directory.open()
    directory.write(0, (b"a", b"1"), (b"b", b"1"))
    store._log.roll()
    store._log.write_flags(1, 0, 1, b"\1")
    store.stop()
    with pytest.raises(CorruptionError, match="it is marked, but not below 0"):
        checked(directory)


def test_an_index_that_says_something_else_is_damage(directory):
    """Its checksums are right: a fault of a program, not of the disk."""
    store = directory.open()
    directory.write(0, (b"a", b"1"), (b"b", b"1"))
    store._log.open_index.of(0).previous[1] = 1
    store._log.roll()
    store.stop()
    with pytest.raises(CorruptionError, match="its index of partition 0 is not what is in it"):
        checked(directory)


def test_a_change_of_a_partition_that_is_not_there_is_damage(directory):
    directory.open()
    directory.write(3, (b"a", b"1"))
    directory.store.stop()
    directory.partition_count = 2
    with pytest.raises(CorruptionError, match="records of partition 3; the bucket has 2"):
        checked(directory)


def test_seqnos_that_do_not_ascend_are_damage(directory):
    store = directory.open()
    directory.write(0, (b"a", b"1"))
    store._log.roll()
    directory.highs[0] = store._summaries[0].top = 0
    directory.write(0, (b"b", b"1"))
    directory.crash()
    with pytest.raises(CorruptionError, match=r"seqno 1: it follows seqno 1"):
        checked(directory)
