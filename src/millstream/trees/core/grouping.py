"""Reducing what a walk over a tree finds: one partial for all, or one for each group of keys.

Invariants:
1. Partials are rereduced in key order, whatever the order of the walk.
2. The reducer is called with many leaves or groups at a time: at most `LEAVES_PER_CALL_MAX`
   leaves and `PARTIALS_WAITING_MAX` partials of one group wait.
3. A child all of whose keys are of one group is used by its partial. That is known where the
   last key of the child before it and its own last key are of the same group.

Elsewhere: ranges and masks (`ranges`), who calls (`reader`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from millstream.trees.core.masks import Mask
from millstream.trees.core.nodes import InnerNode, LeafNode, Nodes
from millstream.trees.core.packing import LEAVES_TOGETHER_BYTES_MAX
from millstream.trees.core.ranges import high_below, mask_below, slice_of, slots_in
from millstream.trees.core.rewriting import LEAVES_PER_CALL_MAX
from millstream.trees.core.shapes import Bound, Leaf, Reducer, Root

__all__ = ["PARTIALS_WAITING_MAX", "ROWS_TOGETHER_MAX", "GroupWalk", "Partials"]

PARTIALS_WAITING_MAX: Final = 1024
"""Partials of one group after which they are made one."""
ROWS_TOGETHER_MAX: Final = 4096
"""Rows of leaves that are filtered as one."""
_LEAF_BYTES: Final = LEAVES_TOGETHER_BYTES_MAX // LEAVES_PER_CALL_MAX
_GROUPS_AT_FIRST: Final = 16

Part = bytes | Leaf


class Partials:
    """Rows and partials of one range, in key order.

    Rows of leaves that follow one another are filtered together, which costs a fraction of
    filtering each.
    """

    __slots__ = (
        "_bytes",
        "_keys",
        "_leaves",
        "_mask",
        "_partitions",
        "_parts",
        "_reducer",
        "_values",
    )

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._parts: list[Part] = []
        self._leaves = 0
        self._mask: Mask | None = None
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._partitions: bytearray | list[int] = bytearray()
        self._bytes = 0

    def add_rows(
        self, node: LeafNode, low: Bound | None, high: Bound | None, mask: Mask | None
    ) -> None:
        """Take what is wanted of the next leaf."""
        if mask is None or low is not None or high is not None:
            if (leaf := slice_of(node, low, high, mask)) is not None:
                self._add(leaf, node.size)
            return
        if type(node.partitions) is not bytes and type(self._partitions) is bytearray:
            self._partitions = [*self._partitions]
        self._keys += node.keys
        self._values += node.values
        self._partitions.extend(node.partitions)
        self._mask = mask
        self._bytes += node.size
        if len(self._keys) >= ROWS_TOGETHER_MAX or self._bytes >= LEAVES_TOGETHER_BYTES_MAX:
            self._filter()

    def extend(self, partials: list[bytes]) -> None:
        """Take the next partials."""
        if self._mask is not None:
            self._filter()
        self._parts += partials
        if len(self._parts) >= PARTIALS_WAITING_MAX:
            self._shorten()

    def result(self) -> bytes | None:
        """Return the partial of all; None if there was nothing."""
        if self._mask is not None:
            self._filter()
        return reduced([self._parts], self._reducer)[0] if self._parts else None

    def _filter(self) -> None:
        assert self._mask is not None
        rows_of = self._partitions
        partitions = bytes(rows_of) if type(rows_of) is bytearray else rows_of
        leaf = self._mask.take(Leaf(self._keys, self._values, partitions))
        self._mask = None
        size, self._bytes = self._bytes, 0
        self._keys, self._values, self._partitions = [], [], bytearray()
        if leaf.keys:
            self._add(leaf, size)

    def _add(self, leaf: Leaf, size: int) -> None:
        if self._mask is not None:
            self._filter()
        self._parts.append(leaf)
        self._leaves += 1 + size // _LEAF_BYTES
        if self._leaves >= LEAVES_PER_CALL_MAX:
            self._shorten()

    def _shorten(self) -> None:
        self._parts, self._leaves = [*reduced([self._parts], self._reducer)], 0


def reduced(groups: list[list[Part]], reducer: Reducer) -> list[bytes]:
    """Return one partial per group of leaves and partials in key order: two calls at most."""
    leaves = [part for parts in groups for part in parts if type(part) is Leaf]
    done = iter(reducer.reduce(leaves) if leaves else ())
    partials = [
        [part if type(part) is bytes else next(done) for part in parts] for parts in groups
    ]
    several = [parts for parts in partials if len(parts) > 1]
    rereduced = iter(reducer.rereduce(several) if several else ())
    return [next(rereduced) if len(parts) > 1 else parts[0] for parts in partials]


class _Group:
    __slots__ = ("first", "leaves", "name", "parts")

    def __init__(self, name: bytes, first: tuple[bytes, bytes]) -> None:
        self.name = name
        self.first = first
        self.parts: list[Part] = []
        self.leaves = 0  # among the parts; a large one counts for several


class GroupWalk:
    """One walk over a range, group by group; make one, call `run` once."""

    def __init__(
        self,
        nodes: Nodes,
        reducer: Reducer,
        group_of: Callable[[bytes], bytes],
        descending: bool,
        filtered: Callable[[InnerNode, range, int, Mask], list[bytes]] | None = None,
        is_doubtful: Callable[[bytes], bool] = lambda partial: False,
    ) -> None:
        self._filtered = filtered
        self._is_doubtful = is_doubtful
        self._nodes = nodes
        self._reducer = reducer
        self._group_of = group_of
        self._descending = descending
        self._waiting: list[_Group] = []  # the last one may get more
        self._leaves = 0
        self._groups_at_once = _GROUPS_AT_FIRST

    def run(
        self, root: Root, low: Bound | None, high: Bound | None, mask: Mask | None
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield (first key, its value, partial) of each group."""
        for _ in self._walk(root.number, root.height, low, high, mask, None):
            closed = len(self._waiting) - 1
            is_heavy = self._leaves >= LEAVES_PER_CALL_MAX
            if closed >= self._groups_at_once or (is_heavy and closed):
                groups = self._waiting[:-1]
                del self._waiting[:-1]
                yield from self._finished(groups)
                self._groups_at_once = min(2 * self._groups_at_once, LEAVES_PER_CALL_MAX)
            if self._leaves >= LEAVES_PER_CALL_MAX:
                self._shorten()
        yield from self._finished(self._waiting)

    def _walk(
        self,
        number: int,
        height: int,
        low: Bound | None,
        high: Bound | None,
        mask: Mask | None,
        before: bytes | None,
    ) -> Iterator[None]:
        """Collect a subtree, after the key `before`; a turn after each leaf or partial."""
        if not height:
            node = self._nodes.leaf(number)
            leaf = slice_of(node, low, high, mask)
            if leaf is not None:
                self._add_leaf(leaf, node.size // _LEAF_BYTES)
                yield
            return
        inner = self._nodes.inner(number)
        slots = slots_in(inner.lasts, low, high)
        for slot in reversed(slots) if self._descending else slots:
            is_wanted, below = mask_below(mask, inner.sets[slot])
            if not is_wanted:
                continue
            from_low = low if slot == slots[0] else None
            to_high = high_below(inner.lasts[slot], high) if slot == slots[-1] else None
            child, ahead = inner.numbers[slot], inner.lasts[slot - 1] if slot else before
            if from_low is None and to_high is None and ahead is not None:
                name = self._group_of(inner.lasts[slot])
                if name == self._group_of(ahead):
                    if below is None and not self._is_doubtful(inner.partials[slot]):
                        self._add_child(name, child, height - 1, inner.partials[slot])
                        yield
                        continue
                    # The first wanted row of a group is known once the group is here.
                    is_here = self._waiting and self._waiting[-1].name == name
                    if is_here and self._filtered is not None and below is not None:
                        one = range(slot, slot + 1)
                        self._add_parts(self._filtered(inner, one, height - 1, below))
                        yield
                        continue
            yield from self._walk(child, height - 1, from_low, to_high, below, ahead)

    def _add_child(self, name: bytes, number: int, height: int, partial: bytes) -> None:
        if not self._waiting or self._waiting[-1].name != name:
            self._waiting.append(_Group(name, self._edge(number, height)))
        self._add_parts([partial])

    def _add_parts(self, partials: list[bytes]) -> None:
        parts = self._waiting[-1].parts
        parts += partials
        if len(parts) >= PARTIALS_WAITING_MAX:
            self._shorten()

    def _edge(self, number: int, height: int) -> tuple[bytes, bytes]:
        """Return the row of a subtree that the walk meets first."""
        at = -1 if self._descending else 0
        while height:
            number = self._nodes.inner(number).numbers[at]
            height -= 1
        leaf = self._nodes.leaf(number)
        return leaf.keys[at], leaf.values[at]

    def _add_leaf(self, leaf: Leaf, more: int) -> None:
        keys, values, partitions = leaf
        names = list(map(self._group_of, keys)) if len(keys) > 2 else []
        first, last = self._group_of(keys[0]), self._group_of(keys[-1])
        runs = [(first, 0, len(keys))] if first == last else list(_runs(names or [first, last]))
        for name, begin, end in reversed(runs) if self._descending else runs:
            at = end - 1 if self._descending else begin
            if not self._waiting or self._waiting[-1].name != name:
                self._waiting.append(_Group(name, (keys[at], values[at])))
            part = Leaf(keys[begin:end], values[begin:end], partitions[begin:end])
            self._waiting[-1].parts.append(part)
            self._waiting[-1].leaves += 1
        self._waiting[-1].leaves += more
        self._leaves += len(runs) + more

    def _shorten(self) -> None:
        """Make what waits partials, one per group."""
        for group, partial in zip(self._waiting, self._partials(self._waiting), strict=True):
            group.parts, group.leaves = [partial], 0
        self._leaves = 0

    def _finished(self, groups: list[_Group]) -> Iterator[tuple[bytes, bytes, bytes]]:
        for group, partial in zip(groups, self._partials(groups), strict=True):
            yield *group.first, partial
        self._leaves = sum(group.leaves for group in self._waiting)

    def _partials(self, groups: list[_Group]) -> list[bytes]:
        if self._descending:
            return reduced([group.parts[::-1] for group in groups], self._reducer)
        return reduced([group.parts for group in groups], self._reducer)


def _runs(names: list[bytes]) -> Iterator[tuple[bytes, int, int]]:
    begin = 0
    for at in range(1, len(names) + 1):
        if at == len(names) or names[at] != names[begin]:
            yield names[begin], begin, at
            begin = at
