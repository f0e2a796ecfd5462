"""Promotions: small cases by hand, and what was acknowledged survives every choice of answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cluster.core.promotion import (
    Answers,
    judge,
    next_branch,
    next_map,
    serving,
    winner_of,
    without_node,
)
from millstream.errors import UsageError
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.partitions import PartitionState
from millstream.model.rows import Row
from millstream.model.standing import Standing

ACTIVE, REPLICA, DEAD = PartitionState.ACTIVE, PartitionState.REPLICA, PartitionState.DEAD
NAMES = "abcd"


def standing(end: int = 0, branch: int = 1, **others: Any) -> Standing:
    made = Standing(0, REPLICA, branch, branch, end, end, branch, True, True)
    return made._replace(**others)


def test_two_of_three_are_enough_while_they_have_what_they_acknowledged() -> None:
    answers = {"b": standing(5), "c": standing(7)}
    verdict = judge(("a", "b", "c"), answers)
    assert verdict.is_safe
    assert (verdict.needed, verdict.silent, verdict.at_risk) == (2, ("a",), ())
    assert winner_of(("a", "b", "c"), answers) == "c"


def test_one_of_three_needs_force_and_risks_both_levels() -> None:
    verdict = judge(("a", "b", "c"), {"b": standing(5)})
    assert not verdict.is_safe
    assert verdict.at_risk == ("majority", "persisted")
    assert verdict.reason.startswith("1 of 3 copies answered, not a, c; 2 are needed")


def test_one_of_two_is_enough() -> None:
    assert judge(("a", "b"), {"b": standing(5)}).is_safe


def test_a_copy_that_lost_its_memory_risks_only_what_was_in_memory() -> None:
    answers = {"b": standing(5, is_intact=False), "c": standing(7)}
    verdict = judge(("a", "b", "c"), answers)
    assert not verdict.is_safe
    assert verdict.at_risk == ("majority",)
    assert "too many of them have lost" in verdict.reason


def test_if_all_answer_nothing_better_can_come() -> None:
    lost = standing(5, is_intact=False, is_whole=False)
    verdict = judge(("a", "b"), {"a": lost, "b": lost})
    assert verdict.is_safe
    assert verdict.at_risk == ("majority", "persisted")


def test_in_a_new_bucket_there_is_nothing_to_lose() -> None:
    new = standing(0, branch=0, is_intact=False, is_whole=False)
    verdict = judge(("a", "b"), {"a": new, "b": new})
    assert (verdict.is_safe, verdict.at_risk) == (True, ())
    promised = new._replace(last_branch=3)
    asked = {"a": promised, "b": promised}
    assert judge(("a", "b"), asked, {"a": new, "b": new}).at_risk == ()
    heard = new._replace(branch=3)
    assert judge(("a", "b"), {"a": new, "b": heard}).at_risk == ("majority", "persisted")
    assert not judge(("a", "b", "c"), {"a": new, "b": new}).is_safe


def test_copies_that_all_lost_what_they_had_are_no_new_bucket() -> None:
    emptied = standing(0, branch=0, is_intact=False, is_whole=False, last_branch=3)
    before = {"a": emptied, "b": emptied}
    verdict = judge(("a", "b"), before)
    assert (verdict.is_safe, verdict.at_risk) == (True, ("majority", "persisted"))
    promised = emptied._replace(last_branch=4)
    verdict = judge(("a", "b"), {"a": promised, "b": promised}, before)
    assert verdict.at_risk == ("majority", "persisted")
    new = emptied._replace(last_branch=0)
    assert judge(("a", "b"), before, {"a": emptied, "b": new}).at_risk == verdict.at_risk
    assert judge(("a", "b"), before, {"a": new}).at_risk == verdict.at_risk


def test_an_empty_place_does_not_answer_and_a_dead_copy_does() -> None:
    answers = {"b": standing(5, state=DEAD), "c": standing(3)}
    verdict = judge((None, "b", "c"), answers)
    assert verdict.is_safe
    assert (verdict.answered, verdict.silent) == (("b", "c"), ())
    assert winner_of((None, "b", "c"), answers) == "b"
    verdict = judge((None, "b", "c"), {"b": standing(1)})
    assert not verdict.is_safe
    assert "not c;" in verdict.reason
    assert "an empty place" in judge((None, None, "c"), {"c": standing()}).reason
    assert winner_of((None, "b", "c"), {}) is None


def test_the_branch_at_the_end_counts_before_the_end() -> None:
    answers = {"b": standing(90, branch=1), "c": standing(50, branch=2)}
    assert winner_of(("a", "b", "c"), answers) == "c"
    only_heard = standing(40)._replace(branch=9, last_branch=9)
    assert winner_of(("a", "b", "c"), answers | {"a": only_heard}) == "c"


def test_among_equals_the_persisted_then_the_wanted_then_the_first_wins() -> None:
    row = ("a", "b", "c")
    answers = {"a": standing(5), "b": standing(5), "c": standing(4)}
    assert winner_of(row, answers) == "a"
    assert winner_of(row, answers, "b") == "b"
    assert winner_of(row, answers, "c") == "a"
    assert winner_of(row, answers | {"a": standing(5, persisted_end=2)}) == "b"


def test_a_branch_is_larger_than_all_that_were_heard_of() -> None:
    assert next_branch([standing(last_branch=7), standing(last_branch=9)], 3) == 10
    assert next_branch([standing(last_branch=7)], 30) == 30
    assert next_branch([], 3) == 3


def test_who_others_are_fenced_against_does_not_serve() -> None:
    row = ("a", "b", "c")
    active = standing(9, branch=4, state=ACTIVE)
    assert serving(row, {"a": active, "b": standing(branch=4)}) == "a"
    assert serving(row, {"a": active, "b": standing(last_branch=5)}) is None
    assert serving(row, {"b": standing()}) is None
    assert serving((None, "b"), {"a": active, "b": standing()}) is None


def test_an_active_copy_of_an_older_branch_does_not_serve() -> None:
    old, new = standing(9, branch=4, state=ACTIVE), standing(7, branch=5, state=ACTIVE)
    assert serving(("a", "b", "c"), {"a": old, "b": new}) == "b"


def test_the_next_map_has_the_winner_first() -> None:
    nodes = tuple(NodeAddress(name, "h", n + 1, n + 9) for n, name in enumerate("abc"))
    bucket_map = BucketMap(4, nodes, (("a", "b", "c"), ("a", None, "c"), (None, "b", "c")))
    new = next_map(bucket_map, {0: "c", 2: "b"})
    assert new.revision == 5
    assert new.rows == (("c", "a", "b"), ("a", None, "c"), ("b", None, "c"))
    assert next_map(bucket_map, {0: "a"}) is bucket_map


@st.composite
def situations(draw: st.DrawFn) -> tuple[Row, dict[str, tuple[int, int]], dict[str, Standing]]:
    """A row, what each copy once acknowledged, and how all of them stand now.

    A copy that is intact (whole) still has what it acknowledged in memory (on disk).
    """
    reach = st.tuples(st.integers(1, 3), st.integers(0, 5))
    names = NAMES[: draw(st.integers(1, 4))]
    acknowledged, found = {}, {}
    for name in names:
        had, is_kept = draw(reach), draw(st.booleans())
        branch, end = max(had, draw(reach)) if is_kept else draw(reach)
        acknowledged[name] = had
        found[name] = standing(end, branch, is_intact=is_kept, is_whole=is_kept)
    places = list(names) + [None] * draw(st.integers(0, 4 - len(names)))
    return tuple(draw(st.permutations(places))), acknowledged, found


@given(situations(), st.sets(st.sampled_from(NAMES)))
def test_what_a_majority_acknowledged_is_at_the_winner(
    situation: tuple[Row, dict[str, tuple[int, int]], dict[str, Standing]], away: set[str]
) -> None:
    row, acknowledged, found = situation
    answers: Answers = {name: one for name, one in found.items() if name not in away}
    verdict, winner = judge(row, answers), winner_of(row, answers)
    assert (winner is not None) == bool(verdict.answered)
    ends = sorted(acknowledged.values(), reverse=True)
    majority = len(row) // 2 + 1
    if winner is None or len(ends) < majority:
        return
    reached = answers[winner].branch_at_end, answers[winner].complete_end
    if "majority" not in verdict.at_risk:
        assert reached >= ends[majority - 1]
    if not verdict.is_safe:
        assert verdict.at_risk


@pytest.mark.parametrize("copies", [1, 2, 3, 4])
def test_no_fewer_answers_would_do(copies: int) -> None:
    """One answer less, and all that answer may have missed what a majority acknowledged."""
    row = tuple(NAMES[:copies])
    majority = copies // 2 + 1
    behind = {name: standing(1) for name in row[majority:]}
    assert "majority" in judge(row, behind).at_risk
    assert not judge(row, behind).is_safe
    assert judge(row, {**behind, row[0]: standing(2)}).is_safe


def test_a_lost_node_leaves_the_map_if_all_partitions_have_other_copies() -> None:
    rows: tuple[Row, ...] = (("b", "a"), ("c", "a"))
    nodes = tuple(NodeAddress(name, "h", 1, 2) for name in "abc")
    assert without_node(BucketMap(3, nodes, rows), "a") == BucketMap(
        4, nodes[1:], (("b",), ("c",))
    )
    for bad, name, code in (
        (rows, "z", "unknown_node"),
        ((("a", "b"), ("b", "a")), "a", "no_copy_left"),
        ((("b", "a"), ("c", "b")), "a", "bad_map_rows"),
    ):
        with pytest.raises(UsageError) as failure:
            without_node(BucketMap(3, nodes, bad), name)
        assert failure.value.code == code
