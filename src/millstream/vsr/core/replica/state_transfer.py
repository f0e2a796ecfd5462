"""Getting another member's snapshot: for a log cut everywhere, a state that is damaged or wrong.

Invariants:
1. A snapshot is taken by number and hash, and only a stable one is ever given: whoever sent it, it
   is the group's state at its LSN.
2. It never replaces a log by itself. What shows that the log is needed (a view's, an epoch's, the
   primary's) has to end at or behind it, and the entries from there to that end come with it, in
   one durable step. So nobody counts as having a view's log without all that it began with.
3. What was fetched is used only if it still serves when a member says again that the log is gone;
   who gave it is asked first. One that comes is not left for another that somebody else has, and
   who gives it keeps it until it is given: snapshots that follow one another faster than a slow
   member can fetch them would keep it out for ever.
4. A member whose state is missing has its log all the same: it votes and acknowledges. It applies
   nothing, answers no reads, and leads nobody.

Elsewhere: which entries are missing (`repair`), who asks for them (`views`, `epochs`, `normal`).

Source: Liskov and Cowling 2012, sections 5.1 and 5.2; Alagappan et al. 2018 on damaged snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Final

from millstream.vsr.core.messages import Envelope, GetSnapshot, SnapshotPart, TooOld
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.normal_case import SHARE_BYTES_MAX
from millstream.vsr.core.replica.repair import AGAIN_MS_MAX, Repair
from millstream.vsr.core.replica.snapshot_taking import Snapshotting
from millstream.vsr.core.snapshots import (
    SLICE_STEPS_MAX,
    Pieces,
    Snapshot,
    SnapshotId,
)
from millstream.vsr.core.state_machine import StateMachine

__all__ = ["GIVE_MS_MAX", "Fetching"]

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


class Fetching(Snapshotting):
    """GetSnapshot, SnapshotPart, TooOld."""

    def __init__(self, machine: StateMachine, chance: Callable[[], float]) -> None:
        super().__init__(machine, chance)
        self._fetch: _Fetch | None = None
        self._got: Snapshot | None = None
        self._missing: SnapshotId | None = None
        self._given: Snapshot | None = None
        """What was last asked for, and when: kept beside the newest one for a while."""
        self._given_ms = 0.0
        self._restoring: Iterator[None] | None = None

    # ---- giving

    def offer_snapshot(self, receiver: bytes) -> None:
        """Say what stands for a log that is not here any more."""
        if self.stable is not None:
            self.send(receiver, TooOld(self.stable.id))

    def on_get_snapshot(self, envelope: Envelope, asked: GetSnapshot) -> None:
        """Give a part of it, say which one there is instead, or have one taken."""
        self.fetches(envelope)
        stable = self.stable
        if stable is None or stable.id.number < asked.number:
            self.ask_if_leading()
            return
        is_newest = (stable.id.number, stable.id.hash) == asked[:2]
        if is_newest and self._given is None:
            self._given = stable
        given = stable if is_newest else self._given
        if given is None or (given.id.number, given.id.hash) != asked[:2]:
            self.offer_snapshot(envelope.sender)
            return
        if given is self._given:
            self._given_ms = self.now_ms
        if self.shared_bytes < SHARE_BYTES_MAX:
            data = given.part_at(asked.offset)
            self.shared_bytes += len(data)
            self.send(envelope.sender, SnapshotPart(*asked, given.size, data))

    # ---- what it is wanted for

    def on_too_old(self, envelope: Envelope, too_old: TooOld) -> None:
        """Use a snapshot, get it, or let somebody else lead who has the log."""
        offered = too_old.snapshot
        if envelope.epoch > (self.next_epoch or self.configuration).epoch:
            self.ask_epoch(envelope.sender)
        if self._missing is not None:
            self._miss_another(offered, envelope.sender)
        if self.repair is not None:
            self._repair_with(envelope, offered)
        elif self.may_learn:
            self._learn_with(envelope, offered)
        elif self._is_behind(envelope) and offered.lsn > self.log.op_lsn:
            found = self._got_or_get(offered, envelope.sender, self.log.op_lsn + 1)
            if found is not None:
                self.repair = Repair(self.log, found.id.lsn, found.id.link.hash, self.spare)
                self._repaired = self._mended
                self._use(found)

    def _learn_with(self, envelope: Envelope, offered: SnapshotId) -> None:
        if offered.lsn > self.commit_lsn:
            found = self._got_or_get(offered, envelope.sender, self.commit_lsn + 1)
            if found is not None:
                self.learn_from(found)

    def _is_behind(self, envelope: Envelope) -> bool:
        same = (envelope.epoch, envelope.view) == (self.epoch, self.view)
        return same and self.current and self.status is Status.GAP and not self.leading

    def _repair_with(self, envelope: Envelope, offered: SnapshotId) -> None:
        assert self.repair is not None
        wanted = self.repair.wanted
        if wanted is None or offered.lsn < wanted.lsn or offered.lsn <= self.commit_lsn:
            return
        if self._repaired == self._install_choice:
            self.repair, self._repaired = None, None
            self.propose()
        elif offered.lsn <= self.repair.lsn or self._is_of_goal(envelope):
            found = self._got_or_get(offered, envelope.sender, wanted.lsn)
            if found is not None and self.next_epoch is not None:
                beyond = found.id.lsn > self.repair.lsn
                self.entered_view = envelope.view if beyond else self.next_epoch.first_view
            if found is not None:
                self._use(found)
        else:
            self.ask_for_goal()

    def _is_of_goal(self, envelope: Envelope) -> bool:
        """Whether the sender's log is the one that is fetched, further than it was asked for."""
        where = (envelope.epoch, envelope.view)
        if self.next_epoch is not None:
            return envelope.epoch == self.next_epoch.epoch
        if self.status is Status.LOST:
            return False
        goal = self._adopting if self._adopting is not None else (self.epoch, self.view)
        return where == goal and (self._adopting is not None or self.current)

    def ask_for_goal(self) -> None:
        """Give up a goal that nobody has the log for any more, and learn a later one."""
        if not self.entering:
            self.give_up()

    def found_snapshot(self, named: SnapshotId, giver: bytes) -> Snapshot | None:
        """Return what was fetched if it may stand for this; else fetch it, to be asked again."""
        fetch = self._fetch
        if fetch is not None and fetch.id == named and self.now_ms - self.got_ms < AGAIN_MS_MAX:
            return None  # it comes; each answer asked for the same part once more
        return self._got_or_get(named, giver, self.log.op_lsn + 1)

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
        return came is not None and self.now_ms - came < AGAIN_MS_MAX

    def _use(self, found: Snapshot) -> None:
        assert self.repair is not None
        if found.id.lsn > self.repair.lsn:
            self.repair = Repair(self.log, found.id.lsn, found.id.link.hash, self.spare)
        self.repair.use(found)
        self.go_on_repairing()

    # ---- getting

    def _ask_part(self, receiver: bytes) -> None:
        assert self._fetch is not None
        number, _, digest = self._fetch.id
        self.send(receiver, GetSnapshot(number, digest, self._fetch.offset))

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
            fetch.got_ms = self.now_ms
            self.got_ms = self.now_ms
        if fetch.offset < part.total:
            return self._ask_part(envelope.sender)
        self._fetch = None
        if fetch.hash.digest() == fetch.id.hash:
            self._got, self.giver = Snapshot(fetch.id, tuple(fetch.parts)), envelope.sender
            self._have_got(self._got)
        return None

    def _have_got(self, found: Snapshot) -> None:
        if self._missing is not None and found.id == self._missing:
            self._got, self._missing = None, None
            self.cover_holes(found.id.lsn)
            self._write_snapshot(found, lambda: self._adopt_again(found.id))
            self.take_state(found.id, found)
        elif self.repair is not None:
            self.repair.asking.forget()
            self.go_on_repairing()
        elif self.status is Status.LOST:
            self.forget_answers()
        else:
            self._asking.forget()

    def _adopt_again(self, found: SnapshotId) -> None:
        if self.stable_id == found:
            self.adopt(found, self.log.base.lsn)

    def tick_fetching(self) -> None:
        """Ask again for what did not come, each time somebody else."""
        self._restore_some()
        if self.now_ms - self._given_ms >= GIVE_MS_MAX:
            self._given = None
        if self._missing is not None and self._fetch is None:
            self._fetch = _Fetch(self._missing)
        fetch = self._fetch
        if fetch is None:
            return
        others = [member for member in self.sources if member != self.id]
        if not others:
            return
        wanted = self._missing is not None or self.repair is not None or self.may_learn
        if not wanted and self.status not in _UNSETTLED:
            self._fetch = None
        elif fetch.stuck_at == fetch.offset:
            self._asked += 1
            self._ask_part(others[self._asked % len(others)])
        fetch.stuck_at = fetch.offset

    # ---- a state that is missing

    @property
    def missing_snapshot(self) -> int:
        """The number of the snapshot that this member needs from others; 0 if it needs none."""
        return 0 if self._missing is None else self._missing.number

    def take_state(self, found: SnapshotId, snapshot: Snapshot | None) -> None:
        """Let the state become that of a snapshot; None: it has to be fetched."""
        self.forget_own_snapshots()
        self.commit_lsn, self.asked_lsn, self.bytes_since = found.lsn, found.lsn, 0
        self.stable_id, self.stable = found, snapshot
        self.snapshot_number = self._asked_number = found.number
        self.has_state = False
        self._restoring = None
        if snapshot is None:
            self._missing = found
        else:
            self._missing = self._fetch = self._got = None
            self._restoring = self.restore(Pieces(snapshot.parts))

    def restore_now(self) -> None:
        """Do all of it: nobody waits for this member yet."""
        while self._restoring is not None:
            self._restore_some()

    def _restore_some(self) -> None:
        if self._restoring is None:
            return
        for _ in range(SLICE_STEPS_MAX):
            if next(self._restoring, self) is self:
                self._restoring, self.has_state = None, True
                return

    def work(self) -> None:
        """Also make a state of what was fetched."""
        super().work()
        self._restore_some()

    @property
    def has_work(self) -> bool:
        """Whether `work` would do something."""
        return self._restoring is not None or super().has_work

    def lose_state(self, right: SnapshotId) -> None:
        """Serve nobody with a state that is not the others'; get theirs, and the log anew."""
        self.is_diverged = True
        self.forget_own_snapshots()
        self.stand_down()
        self.forget_answers()
        self.has_state, self._restoring = False, None
        self._missing, self._fetch = right, None
        if self.status is not Status.RETIRED:
            self.status = Status.LOST

    def _miss_another(self, offered: SnapshotId, sender: bytes) -> None:
        """Content oneself with a later one, if it is of this log."""
        assert self._missing is not None
        later = offered.number > self._missing.number and not self._moves()
        if later and self.log.hash_at(offered.lsn) == offered.link.hash:
            self._missing, self._fetch = offered, _Fetch(offered)
            self._ask_part(sender)
