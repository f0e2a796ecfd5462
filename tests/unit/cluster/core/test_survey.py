"""What follows from a survey: whom to ask, who wins, which map, who is fenced."""

from __future__ import annotations

from millstream.cluster.core.survey import (
    Survey,
    choose,
    fences,
    idle_copies,
    map_after,
    sort_out,
)
from millstream.model.bucket_map import BucketMap, NodeAddress
from support.node.false_nodes import ACTIVE, DEAD, standing

NODES = tuple(NodeAddress(name, "h", n + 1, n + 9) for n, name in enumerate("abc"))
MAP = BucketMap(4, NODES, (("a", "b", "c"), ("b", "c", "a")))
A = [standing(0, 9, state=ACTIVE), standing(1, 5)]
B = [standing(0, 7), standing(1, 6, state=ACTIVE)]
C = [standing(0, 8), standing(1, 5)]


def survey(**standings: list[object]) -> Survey:
    return Survey(MAP, dict.fromkeys(standings, MAP), standings, {}, frozenset())  # type: ignore[arg-type]


def test_the_served_are_left_the_others_judged() -> None:
    decided, open_, _ = sort_out(survey(a=A, b=B, c=C), [0, 1], None, is_forced=False)
    assert [(one.what, one.was, one.now) for one in decided] == [
        ("served", "a", "a"),
        ("served", "b", "b"),
    ]
    assert open_ == []
    decided, open_, _ = sort_out(survey(b=B, c=C), [0, 1], None, is_forced=False)
    assert ([one.partition for one in decided], open_) == ([1], [0])
    decided, open_, _ = sort_out(survey(c=C), [0], None, is_forced=False)
    assert [(one.what, one.at_risk) for one in decided] == [("refused", ("majority", "persisted"))]
    assert sort_out(survey(c=C), [0], None, is_forced=True) == ([], [0], [])
    assert sort_out(survey(), [0], None, is_forced=True)[0][0].what == "refused"


def test_another_node_may_be_wanted() -> None:
    plan = sort_out(survey(a=A, b=B, c=C), [0, 1], "b", is_forced=False)
    assert [one.partition for one in plan.decided] == [1]
    assert (plan.promotions, plan.hand_overs) == ([], [0])
    plan = sort_out(survey(a=A, c=C), [0, 1], "b", is_forced=True)
    assert [(one.what, one.now) for one in plan.decided] == [("refused", "a")]
    assert plan.decided[0].reason == "b does not answer; a serves it"
    assert plan.promotions == [1]


def test_who_wins_is_decided_by_what_was_told_with_the_promises() -> None:
    before = survey(b=B, c=C)
    failed, winners = choose(before, {0: {"b": standing(0, 12), "c": C[0]}}, None, is_forced=False)
    assert not failed
    assert (winners[0].name, winners[0].standing.complete_end) == ("b", 12)
    failed, winners = choose(before, {0: {"b": B[0]}, 1: {}}, None, is_forced=False)
    assert [one.what for one in failed] == ["failed", "failed"]
    assert not winners
    failed, winners = choose(before, {0: {"b": B[0]}, 1: {}}, None, is_forced=True)
    assert ([one.partition for one in failed], winners[0].at_risk) == (
        [1],
        ("majority", "persisted"),
    )


def test_the_map_follows_who_serves_and_is_newer_than_its_rivals() -> None:
    found = survey(a=A, b=B, c=C)
    assert map_after(found, {0: "a", 1: "b"}) is MAP
    assert map_after(found, {0: "c"}).rows[0] == ("c", "a", "b")
    rival = BucketMap(4, NODES, (("a", "c", "b"), MAP.rows[1]))
    split = found._replace(maps={"a": MAP, "b": rival})
    assert map_after(split, {0: "a"}) == BucketMap(5, NODES, MAP.rows)
    assert map_after(split, {0: "b"}).revision == 5


def test_copies_that_missed_a_promotion_are_fenced() -> None:
    newer = [standing(0, 8, state=ACTIVE, branch=7, last_branch=7), C[1]]
    assert list(fences(survey(a=A, b=B, c=newer))) == [("a", 7, 0), ("b", 7, 0)]
    assert list(fences(survey(a=A, b=B, c=C))) == []
    unserved = [standing(0, 8, last_branch=7), C[1]]
    assert list(fences(survey(a=A, c=unserved))) == []


def test_copies_that_are_dead_follow_again_who_serves() -> None:
    dead = [standing(0, 7, state=DEAD), standing(1, 6, state=DEAD)]
    assert list(idle_copies(survey(a=A, b=B, c=dead))) == [("c", 0), ("c", 1)]
    assert list(idle_copies(survey(a=A, c=dead))) == [("c", 0)]
