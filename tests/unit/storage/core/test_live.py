import shutil
import threading

import pytest

from millstream.storage.core.records import ENVELOPE_BYTES, key_of
from millstream.storage.core.segment import SUPERSEDED, find_entry
from millstream.storage.core.segment_log import LogSizes
from millstream.wire.frames import described, seqno_of


def test_scans_come_in_bounded_chunks(directory):
    directory.sizes = LogSizes()
    store = directory.open()
    directory.write(0, *((b"%d" % n, bytes(100)) for n in range(3000)))
    directory.write(0, *((b"large%d" % n, bytes(200_000)) for n in range(5)))
    chunks = list(store.scan(0, 0, 2**60))
    assert [len(chunk) for chunk in chunks[:2]] == [1024, 1024]
    assert max(sum(len(change.frame) for change in chunk) for chunk in chunks) <= 512 * 1024
    assert sum(map(len, chunks)) == 3005
    framed = list(store.scan_frames(0, 0, 2**60))
    assert [frames for frames, _ in framed] == [[c.frame for c in chunk] for chunk in chunks]
    assert [last for _, last in framed] == [seqno_of(chunk[-1].frame) for chunk in chunks]


def test_frames_of_live_records_only(directory):
    store = directory.open()
    directory.fill(200)
    store.roll_back(0, 60)
    directory.highs[0] = 60
    directory.fill(50)
    store._log.roll()
    mark_superseded(directory.segments()[0], store, 1, 0, 1)
    for after, upto in ((0, 2**60), (0, 7), (30, 70), (59, 61), (84, 85), (85, 99)):
        for p in range(2):
            skip = store.superseded(p, after, upto) | {3}
            chunks = store.scan(p, after, upto, skip)
            framed = store.scan_frames(p, after, upto, skip)
            changes = [change for chunk in chunks for change in chunk]
            wanted = [change.frame for change in changes]
            assert [frame for frames, _ in framed for frame in frames] == wanted
            framed = store.scan_frames(p, after, upto, skip, is_described=True)
            sizes = list(store.sizes(p, after, upto, skip))
            assert [n for seqnos, _, _ in sizes for n in seqnos] == list(map(seqno_of, wanted))
            over = {
                length - len(frame) - len(c.lineage) - len(c.sidecar)
                for length, frame, c in zip(
                    (one for _, lengths, _ in sizes for one in lengths), wanted, changes,
                    strict=True,
                )
            }  # fmt: skip
            assert over <= {ENVELOPE_BYTES}
            wanted = [described(c.frame, c.lineage, c.sidecar) for c in changes]
            assert [frame for frames, _ in framed for frame in frames] == wanted


def test_the_newest_change_is_found_in_the_newest_segment_that_has_one(directory, monkeypatch):
    store = directory.open()
    assert store.newest_change(0) is None
    directory.fill(300)
    assert len(store._log.numbers) > 6
    touched = []
    columns = store._log.columns
    monkeypatch.setattr(
        store._log, "columns", lambda number, p: touched.append(number) or columns(number, p)
    )
    for p in range(2):
        assert seqno_of(store.newest_change(p).frame) == directory.highs[p]
    assert len(touched) == 2, "a start asks for it of every partition"
    for target in (130, 30):
        store.roll_back(0, target)
        newest = store.newest_change(0)
        assert newest == list(store.scan(0, 0, 2**60))[-1][-1]
        assert seqno_of(newest.frame) <= target
    store.roll_back(0, 0)
    assert store.newest_change(0) is None
    assert seqno_of(store.newest_change(1).frame) == directory.highs[1]


def test_a_small_read_touches_few_segments(directory, monkeypatch):
    store = directory.open()
    directory.fill(300)
    assert len(store._log.numbers) > 6
    touched = []
    columns = store._log.columns
    monkeypatch.setattr(
        store._log, "columns", lambda number, p: touched.append(number) or columns(number, p)
    )
    high = directory.highs[0]
    assert [len(chunk) for chunk in store.scan(0, high - 1, high)] == [1]
    assert touched == [store._log.numbers[-1]] or touched == [store._log.numbers[-2]]
    touched.clear()
    assert sum(map(len, store.scan(0, 0, 2))) == 2
    assert touched == [1]
    touched.clear()
    assert store.superseded(0, high, high + 5) == set()
    assert touched == []


def test_a_scan_in_a_thread_while_segments_roll(directory):
    store = directory.open()
    directory.fill(10)
    errors, rounds = [], 0
    stop = threading.Event()

    def read():
        nonlocal rounds
        try:
            while not stop.is_set() or not rounds:
                seqnos = [seqno_of(c.frame) for chunk in store.scan(0, 0, 5) for c in chunk]
                assert seqnos == [1, 2, 3, 4, 5]
                found = [seqno_of(c.frame) for chunk in store.scan(1, 0, 2**60) for c in chunk]
                assert found == list(range(1, len(found) + 1))
                rounds += 1
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    directory.fill(300)
    stop.set()
    thread.join()
    assert errors == []
    assert len(directory.segments()) > 8


def mark_superseded(path, store, number, p, seqno):
    """What compaction does to the index of a sealed segment."""
    _, footer, directory = store._log._sealed(number)
    entry_index = store._log.columns(number, p).find(seqno)
    entry = find_entry(directory, p)
    with path.open("r+b") as file:
        file.seek(footer.flags_offset + entry.flag_index + entry_index)
        file.write(b"\1")


@pytest.mark.parametrize("is_by_id_lost", [False, True])
def test_a_superseded_record_is_hidden_but_hides_older_ones(directory, is_by_id_lost):
    store = directory.open()
    directory.write(0, (b"a", b"1"), (b"b", b"1"))
    directory.write(0, (b"a", b"2"))
    store._log.roll()
    mark_superseded(directory.segments()[0], store, 1, 0, 3)
    directory.write(0, (b"c", b"1"))
    if is_by_id_lost:
        directory.crash()
        shutil.rmtree(directory.path / "byid")
        store = directory.open()
        assert directory.value(0, b"a") is None
        assert sorted(store.keys(0)) == [b"b", b"c"]
    assert b"a" not in directory.state(0)
    assert directory.state(0)[b"b"] == b"1"


def test_places_of_live_records_only(directory):
    store = directory.open()
    directory.write(0, (b"a", b"1"), (b"b", b"1"))
    directory.write(0, (b"a", b"2"), (b"c", b"2"))
    store._log.roll()
    store.roll_back(0, 2)
    directory.highs[0] = 2
    directory.write(0, (b"b", b"3"))
    live = store._live
    found = live.places_of(0, {1, 2, 3, 4, 9})
    assert {seqno: place.segment for seqno, place in found.items()} == {1: 1, 2: 1, 3: 2}
    assert live.newest_mark(0, 2**60) == 3
    assert live.newest_mark(0, 2) == 2
    assert live.newest_mark(0, 1) == 0
    assert live.superseded(0, 0, 2**60) == {2}
    assert live.superseded(0, 0, 2) == set()


def test_the_newest_mark_in_a_sealed_segment_is_looked_up_once(directory, monkeypatch):
    """Until history goes back: then it is another one, also for the same seqno."""
    store = directory.open()
    directory.write(0, (b"a", b"1"))
    directory.write(0, (b"b", b"1"))
    store._log.roll()
    live, read = store._live, []
    columns = live.log.columns
    monkeypatch.setattr(live.log, "columns", lambda *of: read.append(of) or columns(*of))
    assert live.newest_mark(0, 2) == 2
    assert read
    read.clear()
    assert live.newest_mark(0, 2) == 2
    assert read == []
    assert live.newest_mark(0, 1) == 1
    store.roll_back(0, 1)
    directory.highs[0] = 1
    assert live.newest_mark(0, 2) == 1


def test_a_mark_that_came_since_is_found_for_the_same_seqno(directory):
    store = directory.open()
    directory.write(0, (b"a", b"1"))
    store._log.roll()
    live = store._live
    assert live.newest_mark(0, 2) == 1
    directory.write(0, (b"b", b"1"))
    assert live.newest_mark(0, 2) == 2
    store._log.roll()
    store.roll_back(0, 1)
    directory.highs[0] = 1
    assert live.newest_mark(0, 2) == 1
    store.roll_back(0, 1)
    directory.write(0, (b"c", b"1"))
    assert live.newest_mark(0, 2) == 2


def test_the_dead_of_older_segments_and_of_the_rollbacks_own(directory):
    store = directory.open()
    directory.write(0, (b"a", b"1"))
    directory.write(0, (b"b", b"1"))
    store._log.roll()
    directory.write(0, (b"c", b"1"))
    index = store._log.open_index
    killed = index.cut(0, 1)
    dead = store._live.dead_keys(0, 1, 2, killed)
    assert list(dead) == [(b"b", 0), (b"c", 0)]


def test_the_versions_of_a_key_are_found_one_by_one_through_all_segments(directory):
    store = directory.open()
    directory.fill(300)
    assert len(store._log.numbers) > 6
    newest = store.find(0, b"key4")
    found = list(store.versions(0, b"key4", seqno_of(newest.frame)))
    wanted = [c for chunk in store.scan(0, 0, 2**60) for c in chunk if key_of(c.frame) == b"key4"]
    assert found == wanted[::-1]
    assert len(found) == 15
    assert list(store.versions(0, b"key4", 2**40)) == []
    assert list(store.versions(0, b"key6", seqno_of(newest.frame))) == [], "another key has it"


def test_versions_that_a_rollback_killed_are_not_found(directory):
    store = directory.open()
    directory.fill(200)
    store.roll_back(0, 60)
    directory.highs[0] = 60
    directory.fill(50)
    seqno = seqno_of(store.find(0, b"key4").frame)
    found = list(store.versions(0, b"key4", seqno))
    wanted = [c for chunk in store.scan(0, 0, 2**60) for c in chunk if key_of(c.frame) == b"key4"]
    assert found == wanted[::-1]


def test_versions_end_where_compaction_took_one(directory):
    store = directory.open()
    directory.fill(100)
    store._log.roll()
    seqno = seqno_of(store.find(0, b"key4").frame)
    every = list(store.versions(0, b"key4", seqno))
    third = every[2].previous_seqno
    for number in store._log.numbers[:-1]:
        at = store._log.columns(number, 0)
        if at is not None and (index := at.find(third)) >= 0:
            store._log.write_flags(number, 0, index, bytes([SUPERSEDED]))
    assert list(store.versions(0, b"key4", seqno)) == every[:3]


def test_a_search_for_versions_goes_on_where_segments_were_replaced_meanwhile(directory):
    store = directory.open()
    directory.fill(100)
    seqno = seqno_of(store.find(0, b"key4").frame)
    every = list(store.versions(0, b"key4", seqno))
    search = store.versions(0, b"key4", seqno)
    found = [next(search)]
    columns, log = store._log.columns, store._log

    def replaced(number, p):
        log.columns = columns
        log.swaps += 1
        raise FileNotFoundError

    log.columns = replaced
    found += search
    assert found == every
    log.columns = lambda number, p: (_ for _ in ()).throw(FileNotFoundError())
    with pytest.raises(FileNotFoundError):
        list(store.versions(0, b"key4", seqno))
    log.columns = columns
