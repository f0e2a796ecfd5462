"""Rows in force: majorities of each, promotions that meet all, and the copy that serves."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from millstream.cluster.core.quorums import (
    branch_above,
    furthest,
    judge_rows,
    needed_rows,
    promises_enough,
    serving_copy,
)
from millstream.model.cluster_maps import DataRecord, MapKey
from millstream.model.partitions import PartitionState
from millstream.model.rows import Row, majority, reached
from millstream.model.standing import Standing

ACTIVE, REPLICA = PartitionState.ACTIVE, PartitionState.REPLICA
RECORD = DataRecord(MapKey(1, 5), "a", 4, (("a", "b"), ("b", "c")), (), MapKey(1, 5))
NAMES = "abcde"


def standing(end: int = 9, branch: int = 4, **others: Any) -> Standing:
    return Standing(0, REPLICA, branch, branch, end, end, branch, True, True)._replace(**others)


rows_of_names = st.integers(1, 4).flatmap(
    lambda width: st.lists(
        st.tuples(
            st.permutations(NAMES), st.lists(st.booleans(), min_size=width, max_size=width)
        ).map(
            lambda drawn: tuple(
                name if is_there else None
                for name, is_there in zip(drawn[0], drawn[1], strict=False)
            )
        ),
        min_size=1,
        max_size=3,
    )
)


@given(rows_of_names, st.data())
def test_a_safe_promotion_meets_every_majority_that_can_have_acknowledged(
    rows: list[Row], data: st.DataObject
) -> None:
    answered = data.draw(st.sets(st.sampled_from(NAMES)))
    verdict = judge_rows(rows, {name: standing() for name in answered})
    if not verdict.is_safe:
        return
    for row in rows:
        names = [name for name in row if name is not None]
        for able in combinations(names, majority(row)):
            assert answered & set(able), (rows, answered, able)


def test_rows_that_demand_nothing_more_are_not_needed() -> None:
    ab, ba, nobody = ("a", "b"), ("b", "a"), (None, None)
    assert needed_rows([ab, ("b", "c"), ba, ("a", "c")]) == (ab, ("b", "c"), ("a", "c"))
    assert needed_rows([ab, ba]) == (ab, ba), "the last row says who leads"
    assert needed_rows([nobody, ab, nobody]) == (ab,)
    assert needed_rows([nobody, nobody]) == (nobody,)


@given(rows_of_names, st.dictionaries(st.sampled_from(NAMES), st.integers(0, 9)))
def test_without_them_the_same_is_acknowledged(rows: list[Row], ends: dict[str, int]) -> None:
    if all(any(row) for row in rows):
        assert reached(needed_rows(rows), ends) == reached(rows, ends)


def test_copies_that_lost_something_do_not_answer_for_a_level() -> None:
    rows: list[Row] = [("a", "b", "c")]
    both = {"a": standing(is_intact=False), "b": standing()}
    verdict = judge_rows(rows, both)
    assert (verdict.is_safe, verdict.has_quorum, verdict.at_risk) == (False, True, ("majority",))
    assert verdict.missing == ("c",)
    every = {**both, "c": standing(is_whole=False)}
    assert judge_rows(rows, every).is_safe, "all that there are"
    alone = judge_rows(rows, {"a": standing()})
    assert (alone.is_safe, alone.has_quorum) == (False, False)


def test_empty_places_acknowledged_nothing() -> None:
    verdict = judge_rows([("a", None, None)], {"a": standing()})
    assert (verdict.is_safe, verdict.at_risk) == (True, ())


def test_who_serves_is_active_in_no_branch_below_the_record_or_a_promise() -> None:
    active = standing(state=ACTIVE)
    assert serving_copy(RECORD, {"a": active}) == "a"
    assert serving_copy(RECORD, {"a": active, "c": standing(last_branch=5)}) is None
    newer = msgspec.structs.replace(RECORD, branch=5)
    assert serving_copy(newer, {"a": active}) is None
    assert serving_copy(RECORD, {"z": active}) is None
    assert serving_copy(RECORD, {"a": standing()}) is None


def test_the_furthest_copy_wins_and_the_wanted_one_of_equals() -> None:
    assert furthest(RECORD, {"a": standing(9), "b": standing(8)}) == "a"
    assert furthest(RECORD, {"a": standing(9), "b": standing(9)}) == "b"
    assert furthest(RECORD, {"a": standing(9), "c": standing(1, branch_at_end=5)}) == "c"
    assert furthest(RECORD, {}) is None


@given(st.integers(0, 2**50), st.integers(0, 2**50), st.integers(0, 4095))
def test_a_new_branch_is_above_all_and_noise_keeps_two_apart(
    newest: int, by_clock: int, noise: int
) -> None:
    branch = branch_above(newest, by_clock, noise)
    assert branch > newest
    if by_clock <= newest:
        assert branch != branch_above(newest, by_clock, noise ^ 1)


def test_no_other_promotion_succeeds_once_a_majority_of_places_is_blocked() -> None:
    assert promises_enough(("a", "b", None), ["a"])
    assert not promises_enough(("a", "b", "c"), ["a"])
    assert promises_enough(("a",), ["a"])
