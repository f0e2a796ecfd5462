"""The example in docs/reference/file-format.md is what the code writes and reads."""

from pathlib import Path

from millstream.model.position import FailoverEntry
from millstream.runtime.disk import OsDisk
from millstream.storage.core.live import LiveLog
from millstream.storage.core.records import Kind, entry_of
from millstream.storage.core.segment_log import LogSizes, SegmentLog
from millstream.storage.core.summary import PartitionSummary
from millstream.wire.frames import change_of

DOCUMENT = Path(__file__).parents[4] / "docs" / "reference" / "file-format.md"


def example():
    lines = DOCUMENT.read_text().split("```hex\n")[1].split("```")[0].splitlines()
    return b"".join(bytes.fromhex(line[6:]) for line in lines)


def test_the_example_is_read(tmp_path):
    (tmp_path / "00000001.seg").write_bytes(example())
    log = SegmentLog(OsDisk(tmp_path), LogSizes())
    assert log.is_sealed
    assert log.log_id == bytes(range(16))
    records = list(log.walk(1))
    assert [record.kind for record in records] == [
        Kind.COMMIT, Kind.ENTRY, Kind.COMMIT, Kind.CHANGE,
    ]  # fmt: skip
    assert [record.offset for record in records] == [0x40, 0x69, 0x9A, 0xC3]
    assert entry_of(records[1].payload) == FailoverEntry(0xA1B2C3D4E5F6, 0, 0x1A2B3C)
    log.roll()
    log.verify(1)
    live = LiveLog(log, [PartitionSummary() for _ in range(6)])
    ((change,),) = live.scan(5, 0, 9)
    assert change.lineage == bytes.fromhex("bcd66801")
    cut = change_of(change.frame)
    assert (cut.seqno, cut.key, cut.value, cut.datatype) == (1, b"flight", b'{"n":1}', 1)
    log.close()


def test_the_example_is_written(tmp_path):
    """Sealing the example's records again gives the same bytes."""
    data = example()
    path = tmp_path / "00000001.seg"
    path.write_bytes(data[:0x124])
    log = SegmentLog(OsDisk(tmp_path), LogSizes())
    log.roll()
    log.close()
    assert path.read_bytes() == data
