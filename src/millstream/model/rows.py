"""Rows of a cluster map: the places of a partition's copies, and what a majority of them has.

Invariants:
1. An empty place (None) is a copy that never answers. It counts for a majority.

Elsewhere: what several rows in force demand of a promotion (`cluster.core.quorums`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["Row", "has_all", "majority", "named", "reached", "spare"]

Row = tuple[str | None, ...]
"""Names of the nodes with copies, None for an empty place."""


def majority(row: Row) -> int:
    """Return how many places are more than half."""
    return len(row) // 2 + 1


def spare(row: Row) -> int:
    """Return how many places may be missing from a majority."""
    return len(row) - majority(row)


def reached(rows: Iterable[Row], ends: Mapping[str, int]) -> int:
    """Return up to where a majority of every row has everything; 0 if one has no majority.

    Args:
        rows: in force.
        ends: by node; of a missing one 0.
    """
    return min(_reached(row, ends, majority(row)) for row in rows)


def has_all(row: Row, ends: Mapping[str, int], end: int) -> bool:
    """Return whether a majority of the row has everything up to `end`, or all copies it names.

    False if it names none.
    """
    count = min(majority(row), named(row))
    return count > 0 and _reached(row, ends, count) >= end


def _reached(row: Row, ends: Mapping[str, int], count: int) -> int:
    found = sorted((ends.get(name, 0) if name is not None else 0 for name in row), reverse=True)
    return found[count - 1]


def named(row: Row) -> int:
    """Return how many copies a row names."""
    return sum(name is not None for name in row)
