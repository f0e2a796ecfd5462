"""One member of a group: its state, its messages, its disk, and applying what is committed.

The parts of the protocol stand on one another, each a class in a module of its own: `Member` here,
`Normal`, `Reading`, `Views`, `Epochs`, and `Replica`, which receives events.

Invariants:
1. Entries are committed and applied in LSN order, each once, never above the end of the log or a
   hole in it.
2. While a new standing is on its way to the disk (`flip`), the member does nothing else: what it
   does next depends on it. Events wait (`Replica`).
3. Nothing here reads a clock or throws dice: times and chances are arguments.

Elsewhere: when any of this is done (the classes above).

Source: Liskov and Cowling 2012.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from itertools import chain as joined
from struct import Struct
from typing import Final

from millstream.errors import CorruptionError
from millstream.vsr.core import entries as log_entries
from millstream.vsr.core.client_table import ClientTable, Past, Verdict
from millstream.vsr.core.clocks import Clocks
from millstream.vsr.core.configuration import Configuration, generation, is_closing
from millstream.vsr.core.effects import (
    Append,
    Code,
    Effect,
    Image,
    Install,
    InstallSnapshot,
    Reply,
    Request,
    Send,
    SetTimer,
    WriteStanding,
)
from millstream.vsr.core.entries import (
    HASH_BYTES,
    HEADER_BYTES,
    ID_BYTES,
    NOBODY,
    NOTHING,
    Body,
    Entry,
    Kind,
    argv_of,
    number_in,
)
from millstream.vsr.core.hard_state import Standing
from millstream.vsr.core.log import Log
from millstream.vsr.core.messages import Envelope, Payload
from millstream.vsr.core.replica.repair import NewEnd
from millstream.vsr.core.snapshots import Pieces, Snapshot, SnapshotId, unknown_state
from millstream.vsr.core.state_machine import StateMachine
from millstream.vsr.core.tuning import HEARTBEAT_MS, Tuned

__all__ = ["APPLY_ENTRIES_MAX", "FORKED", "Member", "Status", "epoch_in"]

APPLY_ENTRIES_MAX: Final = 512
"""Entries applied in one step; one may take a tenth of a millisecond and more."""
_EPOCH: Final = Struct(">IQ16sI")
_NO_BODY: Final = b"-BADARG the log has no request here"
_WAKE: Final = SetTimer(HEARTBEAT_MS)
_MAY_WAIT: Final = (Past.NEW, Past.GONE)
_TO_EXECUTE: Final = (Past.NEW, Past.WAITING, Past.OFFERED)
_NOBODY: Final = Configuration(0, (bytes(ID_BYTES),))
FORKED: Final = Body(argv=(b"FORK",))
"""Of the first entry of a fork, after which the state knows its epoch."""


class Status(Enum):
    """What a member is doing."""

    INITIALIZATION = "INITIALIZATION"
    NORMAL = "NORMAL"
    VIEWCHANGE = "VIEWCHANGE"
    GAP = "RECOVERY/GAP"
    LOST = "RECOVERY/LOST"
    RETIRED = "RETIRED"


class Member(Tuned, ABC):
    """State and primitives; `chance` returns numbers from 0 to below 1."""

    apply_entries_max = APPLY_ENTRIES_MAX

    def __init__(self, machine: StateMachine, chance: Callable[[], float]) -> None:
        super().__init__()
        self.machine = machine
        self.chance = chance
        self.effects: list[Effect] = []
        self.now_ms = 0.0
        self.wall_ms = 0
        self.group_id = self.id = bytes(ID_BYTES)
        self.incarnation = 0
        self.belong_to(_NOBODY)
        self.view = 0
        self.last_normal = (0, 0)
        self.retired: Configuration | None = None
        self.log = Log()
        self.table = ClientTable()
        self.clocks = Clocks()
        self.status = Status.INITIALIZATION
        self.lost = False
        """The log is gone, and nobody knows what was acknowledged of it."""
        self.commit_lsn = 0
        self._to_apply_lsn = 0
        """So far entries of this log are known to be committed."""
        self.leading = False
        self.suspended = False
        self.deposed = False
        """Suspended for good: a member of the group is in a higher view."""
        self._waiting: dict[int, list[int]] = {}
        self._in_flight: dict[tuple[int, int], int] = {}
        self.uncommitted_bytes = 0
        self.hinted_lsn = 0
        self.state_format = 1
        """What the entries mean that are applied now, and what the state looks like."""
        self.has_state = True
        """Whether what is applied is here; if not, it is on its way, and nothing is applied."""
        self.stable_id: SnapshotId | None = None
        self.stable: Snapshot | None = None
        """The newest stable snapshot, None if its bytes are not here."""
        self.asked_lsn = 0
        """Where the log has last asked for a snapshot, as far as it is applied."""
        self.bytes_since = 0
        """Of the entries applied since."""
        self._epoch_record = _EPOCH.pack(0, 0, bytes(HASH_BYTES), 0)
        self.snapshot_number = 0
        self.is_diverged = False
        self.contradiction = ""
        """What was heard last that cannot be, and so was not taken."""
        self.repaired = 0
        self.view_changed_ms = 0.0
        self.view_reason = ""
        self._op = 0
        self._flip_op = 0
        self._then: Callable[[], None] | None = None

    # ---- what the classes above add

    @abstractmethod
    def committed(self) -> None:
        """Something was committed here."""

    @abstractmethod
    def end_epoch(self, closing: Entry) -> None:
        """The entry that ends this epoch is committed."""

    @abstractmethod
    def follows(self, envelope: Envelope) -> bool:
        """Return whether a primary's message is of this view, with the log of this view."""

    @abstractmethod
    def mend(self) -> None:
        """Fill the holes of a log that is otherwise the right one."""

    @abstractmethod
    def heard_from(self, member: bytes) -> None:
        """Note that a member answered this primary."""

    @abstractmethod
    def touch(self, session: int) -> None:
        """Note that the client of a session lives."""

    @abstractmethod
    def ended(self, sessions: Iterable[int]) -> None:
        """These sessions are over."""

    @abstractmethod
    def defer(self, envelope: Envelope) -> None:
        """Receive this again once the disk is done."""

    @abstractmethod
    def take_snapshot(self, asked: Entry) -> None:
        """Begin with a snapshot of the state of this moment: the log asks for it."""

    @abstractmethod
    def hold_stable(self, named: Entry) -> None:
        """Hold the snapshot named here for the one all agree on."""

    @abstractmethod
    def take_state(self, found: SnapshotId, snapshot: Snapshot | None) -> None:
        """Let the state become that of a snapshot; None: it has to be fetched."""

    @abstractmethod
    def offer_snapshot(self, receiver: bytes) -> None:
        """Say that what was asked for is in the log no more, and what stands for it."""

    @property
    @abstractmethod
    def entering(self) -> bool:
        """Whether the log of a later epoch is being fetched: this one is over."""

    @property
    @abstractmethod
    def sources(self) -> tuple[bytes, ...]:
        """Who may have entries that are missing here."""

    @abstractmethod
    def ask_epoch(self, sender: bytes) -> None:
        """Ask who speaks of an unknown epoch what it is."""

    @abstractmethod
    def hold(self, request: Request) -> None:
        """Keep a request until the next epoch runs."""

    @abstractmethod
    def lose_log(self, what: str) -> None:
        """Believe the own log no more: it differs from another one where none may."""

    @abstractmethod
    def propose(self, at_least: int = 0) -> None:
        """Ask the others for a new view."""

    # ---- who

    def belong_to(self, configuration: Configuration) -> None:
        """Be in this epoch."""
        self.configuration = configuration
        self.epoch, self.members = configuration.epoch, configuration.members

    @property
    def quorum(self) -> int:
        """Of this epoch."""
        return self.configuration.quorum

    @property
    def primary(self) -> bytes:
        """Who leads this view if anybody does."""
        return self.configuration.primary(self.view)

    @property
    def current(self) -> bool:
        """Whether this log is the one of this view's primary, or the beginning of it."""
        return self.last_normal == (self.epoch, self.view)

    @property
    def closing(self) -> bool:
        """Whether the log ends in the entry that ends this epoch."""
        last = self.log.last
        return last is not None and last.kind is Kind.RECONFIG and last.epoch == self.epoch

    @property
    def holding(self) -> bool:
        """Whether requests wait instead of being logged."""
        return self.closing

    # ---- effects

    def send(self, receiver: bytes, payload: Payload) -> None:
        """Say it to one other member."""
        assert receiver != self.id
        self.effects.append(Send(receiver, self.sealed(payload)))

    def sealed(self, payload: Payload) -> Envelope:
        """Return a message from this member, for whomever."""
        return Envelope(self.group_id, self.id, self.incarnation, self.epoch, self.view, payload)

    def broadcast(self, payload: Payload) -> None:
        """Say it to all other members."""
        envelope = self.sealed(payload)
        for member in self.members:
            if member != self.id:
                self.effects.append(Send(member, envelope))

    def reply(self, ticket: int, code: Code, value: bytes = b"", lsn: int = 0) -> None:
        """Answer a client."""
        self.effects.append(Reply(ticket, code, value, lsn))

    def wake_after(self, after_ms: float) -> None:
        """Ask for the next Timer."""
        self.effects.append(_WAKE if after_ms == HEARTBEAT_MS else SetTimer(after_ms))

    def write(self, entries: Iterable[Entry]) -> int:
        """Have entries at the log's end put on the disk; return the number that reports it."""
        self._op += 1
        self.effects.append(Append(self._op, tuple(entries)))
        return self._op

    @property
    def standing(self) -> Standing:
        """What is to be durable of the state now."""
        return Standing(
            self.group_id, self.id, self.incarnation, self.view, self.last_normal,
            self.configuration, self.retired,
            self.commit_lsn if self.configuration.journalled else 0,
        )  # fmt: skip

    def flip(self, then: Callable[[], None], end: NewEnd | None = None) -> None:
        """Make the standing durable, with a new end of the log if there is one; go on after it."""
        assert self._then is None
        self._op += 1
        self._flip_op, self._then = self._op, then
        if end is not None:
            damaged = len(self.log.holes)
            self._change_log(end)
            self.repaired += damaged - len(self.log.holes)
        self.hinted_lsn = self.commit_lsn
        if end is None:
            self.effects.append(WriteStanding(self._op, self.standing))
        elif end.snapshot is None:
            self.effects.append(Install(self._op, end.keep_lsn, end.suffix, self.standing))
        else:
            new = InstallSnapshot(self._op, end.snapshot, end.suffix, self.standing)
            self.effects.append(new)

    def _change_log(self, end: NewEnd) -> None:
        assert end.keep_lsn >= self.log.base.lsn
        self._to_apply_lsn = min(self._to_apply_lsn, end.keep_lsn)
        if end.snapshot is None:
            self.log.replace_above(end.keep_lsn, end.suffix)
        else:
            found = end.snapshot.id
            assert found.lsn >= self.commit_lsn, "a snapshot older than what is applied"
            self.log.begin_at(found.link)
            self.log.replace_above(found.lsn, end.suffix)
            self.take_state(found, end.snapshot)
        assert self.commit_lsn <= self.log.op_lsn

    def write_hint(self) -> int:
        """Write the standing for its commit hint alone; return the number that reports it."""
        self._op += 1
        self.hinted_lsn = self.commit_lsn
        self.effects.append(WriteStanding(self._op, self.standing))
        return self._op

    @property
    def flipping(self) -> bool:
        """Whether a standing is on its way to the disk."""
        return self._then is not None

    def flipped(self, op: int) -> bool:
        """Go on if this is what `flip` waits for."""
        if self._then is None or op != self._flip_op:
            return False
        then, self._then = self._then, None
        then()
        return True

    def contradict(self, what: str) -> None:
        """Note that what was heard cannot be, if all keep their promises; it is not taken."""
        self.contradiction = what

    # ---- the log

    def load(self, image: Image) -> None:
        """Take over what a restart found."""
        (
            self.group_id, self.id, self.incarnation, self.view, self.last_normal,
            configuration, self.retired, hint,
        ) = image.standing  # fmt: skip
        self.belong_to(configuration)
        self.incarnation += 1
        promised = self.members and (self.epoch, self.view) > (0, 0)
        forgot = bool(promised and not self.configuration.journalled)
        covered_lsn = 0 if image.stable is None else image.stable.lsn
        self.lost = image.lost or forgot or image.base.lsn + len(image.log) < covered_lsn
        if not self.lost:
            self._load_log(image)
        self._commit_hint = min(hint, self.log.whole_lsn)
        if self.closing:
            self._commit_hint = min(self._commit_hint, self.log.op_lsn - 1)

    def _load_log(self, image: Image) -> None:
        self.log.begin_at(image.base)
        for entry in image.log:
            if isinstance(entry, Entry):
                self.log.append(entry)
            else:
                self.log.append_hole(entry.header)
        if image.stable is not None:
            self.cover_holes(image.stable.lsn)
            self.take_state(image.stable, image.snapshot)

    def cover_holes(self, lsn: int) -> None:
        """Let a snapshot stand for what is damaged up to its LSN."""
        covered = [hole for hole in self.log.holes if hole <= lsn]
        self.log.drop_prefix(max(covered, default=self.log.base.lsn))

    def next_entry(
        self, kind: Kind, body: Body = NOTHING, instance: bytes = NOBODY,
        session: int = 0, csn: int = 0, claim: bool = False,
    ) -> Entry:  # fmt: skip
        """Put a new entry at the log's end."""
        log = self.log
        entry = log_entries.chain(
            log.head, group_id=self.group_id, epoch=self.epoch, view=self.view, kind=kind,
            ts_ms=self.clocks.stamp_ms(self.wall_ms, self.now_ms), body=body,
            instance=instance, session=session, csn=csn, claim=claim,
        )  # fmt: skip
        log.append(entry)
        self.uncommitted_bytes += HEADER_BYTES + entry.header.body_length
        return entry

    def advance(self, lsn: int) -> bool:
        """Commit and apply up to `lsn`, as far as the log is whole; return whether any was.

        A long way is gone in slices: `go_on_applying` does the next one.
        """
        before = self.commit_lsn
        if lsn <= before or not self.has_state:
            return False
        end = min(lsn, self.log.whole_lsn)
        self._to_apply_lsn = max(self._to_apply_lsn, end)
        end = min(end, before + self.apply_entries_max)
        while self.commit_lsn < end and self.has_state:
            entry = self.log.entry_at(self.commit_lsn + 1)
            assert entry is not None
            header = entry.header
            ends = header.kind is Kind.RECONFIG and self._ends_epoch(entry)
            if ends and entry.lsn < self.log.op_lsn:
                self.contradict("an entry behind the end of its epoch")
                self._to_apply_lsn = self.commit_lsn
                break
            if ends and not is_closing(entry):
                self.contradict("an end of an epoch that is none")
                self._to_apply_lsn = self.commit_lsn
                break
            self.commit_lsn += 1
            size = HEADER_BYTES + header.body_length
            self.bytes_since += size
            self.uncommitted_bytes = max(0, self.uncommitted_bytes - size)
            self._apply(entry)
            if ends:
                self.committed()
                self.end_epoch(entry)
                return True
        if self.commit_lsn > before:
            self.committed()
        return self.commit_lsn > before

    @property
    def has_to_apply(self) -> bool:
        """Whether more is known to be committed here, and can be applied."""
        end = min(self._to_apply_lsn, self.log.whole_lsn)
        return self.commit_lsn < end and self.has_state

    def go_on_applying(self) -> None:
        """Apply another slice of what is known to be committed."""
        self.advance(self._to_apply_lsn)

    def _ends_epoch(self, entry: Entry) -> bool:
        ends = entry.header.kind is Kind.RECONFIG and entry.header.epoch == self.epoch
        return ends and bool(self.members) and self.status is not Status.RETIRED

    def _apply(self, entry: Entry) -> None:
        header = entry.header
        code, value, lsn = Code.OK, b"", header.lsn
        if header.kind is Kind.REQUEST:
            code, value, lsn = self._execute(entry)
        elif header.kind is Kind.SESSION_OPEN:
            opened = self.table.open(header.lsn, header.instance, *argv_of(entry)[:2])
            code, value = (Code.OK, b"%d" % header.lsn) if opened else (Code.BUSY, b"")
            self.touch(header.lsn)
        elif header.kind is Kind.SESSION_CLOSE:
            if self.table.close(header.session, header.instance):
                self.machine.end_sessions(entry, (header.session,))
            else:
                code = Code.SESSIONEXPIRED
            self.ended((header.session,))
        elif header.kind is Kind.SESSION_EXPIRE:
            named = map(number_in, argv_of(entry))
            sessions = [session for session in named if session is not None]
            self.machine.end_sessions(entry, [each for each in sessions if each in self.table])
            self.table.expire(sessions)
            self.ended(sessions)
        else:
            self._apply_other(entry)
        for answer in self.machine.take_answers():
            self.table.store(*answer, header.lsn)
        settings = self.machine.take_settings()
        if settings is not None:
            self.tune(settings)
        for ticket in self._waiting.pop(header.lsn, ()):
            self.reply(ticket, code, value, lsn)
        if header.session:
            self._in_flight.pop((header.session, header.csn), None)

    def _apply_other(self, entry: Entry) -> None:
        header = entry.header
        if header.kind is Kind.NOOP and argv_of(entry) == FORKED.argv:
            self._epoch_record = _EPOCH.pack(header.epoch, header.lsn, header.hash, 0)
        elif header.kind is Kind.SNAPSHOT:
            self.asked_lsn, self.bytes_since = header.lsn, 0
            self.take_snapshot(entry)
        elif header.kind is Kind.TICK:
            self.machine.end_offers(entry)
        elif header.kind is Kind.SNAPSHOT_STABLE:
            self.hold_stable(entry)
        elif header.kind is Kind.RECONFIG:
            record = _EPOCH.pack(header.epoch + 1, header.lsn, header.hash, len(entry.body))
            self._epoch_record = record + entry.body
        elif header.kind is Kind.RAISE:
            self._use_format(max(number_in(word) or 0 for word in (*argv_of(entry), b"0")))

    def _use_format(self, number: int) -> None:
        """Have this state format from now on.

        Raises:
            CorruptionError: `unknown_state`.
        """
        if number > self.machine.format_max:
            raise CorruptionError(
                f"the group is at state format {number}, and this version knows formats up to "
                f"{self.machine.format_max}: start the newer version that was here",
                code="unknown_state",
            )
        self.state_format = max(self.state_format, number)
        self.machine.use_format(self.state_format)

    @property
    def first_body(self) -> Body:
        """Return what the first entry of a view says: that a fork begins, if the state lacks it.

        A fork is of one member at first, so that it is in the state before others come.
        """
        is_known = generation(_EPOCH.unpack(self._epoch_record[: _EPOCH.size])[0]) == generation(
            self.epoch
        )
        return NOTHING if is_known or len(self.members) > 1 else FORKED

    def freeze(self) -> Iterator[bytes]:
        """Return what all members have the same of, as of this moment: epoch, clients, state."""
        head = self.state_format.to_bytes(4, "big") + self._epoch_record
        return joined((head,), self.table.freeze(), self.machine.freeze())

    def restore(self, pieces: Pieces) -> Iterator[None]:
        """Let it be what `freeze` wrote, a little with each step."""
        self.state_format = 1
        self._use_format(pieces.number(4))
        head = pieces.take(_EPOCH.size)
        self._epoch_record = head + pieces.take(_EPOCH.unpack(head)[-1])
        yield from self.table.restore(pieces)
        yield from self.machine.restore(pieces)
        settings = self.machine.take_settings()
        if settings is not None:
            self.tune(settings)

    def _execute(self, entry: Entry) -> tuple[Code, bytes, int]:
        header = entry.header
        session, csn = header.session, header.csn
        verdict = self.judge(header.instance, session, csn)
        if verdict.past not in _TO_EXECUTE:
            return outcome(verdict)
        try:
            value = self.machine.apply(entry)
        except CorruptionError:  # it is no body; the same bytes are that to every member
            value = _NO_BODY
        if self.machine.waiting(session, csn) is not None:
            self.table.wait(session, csn)
        else:
            self.table.store(session, csn, value, header.lsn)
        return Code.OK, value, header.lsn

    def judge(self, instance: bytes, session: int, csn: int) -> Verdict:
        """Return what client table and state say of a request."""
        verdict = self.table.judge(instance, session, csn)
        if session and verdict.past in _MAY_WAIT:
            verdict = self.machine.waiting(session, csn) or verdict
        return verdict

    def forget_clients(self) -> None:
        """Answer those whose requests are logged that nobody here will tell them the result."""
        for lsn in sorted(self._waiting):
            for ticket in self._waiting[lsn]:
                self.reply(ticket, Code.UNKNOWN)
        self._waiting, self._in_flight = {}, {}


def outcome(verdict: Verdict) -> tuple[Code, bytes, int]:
    """Return the reply to a request that is not new."""
    codes = {Past.STORED: Code.OK, Past.GONE: Code.CSNGONE, Past.EXPIRED: Code.SESSIONEXPIRED}
    return codes[verdict.past], verdict.value, verdict.lsn


def epoch_in(snapshot: Snapshot, format_max: int) -> int:
    """Return the epoch that a state is of, as `Member.freeze` wrote it.

    Raises:
        CorruptionError: `unknown_state`: its format is higher than that.
    """
    pieces = Pieces(snapshot.parts)
    if pieces.number(4) > format_max:
        raise unknown_state("it is of another version, or none")
    epoch: int = _EPOCH.unpack(pieces.take(_EPOCH.size))[0]
    return epoch
