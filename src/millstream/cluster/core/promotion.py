"""Decides from the standings of a partition's copies which one is or may become active.

    verdict = judge(row, standings)            # may it be done with those that answered?
    branch = next_branch(standings, by_clock)  # what all that answer promise
    winner_of(row, promised)                   # of the standings told with the promises

A majority of copies has every change that was acknowledged at a majority. If the copies that do
not answer are fewer than a majority, one that answers is in that majority. A copy that has
promised a branch acknowledges nothing more to a source of a lower branch. So the furthest copy
that answers has every such change.

Invariants:
1. Copies are counted by the places of the row: an empty place is a copy that does not answer.
2. An answer counts for a level only if the copy still has what it acknowledged at that level.
3. The furthest copy has the largest (branch of the history of its complete end, complete end), not
   the newest branch: a copy knows branches before it has their data.
4. A decision uses only standings that were reported after the promises.

Elsewhere: requests to the nodes (`cluster.promoting`), a copy's standing
(`kv.core.copies.copy_status`).

Source: docs/design/0006-copies.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

from millstream.errors import UsageError
from millstream.model.bucket_map import BucketMap
from millstream.model.partitions import PartitionState
from millstream.model.rows import Row
from millstream.model.standing import Standing

__all__ = [
    "Answers",
    "Level",
    "Verdict",
    "judge",
    "next_branch",
    "next_map",
    "serving",
    "winner_of",
    "without_node",
]

Answers = Mapping[str, Standing]
"""Standings by the name of the node."""
Level = Literal["majority", "persisted"]
_ACTIVE: Final = PartitionState.ACTIVE


class Verdict(NamedTuple):
    """Whether a partition may be promoted with the received answers."""

    copies: int
    needed: int
    """Number of answers required so that the rest is no majority."""
    answered: tuple[str, ...]
    silent: tuple[str, ...]
    """Copies whose answer is required and missing; empty places are not named."""
    at_risk: tuple[Level, ...]
    """Durability levels whose acknowledged writes may be lost."""

    @property
    def is_safe(self) -> bool:
        """Return whether it is safe without force: nothing is at risk, or all copies answered."""
        return len(self.answered) >= self.needed and (
            not self.at_risk or len(self.answered) == self.copies
        )

    @property
    def reason(self) -> str:
        """Return why it may not be done, and what to do about it, in one sentence."""
        away = ", ".join(self.silent) or "an empty place of the map"
        found = f"{len(self.answered)} of {self.copies} copies answered, not {away}"
        if len(self.answered) >= self.needed:
            lost = "too many of them have lost something since they acknowledged it"
            return f"{found}, and {lost}: bring the others back, or use --force"
        return f"{found}; {self.needed} are needed: bring the others back, or use --force"


def judge(row: Row, answers: Answers, before: Answers | None = None) -> Verdict:
    """Judge the answers to a promotion. A dead copy counts: it has what it acknowledged.

    Args:
        row: of the map.
        answers: the newest standings.
        before: standings reported before the promises; by default `answers`.
    """
    copies, known = len(row), _known(row, answers)
    spare = copies - (copies // 2 + 1)
    intact = sum(standing.is_intact for standing in known.values())
    whole = sum(standing.is_whole for standing in known.values())
    counts: tuple[tuple[Level, int], ...] = (("majority", intact), ("persisted", whole))
    if _is_new(row, answers if before is None else before):
        counts = ()
    return Verdict(
        copies,
        spare + 1,
        tuple(known),
        tuple(name for name in row if name is not None and name not in known),
        tuple(level for level, count in counts if count <= spare),
    )


def _is_new(row: Row, before: Answers) -> bool:
    """Return whether nothing was ever acknowledged: no copy has, or knows of, any history."""
    known = _known(row, before)
    return len(known) == len(row) and not any(
        standing.branch or standing.last_branch for standing in known.values()
    )


def next_branch(standings: Iterable[Standing], by_clock: int) -> int:
    """Return a branch for a new history, larger than any that these copies know of."""
    return max([by_clock, *(standing.last_branch + 1 for standing in standings)])


def winner_of(row: Row, answers: Answers, wanted: str | None = None) -> str | None:
    """Return the copy that must become active; None if none answered.

    Args:
        row: breaks ties: the first of equal copies wins.
        answers: reported with the promises.
        wanted: wins if it is as far as the furthest copy.
    """
    known = _known(row, answers)
    furthest = max(map(_reach, known.values()), default=None)
    equal = [name for name, standing in known.items() if _reach(standing) == furthest]
    if wanted in equal:
        return wanted
    return max(equal, key=lambda name: known[name].persisted_end, default=None)


def serving(row: Row, answers: Answers) -> str | None:
    """Return the node that has the active copy; None if a promotion is needed.

    An active copy does not count if the others are fenced against it: they have promised a branch
    above its own.
    """
    known = _known(row, answers)
    newest = max((standing.last_branch for standing in known.values()), default=0)
    actives = [name for name, standing in known.items() if standing.state is _ACTIVE]
    return next((name for name in actives if known[name].branch >= newest), None)


def next_map(bucket_map: BucketMap, actives: Mapping[int, str]) -> BucketMap:
    """Return the next revision of the map, in which these nodes have the active copies.

    The former node of an active copy keeps a place. If nothing changes, the same map is returned.

    Args:
        bucket_map: the newest known one.
        actives: by partition; each has a place in its row.
    """
    rows = tuple(
        _led_by(row, actives.get(number, row[0])) for number, row in enumerate(bucket_map.rows)
    )
    if rows == bucket_map.rows:
        return bucket_map
    return BucketMap(bucket_map.revision + 1, bucket_map.nodes, rows)


def without_node(bucket_map: BucketMap, name: str) -> BucketMap:
    """Return the next revision of the map, without places for a node, which is not waited for.

    Raises:
        UsageError: `unknown_node`; `no_copy_left`: it has an active copy, or the only one;
            `bad_map_rows`: not all partitions have a place for it, so rows would differ in length.
    """
    if not bucket_map.has_node(name):
        raise UsageError(f"the map has no node {name!r}", code="unknown_node")
    rows = tuple(tuple(one for one in row if one != name) for row in bucket_map.rows)
    lost = [p for p, row in enumerate(bucket_map.rows) if row[0] == name or not rows[p]]
    if lost:
        raise UsageError(
            f"{name} has the active copy of partition {lost[0]}, or the only one: promote another "
            "copy first",
            code="no_copy_left",
        )
    if len({len(row) for row in rows}) > 1:
        raise UsageError(
            f"not every partition has a copy on {name}: without it they would have different "
            "numbers of copies; give the nodes a map",
            code="bad_map_rows",
        )
    nodes = tuple(node for node in bucket_map.nodes if node.name != name)
    return BucketMap(bucket_map.revision + 1, nodes, rows)


def _led_by(row: Row, first: str | None) -> Row:
    if first == row[0]:
        return row
    assert first in row, f"{first} has no copy in {row}"
    others = list(row)
    others.remove(first)
    return (first, *others)


def _known(row: Row, answers: Answers) -> dict[str, Standing]:
    return {name: answers[name] for name in row if name is not None and name in answers}


def _reach(standing: Standing) -> tuple[int, int]:
    return standing.branch_at_end, standing.complete_end
