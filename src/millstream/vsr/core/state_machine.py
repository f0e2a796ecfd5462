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
    """What a session waited for is offered to it, since the entry with this LSN.

    `name`: the name of its wait. Offers are ordered by name.
    """

    path: bytes
    session: int
    lsn: int
    name: bytes


class StateMachine(Protocol):
    """What a group replicates. Replies are `values`."""

    @property
    def format_max(self) -> int:
        """The highest state format that this program supports."""

    def use_format(self, number: int) -> None:
        """Execute entries, and freeze, in this state format from now on.

        The format never falls.
        """

    def apply(self, entry: Entry) -> bytes:
        """Execute a committed request and return its reply."""

    def weight(self, session: int) -> int:
        """Return how many things are released one by one when a session ends."""

    def silence_ms(self, session: int) -> int | None:
        """Return how long a session may be silent by the state's settings, None if none is set."""

    def end_sessions(self, entry: Entry, sessions: Sequence[int]) -> None:
        """Release what belonged to these sessions alone: this committed entry has ended them."""

    def end_offers(self, entry: Entry) -> None:
        """End the offers that this committed entry names."""

    def waiting(self, session: int, csn: int) -> Verdict | None:
        """Return WAITING with a preliminary reply, or OFFERED.

        None: the request waits for nothing.
        """

    def take_answers(self) -> list[Answer]:
        """Return the final replies of requests that waited until the last entry, each once."""

    def take_settings(self) -> Mapping[bytes, bytes] | None:
        """Return the settings of the group, by key, if they may have changed since the last."""

    def offers(self, start: bytes = b"") -> Iterator[Offer]:
        """Yield the offers that end if nobody takes them in time, from a name on, in order.

        Nothing may change meanwhile.
        """

    def read(self, body: Body, session: int = 0) -> bytes:
        """Return what this session asks for, without a change. Session 0 means no session."""

    def freeze(self) -> Iterator[bytes]:
        """Return the state of this moment, in small pieces, while changes go on.

        The call itself is quick, and so is each piece. Equal states give equal bytes.
        """

    def restore(self, pieces: Pieces) -> Iterator[None]:
        """Replace the state by what `freeze` wrote, some work with each step.

        The state is not used before the last step. Raises CorruptionError if it is not understood.
        """
