import itertools
import random
import shutil
import threading

import pytest

from millstream.errors import CorruptionError
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.storage.core import compaction
from millstream.storage.core.records import Kind, named_change
from millstream.storage.core.segment import Rewriting
from millstream.storage.core.segment_files import Place
from millstream.storage.core.segment_log import LogSizes
from millstream.storage.core.store import FlushBatch, LogStore, StoredChange
from millstream.wire.frames import deletion, mutation, seqno_of
from support.budget import budget
from support.kv.compacting import compact, compacting, mark, rewrite
from support.kv.simulated_disk import SimulatedById, SimulatedDisk


def written(directory, rounds=6, keys=10):
    """Two partitions; each round is a batch of its own and ends in a segment of its own."""
    store = directory.open()
    for n in range(rounds):
        for p in range(2):
            directory.write(p, *((b"key%d" % k, b"%d.%d" % (n, k)) for k in range(n % 2, keys, 2)))
        store._log.roll()
    directory.write(2, (b"other", b"1"))
    return store


def over(directory, **points):
    """Let history, or purge too, reach the end of partitions 0 and 1."""
    directory.store.set_low_points(
        {p: (directory.highs[p], points.get("purge", 0) and directory.highs[p]) for p in range(2)}
    )


def same_as_before(directory, states, keys):
    for p in range(2):
        assert directory.state(p) == states[p]
        assert {key: directory.value(p, key) for key in keys[p]} == states[p]


def check_index(log, number):
    """The index says what is there: as it would of a segment read from its beginning."""
    log.verify(number)
    walked, end, _ = log.index_of(number)
    assert end == log.end_of(number)
    assert list(walked.controls) == list(log.controls_in(number))
    for p in log.partitions_in(number):
        sealed, found = log.columns(number, p), walked.of(p)
        for name in ("seqnos", "previous", "offsets", "lengths"):
            assert list(getattr(sealed, name)) == list(getattr(found, name)), name
        assert list(sealed.marks) == sorted(found.marks)


def test_what_was_replaced_goes_and_nothing_else(directory, monkeypatch):
    monkeypatch.setattr(compaction, "STEP_RECORDS_MAX", 3)
    monkeypatch.setattr(compaction, "STEP_CONTROLS_MAX", 2)
    store = written(directory)
    over(directory)
    states = [directory.state(p) for p in range(2)]
    before = sum(path.stat().st_size for path in directory.segments())
    places = {key: store.locate(0, key) for key in states[0]}
    compact(store)
    assert store._log.numbers == [6, 7]
    assert [path.name[:8] for path in directory.segments()] == ["00000006", "00000007"]
    assert sum(path.stat().st_size for path in directory.segments()) < before / 2
    check_index(store._log, 6)
    assert store._log.firsts == {6: 1}
    for _ in range(2):
        same_as_before(directory, states, [list(state) for state in states])
        assert [s for s, _ in scanned(store, 0)] == list(range(21, 31))
        assert sorted(store.keys(0)) == sorted(states[0])
        directory.crash()
        store = directory.open()
    for key, (seqno, _, _) in places.items():
        found = store.locate(0, key)
        assert found[:2] == (seqno, 6)
        moved = named_change(store._log.read_record(*found[1:]), 0, key, seqno)
        assert moved is not None, "by-id was told of the move"


def scanned(store, p, after=0):
    return [
        (seqno_of(change.frame), change)
        for chunk in store.scan(p, after, 2**60)
        for change in chunk
    ]


def test_history_that_is_not_over_stays_readable(directory):
    store = written(directory)
    marks = [0, 5, 10, 15, 20, 25, 30]
    states = {at: directory.state(0, at) for at in marks}
    store.set_low_points({0: (15, 0)})
    compact(store)
    for _ in range(2):
        for at in marks[3:]:
            assert directory.state(0, at) == states[at]
        directory.crash()
        store = directory.open()
    for at in reversed(marks[3:]):
        assert store.roll_back(0, at + 1).high_seqno == at
        assert directory.state(0) == states[at]
        assert {key: directory.value(0, key) for key in states[at]} == states[at]
    assert store.roll_back(0, 14).high_seqno == 0


@pytest.mark.slow
def test_every_step_leaves_a_store_that_reads_and_starts(directory):
    """Kills after each step: what is left is read by a start."""
    written(directory)
    directory.write(0, (b"key1", None))
    directory.store._log.roll()
    directory.write(2, (b"other", b"2"))
    over(directory, purge=1)
    states = [directory.state(p) for p in range(2)]
    directory.crash()
    saved = directory.path.with_name("saved")
    shutil.copytree(directory.path, saved)
    for steps in itertools.count():
        store = directory.open()
        taken = list(itertools.islice(compacting(store), steps))
        same_as_before(directory, states, [list(state) for state in states])
        directory.write(2, (b"other", b"%d" % steps))
        assert directory.value(2, b"other") == b"%d" % steps
        directory.crash()
        store = directory.open()
        same_as_before(directory, states, [list(state) for state in states])
        assert not list(directory.path.glob("log/*.new"))
        if len(taken) < steps:
            break
        directory.crash()
        shutil.rmtree(directory.path)
        shutil.copytree(saved, directory.path)
    assert taken.count("remove") == 1
    assert store._log.numbers[0] == 7


def test_old_tombstones_go_from_log_and_by_id(directory):
    store = directory.open()
    directory.write(0, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    directory.write(0, (b"a", None), (b"b", None))
    store._log.roll()
    directory.write(1, (b"x", b"1"))
    store.set_low_points({0: (5, 4)})
    store.commit_by_id()
    assert sorted(store.keys(0)) == [b"a", b"b", b"c"]
    compact(store)
    assert sorted(store.keys(0)) == [b"b", b"c"]
    assert [s for s, _ in scanned(store, 0)] == [3, 5]
    assert store.find(0, b"a") is None
    directory.write(0, (b"a", b"again"))
    assert scanned(store, 0)[-1][1].previous_seqno == 0
    assert directory.state(0) == {b"a": b"again", b"c": b"1"}


def test_tombstones_of_all_segments_and_pieces_of_a_run_leave_by_id(directory, monkeypatch):
    """Also those at the end of what may go; what may not go stays."""
    monkeypatch.setattr(compaction, "STEP_RECORDS_MAX", 3)
    store = directory.open()
    keys = [b"key%d" % n for n in range(8)]
    directory.write(0, *((key, b"1") for key in keys))
    directory.write(1, (b"other", b"1"))
    for begin in (0, 4):
        store._log.roll()
        directory.write(0, (b"new%d" % begin, b"1"), *((key, None) for key in keys[begin:][:4]))
    directory.write(1, (b"other", None))
    store._log.roll()
    directory.write(2, (b"x", b"1"))
    store.set_low_points({0: (18, 17), 1: (2, 2)})
    assert set(store.keys(0)) > set(keys)
    compact(store)
    assert len(store._log.numbers) == 2
    assert sorted(store.keys(0)) == [keys[7], b"new0", b"new4"]
    assert list(store.keys(1)) == []


@pytest.mark.parametrize("steps", range(1, 9))
def test_what_a_compaction_read_that_was_given_up_is_not_relied_on(directory, monkeypatch, steps):
    monkeypatch.setattr(compaction, "STEP_CONTROLS_MAX", 1)
    store = written(directory)
    over(directory)
    given_up = (step for step in compacting(store) if step == "copy")
    for _ in range(steps):
        next(given_up)
    given_up.close()
    store.set_state(0, PartitionState.REPLICA)
    store._log.roll()
    directory.write(2, (b"other", b"2"))
    compact(store)
    assert directory.open().partition(0).state is PartitionState.REPLICA


@pytest.mark.parametrize("is_by_id_lost", [False, True])
def test_the_newest_mark_outlives_its_record(directory, is_by_id_lost):
    store = directory.open()
    directory.write(0, (b"a", b"1"))
    directory.write(0, (b"a", None))
    store._log.roll()
    directory.write(1, (b"x", b"1"))
    store.set_low_points({0: (2, 2)})
    compact(store)
    check_index(store._log, 1)
    for _ in range(2):
        assert scanned(store, 0) == []
        assert store.partition(0).high_seqno == 2
        directory.crash()
        if is_by_id_lost:
            shutil.rmtree(directory.path / "byid")
        store = directory.open()
    directory.write(1, (b"y", b"1"))
    compact(store)
    assert store.partition(0).high_seqno == 2
    assert store.roll_back(0, 9).high_seqno == 2
    directory.write(0, (b"b", b"3"))
    assert [s for s, _ in scanned(store, 0)] == [3]


def test_marks_in_the_window_stay_and_older_ones_go_with_their_change(directory):
    store = directory.open()
    for n in range(4):
        directory.write(0, (b"a", b"%d" % n))
    directory.write(0, (b"a", None))
    store._log.roll()
    directory.write(1, (b"x", b"1"))
    store.set_low_points({0: (5, 5)})
    compact(store)
    assert list(store._log.columns(1, 0).marks) == [5]
    records = [r for r in store._log.walk(1) if r.partition_id == 0 and r.kind != Kind.ENTRY]
    assert [(r.kind, r.is_mark) for r in records] == [(Kind.MARK, True)]


def test_a_rollback_stays_until_what_it_killed_is_gone(directory):
    store = directory.open()
    directory.write(0, (b"a", b"1"))
    directory.write(0, (b"a", b"2"), (b"b", b"2"))
    store._log.roll()
    store.roll_back(0, 1)
    directory.highs[0] = 1
    directory.write(0, (b"c", b"3"))
    store._log.roll()
    directory.write(1, (b"x", b"1"))

    def kinds():
        log = store._log
        return [r.kind for n in log.numbers for r in log.walk(n) if r.partition_id == 0]

    compact(store, lambda _: [2])
    assert kinds().count(Kind.ROLLBACK) == 1
    assert store._summaries[0].kills == [(2, 1)]
    for _ in range(2):
        assert directory.state(0) == {b"a": b"1", b"c": b"3"}
        assert directory.value(0, b"b") is None
        directory.crash()
        store = directory.open()
    directory.write(1, (b"y", b"1"))
    compact(store, lambda _: [1])
    assert kinds().count(Kind.CHANGE) == 2
    compact(store, lambda _: [2])
    assert kinds().count(Kind.ROLLBACK) == 0
    assert store._summaries[0].kills == []
    assert directory.state(0) == {b"a": b"1", b"c": b"3"}


def test_records_are_kept_until_by_id_knows_the_rollback_that_killed_them(directory):
    """After a kill by-id learns from these records which keys the rollback concerned."""
    store = directory.open()
    directory.write(0, (b"a", b"1"), (b"b", b"1"))
    store._log.roll()
    directory.write(1, (b"x", b"1"))
    store.commit_by_id()
    store.roll_back(0, 0)
    for _ in compacting(store, is_applied=False):
        pass
    assert store._log.firsts == {1: 1}
    directory.crash()
    store = directory.open()
    assert list(store.keys(0)) == []
    directory.highs[0] = 0
    directory.write(0, (b"c", b"2"))
    assert directory.value(0, b"a") is None


def test_a_rollback_that_by_id_does_not_know_hides_none_that_it_knows(directory):
    """The second one makes the first one's limit superfluous, but not what by-id knows of it."""
    store = directory.open()
    directory.write(0, (b"x", b"1"), (b"a", b"1"))
    store._log.roll()
    store.roll_back(0, 0)
    directory.highs[0] = 0
    directory.write(0, (b"b", b"1"))
    store._log.roll()
    directory.write(1, (b"y", b"1"))
    store.commit_by_id()
    store.roll_back(0, 0)
    directory.highs[0] = 0
    for _ in compacting(store, lambda _: [1, 2], is_applied=False):
        pass
    assert list(store._log.columns(2, 0).seqnos) == [1]
    directory.crash()
    store = directory.open()
    assert list(store.keys(0)) == []
    assert directory.value(0, b"b") is None


def test_a_rollback_while_records_are_copied(directory):
    store = written(directory)
    store.set_low_points({0: (20, 0)})
    store.commit_by_id()
    state = directory.state(0, 20)
    steps = compacting(store)
    for name in steps:
        if name == "copy":
            break
    store.roll_back(0, 20)
    for _ in steps:
        pass
    for _ in range(2):
        assert directory.state(0) == state
        assert {key: directory.value(0, key) for key in state} == state
        directory.crash()
        store = directory.open()


def test_a_replaced_run_stands_for_all_numbers_of_its_parts(directory):
    store = written(directory)
    over(directory)
    compact(store, lambda numbers: numbers[1:3])
    assert store._log.firsts == {3: 2}
    compact(store, lambda numbers: numbers[1:3])
    assert store._log.numbers == [1, 4, 5, 6, 7]
    assert store._log.firsts == {4: 2}
    assert store._log.generations == {4: 2}
    place = store._by_id.reached()
    assert store._log._header(4).rewriting == Rewriting(2, *place, 2)
    check_index(store._log, 4)


def test_by_id_from_before_a_compaction_is_not_believed(directory):
    store = written(directory)
    store.commit_by_id()
    old = directory.path.with_name("old")
    shutil.copytree(directory.path / "byid", old)
    directory.write(0, (b"key3", None))
    store._log.roll()
    directory.write(2, (b"other", b"2"))
    over(directory, purge=1)
    compact(store)
    states = [directory.state(p) for p in range(2)]
    directory.crash()
    shutil.rmtree(directory.path / "byid")
    shutil.copytree(old, directory.path / "byid")
    inode = (directory.path / "byid" / "data.mdb").stat().st_ino
    boot = (old / "origin").read_text().split()[0]
    (directory.path / "byid" / "origin").write_text(f"{boot} {inode}\n")
    store = directory.open()
    same_as_before(directory, states, [list(state) for state in states])
    assert store.find(0, b"key3") is None
    assert store._log.by_id_place > Place(0, 0)


def test_readers_in_threads_go_on_while_segments_are_replaced(directory):
    store = written(directory, rounds=12)
    right = {p: [s for s, _ in scanned(store, p)] for p in range(2)}
    store.set_low_points({0: (1, 0), 1: (1, 0)})
    errors, rounds = [], itertools.count()
    stop = threading.Event()

    def read():
        try:
            while not stop.is_set() or next(rounds) < 3:
                for p in range(2):
                    for after in (0, 7, 30):
                        found = [s for s, _ in scanned(store, p, after)]
                        assert found == [s for s in right[p] if s > after]
                next(rounds)
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for begin in (0, 4, 2, 0, 0):
        compact(store, lambda numbers, begin=begin: numbers[begin : begin + 3])
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(store._log.numbers) == 13 - 5 * 2


@pytest.mark.parametrize("taken", range(1, 8))
def test_a_reader_under_way_is_not_disturbed(directory, taken):
    store = written(directory, rounds=8)
    right = [s for s, _ in scanned(store, 0)]
    store.set_low_points({0: (1, 0)})
    reader = store.scan(0, 0, 2**60)
    found = [chunk for _, chunk in zip(range(taken), reader, strict=False)]
    compact(store, lambda numbers: numbers[2:6])
    compact(store, lambda numbers: numbers[:3])
    found += reader
    assert [seqno_of(change.frame) for chunk in found for change in chunk] == right


@pytest.mark.parametrize("taken", range(1, 8))
def test_a_walk_through_the_versions_of_a_key_is_not_disturbed(directory, taken):
    store = written(directory, rounds=16)
    newest = store.find(0, b"key0")
    right = list(store.versions(0, b"key0", seqno_of(newest.frame)))
    assert len(right) > 7
    store.set_low_points({0: (1, 0)})
    walk = store.versions(0, b"key0", seqno_of(newest.frame))
    found = [change for _, change in zip(range(taken), walk, strict=False)]
    compact(store, lambda numbers: numbers[2:6])
    compact(store, lambda numbers: numbers[:3])
    found += walk
    assert found == right
    store.set_low_points({0: (directory.highs[0], 0)})
    compact(store, lambda numbers: numbers[:-1])
    assert list(store.versions(0, b"key0", seqno_of(newest.frame))) == right[:1]


def test_a_damaged_record_ends_it_and_leaves_everything(directory):
    store = written(directory)
    path = directory.segments()[2]
    data = path.read_bytes()
    at = data.index(b"2.0")
    path.write_bytes(data[:at] + b"x" + data[at + 1 :])
    store._log.forget_files()
    store.commit_by_id()
    for _ in mark(store):
        pass
    begun = []
    with pytest.raises(CorruptionError, match=r"00000003\.seg is damaged at offset"):
        list(rewrite(store, [2, 3], begun.append))
    begun[0].abandon()
    assert store._log.numbers == [1, 2, 3, 4, 5, 6, 7]
    assert len(directory.segments()) == 7
    begun[0].abandon()


def test_controls_and_open_files_of_a_large_log(directory):
    directory.sizes = LogSizes(4000, 4000)
    store = directory.open()
    for n in range(40):
        directory.write(n % 3, *((b"k%d" % k, bytes(300)) for k in range(6)))
        if n % 7 == 0:
            store.set_low_points({n % 3: (directory.highs[n % 3], 0)})
    store.set_low_points({p: (directory.highs[p], 0) for p in range(3)})
    states = [directory.state(p) for p in range(3)]
    rounds = 0
    while len(store._log.numbers) > 3:
        compact(store, lambda numbers: numbers[-3:])
        rounds += 1
        for number in store._log.firsts:
            check_index(store._log, number)
    assert rounds > 3
    assert [directory.state(p) for p in range(3)] == states


def test_a_deletion_of_a_dead_branch_takes_no_key_out_of_by_id(directory):
    """The dead deletion and the live document have one key and one seqno."""
    store = directory.open()
    directory.write(0, (b"a", b"1"))
    directory.write(0, (b"a", None))
    store._log.roll()
    store.set_low_points({0: (2, 2)})
    for _ in mark(store):
        pass
    store.roll_back(0, 0)
    directory.highs[0] = 0
    directory.write(0, (b"x", b"1"), (b"a", b"new"))
    store._log.roll()
    directory.write(1, (b"y", b"1"))
    store.set_low_points({0: (2, 0)})
    compact(store)
    assert store._log.firsts == {2: 1}
    assert directory.value(0, b"a") == b"new"
    assert sorted(store.keys(0)) == [b"a", b"x"]


@pytest.mark.parametrize("seed", range(budget(20)))
def test_what_goes_leaves_no_older_version_behind_when_power_is_lost(seed):
    """The mark that hides a@1 is durable before a@2, which replaced it, goes."""
    rng, numbers = random.Random(seed), itertools.count(100)
    disk = SimulatedDisk(rng, numbers)

    def opened():
        return LogStore.open(
            disk, SimulatedById(disk), partition_count=2,
            new_entry=lambda seqno, branch: FailoverEntry(next(numbers), seqno, branch + 1),
        )  # fmt: skip

    def write(p, *frames):
        changes = [StoredChange(frame, previous, b"l") for frame, previous in frames]
        store.append(commit := store.encode([FlushBatch.of(p, changes)]))
        store.absorb(commit)

    store = opened()
    write(0, (mutation(0, b"a", b"1", 1, 1, 1, 0, 0, 0), 0))
    store._log.roll()
    write(0, (deletion(0, b"a", 2, 2, 2, 0), 1))
    store._log.roll()
    write(1, (mutation(1, b"y", b"1", 1, 1, 1, 0, 0, 0), 0))
    store.set_low_points({0: (2, 2)})
    compact(store, lambda _: [2])
    disk.lose_power()
    store = opened()
    assert store.partition(0).high_seqno == 2
    assert list(store.scan(0, 0, 9)) == []
    assert store.find(0, b"a") is None
