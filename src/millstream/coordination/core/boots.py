"""Which process of a node is there: a number that tells it from all others of the node's id.

    31 bits: how many times the directory was started | 20 bits by chance | 12 bits

Invariants:
1. Each start has a higher number than the one before it of the same directory. Two starts of
   copies of one directory have other bits by chance, mostly, though as many starts were before.
2. Versions that counted alone began with 1 and added 1: their numbers are below all of these, and
   what they add to one of these is in the last bits.

Elsewhere: keeping it (`aio.node_file`), what nodes do about it (`pool_boots`).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["CHANCES", "Kin", "kin_of", "next_incarnation", "starts"]

_COUNT_SHIFT: Final = 32
_CHANCE_SHIFT: Final = 12
CHANCES: Final = 1 << (_COUNT_SHIFT - _CHANCE_SHIFT)
"""So many different numbers one start may have."""
_LAST: Final = (1 << _CHANCE_SHIFT) - 1


class Kin(Enum):
    """What a process is to the one that is known."""

    SAME = 0
    LATER = 1
    EARLIER = 2
    OTHER = 3
    """As many starts were before it, but not those: of its directory there are two."""


def starts(incarnation: int) -> int:
    """Return how many times the directory was started, this time included."""
    counted = incarnation >> _COUNT_SHIFT
    return counted + (incarnation & _LAST) if counted else incarnation


def next_incarnation(last: int, chance: int) -> int:
    """Return the number of the start after this one; 0: of the first one."""
    return ((starts(last) + 1) << _COUNT_SHIFT) | (chance % CHANCES) << _CHANCE_SHIFT


def kin_of(known: int, heard: int) -> Kin:
    """Return what the process that is heard is to the one that is known."""
    if known == heard:
        return Kin.SAME
    known_count, heard_count = _count(known), _count(heard)
    if known_count != heard_count:
        return Kin.LATER if heard_count > known_count else Kin.EARLIER
    if (known ^ heard) > _LAST:
        return Kin.OTHER
    return Kin.LATER if heard > known else Kin.EARLIER


def _count(incarnation: int) -> int:
    return incarnation >> _COUNT_SHIFT or incarnation
