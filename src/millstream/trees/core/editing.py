"""What a leaf becomes by its operations: the innermost loop of a change.

Invariants:
1. The leaf that was read does not change.
2. Operations that leave everything as it is give None.

Elsewhere: which operations are a leaf's (`rewriting`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from millstream.trees.core.masks import Mask
from millstream.trees.core.nodes import LeafNode, set_of
from millstream.trees.core.shapes import Leaf, Operation

__all__ = ["edited"]

_LOOKED_FOR_MAX: Final = 4
"""Partitions looked for one by one in a leaf, before its rows are looked through."""
_NARROW_MAX: Final = 255


def edited(
    node: LeafNode | None, bitmap: int, operations: Sequence[Operation], clean: int
) -> tuple[Leaf, int] | None:
    """Return the rows afterwards, and the bitmap of their partitions; None if they are the same.

    Args:
        node: rows; None: no rows.
        bitmap: of their partitions.
        operations: sorted by key, each key once; they come after cleaning.
        clean: partitions whose rows go.
    """
    leaf = Leaf([], [], b"") if node is None else Leaf(*node[:3])
    is_clean = not bitmap & clean
    if not is_clean:
        leaf, bitmap = Mask(~clean & bitmap).take(leaf), bitmap & ~clean
    values = leaf.values.copy()
    keys, rows_of = leaf.keys, leaf.partitions
    partitions: bytearray | list[int] | None = None  # with the keys, copied when they change
    is_changed = not is_clean
    gone: set[int] = set()
    at = 0
    for key, partition, value in operations:
        at = bisect_left(keys, key, at)
        is_here = at < len(keys) and keys[at] == key
        if is_here and value is not None and rows_of[at] == partition:
            is_changed = is_changed or values[at] != value
            values[at] = value
            continue
        if not is_here and value is None:
            continue
        is_changed = True
        if partitions is None:
            keys = keys.copy()
            rows_of = partitions = bytearray(rows_of) if type(rows_of) is bytes else [*rows_of]
        if partition > _NARROW_MAX and type(partitions) is bytearray:
            rows_of = partitions = [*partitions]
        if is_here:
            gone.add(partitions[at])
        if value is None:
            del keys[at], values[at], partitions[at]
            continue
        bitmap |= 1 << partition
        if is_here:
            values[at], partitions[at] = value, partition
        else:
            keys.insert(at, key)
            values.insert(at, value)
            partitions.insert(at, partition)
    if not is_changed:
        return None
    if len(gone) > _LOOKED_FOR_MAX:
        bitmap = set_of(rows_of)
    else:
        for partition in gone:
            if partition not in rows_of:
                bitmap &= ~(1 << partition)
    return Leaf(keys, values, bytes(rows_of) if type(rows_of) is bytearray else rows_of), bitmap
