"""Identifies the process of a node, and its start: a number that other nodes remember.

    19 bits: starts of the directory | 12 random bits | 16 bits: mark before | 16 bits: mark

A *mark* is written durably from time to time while a node works. So an older copy of its directory
is recognized, even if no process was started in between. Each start contains the mark that it came
from.

Invariants:
1. The number of a directory grows with each start and each mark. Two starts of copies of one
   directory most likely have different random bits, even after equally many starts.
2. Versions that used a plain counter began with 1 and added 1. Their numbers are below all of
   these, and what they add to one of these is in the last bits.

Elsewhere: storing it (`aio.node_file`), comparing it (`incarnations`).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["CHANCES", "Kin", "is_same_start", "kin_of", "next_incarnation", "next_mark", "starts"]

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


def is_same_start(one: int, other: int) -> bool:
    """Return whether two numbers are of one start: they differ in their marks at most."""
    return starts(one) == starts(other) and one >> _BEFORE_SHIFT == other >> _BEFORE_SHIFT


def kin_of(known: int, heard: int) -> Kin:
    """Return what the process that is heard is to the one that is known."""
    if known == heard:
        return Kin.SAME
    before, now = starts(known), starts(heard)
    if before == now:
        if not is_same_start(known, heard):
            return Kin.OTHER
        return Kin.LATER if heard > known else Kin.SAME  # perhaps what it said before
    came_from = heard >> _BEFORE_SHIFT & _MARK
    is_marked = bool(known >> _COUNT_SHIFT)
    if now < before or (now == before + 1 and is_marked and came_from < known & _MARK):
        return Kin.EARLIER
    return Kin.LATER
