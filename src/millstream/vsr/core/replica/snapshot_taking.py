"""Snapshots of the own state: when one is taken, when it is stable, and what is cut then.

Invariants:
1. An entry of the log asks for a snapshot, so all members take it of the same state. It is made
   of a frozen view, a slice at a time, while later entries are applied.
2. It is stable once a quorum has the same bytes on its disks and an entry that says so is
   committed. Only then does it come into force, are older ones deleted, and is the log cut.
3. A member whose own bytes differ from those of the quorum has a wrong state. It serves nobody
   and votes for nothing until it has the right state.
4. The log is cut behind the stable snapshot only. Enough of it is kept before the snapshot that
   members that were away for a while can go on from the log.
5. No two snapshots have the same number: the primary counts those that it has logged, too.
6. One is made at a time. One that is not stable after `GIVE_UP_MS` is replaced by the next.
7. A member without disk space for a snapshot does without it, and holds up nothing.

Elsewhere: its bytes (`snapshots`), getting one from another member (`state_transfer`).

Source: Liskov and Cowling 2012, section 5.1; V2R2, "Snapshots".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millstream.vsr.core.effects import (
    AdoptSnapshot,
    Code,
    CopyState,
    TakeSnapshot,
    WriteSnapshot,
)
from millstream.vsr.core.entries import Body, Entry, Kind, argv_of, number_in
from millstream.vsr.core.messages import Envelope, SnapshotDone
from millstream.vsr.core.replica.execution import Execution
from millstream.vsr.core.replica.member import ReplicaState, Status
from millstream.vsr.core.replica.normal_case import NormalCase
from millstream.vsr.core.replica.requested_changes import RequestedChanges
from millstream.vsr.core.replica.storage import Storage
from millstream.vsr.core.replica.upcalls import Upcalls
from millstream.vsr.core.snapshots import Making, Snapshot, SnapshotId

__all__ = ["CUT_ENTRIES_MAX", "GIVE_UP_MS", "Snapshots"]

GIVE_UP_MS: Final = 60_000.0
"""After this time another snapshot may be taken although the last one is not stable."""
CUT_ENTRIES_MAX: Final = 4096
"""Most entries that are dropped from the log in memory in one step."""


class Snapshots:
    """Takes snapshots of the own state: TakeSnapshot, CopyState, SnapshotDone."""

    def __init__(
        self, state: ReplicaState, up: Upcalls, execution: Execution, storage: Storage,
        normal: NormalCase, changes: RequestedChanges,
    ) -> None:  # fmt: skip
        self.state, self.up = state, up
        self.execution, self.storage = execution, storage
        self.normal, self.changes = normal, changes
        self.snapshot_number = 0
        """The number of the newest stable snapshot, wherever its bytes are."""
        self.asked_number = self._logged_number = 0
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

    # ---- asking for one

    def on_take_snapshot(self, asked: TakeSnapshot) -> None:
        """Take a snapshot whatever the size of the log; reply once it is stable."""
        state = self.state
        if not state.leading:
            state.reply(asked.ticket, Code.NOTPRIMARY)
        elif state.suspended:
            state.reply(asked.ticket, Code.NOQUORUM)
        elif not self._may_ask:
            state.reply(asked.ticket, Code.BUSY)
        else:
            self._askers.append(asked.ticket)
            self._ask()

    @property
    def _may_ask(self) -> bool:
        state = self.state
        ready = (
            state.leading
            and not state.suspended
            and not self.changes.holding
            and not self.normal.swamped
        )
        free = not self._is_asked_for or state.now_ms - self._asked_ms > GIVE_UP_MS
        return ready and free and state.commit_lsn >= state.noop_lsn

    @property
    def _is_due(self) -> bool:
        state = self.state
        last = 0 if state.stable is None else state.stable.size
        if self.execution.bytes_since < max(
            last, min(last * state.tuning.snapshot_share, state.tuning.snapshot_bytes)
        ):
            return False
        since = state.commit_lsn - self.execution.asked_lsn
        return (
            since >= state.tuning.snapshot_entries
            or self.execution.bytes_since >= state.tuning.snapshot_bytes
        )

    def _ask(self) -> None:
        self._is_asked_for, self._asked_ms = True, self.state.now_ms
        self._logged_number = max(self.asked_number, self._logged_number) + 1
        self.normal.add(Kind.SNAPSHOT, Body(argv=(b"%d" % self._logged_number,)))

    def committed(self) -> None:
        """Take a snapshot if it is time."""
        if self._is_due and self._may_ask:
            self._ask()

    def ask_if_leading(self) -> None:
        """Take a snapshot: a member needs one that this one does not have."""
        if self._may_ask:
            self._ask()

    # ---- of this member alone

    def on_copy_state(self, asked: CopyState) -> None:
        """Start with a copy of the current state, which no other member has confirmed."""
        state = self.state
        link = state.log.link_at(state.commit_lsn)
        if not state.has_state or link is None:
            state.reply(asked.ticket, Code.NOTREADY, b"the state of this member is not here")
        elif self._copying is not None:
            state.reply(asked.ticket, Code.BUSY, b"a copy is being made")
        else:
            number, self.copy = self.snapshot_number + 1, None
            made = Making(number, link, self.execution.freeze(), state.tuning.part_bytes)
            self._copying = asked.ticket, made

    def _go_on_copying(self) -> None:
        if self._copying is not None and (made := self._copying[1].go_on()) is not None:
            ticket = self._copying[0]
            self._copying, self.copy = None, made
            self.state.reply(ticket, Code.OK, b"%d" % made.id.lsn)

    def take_copy(self) -> Snapshot | None:
        """Return the last copy that was asked for, and keep it no more."""
        found, self.copy = self.copy, None
        return found

    # ---- making one

    def take_snapshot(self, asked: Entry) -> None:
        """Begin with it; one that is not stable yet is forgotten."""
        state = self.state
        number = number_in(next(iter(argv_of(asked)), b""))
        if number is None:
            return
        self.asked_number = number
        self._is_asked_for, self._asked_ms = True, state.now_ms
        self._making = Making(
            self.asked_number, asked.header.link, self.execution.freeze(), state.tuning.part_bytes
        )
        self._made, self._is_written, self._done = None, False, {}

    def work(self) -> None:
        """Do a slice of what takes long."""
        state = self.state
        if self._making is not None and (made := self._making.go_on()) is not None:
            self._making, self._made = None, made
            if state.stable_id is None or made.id.number > state.stable_id.number:
                self.write_snapshot(made, lambda: self._written_down(made))
        self._go_on_copying()
        if self._cut_lsn > state.log.base.lsn:
            state.log.drop_prefix(min(self._cut_lsn, state.log.base.lsn + CUT_ENTRIES_MAX))

    @property
    def has_work(self) -> bool:
        """Whether `work` would do something."""
        is_making = self._making is not None or self._copying is not None
        return is_making or self._cut_lsn > self.state.log.base.lsn

    def write_snapshot(self, snapshot: Snapshot, then: Callable[[], None]) -> None:
        """Write a snapshot to the disk, then call `then`."""
        op = self.storage.next_op()
        self._steps[op] = then
        self.state.effects.append(WriteSnapshot(op, snapshot))

    def adopt(self, found: SnapshotId, cut_lsn: int) -> None:
        """Make a written snapshot the one that is in force on the disk."""
        op = self.storage.next_op()
        self._steps[op] = lambda: None
        self.state.effects.append(AdoptSnapshot(op, found, cut_lsn))

    def written(self, op: int) -> bool:
        """Go on with a snapshot that is on the disk now; return whether this reports one."""
        step = self._steps.pop(op, None)
        if step is not None:
            step()
        return step is not None

    def not_written(self, op: int) -> None:
        """Do without a snapshot that had no space; the next one may have."""
        del self._steps[op]

    def _written_down(self, made: Snapshot) -> None:
        if self._made is made:
            self._is_written = True
            self._say_done()
            self.compare()

    # ---- agreeing on it

    def _say_done(self) -> None:
        state = self.state
        if self._made is None or not self._is_written or self.storage.is_persisting:
            return
        done = SnapshotDone(self._made.id.number, self._made.id.hash)
        if state.leading:
            self._count_done(state.id, done)
        elif state.status is Status.NORMAL and state.current:
            state.send(state.primary, done)

    def on_snapshot_done(self, envelope: Envelope, done: SnapshotDone) -> None:
        """Count a member that has it."""
        if self.state.leading and envelope.view == self.state.view:
            self._count_done(envelope.sender, done)

    def _count_done(self, member: bytes, done: SnapshotDone) -> None:
        state = self.state
        if done.number != self.asked_number or self._named_number >= done.number:
            return
        self._done[member] = done
        agreed = sum(1 for other in state.members if self._done.get(other) == done)
        if agreed < state.quorum:
            return
        if self._made is not None and self._made.id.hash != done.hash:
            self.up.lose_state(self._made.id._replace(hash=done.hash))
        elif (
            not self.changes.holding and not state.suspended and state.commit_lsn >= state.noop_lsn
        ):
            self._named_number = done.number
            argv = (b"%d" % done.number, done.hash)
            self.normal.add(Kind.SNAPSHOT_STABLE, Body(argv=argv))

    def hold_stable(self, named: Entry) -> None:
        """Hold it for the one in force, once it is made."""
        text, digest, *_ = (*argv_of(named), b"", b"")
        number = number_in(text)
        if number is None:
            return
        self._named = number, digest
        logged = self._logged_number if self.state.leading else 0
        if number == self.asked_number >= logged:
            self._is_asked_for = False
            self.answer_askers(Code.OK, text)
        self.compare()

    def compare(self) -> None:
        """Make the own snapshot stable if it equals the agreed one, else give up the state."""
        made = self._made
        if self.storage.is_persisting:
            return  # what comes after the hard state would not know
        if made is None or self._named is None or made.id.number != self._named[0]:
            return
        if made.id.hash != self._named[1]:
            self.up.lose_state(made.id._replace(hash=self._named[1]))
        elif self._is_written:
            self.take_for_stable(made)
            self._cut_lsn = max(self._cut_lsn, self._cut_for(made.id.lsn))
            self.adopt(made.id, self._cut_lsn)

    def take_for_stable(self, snapshot: Snapshot) -> None:
        """Keep the one in force, to give it to others; forget those before it."""
        self.state.stable, self.state.stable_id = snapshot, snapshot.id
        self.snapshot_number = snapshot.id.number
        if self._made is not None and self._made.id.number <= snapshot.id.number:
            self._made, self._is_written = None, False

    def _cut_for(self, lsn: int) -> int:
        state = self.state
        kept = min(state.tuning.retain_entries, lsn - state.log.base.lsn)
        if state.log.size > state.tuning.retain_bytes:
            kept = int(kept * state.tuning.retain_bytes / state.log.size)
        return lsn - kept

    def forget_own_snapshots(self) -> None:
        """Another member's snapshot is the state now; what was made of the old one is nothing."""
        self._making = self._made = self._named = None
        self._is_written = self._is_asked_for = False
        self._cut_lsn = 0

    # ---- time and views

    def tick(self) -> None:
        """Repeat messages that were not answered."""
        self._say_done()
        self.compare()
        if self._askers and self.state.now_ms - self._asked_ms > GIVE_UP_MS:
            self.answer_askers(Code.UNKNOWN)

    def answer_askers(self, code: Code, value: bytes = b"") -> None:
        """Answer who asked for a snapshot."""
        askers, self._askers = self._askers, []
        for ticket in askers:
            self.state.reply(ticket, code, value)

    def begin_to_lead(self) -> None:
        """Count anew who has the snapshot."""
        self._done, self._named_number = {}, self.snapshot_number
        self._logged_number = 0
