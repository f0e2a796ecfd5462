"""Pauses between attempts: each is twice as long as the one before, up to a longest one.

Readers of change streams, clients and replications share this. The unit of time is the caller's.

Elsewhere: deadlines and sleeping (`client.routing.Backoff`), pauses with a random part
(`coordination.core.client.caller`).
"""

from __future__ import annotations

from math import inf

__all__ = ["Pauses"]


class Pauses:
    """The pauses of one thing that is tried again and again.

    Args:
        least: the first pause.
        most: the longest one, in the same unit.
    """

    __slots__ = ("_least", "_most", "_next")

    def __init__(self, least: float, most: float) -> None:
        self._least, self._most = least, most
        self._next = least

    def next(self, most: float = inf) -> float:
        """Return the next pause, of `most` at most; later ones double from what is returned."""
        pause = min(self._next, most)
        self._next = min(2 * pause, self._most)
        return pause

    def restart(self) -> None:
        """Begin with the first pause again: an attempt has succeeded."""
        self._next = self._least
