"""What a replicated log needs of the state machine that it replicates.

Invariants of every state machine:
1. The same entries in the same order give the same replies and the same state on every member:
   no clock, no randomness, no order of hashing.
2. An entry that it does not understand gets an error as its reply and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from millstream.vsr.core.client_table import Verdict
from millstream.vsr.core.entries import Body, Entry
from millstream.vsr.core.snapshots import Pieces

__all__ = ["Answer", "Offer", "StateMachine"]


class Answer(NamedTuple):
    """The final reply of a request that waited."""

    session: int
    csn: int
    value: bytes


class Offer(NamedTuple):
    """What a session waited for is there for it: since the entry with this LSN.

    `name`: of its wait; offers are in the order of these.
    """

    path: bytes
    session: int
    lsn: int
    name: bytes


class StateMachine(Protocol):
    """What a group replicates. Replies are `values`."""

    @property
    def format_max(self) -> int:
        """The highest state format that this program understands."""

    def use_format(self, number: int) -> None:
        """Execute entries, and freeze, in this state format from now on; it never falls."""

    def apply(self, entry: Entry) -> bytes:
        """Execute a committed request and return its reply."""

    def weight(self, session: int) -> int:
        """Return how much ends with a session, in things that are let go one by one."""

    def silence_ms(self, session: int) -> int | None:
        """Return how long a session may be silent by what is set in the state, None if nothing."""

    def end_sessions(self, entry: Entry, sessions: Sequence[int]) -> None:
        """Let go what was of these sessions alone: this committed entry has ended them."""

    def end_offers(self, entry: Entry) -> None:
        """End the offers that this committed entry names."""

    def waiting(self, session: int, csn: int) -> Verdict | None:
        """Return WAITING with a reply for now, or OFFERED; None: the request waits for nothing."""

    def take_answers(self) -> list[Answer]:
        """Return the final replies of requests that waited until the last entry, each once."""

    def take_settings(self) -> Mapping[bytes, bytes] | None:
        """Return what is set for the group, by key, if it may have changed since the last call."""

    def offers(self, start: bytes = b"") -> Iterator[Offer]:
        """Yield what ends if nobody comes for it in time, from a name on, in order.

        Nothing may change meanwhile.
        """

    def read(self, body: Body, session: int = 0) -> bytes:
        """Return what this session asks for, changing nothing; 0: none."""

    def freeze(self) -> Iterator[bytes]:
        """Return the state of this moment, in small pieces, while changes go on.

        The call itself is quick, and so is each piece. Equal states give equal bytes.
        """

    def restore(self, pieces: Pieces) -> Iterator[None]:
        """Let the state be what `freeze` wrote, and nothing else; some work with each step.

        It is not asked for anything before the last step. CorruptionError if it is not understood.
        """
