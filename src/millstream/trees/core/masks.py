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

    __slots__ = ("_narrow", "_wide", "partitions")

    def __init__(self, partitions: int) -> None:
        flags = f"{partitions:b}"[::-1].encode().translate(_TO_FLAGS)
        self.partitions = partitions
        self._wide = flags.ljust(1 << 16, b"\x00")
        self._narrow = self._wide[:256]

    def flags(self, partitions: Sequence[int]) -> bytes:
        """Return one byte per row: 1 if it is wanted."""
        if isinstance(partitions, bytes):
            return partitions.translate(self._narrow)
        return bytes(map(self._wide.__getitem__, partitions))

    def take(self, leaf: LeafNode | Leaf) -> Leaf:
        """Return the wanted rows of a leaf."""
        flags = self.flags(leaf.partitions)
        partitions: Sequence[int] = list(compress(leaf.partitions, flags))
        if isinstance(leaf.partitions, bytes):
            partitions = bytes(partitions)
        return Leaf(
            list(compress(leaf.keys, flags)), list(compress(leaf.values, flags)), partitions
        )
