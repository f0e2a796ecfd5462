"""Proof that a tree is whole: every invariant of every node; and which nodes it has.

Elsewhere: the invariants of sizes (`packing`), of a pass (`rewriting`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from millstream.errors import CorruptionError
from millstream.trees.core.nodes import InnerNode, LeafNode, Nodes, set_of
from millstream.trees.core.packing import fit_together, is_overfull, is_underfull
from millstream.trees.core.shapes import Leaf, NodeSource, Reducer, Root

__all__ = ["check", "live_nodes"]


def live_nodes(source: NodeSource, root: Root | None) -> Iterator[int]:
    """Yield the numbers of all nodes of a tree; leaves are not read.

    Raises:
        CorruptionError: a node is damaged or missing.
    """
    if root is None:
        return
    nodes = Nodes(source)
    stack = [(root.number, root.height)]
    while stack:
        number, height = stack.pop()
        yield number
        if height == 1:
            yield from nodes.inner(number).numbers
        elif height:
            stack += [(child, height - 1) for child in nodes.inner(number).numbers]


def check(source: NodeSource, root: Root | None, reducer: Reducer | None) -> None:
    """Read a whole tree and recompute what its nodes say.

    Args:
        source: where the nodes are.
        root: None: an empty tree.
        reducer: that of the tree; None: it cannot be had, partials are believed.

    Raises:
        CorruptionError: a node is damaged, missing, out of order or not filled as it should be,
            or a count, a set of partitions or a partial is not that of the rows.
    """
    if root is not None:
        _Check(Nodes(source), reducer).run(root)


_NAMES = ("last key", "count", "partitions", "partial")


class _Check:
    def __init__(self, nodes: Nodes, reducer: Reducer | None) -> None:
        self._nodes = nodes
        self._reducer = reducer
        self._names = _NAMES if reducer is not None else _NAMES[:-1]
        self._before: list[LeafNode | InnerNode | None] = []
        self._last: bytes | None = None
        self._seen: set[int] = set()

    def run(self, root: Root) -> None:
        self._before = [None] * (root.height + 1)
        _, count, bitmap, partial = self._subtree(root.number, root.height)
        if root.height:
            _demand(len(self._nodes.inner(root.number).numbers) > 1, root.number, "one child")
        _demand(count == root.count, root.number, "the root's count")
        _demand(bitmap == root.partitions, root.number, "the root's partitions")
        is_same = self._reducer is None or partial == root.partial
        _demand(is_same, root.number, "the root's partial")

    def _subtree(self, number: int, height: int) -> tuple[bytes, int, int, bytes]:
        _demand(number not in self._seen, number, "used twice")
        self._seen.add(number)
        if height:
            inner = self._nodes.inner(number)
            self._filled(number, height, inner)
            return self._inner(number, height, inner)
        leaf = self._nodes.leaf(number)
        self._filled(number, height, leaf)
        _demand(all(a < b for a, b in pairwise(leaf.keys)), number, "keys out of order")
        _demand(self._last is None or self._last < leaf.keys[0], number, "keys before it")
        self._last = leaf.keys[-1]
        partial = b""
        if self._reducer is not None:
            (partial,) = self._reducer.reduce([Leaf(*leaf[:3])])
        return self._last, len(leaf.keys), set_of(leaf.partitions), partial

    def _inner(self, number: int, height: int, node: InnerNode) -> tuple[bytes, int, int, bytes]:
        bitmap = 0
        for slot, child in enumerate(node.numbers):
            found = self._subtree(child, height - 1)
            said = (node.lasts[slot], node.counts[slot], node.sets[slot], node.partials[slot])
            for name, a, b in zip(self._names, found, said, strict=False):
                _demand(a == b, number, f"the {name} of child {child}")
            bitmap |= found[2]
        partial = b""
        if self._reducer is not None:
            (partial,) = self._reducer.rereduce([node.partials])
        return node.lasts[-1], sum(node.counts), bitmap, partial

    def _filled(self, number: int, height: int, node: LeafNode | InnerNode) -> None:
        _demand(not is_overfull(node), number, "overfull")
        before = self._before[height]
        self._before[height] = node
        if before is not None and is_underfull(before) and is_underfull(node):
            _demand(not fit_together(before, node), number, "underfull, as is the one before")


def _demand(is_so: bool, number: int, what: str) -> None:
    if not is_so:
        raise CorruptionError(
            f"node {number} of an index is wrong ({what}): rebuild the index",
            code="index_damaged",
        )
