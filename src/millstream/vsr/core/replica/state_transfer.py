"""State transfer: a member fetches another one's snapshot, because its log or state is not enough.

Its log may be cut everywhere else, or its own state damaged or wrong.

Invariants:
1. A snapshot is identified by number and hash, and only stable ones are given. So whoever sent
   it, it is the group's state at its LSN.
2. It never replaces a log by itself. The log that is needed (a view's, an epoch's, the primary's)
   has to end at or behind it, and the entries from there to that end come with it, in one durable
   step. So a member has a view's log only together with all that it began with.
3. A fetched snapshot is used only if it still serves when a member says again that the log is
   cut. Its giver is asked first. A snapshot that is arriving is not given up for another one, and
   its giver keeps it until it is given. Else snapshots that follow one another faster than a slow
   member can fetch them would keep it out for ever.
4. A member whose state is missing still has its log: it votes and acknowledges. It applies
   nothing, answers no reads, and does not lead.

Elsewhere: which entries are missing (`repair`), who asks for them (`log_repair`).

Source: Liskov and Cowling 2012, sections 5.1 and 5.2; Alagappan et al. 2018 on damaged snapshots.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Final

from millstream.vsr.core.messages import Envelope, GetSnapshot, SnapshotPart, TooOld
from millstream.vsr.core.replica.execution import Execution
from millstream.vsr.core.replica.learners import Learners
from millstream.vsr.core.replica.log_repair import LogRepair
from millstream.vsr.core.replica.member import ReplicaState, Status
from millstream.vsr.core.replica.normal_case import SHARE_BYTES_MAX, NormalCase
from millstream.vsr.core.replica.reads import Reads
from millstream.vsr.core.replica.reconfiguration import Reconfiguration
from millstream.vsr.core.replica.recovery import Recovery
from millstream.vsr.core.replica.repair import AGAIN_MS_MAX
from millstream.vsr.core.replica.snapshot_taking import Snapshots
from millstream.vsr.core.replica.storage import Storage
from millstream.vsr.core.replica.upcalls import Upcalls
from millstream.vsr.core.replica.view_change import ViewChange
from millstream.vsr.core.snapshots import (
    SLICE_STEPS_MAX,
    Pieces,
    Snapshot,
    SnapshotId,
)

__all__ = ["GIVE_MS_MAX", "StateTransfer"]

GIVE_MS_MAX: Final = 5000.0
"""How long a snapshot that is not the newest any more is kept for who asked for a part of it."""


_UNSETTLED: Final = (Status.GAP, Status.LOST, Status.VIEWCHANGE)
"""What is being fetched may be needed once this is over: views may change faster than it comes."""


class _Fetch:
    """The parts of one snapshot, as they come."""

    def __init__(self, wanted: SnapshotId) -> None:
        self.id = wanted
        self.parts: list[bytes] = []
        self.hash = sha256()
        self.offset = 0
        self.stuck_at = -1
        self.got_ms: float | None = None
        """When its last part came."""


class StateTransfer:
    """Gives and fetches snapshots: GetSnapshot, SnapshotPart, TooOld."""

    def __init__(
        self, state: ReplicaState, up: Upcalls, execution: Execution, storage: Storage,
        repairs: LogRepair, normal: NormalCase, reads: Reads, views: ViewChange,
        recovery: Recovery, learners: Learners, reconfiguration: Reconfiguration,
        snapshots: Snapshots,
    ) -> None:  # fmt: skip
        self.state, self.up = state, up
        self.execution, self.storage, self.repairs = execution, storage, repairs
        self.normal, self.reads, self.views, self.recovery = normal, reads, views, recovery
        self.learners, self.reconfiguration = learners, reconfiguration
        self.snapshots = snapshots
        self._fetch: _Fetch | None = None
        self._got: Snapshot | None = None
        self.missing: SnapshotId | None = None
        self._given: Snapshot | None = None
        """What was last asked for, and when: kept beside the newest one for a while."""
        self._given_ms = 0.0
        self._restoring: Iterator[None] | None = None

    # ---- giving

    def offer_snapshot(self, receiver: bytes) -> None:
        """Offer a snapshot in place of a log that is no longer here."""
        state = self.state
        if state.stable is not None:
            state.send(receiver, TooOld(state.stable.id))

    def on_get_snapshot(self, envelope: Envelope, asked: GetSnapshot) -> None:
        """Give a part of it, say which one there is instead, or have one taken."""
        state = self.state
        self.reads.fetches(envelope)
        stable = state.stable
        if stable is None or stable.id.number < asked.number:
            self.snapshots.ask_if_leading()
            return
        is_newest = (stable.id.number, stable.id.hash) == asked[:2]
        if is_newest and self._given is None:
            self._given = stable
        given = stable if is_newest else self._given
        if given is None or (given.id.number, given.id.hash) != asked[:2]:
            self.offer_snapshot(envelope.sender)
            return
        if given is self._given:
            self._given_ms = state.now_ms
        if self.normal.shared_bytes < SHARE_BYTES_MAX:
            data = given.part_at(asked.offset)
            self.normal.shared_bytes += len(data)
            state.send(envelope.sender, SnapshotPart(*asked, given.size, data))

    # ---- what it is wanted for

    def on_too_old(self, envelope: Envelope, too_old: TooOld) -> None:
        """Use a snapshot, get it, or let somebody else lead who has the log."""
        state = self.state
        offered = too_old.snapshot
        if envelope.epoch > (self.reconfiguration.next_epoch or state.configuration).epoch:
            self.reconfiguration.ask_epoch(envelope.sender)
        if self.missing is not None:
            self._miss_another(offered, envelope.sender)
        if self.repairs.repair is not None:
            self._repair_with(envelope, offered)
        elif self.learners.may_learn:
            self._learn_with(envelope, offered)
        elif self._is_behind(envelope) and offered.lsn > state.log.op_lsn:
            found = self._got_or_get(offered, envelope.sender, state.log.op_lsn + 1)
            if found is not None:
                self.repairs.fetch(found.id.lsn, found.id.link.hash, self.normal.filled)
                self._use(found)

    def _learn_with(self, envelope: Envelope, offered: SnapshotId) -> None:
        if offered.lsn > self.state.commit_lsn:
            found = self._got_or_get(offered, envelope.sender, self.state.commit_lsn + 1)
            if found is not None:
                self.learners.learn_from(found)

    def _is_behind(self, envelope: Envelope) -> bool:
        state = self.state
        same = (envelope.epoch, envelope.view) == (state.epoch, state.view)
        return same and state.current and state.status is Status.GAP and not state.leading

    def _repair_with(self, envelope: Envelope, offered: SnapshotId) -> None:
        assert self.repairs.repair is not None
        wanted = self.repairs.repair.wanted
        if wanted is None or offered.lsn < wanted.lsn or offered.lsn <= self.state.commit_lsn:
            return
        if self.repairs.then == self.views.install_choice:
            self.repairs.forget()
            self.views.propose()
        elif offered.lsn <= self.repairs.repair.lsn or self._is_of_goal(envelope):
            found = self._got_or_get(offered, envelope.sender, wanted.lsn)
            if found is not None and self.reconfiguration.next_epoch is not None:
                beyond = found.id.lsn > self.repairs.repair.lsn
                self.reconfiguration.entered_view = (
                    envelope.view if beyond else self.reconfiguration.next_epoch.first_view
                )
            if found is not None:
                self._use(found)
        else:
            self.ask_for_goal()

    def _is_of_goal(self, envelope: Envelope) -> bool:
        """Whether the sender's log is the one that is fetched, further than it was asked for."""
        state = self.state
        where = (envelope.epoch, envelope.view)
        if self.reconfiguration.next_epoch is not None:
            return envelope.epoch == self.reconfiguration.next_epoch.epoch
        if state.status is Status.LOST:
            return False
        goal = (
            self.views.adopting if self.views.adopting is not None else (state.epoch, state.view)
        )
        return where == goal and (self.views.adopting is not None or state.current)

    def ask_for_goal(self) -> None:
        """Give up a goal whose log no member has any more, and learn a later one."""
        if not self.reconfiguration.entering:
            self.up.give_up()

    def found_snapshot(self, named: SnapshotId, giver: bytes) -> Snapshot | None:
        """Return what was fetched if it may stand for this; else fetch it, to be asked again."""
        fetch = self._fetch
        if (
            fetch is not None
            and fetch.id == named
            and self.state.now_ms - self.repairs.got_ms < AGAIN_MS_MAX
        ):
            return None  # it comes; each answer asked for the same part once more
        return self._got_or_get(named, giver, self.state.log.op_lsn + 1)

    def _got_or_get(self, offered: SnapshotId, sender: bytes, need_lsn: int) -> Snapshot | None:
        got = self._got
        if got is not None and need_lsn <= got.id.lsn <= offered.lsn:
            return got
        fetch = self._fetch
        if fetch is None or (fetch.id != offered and not self._moves()):
            self._fetch = fetch = _Fetch(offered)
        if fetch.id == offered:
            self._ask_part(sender)
        return None

    def _moves(self) -> bool:
        """Whether parts of a snapshot are coming."""
        came = self._fetch.got_ms if self._fetch is not None else None
        return came is not None and self.state.now_ms - came < AGAIN_MS_MAX

    def _use(self, found: Snapshot) -> None:
        assert self.repairs.repair is not None
        if found.id.lsn > self.repairs.repair.lsn:
            self.repairs.fetch_instead(found.id.lsn, found.id.link.hash)
        self.repairs.begin_at(found)
        self.repairs.go_on()

    # ---- getting

    def _ask_part(self, receiver: bytes) -> None:
        assert self._fetch is not None
        number, _, digest = self._fetch.id
        self.state.send(receiver, GetSnapshot(number, digest, self._fetch.offset))

    def on_snapshot_part(self, envelope: Envelope, part: SnapshotPart) -> None:
        """Take the next part, and ask for the one behind it."""
        fetch = self._fetch
        if fetch is None or (fetch.id.number, fetch.id.hash) != part[:2]:
            return None
        if part.offset != fetch.offset or (not part.data and part.total > fetch.offset):
            return None
        if part.data:
            fetch.parts.append(part.data)
            fetch.hash.update(part.data)
            fetch.offset += len(part.data)
            fetch.got_ms = self.state.now_ms
            self.repairs.got_ms = self.state.now_ms
        if fetch.offset < part.total:
            return self._ask_part(envelope.sender)
        self._fetch = None
        if fetch.hash.digest() == fetch.id.hash:
            self._got, self.repairs.giver = Snapshot(fetch.id, tuple(fetch.parts)), envelope.sender
            self._have_got(self._got)
        return None

    def _have_got(self, found: Snapshot) -> None:
        if self.missing is not None and found.id == self.missing:
            self._got, self.missing = None, None
            self.storage.cover_holes(found.id.lsn)
            self.snapshots.write_snapshot(found, lambda: self._adopt_again(found.id))
            self.take_state(found.id, found)
        elif self.repairs.repair is not None:
            self.repairs.repair.asking.forget()
            self.repairs.go_on()
        elif self.state.status is Status.LOST:
            self.recovery.forget_answers()
        else:
            self.normal.asking.forget()

    def _adopt_again(self, found: SnapshotId) -> None:
        if self.state.stable_id == found:
            self.snapshots.adopt(found, self.state.log.base.lsn)

    def tick(self) -> None:
        """Ask again for what did not come, each time somebody else."""
        state = self.state
        self.restore_some()
        if state.now_ms - self._given_ms >= GIVE_MS_MAX:
            self._given = None
        if self.missing is not None and self._fetch is None:
            self._fetch = _Fetch(self.missing)
        fetch = self._fetch
        if fetch is None:
            return
        others = [member for member in self.reconfiguration.sources if member != state.id]
        if not others:
            return
        wanted = (
            self.missing is not None or self.repairs.repair is not None or self.learners.may_learn
        )
        if not wanted and state.status not in _UNSETTLED:
            self._fetch = None
        elif fetch.stuck_at == fetch.offset:
            self._ask_part(self.repairs.next_of(others))
        fetch.stuck_at = fetch.offset

    # ---- a state that is missing

    @property
    def missing_snapshot(self) -> int:
        """The number of the snapshot that this member needs from others; 0 if it needs none."""
        return 0 if self.missing is None else self.missing.number

    def take_state(self, found: SnapshotId, snapshot: Snapshot | None) -> None:
        """Replace the state by that of a snapshot. None: it has to be fetched."""
        state = self.state
        self.snapshots.forget_own_snapshots()
        state.commit_lsn, self.execution.asked_lsn, self.execution.bytes_since = (
            found.lsn,
            found.lsn,
            0,
        )
        state.stable_id, state.stable = found, snapshot
        self.snapshots.snapshot_number = self.snapshots.asked_number = found.number
        state.has_state = False
        self._restoring = None
        if snapshot is None:
            self.missing = found
        else:
            self.missing = self._fetch = self._got = None
            self._restoring = self.execution.restore(Pieces(snapshot.parts))

    def restore_now(self) -> None:
        """Restore everything in one step: no client waits for this member yet."""
        while self._restoring is not None:
            self.restore_some()

    def restore_some(self) -> None:
        """Make a part of the state of what was fetched, if there is anything."""
        if self._restoring is None:
            return
        for _ in range(SLICE_STEPS_MAX):
            if next(self._restoring, self) is self:
                self._restoring, self.state.has_state = None, True
                return

    @property
    def is_restoring(self) -> bool:
        """Whether the state is being made of a snapshot."""
        return self._restoring is not None

    def lose_state(self, right: SnapshotId) -> None:
        """Stop serving with a state that differs from the others'; fetch their state and log."""
        state = self.state
        state.is_diverged = True
        self.snapshots.forget_own_snapshots()
        self.up.stand_down()
        self.recovery.forget_answers()
        state.has_state, self._restoring = False, None
        self.missing, self._fetch = right, None
        if state.status is not Status.RETIRED:
            state.become(Status.LOST)

    def _miss_another(self, offered: SnapshotId, sender: bytes) -> None:
        """Content oneself with a later one, if it is of this log."""
        assert self.missing is not None
        later = offered.number > self.missing.number and not self._moves()
        if later and self.state.log.hash_at(offered.lsn) == offered.link.hash:
            self.missing, self._fetch = offered, _Fetch(offered)
            self._ask_part(sender)
