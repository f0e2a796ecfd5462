"""Records of managed maps: what they mean, round trips, and what is refused as damaged."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given

from millstream.errors import CorruptionError
from millstream.model.bucket_map import NodeAddress
from millstream.model.cluster_maps import (
    NO_KEY,
    DataMap,
    DataRecord,
    Floor,
    IndexMap,
    IndexRecord,
    MapKey,
    bucket_map_of,
    data_map_from_json,
    data_map_to_json,
    index_map_from_json,
    index_map_to_json,
    next_data_map,
    next_index_map,
)
from millstream.model.rows import Row
from support.cluster.records import data_maps, data_records, index_maps, index_records

KEY = MapKey(2, 7)
RECORD = DataRecord(KEY, "a", 9, (("a", "b"), ("b", "c")), ("d",), MapKey(2, 6))
replace = msgspec.structs.replace


def test_voters_are_counted_once_and_copies_being_built_do_not_count() -> None:
    assert RECORD.voters == ("a", "b", "c")
    assert RECORD.placed == ("a", "b", "c", "d")
    assert RECORD.row == ("b", "c")
    assert RECORD.is_moving


@given(data_maps())
def test_data_maps_come_back(data_map: DataMap) -> None:
    assert data_map_from_json(data_map_to_json(data_map)) == data_map


@given(index_maps())
def test_index_maps_come_back(index_map: IndexMap) -> None:
    assert index_map_from_json(index_map_to_json(index_map)) == index_map


@given(data_records())
def test_single_records_come_back(record: DataRecord) -> None:
    assert msgspec.json.decode(msgspec.json.encode(record), type=DataRecord) == record


@given(index_records())
def test_single_index_records_come_back(record: IndexRecord) -> None:
    assert msgspec.json.decode(msgspec.json.encode(record), type=IndexRecord) == record


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": ()},
        {"rows": (("a",),) * 9},
        {"rows": (("a", "b", "c", "d", "e"),)},
        {"rows": (("a", "a"),)},
        {"rows": ((),)},
        {"building": ("a",)},
        {"building": ("d", "d")},
        {"branch": -1},
        {"at": MapKey(-1, 0)},
    ],
)
def test_a_record_that_means_nothing_cannot_be_made(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="bad record"):
        replace(RECORD, **changes)
    with pytest.raises(ValueError, match="bad record"):
        IndexRecord(KEY, "a", "a")


@pytest.mark.parametrize(
    ("member", "value", "told"),
    [
        ("records", [], "no records"),
        ("nodes", [], "no node of number"),
        ("revision", 1, "newer than its map"),
        ("revision", "x", "revision"),
        ("records", [{"at": 1}], "active"),
    ],
)
def test_a_damaged_map_is_refused_and_the_error_says_why(
    member: str, value: object, told: str
) -> None:
    content = json.loads(data_map_to_json(DataMap(KEY, "u", (RECORD,))))
    with pytest.raises(CorruptionError, match=told) as caught:
        data_map_from_json(json.dumps(content | {member: value}).encode())
    assert caught.value.code == "bad_cluster_map"
    with pytest.raises(CorruptionError):
        index_map_from_json(b"{")


def test_a_next_map_sets_the_keys_and_a_new_row_is_dated() -> None:
    other = DataRecord(KEY, "a", 9, (("a", "b"),))
    before = DataMap(KEY, "u", (RECORD, other))
    moving = replace(other, rows=(("a", "b"), ("b", "a")))
    after = next_data_map(before, {1: moving})
    assert after.key == MapKey(2, 8)
    assert after.records[0] == RECORD
    assert after.records[1] == replace(moving, at=after.key, since=after.key)
    same = next_data_map(after, {1: replace(after.records[1], active="b")})
    assert same.records[1].since == after.key
    left = next_data_map(same, {1: replace(same.records[1], rows=(("b", "a"),))})
    assert left.records[1].since == NO_KEY


def test_branches_and_floors_never_fall() -> None:
    with pytest.raises(AssertionError):
        next_data_map(DataMap(KEY, "u", (RECORD,)), {0: replace(RECORD, branch=8)})
    record = IndexRecord(KEY, "a", None, Floor(3, 9))
    before = IndexMap(KEY, "u", (record,))
    with pytest.raises(AssertionError):
        next_index_map(before, {0: replace(record, floor=Floor(3, 8))})
    after = next_index_map(before, {0: replace(record, owner="b", floor=Floor(4, 1))})
    assert after.records[0].at == after.key == MapKey(2, 8)


@pytest.mark.parametrize(
    ("record", "shown"),
    [
        (DataRecord(KEY, "b", 9, (("a", "b", None),)), ("b", "a", None)),
        (DataRecord(KEY, "c", 9, (("c", "b", None), ("a", "b", None))), ("c", "a", "b")),
        (DataRecord(KEY, None, 9, (("a", "b", None),)), (None, "a", "b")),
        (DataRecord(KEY, "a", 9, (("a", "gone", "b"),)), ("a", "b", None)),
        (DataRecord(KEY, "gone", 9, (("gone", "a"),)), (None, "a", None)),
    ],
)
def test_clients_are_shown_the_copy_that_serves_and_then_the_wanted_ones(
    record: DataRecord, shown: Row
) -> None:
    addresses = {name: NodeAddress(name, "h", n, n + 10) for n, name in enumerate("abcd", 1)}
    wide = DataRecord(KEY, "a", 9, (("a", "b", "c"),))
    found = bucket_map_of(DataMap(KEY, "u", (record, wide)), addresses)
    assert found.rows == (shown, ("a", "b", "c"))
    assert (found.generation, found.revision) == found.key == KEY
    assert [node.name for node in found.nodes] == ["a", "b", "c"]
