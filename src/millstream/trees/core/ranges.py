"""Which children and rows of a node a range of keys and a mask touch.

Elsewhere: the walks (`reader`, `grouping`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from millstream.trees.core.masks import Mask
from millstream.trees.core.nodes import LeafNode
from millstream.trees.core.shapes import Bound, Leaf

__all__ = ["high_below", "mask_below", "parted", "rows_in", "slice_of", "slots_in"]


def slots_in(lasts: list[bytes], low: Bound | None, high: Bound | None) -> range:
    """Return the children that may have keys of the range; only the outer two may have others."""
    begin, end = 0, len(lasts)
    if low is not None:
        begin = (bisect_left if low[1] else bisect_right)(lasts, low[0])
    if high is not None:
        end = min(end, bisect_left(lasts, high[0]) + 1)
    return range(begin, end)


def high_below(last: bytes, high: Bound | None) -> Bound | None:
    """Return the upper bound for the range's last child; None: all its keys are below."""
    if high is None or last < high[0] or (last == high[0] and high[1]):
        return None
    return high


def parted(
    lasts: list[bytes], low: Bound | None, high: Bound | None
) -> tuple[int | None, range, int | None]:
    """Part the children of a range: one cut by its lower bound, whole ones, one cut by its upper.

    A child cut by both is the first; then the last is None and nothing is whole.
    """
    slots = slots_in(lasts, low, high)
    if not slots:
        return None, slots, None
    begin, end = slots.start, slots.stop
    is_cut = high_below(lasts[end - 1], high) is not None
    if low is None:
        return None, range(begin, end - is_cut), end - 1 if is_cut else None
    if end - begin == 1:
        return begin, range(0), None
    return begin, range(begin + 1, end - is_cut), end - 1 if is_cut else None


def rows_in(keys: list[bytes], low: Bound | None, high: Bound | None) -> tuple[int, int]:
    """Return where in these keys the range begins and ends."""
    begin, end = 0, len(keys)
    if low is not None:
        begin = (bisect_left if low[1] else bisect_right)(keys, low[0])
    if high is not None:
        end = (bisect_right if high[1] else bisect_left)(keys, high[0])
    return begin, max(begin, end)


def mask_below(mask: Mask | None, partitions: int) -> tuple[bool, Mask | None]:
    """Return whether anything of a child is wanted, and what to filter its rows by: None: all."""
    if mask is None:
        return True, None
    wanted = mask.partitions
    return bool(partitions & wanted), mask if partitions & ~wanted else None


def slice_of(
    node: LeafNode, low: Bound | None, high: Bound | None, mask: Mask | None
) -> Leaf | None:
    """Return the rows of a leaf that are in the range and wanted; None if there are none."""
    keys, values, partitions, _ = node
    begin, end = rows_in(keys, low, high)
    if end - begin < len(keys):
        keys, values = keys[begin:end], values[begin:end]
        partitions = partitions[begin:end]
    leaf = Leaf(keys, values, partitions)
    if mask is not None:
        leaf = mask.take(leaf)
    return leaf if leaf.keys else None
