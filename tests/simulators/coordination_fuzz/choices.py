"""Decisions taken out of bytes, so that whoever makes the bytes decides what a run does.

Invariants:
1. The same bytes give the same decisions. At their end every decision is the first there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["Choices"]

T = TypeVar("T")


class Choices:
    """Reads decisions, one behind the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to decide by."""
        return self._at >= len(self._data)

    def number(self, most: int) -> int:
        """Return a number from 0 to `most`."""
        size = (most.bit_length() + 7) // 8
        text = self.text(size)
        return int.from_bytes(text, "big") % (most + 1)

    def text(self, size: int) -> bytes:
        """Return the next bytes as they are, fewer at the end."""
        text = self._data[self._at : self._at + size]
        self._at += size
        return text

    def pick(self, those: Sequence[T]) -> T:
        """Return one of them."""
        return those[self.number(len(those) - 1)]

    def one_in(self, many: int) -> bool:
        """Return True as rarely as that."""
        return self.number(many - 1) == 1 % many
