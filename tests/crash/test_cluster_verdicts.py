"""The cores of a managed cluster answer as an independent model of the rules does.

See tests/simulators/cluster_verdicts/README.md.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest

from millstream.cluster.core import planner
from simulators.cluster.plants import planted
from simulators.cluster_verdicts import differences
from simulators.cluster_verdicts.differences import agrees, difference
from simulators.cluster_verdicts.questions import ASKED, Fact, answer_of, facts

KNOWN: Final = {
    differences.BUILDING: 4,
    differences.GIVEN_UP: 6,
    differences.IDLE_ROWS: 100,
    differences.ONE_SESSION: 14,
    differences.ONLY_ANSWERED: 41,
    differences.SAME_NODES: 19,
}
FOUND: Final = {
    "a copy counts before it has what it owes": "tend",
    "a copy counts before it knows the record": "tend",
    "a copy is activated without its promise": "order",
    "a copy is removed before the row is left": "tend",
    "a copy is removed without a look at the record": "order",
    "a fence leaves the old copy active": "order",
    "a majority of the last row acknowledges": "reached",
    "a new session serves at once": "right",
    "a node is admitted with copies that were replaced": "admit",
    "a node is admitted without the answers of others": "admit",
    "a row is left before its copies know": "tend",
    "a row is left before the new one has everything": "tend",
    "a row is left while one of its copies may obey": "tend",
    "a row is replaced in one step": "tend",
    "an index answers in any state": "answer",
    "contact counts by the last row alone": "contact",
    "contact counts with copies that promised more": "contact",
    "contact is not waited for": "go_on",
    "every promotion is safe": "begin",
    "failed nodes are given up without a word": "begin",
    "one promise is enough": "quorum",
    "only the new row promises": "begin",
    "only the old active copy must promise": "begin",
    "orders are obeyed out of step": "order",
    "orders of older records are carried out": "order",
    "the branch of the record may fall": "begin",
    "tokens are not compared": "order",
    "who may not serve hands over": "hand_over",
}
"""Mistakes that the answers show, and the kind of question that does."""


def wrong(fact: Fact) -> str | None:
    """Return what a fact shows that is neither right nor a known difference."""
    try:
        ours: Any = answer_of(fact)
    except AssertionError as error:
        return f"{fact}: {error!r}"
    if agrees(fact, ours) or difference(fact, ours) is not None:
        return None
    return f"{fact}: {ours}"


def is_any_wrong(kind: str) -> bool:
    return any(wrong(fact) is not None for fact in facts() if fact.kind == kind)


@pytest.mark.parametrize("kind", sorted(ASKED))
def test_the_cores_answer_as_the_model_does_but_for_known_differences(kind: str) -> None:
    asked = [fact for fact in facts() if fact.kind == kind]
    assert asked
    assert [found for found in map(wrong, asked) if found is not None][:3] == []


def test_no_difference_is_known_that_is_not_there_or_more_often_than_written_down() -> None:
    found: Counter[str | None] = Counter()
    for fact in facts():
        ours = answer_of(fact)
        if not agrees(fact, ours):
            found[difference(fact, ours)] += 1
    assert found == KNOWN


@pytest.mark.parametrize("name", FOUND)
def test_the_answers_show_a_planted_mistake(name: str) -> None:
    with planted(name):
        assert is_any_wrong(FOUND[name])


def test_the_answers_show_a_planner_that_does_not_look_at_zones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planner._Layout, "spread_zones", lambda self: None)
    assert is_any_wrong("layout")
