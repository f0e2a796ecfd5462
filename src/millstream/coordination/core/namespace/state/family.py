"""The interface by which state about elements follows changes: locks, limits, histories.

Invariants:
1. Families are called in the order in which `state` lists them. This order is the same on all
   members.
2. A family that raises `Refused` in `guard`, `created`, `resized`, `counted` or `moved` makes the
   whole command fail.

Elsewhere: the families (`state`), the callers (`elements`, `machine`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from millstream.coordination.core.namespace.state.run import Run

__all__ = ["Family", "Want", "hearing"]


class Want(Enum):
    """What a command is about to do with an element."""

    READ = "r"
    """Right to its data, or to the names below it."""
    WRITE = "w"
    """Right to change its data, attributes or set of children."""
    PLACE = "p"
    """What is moved shall be below it: as WRITE, and what locks are offered counts, too."""
    SYNC = "s"
    """Locks, semaphores and barriers: `w` is needed, and no lock keeps it from being asked for."""
    LOOK = "l"
    """Attributes without data: `r` is needed, and no lock is looked at."""
    TREE = "t"
    """Deleting or moving it with all below: as WRITE, and what is locked below counts, too."""
    RULE = "o"
    """Right to its access list or configuration, of its owner and administrators."""


class Family:
    """The hooks; each does nothing unless a family has something to do."""

    def guard(self, run: Run, element: int, want: Want) -> None:
        """Raise Refused if the asker may not do this now."""

    def created(self, run: Run, element: int, parent: int, size: int) -> None:
        """Count a new element of this size in bytes.

        The record of its parent is up to date. The parent of a root is 0.
        """

    def resized(self, run: Run, element: int, more: int) -> None:
        """Count the growth of the data of an element, in bytes; negative if it shrank."""

    def counted(self, run: Run, element: int, more: int) -> None:
        """Count growth of what an element holds besides its data, in bytes; may be negative."""

    def moved(self, run: Run, element: int) -> None:
        """An element, with all below it, is at another place now."""

    def deleted(self, run: Run, element: int) -> None:
        """An element is about to end. It has no children any more, and its path is still known."""

    def is_wanted(self, element: int) -> bool:
        """Whether somebody holds something on it or waits for that: it outlives its session."""
        return False

    def session_ended(self, run: Run, session: int) -> None:
        """A session has ended: what was its alone goes."""

    def finished(self, run: Run) -> None:
        """All that the entry asked for is done: see what has become possible."""

    def attributes(self, run: Run, element: int) -> Iterable[tuple[bytes, bytes]]:
        """Give names and values that GET ATTR shows."""
        return ()


def hearing(hook: str, families: Sequence[Family]) -> tuple[Family, ...]:
    """Return those that have something to do at a hook, in their order."""
    plain = getattr(Family, hook)
    return tuple(family for family in families if getattr(type(family), hook) is not plain)
