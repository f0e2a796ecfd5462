from pathlib import Path

import pytest

from millstream.data_directory.map_file import (
    MAP_FILE,
    RECORDS_FILE,
    AdoptedMap,
    PlacedMap,
    read_adopted,
    read_map,
    write_adopted,
    write_map,
)
from millstream.errors import CorruptionError, UsageError
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.cluster_maps import DataMap, DataRecord, MapKey

NODES = (NodeAddress("a", "10.0.0.1", 11210, 5984), NodeAddress("b", "fd00::2", 11210, 5984))
PLACED = PlacedMap(BucketMap(3, NODES, (("a", "b"), ("b", None), (None, "a"), ("a", "b"))), "b")


def test_a_map_outlives_the_process(tmp_path: Path) -> None:
    assert read_map(tmp_path, 4) is None
    write_map(tmp_path, PLACED)
    assert read_map(tmp_path, 4) == PLACED
    newer = PlacedMap(BucketMap(9, NODES, PLACED.bucket_map.rows), "b")
    write_map(tmp_path, newer)
    assert read_map(tmp_path, 4) == newer
    assert [path.name for path in tmp_path.iterdir()] == [MAP_FILE]


def test_a_changed_byte_is_damage(tmp_path: Path) -> None:
    write_map(tmp_path, PLACED)
    file = tmp_path / MAP_FILE
    data = file.read_bytes()
    for place, byte in enumerate(data):
        file.write_bytes(data[:place] + bytes([byte ^ 1]) + data[place + 1 :])
        with pytest.raises(CorruptionError, match=MAP_FILE) as caught:
            read_map(tmp_path, 4)
        assert caught.value.code == "bad_map_file"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"7", b"[]", b"\xff", b"{}", b'{"format":1}', b'{"format":"1","map":{},"crc32":0}',
     b'{"format":1,"crc32":0,"map":{}}', b'{"format":1,"crc32":223132457,"map":[]}'],
)  # fmt: skip
def test_what_is_no_map_is_damage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MAP_FILE).write_bytes(content)
    with pytest.raises(CorruptionError, match="PUT the bucket's map again"):
        read_map(tmp_path, 4)


@pytest.mark.parametrize(
    ("placed", "reason"),
    [
        (PLACED._replace(node_name="c"), "does not list this node, 'c'"),
        (PLACED._replace(bucket_map=BucketMap(3, NODES, (("a",),))), "1 rows"),
        (PLACED._replace(bucket_map=BucketMap(0, NODES, PLACED.bucket_map.rows)), "revision"),
    ],
)
def test_a_map_that_contradicts_itself_or_the_bucket_is_damage(
    tmp_path: Path, placed: PlacedMap, reason: str
) -> None:
    write_map(tmp_path, placed)
    with pytest.raises(CorruptionError, match=reason):
        read_map(tmp_path, 4)


def test_a_newer_format_is_not_damage(tmp_path: Path) -> None:
    (tmp_path / MAP_FILE).write_bytes(b'{"format":2}')
    with pytest.raises(UsageError, match="newer") as caught:
        read_map(tmp_path, 4)
    assert caught.value.code == "newer_format"


# ---- records of a managed cluster

KEY = MapKey(2, 5)
RECORDS = tuple(
    DataRecord(KEY, "a", 7, (("a", "b"), ("b", None)), ("c",), since=MapKey(2, 4))
    for _ in range(4)
)
NEWER = DataRecord(MapKey(2, 6), None, 9, (("b", "c"),))
ADOPTED = AdoptedMap(
    "c1", "b", NODES, DataMap(KEY, "u", RECORDS), (RECORDS[0], NEWER, *RECORDS[2:])
)  # fmt: skip


def test_adopted_records_outlive_the_process(tmp_path: Path) -> None:
    assert read_adopted(tmp_path, 4) is None
    write_adopted(tmp_path, ADOPTED)
    assert read_adopted(tmp_path, 4) == ADOPTED
    assert [path.name for path in tmp_path.iterdir()] == [RECORDS_FILE]


def test_a_changed_byte_of_the_records_is_damage(tmp_path: Path) -> None:
    write_adopted(tmp_path, ADOPTED)
    file = tmp_path / RECORDS_FILE
    data = file.read_bytes()
    for place in range(0, len(data), 7):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CorruptionError, match=RECORDS_FILE) as caught:
            read_adopted(tmp_path, 4)
        assert caught.value.code == "bad_map_file"


@pytest.mark.parametrize("content", [b"", b"7", b"{}", b'{"format":1,"crc32":0,"adopted":{}}'])
def test_what_are_no_records_is_damage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / RECORDS_FILE).write_bytes(content)
    with pytest.raises(CorruptionError, match="takes the map of the cluster again"):
        read_adopted(tmp_path, 4)


def test_records_of_another_bucket_are_damage_and_those_of_a_newer_program_are_not(
    tmp_path: Path,
) -> None:
    write_adopted(tmp_path, ADOPTED)
    with pytest.raises(CorruptionError, match="4 records"):
        read_adopted(tmp_path, 8)
    file = tmp_path / RECORDS_FILE
    file.write_bytes(file.read_bytes().replace(b'"format":1', b'"format":2'))
    with pytest.raises(UsageError) as caught:
        read_adopted(tmp_path, 4)
    assert caught.value.code == "newer_format"
