import shutil

import pytest

from millstream.errors import CorruptionError
from millstream.runtime.disk import OsDisk
from millstream.storage.core.reached import REACHED_NAME, FoundReached, Reached, read_reached
from millstream.storage.core.receipt import RECEIPT_NAME, Extent
from millstream.storage.core.records import change_record
from millstream.storage.core.segment_files import Place, segment_name
from millstream.storage.core.segment_log import LogSizes, SegmentLog
from millstream.storage.core.store import StoredChange
from millstream.wire.frames import mutation

LOG_ID = bytes(range(16))
SIZES = LogSizes(2000, 8000, fill_from_bytes=4000, fill_bytes=1000)


def extent(end):
    return Extent(LOG_ID, Place(3, end), 0xDEADBEEF)


def opened(path):
    return SegmentLog(OsDisk(path), SIZES)


def commit(log, seqno, size=40):
    frame = mutation(0, b"k", bytes([seqno % 256]) * size, seqno, 1, 1, 0, 0, 0)
    return log.commit_record + change_record(0, StoredChange(frame, 0, b"l"), is_mark=True)


def killed_log(path, sizes=(40,) * 6):
    """A log that was killed after its last commit: the receipt names the segment's begin alone."""
    log = opened(path)
    ends = []
    for seqno, size in enumerate(sizes, 1):
        log.append(commit(log, seqno, size))
        ends.append(log.end)
    log.close()
    return ends


def test_the_farthest_place_that_was_noted_is_read_back(tmp_path):
    disk = OsDisk(tmp_path)
    assert read_reached(disk) == FoundReached(is_there=False)
    reached = Reached(disk, extent(64))
    assert read_reached(disk) == FoundReached(extent(64), LOG_ID)
    for end in (100, 1000, 99_999, 100_000):
        reached.note(extent(end))
        assert read_reached(disk) == FoundReached(extent(end), LOG_ID)
    reached.close()


def test_a_note_that_was_cut_short_leaves_the_one_before_it(tmp_path):
    reached = Reached(OsDisk(tmp_path), extent(64))
    reached.note(extent(100))
    before = (tmp_path / REACHED_NAME).read_bytes()
    reached.note(extent(200))
    reached.close()
    whole = (tmp_path / REACHED_NAME).read_bytes()
    begin = next(at for at, (a, b) in enumerate(zip(before, whole, strict=True)) if a != b)
    for at in range(begin, begin + 40):
        (tmp_path / REACHED_NAME).write_bytes(whole[:at] + before[at:])
        found = read_reached(OsDisk(tmp_path))
        assert found.extent in (extent(100), extent(200))
        assert not found.damage


def test_damage_of_all_that_the_file_says_is_told_in_the_same_boot_alone(tmp_path, monkeypatch):
    Reached(OsDisk(tmp_path), extent(64)).close()
    path = tmp_path / REACHED_NAME
    whole = path.read_bytes()
    for at in range(whole.index(b"\n") + 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert read_reached(OsDisk(tmp_path)).damage
    path.write_bytes(whole[:512] + bytes(1024))
    assert read_reached(OsDisk(tmp_path)).damage
    monkeypatch.setattr(OsDisk, "boot_id", lambda _: "another")
    assert read_reached(OsDisk(tmp_path)) == FoundReached(None, LOG_ID)  # the power may have gone


@pytest.mark.slow
def test_after_a_kill_no_flipped_bit_in_a_durable_commit_is_taken_for_a_torn_tail(tmp_path):
    ends = killed_log(tmp_path / "log")
    path = tmp_path / "log" / segment_name(1)
    whole = path.read_bytes()
    for at in range(64, ends[-1]):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        with pytest.raises(CorruptionError, match=r"00000001\.seg is damaged at offset"):
            opened(tmp_path / "log")
        assert path.read_bytes() == data, "nothing is changed"
    path.write_bytes(whole)
    log = opened(tmp_path / "log")
    assert (log.end, log.cut_bytes) == (ends[-1], 0)
    log.close()


@pytest.mark.slow
def test_after_a_kill_no_durable_commit_may_be_cut_off(tmp_path):
    ends = killed_log(tmp_path / "log")
    path = tmp_path / "log" / segment_name(1)
    whole = path.read_bytes()
    for end in range(ends[-1]):
        path.write_bytes(whole[:end])
        with pytest.raises(CorruptionError, match=rf"it has {end} bytes, of {ends[-1]}"):
            opened(tmp_path / "log")
        assert path.read_bytes() == whole[:end]


def test_what_is_behind_the_last_durable_commit_is_a_torn_tail(tmp_path):
    ends = killed_log(tmp_path / "log")
    path = tmp_path / "log" / segment_name(1)
    whole = path.read_bytes()
    log = opened(tmp_path / "log")
    torn = commit(log, 7)
    log.close()
    for kept in range(1, len(torn)):
        path.write_bytes(whole + torn[:kept])
        log = opened(tmp_path / "log")
        assert log.end in (ends[-1], ends[-1] + len(log.commit_record))
        log.close()


def test_each_of_several_segments_is_held_to_what_was_durable(tmp_path):
    sizes = (600,) * 8
    killed_log(tmp_path / "log", sizes)
    segments = sorted((tmp_path / "log").glob("*.seg"))
    assert len(segments) > 2
    for path in segments:
        whole = path.read_bytes()
        for data in (None, b"", whole[:64], whole[:-1]):
            path.unlink()
            if data is not None:
                path.write_bytes(data)
            with pytest.raises(CorruptionError, match=path.name.replace(".", r"\.")):
                opened(tmp_path / "log")
            path.write_bytes(whole)
    opened(tmp_path / "log").close()


def test_a_lost_or_strange_file_stops_the_log_once_the_receipt_names_it(tmp_path):
    log = opened(tmp_path / "log")
    log.append(commit(log, 1))
    log.write_receipt()
    log.close()
    path = tmp_path / "log" / REACHED_NAME
    whole = path.read_bytes()
    for data, said in ((None, "it is missing"), (b"", "it is not what was written")):
        path.unlink()
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(CorruptionError, match=f"reached: {said}: nobody knows how far"):
            opened(tmp_path / "log")
        path.write_bytes(whole)
    killed_log(tmp_path / "other", (40,))
    shutil.copy(tmp_path / "other" / REACHED_NAME, path)
    with pytest.raises(CorruptionError, match="another log"):
        opened(tmp_path / "log")


def test_a_note_without_a_log_shows_that_the_log_is_lost(tmp_path):
    killed_log(tmp_path / "log")
    for path in (tmp_path / "log" / RECEIPT_NAME, *(tmp_path / "log").glob("*.seg")):
        path.unlink()
    with pytest.raises(CorruptionError, match="all segments of the log are missing") as raised:
        opened(tmp_path / "log")
    assert raised.value.code == "log_lost"


def test_a_log_of_a_program_that_noted_nothing_opens_and_is_noted_from_then_on(tmp_path):
    ends = killed_log(tmp_path / "log")
    (tmp_path / "log" / REACHED_NAME).unlink()
    assert b"RECEIPT 2" in (tmp_path / "log" / RECEIPT_NAME).read_bytes()
    log = opened(tmp_path / "log")
    assert log.end == ends[-1]
    log.append(commit(log, 7))
    log.close()
    assert read_reached(OsDisk(tmp_path / "log")).extent.place == log.place


def test_an_old_note_of_a_segment_that_was_rewritten_since_is_not_held_against_it(tmp_path):
    """After a loss of power the note may be any that was ever made."""
    killed_log(tmp_path / "log", (600,) * 2)
    path = tmp_path / "log" / REACHED_NAME
    old = path.read_bytes()
    log = opened(tmp_path / "log")
    for seqno in range(3, 12):
        log.append(commit(log, seqno, 600))
    log.close()
    first = tmp_path / "log" / segment_name(1)
    data = bytearray(first.read_bytes())
    data[100] ^= 1  # as if a compaction had written it anew
    first.write_bytes(data)
    path.write_bytes(old)
    opened(tmp_path / "log").close()
