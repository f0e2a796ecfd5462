"""A member of a group: its status, and the state that all parts of a replica share.

A replica is composed of parts, each a class in a module of its own. The lower ones come first:
`Execution`, `Storage`, `LogRepair`, `NormalCase`, `Reads`, `ViewChange`, `Recovery`, `Learners`,
`Reconfiguration`, `RequestedChanges`, `Formats`, `SessionExpiry`, `Snapshots`, `StateTransfer`,
`Throttling`, `ForcedGroups`, `Reporting`. A part knows the parts below it, and calls those above
it through `Upcalls`. `Replica` composes them and receives events.

Invariants:
1. The status changes in `ReplicaState.become` alone, and only by the moves in `MOVES`.
2. A part owns what only it uses. `ReplicaState` has what several parts use.
3. Nothing here reads a clock or draws random numbers: times and chances are arguments.

Source: Liskov and Cowling 2012.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from millstream.vsr.core.client_table import ClientTable
from millstream.vsr.core.clocks import Clocks
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.effects import Code, Effect, Reply, Send, SetTimer
from millstream.vsr.core.entries import ID_BYTES, Kind
from millstream.vsr.core.log import Log
from millstream.vsr.core.messages import Envelope, Payload
from millstream.vsr.core.snapshots import Snapshot, SnapshotId
from millstream.vsr.core.state_machine import StateMachine
from millstream.vsr.core.tuning import HEARTBEAT_MS, Tuning

__all__ = ["MOVES", "ReplicaState", "Status"]

_WAKE: Final = SetTimer(HEARTBEAT_MS)
_NOBODY: Final = Configuration(0, (bytes(ID_BYTES),))


class Status(Enum):
    """What a member is doing."""

    INITIALIZATION = "INITIALIZATION"
    """It belongs to no epoch. It may learn the log."""
    NORMAL = "NORMAL"
    """It leads its view, or has the log of the primary of its view and follows it."""
    VIEWCHANGE = "VIEWCHANGE"
    """It has promised a view, and that view has no log yet."""
    GAP = "RECOVERY/GAP"
    """It lacks a part of the log of its view."""
    LOST = "RECOVERY/LOST"
    """Its log is lost, or its state is wrong. It waits for the log of a primary."""
    RETIRED = "RETIRED"
    """The group went on to an epoch without it."""


MOVES: Final[Mapping[Status, frozenset[Status]]] = {
    # A start finds out what it was; who is no member joins an epoch; a learner's state is wrong.
    Status.INITIALIZATION: frozenset((Status.GAP, Status.LOST, Status.RETIRED)),
    Status.NORMAL: frozenset((Status.VIEWCHANGE, Status.GAP, Status.LOST, Status.RETIRED)),
    # The view began here or elsewhere; a later view or epoch has a log that is to be fetched.
    Status.VIEWCHANGE: frozenset((Status.NORMAL, Status.GAP, Status.LOST, Status.RETIRED)),
    Status.GAP: frozenset((Status.NORMAL, Status.VIEWCHANGE, Status.LOST, Status.RETIRED)),
    # It never votes: a primary gives it the log of a view, or of the end of an epoch.
    Status.LOST: frozenset((Status.NORMAL, Status.GAP, Status.RETIRED)),
    # It is a member of a later epoch again.
    Status.RETIRED: frozenset((Status.GAP,)),
}
"""Status -> those that may follow it; each may be entered again."""


@dataclass(eq=False)
class ReplicaState:
    """What the parts of a replica share. `chance` returns numbers from 0 to below 1."""

    machine: StateMachine
    chance: Callable[[], float]
    tuning: Tuning = field(default_factory=Tuning)
    effects: list[Effect] = field(default_factory=list)
    """What this step asks for, in order."""
    now_ms: float = 0.0
    """The time of a monotonic clock of this process."""
    wall_ms: int = 0
    """The time of the wall clock. Nothing depends on it."""
    # The hard state: what a restart finds again. `Storage.hard_state` has it as one value.
    group_id: bytes = bytes(ID_BYTES)
    id: bytes = bytes(ID_BYTES)
    incarnation: int = 0
    view: int = 0
    last_normal: tuple[int, int] = (0, 0)
    """The newest epoch and view in which the log was that of the view's primary."""
    configuration: Configuration = _NOBODY
    retired: Configuration | None = None
    """The epoch that went on without this member."""
    # What it is doing.
    status: Status = Status.INITIALIZATION
    leading: bool = False
    suspended: bool = False
    """It leads, and no quorum answers."""
    deposed: bool = False
    """Suspended for good: a member of the group is in a higher view."""
    is_short: bool = False
    """Nobody answers who is not still fetching: what came now would make that longer."""
    # The log, and how far it is sent, durable, acknowledged and committed.
    log: Log = field(default_factory=Log)
    lost: bool = False
    """The log is gone, and nobody knows what was acknowledged of it."""
    flushed_lsn: int = 0
    """The primary has sent and written its log up to here."""
    durable_lsn: int = 0
    """The log is durable up to here."""
    commit_lsn: int = 0
    """The log is committed and applied up to here."""
    noop_lsn: int = 0
    """The first entry of the primary's own view: reads wait until it is committed."""
    acks: dict[bytes, int] = field(default_factory=dict)
    """How far each member has acknowledged the log of this view, as its primary knows."""
    # The replicated state and its clients.
    table: ClientTable = field(default_factory=ClientTable)
    clocks: Clocks = field(default_factory=Clocks)
    state_format: int = 1
    """What the entries mean that are applied now, and what the state looks like."""
    has_state: bool = True
    """Whether what is applied is here. If not, it is on its way, and nothing is applied."""
    is_diverged: bool = False
    """The state was wrong once."""
    stable_id: SnapshotId | None = None
    stable: Snapshot | None = None
    """The newest stable snapshot, None if its bytes are not here."""
    waiting: dict[int, list[int]] = field(default_factory=dict)
    """LSN -> tickets that are answered once it is applied."""
    in_flight: dict[tuple[int, int], int] = field(default_factory=dict)
    """Session and number of a request that is logged and not applied -> its LSN."""
    # What it has noticed.
    contradiction: str = ""
    """What was heard last that cannot be, and so was not taken."""
    repaired: int = 0
    """Damaged entries of the log that were replaced."""
    epoch: int = field(init=False)
    members: tuple[bytes, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.belong_to(self.configuration)

    # ---- status

    def become(self, status: Status) -> None:
        """Change the status; nothing else does."""
        if status is not self.status:
            assert status in MOVES[self.status], f"{self.status.name} -> {status.name}"
            self.status = status

    # ---- who

    def belong_to(self, configuration: Configuration) -> None:
        """Set the epoch."""
        self.configuration = configuration
        self.epoch, self.members = configuration.epoch, configuration.members

    @property
    def is_outside(self) -> bool:
        """Whether this node is no member: not yet, or no more."""
        return not self.members or self.status is Status.RETIRED

    @property
    def quorum(self) -> int:
        """The quorum of this epoch."""
        return self.configuration.quorum

    @property
    def primary(self) -> bytes:
        """Who leads this view if anybody does."""
        return self.configuration.primary(self.view)

    @property
    def current(self) -> bool:
        """Whether this log is the one of this view's primary, or the beginning of it."""
        return self.last_normal == (self.epoch, self.view)

    @property
    def closing(self) -> bool:
        """Whether the log ends in the entry that ends this epoch."""
        last = self.log.last
        return last is not None and last.kind is Kind.RECONFIG and last.epoch == self.epoch

    # ---- effects

    def send(self, receiver: bytes, payload: Payload) -> None:
        """Send a message to one other member."""
        assert receiver != self.id
        self.effects.append(Send(receiver, self.sealed(payload)))

    def sealed(self, payload: Payload) -> Envelope:
        """Return a message from this member, for whomever."""
        return Envelope(self.group_id, self.id, self.incarnation, self.epoch, self.view, payload)

    def broadcast(self, payload: Payload) -> None:
        """Send a message to all other members."""
        envelope = self.sealed(payload)
        for member in self.members:
            if member != self.id:
                self.effects.append(Send(member, envelope))

    def reply(self, ticket: int, code: Code, value: bytes = b"", lsn: int = 0) -> None:
        """Answer a client."""
        self.effects.append(Reply(ticket, code, value, lsn))

    def wake_after(self, after_ms: float) -> None:
        """Ask for the next Timer."""
        self.effects.append(_WAKE if after_ms == HEARTBEAT_MS else SetTimer(after_ms))

    def contradict(self, what: str) -> None:
        """Note that what was heard cannot be, if all keep their promises; it is not taken."""
        self.contradiction = what
