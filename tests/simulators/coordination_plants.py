"""Replicas with one mistake each, which the runs of `coordination_sim` have to find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from millstream.vsr.core.entries import Kind
from millstream.vsr.core.messages import StartView
from millstream.vsr.core.replica.execution import Execution
from millstream.vsr.core.replica.formats import Formats
from millstream.vsr.core.replica.learners import Learners
from millstream.vsr.core.replica.member import ReplicaState, Status
from millstream.vsr.core.replica.normal_case import NormalCase
from millstream.vsr.core.replica.parts import PartTypes
from millstream.vsr.core.replica.reads import Reads
from millstream.vsr.core.replica.reconfiguration import Reconfiguration
from millstream.vsr.core.replica.repair import NewEnd, Repair
from millstream.vsr.core.replica.replica import Replica
from millstream.vsr.core.replica.requested_changes import RequestedChanges
from millstream.vsr.core.replica.session_expiry import STEP_MS_MAX, SessionExpiry
from millstream.vsr.core.replica.snapshot_taking import Snapshots
from millstream.vsr.core.replica.state_transfer import StateTransfer
from millstream.vsr.core.replica.storage import Storage
from millstream.vsr.core.replica.view_change import ViewChange

__all__ = ["PLANTS", "planted"]


class LateStartView(ViewChange):
    """A late StartView of the current view cuts the log."""

    def on_start_view(self, envelope: Any, start: StartView) -> None:
        state = self.state
        late = envelope.view == state.view and state.current and not state.leading
        if late and state.commit_lsn <= start.op_lsn < state.log.op_lsn and not state.log.holes:
            self.repairs.repair = Repair(state.log, start.op_lsn, start.op_hash)
            self.repairs.repair.offer(start.entries)
            self.repairs.then = lambda: self.install_view(envelope.view, start.commit_lsn)
            return self.repairs.go_on()
        return super().on_start_view(envelope, start)


class OldNormal(Replica):
    """Entries of the view are appended and acknowledged with an older `last_normal`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert isinstance(self.state, OldNormalState)
        self.state.storage = self.parts.storage


class OldNormalState(ReplicaState):
    """The part of `OldNormal`."""

    storage: Storage

    @property
    def current(self) -> bool:
        follows = self.status in (Status.GAP, Status.NORMAL)
        return super().current or (follows and not self.storage.is_persisting)


class ReadLeaving(Reads):
    """Reads are answered behind the entry that ends the epoch."""

    @property
    def _may_read(self) -> bool:
        return not self.state.suspended and self.state.commit_lsn >= self.state.noop_lsn


class LeadAfterRestart(Replica):
    """A member leads the first view of an epoch again after a restart."""

    def _started_up(self) -> None:
        super()._started_up()
        state = self.state
        first = (state.epoch, state.configuration.first_view)
        idle = state.status is Status.GAP and not self.is_persisting
        leads = state.members and state.primary == state.id and state.epoch and not state.log.holes
        if idle and leads and (state.epoch, state.view) == first == state.last_normal:
            self.parts.views.lead(state.commit_lsn)


class NoopAnyEpoch(ReplicaState):
    """A new primary logs no entry of its own view after the end of the last epoch."""

    @property
    def closing(self) -> bool:
        return self.log.last is not None and self.log.last.kind is Kind.RECONFIG


class Loyal(Replica):
    """A quorum check of a suspended primary counts as a sign of life."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        reads = self.parts.reads
        assert isinstance(reads, LoyalReads)
        reads.views = self.parts.views


class LoyalReads(Reads):
    """The part of `Loyal`."""

    views: ViewChange

    def on_quorum_check(self, envelope: Any, check: Any) -> None:
        self.views.hear_primary()
        super().on_quorum_check(envelope, check)


class AckEarly(NormalCase):
    """Entries are acknowledged before they are durable."""

    def write(self, entries: Any) -> None:
        super().write(entries)
        self.state.durable_lsn = entries[-1].lsn
        if not self.state.leading:
            self.up.acknowledge()


class OwnAckEarly(NormalCase):
    """A primary counts its own copy before it is durable."""

    def acknowledge(self) -> None:
        if self.state.leading:
            self.state.acks[self.state.id] = self.state.log.op_lsn
            self.count_acks()
        else:
            super().acknowledge()


class NonceAgain(Reads):
    """A quorum check reuses its nonce."""

    def next_nonce(self) -> int:
        return self.state.incarnation


class WeakQuorum(NormalCase):
    """An entry is committed with one acknowledgement too few."""

    def count_acks(self) -> None:
        state = self.state
        lsns = sorted((state.acks.get(member, 0) for member in state.members), reverse=True)
        self.execution.advance(min(lsns[max(0, state.quorum - 2)], state.flushed_lsn))


class VolatileView(ViewChange):
    """A member votes before its view is durable."""

    def leave(self, view: int) -> None:
        super().leave(view)
        then, self.storage._then = self.storage._then, None
        assert then is not None
        then()


class NoCheck(Reads):
    """Reads are answered without a quorum check."""

    def on_read(self, read: Any) -> None:
        if self.state.leading and not self.state.suspended and self._may_read:
            self._answer(read)
        else:
            super().on_read(read)


class ReadBeforeNoop(Reads):
    """A new primary serves reads before it knows what is committed."""

    @property
    def _may_read(self) -> bool:
        return not self.state.suspended and not self.state.closing


class FaultyIsMissing(Storage):
    """A damaged entry at the end of the log is cut at a restart."""

    def load(self, image: Any) -> None:
        whole = []
        for entry in image.log:
            if not hasattr(entry, "body"):
                break
            whole.append(entry)
        super().load(image._replace(log=tuple(whole)))


class BehindTheEnd(Reconfiguration):
    """Requests are logged after the entry that ends the epoch."""

    def hold(self, request: Any) -> None:
        self.normal.order(request)


class TableOnReceipt(NormalCase):
    """A request counts as executed when it is received."""

    def order(self, request: Any) -> None:
        super().order(request)
        if request.session:
            verdict = self.execution.judge(request.instance, request.session, request.csn)
            if verdict.past.name == "NEW":
                end = self.state.log.op_lsn
                self.state.table.store(request.session, request.csn, b"+OK", end)


class CutFirst(ViewChange):
    """A member that learns of a later view cuts its log before it has the new one."""

    def follows(self, envelope: Any) -> bool:
        state, followed = self.state, super().follows(envelope)
        if not followed and envelope.view > state.view and not self.storage.is_persisting:
            self.repairs.repair = None
            end = NewEnd(min(state.commit_lsn, state.log.whole_lsn), ())
            self.storage.persist(lambda: None, end)
            state.durable_lsn = state.log.op_lsn
        return followed


class Longest(ViewChange):
    """A view change takes the longest log, whatever its view."""

    def _count_vote(self, sender: bytes, vote: Any) -> None:
        super()._count_vote(sender, vote._replace(last_normal_epoch=0, last_normal_view=0))


class LostIsGap(Replica):
    """A member that lost its log continues as if it only lacked some entries."""

    def _start(self, start: Any) -> None:
        image = start.image
        super()._start(start._replace(image=image._replace(log=()) if image.lost else image))

    def _started_up(self) -> None:
        self.state.lost = False
        super()._started_up()


class TeachAll(Learners):
    """A learner treats entries as committed that are only in its teacher's log."""

    def _teach(self, node: Any, pupil: Any, even_nothing: bool = False) -> None:
        state = self.state
        commit_lsn, state.commit_lsn = state.commit_lsn, state.flushed_lsn
        super()._teach(node, pupil, even_nothing)
        state.commit_lsn = commit_lsn


class PauseIsSilence(Replica):
    """A pause of the primary counts as silence of clients."""

    def _tick_primary(self) -> None:
        silence = self.parts.sessions._silence
        silence._worked_ms += max(0.0, self.state.now_ms - silence._last_ms - STEP_MS_MAX)
        super()._tick_primary()


class NoGrace(SessionExpiry):
    """A new primary continues the silence of clients from when it last led."""

    def begin_to_lead(self) -> None:
        pass


class EndsHere(NormalCase):
    """A primary ends a session before the entry that ends it is committed."""

    def add(self, kind: Kind, *of_request: Any) -> Any:
        entry = super().add(kind, *of_request)
        if kind is Kind.SESSION_EXPIRE:
            self.state.table.expire(map(int, of_request[0].argv))
        return entry


class OwnClock(Execution):
    """Entries have the time of the primary's clock, even if it is wrong."""

    def next_entry(self, *of_entry: Any) -> Any:
        self.state.clocks.stamp_ms = lambda wall_ms, now_ms: wall_ms  # type: ignore[method-assign]
        return super().next_entry(*of_entry)


class Forgetful(Storage):
    """Without a journal, a restarted member continues as if it had acknowledged nothing."""

    def load(self, image: Any) -> None:
        super().load(image)
        self.state.lost = image.lost


class LateFreeze(Execution):
    """A snapshot has the state of when it is written, not of when it was requested."""

    def freeze(self) -> Any:
        def pieces() -> Any:
            yield from freeze()

        freeze = super().freeze
        return pieces()


class DoneEarly(Snapshots):
    """A snapshot counts as durable before it is on the disk."""

    def write_snapshot(self, snapshot: Any, then: Any) -> None:
        super().write_snapshot(snapshot, lambda: None)
        then()


class BareSnapshot(StateTransfer):
    """A snapshot replaces a log without the entries after it that are needed."""

    def _use(self, found: Any) -> None:
        self.repairs.repair = Repair(self.state.log, found.id.lsn, found.id.link.hash)
        super()._use(found)


class CutAll(Snapshots):
    """The log is cut up to the commit LSN instead of the snapshot."""

    def _cut_for(self, lsn: int) -> int:
        return self.state.commit_lsn


class BlindToDivergence(StateTransfer):
    """A member with a diverged state ignores that."""

    def lose_state(self, right: Any) -> None:
        pass


class LeadBlind(Storage):
    """A member without its state leads."""

    def load(self, image: Any) -> None:
        super().load(image)
        self.state.has_state = True


class ForgetfulSnapshot(Execution):
    """The client table is not in the snapshot."""

    def freeze(self) -> Any:
        state = self.state
        whole, state.table = state.table, type(state.table)()
        pieces = super().freeze()
        state.table = whole
        return pieces


class OneIsEnough(Snapshots):
    """A snapshot is stable once one member has it."""

    def _count_done(self, member: bytes, done: Any) -> None:
        state = self.state
        assert isinstance(state, OneIsEnoughState)
        state.needed = 1
        super()._count_done(member, done)
        state.needed = 0


class OneIsEnoughState(ReplicaState):
    """The state of `OneIsEnough`."""

    needed = 0

    @property
    def quorum(self) -> int:
        return self.needed or super().quorum


class OldSnapshotState(StateTransfer):
    """A member installs a snapshot and keeps its old state."""

    def take_state(self, found: Any, snapshot: Any) -> None:
        super().take_state(found, snapshot)
        if snapshot is not None:
            self._restoring, self.state.has_state = None, True


class RaiseEarly(Formats):
    """The state format is raised once a quorum supports a higher one."""

    def understands(self, member: bytes, format_max: int) -> None:
        super().understands(member, format_max)
        state = self.state
        newer = sum(known > state.state_format for known in self._format_of.values())
        if newer + 1 >= state.quorum:
            self._format_of = dict.fromkeys(state.members, state.machine.format_max)


class CountedEarly(RequestedChanges):
    """A new member is counted before it has the log."""

    def _may_begin(self, members: Any, late: Any) -> bool:
        return True


class DeafToForks(Reconfiguration):
    """A member continues in its group after the group was forced to continue without it."""

    def on_start_epoch(self, envelope: Any, start: Any) -> None:
        if not start.configuration.is_fork:
            super().on_start_epoch(envelope, start)


def planted(whole: type[Replica] = Replica, **parts: type[Any]) -> type[Replica]:
    """Return a replica with other classes for some of its parts; the first one is the mistake."""
    what = next(iter(parts.values()), whole) if whole is Replica else whole
    kinds = replace(PartTypes(), **parts)
    return type(what.__name__, (whole,), {"part_types": kinds, "__doc__": what.__doc__})


PLANTS: dict[str, type[Replica]] = {
    "late_start_view": planted(views=LateStartView),
    "old_normal": planted(OldNormal, state=OldNormalState),
    "read_leaving": planted(reads=ReadLeaving),
    "lead_after_restart": LeadAfterRestart,
    "noop_any_epoch": planted(state=NoopAnyEpoch),
    "loyal": planted(Loyal, reads=LoyalReads),
    "ack_early": planted(normal=AckEarly),
    "own_ack_early": planted(normal=OwnAckEarly),
    "nonce_again": planted(reads=NonceAgain),
    "weak_quorum": planted(normal=WeakQuorum),
    "volatile_view": planted(views=VolatileView),
    "no_check": planted(reads=NoCheck),
    "read_before_noop": planted(reads=ReadBeforeNoop),
    "faulty_is_missing": planted(storage=FaultyIsMissing),
    "behind_the_end": planted(reconfiguration=BehindTheEnd),
    "table_on_receipt": planted(normal=TableOnReceipt),
    "cut_first": planted(views=CutFirst),
    "longest": planted(views=Longest),
    "lost_is_gap": LostIsGap,
    "late_freeze": planted(execution=LateFreeze),
    "done_early": planted(snapshots=DoneEarly),
    "bare_snapshot": planted(transfer=BareSnapshot),
    "cut_all": planted(snapshots=CutAll),
    "blind_to_divergence": planted(transfer=BlindToDivergence),
    "lead_blind": planted(storage=LeadBlind),
    "forgetful_snapshot": planted(execution=ForgetfulSnapshot),
    "one_is_enough": planted(snapshots=OneIsEnough, state=OneIsEnoughState),
    "old_snapshot_state": planted(transfer=OldSnapshotState),
    "teach_all": planted(learners=TeachAll),
    "pause_is_silence": PauseIsSilence,
    "no_grace": planted(sessions=NoGrace),
    "ends_here": planted(normal=EndsHere),
    "own_clock": planted(execution=OwnClock),
    "forgetful": planted(storage=Forgetful),
    "raise_early": planted(formats=RaiseEarly),
    "counted_early": planted(changes=CountedEarly),
    "deaf_to_forks": planted(reconfiguration=DeafToForks),
}
"""Name -> replica."""
