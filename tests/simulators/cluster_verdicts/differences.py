"""Where the cores differ from the recorded answers on purpose.

Each difference is a rule of docs/design/0036-cluster-manager.md, and is checked as narrowly as the
rule can be said. Everything else that differs is wrong.
"""

from __future__ import annotations

from typing import Any, Final

from simulators.cluster_verdicts.questions import Fact, Json

ONLY_ANSWERED: Final = "only nodes that answer in this step are told of a record"
ONE_SESSION: Final = "an order to activate counts for one session, so it waits for one"
IDLE_ROWS: Final = "earlier rows that demand nothing more are left out"
BUILDING: Final = "a cancelled move drops the copy that it was building"
SAME_NODES: Final = "a cancelled move adds no row of the nodes that its last row names already"
GIVEN_UP: Final = "a last row without a given-up copy counts as a new one"


def agrees(fact: Fact, ours: Any) -> bool:
    """Return whether an answer is the recorded one; any of equally far copies may be activated."""
    if fact.kind == "go_on" and isinstance(ours, list) and isinstance(fact.answer, list):
        return (
            ours[0] != "not live" and ours[0][0] in fact.answer[0] and ours[1:] == fact.answer[1:]
        )
    return bool(ours == fact.answer)


def difference(fact: Fact, ours: Any) -> str | None:
    """Return which known difference an answer is; None: it is none of them."""
    if fact.kind == "begin":
        return _of_begin(fact, ours)
    if fact.kind == "go_on":
        theirs, live = fact.answer, fact.question["live"]
        is_it = ours[0] == "not live" and ours[1] in theirs[0] and ours[1] not in live
        return ONE_SESSION if is_it else None
    if fact.kind == "written":
        before, now = fact.question["before"][3], fact.question["next"][2]
        is_it = len(before) == len(now) and before[-1] != now[-1] and None in now[-1]
        return GIVEN_UP if is_it and ours == [1, 0] else None
    return _of_tend(fact, ours) if fact.kind == "tend" else None


def _of_begin(fact: Fact, ours: Any) -> str | None:
    told = fact.question["told"]
    theirs = [order for order in fact.answer if order[0] != "adopt" or order[1] in told]
    return ONLY_ANSWERED if theirs == ours else None


def _of_tend(fact: Fact, ours: Json) -> str | None:
    question, theirs = fact.question, fact.answer
    rows, building = question["record"][3:5]
    record, mine = theirs["record"], ours["record"]
    if record is None:
        return None
    is_added = len(record[2]) > len(rows)
    if question["target"] is None and is_added and set(rows[-1]) == set(rows[0]):
        return SAME_NODES if _goes_on(question, theirs, ours) else None
    is_same = mine is not None and theirs["orders"] == ours["orders"] and record[:2] == mine[:2]
    if not is_same:
        return None
    if record[2] == mine[2]:
        is_dropped = question["target"] is None and record[3] == building and not mine[3]
        return BUILDING if is_dropped else None
    return IDLE_ROWS if _are_idle_left(record[2], mine[2]) else None


def _goes_on(question: Json, theirs: Json, ours: Json) -> bool:
    """Whether the move is finished with its last row, which has the nodes of the first."""
    rows, mine = question["record"][3], ours["record"]
    more = [order for order in ours["orders"] if order not in theirs["orders"]]
    if mine is not None:
        return bool(mine[2] == rows[-1:] and not more)
    return len(ours["orders"]) == len(theirs["orders"]) + len(more) and more in (
        [], [["take_over", rows[-1][0]]]
    )  # fmt: skip


def _are_idle_left(theirs: list[Any], ours: list[Any]) -> bool:
    """Whether each row that is left out names nobody, or the nodes of an earlier one."""
    if theirs[-1] != ours[-1] and any(theirs[-1]):
        return False
    left, kept = list(theirs), list(ours)
    for row in kept:
        if row not in left:
            return False
        left.remove(row)
    return all(not any(row) or any(set(row) == set(one) for one in kept) for row in left)
