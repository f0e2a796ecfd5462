"""The execution of one command: its session, its time, and its results besides the reply.

Invariants:
1. It depends only on its entry and the state: no clock, no randomness.
2. The updates of a refused command are dropped together with its changes.

Elsewhere: creating it (`machine`), the commands (their modules).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.state.access_lists import Readers
from millstream.coordination.core.namespace.tables import Tables
from millstream.vsr.core.state_machine import Answer
from millstream.vsr.core.versions import Version

__all__ = ["Answer", "Asker", "Happened", "Notice", "Run"]

CLIENTS_MAX: Final = 8_192
"""Sessions whose names are known as clients see them."""


class Asker(NamedTuple):
    """The session of a command, and its number there. Session 0 means no session."""

    session: int = 0
    csn: int = 0
    instance: bytes = b""
    principal: bytes = b""
    groups: tuple[bytes, ...] = ()
    stamp: int = 0
    """The client's own time in ms, 0 if it said none."""
    is_claim: bool = False
    """Whether it was logged again because what it waits for may be available."""

    @property
    def client(self) -> bytes:
        """As clients see it: instance, hyphen, session; nothing without a session."""
        return _client(self.instance, self.session) if self.session else b""


@lru_cache(maxsize=CLIENTS_MAX)
def _client(instance: bytes, session: int) -> bytes:
    return b"%b-%d" % (instance.hex().encode(), session)


class Happened(NamedTuple):
    """One effect on one element, as it was at that moment, for subscribers.

    `line`: the element and all above it, by number, itself first; after a move, before it.
    `to`, `to_line`: where it was moved to. `readers`: who could read the element at that moment.
    """

    op: bytes
    path: bytes
    type: bytes
    line: tuple[int, ...]
    data: bytes | None = None
    is_deleted: bool = False
    to: bytes = b""
    to_line: tuple[int, ...] = ()
    readers: Readers | None = None


class Notice(NamedTuple):
    """A session is told that the command it waits with is worth repeating."""

    session: int
    path: bytes
    command: bytes


class Run:
    """A command at work, or the end of sessions, as every part of the state sees it."""

    is_in_transaction = False
    passes_locks = False
    """An administrator has it done whatever others have locked."""
    counted = 0
    """How many numbers this entry has given out, for what counts over the whole entry."""
    worked = 0
    """How many elements this entry has gone through, for what is done to all below one."""
    is_heard = True
    """Whether somebody may hear of what happens, now or later: else nothing is told."""
    looked_at = 0
    """How many members of sets its commands have gone through."""

    def __init__(
        self,
        tables: Tables,
        asker: Asker,
        version: Version,
        ts_ms: int,
        *,
        is_reading: bool = False,
    ) -> None:
        self.tables, self.asker = tables, asker
        self.version, self.ts_ms = version, ts_ms
        self.is_reading = is_reading
        self.happened: list[Happened] = []
        self.notices: list[Notice] = []
        self.answers: list[Answer] = []

    @property
    def client(self) -> bytes:
        """Whose command it is, as clients see it."""
        return self.asker.client

    def mark(self) -> tuple[int, int, int, int, int]:
        """Return what `roll_back` goes back to."""
        told = len(self.happened), len(self.notices), len(self.answers)
        return (self.tables.mark(), self.counted, *told)

    def roll_back(self, mark: tuple[int, int, int, int, int]) -> None:
        """Take back all changes since, and forget what was told of them."""
        changes, self.counted, happened, notices, answers = mark
        self.tables.roll_back(changes)
        del self.happened[happened:], self.notices[notices:], self.answers[answers:]
