import pytest

from millstream.data_directory.log_salvage import salvage_log
from millstream.runtime.disk import OsDisk
from millstream.storage.core.commit import encode_batches
from millstream.storage.core.receipt import RECEIPT_NAME
from millstream.storage.core.records import StoredChange
from millstream.storage.core.segment_files import segment_name
from millstream.storage.core.segment_log import LogSizes, SegmentLog
from millstream.storage.core.store import FlushBatch
from millstream.wire.frames import mutation

SEGMENTS = 5
PER_SEGMENT = 4


@pytest.fixture
def bucket(tmp_path):
    """Five segments of four commits each, the last one open."""
    log = SegmentLog(OsDisk(tmp_path / "log"), LogSizes(1 << 20, 1 << 20))
    seqno = 0
    for number in range(SEGMENTS):
        for _ in range(PER_SEGMENT):
            seqno += 1
            frame = mutation(0, b"k%d" % seqno, b"v" * 50, seqno, 1, seqno, 0, 0, 0)
            batch = FlushBatch.of(0, [StoredChange(frame, 0, b"lin")])
            commit = encode_batches(log.commit_record, [batch])
            place = log.append(*commit.parts)
            log.open_index.add_batch(
                0, [seqno], [0], place.offset + len(log.commit_record),
                [commit.size - len(log.commit_record)], is_marked=True, tombstones=b"\0",
            )  # fmt: skip
        if number < SEGMENTS - 1:
            log.roll()
    log.close()
    return tmp_path


def changes(bucket):
    log = SegmentLog(OsDisk(bucket / "log"), LogSizes())
    found = sum(
        len(columns.seqnos)
        for number in log.numbers
        if (columns := log.columns(number, 0)) is not None
    )
    log.close()
    return found


def test_a_whole_log_is_taken_as_it_is_without_its_receipt(bucket):
    assert salvage_log(bucket, 1) == "its log is taken as it is"
    assert not (bucket / "log" / RECEIPT_NAME).exists()
    assert changes(bucket) == SEGMENTS * PER_SEGMENT


@pytest.mark.parametrize("number", range(1, SEGMENTS + 1))
@pytest.mark.parametrize("how", ["missing", "empty", "header"])
def test_what_is_behind_a_lost_segment_is_set_aside(bucket, number, how):
    file = bucket / "log" / segment_name(number)
    whole = file.read_bytes()
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(b"" if how == "empty" else whole[:20] + b"x" + whole[21:])
    kept = {one.name: one.read_bytes() for one in (bucket / "log").iterdir()}
    said = salvage_log(bucket, 1)
    assert changes(bucket) == (number - 1) * PER_SEGMENT
    if number < SEGMENTS or how == "header":
        aside = bucket / "log.lost-1"
        assert str(aside) in said
        for one in aside.iterdir():
            assert one.read_bytes() == kept[one.name]
    assert salvage_log(bucket, 1) == "its log is taken as it is"


@pytest.mark.parametrize("number", [1, 3, SEGMENTS])
def test_a_damaged_segment_is_cut_where_the_damage_is(bucket, number):
    file = bucket / "log" / segment_name(number)
    whole = file.read_bytes()
    at = whole.index(b"k%d" % ((number - 1) * PER_SEGMENT + 3))
    file.write_bytes(whole[:at] + b"x" + whole[at + 1 :])
    assert segment_name(number) in salvage_log(bucket, 1)
    assert changes(bucket) == (number - 1) * PER_SEGMENT + 2
    assert (bucket / "log.lost-1" / segment_name(number)).stat().st_size == len(whole)


def test_nothing_may_be_left(tmp_path):
    assert "with it all documents" in salvage_log(tmp_path, 1)
    (tmp_path / "log" / segment_name(1)).write_bytes(b"rubbish" * 20)
    assert "nothing is left" in salvage_log(tmp_path, 1)
    assert list((tmp_path / "log").iterdir()) == []
