"""The parts of a replica, composed, and the order in which they are called.

Invariants:
1. A part is made of parts that were made before it. It knows only those below it.
2. An upcall goes to parts here, and at most decides which ones.

Elsewhere: what the parts are (`member`), what calls them first (`replica`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from millstream.vsr.core.effects import Code, Request
from millstream.vsr.core.entries import Entry
from millstream.vsr.core.messages import Envelope
from millstream.vsr.core.replica.execution import Execution
from millstream.vsr.core.replica.forced_groups import ForcedGroups
from millstream.vsr.core.replica.formats import Formats
from millstream.vsr.core.replica.learners import Learners
from millstream.vsr.core.replica.log_repair import LogRepair
from millstream.vsr.core.replica.member import ReplicaState
from millstream.vsr.core.replica.normal_case import NormalCase
from millstream.vsr.core.replica.reads import Reads
from millstream.vsr.core.replica.reconfiguration import Reconfiguration
from millstream.vsr.core.replica.recovery import Recovery
from millstream.vsr.core.replica.reporting import Reporting
from millstream.vsr.core.replica.requested_changes import RequestedChanges
from millstream.vsr.core.replica.session_expiry import SessionExpiry
from millstream.vsr.core.replica.snapshot_taking import Snapshots
from millstream.vsr.core.replica.state_transfer import StateTransfer
from millstream.vsr.core.replica.storage import Storage
from millstream.vsr.core.replica.throttling import Throttling
from millstream.vsr.core.replica.upcalls import Upcalls
from millstream.vsr.core.replica.view_change import ViewChange
from millstream.vsr.core.snapshots import Snapshot, SnapshotId
from millstream.vsr.core.state_machine import StateMachine

__all__ = ["PartTypes", "Parts"]


@dataclass(frozen=True)
class PartTypes:
    """The class of each part. Simulators replace classes to plant mistakes."""

    state: type[ReplicaState] = ReplicaState
    execution: type[Execution] = Execution
    storage: type[Storage] = Storage
    repairs: type[LogRepair] = LogRepair
    normal: type[NormalCase] = NormalCase
    reads: type[Reads] = Reads
    views: type[ViewChange] = ViewChange
    recovery: type[Recovery] = Recovery
    learners: type[Learners] = Learners
    reconfiguration: type[Reconfiguration] = Reconfiguration
    changes: type[RequestedChanges] = RequestedChanges
    formats: type[Formats] = Formats
    sessions: type[SessionExpiry] = SessionExpiry
    snapshots: type[Snapshots] = Snapshots
    transfer: type[StateTransfer] = StateTransfer


class Parts:
    """All parts of one replica. They are the `Upcalls` of the lower ones."""

    def __init__(
        self, kinds: PartTypes, machine: StateMachine, chance: Callable[[], float],
        defer: Callable[[Envelope], None],
    ) -> None:  # fmt: skip
        self.defer = defer
        self.state = state = kinds.state(machine, chance)
        up: Upcalls = self
        self.execution = execution = kinds.execution(state, up)
        self.storage = storage = kinds.storage(state, up, execution)
        self.repairs = repairs = kinds.repairs(state, up)
        self.normal = normal = kinds.normal(state, up, execution, storage, repairs)
        self.reads = reads = kinds.reads(state, up, execution, normal)
        self.views = views = kinds.views(state, up, execution, storage, repairs, normal, reads)
        self.recovery = kinds.recovery(state, up, execution, repairs, normal, reads, views)
        self.learners = kinds.learners(state, up, execution, storage, normal, reads)
        self.reconfiguration = kinds.reconfiguration(
            state, up, storage, repairs, normal, reads, views, self.learners
        )
        self.changes = changes = kinds.changes(
            state, normal, views, self.learners, self.reconfiguration
        )
        self.formats = kinds.formats(state, normal, changes)
        self.sessions = kinds.sessions(state, normal, reads, changes)
        self.snapshots = kinds.snapshots(state, up, execution, storage, normal, changes)
        self.transfer = kinds.transfer(
            state, up, execution, storage, repairs, normal, reads, views, self.recovery,
            self.learners, self.reconfiguration, self.snapshots,
        )  # fmt: skip
        self.throttling = Throttling(state, normal, reads)
        self.forced = ForcedGroups(
            state, up, storage, normal, views, self.learners, self.reconfiguration
        )
        self.reporting = Reporting(
            state, repairs, normal, reads, views, self.recovery, self.learners,
            self.reconfiguration, changes, self.snapshots, self.transfer,
        )  # fmt: skip

    def begin(self) -> None:
        """Begin with no work under way and no known member: the process starts."""
        self.normal.begin()
        self.reads.begin()
        self.views.begin()
        self.recovery.begin()
        self.learners.begin()
        self.reconfiguration.begin()
        self.changes.begin()
        self.formats.begin()
        self.sessions.begin()

    # ---- the log is executed

    def committed(self) -> None:
        """Something was committed here."""
        self.normal.committed()
        self.reads.committed()
        self.learners.committed()
        self.changes.committed()
        self.snapshots.committed()

    def end_epoch(self, closing: Entry) -> None:
        """The entry that ends this epoch is committed."""
        self.reconfiguration.end_epoch(closing)

    def touch(self, session: int) -> None:
        """The client of a session is alive."""
        self.sessions.touch(session)

    def ended(self, sessions: Iterable[int]) -> None:
        """These sessions are over."""
        self.sessions.ended(sessions)

    def take_snapshot(self, asked: Entry) -> None:
        """The log asks for a snapshot of the state of this moment."""
        self.snapshots.take_snapshot(asked)

    def hold_stable(self, named: Entry) -> None:
        """The log names the snapshot that all agree on."""
        self.snapshots.hold_stable(named)

    def take_state(self, found: SnapshotId, snapshot: Snapshot | None) -> None:
        """The state has to become that of a snapshot; None: it has to be fetched."""
        self.transfer.take_state(found, snapshot)

    def lose_state(self, right: SnapshotId) -> None:
        """The own state is wrong from this snapshot on."""
        self.transfer.lose_state(right)

    # ---- requests

    @property
    def holding(self) -> bool:
        """Whether requests wait instead of being logged."""
        return self.changes.holding

    @property
    def full(self) -> bool:
        """Whether to refuse requests."""
        return self.throttling.full

    def hold(self, request: Request) -> None:
        """Keep a request until the next epoch runs."""
        self.reconfiguration.hold(request)

    def look_again(self, request: Request) -> None:
        """Answer a request that waits like a read: nothing is logged as long as it does."""
        self.reconfiguration.on_read(request)

    # ---- other members

    def heard_from(self, member: bytes) -> None:
        """A member answered this primary."""
        self.reads.heard_from(member)
        self.views.heard_from(member)

    def acknowledge(self) -> None:
        """More of the log is durable here."""
        if not self.learners.acknowledge():
            self.normal.acknowledge()

    def offer_snapshot(self, receiver: bytes) -> None:
        """Offer a snapshot in place of entries that are no longer in the log."""
        self.transfer.offer_snapshot(receiver)

    def found_snapshot(self, named: SnapshotId, giver: bytes) -> Snapshot | None:
        """Return what was fetched if it may stand for this; else fetch it, to be asked again."""
        return self.transfer.found_snapshot(named, giver)

    @property
    def sources(self) -> tuple[bytes, ...]:
        """Who may have entries that are missing here."""
        return self.reconfiguration.sources

    # ---- views

    def follows(self, envelope: Envelope) -> bool:
        """Return whether a primary's message is of this view, with the log of this view."""
        return self.views.follows(envelope)

    def propose(self) -> None:
        """No quorum answers: ask the others for a new view."""
        self.views.propose()

    def begin_to_lead(self) -> None:
        """This member is about to lead a view."""
        self.throttling.begin()
        self.snapshots.begin_to_lead()
        self.sessions.begin_to_lead()
        self.formats.begin()

    def view_entered(self) -> None:
        """This member is in another view."""
        self.changes.view_entered()

    def suspend(self) -> None:
        """No quorum answers this primary, or it leads for the last moments: take nothing more."""
        self.reads.suspend()
        self.reconfiguration.suspended()
        self.changes.suspended()
        self.snapshots.answer_askers(Code.UNKNOWN)

    def resumed(self) -> None:
        """A quorum is in this suspended primary's view."""
        self.views.resumed()
        self.normal.flush_if_due()

    def stand_down(self) -> None:
        """This member leads no more, and fetches nothing more but the log of a later epoch."""
        led, repairs = self.state.leading, self.repairs
        self.forced.stand_down()
        goal = (repairs.repair, repairs.then) if self.reconfiguration.entering else (None, None)
        self.views.stand_down()
        repairs.repair, repairs.then = goal
        self.reconfiguration.refuse_held(Code.NOTPRIMARY)
        if led:
            self.changes.stood_down()
        self.snapshots.answer_askers(Code.UNKNOWN)

    # ---- logs that cannot be had, or are not what they were taken for

    def give_up(self) -> None:
        """Fetch no more what was fetched."""
        self.reconfiguration.give_up()
        self.views.give_up()
        self.recovery.forget_answers()

    def lose_log(self, what: str) -> None:
        """The own log differs from another one where none may."""
        self.recovery.lose_log(what)

    # ---- epochs

    @property
    def entering(self) -> bool:
        """Whether the log of a later epoch is being fetched: this one is over."""
        return self.reconfiguration.entering

    def ask_epoch(self, sender: bytes) -> None:
        """Somebody speaks of an unknown epoch: ask what it is."""
        self.reconfiguration.ask_epoch(sender)
