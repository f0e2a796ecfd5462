"""A set of partitions in the forms that loops over rows need.

Elsewhere: where it is applied (`reader`, `grouping`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from millstream.trees.core.nodes import LeafNode
from millstream.trees.core.shapes import Leaf

__all__ = ["Mask"]

_TO_FLAGS = bytes.maketrans(b"01", b"\x00\x01")


class Mask:
    """Which partitions are wanted.

    Args:
        partitions: bitmap.
    """

    __slots__ = ("_narrow", "_unwanted", "_wide", "partitions")

    def __init__(self, partitions: int) -> None:
        flags = f"{partitions:b}"[::-1].encode().translate(_TO_FLAGS)
        self.partitions = partitions
        self._wide = flags.ljust(1 << 16, b"\x00")
        self._narrow = self._wide[:256]
        self._unwanted = bytes(one for one in range(256) if not self._narrow[one])

    def flags(self, partitions: Sequence[int]) -> bytes:
        """Return one byte per row: 1 if it is wanted."""
        if isinstance(partitions, bytes):
            return partitions.translate(self._narrow)
        return bytes(map(self._wide.__getitem__, partitions))

    def take(self, leaf: LeafNode | Leaf) -> Leaf:
        """Return the wanted rows of a leaf."""
        flags = self.flags(leaf.partitions)
        partitions: Sequence[int]
        if isinstance(leaf.partitions, bytes):
            partitions = leaf.partitions.translate(None, self._unwanted)
        else:
            partitions = list(compress(leaf.partitions, flags))
        keys, values = compress(leaf.keys, flags), compress(leaf.values, flags)
        return Leaf(list(keys), list(values), partitions)
