"""The events that a replica receives, and the effects that it asks for.

Invariants:
1. Effects are carried out in their order. Disk effects of one group are carried out one after the
   other. Each is reported by `DiskDone` with its number, in order, once it is durable.
2. A replica asks for a Send or Reply that depends on something durable only after the report. So
   the shell need not hold anything back.
3. A disk effect that fails stops the process. Nothing is repeated.

Elsewhere: deciding (`replica`), carrying out (the shell, the journal).
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
    "Refused",
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
    """A place of the log that was acknowledged and cannot be read. Its header is known."""

    header: Header


class Image(NamedTuple):
    """What a restart finds: the hard state, and the log from its first entry on.

    `lost`: the log is lost, and what is found of it must not be used. `base`: the entry before the
    first one of the log. `stable`: the snapshot that stands for the entries below. `snapshot` is
    None if its file is damaged.
    """

    hard_state: HardState
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
    """Somebody who claims to be a member sent this."""

    envelope: Envelope


class Timer(NamedTuple):
    """The time of the last SetTimer is over."""


class DiskDone(NamedTuple):
    """The disk effect of this number is durable."""

    op: int


class DiskGaveUp(NamedTuple):
    """There was no space for the snapshot of this `WriteSnapshot`: it does not exist."""

    op: int


class Request(NamedTuple):
    """A client wants a change. The Reply carries the same `ticket`.

    SESSION_OPEN has the arguments time-out in ms and secret; both may be missing. Its reply is the
    session's number. `is_counted`: the connection made up the number itself. So the request is not
    a repetition: if the number was used before, that was on another connection.
    """

    ticket: int
    body: Body = NOTHING
    instance: bytes = NOBODY
    session: int = 0
    csn: int = 0
    kind: Kind = Kind.REQUEST
    is_counted: bool = False


class Read(NamedTuple):
    """A client wants to read what is true after it asked.

    `seen`: any member's state will do that has at least this LSN applied.
    `session`: the session that this read keeps alive.
    """

    ticket: int
    body: Body
    seen: int | None = None
    session: int = 0


class TakeSnapshot(NamedTuple):
    """Take a snapshot now. The reply, its number, comes once the snapshot is stable.

    BUSY: another one is being taken. UNKNOWN: it was not stable in time, or when this member
    ceased to lead.
    """

    ticket: int


class CopyState(NamedTuple):
    """Freeze the state of this member, whatever the others have. The reply is OK with its LSN.

    The copy is in `Replica.copy` then. BUSY: one is being made. NOTREADY: the state is not here.
    """

    ticket: int


class Force(NamedTuple):
    """Go on as a group of this member alone: its majority is lost for good.

    The reply is OK with a map of what may be lost: once the new epoch runs if `is_confirmed`, else
    at once, and nothing changes. CONFLICT: a quorum answers. NOTREADY: this member has not
    listened for long enough. BADCONFIG: this member cannot go on alone.
    """

    ticket: int
    is_confirmed: bool = False


class Superseded(NamedTuple):
    """These nodes are reported to be members of a fork of the group: ask them for its epoch."""

    epoch: int
    members: tuple[bytes, ...]


class Soon(NamedTuple):
    """Other events have been handled since a `CallSoon`."""


class Resume(NamedTuple):
    """A client resumes its session on another connection, or asks what is known of it.

    The reply comes once all is applied that was logged before: OK with time-out in ms and highest
    request number, SESSIONEXPIRED, or NOPERM if the secret is wrong.
    """

    ticket: int
    instance: bytes
    session: int
    secret: bytes = b""


class Touch(NamedTuple):
    """The client of this session is alive.

    Requests and reads that name it say so by themselves.
    """

    session: int


class Refused(NamedTuple):
    """The address of this member refuses connections: its process has ended, or is just starting.

    It only makes a view change earlier. If it is not so, a view is changed without need.
    """

    member: bytes


class Reconfigure(NamedTuple):
    """Have these members in the next epoch, if the current epoch is the given one.

    The reply is OK with the number of the epoch once the next one runs (or these are the members
    already); CONFLICT with the current epoch; BADCONFIG with the reason; BUSY; NOTREADY with node
    and lag of each member that is too far behind or silent; UNKNOWN: the change is in the log.
    """

    ticket: int
    members: tuple[bytes, ...]
    expected_epoch: int | None = None


class MovePrimary(NamedTuple):
    """Have this member lead. The reply is OK once it does.

    BADCONFIG: it is no member. BUSY. NOTREADY: it is too far behind or silent, or another member
    leads now.
    """

    ticket: int
    node: bytes


Event = (
    Start | Message | Timer | DiskDone | DiskGaveUp | Request | Read | Resume | Touch | Refused
    | Reconfigure | MovePrimary | TakeSnapshot | CopyState | Force | Superseded | Soon
)  # fmt: skip

# ---- effects


class Send(NamedTuple):
    """Try to deliver this message. It may be lost."""

    receiver: bytes
    envelope: Envelope


class SetTimer(NamedTuple):
    """Report `Timer` after this time. It replaces the timer before."""

    after_ms: float


class CallSoon(NamedTuple):
    """Report `Soon` after the waiting events have been handled: work is done in slices.

    A missing report delays the work until the next Timer. An extra one does no harm.
    """


class Append(NamedTuple):
    """Put entries at the journal's end, durably."""

    op: int
    entries: tuple[Entry, ...]


class Install(NamedTuple):
    """Cut the log above `keep_lsn`, put `suffix` there, and replace the hard state.

    After a crash all of it or nothing has happened.
    """

    op: int
    keep_lsn: int
    suffix: tuple[Entry, ...]
    hard_state: HardState


class WriteHardState(NamedTuple):
    """Replace the hard state."""

    op: int
    hard_state: HardState


class WriteSnapshot(NamedTuple):
    """Make a snapshot durable beside the one in force. On a full disk it may be given up."""

    op: int
    snapshot: Snapshot


class AdoptSnapshot(NamedTuple):
    """Put a snapshot that was written in force. The log up to `cut_lsn` may be removed."""

    op: int
    id: SnapshotId
    cut_lsn: int


class InstallSnapshot(NamedTuple):
    """Replace the log by `suffix` behind another member's snapshot, and replace the hard state.

    After a crash all of it or nothing has happened.
    """

    op: int
    snapshot: Snapshot
    suffix: tuple[Entry, ...]
    hard_state: HardState


DiskEffect = Append | Install | WriteHardState | WriteSnapshot | AdoptSnapshot | InstallSnapshot


class Code(Enum):
    """Status of a reply. All but OK, GONE and UNKNOWN mean that this attempt changed nothing."""

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
    """The answer to a request or read.

    `lsn`: the entry that it results from, or the state read.
    """

    ticket: int
    code: Code
    value: bytes = b""
    lsn: int = 0


Effect = Send | SetTimer | CallSoon | DiskEffect | Reply
