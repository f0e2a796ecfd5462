"""How much goes into a node: when one is overfull, underfull, fits with another, where to cut.

Invariants:
1. A leaf has at most `NODE_BYTES_MAX` bytes and `LEAF_ROWS_MAX` rows, or it is a single row.
2. An inner node has at most `INNER_CHILDREN_MAX` children, and at most `NODE_BYTES_MAX` bytes or
   `INNER_CHILDREN_MIN` children: keys and partials of any size leave a tree that branches.
3. Of what is cut in one go no two neighbours are both underfull and fit into one node.

Elsewhere: joining neighbours (`rewriting`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import add
from typing import Final

from millstream.trees.core.nodes import InnerNode, LeafNode

__all__ = [
    "INNER_CHILDREN_MAX",
    "INNER_CHILDREN_MIN",
    "LEAF_ROWS_MAX",
    "LEAVES_TOGETHER_BYTES_MAX",
    "NODE_BYTES_MAX",
    "cuts_of_inner",
    "cuts_of_leaf",
    "fit_together",
    "is_amiss",
    "is_overfull",
    "is_underfull",
]

NODE_BYTES_MAX: Final = 3900
"""Encoded; a store that gives large values pages of their own needs one of 4 KiB for it."""
LEAVES_TOGETHER_BYTES_MAX: Final = 4 * 1024 * 1024
"""Leaves that are held decoded, or wait for a reducer, with usual ones bounded by their number."""
LEAF_ROWS_MAX: Final = 256
INNER_CHILDREN_MAX: Final = 64
INNER_CHILDREN_MIN: Final = 8
"""Children that an inner node may have whatever their size."""
_UNDERFULL: Final = 0.4
_LEAF_BYTES_MIN: Final = int(NODE_BYTES_MAX * _UNDERFULL)
_LEAF_ROWS_MIN: Final = int(LEAF_ROWS_MAX * _UNDERFULL)
_INNER_CHILDREN_LOW: Final = int(INNER_CHILDREN_MAX * _UNDERFULL)
_FRAME_BYTES: Final = 40
"""What a node has beside its rows or children, at most."""
_ROW_BYTES: Final = 6
_CHILD_BYTES: Final = 20
_LOAD_FILL: Final = 0.9
"""How full nodes are made by a bulk load: the first changes must not split them all."""


def is_amiss(node: LeafNode | InnerNode) -> bool:
    """Whether a node may be overfull or underfull: one cheap look for the many that are not."""
    if len(node[0]) == 1 and isinstance(node, LeafNode):
        return node.size < _LEAF_BYTES_MIN
    return not (
        _LEAF_BYTES_MIN <= node.size <= NODE_BYTES_MAX
        and INNER_CHILDREN_MIN // 2 <= len(node[0]) <= INNER_CHILDREN_MAX
    )


def is_overfull(node: LeafNode | InnerNode) -> bool:
    """Whether a node must be cut."""
    count = len(node[0])
    if isinstance(node, LeafNode):
        return count > LEAF_ROWS_MAX or (node.size > NODE_BYTES_MAX and count > 1)
    return count > INNER_CHILDREN_MAX or (
        node.size > NODE_BYTES_MAX and count > INNER_CHILDREN_MIN
    )


def is_underfull(node: LeafNode | InnerNode) -> bool:
    """Whether a node should be joined with a neighbour, if it fits."""
    count = len(node[0])
    if isinstance(node, LeafNode):
        return node.size < _LEAF_BYTES_MIN and count < _LEAF_ROWS_MIN
    return count < INNER_CHILDREN_MIN // 2 or (
        node.size < _LEAF_BYTES_MIN and count < _INNER_CHILDREN_LOW
    )


def fit_together(node: LeafNode | InnerNode, other: LeafNode | InnerNode) -> bool:
    """Whether two neighbours of one level may be made one."""
    count, size = len(node[0]) + len(other[0]), node.size + other.size
    if isinstance(node, LeafNode):
        return count <= LEAF_ROWS_MAX and size <= NODE_BYTES_MAX
    return count <= INNER_CHILDREN_MAX and (size <= NODE_BYTES_MAX or count <= INNER_CHILDREN_MIN)


def cuts_of_leaf(
    keys: Sequence[bytes], values: Sequence[bytes], *, is_wide: bool, is_load: bool
) -> list[int]:
    """Return where leaves end in these rows: evenly, or each as full as a load makes it."""
    each = _ROW_BYTES + is_wide
    lengths = map(add, map(len, keys), map(len, values))
    costs = list(accumulate([length + each for length in lengths]))
    return _cuts(costs, LEAF_ROWS_MAX, 1, is_load)


def cuts_of_inner(
    lasts: Sequence[bytes], sets: Sequence[int], partials: Sequence[bytes], *, is_load: bool
) -> list[int]:
    """The same for inner nodes and these children."""
    each = _CHILD_BYTES + max(9, max(sets).bit_length() // 8 + 1)
    lengths = map(add, map(len, lasts), map(len, partials))
    costs = list(accumulate([length + each for length in lengths]))
    nodes_at_most = -(-len(lasts) // INNER_CHILDREN_MIN)
    return _cuts(costs, INNER_CHILDREN_MAX, -(-len(lasts) // nodes_at_most), is_load)


def _cuts(costs: list[int], count_max: int, count_min: int, is_load: bool) -> list[int]:
    """Greedy: each piece ends when it has reached its share, or the next row would burst it."""
    total, count, limit = costs[-1], len(costs), NODE_BYTES_MAX - _FRAME_BYTES
    if is_load:
        share = limit = int(limit * _LOAD_FILL)
        count_max = int(count_max * _LOAD_FILL)
    else:
        pieces = max(-(-total // limit), -(-count // count_max))
        share = -(-total // pieces)
    ends, begin, before = [], 0, 0
    while begin < count:
        end = bisect_left(costs, before + share, begin) + 1
        end = min(end, bisect_right(costs, before + limit, begin), begin + count_max)
        end = min(max(end, begin + count_min), count)
        ends.append(end)
        begin, before = end, costs[end - 1]
    return ends
