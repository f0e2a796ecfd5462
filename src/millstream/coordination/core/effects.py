"""What happens to a replica, and what it wants done about it.

Invariants:
1. Effects are carried out in their order. Disk effects of one group are carried out one after
   the other and each, once it is durable, is reported by `DiskDone` with its number, in order.
2. A replica asks for a Send or Reply that depends on something durable only after the report;
   so the shell need not hold anything back.
3. A disk effect that fails stops the process: nothing is tried again.

Elsewhere: deciding (`replica`), doing (the shell, the journal).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from millstream.coordination.core.entries import NOBODY, NOTHING, Body, Entry, Header, Kind
from millstream.coordination.core.messages import Envelope
from millstream.coordination.core.standing import Standing

__all__ = [
    "Append",
    "Code",
    "Damaged",
    "DiskDone",
    "Effect",
    "Event",
    "Image",
    "Install",
    "Message",
    "Read",
    "Reply",
    "Request",
    "Send",
    "SetTimer",
    "Start",
    "Timer",
    "WriteStanding",
]


class Damaged(NamedTuple):
    """A place of the log that was acknowledged and cannot be read: its header is known."""

    header: Header


class Image(NamedTuple):
    """What a restart finds: the standing, and the log from its first entry on.

    `lost`: the log cannot be told any more, and what is found of it is worth nothing.
    """

    standing: Standing
    log: tuple[Entry | Damaged, ...] = ()
    lost: bool = False


# ---- events


class Start(NamedTuple):
    """The process begins."""

    image: Image


class Message(NamedTuple):
    """A member, or somebody who says so, sent this."""

    envelope: Envelope


class Timer(NamedTuple):
    """The time of the last SetTimer is over."""


class DiskDone(NamedTuple):
    """The disk effect of this number is durable."""

    op: int


class Request(NamedTuple):
    """A client wants a change; `ticket` comes back with the Reply."""

    ticket: int
    body: Body = NOTHING
    instance: bytes = NOBODY
    session: int = 0
    csn: int = 0
    kind: Kind = Kind.REQUEST


class Read(NamedTuple):
    """A client wants to know something that is true after it asked.

    `seen`: it is content with any member's state that has at least this LSN applied.
    """

    ticket: int
    body: Body
    seen: int | None = None


Event = Start | Message | Timer | DiskDone | Request | Read

# ---- effects


class Send(NamedTuple):
    """Try to deliver this; it may be lost."""

    receiver: bytes
    envelope: Envelope


class SetTimer(NamedTuple):
    """Report `Timer` after so long; it replaces the one before."""

    after_ms: float


class Append(NamedTuple):
    """Put entries at the journal's end, durably."""

    op: int
    entries: tuple[Entry, ...]


class Install(NamedTuple):
    """Cut the log above `keep_lsn`, put `suffix` there, and replace the standing.

    A crash leaves all of it or nothing.
    """

    op: int
    keep_lsn: int
    suffix: tuple[Entry, ...]
    standing: Standing


class WriteStanding(NamedTuple):
    """Replace the standing."""

    op: int
    standing: Standing


class Code(Enum):
    """What a reply says. All but OK, GONE and UNKNOWN: this attempt changed nothing."""

    OK = "OK"
    NOTPRIMARY = "NOTPRIMARY"
    NOQUORUM = "NOQUORUM"
    BUSY = "BUSY"
    BEHIND = "BEHIND"
    UNKNOWN = "UNKNOWN"
    CSNGONE = "CSNGONE"
    SESSIONEXPIRED = "SESSIONEXPIRED"


class Reply(NamedTuple):
    """The answer to a request or read; `lsn`: the entry it is the result of, or the state read."""

    ticket: int
    code: Code
    value: bytes = b""
    lsn: int = 0


Effect = Send | SetTimer | Append | Install | WriteStanding | Reply
