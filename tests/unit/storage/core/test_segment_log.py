import errno
import os

import pytest

from millstream.errors import CorruptionError, UnavailableError, UsageError
from millstream.runtime.disk import OsDisk, OsFile
from millstream.storage.core.reached import REACHED_NAME
from millstream.storage.core.receipt import RECEIPT_NAME, write_receipt
from millstream.storage.core.records import ENVELOPE_BYTES, commit_record
from millstream.storage.core.segment import (
    HEADER_BYTES,
    Rewriting,
    decode_header,
    encode_header,
)
from millstream.storage.core.segment_files import Place, segment_name
from millstream.storage.core.segment_log import LogSizes, SegmentLog

SIZES = LogSizes(1000, 4000, fill_from_bytes=4000, fill_bytes=500)


def opened(path, sizes=SIZES):
    return SegmentLog(OsDisk(path), sizes)


def commit(log, size):
    """A group commit of one record with `size` bytes."""
    return log.commit_record + commit_record(bytes(size - ENVELOPE_BYTES))


def test_segments_grow_with_the_log_and_are_sealed_in_turn(tmp_path):
    log = opened(tmp_path)
    assert log.is_new
    for _ in range(200):
        log.append(commit(log, 200))
    log.close()
    sizes = [(tmp_path / segment_name(number)).stat().st_size for number in log.numbers]
    assert len(sizes) > 8
    assert max(sizes[:4]) < 1100
    for at in range(5, len(sizes) - 1):
        assert max(700, min(4000, sum(sizes[:at]) // 4) - 200) < sizes[at]
    assert max(sizes) < 4100
    assert log.sealed_bytes == sum(sizes[:-1])
    again = opened(tmp_path)
    assert not again.is_new
    assert again.place == log.place
    assert again.checksum == log.checksum
    assert again.log_id == log.log_id
    assert again.cut_bytes == 0
    assert again.sealed_bytes == log.sealed_bytes
    assert sum(again.verify(number) for number in again.numbers[:-1]) > 10_000
    again.close()


def test_large_segments_are_filled_ahead_and_sealed_without_the_fill(tmp_path):
    log = opened(tmp_path, LogSizes(4000, 4000, fill_from_bytes=4000, fill_bytes=1500))
    assert not log.is_quick(100)
    log.append(commit(log, 100))
    path = tmp_path / segment_name(1)
    assert path.stat().st_size > log.end + 1000
    assert log.is_quick(100)
    assert not log.is_quick(5000)
    again = opened(tmp_path)
    assert (again.cut_bytes, again.end) == (0, log.end)
    again.close()
    while len(log.numbers) == 1:
        end = log.end
        log.append(commit(log, 300))
    assert end < path.stat().st_size < end + 200
    log.close()


def test_a_commit_larger_than_a_segment_stands_in_one(tmp_path):
    log = opened(tmp_path)
    log.append(commit(log, 100))
    assert log.append(commit(log, 50_000)) == Place(2, HEADER_BYTES)
    log.append(commit(log, 100))
    assert log.numbers == [1, 2, 3]
    log.close()


@pytest.mark.parametrize("tail", [b"torn", bytes(100) + b"x", commit_record(bytes(16))[:-1]])
def test_a_torn_tail_is_cut(tmp_path, tail):
    log = opened(tmp_path)
    log.append(commit(log, 100))
    log.close()
    path = tmp_path / segment_name(1)
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    again = opened(tmp_path)
    assert again.cut_bytes == len(tail)
    assert again.place == log.place
    assert path.read_bytes() == whole
    again.close()


def test_records_behind_a_hole_in_the_last_commit_do_not_return(tmp_path):
    """The hole is cut with all that follows, else the next commit of its size revives it."""
    log = opened(tmp_path)
    log.append(commit(log, 100))
    end, before = log.end, (tmp_path / REACHED_NAME).read_bytes()
    log.append(log.commit_record + commit_record(bytes(50)) + commit_record(bytes(60)))
    log.close()
    (tmp_path / REACHED_NAME).write_bytes(before)  # the last commit was not durable yet
    path = tmp_path / segment_name(1)
    data = bytearray(path.read_bytes())
    data[end + len(log.commit_record) + 30] ^= 1
    path.write_bytes(data)
    again = opened(tmp_path)
    assert again.end == end + len(log.commit_record)
    assert path.stat().st_size == again.end
    again.append(commit_record(bytes(50)))
    again.close()
    last = opened(tmp_path)
    assert (last.end, last.cut_bytes) == (again.end, 0)
    last.close()


def test_a_hole_with_a_later_commit_behind_it_is_corruption(tmp_path, monkeypatch):
    monkeypatch.setattr("millstream.storage.core.segment_log.CHECK_BYTES", 64)
    log = opened(tmp_path)
    log.append(commit(log, 100))
    end = log.end
    for _ in range(2):
        log.append(commit(log, 200))
    log.close()
    path = tmp_path / segment_name(1)
    data = bytearray(path.read_bytes())
    data[end + 60] ^= 1
    path.write_bytes(data)
    place = end + len(log.commit_record)
    with pytest.raises(
        CorruptionError, match=rf"{tmp_path}/00000001\.seg is damaged at offset {place}:"
    ):
        opened(tmp_path)
    assert path.read_bytes() == data


def sealed(tmp_path):
    log = opened(tmp_path)
    while len(log.numbers) < 3:
        log.append(commit(log, 150))
    log.close()
    return log


def test_a_damaged_record_of_a_sealed_segment_is_named(tmp_path):
    log = sealed(tmp_path)
    path = tmp_path / segment_name(2)
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + len(log.commit_record) + 40] ^= 1
    path.write_bytes(data)
    again = opened(tmp_path)
    assert again.verify(1) > 0
    place = HEADER_BYTES + len(log.commit_record)
    with pytest.raises(CorruptionError, match=rf"00000002\.seg is damaged at offset {place}:"):
        again.verify(2)
    again.close()


@pytest.mark.parametrize("kept", [0, 10, HEADER_BYTES - 1])
def test_a_segment_whose_header_was_not_durable_is_begun_again(tmp_path, kept):
    log = opened(tmp_path)
    for _ in range(3):
        log.append(commit(log, 150))
        before = (tmp_path / RECEIPT_NAME).read_bytes()
        log.roll()
    log.close()
    path = tmp_path / segment_name(4)
    path.write_bytes(encode_header(4, log.log_id)[:kept])
    with pytest.raises(CorruptionError, match=rf"{segment_name(4)}: it has {kept} bytes, of 64"):
        opened(tmp_path)
    (tmp_path / RECEIPT_NAME).write_bytes(before)  # it does not name the segment yet
    again = opened(tmp_path)
    assert again.place == Place(4, HEADER_BYTES)
    assert path.read_bytes() == encode_header(4, log.log_id)
    assert not again.is_new
    assert again.log_id == log.log_id
    again.close()


def test_recent_indexes_are_read_once(tmp_path, monkeypatch):
    log = opened(tmp_path)
    log.append(commit(log, 100))
    log.open_index.add_batch(3, [1, 2], [0, 0], 100, [10, 20])
    log.roll()
    log.roll()
    reads = []
    sealed = log.sealed_columns
    monkeypatch.setattr(log, "sealed_columns", lambda *at: reads.append(at) or sealed(*at))
    assert list(log.recent_columns(1, 3).seqnos) == [1, 2]
    assert reads == []
    for _ in range(2):
        assert not log.recent_columns(1, 4).seqnos
        assert not log.recent_columns(2, 3).seqnos
    assert reads == [(1, 4), (2, 3)]
    log.forget_indexes(before=2)
    assert list(log.recent_columns(1, 3).offsets) == [100, 110]
    assert not log.recent_columns(2, 3).seqnos
    assert reads == [(1, 4), (2, 3), (1, 3)]
    assert log.recent_columns(3, 3) is None
    log.close()


def with_header(path, number, rewriting):
    """Let a segment file say that it was compacted."""
    data = path.read_bytes()
    log_id = decode_header(data[:HEADER_BYTES]).log_id
    path.write_bytes(encode_header(number, log_id, rewriting) + data[HEADER_BYTES:])


def test_what_a_compacted_segment_stands_for_is_removed(tmp_path):
    log = opened(tmp_path)
    for _ in range(5):
        log.append(commit(log, 100))
        log.roll()
    log.close()
    with_header(tmp_path / segment_name(4), 4, Rewriting(2, 5, 200, 3))
    again = opened(tmp_path)
    assert again.numbers == [1, 4, 5, 6]
    assert sorted(path.name for path in tmp_path.glob("*.seg")) == [
        segment_name(number) for number in again.numbers
    ]
    assert again.firsts == {4: 2}
    assert again.generations == {4: 3}
    assert again.by_id_place == Place(5, 200)
    again.close()


@pytest.mark.parametrize(("gone", "missing"), [([1], 1), ([2], 2), ([2, 3], 3), ([3], 0)])
def test_a_segment_that_is_missing_is_corruption(tmp_path, gone, missing):
    log = opened(tmp_path)
    for _ in range(4):
        log.append(commit(log, 100))
        log.roll()
    log.close()
    if not missing:
        with_header(tmp_path / segment_name(4), 4, Rewriting(3, 5, 64, 1))
    for number in gone:
        (tmp_path / segment_name(number)).unlink()
    if missing:
        with pytest.raises(CorruptionError, match=rf"{segment_name(missing)} .* missing"):
            opened(tmp_path)
        assert (tmp_path / segment_name(4)).exists()
    else:
        again = opened(tmp_path)
        assert again.numbers == [1, 2, 4, 5]
        again.close()


def test_a_run_is_replaced_by_one_segment(tmp_path):
    log = opened(tmp_path)
    for _ in range(5):
        log.append(commit(log, 100))
        log.roll()
    before, swaps = log.sealed_bytes, log.swaps
    old = [(tmp_path / segment_name(number)).stat().st_size for number in (2, 3, 4)]
    rewriting = Rewriting(2, 6, 64, 1)
    with_header(tmp_path / segment_name(4), 4, rewriting)
    log.replace([2, 3, 4], rewriting, old[2])
    assert log.numbers == [1, 4, 5, 6]
    assert log.swaps == swaps + 1
    assert log.sealed_bytes == before - old[0] - old[1]
    log.verify(5)
    log.close()
    again = opened(tmp_path)
    assert (again.numbers, again.sealed_bytes) == (log.numbers, log.sealed_bytes)
    assert (again.firsts, again.generations) == (log.firsts, log.generations)
    again.close()


def test_a_replaced_file_that_was_opened_too_early_is_opened_again(tmp_path, monkeypatch):
    log = opened(tmp_path)
    log.append(commit(log, 100))
    log.roll()
    path = tmp_path / segment_name(1)
    old = log._file(1)
    log.forget_files()
    open_file, files = OsDisk.open, [old]

    def open_old_first(disk, name, **how):
        if not files:
            return open_file(disk, name, **how)
        log.generations[1] = 1  # the swap comes between opening the file and keeping it
        return files.pop()

    copy = path.with_suffix(".new")
    copy.write_bytes(path.read_bytes())
    with_header(copy, 1, Rewriting(1, 2, 64, 1))
    copy.rename(path)
    monkeypatch.setattr(OsDisk, "open", open_old_first)
    assert log._file(1) is not old
    assert log._files[1].generation == 1
    log.close()


def test_a_torn_seal_is_cut(tmp_path):
    log = opened(tmp_path)
    log.append(commit(log, 100))
    end = log.end
    before = (tmp_path / RECEIPT_NAME).read_bytes()
    log.roll()
    log.close()
    (tmp_path / segment_name(2)).unlink()
    (tmp_path / RECEIPT_NAME).write_bytes(before)
    path = tmp_path / segment_name(1)
    whole = path.read_bytes()
    again = opened(tmp_path)
    assert again.is_sealed
    again.close()
    for kept in range(end + 1, len(whole)):
        path.write_bytes(whole[:kept])
        again = opened(tmp_path)
        assert not again.is_sealed
        assert (again.end, again.cut_bytes, path.stat().st_size) == (end, kept - end, end)
        again.close()


@pytest.mark.parametrize(
    ("data", "error", "code"),
    [
        (b"something else entirely" * 20, UsageError, "foreign_format"),
        (bytes(100), CorruptionError, "corrupt"),
        (encode_header(1, bytes(16))[:20] + bytes(100), CorruptionError, "corrupt"),
        (encode_header(2, bytes(16)) + bytes(100), CorruptionError, "corrupt"),
    ],
)
def test_what_is_no_segment_of_ours_is_refused(tmp_path, data, error, code):
    (tmp_path / segment_name(1)).write_bytes(data)
    with pytest.raises(error, match=rf"{tmp_path}/00000001\.seg") as raised:
        opened(tmp_path)
    assert raised.value.code == code
    assert (tmp_path / segment_name(1)).read_bytes() == data


def test_a_newer_format_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as newer:
        newer.setattr("millstream.storage.core.segment.FORMAT_VERSION", 2)
        opened(tmp_path).close()
    with pytest.raises(UsageError, match="format 2") as raised:
        opened(tmp_path)
    assert raised.value.code == "newer_format"


@pytest.mark.parametrize("kept", [None, 0, 10, 64, 150])
@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_segment_that_was_there_is_missed_emptied_or_cut(tmp_path, number, kept):
    log = opened(tmp_path)
    for _ in range(4):
        log.append(commit(log, 100))
        log.roll()
    log.append(commit(log, 100))
    write_receipt(OsDisk(tmp_path), log.extent)
    log.close()
    path = tmp_path / segment_name(number)
    if kept is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:kept])
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    with pytest.raises(CorruptionError, match=segment_name(number)):
        opened(tmp_path)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before


def test_a_log_whose_segments_or_receipt_are_gone_is_not_a_new_one(tmp_path):
    log = opened(tmp_path)
    log.append(commit(log, 100))
    log.close()
    receipt = tmp_path / RECEIPT_NAME
    whole = receipt.read_bytes()
    receipt.write_bytes(b"")
    with pytest.raises(CorruptionError, match="receipt: it is not what was written"):
        opened(tmp_path)
    receipt.unlink()
    with pytest.raises(CorruptionError, match="receipt: it is missing"):
        SegmentLog(OsDisk(tmp_path), SIZES, known_id=b"")
    opened(tmp_path).close()  # of a program that wrote none
    receipt.write_bytes(whole)
    (tmp_path / segment_name(1)).unlink()
    with pytest.raises(CorruptionError, match="all segments"):
        opened(tmp_path)
    receipt.unlink()
    with pytest.raises(CorruptionError, match="all segments"):
        SegmentLog(OsDisk(tmp_path), SIZES, known_id=b"")


def test_segments_of_two_logs_do_not_mix(tmp_path):
    sealed(tmp_path / "a")
    sealed(tmp_path / "b")
    (tmp_path / "b" / segment_name(2)).rename(tmp_path / "a" / segment_name(2))
    with pytest.raises(CorruptionError, match="another log"):
        opened(tmp_path / "a")


def test_leftovers_are_removed_and_strangers_left(tmp_path):
    for name in ("00000001.seg.new", "notes.txt", "x.seg"):
        (tmp_path / name).write_bytes(b"")
    log = opened(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        segment_name(1), "notes.txt", RECEIPT_NAME, "x.seg",
    ]  # fmt: skip
    log.close()


class Failing:
    """Makes a method of the real file fail."""

    def __init__(self, monkeypatch, *names, number=errno.ENOSPC):
        self.left = dict.fromkeys(names, 1)
        self.number = number
        for name in names:
            monkeypatch.setattr(OsFile, name, self.wrapped(name, getattr(OsFile, name)))

    def wrapped(self, name, method):
        def call(file, *arguments):
            if self.left[name] > 0:
                self.left[name] -= 1
                if name == "write_at":
                    method(file, arguments[0], arguments[1][:20])
                raise OSError(self.number, os.strerror(self.number))
            return method(file, *arguments)

        return call


@pytest.mark.parametrize("size", [100, 5000])
def test_a_full_disk_takes_nothing_and_may_be_tried_again(tmp_path, monkeypatch, size):
    log = opened(tmp_path)
    log.append(commit(log, 100))
    for count in (1, 2, 3):
        place, segments = log.place, log.numbers
        with monkeypatch.context() as context:
            Failing(context, "write_at")
            with pytest.raises(UnavailableError, match="free space") as raised:
                log.append(commit(log, size))
        assert raised.value.code == "disk_full"
        assert raised.value.retry == "backoff"
        assert (log.place, log.numbers) == (place, segments)
        log.append(commit(log, size))
        assert log.numbers[-1] == (count + 1 if size == 5000 else 1)
    log.close()
    again = opened(tmp_path)
    assert (again.place, again.cut_bytes) == (log.place, 0)
    again.close()


def test_a_new_segment_that_cannot_be_begun_is_tried_again(tmp_path, monkeypatch):
    log = opened(tmp_path)
    log.append(commit(log, 900))
    calls = []
    write = OsFile.write_at

    def fail_at_header(file, offset, data):
        calls.append(offset)
        if offset == 0 and calls.count(0) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, offset, data)

    monkeypatch.setattr(OsFile, "write_at", fail_at_header)
    with pytest.raises(UnavailableError, match=r"00000002\.seg cannot be written"):
        log.append(commit(log, 900))
    assert log.is_sealed
    log.append(commit(log, 900))
    assert log.numbers == [1, 2]
    assert log.place.segment == 2
    log.close()


@pytest.mark.parametrize("names", [("sync",), ("write_at", "truncate")])
def test_after_a_failed_sync_nothing_is_appended(tmp_path, monkeypatch, names):
    log = opened(tmp_path)
    log.append(commit(log, 100))
    with monkeypatch.context() as context:
        Failing(context, *names)
        with pytest.raises(UnavailableError) as raised:
            log.append(commit(log, 100))
    assert raised.value.code == "disk_failed"
    with pytest.raises(UnavailableError, match="failed earlier"):
        log.append(commit(log, 100))
    log.close()


def test_an_error_that_is_no_lack_of_space_is_final(tmp_path, monkeypatch):
    log = opened(tmp_path)
    with monkeypatch.context() as context:
        Failing(context, "write_at", number=errno.EIO)
        with pytest.raises(UnavailableError, match=r"00000001\.seg: the disk failed") as raised:
            log.append(commit(log, 100))
    assert raised.value.code == "disk_failed"
    with pytest.raises(UnavailableError, match="failed earlier"):
        log.append(commit(log, 100))
    log.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("call", ["OsFile.sync", "OsDisk.sync_directory"])
def test_a_new_segment_that_is_not_made_durable_is_final(tmp_path, monkeypatch, call, number):
    log = opened(tmp_path)
    log.append(commit(log, 900))
    seal = log.open_index.encode(log.end, log.checksum)
    log._last.write_at(log.end, seal)
    log.is_sealed = True

    def broken(_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as context:
        context.setattr(f"millstream.runtime.disk.{call}", broken)
        with pytest.raises(UnavailableError, match="the disk failed") as raised:
            log.append(commit(log, 100))
    assert raised.value.code == "disk_failed"
    log.close()


def test_the_last_segment_is_read_from_the_disk_not_from_what_a_failed_sync_left(
    tmp_path, monkeypatch
):
    log = opened(tmp_path)
    log.append(commit(log, 100))
    log.close()
    calls = []
    for name in ("sync", "forget_cache", "read_at"):
        monkeypatch.setattr(OsFile, name, noted(calls, name, getattr(OsFile, name)))
    opened(tmp_path).close()
    assert calls[:4] == ["read_at", "read_at", "sync", "forget_cache"], "both receipts come before"


def noted(calls, name, method):
    def call(*args):
        calls.append(name)
        return method(*args)

    return call
