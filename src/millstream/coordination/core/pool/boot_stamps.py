"""Which process of a node is there, and since when: a number that others remember.

    19 bits: starts of the directory | 12 bits by chance | 16 bits: mark before | 16 bits: mark

A *mark* is made durably now and then while a node works, so that a copy of its directory that was
made before is told from it also if nobody has started it in between; each start says from which
mark it came.

Invariants:
1. The number of a directory grows with each start and each mark. Two starts of copies of one
   directory have other bits by chance, mostly, though as many starts were before.
2. Versions that counted alone began with 1 and added 1: their numbers are below all of these, and
   what they add to one of these is in the last bits.

Elsewhere: keeping it (`aio.node_file`), what nodes do about it (`incarnations`).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["CHANCES", "Kin", "kin_of", "next_incarnation", "next_mark", "starts"]

_COUNT_SHIFT: Final = 44
_CHANCE_SHIFT: Final = 32
_BEFORE_SHIFT: Final = 16
CHANCES: Final = 1 << (_COUNT_SHIFT - _CHANCE_SHIFT)
"""How many different numbers one start may draw."""
_MARK: Final = (1 << _BEFORE_SHIFT) - 1


class Kin(Enum):
    """What a process is to the one that is known."""

    SAME = 0
    LATER = 1
    """It knows of that start, as far as can be told."""
    EARLIER = 2
    OTHER = 3
    """It had as many starts before, but different ones: there are two copies of its directory."""


def starts(incarnation: int) -> int:
    """Return how many times the directory was started, this time included."""
    return incarnation >> _COUNT_SHIFT or incarnation


def next_incarnation(last: int, chance: int) -> int:
    """Return the number of the start after this one; 0: of the first one."""
    before = last & _MARK if last >> _COUNT_SHIFT else 0
    chosen = (chance % CHANCES) << _CHANCE_SHIFT
    return ((starts(last) + 1) << _COUNT_SHIFT) | chosen | before << _BEFORE_SHIFT


def next_mark(last: int, chance: int) -> int:
    """Return the number of a process that has worked for some time since this one."""
    return next_incarnation(last, chance) if last & _MARK == _MARK else last + 1


def kin_of(known: int, heard: int) -> Kin:
    """Return what the process that is heard is to the one that is known."""
    if known == heard:
        return Kin.SAME
    before, now = starts(known), starts(heard)
    if before == now:
        if known >> _BEFORE_SHIFT != heard >> _BEFORE_SHIFT:
            return Kin.OTHER
        return Kin.LATER if heard > known else Kin.SAME  # perhaps what it said before
    came_from = heard >> _BEFORE_SHIFT & _MARK
    is_marked = bool(known >> _COUNT_SHIFT)
    if now < before or (now == before + 1 and is_marked and came_from < known & _MARK):
        return Kin.EARLIER
    return Kin.LATER
