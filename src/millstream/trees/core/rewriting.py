"""One pass over a tree that applies sorted operations and takes partitions away.

Down: from the root, level by level, every node with work is visited (read), the others stay as
they are; leaves are edited as they are read, reduced and written in portions. Up: level by level
what is overfull is cut, what is underfull is joined with a neighbour, partials are made for many
nodes in one call, nodes get numbers, and the entries of the level above are changed.

Invariants:
1. An untouched node is neither copied nor read, but for the neighbours of what became underfull
   or empty.
2. No two neighbours of a level, under one parent or two, are both underfull and fit into one
   node, if that held before.
3. An operation that changes nothing (the same row again, a row to go that is not there) touches
   nothing; a pass without effect leaves root and numbers as they were.
4. A child whose partitions all go is dropped without being read, if it is a leaf; an inner one
   is read, since its children's numbers become free.

Elsewhere: numbers and where nodes go (`writer.NodeSink`), sizes (`packing`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import reduce as fold
from operator import or_
from typing import Any, Final, Protocol

from millstream.trees.core.editing import edited
from millstream.trees.core.nodes import (
    InnerNode,
    LeafNode,
    Nodes,
    inner_body,
    leaf_body,
    set_of,
)
from millstream.trees.core.packing import (
    LEAVES_TOGETHER_BYTES_MAX,
    cuts_of_inner,
    cuts_of_leaf,
    fit_together,
    is_amiss,
    is_overfull,
    is_underfull,
)
from millstream.trees.core.shapes import Leaf, Operation, Reducer, Root

__all__ = ["LEAVES_PER_CALL_MAX", "Entry", "Output", "Rewriting", "write_inners", "write_leaves"]

LEAVES_PER_CALL_MAX: Final = 512
"""Nodes given to a reducer in one call."""
LEAVES_TOGETHER_MAX: Final = 128
"""Leaves read and edited before they are reduced, written and forgotten again: about as many as a
processor's cache has room for. One decoded takes some 8 KB."""

Entry = tuple[bytes, int, int, int, bytes]
"""What a parent knows of a child: last key, number, count, partitions, partial."""


class Output(Protocol):
    """Takes new nodes and says which old ones are no longer part of the tree."""

    def write(self, body: bytes, node: LeafNode | InnerNode) -> int:
        """Keep a node; return its new number."""

    def free(self, number: int) -> None:
        """Take note that the tree no longer has this node."""


_NO_CHILDREN: Final[dict[int, list[_Visit]]] = {}


class _Visit:
    """A node with work, or a piece of one. `number` is 0 once it differs from what was read."""

    __slots__ = (
        "bitmap",
        "body",
        "entry",
        "height",
        "node",
        "number",
        "parent",
        "slot",
        "touched",
        "work",
    )

    touched: dict[int, list[_Visit]]

    def __init__(
        self,
        parent: _Visit | None,
        slot: int,
        height: int,
        number: int = 0,
        node: LeafNode | InnerNode | None = None,
    ) -> None:
        self.parent = parent
        self.slot = slot
        self.height = height
        self.number = number
        self.node = node
        self.body = b""  # of a changed node
        self.bitmap = 0  # of a leaf
        self.work = (0, 0)  # its operations
        self.touched = {} if height else _NO_CHILDREN  # slot -> what became of that child
        self.entry: Entry | None = None  # once it is written; then it has no node any more

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of it."""
        return self.node is None and self.entry is None


def write_leaves(
    pieces: Sequence[tuple[bytes, LeafNode, int]], reducer: Reducer, output: Output
) -> list[Entry]:
    """Reduce and write leaves (bytes, node, partitions); return what parents must know."""
    entries: list[Entry] = []
    for at in range(0, len(pieces), LEAVES_PER_CALL_MAX):
        part = pieces[at : at + LEAVES_PER_CALL_MAX]
        partials = reducer.reduce([Leaf(*node[:3]) for _, node, _ in part])
        for (body, node, bitmap), partial in zip(part, partials, strict=True):
            number = output.write(body, node)
            entries.append((node.keys[-1], number, len(node.keys), bitmap, partial))
    return entries


def write_inners(
    pieces: Sequence[tuple[bytes, InnerNode]], reducer: Reducer, output: Output
) -> list[Entry]:
    """The same for inner nodes."""
    entries: list[Entry] = []
    for at in range(0, len(pieces), LEAVES_PER_CALL_MAX):
        part = pieces[at : at + LEAVES_PER_CALL_MAX]
        partials = reducer.rereduce([node.partials for _, node in part])
        for (body, node), partial in zip(part, partials, strict=True):
            number = output.write(body, node)
            bitmap = fold(or_, node.sets)
            entries.append((node.lasts[-1], number, sum(node.counts), bitmap, partial))
    return entries


class Rewriting:
    """One pass; make one, call `run` once.

    Args:
        nodes: where nodes are read.
        output: where nodes go.
        reducer: of this tree.
        operations: sorted, unique keys.
        clean: partitions whose rows go, before the operations.
        nodes_max: visit at most so many nodes per level; only without operations.
    """

    def __init__(
        self,
        nodes: Nodes,
        output: Output,
        reducer: Reducer,
        operations: Sequence[Operation],
        clean: int,
        nodes_max: int | None = None,
    ) -> None:
        assert nodes_max is None or not operations
        self._nodes = nodes
        self._output = output
        self._reducer = reducer
        self._operations = operations
        self._keys = [operation[0] for operation in operations]
        self._clean = clean
        self._nodes_max = nodes_max

    def run(self, root: Root) -> Root | None:
        """Return the new root; the old one if nothing changed."""
        top = self._descend(root)
        for height in range(root.height + 1):
            if height:
                for visit in _level(top, height):
                    self._fold(visit)
            self._arrange(top, height)
            self._write(_level(top, height))
        pieces = top.touched.get(0)
        for height in range(1, root.height + 2):
            for visit in _level(top, height):
                visit.touched = {}  # no cycles are left behind
        if pieces is None or (len(pieces) == 1 and pieces[0].number):
            return root
        entries = [piece.entry for piece in pieces if piece.entry]
        return grown(entries, root.height, self._reducer, self._output, self._nodes)

    # ---- down

    def _descend(self, root: Root) -> _Visit:
        above = InnerNode([b""], [root.number], [root.count], [root.partitions], [root.partial], 0)
        top = _Visit(None, 0, root.height + 1, 0, above)
        top.work = (0, len(self._operations))
        level = [top]
        for _ in range(root.height):
            level = list(self._children(level))
        ready: list[_Visit] = []
        size = 0
        for leaf in self._children(level):
            self._edit(leaf)
            if not leaf.number and leaf.node is not None and not is_amiss(leaf.node):
                ready.append(leaf)
                size += leaf.node.size
                if len(ready) == LEAVES_TOGETHER_MAX or size >= LEAVES_TOGETHER_BYTES_MAX:
                    self._write(ready)
                    ready.clear()
                    size = 0
        self._write(ready)
        return top

    def _children(self, level: list[_Visit]) -> Iterator[_Visit]:
        """Visit the children with work."""
        count = 0
        for visit in level:
            for slot, work in self._slots_with_work(visit):
                if count == self._nodes_max:
                    return
                yield self._begun(visit, slot, work)
                count += 1

    def _slots_with_work(self, visit: _Visit) -> list[tuple[int, tuple[int, int]]]:
        node = visit.node
        assert isinstance(node, InnerNode)
        work: dict[int, tuple[int, int]] = {}
        keys, lasts = self._keys, node.lasts
        at, end = visit.work
        slot, final = 0, len(lasts) - 1
        while at < end:
            slot = min(bisect_left(lasts, keys[at], slot), final)
            begin = at
            at = end if slot == final else bisect_right(keys, lasts[slot], at, end)
            work[slot] = (begin, at)
        if clean := self._clean:
            for slot, bitmap in enumerate(node.sets):
                if bitmap & clean and slot not in work:
                    work[slot] = (0, 0)
            return sorted(work.items())
        return list(work.items())

    def _begun(self, parent: _Visit, slot: int, work: tuple[int, int]) -> _Visit:
        above = parent.node
        assert isinstance(above, InnerNode)
        if parent.height > 1 or above.sets[slot] & ~self._clean:
            visit = self._visited(parent, slot)
        else:
            visit = _Visit(parent, slot, 0, above.numbers[slot])
            self._change(visit, b"", None)
            parent.touched[slot] = [visit]
        visit.work = work
        return visit

    def _visited(self, parent: _Visit, slot: int) -> _Visit:
        above = parent.node
        assert isinstance(above, InnerNode)
        number, height = above.numbers[slot], parent.height - 1
        node = self._nodes.inner(number) if height else self._nodes.leaf(number)
        visit = _Visit(parent, slot, height, number, node)
        visit.bitmap = above.sets[slot]
        parent.touched[slot] = [visit]
        return visit

    def _change(self, visit: _Visit, body: bytes, node: LeafNode | InnerNode | None) -> None:
        if visit.entry is not None:  # written too early: a neighbour joins it
            self._output.free(visit.entry[1])
            visit.entry = None
        elif visit.number:
            self._output.free(visit.number)
            visit.number = 0
        visit.body, visit.node = body, node

    # ---- leaves

    def _edit(self, visit: _Visit) -> None:
        node = visit.node
        assert not isinstance(node, InnerNode)
        begin, end = visit.work
        after = edited(node, visit.bitmap, self._operations[begin:end], self._clean)
        if after is None:
            return
        leaf, visit.bitmap = after
        if leaf.keys:
            self._change(visit, *leaf_body(*leaf))
        else:
            self._change(visit, b"", None)

    # ---- inner nodes

    def _fold(self, visit: _Visit) -> None:
        """Bring what became of the children into the node."""
        node = visit.node
        assert isinstance(node, InnerNode)
        columns: list[list[Any]] | None = None
        for slot, pieces in sorted(visit.touched.items(), reverse=True):
            if len(pieces) == 1 and pieces[0].number:
                continue
            if columns is None:
                columns = [column.copy() for column in _columns(node)]
            entries = [piece.entry for piece in pieces if piece.entry]
            if len(entries) == 1:
                for column, field in zip(columns, entries[0], strict=True):
                    column[slot] = field
            else:
                for column, fields in zip(columns, _turned(entries), strict=True):
                    column[slot : slot + 1] = fields
        if columns is None:
            return
        if columns[0]:
            self._change(visit, *inner_body(*columns))
        else:
            self._change(visit, b"", None)

    # ---- cutting and joining

    def _arrange(self, top: _Visit, height: int) -> None:
        changed = [visit for visit in _level(top, height) if not visit.number]
        amiss = [
            visit
            for visit in changed
            if visit.entry is None and (visit.node is None or is_amiss(visit.node))
        ]
        for visit in amiss:
            if visit.node is not None and is_overfull(visit.node):
                self._cut(visit)
        if any(visit.node is None for visit in amiss):
            amiss += self._drop_empty(_level(top, height))
        for visit in amiss:
            for piece in [*_touched(visit)]:  # joining takes some away
                self._settle(piece)

    def _cut(self, visit: _Visit) -> None:
        node, parent = visit.node, visit.parent
        assert node is not None
        assert parent is not None
        pieces: list[_Visit] = []
        begin = 0
        for end in _cuts_of(node):
            piece = _Visit(parent, visit.slot, visit.height)
            if isinstance(node, LeafNode):
                rows_of = node.partitions[begin:end]
                piece.body, piece.node = leaf_body(
                    node.keys[begin:end], node.values[begin:end], rows_of
                )
                piece.bitmap = set_of(rows_of)
            else:
                columns = [column[begin:end] for column in _columns(node)]
                piece.body, piece.node = inner_body(*columns)
            pieces.append(piece)
            begin = end
        parent.touched[visit.slot] = pieces

    def _drop_empty(self, level: list[_Visit]) -> list[_Visit]:
        """Take empty nodes away; return the nodes right of them, which got a new neighbour."""
        beside: list[_Visit] = []
        for at, visit in enumerate(level):
            if visit.is_empty:
                after = level[at + 1] if at + 1 < len(level) else None
                if after is None or not _is_next(visit, after):
                    after = self._neighbour(visit, 1)
                if after is not None:
                    beside.append(after)
        for visit in level:
            if visit.is_empty:
                _touched(visit).remove(visit)
        return beside

    def _settle(self, visit: _Visit) -> None:
        """Join an underfull node with its neighbours as long as they fit."""
        while visit.node is not None and is_underfull(visit.node):
            for step in (1, -1):
                other = self._neighbour(visit, step)
                if other is None:
                    continue
                if other.entry is not None:
                    other.node = self._nodes.leaf(other.entry[1])
                if other.node is not None and fit_together(visit.node, other.node):
                    self._join(visit, other, step)
                    break
            else:
                return

    def _join(self, visit: _Visit, other: _Visit, step: int) -> None:
        first, second = (visit.node, other.node) if step > 0 else (other.node, visit.node)
        if isinstance(first, LeafNode) and isinstance(second, LeafNode):
            rows_of: Sequence[int] = [*first.partitions, *second.partitions]
            joined: tuple[bytes, LeafNode | InnerNode] = leaf_body(
                first.keys + second.keys, first.values + second.values, rows_of
            )
            visit.bitmap |= other.bitmap
        else:
            assert isinstance(first, InnerNode)
            assert isinstance(second, InnerNode)
            columns = [a + b for a, b in zip(_columns(first), _columns(second), strict=True)]
            joined = inner_body(*columns)
        self._change(visit, *joined)
        self._change(other, b"", None)
        _touched(other).remove(other)

    def _neighbour(self, visit: _Visit, step: int) -> _Visit | None:
        """Return the node before (-1) or after (1) this one on its level, visited if need be."""
        parent, slot = visit.parent, visit.slot
        if parent is None:
            return None
        pieces = parent.touched[slot]
        at = pieces.index(visit) + step
        if 0 <= at < len(pieces):
            return pieces[at]
        slot += step
        while True:
            above = parent.node
            assert isinstance(above, InnerNode)
            while 0 <= slot < len(above.numbers):
                known = parent.touched.get(slot)
                if known is None:
                    return self._visited(parent, slot)
                if known:
                    return known[0 if step > 0 else -1]
                slot += step
            parent = self._neighbour(parent, step)
            if parent is None:
                return None
            assert isinstance(parent.node, InnerNode)
            slot = 0 if step > 0 else len(parent.node.numbers) - 1

    # ---- writing

    def _write(self, level: list[_Visit]) -> None:
        changed = [visit for visit in level if not visit.number and visit.entry is None]
        leaves = [
            (visit.body, visit.node, visit.bitmap)
            for visit in changed
            if isinstance(visit.node, LeafNode)
        ]
        inners = [
            (visit.body, visit.node) for visit in changed if isinstance(visit.node, InnerNode)
        ]
        entries = write_leaves(leaves, self._reducer, self._output)
        entries += write_inners(inners, self._reducer, self._output)
        for visit, entry in zip(changed, entries, strict=True):
            visit.entry = entry
            visit.node, visit.body = None, b""


def grown(
    entries: list[Entry], height: int, reducer: Reducer, output: Output, nodes: Nodes
) -> Root | None:
    """Return the root over nodes of one level, with as many levels as it takes, or fewer."""
    while len(entries) > 1:
        entries = write_inners(inner_pieces(entries), reducer, output)
        height += 1
    if not entries:
        return None
    _, number, count, partitions, partial = entries[0]
    while height and len((node := nodes.inner(number)).numbers) == 1:
        output.free(number)
        number, partial = node.numbers[0], node.partials[0]
        height -= 1
    return Root(number, height, count, partitions, partial)


def inner_pieces(
    entries: Sequence[Entry], *, is_load: bool = False
) -> list[tuple[bytes, InnerNode]]:
    """Return inner nodes over these children."""
    columns = _turned(entries)
    lasts, _, _, sets, partials = columns
    pieces, begin = [], 0
    for end in cuts_of_inner(lasts, sets, partials, is_load=is_load):
        pieces.append(inner_body(*(column[begin:end] for column in columns)))
        begin = end
    return pieces


def _level(top: _Visit, height: int) -> list[_Visit]:
    level = [top]
    for _ in range(height, top.height):
        level = [
            piece
            for visit in level
            for _, pieces in sorted(visit.touched.items())
            for piece in pieces
        ]
    return level


def _columns(node: InnerNode) -> list[list[Any]]:
    return list(node[:5])


def _turned(entries: Sequence[Entry]) -> list[list[Any]]:
    """Return the entries as five columns."""
    return [list(column) for column in zip(*entries, strict=True)] or [[], [], [], [], []]


def _touched(visit: _Visit) -> list[_Visit]:
    assert visit.parent is not None
    return visit.parent.touched[visit.slot]


def _is_next(visit: _Visit, after: _Visit) -> bool:
    """Whether two visits of one level, the second one later, are adjacent."""
    parent, above = visit.parent, after.parent
    if parent is above or parent is None or above is None:
        return after.slot - visit.slot <= 1
    assert isinstance(parent.node, InnerNode)
    is_at_edge = visit.slot == len(parent.node.numbers) - 1 and after.slot == 0
    return is_at_edge and _is_next(parent, above)


def _cuts_of(node: LeafNode | InnerNode) -> list[int]:
    if isinstance(node, LeafNode):
        is_wide = not isinstance(node.partitions, bytes)
        return cuts_of_leaf(node.keys, node.values, is_wide=is_wide, is_load=False)
    return cuts_of_inner(node.lasts, node.sets, node.partials, is_load=False)
