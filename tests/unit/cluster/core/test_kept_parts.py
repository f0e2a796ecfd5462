"""Which state a part of the index has by its record, what is told of it, and its file."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from millstream.cluster.core.admission import stopped_at
from millstream.cluster.core.index_moving import may_answer
from millstream.cluster.core.kept_parts import (
    Indexed,
    KeptPart,
    adopted,
    frozen,
    indexed_of,
    parts_from_json,
    parts_to_json,
    report_of,
    state_of,
    stopped,
)
from millstream.errors import CorruptionError
from millstream.model.cluster_maps import NO_FLOOR, Floor, IndexRecord, MapKey

KEY, NEWER = MapKey(2, 5), MapKey(2, 6)
FLOOR = Floor(7, 50)
RECORD = IndexRecord(KEY, "a", "b", FLOOR)
PART = KeptPart(RECORD)
TOLD = Indexed(KEY, "d", Floor(7, 60), Floor(7, 90), True, True)


@pytest.mark.parametrize(
    ("part", "node", "state"),
    [
        (PART, "a", "active"),
        (PART, "b", "passive"),
        (PART, "c", None),
        (frozen(PART), "a", "active"),
        (frozen(PART), "b", "passive"),
        (stopped(PART), "a", "passive"),
        (stopped(PART), "c", None),
    ],
)
def test_the_state_of_a_part_follows_from_its_record(
    part: KeptPart, node: str, state: str | None
) -> None:
    assert state_of(part, node) == state


def test_a_freeze_and_a_stop_end_with_the_record_under_which_they_were_ordered() -> None:
    assert adopted(stopped(PART), RECORD) == stopped(PART)
    assert adopted(stopped(PART), replace(RECORD, at=NEWER)) == KeptPart(replace(RECORD, at=NEWER))
    assert adopted(stopped(PART), IndexRecord(MapKey(1, 9), "c")) == stopped(PART)
    assert adopted(None, RECORD) == PART
    with pytest.raises(CorruptionError) as raised:
        adopted(PART, replace(RECORD, owner="c"))
    assert raised.value.code == "other_map"


def test_an_owner_reports_the_most_and_who_builds_the_least() -> None:
    owner, building = report_of(PART, "a", TOLD), report_of(PART, "b", TOLD)
    assert owner is not None
    assert building is not None
    assert (owner.reached, owner.state) == (Floor(7, 90), "active")
    assert (building.reached, building.state) == (Floor(7, 60), "passive")
    assert owner.designs == building.designs


def test_an_owner_stops_at_what_any_of_its_indexes_can_have_shown() -> None:
    late = TOLD._replace(least=Floor(7, 0), has_floor=False)
    part = report_of(stopped(PART), "a", late)
    assert part is not None
    assert stopped_at(part, RECORD) == Floor(7, 90), "another index is behind, and showed nothing"
    none = late._replace(shown=NO_FLOOR, can_have_shown=False)
    part = report_of(stopped(PART), "a", none)
    assert part is not None
    assert stopped_at(part, RECORD) == FLOOR


@pytest.mark.parametrize("told", [None, TOLD._replace(at=MapKey(2, 4)), TOLD._replace(designs="")])
def test_what_is_not_known_equals_nothing_of_another_node(told: Indexed | None) -> None:
    one, other = report_of(PART, "a", told), report_of(PART, "b", told)
    assert one is not None
    assert other is not None
    assert one.designs != other.designs


def test_a_withdrawn_part_is_told_while_it_is_cleaned_up() -> None:
    part = report_of(PART, "c", None, is_cleaning=True)
    assert part is not None
    assert (part.state, part.at) == ("cleanup", KEY)
    assert report_of(PART, "c", None) is None


def test_without_any_index_a_part_has_its_floor_and_may_be_handed_over() -> None:
    one, other = [report_of(PART, node, indexed_of(RECORD, "none")) for node in "ab"]
    assert one is not None
    assert other is not None
    assert one.reached == other.reached == FLOOR
    assert one.designs == other.designs
    assert may_answer("a", RECORD, RECORD, one)


@pytest.mark.parametrize("change", [frozen, stopped])
def test_whether_a_part_answers(change: Any) -> None:
    for part, told, is_answering in [
        (PART, TOLD, True),
        (PART, TOLD._replace(can_have_shown=False), False),
        (PART, None, False),
        (change(PART), TOLD, change is frozen),
    ]:
        report = report_of(part, "a", told)
        assert may_answer("a", RECORD, part.record, report) is is_answering


def test_the_file_keeps_everything() -> None:
    parts = {0: PART, 3: frozen(PART), 4: stopped(PART), 7: KeptPart(IndexRecord(KEY, None))}
    assert parts_from_json(parts_to_json(parts)) == parts
    assert parts_from_json(parts_to_json({})) == {}


def test_an_altered_file_is_damage() -> None:
    content = parts_to_json({0: stopped(PART)})
    for at in range(len(content) - 1):
        altered = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with pytest.raises(CorruptionError) as raised:
            parts_from_json(altered)
        assert raised.value.code == "bad_index_parts"
    with pytest.raises(CorruptionError):
        parts_from_json(content[: len(content) // 2])
