import random
import shutil
from unittest.mock import Mock

import pytest

from millstream.errors import CorruptionError, UnavailableError, UsageError
from millstream.model.limits import UINT64_MAX
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.runtime.disk import OsDisk, OsFile
from millstream.storage.core import store as store_module
from millstream.storage.core.reached import REACHED_NAME
from millstream.storage.core.records import CopyNews, LowPoints, Owed
from millstream.storage.core.segment import encode_header
from millstream.storage.core.segment_log import LogSizes
from millstream.storage.core.store import FlushBatch, StoredChange
from millstream.wire.frames import mutation, seqno_of


def logs(store):
    return [state.failover_log for state in store.partitions]


# -- start and stop


def test_a_new_store_has_one_entry_for_each_partition(directory):
    store = directory.open()
    assert store.is_new
    assert not store.was_clean_stop
    for state in store.partitions:
        assert state.is_empty
        assert len(state.failover_log) == 1
        assert (state.high_seqno, state.last_branch) == (0, 1)
    assert not store.has_records(0)
    assert store.find(0, b"a") is None
    assert list(store.scan(0, 0, 2**60)) == []


def test_a_clean_stop_keeps_everything_and_adds_no_entry(directory):
    before = logs(directory.open())
    directory.fill()
    states = [directory.state(p) for p in range(2)]
    for _ in range(2):  # the second time nothing was written in between
        directory.store.stop()
        store = directory.open()
        assert store.was_clean_stop
        assert not store.is_new
        assert logs(store) == before
        assert [directory.state(p) for p in range(2)] == states
        assert store.count_pending_by_id() == 0
        assert [state.high_seqno for state in store.partitions[:2]] == [30, 30]


def test_a_crash_after_a_clean_start_that_changed_nothing_is_clean(directory):
    directory.open().stop()
    directory.open()
    directory.crash()
    assert directory.open().was_clean_stop
    directory.store.withdraw_receipt()  # a mutation in memory is history already
    directory.crash()
    assert not directory.open().was_clean_stop


def test_a_crash_adds_an_entry_at_the_last_mark(directory):
    before = logs(directory.open())
    directory.write(1, (b"a", b"1"), (b"b", b"2"))
    directory.crash()
    store = directory.open()
    assert not store.was_clean_stop
    for p, state in enumerate(store.partitions):
        entry = state.failover_log[0]
        assert state.failover_log[1:] == before[p]
        assert (entry.seqno, entry.branch) == (2 if p == 1 else 0, 2)
        assert state.last_branch == 2
    assert directory.value(1, b"b") == b"2"


@pytest.mark.parametrize("is_moved_back", [False, True])
def test_a_copied_directory_has_new_entries(directory, tmp_path, is_moved_back):
    directory.open()
    directory.fill(4)
    directory.store.stop()
    shutil.copytree(directory.path, tmp_path / "copy")
    if is_moved_back:
        shutil.rmtree(directory.path)
        (tmp_path / "copy").rename(directory.path)
    else:
        directory.path = tmp_path / "copy"
    store = directory.open()
    assert not store.was_clean_stop
    assert all(len(log) == 2 for log in logs(store))
    assert directory.value(0, b"key0")[:1] == b"0"


def test_after_a_new_boot_there_are_new_entries(directory, monkeypatch):
    directory.open().stop()
    monkeypatch.setattr(OsDisk, "boot_id", lambda _: "another")
    assert not directory.open().was_clean_stop
    monkeypatch.setattr(OsDisk, "boot_id", lambda _: "")  # a system that cannot tell
    directory.store.stop()
    assert not directory.open().was_clean_stop


def test_a_torn_batch_is_dead_and_its_seqnos_are_used_again(directory):
    directory.open()
    directory.write(0, (b"a", b"old"), (b"b", b"old"))
    end, reached = directory.segments()[-1].stat().st_size, directory.path / "log" / REACHED_NAME
    before = reached.read_bytes()
    directory.write(0, (b"a", b"new"), (b"b", None), (b"c", b"new"))
    directory.crash()
    reached.write_bytes(before)  # it was not durable yet
    path = directory.segments()[-1]
    data = path.read_bytes()[: end + 200]  # the first record of the batch is whole
    path.write_bytes(data)
    store = directory.open()
    assert store.cut_bytes > 0
    assert store.partition(0).high_seqno == 2
    assert directory.state(0) == {b"a": b"old", b"b": b"old"}
    assert directory.value(0, b"a") == b"old"
    assert store.partition(0).failover_log[0].seqno == 2
    directory.write(0, (b"a", b"other"))
    for _ in range(2):
        assert directory.state(0) == {b"a": b"other", b"b": b"old"}
        assert directory.value(0, b"a") == b"other"
        directory.crash()
        directory.open()


def test_damage_inside_the_log_is_named_and_nothing_is_changed(directory):
    directory.open()
    directory.write(0, (b"a", b"1" * 100))
    offset = directory.segments()[0].stat().st_size
    for _ in range(3):
        directory.write(0, (b"a", b"2" * 100))
    directory.store.stop()
    path = directory.segments()[0]
    data = bytearray(path.read_bytes())
    data[offset + 120] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match=r"00000001\.seg is damaged at offset (\d+)"):
        directory.open()
    assert path.read_bytes() == data


def test_damage_in_a_sealed_segment_stops_the_start(directory):
    directory.open()
    directory.fill()
    directory.store.stop()
    path = directory.segments()[1]
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match=r"00000002\.seg is damaged at offset"):
        directory.open()


def test_damage_beyond_what_a_start_reads_is_found_by_reading(directory, monkeypatch):
    monkeypatch.setattr("millstream.storage.core.store.CHECK_AT_START_BYTES_MAX", 0)
    directory.open()
    directory.fill()
    directory.store.stop()
    path = directory.segments()[1]
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    store = directory.open()
    for call in (store.verify, lambda: [list(store.scan(p, 0, 2**60)) for p in range(2)]):
        with pytest.raises(CorruptionError, match=r"00000002\.seg is damaged at offset"):
            call()


def test_a_newer_format_is_refused(directory, monkeypatch):
    directory.open().stop()
    path = directory.segments()[0]
    with monkeypatch.context() as newer:
        newer.setattr("millstream.storage.core.segment.FORMAT_VERSION", 2)
        path.write_bytes(encode_header(1, bytes(16)) + path.read_bytes()[64:])
    with pytest.raises(UsageError, match="newer") as raised:
        directory.open()
    assert raised.value.code == "newer_format"


# -- by-id


def test_a_find_survives_a_record_that_moved(directory):
    """As after a compaction: by-id names a segment and an offset that hold something else."""
    store = directory.open()
    directory.fill()
    store._by_id.settle(0, store._find_places)
    key = b"\0\0key4"
    seqno, segment, offset = store._by_id.pending[key]
    for place in ((segment, offset + 1), (segment, 70), (1, offset), (999, 64)):
        store._by_id.pending[key] = (seqno, *place)
        assert seqno_of(store.find(0, b"key4").frame) == seqno


def test_what_by_id_names_and_the_log_lacks_is_damage_and_not_an_absent_document(directory):
    store = directory.open()
    directory.fill()
    store._by_id.settle(0, store._find_places)
    key = b"\0\0key4"
    seqno, segment, offset = store._by_id.pending[key]
    other = store._by_id.pending[b"\0\0key6"]
    for wrong in ((seqno + 1000, segment, offset), (other[0], segment, offset), other):
        store._by_id.pending[key] = wrong
        with pytest.raises(CorruptionError, match="it names seqno") as raised:
            store.find(0, b"key4")
        assert raised.value.code == "by_id_damaged"
    store.close()
    assert directory.open().find(0, b"key4") is not None, "the map is built anew"


def keep_recent(_):
    pass


def apply(store):
    store.commit_by_id()


def begin_to_apply(store):
    next(store.by_id_steps(store.take_by_id()))


@pytest.mark.parametrize("bring_up", [keep_recent, apply, begin_to_apply])
@pytest.mark.parametrize("is_reopened", [False, True])
def test_what_is_in_memory_is_found_without_waiting(directory, bring_up, is_reopened):
    store = directory.open()
    directory.fill(40)
    bring_up(store)
    directory.fill(30)
    if is_reopened:
        directory.crash()
        store = directory.open()
    keys = [(n % 2, b"key%d" % (n % 20)) for n in range(20)]
    found = [store.find(*key) for key in keys]
    assert len({seqno_of(change.frame) for change in found}) == 10
    assert [store.find_resident(*key) for key in keys] == found
    assert store.find_resident(0, b"none") is None
    assert store.find_resident(1, b"key0") is None


def test_what_is_on_the_disk_is_located_in_the_loop_and_read_in_a_thread(directory, monkeypatch):
    def refuse(*_):
        raise BlockingIOError

    store = directory.open()
    directory.fill()
    monkeypatch.setattr(OsFile, "read_resident", refuse)
    with pytest.raises(BlockingIOError):
        store.find_resident(0, b"key4")
    assert store.find_resident(0, b"none") is None
    assert store.locate(0, b"none") is None
    located = store.locate(0, b"key4")
    assert store.read(0, b"key4", located) == store.find(0, b"key4")
    store.roll_back(0, located[0] - 1)
    assert store.locate(0, b"key4")[0] < located[0]


def test_a_place_that_holds_something_else_is_left_to_a_thread(directory):
    store = directory.open()
    directory.fill()
    store._by_id.settle(0, store._find_places)
    seqno, segment, _ = store._by_id.pending[b"\0\0key4"]
    store._by_id.pending[b"\0\0key4"] = (seqno, segment, 64)
    with pytest.raises(BlockingIOError):
        store.find_resident(0, b"key4")
    assert seqno_of(store.read(0, b"key4", store.locate(0, b"key4")).frame) == seqno


# -- records


def test_lineage_and_sidecar_come_back(directory):
    store = directory.open()
    changes = [
        StoredChange(mutation(2, b"%d" % n, b"v", n, 1, 1, 0, 0, 0), 0, b"l" * n, b"s" * (n % 3))
        for n in range(1, 9)
    ]
    store.append(commit := store.encode([FlushBatch.of(2, changes), FlushBatch.of(1, [])]))
    store.absorb(commit)
    assert [change for chunk in store.scan(2, 0, 2**60) for change in chunk] == changes
    assert store.find(2, b"7") == changes[6]
    assert [seqno_of(c.frame) for chunk in store.scan(2, 2, 5) for c in chunk] == [3, 4, 5]
    assert [seqno_of(c.frame) for chunk in store.scan(2, 0, 9, {2, 4}) for c in chunk] == [
        1, 3, 5, 6, 7, 8,
    ]  # fmt: skip


@pytest.mark.slow
def test_a_record_of_more_than_20_mib(directory):
    directory.sizes = LogSizes()
    store = directory.open()
    large = random.Random(1).randbytes(21 * 1024 * 1024)
    directory.write(0, (b"small", b"1"), (b"large", large), (b"small2", b"2"))
    for _ in range(2):
        assert directory.value(0, b"large") == large
        assert [len(chunk) for chunk in store.scan(0, 0, 9)] == [1, 1, 1]
        store.commit_by_id()
        directory.crash()
        store = directory.open()
    assert directory.value(0, b"small2") == b"2"


# -- rollback and low points


def test_a_rollback_goes_to_the_newest_mark(directory):
    store = directory.open()
    directory.write(0, (b"a", b"1"), (b"b", b"1"))
    directory.write(0, (b"a", b"2"), (b"c", b"2"))
    store._log.roll()
    store.commit_by_id()
    directory.write(0, (b"b", b"3"), (b"a", None))
    directory.write(1, (b"x", b"1"))
    state = store.roll_back(0, 5)
    assert (state.high_seqno, state.failover_log[0].seqno) == (4, 4)
    assert len(state.failover_log) == 2
    for _ in range(3):
        assert directory.state(0) == {b"a": b"2", b"b": b"1", b"c": b"2"}
        assert {k: directory.value(0, k) for k in (b"a", b"b", b"c")} == directory.state(0)
        assert directory.state(1) == {b"x": b"1"}
        directory.crash()
        store = directory.open()
    assert store.roll_back(0, 1).high_seqno == 0
    assert directory.state(0) == {}
    assert directory.value(0, b"b") is None
    assert list(store.keys(0)) == []
    assert not store.has_records(0)
    directory.highs[0] = 0
    directory.write(0, (b"b", b"9"))
    directory.crash()
    directory.open()
    assert directory.state(0) == {b"b": b"9"}


@pytest.mark.parametrize("is_by_id_lost", [False, True])
def test_low_points_are_kept_and_bound_rollback(directory, is_by_id_lost):
    store = directory.open()
    for n in range(4):
        directory.write(0, (b"a", b"%d" % n))
    store.set_low_points({0: (2, 1)})
    directory.crash()
    if is_by_id_lost:
        shutil.rmtree(directory.path / "byid")
    store = directory.open()
    state = store.partition(0)
    assert (state.history_seqno, state.purge_seqno) == (2, 1)
    assert store.roll_back(0, 3).high_seqno == 3
    state = store.roll_back(0, 1)  # below history_seqno: emptied, and the low points with it
    assert (state.high_seqno, state.history_seqno, state.purge_seqno) == (0, 0, 0)


def test_quick_commits_are_told_from_those_that_roll(directory):
    store = directory.open()
    quick = store.encode([FlushBatch.of(0, [directory.change(0, b"a", b"1")])])
    assert store.is_quick(quick)
    slow = store.encode([FlushBatch.of(0, [directory.change(0, b"a", bytes(5000))])])
    assert not store.is_quick(slow)


def test_nothing_is_appended_under_a_receipt(directory):
    directory.open().stop()
    store = directory.open()
    commit = store.encode([FlushBatch.of(0, [directory.change(0, b"a", b"1")])])
    with pytest.raises(AssertionError, match="receipt"):
        store.append(commit)


# -- copies: states, histories of a source, ranges


COPY = (FailoverEntry(70, 4, 7), FailoverEntry(60, 0, 6))


def receive(directory, p, seqnos, mark=None, news=None):
    """What a flush of a replica writes: given seqnos, a mark somewhere among them."""
    changes = []
    for seqno in seqnos:
        directory.highs[p] = seqno - 1
        changes.append(directory.change(p, b"key%d" % (seqno % 3), b"%d" % seqno))
    directory.store.withdraw_receipt()
    batch = FlushBatch.of(p, changes)._replace(mark=mark, news=news)
    commit = directory.store.encode([batch])
    directory.store.append(commit)
    directory.store.absorb(commit)


def reopened(directory, *, is_clean=False, is_by_id_lost=False):
    (directory.store.stop if is_clean else directory.crash)()
    if is_by_id_lost:
        shutil.rmtree(directory.path / "byid")
    return directory.open()


STARTS = [
    {"is_clean": clean, "is_by_id_lost": lost} for clean in (False, True) for lost in (False, True)
]


@pytest.mark.parametrize("how", STARTS)
def test_states_and_raised_branches_are_kept(directory, how):
    store = directory.open()
    directory.write(0, (b"a", b"1"))
    before = store.partition(0)
    assert before.state is PartitionState.ACTIVE
    store.set_state(0, PartitionState.DEAD)
    store.promise({0: 500})
    store.promise({0: 30})
    store.promise({1: 2})
    store = reopened(directory, **how)
    state = store.partition(0)
    assert (state.state, state.last_branch) == (PartitionState.DEAD, 500)
    assert state.failover_log == before.failover_log  # it serves nobody: no new history
    promised = store.partition(1)
    assert (promised.state, promised.last_branch) == (PartitionState.REPLICA, 2)
    store.set_state(0, PartitionState.ACTIVE)
    store = reopened(directory)
    assert store.partition(0).failover_log[0].branch > 500


@pytest.mark.parametrize("how", STARTS)
def test_a_copy_inside_a_snapshot_goes_on_there(directory, how):
    store = directory.open()
    store.set_state(0, PartitionState.REPLICA)
    receive(directory, 0, [2, 3], 3, CopyNews(COPY, range_end=3))
    receive(directory, 0, [5, 9], 0, CopyNews(range_end=12))
    for _ in range(2):
        state = store.partition(0)
        assert state.failover_log == COPY
        assert (state.high_seqno, state.top_seqno, state.range_end) == (3, 9, 12)
        assert directory.state(0) == {b"key2": b"5", b"key0": b"9"}
        assert directory.state(0, 3) == {b"key2": b"2", b"key0": b"3"}
        store = reopened(directory, **how)
    receive(directory, 0, [10], 12, CopyNews(range_end=12))
    store = reopened(directory, **how)
    state = store.partition(0)
    assert (state.high_seqno, state.top_seqno) == (12, 12)
    assert directory.state(0, 12)[b"key1"] == b"10"


@pytest.mark.parametrize("is_by_id_lost", [False, True])
def test_what_a_copy_lost_is_known_until_it_is_there_again(directory, is_by_id_lost):
    def stands(**how):
        directory.store.withdraw_receipt()
        return reopened(directory, is_by_id_lost=is_by_id_lost, **how).partition(0)[-1]

    directory.is_alone = False
    store = directory.open()
    assert store.partition(0).owed == (UINT64_MAX, UINT64_MAX), "there may have been one before"
    store.set_state(0, PartitionState.REPLICA)
    receive(directory, 0, [2, 3], 3, CopyNews(COPY, range_end=3, owed=Owed(3, 3)))
    assert stands(is_clean=True) == (3, 3), "it has all of that, and so it is whole"
    assert stands() == (UINT64_MAX, 3), "what was in memory got lost"
    assert stands(is_clean=True) == (UINT64_MAX, 3)
    receive(directory, 0, [6], 6, CopyNews(range_end=6, owed=Owed(6, 3)))
    assert directory.store.roll_back(0, 3).owed == (UINT64_MAX, UINT64_MAX)
    assert stands(is_clean=True) == (UINT64_MAX, UINT64_MAX)
    assert directory.store.activate(0).owed == (0, 0)
    assert directory.store.roll_back(0, 0).owed == (0, 0), "it begins a history of its own"
    assert stands(is_clean=True) == (0, 0)
    assert stands() == (UINT64_MAX, 0)
    directory.store.set_state(0, PartitionState.ACTIVE)
    assert stands(is_clean=True) == (0, 0)
    directory.store.set_state(0, PartitionState.DEAD)
    directory.store.remove([0])
    assert directory.store.partition(0).owed == (UINT64_MAX, UINT64_MAX)


def test_records_outside_any_range_are_dead(directory):
    store = directory.open()
    store.set_state(0, PartitionState.REPLICA)
    receive(directory, 0, [2, 3], 3, CopyNews(COPY))
    receive(directory, 0, [5, 9], 0)  # nobody writes that: no range is known
    state = reopened(directory).partition(0)
    assert (state.high_seqno, state.top_seqno) == (3, 3)


@pytest.mark.parametrize("how", STARTS)
def test_a_copy_that_is_activated_begins_a_branch_at_its_last_complete_end(directory, how):
    store = directory.open()
    store.set_state(0, PartitionState.REPLICA)
    receive(directory, 0, [2, 6], 6, CopyNews(COPY, LowPoints(6, 6), 6))
    receive(directory, 0, [9], 0, CopyNews(range_end=12))
    state = store.activate(0)
    entry = state.failover_log[0]
    assert (entry.seqno, entry.branch, state.failover_log[1:]) == (6, 8, COPY)
    assert (state.state, state.high_seqno, state.top_seqno) == (PartitionState.ACTIVE, 9, 9)
    assert (state.history_seqno, state.purge_seqno) == (6, 6)
    state = reopened(directory, **how).partition(0)
    assert state.failover_log[0 if how["is_clean"] else 1] == entry
    assert (state.high_seqno, state.top_seqno) == (9, 9)


@pytest.mark.parametrize("is_by_id_lost", [False, True])
def test_a_copy_activated_inside_its_first_load_lowers_its_low_points(directory, is_by_id_lost):
    store = directory.open()
    store.set_state(0, PartitionState.REPLICA)
    receive(directory, 0, [9], 0, CopyNews(COPY, LowPoints(20, 20), 30))
    assert store.partition(0).purge_seqno == 20
    store.activate(0)
    state = reopened(directory, is_by_id_lost=is_by_id_lost).partition(0)
    assert (state.history_seqno, state.purge_seqno) == (0, 0)
    assert [entry.seqno for entry in state.failover_log] == [9, 0, 0]


@pytest.mark.parametrize("how", STARTS)
def test_a_promise_is_kept_by_those_who_stood_down_for_it(directory, how):
    store = directory.open()
    directory.write(0, (b"a", b"1"))
    store.set_state(1, PartitionState.DEAD)
    before = store.partition(0)
    store.promise({0: 70, 1: 70})
    store = reopened(directory, **how)
    for p, state in enumerate((PartitionState.REPLICA, PartitionState.DEAD)):
        assert (store.partition(p).state, store.partition(p).last_branch) == (state, 70)
    assert store.partition(0).failover_log == before.failover_log
    store.promise({1: 60})
    assert store.partition(1).last_branch == 70
    active = store.activate(0, 70)
    assert (active.failover_log[0].branch, active.failover_log[1:]) == (70, before.failover_log)
    assert (active.failover_log[0].seqno, active.last_branch) == (1, 70)


@pytest.mark.parametrize("is_by_id_lost", [False, True])
def test_a_replica_rolls_back_in_the_history_it_has(directory, is_by_id_lost):
    store = directory.open()
    store.set_state(0, PartitionState.REPLICA)
    receive(directory, 0, [2, 3], 3, CopyNews(COPY, range_end=3))
    receive(directory, 0, [5, 8], 8, CopyNews(range_end=8))
    receive(directory, 0, [9], 0, CopyNews(range_end=20))
    assert store.roll_back(0, 8)[:2] == (COPY, 8)
    assert store.roll_back(0, 8)[:2] == (COPY, 8)
    for _ in range(2):
        state = store.roll_back(0, 7)
        assert (state.failover_log, state.high_seqno) == (COPY[1:], 3)
        assert (state.top_seqno, state.range_end) == (3, 0)
        assert directory.state(0) == {b"key2": b"2", b"key0": b"3"}
        store = reopened(directory, is_by_id_lost=is_by_id_lost)
    assert store.roll_back(0, 2)[:2] == (COPY[1:], 0)


def test_a_copy_that_has_only_its_sources_histories_goes_back_to_the_oldest(directory):
    store = directory.open()
    store.set_state(0, PartitionState.REPLICA)
    receive(directory, 0, [], 0, CopyNews(COPY))
    assert store.roll_back(0, 2)[:2] == (COPY[1:], 0)
    assert reopened(directory).partition(0).failover_log == COPY[1:]


def test_a_removed_partition_is_empty_and_begins_anew(directory):
    store = directory.open()
    directory.write(0, (b"a", b"1"))
    directory.write(1, (b"b", b"1"))
    store.commit_by_id()
    before = store.partition(0)
    store.remove([0])
    for _ in range(2):
        state = store.partition(0)
        assert (state.state, state.high_seqno) == (PartitionState.ABSENT, 0)
        assert state.failover_log[0] not in before.failover_log
        assert (state.failover_log[0].branch, state.last_branch) == (0, before.last_branch)
        assert directory.value(0, b"a") is None
        assert directory.state(1) == {b"b": b"1"}
        store = reopened(directory)


@pytest.mark.parametrize("is_full", [False, True])
def test_a_clean_stop_seals_a_large_segment(directory, monkeypatch, is_full):
    monkeypatch.setattr(store_module, "SEAL_AT_STOP_BYTES_MIN", 100)
    store = directory.open()
    directory.fill(8)
    before, count = directory.state(0), len(directory.segments())
    with monkeypatch.context() as patch:
        if is_full:
            patch.setattr(store._log, "roll", Mock(side_effect=UnavailableError("no space left")))
        store.stop()
    assert len(directory.segments()) == count + (not is_full)
    store = directory.open()
    assert store.was_clean_stop
    assert directory.state(0) == before
    assert {key: directory.value(0, key) for key in before} == before


def test_with_other_copies_about_nobody_becomes_active_by_itself(directory):
    directory.is_alone = False
    store = directory.open()
    assert {state.state for state in store.partitions} == {PartitionState.ABSENT}
    assert {state.last_branch for state in store.partitions} == {0}
    store.activate(0)
    directory.write(0, (b"a", b"1"))
    log = store.partition(0).failover_log
    store = reopened(directory, is_clean=True)
    assert (store.partition(0).state, store.partition(0).failover_log) == (1, log)
    directory.write(0, (b"a", b"2"))
    store = reopened(directory)
    state = store.partition(0)
    assert (state.state, state.failover_log) == (PartitionState.REPLICA, log)
    assert (state.high_seqno, state.top_seqno) == (2, 2)
    assert store.partition(1).state is PartitionState.ABSENT


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_copy_that_stopped_while_it_took_over_follows_again(directory, is_clean):
    directory.is_alone = False
    directory.open().set_state(0, PartitionState.PENDING)
    store = reopened(directory, is_clean=is_clean)
    assert store.partition(0).state is PartitionState.REPLICA
    directory.is_alone = True
    directory.store.set_state(0, PartitionState.PENDING)
    store = reopened(directory, is_clean=is_clean)
    assert store.partition(0).state is PartitionState.PENDING, "nobody else has it"


def test_who_has_a_share_alone_begins_with_nothing_and_stays_active(directory):
    directory.begins_absent = True
    store = directory.open()
    assert {state.state for state in store.partitions} == {PartitionState.ABSENT}
    store.activate(0)
    directory.write(0, (b"a", b"1"))
    log = store.partition(0).failover_log
    store = reopened(directory)
    state = store.partition(0)
    assert (state.state, state.failover_log[1:]) == (PartitionState.ACTIVE, log)
    assert store.partition(1).state is PartitionState.ABSENT
