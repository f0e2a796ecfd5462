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

from millstream.vsr.core.entries import (
    GENESIS,
    NOBODY,
    NOTHING,
    Body,
    Entry,
    Header,
    Kind,
    Link,
)
from millstream.vsr.core.hard_state import HardState
from millstream.vsr.core.messages import Envelope
from millstream.vsr.core.snapshots import Snapshot, SnapshotId

__all__ = [
    "AdoptSnapshot",
    "Append",
    "CallSoon",
    "Code",
    "CopyState",
    "Damaged",
    "DiskDone",
    "DiskEffect",
    "Effect",
    "Event",
    "Force",
    "Image",
    "Install",
    "InstallSnapshot",
    "Message",
    "MovePrimary",
    "Read",
    "Reconfigure",
    "Reply",
    "Request",
    "Resume",
    "Send",
    "SetTimer",
    "Soon",
    "Start",
    "Superseded",
    "TakeSnapshot",
    "Timer",
    "Touch",
    "WriteHardState",
    "WriteSnapshot",
]


class Damaged(NamedTuple):
    """A place of the log that was acknowledged and cannot be read: its header is known."""

    header: Header


class Image(NamedTuple):
    """What a restart finds: the hard state, and the log from its first entry on.

    `lost`: the log cannot be told any more, and what is found of it is worth nothing. `base`: the
    entry before the first one of the log. `stable`: the snapshot that stands for what is below;
    `snapshot` is None if its file is damaged.
    """

    standing: HardState
    log: tuple[Entry | Damaged, ...] = ()
    lost: bool = False
    base: Link = GENESIS
    stable: SnapshotId | None = None
    snapshot: Snapshot | None = None


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


class DiskGaveUp(NamedTuple):
    """There was no space for the snapshot of this `WriteSnapshot`; it is not there."""

    op: int


class Request(NamedTuple):
    """A client wants a change; `ticket` comes back with the Reply.

    SESSION_OPEN has the arguments time-out in ms and secret, both may be missing; its reply is the
    session's number. `is_counted`: the connection counted the number itself, so it is no
    repetition: if the number was used before, that was on another connection.
    """

    ticket: int
    body: Body = NOTHING
    instance: bytes = NOBODY
    session: int = 0
    csn: int = 0
    kind: Kind = Kind.REQUEST
    is_counted: bool = False


class Read(NamedTuple):
    """A client wants to know something that is true after it asked.

    `seen`: it is content with any member's state that has at least this LSN applied.
    `session`: whose sign of life it is.
    """

    ticket: int
    body: Body
    seen: int | None = None
    session: int = 0


class TakeSnapshot(NamedTuple):
    """Take a snapshot now; the answer, its number, comes once it is stable.

    BUSY: one is being taken. UNKNOWN: it was not stable when this member ceased to lead, or in
    time.
    """

    ticket: int


class CopyState(NamedTuple):
    """Freeze the state of this member as it is, whatever the others have; OK with its LSN.

    It is `Replica.copy` then. BUSY: one is being made. NOTREADY: the state is not here.
    """

    ticket: int


class Force(NamedTuple):
    """Go on as a group of this member alone: its majority is lost for good.

    The reply is OK with a map of what may be lost, once the new epoch runs if `is_confirmed`, else
    at once, and nothing changes. CONFLICT: a quorum answers; NOTREADY: it has not listened for
    long enough; BADCONFIG: it is none that could go on.
    """

    ticket: int
    is_confirmed: bool = False


class Superseded(NamedTuple):
    """These nodes are said to be the members of a fork of the group: ask them for its epoch."""

    epoch: int
    members: tuple[bytes, ...]


class Soon(NamedTuple):
    """Other events had their turn after a `CallSoon`."""


class Resume(NamedTuple):
    """A client goes on with its session on another connection, or asks what is known of it.

    The reply comes once all is applied that was logged before: OK with time-out in ms and highest
    request number, SESSIONEXPIRED, or NOPERM if the secret is another one.
    """

    ticket: int
    instance: bytes
    session: int
    secret: bytes = b""


class Touch(NamedTuple):
    """The client of this session lives. Requests and reads that name it say so by themselves."""

    session: int


class Reconfigure(NamedTuple):
    """Have these members in the next epoch, if it is this one that they shall follow.

    The reply is OK with the number of the epoch once the next one runs (or these are the members
    already); CONFLICT with the epoch there is; BADCONFIG with the reason; BUSY; NOTREADY with
    node and lag of each member that is too far behind or silent; UNKNOWN: it is in the log.
    """

    ticket: int
    members: tuple[bytes, ...]
    expected_epoch: int | None = None


class MovePrimary(NamedTuple):
    """Have this member lead; the reply is OK once it does.

    BADCONFIG: it is no member; BUSY; NOTREADY: it is too far behind or silent, or another one
    leads now.
    """

    ticket: int
    node: bytes


Event = (
    Start | Message | Timer | DiskDone | DiskGaveUp | Request | Read | Resume | Touch | Reconfigure
    | MovePrimary | TakeSnapshot | CopyState | Force | Superseded | Soon
)  # fmt: skip

# ---- effects


class Send(NamedTuple):
    """Try to deliver this; it may be lost."""

    receiver: bytes
    envelope: Envelope


class SetTimer(NamedTuple):
    """Report `Timer` after so long; it replaces the one before."""

    after_ms: float


class CallSoon(NamedTuple):
    """Report `Soon` when what waits now has had its turn: there is work to be done in slices.

    A report too few delays it until the next Timer, one too many does no harm.
    """


class Append(NamedTuple):
    """Put entries at the journal's end, durably."""

    op: int
    entries: tuple[Entry, ...]


class Install(NamedTuple):
    """Cut the log above `keep_lsn`, put `suffix` there, and replace the hard state.

    A crash leaves all of it or nothing.
    """

    op: int
    keep_lsn: int
    suffix: tuple[Entry, ...]
    standing: HardState


class WriteHardState(NamedTuple):
    """Replace the hard state."""

    op: int
    standing: HardState


class WriteSnapshot(NamedTuple):
    """Make a snapshot durable beside the one in force; without space it may be given up."""

    op: int
    snapshot: Snapshot


class AdoptSnapshot(NamedTuple):
    """Let a snapshot that was written be the one in force; the log up to `cut_lsn` may go."""

    op: int
    id: SnapshotId
    cut_lsn: int


class InstallSnapshot(NamedTuple):
    """Let the log be `suffix` behind a snapshot of another member, and replace the hard state.

    A crash leaves all of it or nothing.
    """

    op: int
    snapshot: Snapshot
    suffix: tuple[Entry, ...]
    standing: HardState


DiskEffect = Append | Install | WriteHardState | WriteSnapshot | AdoptSnapshot | InstallSnapshot


class Code(Enum):
    """What a reply says. All but OK, GONE and UNKNOWN: this attempt changed nothing."""

    OK = "OK"
    NOTPRIMARY = "NOTPRIMARY"
    NOQUORUM = "NOQUORUM"
    BUSY = "BUSY"
    BEHIND = "BEHIND"
    HISTORY_LOST = "HISTORY_LOST"
    UNKNOWN = "UNKNOWN"
    CSNGONE = "CSNGONE"
    SESSIONEXPIRED = "SESSIONEXPIRED"
    SESSIONMOVED = "SESSIONMOVED"
    NOPERM = "NOPERM"
    NOTREADY = "NOTREADY"
    CONFLICT = "CONFLICT"
    BADCONFIG = "BADCONFIG"


class Reply(NamedTuple):
    """The answer to a request or read; `lsn`: the entry it is the result of, or the state read."""

    ticket: int
    code: Code
    value: bytes = b""
    lsn: int = 0


Effect = Send | SetTimer | CallSoon | DiskEffect | Reply
