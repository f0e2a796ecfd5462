"""Replicas with one mistake each, which the schedules of `coordination_world` have to find."""

from __future__ import annotations

from typing import Any

from millstream.vsr.core.entries import Kind
from millstream.vsr.core.messages import StartView
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.repair import NewEnd, Repair
from millstream.vsr.core.replica.replica import Replica
from millstream.vsr.core.replica.session_expiry import STEP_MS_MAX

__all__ = ["PLANTS"]


class LateStartView(Replica):
    """A late StartView of the current view cuts the log."""

    def on_start_view(self, envelope: Any, start: StartView) -> None:
        late = envelope.view == self.view and self.current and not self.leading
        if late and self.commit_lsn <= start.op_lsn < self.log.op_lsn and not self.log.holes:
            self.repair = Repair(self.log, start.op_lsn, start.op_hash)
            self.repair.offer(start.entries)
            self._repaired = lambda: self._install_view(envelope.view, start.commit_lsn)
            return self.go_on_repairing()
        return super().on_start_view(envelope, start)


class OldNormal(Replica):
    """Entries of the view are appended and acknowledged with an older `last_normal`."""

    @property
    def current(self) -> bool:
        return super().current or (self.status in (Status.GAP, Status.NORMAL) and not self._then)


class ReadLeaving(Replica):
    """Reads are answered behind the entry that ends the epoch."""

    @property
    def _may_read(self) -> bool:
        return not self.suspended and self.commit_lsn >= self.noop_lsn


class LeadAfterRestart(Replica):
    """The first view of an epoch is led again after a restart."""

    def _started_up(self) -> None:
        super()._started_up()
        first = (self.epoch, self.configuration.first_view)
        idle = self.status is Status.GAP and not self.flipping and not self.log.holes
        leads = self.members and self.primary == self.id and self.epoch
        if idle and leads and (self.epoch, self.view) == first == self.last_normal:
            self.lead(self.commit_lsn)


class NoopAnyEpoch(Replica):
    """No entry of the own view behind the end of the epoch before."""

    @property
    def closing(self) -> bool:
        return self.log.last is not None and self.log.last.kind is Kind.RECONFIG


class Loyal(Replica):
    """A check of a suspended primary counts as hearing it."""

    def on_quorum_check(self, envelope: Any, check: Any) -> None:
        self._hear_primary()
        super().on_quorum_check(envelope, check)


class AckEarly(Replica):
    """Entries are acknowledged before they are durable."""

    def _write(self, entries: Any) -> None:
        super()._write(entries)
        self.durable_lsn = entries[-1].lsn
        if not self.leading:
            self.acknowledge()


class OwnAckEarly(Replica):
    """A primary counts its own copy before it is durable."""

    def acknowledge(self) -> None:
        if self.leading:
            self.acks[self.id] = self.log.op_lsn
            self._count_acks()
        else:
            super().acknowledge()


class NonceAgain(Replica):
    """A quorum check uses its nonce again."""

    def next_nonce(self) -> int:
        return self.incarnation


class WeakQuorum(Replica):
    """One acknowledgement too few commits."""

    def _count_acks(self) -> None:
        lsns = sorted((self.acks.get(member, 0) for member in self.members), reverse=True)
        self.advance(min(lsns[max(0, self.quorum - 2)], self.flushed_lsn))


class VolatileView(Replica):
    """The view is not durable before the vote."""

    def leave(self, view: int) -> None:
        super().leave(view)
        then, self._then = self._then, None
        assert then is not None
        then()


class NoCheck(Replica):
    """Reads are answered without asking anybody."""

    def on_read(self, read: Any) -> None:
        if self.leading and not self.suspended and self._may_read:
            self._answer(read)
        else:
            super().on_read(read)


class ReadBeforeNoop(Replica):
    """A new primary reads before it knows what is committed."""

    @property
    def _may_read(self) -> bool:
        return not self.suspended and not self.closing


class FaultyIsMissing(Replica):
    """A damaged entry at the end is cut at a restart, as if it had never been there."""

    def load(self, image: Any) -> None:
        whole = []
        for entry in image.log:
            if not hasattr(entry, "body"):
                break
            whole.append(entry)
        super().load(image._replace(log=tuple(whole)))


class BehindTheEnd(Replica):
    """Requests are logged behind the entry that ends the epoch."""

    def hold(self, request: Any) -> None:
        self.order(request)


class TableOnReceipt(Replica):
    """A request counts as executed when it is received."""

    def order(self, request: Any) -> None:
        super().order(request)
        if request.session:
            verdict = self.judge(request.instance, request.session, request.csn)
            if verdict.past.name == "NEW":
                self.table.store(request.session, request.csn, b"+OK", self.log.op_lsn)


class CutFirst(Replica):
    """Who hears of a later view cuts its log down to the commit before the new log is here."""

    def follows(self, envelope: Any) -> bool:
        followed = super().follows(envelope)
        if not followed and envelope.view > self.view and not self.flipping:
            self.repair = None
            self.flip(lambda: None, NewEnd(min(self.commit_lsn, self.log.whole_lsn), ()))
            self.durable_lsn = self.log.op_lsn
        return followed


class Longest(Replica):
    """The longest log counts, whatever view it is of."""

    def _count_vote(self, sender: bytes, vote: Any) -> None:
        super()._count_vote(sender, vote._replace(last_normal_epoch=0, last_normal_view=0))


class LostIsGap(Replica):
    """A member that has lost its log goes on as if it had only missed something."""

    def load(self, image: Any) -> None:
        super().load(image._replace(log=()) if image.lost else image)

    def _started_up(self) -> None:
        self.lost = False
        super()._started_up()


class TeachAll(Replica):
    """A learner takes for committed what is only in its teacher's log."""

    def _teach(self, node: Any, pupil: Any, even_nothing: bool = False) -> None:
        commit_lsn, self.commit_lsn = self.commit_lsn, self.flushed_lsn
        super()._teach(node, pupil, even_nothing)
        self.commit_lsn = commit_lsn


class PauseIsSilence(Replica):
    """Time in which the primary did not run counts as silence of clients."""

    def tick_primary(self) -> None:
        self._silence._worked_ms += max(0.0, self.now_ms - self._silence._last_ms - STEP_MS_MAX)
        super().tick_primary()


class NoGrace(Replica):
    """A new primary goes on counting the silence of when it last led."""

    def lead(self, commit_lsn: int) -> None:
        begin, self._silence.begin = self._silence.begin, lambda now_ms: None  # type: ignore[method-assign]
        super().lead(commit_lsn)
        self._silence.begin = begin  # type: ignore[method-assign]


class EndsHere(Replica):
    """A primary ends a session before the entry that does is committed."""

    def add(self, kind: Kind, *of_request: Any) -> Any:
        entry = super().add(kind, *of_request)
        if kind is Kind.SESSION_EXPIRE:
            self.table.expire(map(int, of_request[0].argv))
        return entry


class OwnClock(Replica):
    """Entries show the primary's clock, whatever it shows."""

    def next_entry(self, *of_entry: Any) -> Any:
        self.clocks.stamp_ms = lambda wall_ms, now_ms: wall_ms  # type: ignore[method-assign]
        return super().next_entry(*of_entry)


class Forgetful(Replica):
    """Without a journal a restarted member goes on as if it had acknowledged nothing."""

    def load(self, image: Any) -> None:
        super().load(image)
        self.lost = image.lost


class LateFreeze(Replica):
    """A snapshot is of the state when it is written, not of when it was asked for."""

    def freeze(self) -> Any:
        def pieces() -> Any:
            yield from freeze()

        freeze = super().freeze
        return pieces()


class DoneEarly(Replica):
    """A snapshot counts before it is on the disk."""

    def _write_snapshot(self, snapshot: Any, then: Any) -> None:
        super()._write_snapshot(snapshot, lambda: None)
        then()


class BareSnapshot(Replica):
    """A snapshot replaces a log without the entries up to the end that is needed."""

    def _use(self, found: Any) -> None:
        self.repair = Repair(self.log, found.id.lsn, found.id.link.hash)
        super()._use(found)


class CutAll(Replica):
    """The log is cut up to what is committed, not to the snapshot."""

    def _cut_for(self, lsn: int) -> int:
        return self.commit_lsn


class BlindToDivergence(Replica):
    """Whoever has another state than the others does not mind."""

    def lose_state(self, right: Any) -> None:
        pass


class LeadBlind(Replica):
    """A member without its state leads."""

    def load(self, image: Any) -> None:
        super().load(image)
        self.has_state = True


class ForgetfulSnapshot(Replica):
    """The client table is not in the snapshot."""

    def freeze(self) -> Any:
        whole, self.table = self.table, type(self.table)()
        pieces = super().freeze()
        self.table = whole
        return pieces


class OneIsEnough(Replica):
    """A snapshot is stable once one member has it."""

    def _count_done(self, member: bytes, done: Any) -> None:
        quorum, self.needed = self.quorum, 1
        assert quorum
        super()._count_done(member, done)
        self.needed = 0

    @property
    def quorum(self) -> int:
        return getattr(self, "needed", 0) or super().quorum


class OldSnapshotState(Replica):
    """After another member's snapshot the own state is kept."""

    def take_state(self, found: Any, snapshot: Any) -> None:
        super().take_state(found, snapshot)
        if snapshot is not None:
            self._restoring, self.has_state = None, True


class RaiseEarly(Replica):
    """The state format is raised once a quorum understands a higher one."""

    def on_prepare_ok(self, envelope: Any, ok: Any) -> None:
        super().on_prepare_ok(envelope, ok)
        newer = sum(known > self.state_format for known in self._format_of.values())
        if newer + 1 >= self.quorum:
            self._format_of = dict.fromkeys(self.members, self.machine.format_max)


class CountedEarly(Replica):
    """A new member is counted before it has the log."""

    def _may_begin(self, members: Any, late: Any) -> bool:
        return True


class DeafToForks(Replica):
    """A member goes on in its group though that was forced to go on without it."""

    def on_start_epoch(self, envelope: Any, start: Any) -> None:
        if not start.configuration.is_fork:
            super().on_start_epoch(envelope, start)


PLANTS: dict[str, type[Replica]] = {
    "late_start_view": LateStartView,
    "old_normal": OldNormal,
    "read_leaving": ReadLeaving,
    "lead_after_restart": LeadAfterRestart,
    "torn_install": Replica,
    "noop_any_epoch": NoopAnyEpoch,
    "loyal": Loyal,
    "ack_early": AckEarly,
    "own_ack_early": OwnAckEarly,
    "nonce_again": NonceAgain,
    "weak_quorum": WeakQuorum,
    "volatile_view": VolatileView,
    "no_check": NoCheck,
    "read_before_noop": ReadBeforeNoop,
    "faulty_is_missing": FaultyIsMissing,
    "behind_the_end": BehindTheEnd,
    "table_on_receipt": TableOnReceipt,
    "cut_first": CutFirst,
    "longest": Longest,
    "lost_is_gap": LostIsGap,
    "late_freeze": LateFreeze,
    "done_early": DoneEarly,
    "bare_snapshot": BareSnapshot,
    "cut_all": CutAll,
    "blind_to_divergence": BlindToDivergence,
    "lead_blind": LeadBlind,
    "forgetful_snapshot": ForgetfulSnapshot,
    "one_is_enough": OneIsEnough,
    "old_snapshot_state": OldSnapshotState,
    "teach_all": TeachAll,
    "pause_is_silence": PauseIsSilence,
    "no_grace": NoGrace,
    "ends_here": EndsHere,
    "own_clock": OwnClock,
    "forgetful": Forgetful,
    "raise_early": RaiseEarly,
    "counted_early": CountedEarly,
    "deaf_to_forks": DeafToForks,
}
"""Name -> replica; `torn_install` is the disk's mistake, and the world makes it."""
