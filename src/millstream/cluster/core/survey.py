"""Combines the reports of all nodes of a bucket into the promotion steps of each partition.

Invariants:
1. A partition that is served is left alone, unless another node is requested: then it is handed
   over, which loses no history.
2. If the quorum rule does not allow a promotion, no copy is asked for anything without force.
3. Of several maps the one with the largest revision counts. If two maps of that revision differ,
   the next one is newer than both.

Elsewhere: the rules for one partition (`cluster.core.promotion`), requests (`cluster.promoting`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from millstream.cluster.core.promotion import (
    Answers,
    Level,
    judge,
    next_map,
    serving,
    winner_of,
)
from millstream.model.bucket_map import BucketMap
from millstream.model.partitions import PartitionState
from millstream.model.standing import Standing

__all__ = [
    "Outcome",
    "Plan",
    "Survey",
    "Winner",
    "choose",
    "fences",
    "idle_copies",
    "map_after",
    "sort_out",
]

What = Literal["served", "promoted", "handed_over", "refused", "failed"]
AWAY = "a copy did not promise: another promotion is under way, or its node went away; try again"


class Survey(NamedTuple):
    """The received reports; `maps` and `standings` by the name of the node."""

    bucket_map: BucketMap
    maps: Mapping[str, BucketMap]
    standings: Mapping[str, Sequence[Standing]]
    silent: Mapping[str, str]
    """Why other nodes sent no report."""
    without: frozenset[str]
    """Nodes that answer and do not have the bucket."""

    def answers(self, partition_id: int) -> dict[str, Standing]:
        """Return the standings of one partition's copies."""
        return {name: every[partition_id] for name, every in self.standings.items()}

    def serving(self, partition_id: int) -> str | None:
        """Return the node that has the active copy; None if a promotion is needed."""
        return serving(self.bucket_map.rows[partition_id], self.answers(partition_id))


class Outcome(NamedTuple):
    """The result for one partition."""

    partition: int
    what: What
    was: str | None
    """Node with the active copy by the map before."""
    now: str | None
    branch: int = 0
    seqno: int = 0
    """Where the new history begins."""
    at_risk: tuple[Level, ...] = ()
    reason: str = ""


class Plan(NamedTuple):
    """What to do about each partition."""

    decided: list[Outcome]
    promotions: list[int]
    """Partitions for which promises have to be requested."""
    hand_overs: list[int]
    """Partitions that are served and requested on another node."""


class Winner(NamedTuple):
    """A copy that is to become active."""

    name: str
    standing: Standing
    at_risk: tuple[Level, ...]


def sort_out(survey: Survey, wanted: Iterable[int], to: str | None, *, is_forced: bool) -> Plan:
    """Return the steps for these partitions; none where rules or missing nodes forbid it."""
    plan = Plan([], [], [])
    for p in wanted:
        row, answers, at = survey.bucket_map.rows[p], survey.answers(p), survey.serving(p)
        verdict = judge(row, answers)
        if at is not None and to in (None, at):
            plan.decided.append(Outcome(p, "served", row[0], at, answers[at].branch))
        elif at is not None and to in answers:
            plan.hand_overs.append(p)
        elif at is not None:
            reason = f"{to} does not answer; {at} serves it"
            plan.decided.append(Outcome(p, "refused", row[0], at, reason=reason))
        elif verdict.is_safe or (is_forced and verdict.answered):
            plan.promotions.append(p)
        else:
            risk, reason = verdict.at_risk, verdict.reason
            plan.decided.append(Outcome(p, "refused", row[0], None, at_risk=risk, reason=reason))
    return plan


def choose(
    survey: Survey,
    promised: Mapping[int, Answers],
    to: str | None,
    *,
    is_forced: bool,
) -> tuple[list[Outcome], dict[int, Winner]]:
    """Return the failures and the new active copies, by the standings sent with the promises."""
    failed, winners = [], {}
    for p, answers in promised.items():
        row = survey.bucket_map.rows[p]
        verdict = judge(row, answers, before=survey.answers(p))
        name = winner_of(row, answers, to)
        if name is None or not (verdict.is_safe or is_forced):
            failed.append(Outcome(p, "failed", row[0], None, at_risk=verdict.at_risk, reason=AWAY))
        else:
            winners[p] = Winner(name, answers[name], verdict.at_risk)
    return failed, winners


def map_after(survey: Survey, actives: Mapping[int, str]) -> BucketMap:
    """Return the map with these active copies, with a revision that all nodes accept."""
    base = survey.bucket_map
    new = next_map(base, actives)
    rivals = (one for one in survey.maps.values() if one.revision == base.revision)
    if new is base and any(one != base for one in rivals):
        return BucketMap(base.revision + 1, base.nodes, base.rows)
    return new


def idle_copies(survey: Survey) -> Iterator[tuple[str, int]]:
    """Yield (node, partition) of dead copies that should follow the active one.

    A hand-over leaves the former active copy dead.
    """
    for p, row in enumerate(survey.bucket_map.rows):
        answers = survey.answers(p)
        if serving(row, answers) is not None:
            for name in row:
                if name in answers and answers[name].state is PartitionState.DEAD:
                    yield name, p


def fences(survey: Survey) -> Iterator[tuple[str, int, int]]:
    """Yield (node, branch, partition) of copies that do not know the branch that is served.

    Such a copy was unreachable during a promotion or lost its files. It may still be active in an
    older history.
    """
    for p, row in enumerate(survey.bucket_map.rows):
        answers = survey.answers(p)
        at = serving(row, answers)
        if at is not None:
            branch = answers[at].branch
            for name in row:
                if name in answers and answers[name].last_branch < branch:
                    yield name, branch, p
