from pathlib import Path

import pytest

from millstream.data_directory.bucket_files import (
    BucketRecord,
    clean_and_find,
    find_map,
    find_records,
    make_directory,
    remove_directory,
    store_map,
    take_back_directory,
)
from millstream.data_directory.map_file import MAP_FILE, PlacedMap
from millstream.errors import CorruptionError
from millstream.model.bucket_map import BucketMap, NodeAddress

RECORD = BucketRecord("a/b", "0" * 32, 1, "2026-01-02T03:04:05Z")
PLACED = PlacedMap(BucketMap(3, (NodeAddress("a", "h", 1, 2),), (("a", None),)), "a")


@pytest.mark.parametrize(
    "record",
    [RECORD, RECORD._replace(purge_age_s=0, memory_quota_bytes=1 << 30)],
)
def test_what_was_made_is_found(tmp_path: Path, record: BucketRecord) -> None:
    make_directory(tmp_path, record._replace(purge_age_s=RECORD.purge_age_s), None)
    store_map(tmp_path / record.uuid, record, PLACED)
    mapped = record._replace(has_map=True)
    assert find_records(tmp_path) == [mapped]
    assert find_map(tmp_path / record.uuid, mapped) == PLACED
    remove_directory(tmp_path, mapped)
    assert find_records(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_made_with_a_map_has_it_from_the_beginning(tmp_path: Path) -> None:
    record = RECORD._replace(has_map=True)
    make_directory(tmp_path, record, PLACED)
    assert find_records(tmp_path) == [record]
    assert find_map(tmp_path / record.uuid, record) == PLACED


def test_a_first_map_whose_notice_was_not_written_counts(tmp_path: Path) -> None:
    make_directory(tmp_path, RECORD, None)
    directory = tmp_path / RECORD.uuid
    assert find_map(directory, RECORD) is None
    notice = (directory / "bucket.toml").read_bytes()
    store_map(directory, RECORD, PLACED)
    (directory / "bucket.toml").write_bytes(notice)
    assert find_records(tmp_path) == [RECORD]
    assert find_map(directory, RECORD) == PLACED


def test_a_map_that_was_there_once_is_missed(tmp_path: Path) -> None:
    make_directory(tmp_path, RECORD, None)
    store_map(tmp_path / RECORD.uuid, RECORD, PLACED)
    (tmp_path / RECORD.uuid / MAP_FILE).unlink()
    (record,) = find_records(tmp_path)
    with pytest.raises(CorruptionError, match="missing") as caught:
        find_map(tmp_path / RECORD.uuid, record)
    assert caught.value.code == "bad_map_file"


def test_what_was_being_made_or_removed_goes(tmp_path: Path) -> None:
    buckets = tmp_path / "buckets"
    assert clean_and_find(buckets) == []
    make_directory(buckets, RECORD, None)
    for unfinished in ("1.creating", "2.deleted"):
        (buckets / unfinished / "log").mkdir(parents=True)
    assert clean_and_find(buckets) == [RECORD]
    take_back_directory(buckets, RECORD)
    assert list(buckets.iterdir()) == []
