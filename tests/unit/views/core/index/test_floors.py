"""How far indexes are in a partition, and whether that is enough to answer."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.model.cluster_maps import NO_FLOOR, Floor
from millstream.model.position import FailoverEntry, Position
from millstream.views.core.index.floors import below_floor, digest_of, position_in
from millstream.views.core.index.header import Header, Judged

OLD = (FailoverEntry(0xA, 0, 5),)
NEW = (FailoverEntry(0xB, 40, 6), *OLD)
AT_50 = Position(0xA, 50, 50, 50)


def header(position: Position = AT_50, log: Any = OLD, signature: str = "s") -> Header:
    return Header(
        signature=signature, collation="c", reduces=(), states={0: "active"},
        positions={0: position}, failover_logs={0: log},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("floor", "is_late"),
    [(NO_FLOOR, False), (Floor(5, 50), False), (Floor(5, 51), True), (Floor(6, 0), True)],
)
def test_a_floor_is_reached_on_the_history_that_is_followed(floor: Floor, is_late: bool) -> None:
    assert below_floor(header(), {0: floor}, {}, [0]) == ([0] if is_late else [])


def test_a_newer_history_is_known_before_new_changes() -> None:
    at_40 = header(Position(0xA, 40, 40, 40))
    judged = {0: Judged(NEW, 40)}
    assert below_floor(at_40, {0: Floor(6, 40)}, {}, [0]) == [0]
    assert below_floor(at_40, {0: Floor(6, 40)}, judged, [0]) == []
    assert below_floor(header(), {0: Floor(6, 40)}, judged, [0]) == [0], "50 was lost"


def test_newer_changes_of_the_source_are_accepted() -> None:
    assert below_floor(header(), {0: Floor(5, 50)}, {0: Judged(OLD, 10)}, [0]) == []


def test_an_empty_partition_has_its_floor_once_its_source_is_known() -> None:
    empty = header(Position(), ())
    assert below_floor(empty, {0: Floor(5, 0)}, {}, [0]) == [0]
    assert below_floor(empty, {0: Floor(5, 0)}, {0: Judged(OLD, 0)}, [0]) == []


def test_a_partition_that_is_not_indexed_has_no_floor() -> None:
    assert below_floor(header(), {1: Floor(1, 0)}, {}, [1]) == [1]


def test_inside_a_snapshot_only_its_start_is_whole_and_all_can_have_been_shown() -> None:
    inside = header(Position(0xA, 60, 50, 80))
    found = position_in(0, [inside], [], None, Floor(5, 50))
    assert found == (Floor(5, 50), Floor(5, 60), True, True)
    assert below_floor(inside, {0: Floor(5, 55)}, {}, [0]) == [0]


def test_of_several_indexes_the_least_counts_and_the_most_was_shown() -> None:
    ahead = header(Position(0xA, 90, 90, 90))
    assert position_in(0, [header(), ahead], [], None, Floor(5, 40)) == (
        Floor(5, 50), Floor(5, 90), True, True,
    )  # fmt: skip
    found = position_in(0, [header(), ahead], [], None, Floor(5, 70))
    assert found == (Floor(5, 50), Floor(5, 90), False, True)
    assert position_in(0, [header()], [ahead], None, NO_FLOOR).shown == Floor(5, 90)
    assert position_in(0, [header()], [ahead], None, NO_FLOOR).least == Floor(5, 50)
    found = position_in(0, [header()], [], None, Floor(5, 70))
    assert found == (Floor(5, 50), NO_FLOOR, False, False), "it has shown nothing"
    assert position_in(0, [], [], None, Floor(5, 70)) == (NO_FLOOR, NO_FLOOR, False, False)


def test_the_digest_is_of_a_set() -> None:
    assert digest_of(["a", "b"]) == digest_of(["b", "a"])
    assert len({digest_of([]), digest_of(["a"]), digest_of(["a", "b"])}) == 3
