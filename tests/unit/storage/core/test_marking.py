import pytest

from millstream.runtime.disk import OsFile
from millstream.storage.core import marking
from millstream.storage.core.marking import PurgeScan, points_in_force
from millstream.storage.core.records import LowPoints
from millstream.storage.core.summary import PartitionSummary
from millstream.wire.frames import seqno_of
from support.kv.compacting import compact, mark


def flags(store, p):
    """Superseded or tombstone, by seqno, of sealed segments."""
    log = store._log
    return {
        seqno: flag
        for number in log.numbers[:-1]
        if (columns := log.columns(number, p))
        for seqno, flag in zip(
            columns.seqnos, columns.flags or bytes(len(columns.seqnos)), strict=True
        )
    }


def mark_all(store):
    for _ in mark(store):
        pass


def test_what_was_replaced_in_the_history_that_is_over_is_marked(directory):
    store = directory.open()
    for key in (b"a", b"b", b"a", b"b", b"a"):
        directory.write(0, (key, b"1"))
    directory.write(1, (b"a", b"1"), (b"b", b"1"))
    store._log.roll()
    mark_all(store)
    assert set(flags(store, 0).values()) == {0}
    store.set_low_points({0: (4, 0)})
    mark_all(store)
    assert flags(store, 0) == {1: 1, 2: 1, 3: 0, 4: 0, 5: 0}
    assert set(flags(store, 1).values()) == {0}
    store.set_low_points({0: (5, 0)})
    mark_all(store)
    assert flags(store, 0) == {1: 1, 2: 1, 3: 1, 4: 0, 5: 0}


def test_old_tombstones_are_marked_and_what_they_replaced(directory):
    store = directory.open()
    directory.write(0, (b"a", b"1"), (b"b", b"1"))
    directory.write(0, (b"a", None))
    directory.write(0, (b"b", None), (b"c", None))
    store._log.roll()
    store.set_low_points({0: (5, 3)})
    mark_all(store)
    assert flags(store, 0) == {1: 1, 2: 1, 3: 3, 4: 2, 5: 2}
    assert directory.state(0) == {}


def test_what_was_replaced_in_the_segment_that_is_written_is_marked_once_it_is_sealed(directory):
    """Else the first version comes back once the one that replaced it has gone."""
    store = directory.open()
    directory.write(0, (b"b", b"1"))
    store._log.roll()
    directory.write(0, (b"a", b"1"), (b"b", b"2"))
    directory.write(0, (b"a", b"2"))
    store.set_low_points({0: (4, 0)})
    mark_all(store)
    assert flags(store, 0) == {1: 1}
    store._log.roll()
    directory.write(0, (b"a", None))
    store.set_low_points({0: (5, 5)})
    mark_all(store)
    assert flags(store, 0) == {1: 1, 2: 1, 3: 0, 4: 1}
    store._log.roll()
    directory.write(1, (b"x", b"1"))
    compact(store)
    assert directory.state(0) == {b"b": b"2"}


def test_a_flag_that_says_tombstone_is_not_believed(directory):
    store = directory.open()
    directory.write(0, (b"a", b"1"), (b"b", None))
    store._log.roll()
    store._log.write_flags(1, 0, 0, b"\xfe")
    store.set_low_points({0: (2, 2)})
    mark_all(store)
    assert flags(store, 0) == {1: 0xFE, 2: 3}
    assert directory.state(0) == {b"a": b"1"}


@pytest.mark.parametrize("at_once", [0, 3, 10_000])
def test_pieces_and_groups_meet(directory, monkeypatch, at_once):
    monkeypatch.setattr(marking, "MARKED_AT_ONCE_MAX", at_once)
    monkeypatch.setattr(marking, "STEP_RECORDS_MAX", 4)
    monkeypatch.setattr(marking, "STEP_TOMBSTONES_MAX", 3)
    monkeypatch.setattr(marking, "_GROUP_BITS", 2)
    store = directory.open()
    directory.fill(200)
    directory.write(0, *((b"key%d" % n, None) for n in range(20)))
    store._log.roll()
    store.set_low_points({0: (120, 112), 1: (70, 0)})
    mark_all(store)
    newest = {0: {}, 1: {}}
    for n in range(200):
        newest[n % 2][n // 2 + 1] = n % 20
    newest[0] |= {101 + n: n for n in range(20)}
    for p, history, purge in ((0, 120, 112), (1, 70, 0)):
        for seqno, flag in flags(store, p).items():
            key = newest[p][seqno]
            later = [s for s, k in newest[p].items() if k == key and seqno < s <= history]
            is_old_tombstone = p == 0 and 100 < seqno <= purge
            assert flag & 1 == bool(later or is_old_tombstone), (p, seqno)


def test_marks_of_a_killed_process_are_made_durable(directory, monkeypatch):
    store = directory.open()
    directory.write(0, (b"a", b"1"))
    store._log.roll()
    directory.write(0, (b"a", b"2"))
    store._log.roll()
    directory.write(0, (b"b", b"2"))
    store.set_low_points({0: (3, 0)})
    mark_all(store)
    directory.crash()
    store = directory.open()
    synced = []
    monkeypatch.setattr(store._log, "sync_segment", synced.append)
    mark_all(store)
    assert synced == [1]
    mark_all(store)
    assert synced == [1], "known by now"


def test_nothing_is_believed_marked_before_it_is_synced(directory, monkeypatch):
    store = directory.open()
    directory.write(0, (b"a", b"1"), (b"b", b"1"))
    directory.write(0, (b"a", b"2"))
    store._log.roll()
    store.set_low_points({0: (3, 0)})
    marking = store.reclaiming.begin_marking()
    with monkeypatch.context() as context:
        context.setattr(OsFile, "sync", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            list(marking.steps())
    assert marking.marked == [0, 0, 0, 0]
    list(marking.steps())
    assert marking.marked == [3, 0, 0, 0]


def test_a_rollback_takes_back_what_is_known(directory):
    store = directory.open()
    for n in range(6):
        directory.write(0, (b"a", b"%d" % n))
        directory.write(1, (b"a", b"%d" % n))
    store._log.roll()
    store.set_low_points({0: (4, 0), 1: (4, 0)})
    mark_all(store)
    assert store.reclaiming._marked() == [4, 4, 0, 0]
    store.roll_back(0, 5)
    store.roll_back(1, 2)
    assert store.reclaiming._marked() == [4, 0, 0, 0]
    marking = store.reclaiming.begin_marking()
    list(marking.steps())
    store.roll_back(0, 0)
    store.reclaiming.end_marking(marking)
    assert store.reclaiming._marked() == [0, 0, 0, 0]


def test_dead_records_of_the_same_seqnos_are_left_alone(directory):
    store = directory.open()
    for n in range(4):
        directory.write(0, (b"a", b"%d" % n))
    store._log.roll()
    store.roll_back(0, 1)
    directory.highs[0] = 1
    directory.write(0, (b"b", b"x"))
    directory.write(0, (b"b", b"y"))
    store._log.roll()
    store.set_low_points({0: (3, 0)})
    mark_all(store)
    columns = [store._log.columns(number, 0) for number in (1, 2)]
    assert [c.flags or bytes(len(c.seqnos)) for c in columns] == [bytes(4), b"\1\0"]
    compact(store)
    assert directory.state(0) == {b"a": b"0", b"b": b"y"}


def test_low_points_above_the_mark_are_not_in_force():
    summary = PartitionSummary()
    summary.low_points, summary.mark = LowPoints(9, 7), 5
    assert points_in_force(summary) == (5, 5)


def test_tombstones_are_purged_by_age_in_order(directory):
    """The CAS of a change is the time it was made; those of the directory were made at 1."""
    store = directory.open()
    directory.write(0, (b"a", b"1"), (b"b", None), (b"c", None))
    store._log.roll()
    directory.write(0, (b"d", b"1"), (b"e", None), (b"f", None), (b"g", b"1"))
    store._log.roll()
    directory.write(0, (b"h", None))

    def found(limit, cutoff):
        scan = PurgeScan(store._live, [limit, 9, 9, 9], cutoff)
        for _ in scan.steps():
            pass
        return scan.seqnos

    for change in (c for chunk in store.scan(0, 0, 9) for c in chunk):
        assert int.from_bytes(change.frame[16:24], "big") == 1
    assert found(9, 0) == [0, 0, 0, 0]
    assert found(9, 1) == [6, 0, 0, 0], "what is in the open segment is left for later"
    assert found(5, 1) == [5, 0, 0, 0]
    assert found(1, 1) == [0, 0, 0, 0]
    store.set_low_points({0: (7, 3)})
    assert found(9, 0) == [3, 0, 0, 0]


def test_a_young_tombstone_ends_the_search(directory, monkeypatch):
    times = {2: 50, 3: 70, 5: 60}
    monkeypatch.setattr(
        marking, "_cas_seqno", lambda frame: (times.get(seqno_of(frame), 0), seqno_of(frame))
    )
    store = directory.open()
    directory.write(0, (b"a", b"1"), (b"b", None), (b"c", None), (b"d", b"1"), (b"e", None))
    store._log.roll()
    for cutoff, newest in ((40, 0), (50, 2), (65, 2), (70, 5)):
        scan = PurgeScan(store._live, [9] * 4, cutoff)
        for _ in scan.steps():
            pass
        assert scan.seqnos[0] == newest
