"""View change: another member becomes primary when this one is silent, and no commit is lost.

Invariants:
1. A member leaves a view only when a quorum proposes another one, so one member with a bad
   connection deposes nobody. A member proposes if the primary is silent, or refuses connections.
   The view it enters is durable before it sends anything in it.
2. The old log and its `last_normal` stay until the new log is complete. Then both change in one
   durable step, which never cuts what is committed here.
3. A log that is already that of the current view is never cut: late copies of a StartView only
   add.
4. A member that has promised a view acknowledges nothing in a lower one, also after a restart.
5. A restarted member never goes on as primary: it asks for the view, or for another one.

Elsewhere: choosing the log (`log_choice`), fetching it (`log_repair`), epochs
(`reconfiguration`).

Source: Liskov and Cowling 2012, sections 4.2, 4.3 and 5.2; V2R2, "View Change".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millstream.vsr.core.effects import Code
from millstream.vsr.core.entries import Kind
from millstream.vsr.core.messages import (
    FRAME_MARKS_MAX,
    DoViewChange,
    Envelope,
    GetView,
    StartView,
    StartViewChange,
)
from millstream.vsr.core.replica.execution import Execution
from millstream.vsr.core.replica.log_choice import Choice, choose, contradiction
from millstream.vsr.core.replica.log_repair import LogRepair
from millstream.vsr.core.replica.member import ReplicaState, Status
from millstream.vsr.core.replica.normal_case import BATCH_BYTES_MAX, NormalCase
from millstream.vsr.core.replica.reads import Reads
from millstream.vsr.core.replica.storage import Storage
from millstream.vsr.core.replica.upcalls import Upcalls

__all__ = ["FAILURES_MAX", "JOIN_SHARE", "PATIENCE_MS_MAX", "ViewChange"]

PATIENCE_MS_MAX: Final = 5000.0
"""The time-out grows by half with every attempt that fails, up to this."""
FAILURES_MAX: Final = 8
"""Attempts that are counted. After so many the time-out is at its maximum, whatever was drawn."""
JOIN_SHARE: Final = 0.5
"""Part of the shortest time-out: a member that has not heard the primary for so long joins another
member that asks for a new view."""


class ViewChange:
    """Changes views: StartViewChange, DoViewChange, StartView, GetView."""

    def __init__(
        self, state: ReplicaState, up: Upcalls, execution: Execution, storage: Storage,
        repairs: LogRepair, normal: NormalCase, reads: Reads,
    ) -> None:  # fmt: skip
        self.state, self.up = state, up
        self.execution, self.storage, self.repairs = execution, storage, repairs
        self.normal, self.reads = normal, reads
        self.view_changed_ms = 0.0
        self.view_reason = ""
        self.begin()

    def begin(self) -> None:
        """Begin as if the primary had been heard just now."""
        self._votes: dict[bytes, DoViewChange] = {}
        self._proposals: dict[bytes, int] = {}
        self._choice: Choice | None = None
        self.adopting: tuple[int, int] | None = None
        self.repairs.begin_epoch()
        self._failures = 0
        self.why = ""
        self.resigned = self._is_refused = False
        self._new_patience()
        self._heard_ms = self.state.now_ms

    def _new_patience(self) -> None:
        self._drawn = self.state.chance()
        self._grown = 1.5 ** min(self._failures, FAILURES_MAX)

    @property
    def _patience_ms(self) -> float:
        least, most = self.state.tuning.view_time_out_ms
        drawn = least + (most - least) * self._drawn
        return min(max(PATIENCE_MS_MAX, most), drawn * self._grown)

    def heard_from(self, member: bytes) -> None:
        """Forget the member's proposal: it follows this primary."""
        if not self.state.suspended:
            self._proposals.pop(member, None)

    def resumed(self) -> None:
        """Forget the own proposal: a quorum is in this view."""
        self._proposals.pop(self.state.id, None)

    def hear_primary(self) -> None:
        """Note a sign of life of the primary."""
        self._heard_ms, self._proposals = self.state.now_ms, {}
        self._is_refused = False

    def on_refused(self) -> None:
        """Ask for another view at once: the primary's address refuses connections."""
        self._is_refused = True
        self.why = "the primary's process has ended"
        self.propose()

    @property
    def hears_primary(self) -> bool:
        """Whether the primary was heard lately."""
        return self.state.now_ms - self._heard_ms <= self._patience_ms

    # ---- proposing and leaving

    def propose(self, at_least: int = 0) -> None:
        """Ask the others for a higher view than any that was heard of."""
        state = self.state
        view = max([state.view + 1, at_least, *self._proposals.values()])
        self._proposals[state.id] = view
        state.broadcast(StartViewChange(view, self.resigned))
        self._count_proposals()

    def on_start_view_change(self, envelope: Envelope, asked: StartViewChange) -> None:
        """Join a member that does not hear the primary either. Change once a quorum agrees."""
        state = self.state
        known = self._proposals.get(envelope.sender, 0)
        self._proposals[envelope.sender] = max(asked.proposed, known)
        silent_ms = state.now_ms - self._heard_ms
        silent = self._is_refused or silent_ms >= JOIN_SHARE * state.tuning.view_time_out_ms[0]
        if asked.resigned and envelope.sender == state.primary and envelope.view == state.view:
            silent, self.why = True, "the primary handed over"
        joins = not state.leading and silent and state.id not in self._proposals
        if joins and asked.proposed > state.view:
            self.propose()
        else:
            self._count_proposals()

    def _count_proposals(self) -> None:
        state = self.state
        for view in sorted(set(self._proposals.values()), reverse=True):
            agreed = sum(1 for member in state.members if self._proposals.get(member) == view)
            if view > state.view and agreed >= state.quorum:
                return self.leave(view)
        return None

    def hear_higher_view(self, view: int) -> None:
        """Note, as primary, that a member is in a higher view: it cannot follow this one again."""
        state = self.state
        self.why = "a member was in a higher view"
        self.up.suspend()
        state.deposed = True
        self._proposals[state.id] = max(view, self._proposals.get(state.id, 0))

    def resign(self, view: int) -> None:
        """Stop leading for good, in favour of the primary of that higher view."""
        self.why, self.resigned = "the primary handed over", True
        self.reads.refuse_reads(Code.NOTPRIMARY)
        self.up.suspend()
        self.state.deposed = True
        self.propose(view)

    def in_view(self, why: str = "") -> None:
        """Note since when, and why, this member is in this view."""
        self.view_changed_ms = self.state.now_ms
        self.view_reason = why or self.why or "other members asked for it"
        self.why, self.resigned = "", False
        self.up.view_entered()

    def leave(self, view: int) -> None:
        """Go to a higher view, durably, then vote there."""
        state = self.state
        assert view > state.view
        self.up.stand_down()
        state.become(Status.VIEWCHANGE)
        state.view = view
        self._votes, self._proposals, self._choice = {}, {}, None
        self._failures += 1
        self._new_patience()
        self._heard_ms, self._is_refused = state.now_ms, False
        self.storage.persist(self._left)

    def stand_down(self) -> None:
        """Stop leading, and fetch nothing more for the old view."""
        state = self.state
        if state.leading:
            self.normal.drop_open_batch()
        state.leading = state.suspended = state.deposed = False
        self.reads.refuse_reads(Code.NOTPRIMARY)
        self.execution.forget_clients()
        self.repairs.forget()
        self.adopting = None

    def _left(self) -> None:
        self.state.broadcast(StartViewChange(self.state.view))
        self._vote()

    def _vote(self) -> None:
        state = self.state
        digest = state.log.hash_at(state.commit_lsn)
        assert digest is not None
        if state.log.op_lsn - state.commit_lsn > FRAME_MARKS_MAX:
            return  # the state is missing for very long, and nothing can be applied
        vote = DoViewChange(
            *state.last_normal, state.log.op_lsn, state.log.head.hash, state.commit_lsn, digest,
            state.log.marks(state.commit_lsn), state.wall_ms,
        )  # fmt: skip
        if state.primary == state.id:
            self._count_vote(state.id, vote)
        else:
            state.send(state.primary, vote)

    # ---- choosing and leading

    def on_do_view_change(self, envelope: Envelope, vote: DoViewChange) -> None:
        """Count a vote of this view. A vote of a higher view is reason enough to go there."""
        if envelope.view > self.state.view:
            self.leave(envelope.view)
            self.up.defer(envelope)
        elif envelope.view == self.state.view:
            self._count_vote(envelope.sender, vote)

    def _count_vote(self, sender: bytes, vote: DoViewChange) -> None:
        state = self.state
        if state.status is not Status.VIEWCHANGE or state.primary != state.id or self.up.entering:
            return None
        if not state.has_state:
            return None
        self._votes[sender] = vote
        state.clocks.hear(sender, vote.wall_ms, state.now_ms)
        if len(self._votes) < state.quorum:
            return None
        votes = list(self._votes.values())
        if what := contradiction(votes):
            return state.contradict(what)
        choice = choose(votes, len(state.members))
        if choice is None:
            return None
        known, self._choice = self._choice, choice
        if self.repairs.repair is None or known is None or known[:2] != choice[:2]:
            self.repairs.fetch(choice.lsn, choice.hash, self.install_choice)
        return self.repairs.go_on()

    def install_choice(self) -> None:
        """Begin the view with the chosen log, which is whole now."""
        state = self.state
        assert self._choice is not None
        known = [(vote.commit_lsn, vote.commit_hash) for vote in self._votes.values()]
        if not self.keeps(self._choice.lsn, known):
            return
        suffix = self.repairs.take_result()
        commit_lsn = self._choice.commit_lsn
        state.last_normal = (state.epoch, state.view)
        self.storage.persist(lambda: self.lead(commit_lsn), suffix)

    def keeps(self, end_lsn: int, known: Iterable[tuple[int, bytes]] = ()) -> bool:
        """Return whether the fetched log has all that is committed, here or as others said.

        Else give up.
        """
        state = self.state
        assert self.repairs.repair is not None
        if (self.repairs.repair.snapshot_lsn or state.commit_lsn) < state.commit_lsn:
            self.up.give_up()  # more was committed here while the rest came
            return False
        committed = state.commit_lsn, state.log.hash_at(state.commit_lsn)
        for lsn, digest in (committed, *known):
            is_short = lsn > end_lsn
            if is_short or self.repairs.repair.hash_at(lsn) not in (None, digest):
                lacks = "is shorter than" if is_short else "lacks"
                state.contradict(f"a log {lacks} what is committed")
                self.up.give_up()
                return False
        return True

    def give_up(self) -> None:
        """Stop fetching: the log cannot be had, or is not the expected one."""
        self.repairs.forget()
        self.adopting, self._choice = None, None

    def lead(self, commit_lsn: int) -> None:
        """Become this view's primary."""
        state = self.state
        self.up.begin_to_lead()
        self.normal.begin()
        self.reads.begin()
        state.become(Status.NORMAL)
        state.leading, self._failures = True, 0
        self._new_patience()
        self._votes, self._proposals, self._choice = {}, {}, None
        state.durable_lsn = state.flushed_lsn = state.log.op_lsn
        state.acks[state.id] = state.durable_lsn
        self._know_in_flight()
        state.clocks.hear(state.id, state.wall_ms, state.now_ms)
        state.clocks.compare(state.members, state.log.head.ts_ms)
        state.noop_lsn = state.log.op_lsn + 1
        self.in_view()
        if not state.closing:
            noop = self.execution.next_entry(Kind.NOOP, self.execution.first_body)
            self.normal.write([noop])
            state.flushed_lsn = noop.lsn
        for member in state.members:
            if member != state.id:
                self._start_view(member, state.commit_lsn)
        epoch = state.epoch
        self.execution.advance(commit_lsn)
        if state.epoch == epoch and state.leading and not self.storage.is_persisting:
            self.normal.count_acks()

    def _know_in_flight(self) -> None:
        state = self.state
        for lsn in range(state.commit_lsn + 1, state.log.op_lsn + 1):
            entry = state.log.entry_at(lsn)
            assert entry is not None
            if entry.header.session:
                state.in_flight[(entry.header.session, entry.header.csn)] = lsn

    def _start_view(self, receiver: bytes, known_lsn: int) -> None:
        state = self.state
        entries = state.log.ending_at(
            state.flushed_lsn, known_lsn, state.tuning.batch_entries_max, BATCH_BYTES_MAX
        )
        digest = state.log.hash_at(state.flushed_lsn)
        assert digest is not None
        commit = self.normal.sign_of_life()
        state.send(receiver, StartView(state.flushed_lsn, digest, *commit[:2], tuple(entries)))

    def on_get_view(self, envelope: Envelope, asked: GetView) -> None:
        """Send a member the log of this view, unless no quorum can follow in it any more."""
        if self.state.leading and not self.state.deposed:
            self._start_view(envelope.sender, asked.commit_lsn)

    # ---- following

    def _is_of_primary(self, envelope: Envelope) -> bool:
        return envelope.sender == self.state.configuration.primary(envelope.view)

    def follows(self, envelope: Envelope) -> bool:
        """Return whether to take entries of this primary. If not, ask for the view's log."""
        state = self.state
        if envelope.view < state.view or not self._is_of_primary(envelope):
            return False
        if envelope.view == state.view and state.current:
            self.hear_primary()
            return True
        if self.adopting == (state.epoch, envelope.view):
            self.hear_primary()
        elif self.adopting is None or self.adopting < (state.epoch, envelope.view):
            self.up.stand_down()
            state.become(Status.GAP)
            state.send(envelope.sender, GetView(state.commit_lsn))
        return False

    def on_start_view(self, envelope: Envelope, start: StartView) -> None:
        """Take over the log of this view or a higher one.

        Only add to it if that is done already.
        """
        state = self.state
        if envelope.view < state.view or not self._is_of_primary(envelope):
            return
        self.hear_primary()
        if envelope.view == state.view and state.current:
            self.normal.extend(
                envelope.sender, start.entries, start.op_lsn, start.commit_lsn, start.commit_hash
            )
            return
        if self.up.entering or start.op_lsn < state.commit_lsn:
            return  # what is said now of a log that ended before what is committed here, is late
        if self.adopting is None or self.adopting < (state.epoch, envelope.view):
            self._adopt(envelope.view, start)
            self.repairs.giver = envelope.sender
        if self.repairs.repair is not None:
            self.repairs.repair.offer(start.entries)
            self.repairs.go_on()

    def _adopt(self, view: int, start: StartView) -> None:
        self.up.stand_down()
        self.state.become(Status.GAP)
        self._votes, self._choice = {}, None
        self.adopting = (self.state.epoch, view)
        self.repairs.fetch(
            start.op_lsn, start.op_hash, lambda: self.install_view(view, start.commit_lsn)
        )

    def install_view(self, view: int, commit_lsn: int) -> None:
        """Follow the primary of a view whose log is whole here now."""
        state = self.state
        assert self.repairs.repair is not None
        if not self.keeps(self.repairs.repair.lsn):
            return
        suffix = self.repairs.take_result()
        self.up.stand_down()
        state.view, state.last_normal = view, (state.epoch, view)
        self.storage.persist(lambda: self.follow_on(commit_lsn), suffix)

    def follow_on(self, commit_lsn: int) -> None:
        """Follow the primary of this view: from now on this is its log, durably."""
        state = self.state
        self.normal.begin()
        self._failures = 0
        self._new_patience()
        self.hear_primary()
        state.become(Status.NORMAL)
        self.in_view()
        state.durable_lsn = state.log.op_lsn
        self.up.acknowledge()
        self.execution.advance(commit_lsn)

    # ---- time

    @property
    def _forfeits(self) -> bool:
        """Whether to let the next member lead at once: it may have the state that is missing here.

        Once all had their turn, another view does not help. It is asked for as after any failure.
        """
        state = self.state
        hopes = self._failures <= len(state.members)
        return state.primary == state.id and not state.has_state and hopes

    @property
    def _asks_for_view(self) -> bool:
        """Whether the view's log is missing, could be taken, and was not asked for."""
        state = self.state
        follows = state.status is Status.GAP and state.primary != state.id
        return follows and not self.normal.is_getting and not self.normal.disk_is_behind

    def tick_primary(self) -> None:
        """Hand over if the others commit without the own disk, which takes nothing more."""
        state = self.state
        if not state.leading or state.suspended or not self.normal.disk_is_behind:
            return
        if state.commit_lsn > state.durable_lsn:
            best = max(state.members, key=lambda member: state.acks.get(member, 0))
            ahead = state.members.index(best) - state.view
            self.resign(state.view + ahead % len(state.members))

    def tick_backup(self) -> None:
        """Repeat what was not answered. Ask for another view if the primary is silent."""
        state = self.state
        if state.now_ms - self._heard_ms > self._patience_ms:
            self.why = "the primary was silent"
            self.propose()
        if self.storage.is_persisting:
            return
        if state.status is Status.VIEWCHANGE and self._forfeits:
            self.propose()
        elif state.status is Status.VIEWCHANGE:
            self._vote()
        elif self._asks_for_view:
            state.send(state.primary, GetView(state.commit_lsn))
        if self.repairs.repair is not None and not self.storage.is_persisting:
            self.repairs.go_on()
