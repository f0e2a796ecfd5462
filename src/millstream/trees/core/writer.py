"""Changing a tree: operations, taking partitions away, loading sorted rows from nothing.

A writer serves one commit, of one tree or several that share their node numbers. It changes
nothing that is stored: what is new is in `written`, what the old roots have and the new ones no
longer is in `freed`. Who commits stores the first, and removes the second when no kept root is
as old as this commit.

Invariants:
1. live nodes of the new roots = live nodes of the old ones - `freed` + `written` (and what went
   through the sink); a node made and replaced by the same writer is in neither.
2. Numbers grow in the order in which nodes are written: a store may append them.
3. A pass takes at most `OPERATIONS_PER_PASS_MAX` operations; more are cut into passes.

Elsewhere: one pass (`rewriting`), nodes as bytes (`nodes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from operator import lt
from typing import Final

from millstream.trees.core.nodes import (
    CommitNodes,
    InnerNode,
    LeafNode,
    NodeCache,
    Nodes,
    leaf_body,
    sealed,
    set_of,
)
from millstream.trees.core.packing import LEAVES_TOGETHER_BYTES_MAX, cuts_of_leaf
from millstream.trees.core.rewriting import (
    LEAVES_PER_CALL_MAX,
    Entry,
    Rewriting,
    grown,
    inner_pieces,
    write_inners,
    write_leaves,
)
from millstream.trees.core.shapes import NodeSource, Operation, Reducer, Root, Row

__all__ = ["INNERS_KEPT_MAX", "OPERATIONS_PER_PASS_MAX", "SINK_BYTES_MAX", "TreeWriter"]

OPERATIONS_PER_PASS_MAX: Final = 16_384
"""Every one may have a leaf of its own decoded, some 8 KB, until its pass is done."""
SINK_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of new nodes after which a bulk load hands them to the sink."""
INNERS_KEPT_MAX: Final = 2048
"""New inner nodes that are kept decoded until the commit, some 7 KB each."""
_ROWS_AT_ONCE: Final = 4096
_ROWS_LOOKED_AT: Final = 32  # and added up: what a chunk may exceed its bytes by

Sink = Callable[[dict[int, bytes]], None]


class TreeWriter:
    """New nodes of one commit.

    Args:
        source: where the old nodes are.
        next_number: the first number no node ever had.
        sink: takes new nodes of a bulk load in portions, in the order of their numbers.
        cache: decoded old nodes. New ones are not put into it: a commit may fail.

    Attributes:
        written: new nodes by number.
        freed: numbers of nodes that are no longer needed.
        inners: some of the new nodes, decoded: the next commit will change most of them again.
    """

    def __init__(
        self,
        source: NodeSource,
        next_number: int,
        sink: Sink | None = None,
        cache: NodeCache | CommitNodes | None = None,
    ) -> None:
        self.written: dict[int, bytes] = {}
        self.inners: dict[int, InnerNode] = {}
        self.freed: list[int] = []
        self.next_number = next_number
        self._sink = sink
        self._bytes = 0
        self._nodes = Nodes(source, cache, self.written)

    def apply(
        self,
        root: Root | None,
        operations: Sequence[Operation],
        reducer: Reducer,
        clean: int = 0,
    ) -> Root | None:
        """Return the root after the operations; the same one if they change nothing.

        Args:
            root: None: an empty tree.
            operations: sorted by key, each key once.
            reducer: always the same for one tree.
            clean: partitions whose rows go, before the operations.

        Raises:
            CorruptionError: a node is damaged or missing.
        """
        assert all(a[0] < b[0] for a, b in pairwise(operations)), "not sorted, or a key twice"
        for begin in range(0, len(operations) or 1, OPERATIONS_PER_PASS_MAX):
            part = operations[begin : begin + OPERATIONS_PER_PASS_MAX]
            if root is None:
                root = self.load(((k, p, v) for k, p, v in part if v is not None), reducer)
            else:
                clean = clean & root.partitions if not begin else 0
                root = Rewriting(self._nodes, self, reducer, part, clean).run(root)
        return root

    def clean(
        self, root: Root | None, partitions: int, reducer: Reducer, nodes_max: int
    ) -> tuple[Root | None, bool]:
        """Take rows of partitions away, as many as at most `nodes_max` nodes per level have.

        Returns:
            The new root, and whether none of those rows are left. Call it again with that root,
            in this commit or a later one, until none are.

        Raises:
            CorruptionError: a node is damaged or missing.
        """
        assert nodes_max > 0
        if root is not None and (clean := root.partitions & partitions):
            root = Rewriting(self._nodes, self, reducer, (), clean, nodes_max).run(root)
        return root, root is None or not root.partitions & partitions

    def load(self, rows: Iterable[Row], reducer: Reducer) -> Root | None:
        """Return the root of a new tree of rows sorted by key, each key once.

        Every node is made once, bottom-up. With a sink, memory is bounded whatever the number of
        rows; what it was not given at the end is in `written`.
        """
        levels: list[list[Entry]] = [[]]
        leaves: list[tuple[bytes, LeafNode, int]] = []
        size = 0
        for piece in _leaves_of(rows):
            leaves.append(piece)
            size += len(piece[0])
            if len(leaves) == LEAVES_PER_CALL_MAX or size >= LEAVES_TOGETHER_BYTES_MAX:
                levels[0] += write_leaves(leaves, reducer, self)
                leaves.clear()
                size = 0
                self._load_inners(levels, reducer)
                self._flush()
        levels[0] += write_leaves(leaves, reducer, self)
        for height in range(len(levels)):
            if height + 1 == len(levels):
                return grown(levels[height], height, reducer, self, self._nodes)
            levels[height + 1] += write_inners(
                inner_pieces(levels[height], is_load=True), reducer, self
            )
        return None

    # ---- for passes

    def write(self, body: bytes, node: LeafNode | InnerNode) -> int:
        """Keep a new node; return its number."""
        number = self.next_number
        self.next_number = number + 1
        self.written[number] = sealed(number, body)
        self._bytes += len(body)
        if type(node) is InnerNode and self._sink is None and len(self.inners) < INNERS_KEPT_MAX:
            self.inners[number] = node
        return number

    def free(self, number: int) -> None:
        """Take note that the tree no longer has this node."""
        if self.written.pop(number, None) is None:
            self.freed.append(number)
        else:
            self.inners.pop(number, None)

    # ---- loading

    def _load_inners(self, levels: list[list[Entry]], reducer: Reducer) -> None:
        """Make inner nodes of what waits, but for the last one of each level: it may grow."""
        for height in range(len(levels)):
            if len(levels[height]) < LEAVES_PER_CALL_MAX:
                return
            pieces = inner_pieces(levels[height], is_load=True)
            del levels[height][: -len(pieces.pop()[1].numbers)]
            if height + 1 == len(levels):
                levels.append([])
            levels[height + 1] += write_inners(pieces, reducer, self)

    def _flush(self) -> None:
        if self._sink is not None and self._bytes >= SINK_BYTES_MAX:
            self._sink(dict(self.written))
            self.written.clear()
            self._bytes = 0


def _leaves_of(rows: Iterable[Row]) -> Iterator[tuple[bytes, LeafNode, int]]:
    keys: list[bytes] = []
    values: list[bytes] = []
    partitions: list[int] = []
    for chunk in _chunks(rows):
        new_keys, new_partitions, new_values = zip(*chunk, strict=True)
        assert not keys or keys[-1] < new_keys[0], "not sorted, or a key twice"
        assert all(map(lt, new_keys, new_keys[1:])), "not sorted, or a key twice"
        keys += new_keys
        values += new_values
        partitions += new_partitions
        done = 0
        for end in _ends(keys, values, partitions)[:-1]:
            yield _leaf(keys[done:end], values[done:end], partitions[done:end])
            done = end
        del keys[:done], values[:done], partitions[:done]
    done = 0
    for end in _ends(keys, values, partitions) if keys else ():
        yield _leaf(keys[done:end], values[done:end], partitions[done:end])
        done = end


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield some rows at a time, few where they are large."""
    iterator, chunk, size = iter(rows), list[Row](), 0
    while part := list(islice(iterator, _ROWS_LOOKED_AT)):
        chunk += part
        size += sum([len(value) for _, _, value in part])
        if len(chunk) >= _ROWS_AT_ONCE or size >= LEAVES_TOGETHER_BYTES_MAX:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _ends(keys: list[bytes], values: list[bytes], partitions: list[int]) -> list[int]:
    return cuts_of_leaf(keys, values, is_wide=max(partitions) > 255, is_load=True)


def _leaf(
    keys: list[bytes], values: list[bytes], partitions: list[int]
) -> tuple[bytes, LeafNode, int]:
    return *leaf_body(keys, values, partitions), set_of(partitions)
