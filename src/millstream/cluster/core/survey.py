"""What all nodes of a bucket say of it, and what a promotion makes of that for each partition.

Invariants:
1. A partition that is served is left alone, unless another node is wanted: then it is handed over,
   which costs no history.
2. Where the rule of quorums speaks against it, nothing is asked of any copy without force.
3. Of several maps the one with the largest revision counts; if two of that revision differ, the
   next one is newer than both.

Elsewhere: the rules for one partition (`cluster.core.promotion`), asking (`cluster.promoting`).
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
    """What was found out; `maps` and `standings` by the name of the node."""

    bucket_map: BucketMap
    maps: Mapping[str, BucketMap]
    standings: Mapping[str, Sequence[Standing]]
    silent: Mapping[str, str]
    """Why others said nothing."""
    without: frozenset[str]
    """Nodes that answer and do not have the bucket."""

    def answers(self, partition_id: int) -> dict[str, Standing]:
        """Return the standings of one partition's copies."""
        return {name: every[partition_id] for name, every in self.standings.items()}

    def serving(self, partition_id: int) -> str | None:
        """Return which node has the active copy, None if a promotion is needed."""
        return serving(self.bucket_map.rows[partition_id], self.answers(partition_id))


class Outcome(NamedTuple):
    """What became of one partition."""

    partition: int
    what: What
    was: str | None
    """Who had the active copy by the map."""
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
    """Those for which promises have to be asked."""
    hand_overs: list[int]
    """Those that are served, and wanted elsewhere."""


class Winner(NamedTuple):
    """A copy that is to become active."""

    name: str
    standing: Standing
    at_risk: tuple[Level, ...]


def sort_out(survey: Survey, wanted: Iterable[int], to: str | None, *, is_forced: bool) -> Plan:
    """Return what to do about these partitions; nothing where rules or nodes are against it."""
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
    """Return what failed, and who becomes active, by the standings told with the promises."""
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
    """Return the map in which these nodes have the active copies, of a revision all will take."""
    base = survey.bucket_map
    new = next_map(base, actives)
    rivals = (one for one in survey.maps.values() if one.revision == base.revision)
    if new is base and any(one != base for one in rivals):
        return BucketMap(base.revision + 1, base.nodes, base.rows)
    return new


def idle_copies(survey: Survey) -> Iterator[tuple[str, int]]:
    """Yield (node, partition) of copies that are dead and should follow the one that serves.

    A hand-over leaves the copy so that it was made from.
    """
    for p, row in enumerate(survey.bucket_map.rows):
        answers = survey.answers(p)
        if serving(row, answers) is not None:
            for name in row:
                if name in answers and answers[name].state is PartitionState.DEAD:
                    yield name, p


def fences(survey: Survey) -> Iterator[tuple[str, int, int]]:
    """Yield (node, branch, partition) where a copy has not heard of the branch that is served.

    It was away during a promotion, or lost its files; it may be active still in an older history.
    """
    for p, row in enumerate(survey.bucket_map.rows):
        answers = survey.answers(p)
        at = serving(row, answers)
        if at is not None:
            branch = answers[at].branch
            for name in row:
                if name in answers and answers[name].last_branch < branch:
                    yield name, branch, p
