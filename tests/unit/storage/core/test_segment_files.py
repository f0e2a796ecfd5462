import threading
from functools import partial
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptionError
from millstream.runtime.disk import OsDisk
from millstream.storage.core import segment_files
from millstream.storage.core.records import (
    ENVELOPE_BYTES,
    ChangeColumns,
    StoredChange,
    change_of_record,
    change_record,
    commit_record,
    cut_changes,
    encode_changes,
    rollback_record,
)
from millstream.storage.core.segment import FOOTER_BYTES, HEADER_BYTES, OpenIndex
from millstream.storage.core.segment_files import Place, segment_name
from millstream.storage.core.segment_log import LogSizes, SegmentLog
from millstream.wire.frames import deletion, described, mutation, seqno_of

SIZES = LogSizes(1000, 4000, fill_from_bytes=4000, fill_bytes=500)


def opened(path):
    return SegmentLog(OsDisk(path), SIZES)


def commit(log, size):
    """A group commit of one record with `size` bytes."""
    return log.commit_record + commit_record(bytes(size - ENVELOPE_BYTES))


def sealed(tmp_path):
    log = opened(tmp_path)
    while len(log.numbers) < 3:
        log.append(commit(log, 150))
    log.close()
    return log


def change(seqno, size=10):
    frame = mutation(0, b"k%d" % seqno, bytes(size), seqno, 1, 1, 0, 0, 0)
    return StoredChange(frame, 0, b"lineage")


def appended(log, changes):
    records = [change_record(0, one, is_mark=True) for one in changes]
    place = log.append(log.commit_record + b"".join(records))
    offset = place.offset + len(log.commit_record)
    lengths = [len(record) for record in records]
    seqnos = [int.from_bytes(one.frame[24:32], "big") for one in changes]
    log.open_index.add_batch(0, seqnos, [0] * len(seqnos), offset, lengths)
    return offset


@pytest.mark.parametrize("is_sealed", [False, True])
def test_runs_are_read_with_gaps_and_without(tmp_path, is_sealed):
    log = opened(tmp_path)
    changes = [change(seqno, size) for seqno, size in enumerate((10, 9000, 20, 9000, 30, 40), 1)]
    appended(log, changes)
    if is_sealed:
        log.roll()
    columns = log.columns(1, 0)
    for skip in (set(), {2}, {2, 4}, {1, 3, 5, 6}, {1, 2, 3, 4, 5, 6}):
        read = [one for chunk in log.changes(1, columns, 0, 6, skip) for one in chunk]
        wanted = [one for seqno, one in enumerate(changes, 1) if seqno not in skip]
        assert read == wanted
        chunks = list(log.frames(1, columns, 0, 6, skip))
        assert [frame for frames, _ in chunks for frame in frames] == [one.frame for one in wanted]
        assert all(last == seqno_of(frames[-1]) for frames, last in chunks)
    assert [one for chunk in log.changes(1, columns, 1, 3) for one in chunk] == changes[1:3]
    log.close()


@pytest.mark.parametrize("at", [0, 5, 8, 30, 60])
def test_a_damaged_record_is_named_when_read(tmp_path, at):
    log = opened(tmp_path)
    offset = appended(log, [change(1), change(2)])
    columns = log.columns(1, 0)
    second = columns.offsets[1]
    path = tmp_path / segment_name(1)
    data = bytearray(path.read_bytes())
    data[second + at] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match=rf"damaged at offset {second}:"):
        list(log.changes(1, columns, 0, 2))
    with pytest.raises(CorruptionError, match=rf"damaged at offset {second}:"):
        list(log.frames(1, columns, 0, 2))
    assert read_change(log, 1, offset)[1] == change(1)
    assert read_change(log, 1, second) is None
    with pytest.raises(CorruptionError, match=rf"damaged at offset {second}:"):
        log.record_at(1, second)
    path.write_bytes(data[: second + 20])
    for read in (log.changes, log.frames, partial(log.frames, is_described=True)):
        with pytest.raises(CorruptionError, match=rf"damaged at offset {second}:"):
            list(read(1, columns, 0, 2))
    log.close()


def test_a_change_is_looked_up_by_its_place(tmp_path):
    log = opened(tmp_path)
    offset = appended(log, [change(1), change(2, 50_000)])
    assert read_change(log, 1, offset) == (0, change(1))
    assert read_change(log, 1, log.columns(1, 0).offsets[1]) == (0, change(2, 50_000))
    for place in (Place(1, offset + 1), Place(1, 10**6), Place(7, 64), Place(1, log.end)):
        assert read_change(log, *place) is None
    log.close()


def read_change(log, segment, offset, *, may_wait=True):
    """Partition and change of the record at a place, None if there is no valid one."""
    return change_of_record(read_whole(log, segment, offset, may_wait=may_wait))


def read_whole(log, segment, offset, *, may_wait):
    data = log.read_record(segment, offset, may_wait=may_wait)
    return data[: int.from_bytes(data[4:8], "big")]


class Cold:
    """A file of which only the beginning is in memory; `resident` bytes from each read's place."""

    def __init__(self, file, resident):
        self.file, self.resident = file, resident

    def __getattr__(self, name):
        return getattr(self.file, name)

    def read_resident(self, offset, size):
        data = self.file.read_at(offset, size)
        if data and not self.resident:
            raise BlockingIOError
        data, self.resident = data[: self.resident], self.resident - len(data[: self.resident])
        return data


@pytest.mark.parametrize("size", [10, 3000])
def test_a_change_is_read_without_waiting_if_all_of_it_is_in_memory(tmp_path, size):
    log = opened(tmp_path)
    offset = appended(log, [change(1, size)])
    whole = log.end - offset
    warm = log._file(1)
    for resident in (0, 7, 30, whole - 1):
        log._files[1] = log._files[1]._replace(file=Cold(warm, resident))
        with pytest.raises(BlockingIOError):
            read_change(log, 1, offset, may_wait=False)
    for resident in (whole, 10**6):
        log._files[1] = log._files[1]._replace(file=Cold(warm, resident))
        assert read_change(log, 1, offset, may_wait=False) == (0, change(1, size))
    assert read_change(log, 1, log.end, may_wait=False) is None
    assert read_change(log, 1, log.end - 30, may_wait=False) is None
    assert read_change(log, 9, offset, may_wait=False) is None
    log.close()


def test_long_changes_are_left_to_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(segment_files, "LOOP_READ_BYTES_MAX", 5000)
    log = opened(tmp_path)
    offset = appended(log, [change(1, 5000)])
    with pytest.raises(BlockingIOError):
        read_change(log, 1, offset, may_wait=False)
    assert read_change(log, 1, offset) == (0, change(1, 5000))
    log.close()


def test_controls_of_a_sealed_segment(tmp_path):
    log = opened(tmp_path)
    log.append(log.commit_record + rollback_record(0, 0))
    log.open_index.controls.append(HEADER_BYTES + len(log.commit_record))
    log.roll()
    (offset,) = log.controls_in(1)
    assert log.record_at(1, offset).payload == bytes(8)
    path = tmp_path / segment_name(1)
    data = bytearray(path.read_bytes())
    data[log._sealed(1)[1].controls_offset] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match="index is damaged"):
        log.controls_in(1)
    assert isinstance(log.open_index, OpenIndex)
    log.close()


def test_a_damaged_directory_is_corruption(tmp_path):
    log = opened(tmp_path)
    log.append(commit(log, 100))
    log.open_index.add_batch(0, [1], [0], HEADER_BYTES, [100])
    log.roll()
    footer = log._sealed(1)[1]
    log.close()
    path = tmp_path / segment_name(1)
    data = bytearray(path.read_bytes())
    data[footer.directory_offset] ^= 1
    path.write_bytes(data)
    again = opened(tmp_path)
    with pytest.raises(CorruptionError, match="index is damaged"):
        again.columns(1, 0)
    again.close()
    data[footer.directory_offset] ^= 1
    data[footer.directory_offset - 1] ^= 1
    path.write_bytes(data)
    again = opened(tmp_path)
    with pytest.raises(CorruptionError, match="index is damaged"):
        again.columns(1, 0)
    again.close()


def test_reads_go_on_while_files_are_dropped_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(segment_files, "OPEN_FILES_MAX", 8)
    log = opened(tmp_path)
    while len(log.numbers) < 12:
        log.append(commit(log, 500))
    errors = []

    def read():
        try:
            for _ in range(100):
                for number in log.numbers:
                    assert sum(1 for _ in log.walk(number)) >= 0
                    log.columns(number, 0)
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        log.append(commit(log, 500))
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(log._files) <= 8
    log.forget_files()
    log.close()


def test_a_damaged_footer_of_a_sealed_segment_is_corruption(tmp_path):
    log = sealed(tmp_path)
    path = tmp_path / segment_name(1)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptionError, match=r"00000001\.seg.*footer"):
        opened(tmp_path)
    assert log.numbers == [1, 2, 3]


def test_a_footer_needs_its_length(tmp_path):
    log = sealed(tmp_path)
    path = tmp_path / segment_name(1)
    data = path.read_bytes()
    path.write_bytes(data[:-FOOTER_BYTES] + bytes(8) + data[-FOOTER_BYTES:])
    with pytest.raises(CorruptionError, match="footer"):
        opened(tmp_path)
    assert log.numbers


# -- described frames: as `described` makes them of the changes that are read back

pieces = st.binary(max_size=300)
frames = st.one_of(
    st.builds(
        mutation, st.just(3), pieces, pieces, st.integers(1, 2**48), *map(st.just, (1,) * 5)
    ),
    st.builds(deletion, st.just(3), pieces, st.integers(1, 2**48), *map(st.just, (1,) * 3)),
)
stored = st.builds(StoredChange, frames, st.just(0), pieces, pieces)


@given(st.lists(stored, min_size=1, max_size=5), st.integers(0, 99), st.data())
def test_one_read_of_described_frames_is_cut_up_to_the_first_damaged_record(changes, start, data):
    parts = []
    lengths = encode_changes(ChangeColumns.of(3, changes), parts)
    content = bytearray(b"".join(parts))
    stops = [start + stop for stop in accumulate(lengths)]
    offsets = [start, *stops[:-1]]

    def wanted(data, *where):
        return [described(*one[:1], *one[2:]) for one in cut_changes(data, start, *where)]

    assert len(wanted(bytes(content), offsets, stops)) == len(changes)
    assert segment_files._cut_described(bytes(content), start, offsets, stops) == wanted(
        bytes(content), offsets, stops
    )
    picked = sorted(data.draw(st.sets(st.integers(0, len(changes) - 1), min_size=1)))
    some = [[column[n] for n in picked] for column in (offsets, stops)]
    assert segment_files._cut_described(bytes(content), start, *some) == wanted(
        bytes(content), *some
    )
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(content), bytes(content[:at])):
        assert segment_files._cut_described(damaged, start, offsets, stops) == wanted(
            damaged, offsets, stops
        )
