"""Plans of rows and index owners: balanced, spread over zones, repeatable, with few moves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.cluster.core.planner import plan_index, plan_rows, rows_led_by_others
from millstream.model.rows import Row

PARTITIONS = 64
NEW: tuple[Row, ...] = ((),) * PARTITIONS
zones_of_nodes = st.dictionaries(
    st.sampled_from([f"n{number}" for number in range(8)]),
    st.sampled_from("xyz"),
    min_size=1,
)


def loads(rows: tuple[Row, ...], zones: dict[str, str]) -> list[int]:
    return [sum(name in row for row in rows) for name in sorted(zones)]


def made(before: tuple[Row, ...], after: tuple[Row, ...]) -> int:
    pairs = zip(before, after, strict=True)
    return sum(len({*new} - {*old} - {None}) for old, new in pairs)


def spread(values: list[int]) -> int:
    return max(values) - min(values)


@given(zones_of_nodes, st.integers(0, 3))
def test_a_planned_layout_is_whole_and_is_planned_as_it_stands(
    zones: dict[str, str], replicas: int
) -> None:
    rows = plan_rows(NEW, zones, replicas)
    assert plan_rows(rows, zones, replicas) == rows
    width = min(replicas + 1, len(zones))
    for row in rows:
        names = [name for name in row if name is not None]
        assert (len(row), len(names), len(set(names))) == (replicas + 1, width, width)
        assert row[:width] == tuple(names), "empty places are last"
        assert len({zones[name] for name in names}) == min(width, len(set(zones.values())))


@given(zones_of_nodes, st.integers(0, 3), st.data())
def test_after_any_change_of_nodes_the_plan_is_as_good_as_a_new_one(
    zones: dict[str, str], replicas: int, data: st.DataObject
) -> None:
    rows = plan_rows(NEW, zones, replicas)
    after = data.draw(zones_of_nodes)
    again = plan_rows(rows, after, replicas)
    width = min(replicas + 1, len(after))
    for row in again:
        names = [name for name in row if name is not None]
        assert len(names) == width
        assert set(names) <= set(after)
        assert len({after[name] for name in names}) == min(width, len(set(after.values())))
    if len(set(after.values())) == 1:
        assert spread(loads(again, after)) <= 1


@given(st.integers(1, 7), st.integers(0, 3))
def test_active_and_all_copies_are_balanced_in_one_zone(count: int, replicas: int) -> None:
    zones = {f"n{number}": "x" for number in range(count)}
    rows = plan_rows(NEW, zones, replicas)
    assert spread(loads(rows, zones)) <= 1
    assert spread([sum(row[0] == name for row in rows) for name in zones]) <= 2


@given(st.integers(2, 6), st.integers(0, 2))
def test_a_new_node_gets_its_share_and_nothing_else_moves(count: int, replicas: int) -> None:
    zones = {f"n{number}": "x" for number in range(count)}
    before = plan_rows(NEW, zones, replicas)
    after = plan_rows(before, {**zones, "m": "x"}, replicas)
    share = PARTITIONS * min(replicas + 1, count + 1) // (count + 1)
    assert made(before, after) <= share + 1
    assert all({*new} - {*old} <= {"m", None} for old, new in zip(before, after, strict=True))


@given(st.integers(2, 6), st.integers(0, 2))
def test_a_swap_moves_what_the_removed_node_had(count: int, replicas: int) -> None:
    zones = {f"n{number}": "x" for number in range(count)}
    before = plan_rows(NEW, zones, replicas)
    had = sum("n0" in row for row in before)
    del zones["n0"]
    after = plan_rows(before, {**zones, "m": "x"}, replicas)
    assert made(before, after) == had
    assert sum("m" in row for row in after) == had


def test_a_large_bucket_is_planned_soon() -> None:
    zones = {f"n{number}": "xyz"[number % 3] for number in range(9)}
    rows = plan_rows(((),) * 1024, zones, 3)
    after = plan_rows(rows, {**zones, "m": "x"}, 3)
    assert made(rows, after) <= 1024 * 4 // 10 + 1


@given(
    st.lists(st.none() | st.sampled_from(["a", "b", "gone"]), min_size=1, max_size=40),
    st.sets(st.sampled_from(["a", "b", "c", "d"]), min_size=1),
)
def test_index_owners_are_balanced_and_stay_where_they_can(
    owners: list[str | None], nodes: set[str]
) -> None:
    planned = plan_index(owners, sorted(nodes))
    assert spread([planned.count(name) for name in nodes]) <= 1
    assert plan_index(planned, sorted(nodes)) == planned
    share = -(-len(owners) // len(nodes))
    for name in nodes & {"a", "b"}:
        kept = [p for p, owner in enumerate(owners) if owner == name]
        stayed = sum(planned[p] == name for p in kept)
        assert stayed >= min(len(kept), share - 1)


def test_an_index_part_is_near_its_data_if_all_nodes_may_have_it() -> None:
    assert plan_index([None] * 3, ["a", "b", "c"], ["c", "a", "b"]) == ("c", "a", "b")
    assert plan_index([None] * 3, ["a", "b", "c"]) == ("a", "b", "c")
    assert plan_index(["a"], []) == (None,)


def test_a_graceful_fail_over_swaps_places_and_moves_no_copy() -> None:
    rows: tuple[Row, ...] = (("a", "b", "c"), ("a", "c", None), ("b", "a", "c"), ("a", None, None))
    led = rows_led_by_others(rows, frozenset("a"))
    assert led == (("c", "a", "b"), ("c", "a", None), ("b", "a", "c"), ("a", None, None))
