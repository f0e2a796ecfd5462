"""One replica of a group: events in, effects out.

Invariants:
1. While a hard state is on its way to the disk, all events but the disk's reports wait, at most
   `DEFERRED_MAX` and `DEFERRED_BYTES_MAX`. Beyond that, messages are lost as on any network, and
   requests are refused.
2. Once a later process of a member was heard, messages of its earlier processes are dropped.
3. A message of another epoch is answered with what shows which epoch there is.

Elsewhere: every decision, in the parts that `member` names.

Source: Liskov and Cowling 2012; V2R2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from millstream.vsr.core.client_table import ClientTable
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.effects import (
    AdoptSnapshot,
    Append,
    CallSoon,
    Code,
    CopyState,
    DiskDone,
    DiskGaveUp,
    Effect,
    Event,
    Force,
    Install,
    InstallSnapshot,
    Message,
    MovePrimary,
    Read,
    Reconfigure,
    Refused,
    Request,
    Resume,
    Soon,
    Start,
    Superseded,
    TakeSnapshot,
    Timer,
    Touch,
    WriteHardState,
    WriteSnapshot,
)
from millstream.vsr.core.log import Log, size_of
from millstream.vsr.core.messages import (
    Commit,
    DoViewChange,
    Entries,
    Envelope,
    EpochStarted,
    GetEntries,
    GetEpoch,
    GetSnapshot,
    GetState,
    GetView,
    Learn,
    LearnOk,
    NewState,
    Prepare,
    PrepareOk,
    QuorumCheck,
    QuorumCheckOk,
    Recovery,
    RecoveryResponse,
    SnapshotDone,
    SnapshotPart,
    StartEpoch,
    StartView,
    StartViewChange,
    TooOld,
)
from millstream.vsr.core.replica.invariants import check_invariants
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.parts import Parts, PartTypes
from millstream.vsr.core.replica.session_expiry import Shown
from millstream.vsr.core.report import Report
from millstream.vsr.core.snapshots import Snapshot
from millstream.vsr.core.state_machine import StateMachine
from millstream.vsr.core.tuning import HEARTBEAT_MS

__all__ = ["DEFERRED_BYTES_MAX", "DEFERRED_MAX", "VIEW_STEPS", "Replica"]

_VOTING: Final = (Status.NORMAL, Status.VIEWCHANGE, Status.GAP)
_OF_RECOVERY: Final = (Recovery, RecoveryResponse)
_ASKING: Final = (
    Request, Read, Resume, Reconfigure, MovePrimary, TakeSnapshot, CopyState, Force,
)  # fmt: skip
DEFERRED_MAX: Final = 4096
"""Most events that wait for one disk operation."""
DEFERRED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Most bytes of these events. One event may exceed it."""
VIEW_STEPS: Final = 1000
"""A lone member begins up to this many views higher, by chance, at each start. So versions
that it gave are hardly ever given again after its directory was set back."""


class Replica:
    """A member of a group. Callers use only `step` and `report`."""

    part_types = PartTypes()

    def __init__(self, machine: StateMachine, chance: Callable[[], float]) -> None:
        self.parts = parts = Parts(self.part_types, machine, chance, self.defer)
        self.state = parts.state
        self._is_called_soon = False
        self._deferred: deque[Event] = deque()
        self._deferred_bytes = 0
        self._incarnations: dict[bytes, int] = {}
        self._handlers: dict[type[Any], Callable[[Envelope, Any], None]] = {
            Prepare: parts.normal.on_prepare,
            PrepareOk: self._on_prepare_ok,
            Commit: parts.normal.on_commit,
            QuorumCheck: parts.reads.on_quorum_check,
            QuorumCheckOk: parts.reads.on_quorum_check_ok,
            StartViewChange: parts.views.on_start_view_change,
            DoViewChange: parts.views.on_do_view_change,
            StartView: parts.views.on_start_view,
            GetView: parts.views.on_get_view,
            GetState: self._on_get_state,
            NewState: parts.normal.on_new_state,
            Recovery: parts.recovery.on_recovery,
            RecoveryResponse: parts.recovery.on_recovery_response,
            SnapshotDone: parts.snapshots.on_snapshot_done,
        }
        self._any_epoch: dict[type[Any], Callable[[Envelope, Any], None]] = {
            GetEntries: self._on_get_entries,
            Entries: parts.repairs.on_entries,
            StartEpoch: parts.reconfiguration.on_start_epoch,
            EpochStarted: parts.reconfiguration.on_epoch_started,
            Learn: parts.learners.on_learn,
            LearnOk: self._on_learn_ok,
            GetSnapshot: parts.transfer.on_get_snapshot,
            SnapshotPart: parts.transfer.on_snapshot_part,
            TooOld: parts.transfer.on_too_old,
        }
        self._events: dict[type[Any], Callable[[Any], None]] = {
            Start: self._start,
            Message: self._receive,
            Timer: self._tick,
            Request: self._on_request,
            Read: self._on_read,
            Resume: parts.reconfiguration.on_read,
            Touch: self._on_touch,
            Refused: self._on_refused,
            Reconfigure: parts.changes.on_reconfigure,
            MovePrimary: parts.changes.on_move_primary,
            TakeSnapshot: parts.snapshots.on_take_snapshot,
            CopyState: parts.snapshots.on_copy_state,
            Force: parts.forced.on_force,
            Superseded: parts.reconfiguration.on_superseded,
            Soon: self._on_soon,
        }
        """Disk effects under way. The disk's reports never wait."""

    # ---- events

    def step(self, now_ms: float, wall_ms: int, *events: Event) -> list[Effect]:
        """Take events that happened at the same time, and return what to do, in order.

        Their effects leave together, so many events in one step cost less than one by one.
        `now_ms`: a monotonic clock of this process. `wall_ms`: the time for people; nothing
        depends on it.
        """
        state = self.state
        state.now_ms, state.wall_ms = now_ms, wall_ms
        for event in events:
            self._take_event(event)
        if not self.parts.storage.is_persisting:
            self._end_step()
            self._call_soon()
        effects, state.effects = state.effects, []
        return effects if state.configuration.journalled else self._without_journal(effects)

    def _end_step(self) -> None:
        self.parts.normal.end_step()
        self.parts.reads.end_step()

    def _without_journal(self, effects: list[Effect]) -> list[Effect]:
        """Drop all disk effects but hard states: without a journal nothing gets more durable."""
        kept: list[Effect] = []
        for effect in effects:
            match effect:
                case Install(op, hard_state=hard_state) | InstallSnapshot(
                    op, hard_state=hard_state
                ):
                    kept.append(WriteHardState(op, hard_state))
                case Append(op) | WriteSnapshot(op) | AdoptSnapshot(op):
                    self._take_event(DiskDone(op))
                case _:
                    kept.append(effect)
        if not self.parts.storage.is_persisting:
            self._end_step()
        effects, self.state.effects = self.state.effects, []
        return kept + self._without_journal(effects) if effects else kept

    def _take_event(self, event: Event) -> None:
        parts = self.parts
        if type(event) is DiskDone:
            self._on_disk_done(event.op)
        elif type(event) is DiskGaveUp:
            parts.snapshots.not_written(event.op)
        elif parts.storage.is_persisting:
            self._defer(event)
        else:
            self._events[type(event)](event)
        while self._deferred and not parts.storage.is_persisting:
            waited = self._deferred.popleft()
            self._deferred_bytes -= _bytes_of(waited)
            self._events[type(waited)](waited)

    def _on_disk_done(self, op: int) -> None:
        parts = self.parts
        if parts.storage.persisted(op):
            parts.snapshots.compare()  # what could not be compared before
        elif not parts.snapshots.written(op):
            parts.normal.written(op)

    def _defer(self, event: Event) -> None:
        if isinstance(event, Timer) or (
            len(self._deferred) < DEFERRED_MAX and self._deferred_bytes < DEFERRED_BYTES_MAX
        ):
            self._deferred.append(event)
            self._deferred_bytes += _bytes_of(event)
        elif isinstance(event, _ASKING):
            self.state.reply(event.ticket, Code.BUSY)

    def defer(self, envelope: Envelope) -> None:
        """Receive this event again once the disk is done."""
        self._defer(Message(envelope))

    def _on_request(self, request: Request) -> None:
        self.parts.sessions.touch(request.session)
        self.parts.normal.on_request(request)

    def _on_read(self, read: Read) -> None:
        self.parts.sessions.touch(read.session)
        self.parts.reconfiguration.on_read(read)

    def _on_touch(self, touch: Touch) -> None:
        self.parts.sessions.touch(touch.session)

    def _on_refused(self, refused: Refused) -> None:
        state = self.state
        if state.status in _VOTING and refused.member == state.primary != state.id:
            self.parts.views.on_refused()

    # ---- slices of what takes long

    def _work(self) -> None:
        self.parts.snapshots.work()
        self.parts.transfer.restore_some()

    def _call_soon(self) -> None:
        """Ask to be called for more work, once."""
        parts = self.parts
        if not self._is_called_soon and (
            parts.transfer.is_restoring or parts.snapshots.has_work or parts.execution.has_to_apply
        ):
            self._is_called_soon = True
            self.state.effects.append(CallSoon())

    def _on_soon(self, _: Soon) -> None:
        parts = self.parts
        self._is_called_soon = False
        self._work()
        if parts.execution.has_to_apply and not parts.storage.is_persisting:
            parts.execution.go_on_applying()

    # ---- starting

    def _start(self, start: Start) -> None:
        parts = self.parts
        parts.forced.begun_ms = self.state.now_ms
        parts.storage.load(start.image)
        parts.transfer.restore_now()
        parts.begin()
        self.state.wake_after(HEARTBEAT_MS * self.state.chance())
        parts.storage.persist(self._started_up)

    def _started_up(self) -> None:
        parts = self.parts
        state, commit_hint = self.state, parts.storage.commit_hint
        state.durable_lsn = state.log.op_lsn
        if state.retired is not None:
            state.become(Status.RETIRED)
            parts.execution.advance(commit_hint)
        elif not state.members:
            state.become(Status.INITIALIZATION)
            parts.execution.advance(commit_hint)
        elif state.lost:
            state.become(Status.LOST)
        else:
            state.become(Status.GAP)
            parts.execution.advance(commit_hint)
            new = state.epoch == state.view == state.log.op_lsn == 0
            if new:
                parts.views.leave(1)
            elif len(state.members) == 1 and state.has_state:
                parts.views.leave(state.view + 1 + int(state.chance() * VIEW_STEPS))

    # ---- time

    def _tick(self, _: Timer) -> None:
        parts = self.parts
        state = self.state
        state.wake_after(state.tuning.tick_ms)
        parts.reads.answer_stale_reads()
        parts.changes.tick()
        parts.normal.shared_bytes = 0
        self._is_called_soon = False
        self._work()
        parts.snapshots.tick()
        parts.transfer.tick()
        parts.reporting.look_for_trouble()
        if state.status is not Status.LOST:
            parts.execution.advance(parts.storage.commit_hint)
        parts.normal.note_commit()
        if state.status not in (Status.INITIALIZATION, Status.RETIRED):
            parts.reconfiguration.tick()
            if state.status is Status.LOST:
                parts.recovery.ask()
            elif state.leading:
                self._tick_primary()
            else:
                parts.views.tick_backup()
        elif parts.repairs.repair is not None:
            parts.repairs.go_on()

    def _tick_primary(self) -> None:
        parts = self.parts
        parts.reads.tick_primary()
        parts.views.tick_primary()
        parts.changes.tick_primary()
        parts.formats.tick_primary()
        parts.sessions.tick_primary()
        parts.throttling.tick_primary()
        parts.forced.tick_primary()

    # ---- messages

    def _receive(self, message: Message) -> None:
        parts = self.parts
        (envelope,) = message
        state = self.state
        group_id, sender, incarnation, epoch, view, payload = envelope
        known = self._incarnations.get(sender, 0)
        if group_id != state.group_id or sender == state.id or incarnation < known:
            return
        if incarnation > known and parts.reconfiguration.is_source(sender):
            self._incarnations[sender] = incarnation
        kind = type(payload)
        if handler := self._any_epoch.get(kind):
            handler(envelope, payload)
        elif kind is GetEpoch or epoch < state.epoch:
            parts.reconfiguration.answer_lower_epoch(sender, epoch)
        elif epoch > state.epoch:
            parts.forced.spoke_ms[sender] = state.now_ms
            parts.reconfiguration.ask_epoch(sender)
        elif state.status is Status.RETIRED:
            parts.reconfiguration.answer_lower_epoch(sender, epoch)
        elif sender in state.members:
            if state.status is Status.LOST and kind not in _OF_RECOVERY:
                return
            if kind not in _OF_RECOVERY:
                parts.forced.spoke_ms[sender] = state.now_ms
            if state.leading and view > state.view:
                parts.views.hear_higher_view(view)
            self._handlers[kind](envelope, payload)

    def _on_prepare_ok(self, envelope: Envelope, ok: PrepareOk) -> None:
        parts = self.parts
        parts.normal.on_prepare_ok(envelope, ok)
        parts.changes.acknowledged()
        parts.formats.understands(envelope.sender, ok.format_max)

    def _on_learn_ok(self, envelope: Envelope, ok: LearnOk) -> None:
        self.parts.learners.on_learn_ok(envelope, ok)
        self.parts.changes.learned()

    def _on_get_state(self, envelope: Envelope, asked: GetState) -> None:
        parts = self.parts
        parts.throttling.on_get_state(envelope, asked)
        parts.reads.fetches(envelope)
        parts.normal.on_get_state(envelope, asked)

    def _on_get_entries(self, envelope: Envelope, asked: GetEntries) -> None:
        self.parts.reads.fetches(envelope)
        self.parts.normal.on_get_entries(envelope, asked)

    # ---- what it shows

    def check_invariants(self) -> None:
        """Assert what holds after each step; simulators call it.

        Raises:
            AssertionError: something does not hold.
        """
        check_invariants(self.parts)
        waiting = sum(not isinstance(event, Timer) for event in self._deferred)
        assert waiting <= DEFERRED_MAX, "too much waits for the disk"
        assert self.is_persisting or not self._deferred, "events wait, and no disk operation runs"

    def report(self) -> Report:
        """Return a picture of this moment."""
        return self.parts.reporting.report()

    @property
    def troubled(self) -> bool:
        """Whether the member cannot do its work, perhaps only for a moment."""
        return self.parts.reporting.troubled

    @property
    def told_commit_lsn(self) -> int | None:
        """What is committed as far as the primary, which is heard, said; None: it is not heard."""
        return self.parts.reporting.told_commit_lsn

    def sessions_after(self, number: int) -> list[Shown]:
        """Return the first sessions that began later than that one, in their order."""
        return self.parts.sessions.sessions_after(number)

    def take_copy(self) -> Snapshot | None:
        """Return the last copy that `CopyState` asked for, and keep it no more."""
        return self.parts.snapshots.take_copy()

    @property
    def group_id(self) -> bytes:
        """The group."""
        return self.state.group_id

    @property
    def id(self) -> bytes:
        """The node that this is a member of the group for."""
        return self.state.id

    @property
    def incarnation(self) -> int:
        """Counts the starts of its process."""
        return self.state.incarnation

    @property
    def configuration(self) -> Configuration:
        """The epoch, with its members."""
        return self.state.configuration

    @property
    def epoch(self) -> int:
        """The epoch of its configuration."""
        return self.state.epoch

    @property
    def members(self) -> tuple[bytes, ...]:
        """The members of its configuration."""
        return self.state.members

    @property
    def view(self) -> int:
        """The view that it is in, or has promised."""
        return self.state.view

    @property
    def last_normal(self) -> tuple[int, int]:
        """The newest epoch and view in which its log was the primary's."""
        return self.state.last_normal

    @property
    def status(self) -> Status:
        """What it is doing."""
        return self.state.status

    @property
    def leading(self) -> bool:
        """Whether it is a primary."""
        return self.state.leading

    @property
    def suspended(self) -> bool:
        """Whether it leads and no quorum answers."""
        return self.state.suspended

    @property
    def log(self) -> Log:
        """Its log."""
        return self.state.log

    @property
    def commit_lsn(self) -> int:
        """Its log is committed and applied up to here."""
        return self.state.commit_lsn

    @property
    def machine(self) -> StateMachine:
        """What the entries are applied to."""
        return self.state.machine

    @property
    def table(self) -> ClientTable:
        """The sessions, and the replies that are kept for them."""
        return self.state.table

    @property
    def is_persisting(self) -> bool:
        """Whether a hard state is on its way to the disk: events wait for it."""
        return self.parts.storage.is_persisting

    @property
    def has_state(self) -> bool:
        """Whether what is applied is here."""
        return self.state.has_state

    @property
    def stable(self) -> Snapshot | None:
        """The newest stable snapshot, None if its bytes are not here."""
        return self.state.stable

    @property
    def contradiction(self) -> str:
        """What was heard last that cannot be, and so was not taken."""
        return self.state.contradiction


def _bytes_of(event: Event) -> int:
    match event:
        case Request(body=body) | Read(body=body):
            return sum(map(len, body.argv))
        case Message(Envelope(payload=SnapshotPart(data=data))):
            return len(data)
        case Message(envelope):
            return sum(map(size_of, getattr(envelope.payload, "entries", ())))
    return 0
