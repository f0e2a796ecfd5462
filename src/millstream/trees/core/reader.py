"""Reading one root of a tree: rows by key, ranges of rows, counts, reductions, groups.

Costs, with n rows: a key, a count and a reduction of a range are O(log n) where the partitions
wanted are all that a subtree has, or none of them; a subtree that mixes both is read whole, once
for a mask where what was found is kept (`filtered`). Rows cost O(log n) and what is returned. A
subtree whose partial is in doubt is read as one that mixes both.

Invariants:
1. What is read is one root, whatever is written meanwhile, as long as its nodes are kept.
2. At most `LEAVES_PER_CALL_MAX` leaves wait for the reducer.
3. A node's height comes from the root, so damaged numbers cannot make a read endless.

Elsewhere: groups (`grouping`), decoded nodes (`nodes`), what is kept of subtrees (`filtered`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from millstream.trees.core.columns import Columns
from millstream.trees.core.filtered import FilteredCache, Key, Kind
from millstream.trees.core.grouping import GroupWalk, Partials
from millstream.trees.core.masks import Mask
from millstream.trees.core.nodes import CommitNodes, InnerNode, NodeCache, Nodes
from millstream.trees.core.packing import LEAVES_TOGETHER_BYTES_MAX
from millstream.trees.core.ranges import (
    high_below,
    mask_below,
    parted,
    rows_in,
    slice_of,
    slots_in,
)
from millstream.trees.core.shapes import (
    NO_REDUCER,
    Bound,
    Doubter,
    Leaf,
    NodeSource,
    Reducer,
    Root,
)

__all__ = ["TreeReader"]

_COUNT: Final[Kind] = -1


class TreeReader:
    """One root.

    Args:
        source: where the nodes are.
        root: None: an empty tree.
        cache: decoded nodes, shared by all readers of all trees that share their numbers.
        reducer: that of the tree; needed for `reduce` and `groups`.
        filtered: what subtrees come to under masks, shared as the cache is; None: not kept.
        kind: number of this reducer in `filtered`, 0 and up: the same number, the same partials.
        doubter: which partials are not to be believed; None: all are.
        columns: of this reducer, where it makes some; needs `filtered`.
    """

    __slots__ = ("_columns", "_doubter", "_filtered", "_kind", "_nodes", "_reducer", "_root")

    def __init__(
        self,
        source: NodeSource,
        root: Root | None,
        cache: NodeCache | CommitNodes | None = None,
        reducer: Reducer = NO_REDUCER,
        filtered: FilteredCache | None = None,
        kind: Kind = 0,
        doubter: Doubter | None = None,
        columns: Columns | None = None,
    ) -> None:
        self._nodes = Nodes(source, cache)
        self._root = root
        self._reducer = reducer
        self._filtered = filtered
        self._kind = kind
        self._doubter = doubter
        fits = columns is not None and root is not None and columns.fit(root.count) and not doubter
        self._columns = columns if fits else None

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values of those of these sorted keys that are in the tree.

        Raises:
            CorruptionError: here as in all methods, when a node is damaged or missing.
        """
        found: dict[bytes, bytes] = {}
        if self._root is not None and keys:
            self._get(self._root.number, self._root.height, keys, found)
        return found

    def _get(
        self, number: int, height: int, keys: Sequence[bytes], found: dict[bytes, bytes]
    ) -> None:
        if not height:
            leaf = self._nodes.leaf(number)
            at = 0
            for key in keys:
                at = bisect_left(leaf.keys, key, at)
                if at < len(leaf.keys) and leaf.keys[at] == key:
                    found[key] = leaf.values[at]
            return
        inner = self._nodes.inner(number)
        at, slot = 0, 0
        while at < len(keys):
            slot = bisect_left(inner.lasts, keys[at], slot)
            if slot == len(inner.lasts):
                return
            end = bisect_right(keys, inner.lasts[slot], at)
            self._get(inner.numbers[slot], height - 1, keys[at:end], found)
            at = end

    def scan(
        self,
        low: Bound | None = None,
        high: Bound | None = None,
        *,
        descending: bool = False,
        wanted: int | None = None,
        skip: int = 0,
    ) -> Iterator[Leaf]:
        """Yield the rows of a range, some at a time.

        Args:
            low: None: from the first row on.
            high: None: to the last row.
            descending: from high to low; every leaf's lists are reversed, too.
            wanted: bitmap of partitions; None: all.
            skip: so many rows of them are left out at the beginning, by counts.
        """
        if self._root is None:
            return
        mask = self._mask(wanted)
        left_out = [skip]
        walk = self._scan(
            self._root.number, self._root.height, low, high, mask, descending, left_out
        )
        for leaf in walk:
            if descending:
                leaf = Leaf(leaf.keys[::-1], leaf.values[::-1], leaf.partitions[::-1])
            if skip := left_out[0]:
                left_out[0] = max(0, skip - len(leaf.keys))
                leaf = Leaf(leaf.keys[skip:], leaf.values[skip:], leaf.partitions[skip:])
            if leaf.keys:
                yield leaf

    def _scan(
        self,
        number: int,
        height: int,
        low: Bound | None,
        high: Bound | None,
        mask: Mask | None,
        descending: bool,
        left_out: list[int],
    ) -> Iterator[Leaf]:
        if not height:
            if (leaf := slice_of(self._nodes.leaf(number), low, high, mask)) is not None:
                yield leaf
            return
        inner = self._nodes.inner(number)
        slots = slots_in(inner.lasts, low, high)
        for slot in reversed(slots) if descending else slots:
            is_wanted, below = mask_below(mask, inner.sets[slot])
            if not is_wanted:
                continue
            from_low = low if slot == slots[0] else None
            to_high = high_below(inner.lasts[slot], high) if slot == slots[-1] else None
            if left_out[0] and from_low is None and to_high is None:
                count = self._whole_count(inner, slot, height - 1, below)
                if count is not None and count <= left_out[0]:
                    left_out[0] -= count
                    continue
            yield from self._scan(
                inner.numbers[slot], height - 1, from_low, to_high, below, descending, left_out
            )

    def _whole_count(
        self, inner: InnerNode, slot: int, height: int, mask: Mask | None
    ) -> int | None:
        """Return how many rows of a child are wanted; None: it has to be read to know."""
        if mask is None:
            return inner.counts[slot]
        if not height or self._filtered is None:
            return None
        return self._filtered_count(inner, slot, height, mask)

    def count(
        self, low: Bound | None = None, high: Bound | None = None, wanted: int | None = None
    ) -> int:
        """Return the number of rows in a range."""
        if self._root is None:
            return 0
        mask = self._mask(wanted)
        if mask is None and low is None and high is None:
            return self._root.count
        return self._count(self._root.number, self._root.height, low, high, mask)

    def _count(
        self, number: int, height: int, low: Bound | None, high: Bound | None, mask: Mask | None
    ) -> int:
        if not height:
            leaf = self._nodes.leaf(number)
            begin, end = rows_in(leaf.keys, low, high)
            if mask is None:
                return end - begin
            return mask.flags(leaf.partitions).count(1, begin, end)
        inner = self._nodes.inner(number)
        first, whole, last = parted(inner.lasts, low, high)
        total = 0
        for slot, bound in ((first, low), (last, None)):
            if slot is not None:
                to_high = high_below(inner.lasts[slot], high)
                total += self._count(inner.numbers[slot], height - 1, bound, to_high, mask)
        if mask is None:
            return total + sum(inner.counts[whole.start : whole.stop])
        wanted, unwanted = mask.partitions, ~mask.partitions
        for slot in whole:
            partitions = inner.sets[slot]
            if not partitions & unwanted:
                total += inner.counts[slot]
            elif partitions & wanted:
                total += self._filtered_count(inner, slot, height - 1, mask)
        return total

    def _filtered_count(self, inner: InnerNode, slot: int, height: int, mask: Mask) -> int:
        """Return how many rows of a mixed child are wanted, kept for the next time."""
        number = inner.numbers[slot]
        known = None if height or self._columns is None else self._columns.count(number, mask)
        if known is not None:
            return known
        if not height or self._filtered is None:
            return self._count(number, height, None, None, mask)
        key = (_COUNT, number, inner.sets[slot] & mask.partitions)
        found = self._filtered.get(key)
        if found is None:
            found = (self._count(number, height, None, None, mask),)
            self._filtered.put(key, *found)
        assert isinstance(found[0], int)
        return found[0]

    def reduce(
        self, low: Bound | None = None, high: Bound | None = None, wanted: int | None = None
    ) -> bytes | None:
        """Return the partial of all rows in a range; None if there are none."""
        if self._root is None:
            return None
        mask = self._mask(wanted)
        is_whole = mask is None and low is None and high is None
        if is_whole and not self._is_doubtful(self._root.partial):
            return self._root.partial
        partials = Partials(self._reducer)
        self._reduce(self._root.number, self._root.height, low, high, mask, partials)
        return partials.result()

    def _reduce(
        self,
        number: int,
        height: int,
        low: Bound | None,
        high: Bound | None,
        mask: Mask | None,
        partials: Partials,
    ) -> None:
        if not height:
            partials.add_rows(self._nodes.leaf(number), low, high, mask)
            return
        inner = self._nodes.inner(number)
        first, whole, last = parted(inner.lasts, low, high)
        if first is not None:
            to_high = high_below(inner.lasts[first], high)
            self._reduce(inner.numbers[first], height - 1, low, to_high, mask, partials)
        below = self._mask_of_whole(inner.partials[whole.start : whole.stop], mask)
        if below is None:
            partials.extend(inner.partials[whole.start : whole.stop])
        elif self._filtered is None:
            wanted, unwanted = below.partitions, ~below.partitions
            for slot in whole:
                partitions = inner.sets[slot]
                if not partitions & unwanted and not self._is_doubtful(inner.partials[slot]):
                    partials.extend(inner.partials[slot : slot + 1])
                elif partitions & wanted:
                    self._reduce(inner.numbers[slot], height - 1, None, None, below, partials)
        else:
            partials.extend(
                self._filtered_partials(self._filtered, inner, whole, height - 1, below)
            )
        if last is not None:
            self._reduce(inner.numbers[last], height - 1, None, high, mask, partials)

    def _mask_of_whole(self, found: list[bytes], mask: Mask | None) -> Mask | None:
        """Return how children with these partials are read; None: they are believed."""
        if mask is None and self._doubter is not None and any(map(self._is_doubtful, found)):
            assert self._root is not None
            return Mask(self._root.partitions)
        return mask

    def _is_doubtful(self, partial: bytes) -> bool:
        return self._doubter is not None and self._doubter.is_to_be_tried(partial)

    def _keep(self, filtered: FilteredCache, key: Key, part: bytes | None) -> None:
        if part is None or self._doubter is None or self._doubter.is_lasting(part):
            filtered.put(key, part)

    def _filtered_partials(
        self, filtered: FilteredCache, inner: InnerNode, slots: range, height: int, mask: Mask
    ) -> list[bytes]:
        """Return the partials of the wanted rows of these children, of those that have any."""
        if not height and self._columns is not None:
            return self._column_partials(self._columns, filtered, inner, slots, mask)
        return self._kept_partials(filtered, inner, slots, height, mask)

    def _column_partials(
        self,
        columns: Columns,
        filtered: FilteredCache,
        inner: InnerNode,
        slots: range,
        mask: Mask,
    ) -> list[bytes]:
        """Return the partials of leaves for a reducer that does not mind their order."""
        wanted, unwanted = mask.partitions, ~mask.partitions
        found: list[bytes] = []
        mixed: dict[int, int] = {}  # number -> slot
        for slot in slots:
            partitions = inner.sets[slot]
            if not partitions & unwanted:
                found.append(inner.partials[slot])
            elif partitions & wanted:
                mixed[inner.numbers[slot]] = slot
        if mixed:
            part, left = columns.reduced(self._nodes, list(mixed), mask)
            if part is not None:
                found.append(part)
            if left:
                others = [mixed[number] for number in left]
                found += self._kept_partials(filtered, inner, others, 0, mask)
        return found

    def _kept_partials(
        self,
        filtered: FilteredCache,
        inner: InnerNode,
        slots: Sequence[int],
        height: int,
        mask: Mask,
    ) -> list[bytes]:
        """Return the partials of children, kept for the next time."""
        wanted, unwanted = mask.partitions, ~mask.partitions
        found: list[bytes | None] = []
        mixed: list[tuple[int, Key]] = []
        for at, slot in enumerate(slots):
            number, partitions = inner.numbers[slot], inner.sets[slot]
            part: bytes | None = None
            if not partitions & unwanted and not self._is_doubtful(inner.partials[slot]):
                part = inner.partials[slot]
            elif partitions & wanted:
                key = (self._kind, number, partitions & wanted)
                if (kept := filtered.get(key)) is not None:
                    assert not isinstance(kept[0], int)
                    part = kept[0]
                elif height:
                    partials = Partials(self._reducer)
                    self._reduce(number, height, None, None, mask, partials)
                    part = partials.result()
                    self._keep(filtered, key, part)
                else:
                    mixed.append((at, key))
            found.append(part)
        if mixed:
            self._reduce_mixed(filtered, mixed, found, mask)
        return [part for part in found if part is not None]

    def _reduce_mixed(
        self,
        filtered: FilteredCache,
        mixed: list[tuple[int, Key]],
        found: list[bytes | None],
        mask: Mask,
    ) -> None:
        """Put the partials of the wanted rows of these leaves where they belong."""
        leaves: list[tuple[int, Key, Leaf]] = []
        size = 0
        for at, key in mixed:
            node = self._nodes.leaf(key[1])
            leaves.append((at, key, mask.take(node)))
            size += node.size
            if size >= LEAVES_TOGETHER_BYTES_MAX:
                self._reduce_leaves(filtered, leaves, found)
                size = 0
        self._reduce_leaves(filtered, leaves, found)

    def _reduce_leaves(
        self,
        filtered: FilteredCache,
        leaves: list[tuple[int, Key, Leaf]],
        found: list[bytes | None],
    ) -> None:
        """Put the partials of these leaves, none of them empty, where they belong."""
        parts = self._reducer.reduce([leaf for _, _, leaf in leaves]) if leaves else []
        for (at, key, _), part in zip(leaves, parts, strict=True):
            found[at] = part
            self._keep(filtered, key, part)
        leaves.clear()

    def prepare(self) -> None:
        """Make what questions for any set of partitions need, where there is room for it."""
        if self._columns is not None and self._root is not None:
            self._prepare(self._columns, self._root.number, self._root.height)

    def _prepare(self, columns: Columns, number: int, height: int) -> None:
        if not height:
            columns.prepare(self._nodes, [number])
            return
        numbers = self._nodes.inner(number).numbers
        if height == 1:
            columns.prepare(self._nodes, numbers)
            return
        for child in numbers:
            self._prepare(columns, child, height - 1)

    def groups(
        self,
        group_of: Callable[[bytes], bytes],
        low: Bound | None = None,
        high: Bound | None = None,
        *,
        wanted: int | None = None,
        descending: bool = False,
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield each group's first row met (key, value) and the partial of its rows.

        Args:
            group_of: a key's group; the keys of a group stand together.
            low: as in `scan`.
            high: as in `scan`.
            wanted: as in `scan`.
            descending: groups from high to low, and each one's first row is its highest.
        """
        if self._root is None:
            return
        mask = self._mask(wanted)
        kept = self._filtered
        walk = GroupWalk(
            self._nodes,
            self._reducer,
            group_of,
            descending,
            None if kept is None else partial(self._filtered_partials, kept),
            self._is_doubtful,
        )
        yield from walk.run(self._root, low, high, mask)

    def _mask(self, wanted: int | None) -> Mask | None:
        assert self._root is not None
        if wanted is None or not self._root.partitions & ~wanted:
            return None
        return Mask(wanted)
