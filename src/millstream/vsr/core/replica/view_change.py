"""Changing the view: from a primary that is not heard to the next one, without losing a commit.

Invariants:
1. A view is left only when a quorum proposes another, so one member that hears badly deposes
   nobody; and the view that is entered is durable before anything is said about it.
2. The old log and its `last_normal` stay until the new log is whole, then both change in one
   durable step, which never cuts what is committed here.
3. A log that is the current view's already is never cut: late copies of a StartView add at most.
4. A member that has promised a view acknowledges nothing in a lower one, also after a restart.
5. A restart never goes on leading: the member asks for the view, or for another one.

Elsewhere: whose log it is (`choosing`), what is missing of it (`repair`), epochs (`epochs`).

Source: Liskov and Cowling 2012, sections 4.2, 4.3 and 5.2; V2R2, "View Change".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from millstream.vsr.core.effects import Code
from millstream.vsr.core.entries import Kind
from millstream.vsr.core.messages import (
    FRAME_MARKS_MAX,
    DoViewChange,
    Entries,
    Envelope,
    GetEntries,
    GetView,
    StartView,
    StartViewChange,
)
from millstream.vsr.core.replica.log_choice import Choice, choose, contradiction
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.normal_case import BATCH_BYTES_MAX
from millstream.vsr.core.replica.reads import Reading
from millstream.vsr.core.replica.repair import Repair

__all__ = [
    "FAILURES_MAX", "JOIN_SHARE", "PATIENCE_MS", "PATIENCE_MS_MAX", "PATIENCE_SPREAD_MS", "Views",
]  # fmt: skip

PATIENCE_MS: Final = 600
"""A member that has not heard its primary for so long, or a little longer, asks for another; if
nothing else is set."""
PATIENCE_SPREAD_MS: Final = 300
"""So much longer at most: drawn anew each time, so that members do not ask all at once."""
PATIENCE_MS_MAX: Final = 5000.0
"""The time grows by half with every attempt that fails, up to this."""
FAILURES_MAX: Final = 8
"""Attempts that are counted: after so many the time is at its end, whatever was drawn."""
JOIN_SHARE: Final = 0.5
"""Of the shortest silence after which members ask: who has not heard the primary for so long joins
in when another one asks."""


class Views(Reading):
    """StartViewChange, DoViewChange, StartView, GetView, GetEntries, Entries."""

    view_time_out_ms = PATIENCE_MS, PATIENCE_MS + PATIENCE_SPREAD_MS

    def begin_views(self) -> None:
        """Have heard the primary just now."""
        self._votes: dict[bytes, DoViewChange] = {}
        self._proposals: dict[bytes, int] = {}
        self._choice: Choice | None = None
        self._adopting: tuple[int, int] | None = None
        self._repaired: Callable[[], None] | None = None
        self._asked = 0
        self.got_ms = self.now_ms
        """When the last of what is missing came, entries or a part of a snapshot."""
        self.giver = b""
        """Who has just shown to have what is missing here."""
        self._failures = 0
        self._why = ""
        self.resigned = False
        self._new_patience()
        self._heard_ms = self.now_ms

    def _new_patience(self) -> None:
        self._drawn = self.chance()
        self._grown = 1.5 ** min(self._failures, FAILURES_MAX)

    @property
    def _patience_ms(self) -> float:
        least, most = self.view_time_out_ms
        drawn = least + (most - least) * self._drawn
        return min(max(PATIENCE_MS_MAX, most), drawn * self._grown)

    def heard_from(self, member: bytes) -> None:
        """Also forget its proposal: it follows this primary."""
        super().heard_from(member)
        if not self.suspended:
            self._proposals.pop(member, None)

    def resumed(self) -> None:
        """Also forget the own proposal."""
        self._proposals.pop(self.id, None)
        super().resumed()

    def _hear_primary(self) -> None:
        self._heard_ms, self._proposals = self.now_ms, {}

    @property
    def hears_primary(self) -> bool:
        """Whether the primary was heard lately."""
        return self.now_ms - self._heard_ms <= self._patience_ms

    # ---- proposing and leaving

    def propose(self, at_least: int = 0) -> None:
        """Ask the others for a higher view than any that was heard of."""
        view = max([self.view + 1, at_least, *self._proposals.values()])
        self._proposals[self.id] = view
        self.broadcast(StartViewChange(view, self.resigned))
        self._count_proposals()

    def on_start_view_change(self, envelope: Envelope, asked: StartViewChange) -> None:
        """Join a member that does not hear the primary either; go once a quorum agrees."""
        known = self._proposals.get(envelope.sender, 0)
        self._proposals[envelope.sender] = max(asked.proposed, known)
        silent = self.now_ms - self._heard_ms >= JOIN_SHARE * self.view_time_out_ms[0]
        if asked.resigned and envelope.sender == self.primary and envelope.view == self.view:
            silent, self._why = True, "the primary handed over"
        joins = not self.leading and silent and self.id not in self._proposals
        if joins and asked.proposed > self.view:
            self.propose()
        else:
            self._count_proposals()

    def _count_proposals(self) -> None:
        for view in sorted(set(self._proposals.values()), reverse=True):
            agreed = sum(1 for member in self.members if self._proposals.get(member) == view)
            if view > self.view and agreed >= self.quorum:
                return self.leave(view)
        return None

    def hear_higher_view(self, view: int) -> None:
        """Know, as primary, that a member is in a higher view: it cannot follow this one again."""
        self._why = "a member was in a higher view"
        self.suspend()
        self.deposed = True
        self._proposals[self.id] = max(view, self._proposals.get(self.id, 0))

    def resign(self, view: int) -> None:
        """Give up leading for good, in favour of the primary of that higher view."""
        self._why, self.resigned = "the primary handed over", True
        self.refuse_reads(Code.NOTPRIMARY)
        self.suspend()
        self.deposed = True
        self.propose(view)

    def in_view(self, why: str = "") -> None:
        """Note since when this member is in this view, and for what reason."""
        self.view_changed_ms = self.now_ms
        self.view_reason = why or self._why or "other members asked for it"
        self._why, self.resigned = "", False

    def leave(self, view: int) -> None:
        """Go to a higher view, durably; then vote there."""
        assert view > self.view
        self.stand_down()
        self.status, self.view = Status.VIEWCHANGE, view
        self._votes, self._proposals, self._choice = {}, {}, None
        self._failures += 1
        self._new_patience()
        self._heard_ms = self.now_ms
        self.flip(self._left)

    def stand_down(self) -> None:
        """Lead no more, and fetch nothing more for the old view."""
        if self.leading:
            self.drop_open_batch()
        self.leading = self.suspended = self.deposed = False
        self.refuse_reads(Code.NOTPRIMARY)
        self.forget_clients()
        self.repair, self._repaired, self._adopting = None, None, None

    def _left(self) -> None:
        self.broadcast(StartViewChange(self.view))
        self._vote()

    def _vote(self) -> None:
        digest = self.log.hash_at(self.commit_lsn)
        assert digest is not None
        if self.log.op_lsn - self.commit_lsn > FRAME_MARKS_MAX:
            return  # the state is missing for very long, and nothing can be applied
        vote = DoViewChange(
            *self.last_normal, self.log.op_lsn, self.log.head.hash, self.commit_lsn, digest,
            self.log.marks(self.commit_lsn), self.wall_ms,
        )  # fmt: skip
        if self.primary == self.id:
            self._count_vote(self.id, vote)
        else:
            self.send(self.primary, vote)

    # ---- choosing and leading

    def on_do_view_change(self, envelope: Envelope, vote: DoViewChange) -> None:
        """Count a vote of this view; one of a higher view is reason enough to go there."""
        if envelope.view > self.view:
            self.leave(envelope.view)
            self.defer(envelope)
        elif envelope.view == self.view:
            self._count_vote(envelope.sender, vote)

    def _count_vote(self, sender: bytes, vote: DoViewChange) -> None:
        if self.status is not Status.VIEWCHANGE or self.primary != self.id or self.entering:
            return None
        if not self.has_state:
            return None
        self._votes[sender] = vote
        self.clocks.hear(sender, vote.wall_ms, self.now_ms)
        if len(self._votes) < self.quorum:
            return None
        votes = list(self._votes.values())
        if what := contradiction(votes):
            return self.contradict(what)
        choice = choose(votes, len(self.members))
        if choice is None:
            return None
        known, self._choice = self._choice, choice
        if self.repair is None or known is None or known[:2] != choice[:2]:
            self.repair = Repair(self.log, choice.lsn, choice.hash, self.spare)
            self._repaired = self._install_choice
        return self.go_on_repairing()

    def _install_choice(self) -> None:
        assert self._choice is not None
        assert self.repair is not None
        known = [(vote.commit_lsn, vote.commit_hash) for vote in self._votes.values()]
        if not self.keeps(self._choice.lsn, known):
            return
        suffix = self.repair.result()
        self.spare.clear()
        commit_lsn = self._choice.commit_lsn
        self.repair, self._repaired = None, None
        self.last_normal = (self.epoch, self.view)
        self.flip(lambda: self.lead(commit_lsn), suffix)

    def keeps(self, end_lsn: int, known: Iterable[tuple[int, bytes]] = ()) -> bool:
        """Return whether the log that was fetched has what is committed; else give it up.

        What is committed here, and what others said of it.
        """
        assert self.repair is not None
        if (self.repair.snapshot_lsn or self.commit_lsn) < self.commit_lsn:
            self.give_up()  # more was committed here while the rest came
            return False
        committed = self.commit_lsn, self.log.hash_at(self.commit_lsn)
        for lsn, digest in (committed, *known):
            is_short = lsn > end_lsn
            if is_short or self.repair.hash_at(lsn) not in (None, digest):
                lacks = "is shorter than" if is_short else "lacks"
                self.contradict(f"a log {lacks} what is committed")
                self.give_up()
                return False
        return True

    def give_up(self) -> None:
        """Fetch no more what was fetched: it cannot be had, or is not what it was taken for."""
        self.repair, self._repaired, self._adopting, self._choice = None, None, None, None

    def lead(self, commit_lsn: int) -> None:
        """Be this view's primary."""
        self.begin_normal()
        self.begin_reading()
        self.status, self.leading, self._failures = Status.NORMAL, True, 0
        self._new_patience()
        self._votes, self._proposals, self._choice = {}, {}, None
        self.durable_lsn = self.flushed_lsn = self.log.op_lsn
        self.acks[self.id] = self.durable_lsn
        self._know_in_flight()
        self.clocks.hear(self.id, self.wall_ms, self.now_ms)
        self.clocks.compare(self.members, self.log.head.ts_ms)
        self.noop_lsn = self.log.op_lsn + 1
        self.in_view()
        if not self.closing:
            noop = self.next_entry(Kind.NOOP, self.first_body)
            self._write([noop])
            self.flushed_lsn = noop.lsn
        for member in self.members:
            if member != self.id:
                self._start_view(member, self.commit_lsn)
        epoch = self.epoch
        self.advance(commit_lsn)
        if self.epoch == epoch and self.leading and not self.flipping:
            self._count_acks()

    def _know_in_flight(self) -> None:
        for lsn in range(self.commit_lsn + 1, self.log.op_lsn + 1):
            entry = self.log.entry_at(lsn)
            assert entry is not None
            if entry.header.session:
                self._in_flight[(entry.header.session, entry.header.csn)] = lsn

    def _start_view(self, receiver: bytes, known_lsn: int) -> None:
        entries = self.log.ending_at(
            self.flushed_lsn, known_lsn, self.batch_entries_max, BATCH_BYTES_MAX
        )
        digest = self.log.hash_at(self.flushed_lsn)
        assert digest is not None
        commit = self.sign_of_life()
        self.send(receiver, StartView(self.flushed_lsn, digest, *commit[:2], tuple(entries)))

    def on_get_view(self, envelope: Envelope, asked: GetView) -> None:
        """Tell a member what this view's log is, unless no quorum can follow in it any more."""
        if self.leading and not self.deposed:
            self._start_view(envelope.sender, asked.commit_lsn)

    # ---- following

    def _is_of_primary(self, envelope: Envelope) -> bool:
        return envelope.sender == self.configuration.primary(envelope.view)

    def follows(self, envelope: Envelope) -> bool:
        """Return whether to take entries of this primary; else ask for the view's log."""
        if envelope.view < self.view or not self._is_of_primary(envelope):
            return False
        if envelope.view == self.view and self.current:
            self._hear_primary()
            return True
        if self._adopting == (self.epoch, envelope.view):
            self._hear_primary()
        elif self._adopting is None or self._adopting < (self.epoch, envelope.view):
            self.stand_down()
            self.status = Status.GAP
            self.send(envelope.sender, GetView(self.commit_lsn))
        return False

    def on_start_view(self, envelope: Envelope, start: StartView) -> None:
        """Take over the log of this view or a higher one; add to it if that is done already."""
        if envelope.view < self.view or not self._is_of_primary(envelope):
            return
        self._hear_primary()
        if envelope.view == self.view and self.current:
            self.extend(
                envelope.sender, start.entries, start.op_lsn, start.commit_lsn, start.commit_hash
            )
            return
        if self.entering or start.op_lsn < self.commit_lsn:
            return  # what is said now of a log that ended before what is committed here, is late
        if self._adopting is None or self._adopting < (self.epoch, envelope.view):
            self._adopt(envelope.view, start)
            self.giver = envelope.sender
        if self.repair is not None:
            self.repair.offer(start.entries)
            self.go_on_repairing()

    def _adopt(self, view: int, start: StartView) -> None:
        self.stand_down()
        self.status = Status.GAP
        self._votes, self._choice = {}, None
        self._adopting = (self.epoch, view)
        self.repair = Repair(self.log, start.op_lsn, start.op_hash, self.spare)
        self._repaired = lambda: self._install_view(view, start.commit_lsn)

    def _install_view(self, view: int, commit_lsn: int) -> None:
        assert self.repair is not None
        if not self.keeps(self.repair.lsn):
            return
        suffix = self.repair.result()
        self.spare.clear()
        self.stand_down()
        self.view, self.last_normal = view, (self.epoch, view)
        self.flip(lambda: self.follow_on(commit_lsn), suffix)

    def follow_on(self, commit_lsn: int) -> None:
        """Follow the primary of this view: this log is its log now, durably."""
        self.begin_normal()
        self._failures = 0
        self._new_patience()
        self._hear_primary()
        self.status = Status.NORMAL
        self.in_view()
        self.durable_lsn = self.log.op_lsn
        self.acknowledge()
        self.advance(commit_lsn)

    # ---- fetching entries by hash

    def mend(self) -> None:
        """Fetch what is damaged here; the rest of the log stays as it is."""
        if self.repair is None:
            head = self.log.head
            self.repair = Repair(self.log, head.lsn, head.hash, self.spare)
            self._repaired = self._mended
            self.go_on_repairing()

    def _mended(self) -> None:
        assert self.repair is not None
        suffix = self.repair.result()
        self.spare.clear()
        self.repair, self._repaired = None, None
        self.flip(self._whole_again, suffix)

    def _whole_again(self) -> None:
        self.durable_lsn = self.log.op_lsn
        self._writing = {}

    def on_entries(self, envelope: Envelope, entries: Entries) -> None:
        """Take what is wanted of them; ask for more only if something was, or copies breed."""
        if self.repair is not None:
            wanted = self.repair.wanted
            self.repair.offer(entries.entries)
            if wanted is None or self.repair.wanted != wanted:
                self.got_ms = self.now_ms
                self.giver = envelope.sender
                self.go_on_repairing()

    def go_on_repairing(self) -> None:
        """Ask for what is missing next, if it is time, or do what all of it was for."""
        assert self.repair is not None
        if self.repair.is_of_another_log:
            if (
                self.repair.snapshot_lsn is None
            ):  # else a later view dropped the end that is fetched
                self.contradict("a log lacks what a snapshot stands for")
            return self.give_up()
        wanted = self.repair.wanted
        if wanted is None:
            assert self._repaired is not None
            return self._repaired()
        if self.repair.asking.is_due(wanted[:2], self.now_ms):
            number = min(wanted.number, self.batch_entries_max)
            self.ask(GetEntries(wanted.lsn, wanted.hash, number))
        return None

    def ask(self, asked: GetEntries) -> None:
        """Ask who has just shown to have the log; else one member after the other."""
        others = [member for member in self.sources if member != self.id]
        giver, self.giver = self.giver, b""
        if giver in others:
            self.send(giver, asked)
        elif others:
            self._asked += 1
            self.send(others[self._asked % len(others)], asked)

    # ---- time

    @property
    def _forfeits(self) -> bool:
        """Whether to have the next one lead at once: it may have the state that is missing here.

        Once all had their turn, another view helps nobody, and is asked for as after any failure.
        """
        hopes = self._failures <= len(self.members)
        return self.primary == self.id and not self.has_state and hopes

    @property
    def _asks_for_view(self) -> bool:
        """Whether the view's log is missing, could be taken, and nothing of it is under way."""
        follows = self.status is Status.GAP and self.primary != self.id
        return follows and not self.is_getting and not self.disk_is_behind

    def tick_primary(self) -> None:
        """Also hand over if the others commit without the own disk, which takes nothing more."""
        super().tick_primary()
        if not self.leading or self.suspended or not self.disk_is_behind:
            return
        if self.commit_lsn > self.durable_lsn:
            best = max(self.members, key=lambda member: self.acks.get(member, 0))
            ahead = self.members.index(best) - self.view
            self.resign(self.view + ahead % len(self.members))

    def tick_backup(self) -> None:
        """Try again what was not answered; ask for another view if the primary is silent."""
        if self.now_ms - self._heard_ms > self._patience_ms:
            self._why = "the primary was silent"
            self.propose()
        if self.flipping:
            return
        if self.status is Status.VIEWCHANGE and self._forfeits:
            self.propose()
        elif self.status is Status.VIEWCHANGE:
            self._vote()
        elif self._asks_for_view:
            self.send(self.primary, GetView(self.commit_lsn))
        if self.repair is not None and not self.flipping:
            self.go_on_repairing()
