"""One replica of a group, whole: events in, effects out.

Invariants:
1. While a standing is on its way to the disk everything but the disk's reports waits, at most
   `DEFERRED_MAX` events and `DEFERRED_BYTES_MAX`: of what is too much, messages are lost as on any
   network, and requests are refused.
2. Messages of a member's earlier process are not listened to once a later one was heard.
3. One epoch at a time: a message of another epoch is answered with what shows which one it is.

Elsewhere: every decision, in the classes this one stands on; `member` names them.

Source: Liskov and Cowling 2012; V2R2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from millstream.vsr.core.configuration import generation
from millstream.vsr.core.effects import (
    AdoptSnapshot,
    Append,
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
    Request,
    Resume,
    Soon,
    Start,
    Superseded,
    TakeSnapshot,
    Timer,
    Touch,
    WriteSnapshot,
    WriteStanding,
)
from millstream.vsr.core.log import size_of
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
from millstream.vsr.core.replica.forced_groups import Forcing
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.recovery import FETCH_MS
from millstream.vsr.core.report import Report
from millstream.vsr.core.state_machine import StateMachine
from millstream.vsr.core.tuning import HEARTBEAT_MS

__all__ = ["DEFERRED_BYTES_MAX", "DEFERRED_MAX", "Replica"]

_OF_RECOVERY: Final = (Recovery, RecoveryResponse)
_ASKING: Final = (
    Request, Read, Resume, Reconfigure, MovePrimary, TakeSnapshot, CopyState, Force,
)  # fmt: skip
DEFERRED_MAX: Final = 4096
"""Events that wait for one disk operation."""
DEFERRED_BYTES_MAX: Final = 32 * 1024 * 1024
"""What they carry; one may overshoot it."""


class Replica(Forcing):
    """A member of a group; `step` is all there is to call, and `report`."""

    def __init__(self, machine: StateMachine, chance: Callable[[], float]) -> None:
        super().__init__(machine, chance)
        self._deferred: deque[Event] = deque()
        self._deferred_bytes = 0
        self._incarnations: dict[bytes, int] = {}
        self._commit_hint = 0
        self._trouble, self._trouble_ms = "", 0.0
        self._handlers: dict[type[Any], Callable[[Envelope, Any], None]] = {
            Prepare: self.on_prepare,
            PrepareOk: self.on_prepare_ok,
            Commit: self.on_commit,
            QuorumCheck: self.on_quorum_check,
            QuorumCheckOk: self.on_quorum_check_ok,
            StartViewChange: self.on_start_view_change,
            DoViewChange: self.on_do_view_change,
            StartView: self.on_start_view,
            GetView: self.on_get_view,
            GetState: self.on_get_state,
            NewState: self.on_new_state,
            Recovery: self.on_recovery,
            RecoveryResponse: self.on_recovery_response,
            SnapshotDone: self.on_snapshot_done,
        }
        self._any_epoch: dict[type[Any], Callable[[Envelope, Any], None]] = {
            GetEntries: self.on_get_entries,
            Entries: self.on_entries,
            StartEpoch: self.on_start_epoch,
            EpochStarted: self.on_epoch_started,
            Learn: self.on_learn,
            LearnOk: self.on_learn_ok,
            GetSnapshot: self.on_get_snapshot,
            SnapshotPart: self.on_snapshot_part,
            TooOld: self.on_too_old,
        }
        self._events: dict[type[Any], Callable[[Any], None]] = {
            Start: self._start,
            Message: self._receive,
            Timer: self._tick,
            Request: self._on_request,
            Read: self._on_read,
            Resume: self.on_read,
            Touch: self._on_touch,
            Reconfigure: self.on_reconfigure,
            MovePrimary: self.on_move_primary,
            TakeSnapshot: self.on_take_snapshot,
            CopyState: self.on_copy_state,
            Force: self.on_force,
            Superseded: self.on_superseded,
            Soon: self._on_soon,
        }
        """The disk's reports never wait, and are not here."""
        self._begin_parts()

    def _begin_parts(self) -> None:
        self.begin_normal()
        self.begin_reading()
        self.begin_views()
        self.begin_recovering()
        self.begin_learning()
        self.begin_epochs()
        self.begin_changing()
        self.begin_formats()
        self.begin_sessions()

    def step(self, now_ms: float, wall_ms: int, *events: Event) -> list[Effect]:
        """Take events that happened at the same time, and return what to do, in order.

        What they ask for leaves together, so that many in one step cost less than one by one.

        `now_ms`: a clock of this process that only grows. `wall_ms`: what people's clocks show;
        nothing depends on it.
        """
        self.now_ms, self.wall_ms = now_ms, wall_ms
        for event in events:
            self._take_event(event)
        if self._then is None:
            if self._is_new or self._is_asked:
                self.end_step()
            self.call_soon()
        effects, self.effects = self.effects, []
        return effects if self.configuration.journalled else self._without_journal(effects)

    def _without_journal(self, effects: list[Effect]) -> list[Effect]:
        """Have nothing written but standings: what would be is as durable as it ever gets."""
        kept: list[Effect] = []
        for effect in effects:
            match effect:
                case Install(op, standing=standing) | InstallSnapshot(op, standing=standing):
                    kept.append(WriteStanding(op, standing))
                case Append(op) | WriteSnapshot(op) | AdoptSnapshot(op):
                    self._take_event(DiskDone(op))
                case _:
                    kept.append(effect)
        if not self.flipping:
            self.end_step()
        effects, self.effects = self.effects, []
        return kept + self._without_journal(effects) if effects else kept

    def _take_event(self, event: Event) -> None:
        if type(event) is DiskDone:
            if not self.flipped(event.op):
                self.written(event.op)
        elif type(event) is DiskGaveUp:
            self.not_written(event.op)
        elif self._then is not None:
            self._defer(event)
        else:
            self._events[type(event)](event)
        while self._deferred and self._then is None:
            waited = self._deferred.popleft()
            self._deferred_bytes -= _bytes_of(waited)
            self._events[type(waited)](waited)

    def _defer(self, event: Event) -> None:
        if isinstance(event, Timer) or (
            len(self._deferred) < DEFERRED_MAX and self._deferred_bytes < DEFERRED_BYTES_MAX
        ):
            self._deferred.append(event)
            self._deferred_bytes += _bytes_of(event)
        elif isinstance(event, _ASKING):
            self.reply(event.ticket, Code.BUSY)

    def defer(self, envelope: Envelope) -> None:
        """Receive this again once the disk is done."""
        self._defer(Message(envelope))

    def _on_request(self, request: Request) -> None:
        self.touch(request.session)
        self.on_request(request)

    def _on_read(self, read: Read) -> None:
        self.touch(read.session)
        self.on_read(read)

    def _on_touch(self, touch: Touch) -> None:
        self.touch(touch.session)

    def _on_soon(self, _: Soon) -> None:
        self.on_soon()

    def _start(self, start: Start) -> None:
        self.begun_ms = self.now_ms
        self.load(start.image)
        self.restore_now()
        self._begin_parts()
        self.wake_after(HEARTBEAT_MS * self.chance())
        self.flip(self._started_up)

    def _started_up(self) -> None:
        self.durable_lsn = self.log.op_lsn
        if self.retired is not None:
            self.status = Status.RETIRED
            self.advance(self._commit_hint)
        elif not self.members:
            self.status = Status.INITIALIZATION
            self.advance(self._commit_hint)
        elif self.lost:
            self.status = Status.LOST
        else:
            self.status = Status.GAP
            self.advance(self._commit_hint)
            new = self.epoch == self.view == self.log.op_lsn == 0
            if new or (len(self.members) == 1 and self.has_state):
                self.leave(self.view + 1)

    def _tick(self, _: Timer) -> None:
        self.wake_after(self.tick_ms)
        self.answer_stale_reads()
        self.tick_changes()
        self.tick_snapshots()
        self.tick_fetching()
        self._look_for_trouble()
        if self.status is not Status.LOST:
            self.advance(self._commit_hint)
        self.note_commit()
        if self.status not in (Status.INITIALIZATION, Status.RETIRED):
            self.tick_epoch()
            if self.status is Status.LOST:
                self.ask_to_recover()
            elif self.leading:
                self.tick_primary()
            else:
                self.tick_backup()
        elif self.repair is not None:
            self.go_on_repairing()

    def _receive(self, message: Message) -> None:
        (envelope,) = message
        group_id, sender, incarnation, epoch, view, payload = envelope
        known = self._incarnations.get(sender, 0)
        if group_id != self.group_id or sender == self.id or incarnation < known:
            return
        if incarnation > known and self.is_source(sender):
            self._incarnations[sender] = incarnation
        kind = type(payload)
        if handler := self._any_epoch.get(kind):
            handler(envelope, payload)
        elif kind is GetEpoch or epoch < self.epoch:
            self.answer_lower_epoch(sender, epoch)
        elif epoch > self.epoch:
            self.spoke_ms[sender] = self.now_ms
            self.ask_epoch(sender)
        elif self.status is Status.RETIRED:
            self.answer_lower_epoch(sender, epoch)
        elif sender in self.members:
            if self.status is Status.LOST and kind not in _OF_RECOVERY:
                return
            if kind not in _OF_RECOVERY:
                self.spoke_ms[sender] = self.now_ms
            if self.leading and view > self.view:
                self.hear_higher_view(view)
            self._handlers[kind](envelope, payload)

    # ---- what it says about itself

    def report(self) -> Report:
        """Return a picture of this moment."""
        members = self.members
        is_quorum_ok = self._is_quorum_ok()
        others = [*(member for member in members if member != self.id), *self.pupils]
        return Report(
            self._role(), self._status(), self.epoch, self.view, members,
            self.primary if members else None, self.log.op_lsn, self.commit_lsn, self.commit_lsn,
            tuple((member, self.lag(member)) for member in others) if self.leading else (),
            self.snapshot_number, is_quorum_ok, self.fault_tolerance if is_quorum_ok else 0,
            len(self.table), self.reads_waiting + self.requests_waiting, self.view_changed_ms,
            self.view_reason, self.repaired, self.is_diverged, self.is_data_lost,
            self.contradiction, self.state_format, self.machine.format_max, self._trouble,
            self.now_ms - self._trouble_ms if self._trouble else 0.0,
        )  # fmt: skip

    @property
    def told_commit_lsn(self) -> int | None:
        """What is committed as far as the primary, which is heard, said; None: it is not heard."""
        if self.leading:
            return None if self.suspended else self.commit_lsn
        is_told = self.status is Status.NORMAL and self.hears_primary and self.told_lsn > 0
        return max(self.told_lsn, self.commit_lsn) if is_told else None

    @property
    def troubled(self) -> bool:
        """Whether it cannot do its work, perhaps only for a moment."""
        return bool(self._trouble)

    def _look_for_trouble(self) -> None:
        """Note why this member cannot do its work, and since when."""
        before, self._trouble = self._trouble, self._reason()
        if not before and self._trouble:
            self._trouble_ms = self.now_ms

    def _reason(self) -> str:
        silent_ms, newest = self.now_ms - self.got_ms, self.newest.epoch
        if self.status is Status.RETIRED and generation(newest) > generation(self.epoch):
            return (
                f"the group was forced to go on without this member, in epoch {newest}: what is "
                "here counts no more"
            )
        if not self.members or self.status is Status.RETIRED:
            return ""
        if self.is_data_lost:
            return "more members than may have lost their logs: what was committed may be gone"
        if missing := self.missing_snapshot:
            return f"its state is missing: it wants snapshot {missing} of another member"
        if not self.has_state:
            return "its state is being restored from a snapshot"
        if self.repair is not None and self.repair.wanted is not None and silent_ms > FETCH_MS:
            return (
                f"entry {self.repair.wanted.lsn} of the log is missing or damaged here, and no "
                "member has given it"
            )
        if self.status is Status.LOST:
            return "its log is lost: it wants that of a primary"
        if self.leading and self.suspended:
            silent = [one for one in self.members if self.is_silent(one)]
            return f"no quorum answers; silent: {' '.join(one.hex() for one in silent)}"
        if self.status is Status.VIEWCHANGE:
            return "no primary leads: not enough members vote for one"
        if self.status is Status.GAP:
            return "it has not heard a primary since it started"
        return "" if self.leading or self.hears_primary else "the primary is not heard"

    def _role(self) -> str:
        if self.is_learning:
            return "learner"
        if self.status is Status.RETIRED:
            return "retired"
        if not self.members:
            return "idle"
        return "primary" if self.leading else "backup"

    def _status(self) -> str:
        if self.status is Status.NORMAL and not self.has_state:
            return Status.GAP.value
        ending = self.status is Status.NORMAL and self.closing
        return "RECONFIGURATION" if ending else self.status.value

    def _is_quorum_ok(self) -> bool:
        if self.leading:
            return not self.suspended
        return self.status is Status.NORMAL and self.hears_primary


def _bytes_of(event: Event) -> int:
    match event:
        case Request(body=body) | Read(body=body):
            return sum(map(len, body.argv))
        case Message(Envelope(payload=SnapshotPart(data=data))):
            return len(data)
        case Message(envelope):
            return sum(map(size_of, getattr(envelope.payload, "entries", ())))
    return 0
