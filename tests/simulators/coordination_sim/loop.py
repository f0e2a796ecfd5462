"""False time: what happens next, and one number that stands for all that has happened.

Invariants:
1. What is due at the same moment happens in the order in which it was asked for.
2. `digest` covers the time and the order of all that happened: two runs that differ in either
   differ in it.
3. No more than `DUE_MAX` calls are due at once: messages that breed are found, not waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from struct import Struct
from typing import Any
from zlib import crc32

DUE_MAX = 50_000
MARKS = 512
"""So many events are put into the digest at once."""
_MARK = Struct("<dQ")


class Loop:
    """The heap; times are in milliseconds since the run began."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self.digest = 0
        self._asked = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._marks = bytearray(MARKS * _MARK.size)

    def at(self, when: float, what: Callable[..., None], *args: Any) -> None:
        """Have something happen then."""
        self._asked += 1
        heappush(self._heap, (when, self._asked, what, args))

    def after(self, delay: float, what: Callable[..., None], *args: Any) -> None:
        """Have something happen so much later."""
        self._asked += 1
        heappush(self._heap, (self.now + delay, self._asked, what, args))

    def run_until(self, end: float) -> None:
        """Let all happen that is due before `end`."""
        heap, marks, done = self._heap, self._marks, 0
        pack_into, size = _MARK.pack_into, _MARK.size
        try:
            while heap and heap[0][0] <= end:
                when, number, what, args = heappop(heap)
                self.now = when
                pack_into(marks, done * size, when, number)
                done += 1
                if done == MARKS:
                    self._mark(done)
                    done = 0
                what(*args)
                assert len(heap) <= DUE_MAX, f"{len(heap)} calls are due: messages breed"
        finally:
            self._mark(done)
        self.now = max(self.now, end)

    def _mark(self, done: int) -> None:
        self.events += done
        self.digest = crc32(memoryview(self._marks)[: done * _MARK.size], self.digest)

    def waiting(self, what: str) -> int:
        """Return how many calls of that name are due some time."""
        return sum(1 for _, _, call, _ in self._heap if call.__name__ == what)


def stream(seed: int, purpose: str) -> Random:
    """Return the random numbers of one purpose of one run."""
    return Random(f"{seed}/{purpose}")
