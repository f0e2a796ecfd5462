"""Events and effects of a caller.

Elsewhere: its decisions (`caller`), the sockets (`coordination.aio.client.group_client`).
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

__all__ = [
    "Call",
    "Connect",
    "Connected",
    "Disconnect",
    "Effect",
    "ErrorReply",
    "Event",
    "Finish",
    "Lost",
    "Moving",
    "Noticed",
    "Outcome",
    "Received",
    "SessionLost",
    "Tick",
    "Transmit",
    "Wake",
]


class ErrorReply(Exception):
    """An error as a reply: its code and words. Never raised here."""

    def __init__(self, text: str) -> None:
        self.code, _, self.words = text.partition(" ")
        super().__init__(text)


# ---- events


class Call(NamedTuple):
    """Somebody wants this done; `ticket` comes back with `Finish`.

    If it `may_wait`, PENDING is no answer. What is `before` it is sent with it each time, without
    numbers, and its replies are dropped.
    """

    ticket: int
    argv: tuple[bytes, ...]
    is_change: bool
    deadline_ms: float
    may_wait: bool = False
    before: tuple[tuple[bytes, ...], ...] = ()


class Connected(NamedTuple):
    """The connection that was asked for is there."""


class Received(NamedTuple):
    """A reply: bytes, a number, None, a list, a dictionary, or an `ErrorReply`."""

    reply: Any


class Noticed(NamedTuple):
    """The node says that something that waits is worth asking for again."""


class Moving(NamedTuple):
    """A part of a reply has come, or more of something long has left."""


class Lost(NamedTuple):
    """The connection is gone, or could not be made."""


class Tick(NamedTuple):
    """The time of the last Wake has come."""


Event = Call | Connected | Received | Noticed | Moving | Lost | Tick

# ---- effects


class Connect(NamedTuple):
    """Connect to this address; then `Connected` or `Lost` is reported."""

    address: str


class Disconnect(NamedTuple):
    """Drop the connection, or the attempt to make it; nothing more is heard of it."""


class Transmit(NamedTuple):
    """Send a command over the connection."""

    argv: tuple[bytes, ...]


class Wake(NamedTuple):
    """Report `Tick` at this time; it replaces the one before."""

    at_ms: float


class Outcome(Enum):
    """How a call ended."""

    ANSWERED = "it has a reply"
    FAILED = "it was not done"
    UNKNOWN = "it may have been done"


class Finish(NamedTuple):
    """A call is over. `reply`: the answer, or the last reason why there is none."""

    ticket: int
    outcome: Outcome
    reply: Any


class SessionLost(NamedTuple):
    """The group has ended the session: whatever was held by it is gone."""


Effect = Connect | Disconnect | Transmit | Wake | Finish | SessionLost
