"""Commands of administrators that are in progress, and their answers.

Invariants:
1. Each command gets one answer, after at most `ADMIN_MS_MAX`. A request to a replica is answered
   when the replica does, which has its own bounds.

Elsewhere: each command (`pool_commands`, `group_commands`, `replica_commands`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from millstream.coordination.core.pool.effects import AdminReply
from millstream.coordination.core.pool.state import PoolState

__all__ = ["ADMIN_MS_MAX", "AdminRequests"]

ADMIN_MS_MAX: Final = 10_000
"""How long other nodes may take to do their part of a command."""


class _Pending(NamedTuple):
    """A command that waits for others: `done` gives the answer, `late` the one after all time."""

    ticket: int
    until_ms: float
    done: Callable[[], bytes | None]
    late: Callable[[], bytes]


class AdminRequests:
    """Those that wait for others; by ticket."""

    def __init__(self, state: PoolState) -> None:
        self.state = state
        self.pending: list[_Pending] = []

    def answer(self, ticket: int, value: bytes) -> None:
        """Answer an administrator."""
        self.state.effects.append(AdminReply(ticket, value))

    def answer_done(self) -> None:
        """Answer what is done, and what takes too long."""
        for pending in list(self.pending):
            value = pending.done()
            if value is None and self.state.now_ms >= pending.until_ms:
                value = pending.late()
            if value is not None:
                self.pending.remove(pending)
                self.answer(pending.ticket, value)

    def answer_late(self, value: bytes) -> None:
        """Answer what has taken too long, whatever it was."""
        for pending in [one for one in self.pending if self.state.now_ms >= one.until_ms]:
            pending.late()
            self.pending.remove(pending)
            self.answer(pending.ticket, value)

    def wait(
        self,
        ticket: int,
        done: Callable[[], bytes | None],
        late: Callable[[], bytes],
        for_ms: float = ADMIN_MS_MAX,
    ) -> None:
        """Answer once `done` gives the answer, or with `late` after all time."""
        self.pending.append(_Pending(ticket, self.state.now_ms + for_ms, done, late))
