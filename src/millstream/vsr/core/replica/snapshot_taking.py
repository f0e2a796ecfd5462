"""Snapshots of the own state: when one is taken, what makes it stable, what is cut for it.

Invariants:
1. The log asks for a snapshot by an entry, so all members take it of the same state. It is made of
   a frozen view, a slice at a time, while later entries are applied.
2. It is stable once a quorum has the same bytes on its disks and an entry that says so is
   committed. Only then is it in force, are older ones forgotten, and is the log cut.
3. Whose own bytes differ from what a quorum agreed on, has another state than the others: it
   serves nobody and votes for nothing until it has theirs.
4. The log is cut behind the stable snapshot only, and so much is kept before it that members that
   were away for a while can go on from the log.
5. No two have the same number: the primary counts those that it has logged, too.
6. There is one at a time; one that is not stable after `GIVE_UP_MS` is replaced by the next.
7. One for which this member's disk has no space holds up nothing: this member has none of it.

Elsewhere: its bytes (`snapshots`), getting one from another member (`fetching`).

Source: Liskov and Cowling 2012, section 5.1; V2R2, "Snapshots".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Final

from millstream.vsr.core.effects import (
    AdoptSnapshot,
    CallSoon,
    Code,
    CopyState,
    TakeSnapshot,
    WriteSnapshot,
)
from millstream.vsr.core.entries import Body, Entry, Kind, argv_of, number_in
from millstream.vsr.core.messages import Envelope, SnapshotDone
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.session_expiry import Sessions
from millstream.vsr.core.snapshots import PART_BYTES, Making, Snapshot, SnapshotId
from millstream.vsr.core.state_machine import StateMachine

__all__ = [
    "CUT_ENTRIES_MAX",
    "GIVE_UP_MS",
    "RETAIN_BYTES",
    "RETAIN_ENTRIES",
    "SNAPSHOT_BYTES",
    "SNAPSHOT_ENTRIES",
    "SNAPSHOT_SHARE",
    "Snapshotting",
]

SNAPSHOT_ENTRIES: Final = 10_000
"""Applied since the last snapshot, after which the next one is taken; who starts applies them."""
SNAPSHOT_BYTES: Final = 64 * 1024 * 1024
"""The same in bytes of the log. It has to be more than the last snapshot has, in any case."""
SNAPSHOT_SHARE: Final = 4
"""Before that many bytes the log grows to as many times the last snapshot, so that snapshots are a
small part of the work."""
RETAIN_ENTRIES: Final = 100_000
"""Kept in the log before the stable snapshot, for members that lag."""
RETAIN_BYTES: Final = 256 * 1024 * 1024
"""The log is cut further if it has more."""
GIVE_UP_MS: Final = 60_000.0
"""After so long another snapshot may be taken though the last one is not stable."""
CUT_ENTRIES_MAX: Final = 4096
"""Of the log in memory that are dropped in one go."""


class Snapshotting(Sessions):
    """TakeSnapshot, CopyState, Soon, SnapshotDone."""

    snapshot_entries = SNAPSHOT_ENTRIES
    snapshot_bytes = SNAPSHOT_BYTES
    snapshot_share = SNAPSHOT_SHARE
    retain_entries = RETAIN_ENTRIES
    retain_bytes = RETAIN_BYTES
    part_bytes = PART_BYTES

    def __init__(self, machine: StateMachine, chance: Callable[[], float]) -> None:
        super().__init__(machine, chance)
        self._asked_number = self._logged_number = 0
        self._asked_ms = 0.0
        self._is_asked_for = False
        self._making: Making | None = None
        self._copying: tuple[int, Making] | None = None
        self.copy: Snapshot | None = None
        """The state of this member alone, as `CopyState` asked for it last."""
        self._made: Snapshot | None = None
        self._is_written = False
        self._named: tuple[int, bytes] | None = None
        self._done: dict[bytes, SnapshotDone] = {}
        self._named_number = 0
        self._cut_lsn = 0
        self._steps: dict[int, Callable[[], None]] = {}
        self._askers: list[int] = []
        self._is_called_soon = False

    @abstractmethod
    def lose_state(self, right: SnapshotId) -> None:
        """Know that the own state is wrong from this snapshot on."""

    # ---- asking for one

    def on_take_snapshot(self, asked: TakeSnapshot) -> None:
        """Have one taken, whatever the size of the log; the answer comes once it is stable."""
        if not self.leading:
            self.reply(asked.ticket, Code.NOTPRIMARY)
        elif self.suspended:
            self.reply(asked.ticket, Code.NOQUORUM)
        elif not self._may_ask:
            self.reply(asked.ticket, Code.BUSY)
        else:
            self._askers.append(asked.ticket)
            self._ask()

    @property
    def _may_ask(self) -> bool:
        ready = self.leading and not self.suspended and not self.holding and not self.swamped
        free = not self._is_asked_for or self.now_ms - self._asked_ms > GIVE_UP_MS
        return ready and free and self.commit_lsn >= self.noop_lsn

    @property
    def _is_due(self) -> bool:
        last = 0 if self.stable is None else self.stable.size
        if self.bytes_since < max(last, min(last * self.snapshot_share, self.snapshot_bytes)):
            return False
        since = self.commit_lsn - self.asked_lsn
        return since >= self.snapshot_entries or self.bytes_since >= self.snapshot_bytes

    def _ask(self) -> None:
        self._is_asked_for, self._asked_ms = True, self.now_ms
        self._logged_number = max(self._asked_number, self._logged_number) + 1
        self.add(Kind.SNAPSHOT, Body(argv=(b"%d" % self._logged_number,)))

    def committed(self) -> None:
        """Also have a snapshot taken if it is time."""
        super().committed()
        if self._is_due and self._may_ask:
            self._ask()

    def ask_if_leading(self) -> None:
        """Have one taken: a member needs one that this one has not."""
        if self._may_ask:
            self._ask()

    # ---- of this member alone

    def on_copy_state(self, asked: CopyState) -> None:
        """Begin with a copy of the state of this moment, which nobody else agrees on."""
        link = self.log.link_at(self.commit_lsn)
        if not self.has_state or link is None:
            self.reply(asked.ticket, Code.NOTREADY, b"the state of this member is not here")
        elif self._copying is not None:
            self.reply(asked.ticket, Code.BUSY, b"a copy is being made")
        else:
            number, self.copy = self.snapshot_number + 1, None
            made = Making(number, link, self.freeze(), self.part_bytes)
            self._copying = asked.ticket, made

    def _go_on_copying(self) -> None:
        if self._copying is not None and (made := self._copying[1].go_on()) is not None:
            ticket = self._copying[0]
            self._copying, self.copy = None, made
            self.reply(ticket, Code.OK, b"%d" % made.id.lsn)

    def take_copy(self) -> Snapshot | None:
        """Return the last copy that was asked for, and keep it no more."""
        found, self.copy = self.copy, None
        return found

    # ---- making one

    def take_snapshot(self, asked: Entry) -> None:
        """Begin with it; one that is not stable yet is forgotten."""
        number = number_in(next(iter(argv_of(asked)), b""))
        if number is None:
            return
        self._asked_number = number
        self._is_asked_for, self._asked_ms = True, self.now_ms
        self._making = Making(
            self._asked_number, asked.header.link, self.freeze(), self.part_bytes
        )
        self._made, self._is_written, self._done = None, False, {}

    def work(self) -> None:
        """Do a slice of what takes long."""
        if self._making is not None and (made := self._making.go_on()) is not None:
            self._making, self._made = None, made
            if self.stable_id is None or made.id.number > self.stable_id.number:
                self._write_snapshot(made, lambda: self._written_down(made))
        self._go_on_copying()
        if self._cut_lsn > self.log.base.lsn:
            self.log.drop_prefix(min(self._cut_lsn, self.log.base.lsn + CUT_ENTRIES_MAX))

    @property
    def has_work(self) -> bool:
        """Whether `work` would do something."""
        is_cutting = self._cut_lsn > self.log.base.lsn
        is_making = self._making is not None or self._copying is not None
        return is_making or is_cutting or self.has_to_apply

    def call_soon(self) -> None:
        """Ask to be called for more work, once."""
        if not self._is_called_soon and self.has_work:
            self._is_called_soon = True
            self.effects.append(CallSoon())

    def on_soon(self) -> None:
        """Do some of the work."""
        self._is_called_soon = False
        self.work()
        if self.has_to_apply and not self.flipping:
            self.go_on_applying()

    def _write_snapshot(self, snapshot: Snapshot, then: Callable[[], None]) -> None:
        self._op += 1
        self._steps[self._op] = then
        self.effects.append(WriteSnapshot(self._op, snapshot))

    def adopt(self, found: SnapshotId, cut_lsn: int) -> None:
        """Have a snapshot that was written in force on the disk."""
        self._op += 1
        self._steps[self._op] = lambda: None
        self.effects.append(AdoptSnapshot(self._op, found, cut_lsn))

    def flipped(self, op: int) -> bool:
        """Also compare what could not be compared before."""
        if not super().flipped(op):
            return False
        self._compare()
        return True

    def written(self, op: int) -> None:
        """Also go on with a snapshot that is on the disk now."""
        step = self._steps.pop(op, None)
        if step is None:
            super().written(op)
        else:
            step()

    def not_written(self, op: int) -> None:
        """Do without a snapshot that had no space; the next one may have."""
        del self._steps[op]

    def _written_down(self, made: Snapshot) -> None:
        if self._made is made:
            self._is_written = True
            self._say_done()
            self._compare()

    # ---- agreeing on it

    def _say_done(self) -> None:
        if self._made is None or not self._is_written or self.flipping:
            return
        done = SnapshotDone(self._made.id.number, self._made.id.hash)
        if self.leading:
            self._count_done(self.id, done)
        elif self.status is Status.NORMAL and self.current:
            self.send(self.primary, done)

    def on_snapshot_done(self, envelope: Envelope, done: SnapshotDone) -> None:
        """Count a member that has it."""
        if self.leading and envelope.view == self.view:
            self._count_done(envelope.sender, done)

    def _count_done(self, member: bytes, done: SnapshotDone) -> None:
        if done.number != self._asked_number or self._named_number >= done.number:
            return
        self._done[member] = done
        agreed = sum(1 for other in self.members if self._done.get(other) == done)
        if agreed < self.quorum:
            return
        if self._made is not None and self._made.id.hash != done.hash:
            self.lose_state(self._made.id._replace(hash=done.hash))
        elif not self.holding and not self.suspended and self.commit_lsn >= self.noop_lsn:
            self._named_number = done.number
            argv = (b"%d" % done.number, done.hash)
            self.add(Kind.SNAPSHOT_STABLE, Body(argv=argv))

    def hold_stable(self, named: Entry) -> None:
        """Hold it for the one in force, once it is made."""
        text, digest, *_ = (*argv_of(named), b"", b"")
        number = number_in(text)
        if number is None:
            return
        self._named = number, digest
        logged = self._logged_number if self.leading else 0
        if number == self._asked_number >= logged:
            self._is_asked_for = False
            self._answer_askers(Code.OK, text)
        self._compare()

    def _compare(self) -> None:
        made = self._made
        if self.flipping:
            return  # what comes after the flip would not know
        if made is None or self._named is None or made.id.number != self._named[0]:
            return
        if made.id.hash != self._named[1]:
            self.lose_state(made.id._replace(hash=self._named[1]))
        elif self._is_written:
            self.take_for_stable(made)
            self._cut_lsn = max(self._cut_lsn, self._cut_for(made.id.lsn))
            self.adopt(made.id, self._cut_lsn)

    def take_for_stable(self, snapshot: Snapshot) -> None:
        """Keep the one in force, to give it to others; forget those before it."""
        self.stable, self.stable_id = snapshot, snapshot.id
        self.snapshot_number = snapshot.id.number
        if self._made is not None and self._made.id.number <= snapshot.id.number:
            self._made, self._is_written = None, False

    def _cut_for(self, lsn: int) -> int:
        kept = min(self.retain_entries, lsn - self.log.base.lsn)
        if self.log.size > self.retain_bytes:
            kept = int(kept * self.retain_bytes / self.log.size)
        return lsn - kept

    def forget_own_snapshots(self) -> None:
        """Another member's snapshot is the state now; what was made of the old one is nothing."""
        self._making = self._made = self._named = None
        self._is_written = self._is_asked_for = False
        self._cut_lsn = 0

    # ---- time and views

    def tick_snapshots(self) -> None:
        """Do some work, and say again what was not heard."""
        self.shared_bytes = 0
        self._is_called_soon = False
        self.work()
        self._say_done()
        self._compare()
        if self._askers and self.now_ms - self._asked_ms > GIVE_UP_MS:
            self._answer_askers(Code.UNKNOWN)

    def _answer_askers(self, code: Code, value: bytes = b"") -> None:
        askers, self._askers = self._askers, []
        for ticket in askers:
            self.reply(ticket, code, value)

    def lead(self, commit_lsn: int) -> None:
        """Also count anew who has the snapshot."""
        self._done, self._named_number = {}, self.snapshot_number
        self._logged_number = 0
        super().lead(commit_lsn)

    def suspend(self) -> None:
        """Also answer that it is not known whether a snapshot becomes stable."""
        super().suspend()
        self._answer_askers(Code.UNKNOWN)

    def stand_down(self) -> None:
        """Also answer that it is not known whether a snapshot becomes stable."""
        super().stand_down()
        self._answer_askers(Code.UNKNOWN)
