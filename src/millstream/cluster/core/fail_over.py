"""Promotes copies of partitions that nobody serves, and admits nodes that lost their session.

A promotion: enough voters answer -> all voters promise a new branch -> the furthest copy is
activated, once no other voter can be serving -> the record says so.

Invariants:
1. Nothing is begun without a linearizable read in the same step which says that the lock is held.
2. If the rule cannot be met with those who answer, nothing is asked.
3. Every voter with a session has promised before a copy is activated: an order that is on its way
   may have made any of them active. Of those without a session the contact has lapsed. An order to
   activate counts for the session that its node had when it was given.
4. A branch is asked for once, and given to one copy.
5. A node is admitted only if no copy that it serves can have been replaced.

Elsewhere: quorums (`cluster.core.quorums`), which nodes fail (`cluster.core.members`).
"""

from __future__ import annotations

from msgspec.structs import replace

from millstream.cluster.core.memory import Chosen, Memory, Promotion
from millstream.cluster.core.orders import Place
from millstream.cluster.core.quorums import (
    JointVerdict,
    branch_above,
    furthest,
    judge_rows,
    promises_enough,
    serving_copy,
)
from millstream.cluster.core.settings import (
    BRANCH_TRY_DOUBLINGS_MAX,
    BRANCH_TRY_MS,
    HAND_OVER_MS,
)
from millstream.cluster.core.step import Step
from millstream.model.cluster_maps import DataRecord
from millstream.model.partitions import PartitionState
from millstream.model.rows import Row
from millstream.model.standing import Standing

__all__ = ["admit", "given_up", "is_allowed", "is_heard_above", "must_leave", "promote", "serving"]


def serving(step: Step, place: Place, record: DataRecord) -> str | None:
    """Return the node that serves, by what was last reported; None if none is known to."""
    return serving_copy(record, step.memory.answers(place, record.voters))


def is_heard_above(memory: Memory, place: Place, chosen: str) -> bool:
    """Return whether a reader came with a larger branch than the serving copy has.

    It was fed by a promotion that did not last, and would follow nobody again.
    """
    copy = memory.copy(chosen, place)
    return copy is not None and copy.heard > copy.standing.branch


def given_up(step: Step, record: DataRecord) -> frozenset[str]:
    """Return the voters of which the operator said that they never come back."""
    state = step.state
    return frozenset(
        name
        for name in record.voters
        if name not in state.live and name in state.nodes and state.nodes[name].is_given_up
    )


def promote(
    step: Step, place: Place, record: DataRecord, *, replaces_active: bool
) -> DataRecord | None:
    """Take the next step of a promotion that is under way or needed.

    Args:
        step: the orders go there.
        place: of the partition.
        record: of it.
        replaces_active: a promotion may begin though a copy serves.

    Returns:
        The record in which all copies were given up, if that is the next step.
    """
    promotion = step.memory.promotions.get(place)
    if promotion is not None:
        _go_on(step, place, record, promotion)
        return None
    return _begin(step, place, record, replaces_active=replaces_active)


def must_leave(step: Step, place: Place, record: DataRecord, chosen: str) -> bool:
    """Return whether a serving copy is to be replaced because its node was failed over.

    Only if the others can do without it: else it would be promoted again and again.
    """
    if not _is_failed(step, chosen):
        return False
    others = _not_failed(step, step.memory.answers(place, step.view.answered & {*record.voters}))
    return is_allowed(step, record, others, judge_rows(record.rows, others))


def _is_failed(step: Step, name: str) -> bool:
    node = step.state.nodes.get(name)
    return node is not None and node.state == "failed"


def _not_failed(step: Step, answers: dict[str, Standing]) -> dict[str, Standing]:
    return {name: one for name, one in answers.items() if not _is_failed(step, name)}


def _begin(
    step: Step, place: Place, record: DataRecord, *, replaces_active: bool
) -> DataRecord | None:
    view, memory = step.view, step.memory
    if not view.is_fresh:
        return None
    there = [name for name in record.voters if name in view.answered]
    answers = memory.answers(place, there)
    if not answers:
        for name in there:  # it has not heard of the record that places it
            step.order("adopt", name, place, record)
        return _give_up(step, place, record)
    is_new = place not in memory.begun
    if is_new and not replaces_active and serving_copy(record, answers) is not None:
        return None
    if is_new and not replaces_active and _is_handed_over(step, place, record):
        return None
    if is_new and not replaces_active and not _may_replace(step, record):
        return None
    waited = [name for name in _askable(step, record) if name not in answers]
    if waited:  # it may be serving
        step.wait_for(waited)
        return None
    verdict = judge_rows(record.rows, answers)
    if not is_allowed(step, record, answers, verdict):
        missing = ", ".join(verdict.missing) or "what was lost"
        step.note(f"{place.partition}: not enough copies to promote without {missing}")
        return None
    told = [copy for name in answers if (copy := memory.copy(name, place)) is not None]
    known = (max(copy.standing.last_branch, copy.heard) for copy in told)
    newest = max([record.branch, memory.asked.get(place, 0), *known])
    branch = branch_above(newest, view.branch_by_clock, view.noise)
    tries = memory.begun.get(place, 0)
    memory.begun[place], memory.asked[place] = tries + 1, branch
    try_ms = BRANCH_TRY_MS << min(tries, BRANCH_TRY_DOUBLINGS_MAX)
    memory.promotions[place] = Promotion(branch, record.at, try_ms, view.now_ms)
    for name in record.voters:
        step.order("promise", name, place, record, branch=branch)
    return None


def _is_handed_over(step: Step, place: Place, record: DataRecord) -> bool:
    """Return whether a take-over explains that nobody serves: both its nodes answer."""
    asked_ms = step.memory.handed.get(place)
    return (
        asked_ms is not None
        and step.view.now_ms - asked_ms < HAND_OVER_MS
        and {record.active, record.row[0]} <= step.view.answered
    )


def _askable(step: Step, record: DataRecord) -> list[str]:
    """Return the voters with a session: any of them may be serving, or about to."""
    return [name for name in record.voters if name in step.state.live]


def _may_replace(step: Step, record: DataRecord) -> bool:
    """Return whether the copy that the map names may be replaced without an operator.

    Its node answers that the copy serves no more, or was failed over.
    """
    name = record.active
    if name is None or name in step.view.answered:
        return True
    node = step.state.nodes.get(name)
    if node is None or node.state in ("failed", "out"):
        return True
    step.note(f"{node.name} is silent and was not failed over")
    return False


def is_allowed(
    step: Step, record: DataRecord, answers: dict[str, Standing], verdict: JointVerdict
) -> bool:
    """Return whether a promotion may be done: by the rule, by the settings, or by force.

    Force takes the copies of given-up nodes for empty places. Others are still required.
    """
    if verdict.is_safe:
        return True
    if not answers:
        return False
    if step.state.settings.auto_failover_allow_loss and verdict.has_quorum:
        return True
    lost = given_up(step, record)
    return bool(lost) and judge_rows(_without(record.rows, lost), answers).is_safe


def _without(rows: tuple[Row, ...], lost: frozenset[str]) -> tuple[Row, ...]:
    return tuple(tuple(None if name in lost else name for name in row) for row in rows)


def _give_up(step: Step, place: Place, record: DataRecord) -> DataRecord | None:
    """Begin anew with the furthest copy that no record counts, if all that counted are given up.

    Every node with a session must have answered. No level is kept.
    """
    state, answered = step.state, step.view.answered
    if given_up(step, record) != frozenset(record.voters):
        step.note(f"{place.partition}: no copy that counts answers")
        return None
    if not set(state.live) <= answered:
        step.wait_for(state.live)
        return None
    left = step.memory.answers(place, sorted(state.live))
    empty = sorted(set(state.members("data")) & set(state.live))
    if not left and not empty:
        return None
    best = max(
        left,
        key=lambda name: (left[name].branch_at_end, left[name].complete_end),
        default=min(empty, default=None),
    )
    row: Row = (best, *[None] * (len(record.row) - 1))
    return replace(record, active=None, rows=(row,), building=())


def _go_on(step: Step, place: Place, record: DataRecord, promotion: Promotion) -> None:
    view, memory, state = step.view, step.memory, step.state
    chosen = serving(step, place, record)
    copy = None if chosen is None else memory.copy(chosen, place)
    if copy is not None and copy.standing.branch >= promotion.branch:
        memory.made[place] = copy.standing.branch
        del memory.promotions[place], memory.begun[place]
        return
    window_ms = state.settings.contact_window_ms
    is_late = view.now_ms - promotion.moved_ms > promotion.try_ms + window_ms
    if record.at != promotion.at or is_late:
        del memory.promotions[place]  # again with another branch, or other rows; it stays begun
        return
    promised = promotion.standings()
    verdict = judge_rows(record.rows, promised)
    if not is_allowed(step, record, promised, verdict):
        return
    waited = [name for name in _askable(step, record) if name not in promised]
    if waited:
        step.wait_for(waited)
        return
    if not _has_contact_lapsed(step, record, promotion):
        return
    node, end, kept = _chosen(step, record, promotion)
    if node in state.live:
        branch, boots = promotion.branch, state.live[node].boots
        step.order("activate", node, place, record, branch=branch, end=end, kept=kept, boots=boots)


def _chosen(step: Step, record: DataRecord, promotion: Promotion) -> Chosen:
    """Return the copy that gets the branch. The choice stays, even if others promise later."""
    if promotion.chosen is None:
        promised = promotion.standings()
        others = _not_failed(step, promised)
        if is_allowed(step, record, others, judge_rows(record.rows, others)):
            promised = others
        best = furthest(record, promised)
        assert best is not None, "an allowed promotion without promises"
        levels = judge_rows(record.rows, promised).kept
        # Without a serving copy all that counted were given up, or nothing was ever written.
        kept = () if record.active is None else tuple(sorted(levels))
        promotion.chosen = Chosen(best, promised[best].complete_end, kept)
        promotion.moved_ms = step.view.now_ms
    return promotion.chosen


def _has_contact_lapsed(step: Step, record: DataRecord, promotion: Promotion) -> bool:
    """Return whether no voter that did not promise can serve by contact any more.

    Its last contact with a majority included one that has promised since. So the window is waited
    for from the newest contact of these.
    """
    now_ms, window_ms = step.view.now_ms, step.state.settings.contact_window_ms
    if promotion.ready_ms is None:
        promotion.ready_ms = now_ms
    if all(name in promotion.promised for name in record.voters):
        return True
    if not judge_rows(record.rows, promotion.standings()).has_quorum:  # by force
        return now_ms - promotion.ready_ms >= window_ms
    last = max(one.heard_ms - (one.quiet_ms or 0) for one in promotion.promised.values())
    return now_ms - last >= window_ms


def admit(step: Step, name: str) -> None:
    """Admit a node that lost its session, if it may serve by its lease again."""
    view, memory, state = step.view, step.memory, step.state
    report, live = memory.nodes.get(name), state.live.get(name)
    if not view.is_fresh or name not in view.answered or report is None or live is None:
        return
    if report.is_admitted or report.boots != live.boots or _is_failed(step, name):
        return
    is_ready = True
    for place, copy in memory.copies[name].items():
        if copy.standing.state is not PartitionState.ACTIVE or place.bucket not in state.data:
            continue
        record = state.data[place.bucket].records[place.partition]
        is_ready &= _is_admissible(step, name, place, record, copy.standing)
    if is_ready:
        step.order("admit", name, Place("", 0), None, boots=report.boots)


def _is_admissible(
    step: Step, name: str, place: Place, record: DataRecord, mine: Standing
) -> bool:
    view, memory = step.view, step.memory
    if place in memory.begun:
        return False
    if name not in record.voters or mine.branch < record.branch:
        branch = max(record.branch, mine.branch + 1)
        step.order("fence", name, place, record, branch=branch)
        return False  # an old active copy, which was replaced, stands down first
    if memory.made.get(place) == mine.branch:
        return True
    blocked = {
        voter
        for voter in record.voters
        if voter in view.answered
        and (copy := memory.copy(voter, place)) is not None
        and copy.standing.last_branch <= mine.branch
    }
    if all(promises_enough(row, blocked) for row in record.rows):
        return True
    promote(step, place, record, replaces_active=True)  # another one may have been promoted
    return False
