"""Executing the log: entries are put into it, and are applied once they are committed.

Invariants:
1. Entries are committed and applied in LSN order, each once, never above the end of the log or a
   hole in it.
2. The state machine, the client table and the record of epochs change by applied entries alone, or
   are replaced by those of a snapshot.

Elsewhere: when an entry is committed (`normal_case`), what an entry does (the state machine).

Source: Liskov and Cowling 2012.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain as joined
from struct import Struct
from typing import Final

from millstream.errors import CorruptionError
from millstream.vsr.core import entries as log_entries
from millstream.vsr.core.client_table import Past, Verdict
from millstream.vsr.core.configuration import generation, is_closing
from millstream.vsr.core.effects import Code
from millstream.vsr.core.entries import (
    HASH_BYTES,
    HEADER_BYTES,
    NOBODY,
    NOTHING,
    Body,
    Entry,
    Kind,
    argv_of,
    number_in,
)
from millstream.vsr.core.replica.member import ReplicaState
from millstream.vsr.core.replica.upcalls import Upcalls
from millstream.vsr.core.snapshots import Pieces, Snapshot, unknown_state

__all__ = ["FORKED", "Execution", "epoch_in", "outcome"]

_EPOCH: Final = Struct(">IQ16sI")
_NO_BODY: Final = b"-BADARG the log has no request here"
_MAY_WAIT: Final = (Past.NEW, Past.GONE)
_TO_EXECUTE: Final = (Past.NEW, Past.WAITING, Past.OFFERED)
FORKED: Final = Body(argv=(b"FORK",))
"""Body of the first entry of a fork. After it the state knows its epoch."""


class Execution:
    """Appends entries to the log, and applies those that are committed."""

    def __init__(self, state: ReplicaState, up: Upcalls) -> None:
        self.state, self.up = state, up
        self.to_apply_lsn = 0
        """Entries of this log are known to be committed up to here."""
        self.uncommitted_bytes = 0
        self.asked_lsn = 0
        """The LSN of the applied entry at which the log last asked for a snapshot."""
        self.bytes_since = 0
        """Bytes of the entries applied since then."""
        self._epoch_record = _EPOCH.pack(0, 0, bytes(HASH_BYTES), 0)

    def next_entry(
        self, kind: Kind, body: Body = NOTHING, instance: bytes = NOBODY,
        session: int = 0, csn: int = 0, claim: bool = False,
    ) -> Entry:  # fmt: skip
        """Put a new entry at the log's end."""
        state = self.state
        log = state.log
        entry = log_entries.chain(
            log.head, group_id=state.group_id, epoch=state.epoch, view=state.view, kind=kind,
            ts_ms=state.clocks.stamp_ms(state.wall_ms, state.now_ms), body=body,
            instance=instance, session=session, csn=csn, claim=claim,
        )  # fmt: skip
        log.append(entry)
        self.uncommitted_bytes += HEADER_BYTES + entry.header.body_length
        return entry

    def advance(self, lsn: int) -> bool:
        """Commit and apply up to `lsn`, as far as the log is whole. Return whether any was.

        Many entries are applied in slices: `go_on_applying` does the next one.
        """
        state = self.state
        before = state.commit_lsn
        if lsn <= before or not state.has_state:
            return False
        end = min(lsn, state.log.whole_lsn)
        self.to_apply_lsn = max(self.to_apply_lsn, end)
        end = min(end, before + state.tuning.apply_entries_max)
        while state.commit_lsn < end and state.has_state:
            entry = state.log.entry_at(state.commit_lsn + 1)
            assert entry is not None
            header = entry.header
            ends = header.kind is Kind.RECONFIG and self._ends_epoch(entry)
            if ends and entry.lsn < state.log.op_lsn:
                state.contradict("an entry behind the end of its epoch")
                self.to_apply_lsn = state.commit_lsn
                break
            if ends and not is_closing(entry):
                state.contradict("an end of an epoch that is none")
                self.to_apply_lsn = state.commit_lsn
                break
            state.commit_lsn += 1
            size = HEADER_BYTES + header.body_length
            self.bytes_since += size
            self.uncommitted_bytes = max(0, self.uncommitted_bytes - size)
            self._apply(entry)
            if ends:
                self.up.committed()
                self.up.end_epoch(entry)
                return True
        if state.commit_lsn > before:
            self.up.committed()
        return state.commit_lsn > before

    @property
    def has_to_apply(self) -> bool:
        """Whether entries are known to be committed here and can be applied, and are not yet."""
        state = self.state
        end = min(self.to_apply_lsn, state.log.whole_lsn)
        return state.commit_lsn < end and state.has_state

    def go_on_applying(self) -> None:
        """Apply another slice of what is known to be committed."""
        self.advance(self.to_apply_lsn)

    def _ends_epoch(self, entry: Entry) -> bool:
        state = self.state
        ends = entry.header.kind is Kind.RECONFIG and entry.header.epoch == state.epoch
        return ends and not state.is_outside

    def _apply(self, entry: Entry) -> None:
        state = self.state
        header = entry.header
        code, value, lsn = Code.OK, b"", header.lsn
        if header.kind is Kind.REQUEST:
            code, value, lsn = self._execute(entry)
        elif header.kind is Kind.SESSION_OPEN:
            opened = state.table.open(header.lsn, header.instance, *argv_of(entry)[:2])
            code, value = (Code.OK, b"%d" % header.lsn) if opened else (Code.BUSY, b"")
            self.up.touch(header.lsn)
        elif header.kind is Kind.SESSION_CLOSE:
            if state.table.close(header.session, header.instance):
                state.machine.end_sessions(entry, (header.session,))
            else:
                code = Code.SESSIONEXPIRED
            self.up.ended((header.session,))
        elif header.kind is Kind.SESSION_EXPIRE:
            named = map(number_in, argv_of(entry))
            sessions = [session for session in named if session is not None]
            state.machine.end_sessions(entry, [each for each in sessions if each in state.table])
            state.table.expire(sessions)
            self.up.ended(sessions)
        else:
            self._apply_other(entry)
        for answer in state.machine.take_answers():
            state.table.store(*answer, header.lsn)
        settings = state.machine.take_settings()
        if settings is not None:
            state.tuning.tune(settings)
        for ticket in state.waiting.pop(header.lsn, ()):
            state.reply(ticket, code, value, lsn)
        if header.session:
            state.in_flight.pop((header.session, header.csn), None)

    def _apply_other(self, entry: Entry) -> None:
        header = entry.header
        if header.kind is Kind.NOOP and argv_of(entry) == FORKED.argv:
            self._epoch_record = _EPOCH.pack(header.epoch, header.lsn, header.hash, 0)
        elif header.kind is Kind.SNAPSHOT:
            self.asked_lsn, self.bytes_since = header.lsn, 0
            self.up.take_snapshot(entry)
        elif header.kind is Kind.TICK:
            self.state.machine.end_offers(entry)
        elif header.kind is Kind.SNAPSHOT_STABLE:
            self.up.hold_stable(entry)
        elif header.kind is Kind.RECONFIG:
            record = _EPOCH.pack(header.epoch + 1, header.lsn, header.hash, len(entry.body))
            self._epoch_record = record + entry.body
        elif header.kind is Kind.RAISE:
            self._use_format(max(number_in(word) or 0 for word in (*argv_of(entry), b"0")))

    def _use_format(self, number: int) -> None:
        """Switch to this state format. Raises CorruptionError: `unknown_state`."""
        state = self.state
        if number > state.machine.format_max:
            raise CorruptionError(
                f"the group is at state format {number}, and this version knows formats up to "
                f"{state.machine.format_max}: start the newer version that was here",
                code="unknown_state",
            )
        state.state_format = max(state.state_format, number)
        state.machine.use_format(state.state_format)

    @property
    def first_body(self) -> Body:
        """Return the body of the first entry of a view.

        It says that a fork begins, if the state lacks that. A fork has one member at first. So the
        entry is in the state before other members come.
        """
        is_known = generation(_EPOCH.unpack(self._epoch_record[: _EPOCH.size])[0]) == generation(
            self.state.epoch
        )
        return NOTHING if is_known or len(self.state.members) > 1 else FORKED

    def freeze(self) -> Iterator[bytes]:
        """Return what all members have in common as of this moment: epoch, clients, state."""
        state = self.state
        head = state.state_format.to_bytes(4, "big") + self._epoch_record
        return joined((head,), state.table.freeze(), state.machine.freeze())

    def restore(self, pieces: Pieces) -> Iterator[None]:
        """Replace it by what `freeze` wrote, a little with each step."""
        state = self.state
        state.state_format = 1
        self._use_format(pieces.number(4))
        head = pieces.take(_EPOCH.size)
        self._epoch_record = head + pieces.take(_EPOCH.unpack(head)[-1])
        yield from state.table.restore(pieces)
        yield from state.machine.restore(pieces)
        settings = state.machine.take_settings()
        if settings is not None:
            state.tuning.tune(settings)

    def _execute(self, entry: Entry) -> tuple[Code, bytes, int]:
        state = self.state
        header = entry.header
        session, csn = header.session, header.csn
        verdict = self.judge(header.instance, session, csn)
        if verdict.past not in _TO_EXECUTE:
            return outcome(verdict)
        try:
            value = state.machine.apply(entry)
        except CorruptionError:  # it is no body; the same bytes are that to every member
            value = _NO_BODY
        if state.machine.waiting(session, csn) is not None:
            state.table.wait(session, csn)
        else:
            state.table.store(session, csn, value, header.lsn)
        return Code.OK, value, header.lsn

    def judge(self, instance: bytes, session: int, csn: int) -> Verdict:
        """Return what the client table and the state say of a request."""
        verdict = self.state.table.judge(instance, session, csn)
        if session and verdict.past in _MAY_WAIT:
            verdict = self.state.machine.waiting(session, csn) or verdict
        return verdict

    def forget_clients(self) -> None:
        """Tell clients whose requests are logged that this member will not report the result."""
        state = self.state
        for lsn in sorted(state.waiting):
            for ticket in state.waiting[lsn]:
                state.reply(ticket, Code.UNKNOWN)
        state.waiting, state.in_flight = {}, {}


def outcome(verdict: Verdict) -> tuple[Code, bytes, int]:
    """Return the reply to a request that is not new."""
    codes = {Past.STORED: Code.OK, Past.GONE: Code.CSNGONE, Past.EXPIRED: Code.SESSIONEXPIRED}
    return codes[verdict.past], verdict.value, verdict.lsn


def epoch_in(snapshot: Snapshot, format_max: int) -> int:
    """Return the epoch of a state, as `Execution.freeze` wrote it.

    Raises:
        CorruptionError: `unknown_state`: its format is higher than this program knows.
    """
    pieces = Pieces(snapshot.parts)
    if pieces.number(4) > format_max:
        raise unknown_state("it is of another version, or none")
    epoch: int = _EPOCH.unpack(pieces.take(_EPOCH.size))[0]
    return epoch
