"""Shares of the event loop: turns of the kv clients while other clients want something, too.

A round of the loop hands over what has come from every connection. With a hundred kv clients that
send without pause that takes a tenth of a second, and a page over HTTP needs several rounds. So
for a while after an HTTP client has sent something, kv clients are answered in short turns, one a
round. At other times they are answered as they come, which costs a little less.

Invariants:
1. A turn of the kv clients lasts as long as all others took since the turn before, but at least
   `TURN_S` and at most `TURN_S_MAX`; the last request of it may take longer.
2. Who waits for a turn is answered before who comes later.
3. Nobody waits once `SHARED_S` have passed without a call of `share`.

Elsewhere: the kv clients (`kv.aio.connection`), who calls `share` (`gateway.aio.server`,
`gateway.aio.streaming`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from time import thread_time
from typing import Final, Protocol

__all__ = ["SHARED_S", "TURN_S", "TURN_S_MAX", "Loop", "LoopShares", "Waiting"]

TURN_S: Final = 0.005
"""The shortest turn of the kv clients, in seconds of the loop's work."""
TURN_S_MAX: Final = 0.05
"""The longest turn, in the same seconds."""
SHARED_S: Final = 1.0
"""How long the loop is shared after a sign of another client, in the same seconds."""


class Loop(Protocol):
    """What is needed of an event loop."""

    def call_soon(self, callback: Callable[[], None], /) -> object:
        """Call back in the next round."""


class Waiting(Protocol):
    """A kv connection whose client has sent something."""

    def take_turn(self) -> None:
        """Answer it."""


class LoopShares:
    """The turns of one loop.

    Args:
        loop: gives the rounds.
        now_s: the processor time of the loop's thread, in seconds. So shares are the same on a
            machine where other programs take most of the time.
    """

    def __init__(self, loop: Loop, now_s: Callable[[], float] = thread_time) -> None:
        self._loop = loop
        self._now_s = now_s
        self._waiting: deque[Waiting] = deque()
        self._shared_until_s = 0.0
        self._has_turn = False
        """A turn has begun in this round of the loop."""
        self._end_s = 0.0
        self._stopped_s = 0.0
        """When kv clients were answered last."""
        self.is_shared = False
        """Whether kv clients have to ask `is_over`."""

    def share(self) -> None:
        """Note that a client of another port has sent something or is being answered."""
        self._shared_until_s = self._now_s() + SHARED_S
        self.is_shared = True

    def is_over(self) -> bool:
        """Return whether a kv client has to `wait` until it is answered."""
        now_s = self._now_s()
        if self._has_turn:
            if now_s <= self._end_s and not self._waiting:
                self._stopped_s = now_s
                return False
            return True
        if now_s > self._shared_until_s:
            self.is_shared = False
        else:
            self._begin(now_s)
        return False

    def wait(self, connection: Waiting) -> None:
        """Let a connection continue in a later turn. Called after `is_over` returned True."""
        self._waiting.append(connection)

    def forget(self, connection: Waiting) -> None:
        """A connection that waits has gone."""
        self._waiting.remove(connection)

    def _begin(self, now_s: float) -> None:
        others_s = now_s - self._stopped_s
        self._end_s = now_s + min(max(TURN_S, others_s), TURN_S_MAX)
        self._stopped_s = now_s
        self._has_turn = True
        self._loop.call_soon(self._next_round)

    def _next_round(self) -> None:
        self._has_turn = False
        if not self._waiting:
            return
        now_s = self._now_s()
        self._begin(now_s)
        if now_s > self._shared_until_s:
            self._end_s = inf
        while self._waiting and self._now_s() <= self._end_s:
            self._waiting.popleft().take_turn()
        self._stopped_s = self._now_s()
