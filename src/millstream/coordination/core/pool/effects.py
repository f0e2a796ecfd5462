"""Events and effects of a node of the pool.

A node hosts several groups. Each is a `replica` with its own effects. The pool decides which
groups are here, knows the other nodes, and executes the commands of administrators.

Invariants:
1. Effects are executed in order. Disk effects are executed one after the other. Each is reported
   by `DiskDone` with its number once it is durable, in the same order. One that fails stops the
   process.
2. What the pool sends to others was durable before it asked for `Say`.
3. Every `Admin` gets one `AdminReply`, every `Ask...` one `GroupReplied` or `Answered` with its
   ticket, even if the group is closed meanwhile (code NOTPRIMARY) or cannot answer.

Elsewhere: decisions (`pool`), messages (`messages`), one group (`vsr.core.effects`), execution
(the shell).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millstream.coordination.core.pool.messages import Address, Board, Founding, PoolEnvelope
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.effects import (
    CopyState,
    DiskDone,
    Force,
    MovePrimary,
    Read,
    Reconfigure,
    Reply,
    SetTimer,
    Superseded,
    TakeSnapshot,
    Timer,
)
from millstream.vsr.core.hard_state import HardState
from millstream.vsr.core.messages import Envelope
from millstream.vsr.core.replica.member import Status

__all__ = [
    "FIRST_GROUP",
    "Admin",
    "AdminReply",
    "Answered",
    "AskBackup",
    "AskGroup",
    "AskLog",
    "AskReport",
    "AskRestore",
    "CloseGroups",
    "DropGroup",
    "FormatGroup",
    "GroupChanged",
    "GroupReplied",
    "HangUp",
    "Heard",
    "KeepNode",
    "KeepRefusal",
    "Marked",
    "NodeStart",
    "OpenGroup",
    "PoolEffect",
    "PoolEvent",
    "Posted",
    "Refusal",
    "Say",
    "Stray",
    "TellFork",
    "Warn",
]

FIRST_GROUP: Final = 1
"""Number of the group of one that a node founds at its first start if it joins nobody."""


class Refusal(NamedTuple):
    """An error instead of an answer: its stable code, and the rest of the line."""

    code: str
    text: str = ""


# ---- events


class NodeStart(NamedTuple):
    """The process begins.

    `content`: of the node's file as the last `KeepNode` wrote it; None if there never was one.
    `here`: groups that have a folder, formatted or not yet. `peer`, `coord`: where others reach
    this node and its clients. `join`: nodes of the pool to join, tried until one answers; empty:
    a new node founds group `FIRST_GROUP`, of itself alone. `refusal`: of the last `KeepRefusal`.
    """

    content: bytes | None
    node_id: bytes
    incarnation: int
    here: tuple[bytes, ...]
    peer: Address
    coord: Address
    join: tuple[Address, ...] = ()
    refusal: str = ""


class Heard(NamedTuple):
    """A node said this: a frame of the pool, over a connection that was let in."""

    envelope: PoolEnvelope


class Stray(NamedTuple):
    """A message of a group that is not open here. Those of open groups go to their replicas."""

    envelope: Envelope


class GroupChanged(NamedTuple):
    """A replica opened here changed one of these: report it after the step, before its sends.

    `leads`: it is primary, not suspended.
    """

    group_id: bytes
    status: Status
    configuration: Configuration
    view: int
    leads: bool


class Admin(NamedTuple):
    """An administrator asks; `argv` is what follows the word ADMIN."""

    ticket: int
    argv: tuple[bytes, ...]


class GroupReplied(NamedTuple):
    """The replica's answer to `AskGroup`; `ticket` is the one of the effect."""

    ticket: int
    reply: Reply


class Answered(NamedTuple):
    """The answer to one of the other questions: their docstrings say what `answer` is.

    A `Refusal` stands for an error.
    """

    ticket: int
    answer: object


class Marked(NamedTuple):
    """This node's directory has a later number, durably: it has worked for some time."""

    incarnation: int


class Posted(NamedTuple):
    """What members here have: a board, if one is of the system group, and elements by group."""

    board: Board | None
    elements: dict[bytes, int]


PoolEvent = (
    NodeStart | Heard | Stray | GroupChanged | Admin | GroupReplied | Answered | Posted | Marked
    | Timer | DiskDone
)  # fmt: skip

# ---- effects; and SetTimer, as replicas have it


class Say(NamedTuple):
    """Try to deliver this to a node at an address; it may be lost.

    `receiver` is all zeros while it is not known who is there.
    """

    receiver: bytes
    address: Address
    envelope: PoolEnvelope


class HangUp(NamedTuple):
    """Close the connection to a node: it is there no more."""

    node_id: bytes


class KeepNode(NamedTuple):
    """Replace the content of the node's file, durably: a crash leaves the old or the new."""

    op: int
    content: bytes


class KeepRefusal(NamedTuple):
    """Have later starts of this node know, durably, that the others refuse it, and why."""

    op: int
    reason: str


class CloseGroups(NamedTuple):
    """Stop all replicas of this node; their folders stay as they are."""


class FormatGroup(NamedTuple):
    """Format a group's folder, unless it is formatted; durably."""

    op: int
    hard_state: HardState


class OpenGroup(NamedTuple):
    """Start the replica of a formatted group. `GroupChanged` reports the result."""

    group_id: bytes
    number: int


class DropGroup(NamedTuple):
    """Stop a replica if it is open, and remove its folder, durably."""

    op: int
    group_id: bytes


class AskGroup(NamedTuple):
    """Give this event to a replica; its ticket is in it: give it one of your own.

    `event` is a Read or one of those for administration. If the group is not open here:
    `GroupReplied` with code NOTPRIMARY.
    """

    ticket: int
    group_id: bytes
    event: Read | Reconfigure | MovePrimary | TakeSnapshot | CopyState | Force


class TellFork(NamedTuple):
    """Give this event to a replica, if it is open here; there is no answer."""

    group_id: bytes
    event: Superseded


class AskReport(NamedTuple):
    """What a replica opened here says of itself: its `Report`."""

    ticket: int
    group_id: bytes


class AskLog(NamedTuple):
    """Headers of a replica's log from `first_lsn` to `last_lsn`, as far as it has them."""

    ticket: int
    group_id: bytes
    first_lsn: int
    last_lsn: int


class AskBackup(NamedTuple):
    """Write a group's state to a new file: answered with the LSN it is of, a number.

    `is_of_one`: the state that a `CopyState` has frozen, and the file says so; else the stable
    one.
    """

    ticket: int
    group_id: bytes
    file: str
    is_of_one: bool = False


class AskRestore(NamedTuple):
    """Format a new group, of this node alone, with the state in a file: its LSN, a number.

    Or a pair of it and what is to be said about that state.
    """

    ticket: int
    founding: Founding
    hard_state: HardState
    file: str


class AdminReply(NamedTuple):
    """The answer to an administrator, a value of `vsr.core.values`."""

    ticket: int
    value: bytes


class Warn(NamedTuple):
    """Write a warning for the operator to the node's log."""

    text: str


PoolEffect = (
    Say | HangUp | KeepNode | FormatGroup | OpenGroup | DropGroup | AskGroup | AskReport | AskLog
    | AskBackup | AskRestore | AdminReply | SetTimer | Warn | KeepRefusal | CloseGroups
    | TellFork
)  # fmt: skip
