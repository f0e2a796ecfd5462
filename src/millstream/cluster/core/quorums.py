"""What rows in force demand of copies: majorities, promotions, and who serves.

Invariants:
1. What is acknowledged at a majority is on a majority of every row in force.
2. A promotion has an answer from each of these majorities: of every row more than `spare` places,
   or every copy that the row names. An empty place never acknowledged anything.
3. The serving copy is active in a branch not below that of the record, nor below what any voter
   has promised. So a new orchestrator that does not reach the promoted copy cannot put the old
   one back.

Elsewhere: rows made by hand, in which an empty place may have been a copy
(`cluster.core.promotion`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from millstream.cluster.core.promotion import Answers, Level, serving, winner_of
from millstream.model.cluster_maps import DataRecord
from millstream.model.rows import Row, majority, named, spare

__all__ = [
    "JointVerdict",
    "branch_above",
    "furthest",
    "judge_rows",
    "needed_rows",
    "promises_enough",
    "serving_copy",
]

_NOISE_BITS = 12


def needed_rows(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows that demand something; the last one stays the last, if it names a node.

    An earlier row of the same nodes demands nothing more. A row that names nobody was given up:
    nobody is left who could act by it.
    """
    kept = [row for row in rows if named(row)] or [rows[-1]]
    seen: set[frozenset[str | None]] = set()
    earlier = []
    for row in kept[:-1]:
        if frozenset(row) not in seen:
            seen.add(frozenset(row))
            earlier.append(row)
    return (*earlier, kept[-1])


class JointVerdict(NamedTuple):
    """Whether a partition may be promoted with the received answers."""

    is_safe: bool
    """Whether nothing that a majority acknowledged can be lost."""
    has_quorum: bool
    """Enough copies answered, whatever they have lost."""
    kept: frozenset[Level]
    """Levels of which everything acknowledged is kept."""
    missing: tuple[str, ...]
    """Voters that did not answer."""

    @property
    def at_risk(self) -> tuple[Level, ...]:
        """Return the levels of which something may be lost."""
        levels: tuple[Level, ...] = ("majority", "persisted")
        return tuple(level for level in levels if level not in self.kept)


def judge_rows(rows: Sequence[Row], answers: Answers) -> JointVerdict:
    """Judge the answers to a promotion by all rows in force."""
    is_safe, has_quorum = True, True
    kept: set[Level] = {"majority", "persisted"}
    missing: dict[str, None] = {}
    for row in rows:
        told = [answers[name] for name in row if name is not None and name in answers]
        places, most = named(row), spare(row)
        intact = sum(one.is_intact for one in told)
        whole = sum(one.is_whole for one in told)
        has_quorum &= len(told) == places or len(told) > most
        is_safe &= len(told) == places or min(len(told), intact, whole) > most
        counts: tuple[tuple[Level, int], ...] = (("majority", intact), ("persisted", whole))
        kept -= {level for level, count in counts if count <= most and count != places}
        missing |= dict.fromkeys(n for n in row if n is not None and n not in answers)
    return JointVerdict(is_safe, has_quorum, frozenset(kept), tuple(missing))


def serving_copy(record: DataRecord, answers: Answers) -> str | None:
    """Return the node of the copy that serves; None if none does, or it does not answer."""
    chosen = serving(record.voters, answers)
    return None if chosen is None or answers[chosen].branch < record.branch else chosen


def furthest(record: DataRecord, promised: Answers) -> str | None:
    """Return the copy to activate: the furthest; of equal ones the one that is wanted."""
    return winner_of(record.voters, promised, record.row[0])


def branch_above(newest: int, by_clock: int, noise: int) -> int:
    """Return a branch for a new history.

    Two orchestrators that know the same and have slow clocks do not take the same one.

    Args:
        newest: the largest known one.
        by_clock: `branch_by_clock` of now.
        noise: random, `BRANCH_NOISE_BITS`.
    """
    if by_clock > newest:
        return by_clock
    return (newest >> _NOISE_BITS) + 1 << _NOISE_BITS | noise


def promises_enough(row: Row, blocked: Collection[str]) -> bool:
    """Return whether so many places cannot promise another branch that no promotion succeeds.

    Args:
        row: in force.
        blocked: nodes that know the present orchestrator, and promised nothing newer.
    """
    return sum(name is None or name in blocked for name in row) >= majority(row)
