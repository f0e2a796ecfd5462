"""The values that go in and out of a tree, and what a tree asks of its surroundings.

Invariants:
1. Keys are unique and sort as bytes; they and values may have any length.
2. A partition is 0..65535; a set of partitions is an int with bit p set for partition p.
3. A partial is opaque here: only the reducer makes and reads it.

Elsewhere: nodes as bytes (`nodes`), changing (`writer`), reading (`reader`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

__all__ = [
    "NO_REDUCER",
    "Bound",
    "Doubter",
    "Leaf",
    "NodeSource",
    "Operation",
    "Reducer",
    "Root",
    "Row",
]

Row = tuple[bytes, int, bytes]
"""Key, partition, value."""
Operation = tuple[bytes, int, bytes | None]
"""Key, partition, new value; None: the row goes, if it is there."""
Bound = tuple[bytes, bool]
"""A key at which a range begins or ends, and whether it belongs to the range."""


class Root(NamedTuple):
    """All that has to be kept of a tree beside its nodes; an empty tree has none (None).

    Args:
        number: the top node.
        height: inner levels above the leaves; 0: the top node is a leaf.
        count: rows.
        partitions: those that have rows.
        partial: reduction of all rows.
    """

    number: int
    height: int
    count: int  # type: ignore[assignment]  # of a tuple it is a method nobody needs
    partitions: int
    partial: bytes


class Leaf(NamedTuple):
    """Rows as parallel lists, sorted by key. Lists may be shared with a cache: do not change."""

    keys: list[bytes]
    values: list[bytes]
    partitions: Sequence[int]


class NodeSource(Protocol):
    """Where nodes are kept."""

    def read(self, number: int) -> bytes:
        """Return the bytes of a node; raises CorruptionError if that node does not exist."""


class Reducer(Protocol):
    """Makes partials; called with many nodes of one level at a time."""

    def reduce(self, leaves: Sequence[Leaf]) -> list[bytes]:
        """Return one partial per leaf (a leaf has at least one row)."""

    def rereduce(self, groups: Sequence[Sequence[bytes]]) -> list[bytes]:
        """Return one partial per group of partials, which come in key order, at least one."""


class Doubter(Protocol):
    """Knows partials which are not what their rows come to, but what became of an attempt."""

    def is_lasting(self, partial: bytes) -> bool:
        """Whether the same rows will always come to this; else it is not kept in memory."""

    def is_to_be_tried(self, partial: bytes) -> bool:
        """Whether a partial that is in the tree is to be made again from what is below it."""


class _NoReducer:
    def reduce(self, leaves: Sequence[Leaf]) -> list[bytes]:
        return [b""] * len(leaves)

    def rereduce(self, groups: Sequence[Sequence[bytes]]) -> list[bytes]:
        return [b""] * len(groups)


NO_REDUCER: Final[Reducer] = _NoReducer()
