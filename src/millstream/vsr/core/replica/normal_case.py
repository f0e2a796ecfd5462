"""Normal operation: the primary orders requests, backups store them, a quorum commits them.

Invariants:
1. An acknowledgement says that the log up to its LSN is durable and equal to the primary's log.
   Only acknowledgements of the primary's epoch and view count. The primary's own is one of them.
2. An entry is sent at the end of its step while fewer than `pipeline_max` batches are under way,
   together with the other entries of that step. Beyond that, new entries form the next batch. No
   timer delays a request.
3. Same view, same log: an entry that differs from the one stored in the same view is never taken.
4. Only a stored reply is answered at once. A deposed primary could say wrongly that a session
   does not exist or that a request is too old, so that is decided when the entry is applied.
5. A reply belongs to the request's own command. A number that a connection counted itself does
   not join another request of that number.
6. A backup fetches missing entries from the primary of the same view and appends them. It cuts
   nothing.
7. At most `UNWRITTEN_*` are on their way to the own disk. Beyond that a primary refuses requests
   and backups take nothing. They ask for what they missed once the disk answers.

Elsewhere: reads and the loss of a quorum (`reads`), other views (`view_change`).

Source: Liskov and Cowling 2012, section 4.1; V2R2, "Request Processing".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millstream.errors import CorruptionError
from millstream.vsr.core import entries as log_entries
from millstream.vsr.core.client_table import Past
from millstream.vsr.core.effects import Code, Request, Send
from millstream.vsr.core.entries import GENESIS, HEADER_BYTES, Entry, Kind
from millstream.vsr.core.log import size_of_all
from millstream.vsr.core.messages import (
    Commit,
    Entries,
    Envelope,
    GetEntries,
    GetState,
    NewState,
    Prepare,
    PrepareOk,
)
from millstream.vsr.core.replica.execution import Execution, outcome
from millstream.vsr.core.replica.log_repair import LogRepair
from millstream.vsr.core.replica.member import ReplicaState, Status
from millstream.vsr.core.replica.repair import Asking
from millstream.vsr.core.replica.storage import Storage
from millstream.vsr.core.replica.upcalls import Upcalls

__all__ = [
    "BATCH_BYTES_MAX",
    "SHARE_BYTES_MAX",
    "UNCOMMITTED_BYTES_MAX",
    "UNCOMMITTED_ENTRIES_MAX",
    "UNWRITTEN_BYTES_MAX",
    "UNWRITTEN_ENTRIES_MAX",
    "NormalCase",
]

_USED: Final = (Past.STORED, Past.WAITING, Past.OFFERED)
BATCH_BYTES_MAX: Final = 1024 * 1024
"""Most bytes of one batch. A larger entry is a batch of its own."""
SHARE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Most bytes of log and snapshots that a member sends to lagging members in one heartbeat."""
UNCOMMITTED_ENTRIES_MAX: Final = 10_000
"""Most entries of a primary that are not committed. Beyond that requests are refused."""
UNCOMMITTED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most bytes of entries of a primary that are not committed."""
UNWRITTEN_ENTRIES_MAX: Final = 20_000
"""Most entries that wait for a member's disk. Beyond that it takes nothing more. This is more than
can be uncommitted, so that members whose disks are full alike still have the same log."""
UNWRITTEN_BYTES_MAX: Final = 32 * 1024 * 1024
"""Most bytes of entries that wait for a member's disk."""


class NormalCase:
    """Takes requests, Prepare, PrepareOk, Commit, GetState, NewState, and answers GetEntries."""

    def __init__(
        self, state: ReplicaState, up: Upcalls, execution: Execution, storage: Storage,
        repairs: LogRepair,
    ) -> None:  # fmt: skip
        self.state, self.up = state, up
        self.execution, self.storage, self.repairs = execution, storage, repairs
        self.shared_bytes = 0
        """Bytes sent to lagging members since the last heartbeat."""
        self.told_lsn = 0
        """What the primary of this view last reported as committed."""
        self.fault_tolerance = 0
        """How many more members may fail, as the primary knew and said at its last tick."""
        self.is_new = False
        """Whether something was ordered in this step."""
        self.begin()

    def begin(self) -> None:
        """Forget all work under way."""
        self.state.acks = {}
        self.writing: dict[int, int] = {}
        """Number of a disk step -> the end of what it writes of the log."""
        self.asking = Asking()
        self._batches: list[int] = []
        self._prepared: dict[bytes, int] = {}
        self._sizes: dict[int, int] = {}
        self._open_bytes = self.execution.uncommitted_bytes = self.unwritten_bytes = 0
        self.state.is_short = False
        self.repairs.begin()

    # ---- requests

    def on_request(self, request: Request) -> None:
        """Order a client's request, or answer why not."""
        state = self.state
        if not state.leading:
            return state.reply(request.ticket, Code.NOTPRIMARY)
        if state.suspended or state.is_short:
            return state.reply(request.ticket, Code.NOQUORUM)
        if request.kind is Kind.REQUEST and request.session:
            key = (request.session, request.csn)
            verdict = self.execution.judge(request.instance, *key)
            past, lsn = verdict.past, state.in_flight.get(key)
            if request.is_counted and (lsn is not None or past in _USED):
                return state.reply(request.ticket, Code.SESSIONMOVED)
            if past is Past.STORED:
                return state.reply(request.ticket, *outcome(verdict))
            if lsn is not None:
                state.waiting.setdefault(lsn, []).append(request.ticket)
                return None
            if past is Past.WAITING:
                return self.up.look_again(request)
        if self.up.holding:
            return self.up.hold(request)
        if self.up.full:
            return state.reply(request.ticket, Code.BUSY)
        return self.order(request)

    @property
    def swamped(self) -> bool:
        """Whether too much is logged and not committed, or not on the own disk."""
        return (
            self.state.log.op_lsn - self.state.commit_lsn >= UNCOMMITTED_ENTRIES_MAX
            or self.execution.uncommitted_bytes >= UNCOMMITTED_BYTES_MAX
            or self.disk_is_behind
        )

    @property
    def disk_is_behind(self) -> bool:
        """Whether too much waits for the disk: it is full, or far too slow."""
        return (
            self.state.log.op_lsn - self.state.durable_lsn >= UNWRITTEN_ENTRIES_MAX
            or self.unwritten_bytes >= UNWRITTEN_BYTES_MAX
        )

    def order(self, request: Request) -> None:
        """Put a request into the log."""
        ticket, body, instance, session, csn, kind, _ = request
        is_open = bool(session) and self.state.machine.waiting(session, csn) is not None
        entry = self.add(kind, body, instance, session, csn, is_open)
        self.state.waiting.setdefault(entry.header.lsn, []).append(ticket)

    def add(self, kind: Kind, *of_request: object) -> Entry:
        """Put an entry into the log.

        It is sent at the end of this step if the pipeline has room.
        """
        entry = self.execution.next_entry(kind, *of_request)  # type: ignore[arg-type]
        header = entry.header
        if header.session:
            self.state.in_flight[header.session, header.csn] = header.lsn
        self._open_bytes += HEADER_BYTES + header.body_length
        self.is_new = True
        return entry

    def end_step(self) -> None:
        """Send what the events of one step have brought."""
        if self.is_new:
            self.is_new = False
            if self.state.leading:
                self.flush_if_due()

    def flush_if_due(self) -> None:
        """Send as much as the pipeline has room for. A suspended primary sends nothing."""
        while not self.state.suspended and self._due():
            self.flush()

    def _due(self) -> bool:
        state = self.state
        waiting = state.log.op_lsn - state.flushed_lsn
        return waiting > 0 and (
            len(self._batches) < state.tuning.pipeline_max
            or waiting >= state.tuning.batch_entries_max
            or self._open_bytes >= BATCH_BYTES_MAX
        )

    def flush(self) -> None:
        """Send what is new, and write it at the same time."""
        state = self.state
        entries = state.log.after(
            state.flushed_lsn, state.tuning.batch_entries_max, BATCH_BYTES_MAX
        )
        state.broadcast(self._prepare(entries))
        self.write(entries)
        state.flushed_lsn = entries[-1].lsn
        self._batches.append(state.flushed_lsn)
        self._open_bytes -= size_of_all(entries)

    def drop_open_batch(self) -> None:
        """Drop what was neither sent nor written: no other member knows of it."""
        self.state.log.replace_above(self.state.flushed_lsn, ())
        self._open_bytes = 0

    def _prepare(self, entries: list[Entry]) -> Prepare:
        return Prepare(tuple(entries), self.state.commit_lsn, self.commit_hash)

    @property
    def commit_hash(self) -> bytes:
        """The hash of the last entry that is committed here."""
        return self.state.log.hash_at(self.state.commit_lsn) or GENESIS.hash

    def write(self, entries: Sequence[Entry]) -> None:
        """Write the newest entries of the log to the disk.

        `written` is called once they are durable.
        """
        op, size = self.storage.write(entries), size_of_all(entries)
        self.writing[op], self._sizes[op] = entries[-1].lsn, size
        self.unwritten_bytes += size

    def written(self, op: int) -> None:
        """Acknowledge what is durable now, unless a hard state is still being written."""
        lsn = self.writing.pop(op)
        self.unwritten_bytes -= self._sizes.pop(op, 0)
        self.state.durable_lsn = max(self.state.durable_lsn, lsn)
        if not self.storage.is_persisting:
            self.up.acknowledge()

    def acknowledge(self) -> None:
        """Tell the primary how far this log is durable."""
        state = self.state
        if state.status is not Status.NORMAL or not state.current:
            return
        lsn = min(state.durable_lsn, state.log.op_lsn)
        if state.leading:
            state.acks[state.id] = lsn
            self.count_acks()
        else:
            digest = state.log.hash_at(lsn)
            assert digest is not None
            state.send(
                state.primary, PrepareOk(state.wall_ms, lsn, digest, state.machine.format_max)
            )

    def on_prepare_ok(self, envelope: Envelope, ok: PrepareOk) -> None:
        """Count an acknowledgement of this view."""
        state = self.state
        if not state.leading or envelope.view != state.view:
            return None
        if state.log.hash_at(ok.lsn) not in (None, ok.hash) or ok.lsn > state.log.op_lsn:
            return state.contradict("an acknowledgement of another log in one view")
        state.acks[envelope.sender] = max(state.acks.get(envelope.sender, 0), ok.lsn)
        self.up.heard_from(envelope.sender)
        state.clocks.hear(envelope.sender, ok.wall_ms, state.now_ms)
        if ok.lsn > state.commit_lsn:
            self.count_acks()
        return None

    def count_acks(self) -> None:
        """Commit what a quorum has acknowledged."""
        state = self.state
        acks = state.acks
        lsns = sorted([acks.get(member, 0) for member in state.members])
        self.execution.advance(lsns[-state.quorum])

    def committed(self) -> None:
        """Go on with what waits for a free place in the pipeline, or say that all is committed."""
        state = self.state
        self._batches = [lsn for lsn in self._batches if lsn > state.commit_lsn]
        if not state.leading:
            return
        if state.log.op_lsn > state.flushed_lsn:
            self.flush_if_due()
        elif not self._batches and not state.suspended:
            state.broadcast(self.sign_of_life())

    def note_commit(self) -> None:
        """Write the commit LSN to the disk as a hint. Nothing waits for it."""
        if self.state.commit_lsn - self.storage.hinted_lsn >= self.state.tuning.hint_entries_max:
            self.writing[self.storage.write_hint()] = 0

    def sign_of_life(self) -> Commit:
        """Return what a primary sends when it has nothing else to send."""
        return Commit(self.state.commit_lsn, self.commit_hash, self.fault_tolerance)

    def remind(self) -> None:
        """Send again what was not acknowledged, and that this primary is alive."""
        state = self.state
        life = state.sealed(self.sign_of_life())
        for member in state.members:
            if member == state.id:
                continue
            acked = state.acks.get(member, 0)
            stuck = self._prepared.get(member) == acked
            self._prepared[member] = acked
            entries: list[Entry] = []
            if stuck and state.commit_lsn <= acked < state.flushed_lsn:
                sent = min(state.tuning.batch_entries_max, state.flushed_lsn - acked)
                entries = state.log.after(acked, sent, BATCH_BYTES_MAX)
            if entries:
                state.send(member, self._prepare(entries))
            else:
                state.effects.append(Send(member, life))

    # ---- the others

    def on_prepare(self, envelope: Envelope, prepare: Prepare) -> None:
        """Take the entries of the primary of this view."""
        if prepare.entries and self.up.follows(envelope):
            self.told_lsn = prepare.commit_lsn
            self.extend(
                envelope.sender, prepare.entries, prepare.entries[-1].lsn,
                prepare.commit_lsn, prepare.commit_hash,
            )  # fmt: skip

    def on_commit(self, envelope: Envelope, commit: Commit) -> None:
        """Learn what is committed."""
        if self.up.follows(envelope):
            self.fault_tolerance, self.told_lsn = commit.fault_tolerance, commit.commit_lsn
            self.extend(
                envelope.sender, (), commit.commit_lsn, commit.commit_lsn, commit.commit_hash
            )

    def extend(
        self, sender: bytes, entries: tuple[Entry, ...], op_lsn: int, commit_lsn: int,
        commit_hash: bytes,
    ) -> None:  # fmt: skip
        """Append what lies above the own log, of the same view. Nothing is cut.

        The sender's log is known to reach `op_lsn`.
        """
        state = self.state
        assert state.current
        assert not state.leading
        if state.log.holes:
            state.become(Status.GAP)
            return self.fill_holes()
        if self._differs(entries):
            return self.up.lose_log("two logs in one view")
        if entries and not self.disk_is_behind:
            self._take(entries)
        if state.log.op_lsn < op_lsn:
            state.become(Status.GAP)
            head = state.log.head
            if not self.disk_is_behind and self.asking.is_due(head, state.now_ms):
                state.send(sender, GetState(head.lsn, head.hash))
        else:
            state.become(Status.NORMAL)
            self.repairs.spare.clear()
            if not self.writing:
                self.up.acknowledge()
        if state.log.hash_at(commit_lsn) not in (None, commit_hash):
            return self.up.lose_log("two logs in one view")
        self.execution.advance(commit_lsn)
        return None

    def _differs(self, entries: tuple[Entry, ...]) -> bool:
        for header, _ in entries:
            if header.lsn > self.state.log.op_lsn:
                break
            if self.state.log.hash_at(header.lsn) not in (None, header.hash):
                return True
        return False

    def _take(self, entries: tuple[Entry, ...]) -> None:
        state = self.state
        try:
            end = log_entries.check_chain(state.log.head, state.group_id, entries)
        except CorruptionError:
            return self._take_some(entries)
        state.log.extend(entries, end)
        return self.write(entries)

    def _take_some(self, entries: tuple[Entry, ...]) -> None:
        """Take those that follow the end. Others are here already, or later than the next one."""
        new, log = [], self.state.log
        for entry in entries:
            header = entry.header
            if header.follows(log.head) and header.group_id == self.state.group_id:
                log.append(entry)
                new.append(entry)
        if new:
            self.write(new)

    def on_get_state(self, envelope: Envelope, asked: GetState) -> None:
        """Send a member of this view what it missed."""
        state = self.state
        if envelope.view != state.view or state.status is not Status.NORMAL or not state.current:
            return
        if asked.lsn < state.log.base.lsn:
            self.up.offer_snapshot(envelope.sender)
            return
        if state.log.hash_at(asked.lsn) != asked.hash or self.shared_bytes >= SHARE_BYTES_MAX:
            return
        entries = state.log.after(asked.lsn, state.tuning.batch_entries_max, BATCH_BYTES_MAX)
        self.shared_bytes += size_of_all(entries)
        op_lsn = state.flushed_lsn if state.leading else state.log.op_lsn
        answer = NewState(
            op_lsn, state.commit_lsn, self.commit_hash,
            tuple(entry for entry in entries if entry.lsn <= op_lsn),
        )  # fmt: skip
        state.send(envelope.sender, answer)

    def on_new_state(self, envelope: Envelope, state: NewState) -> None:
        """Append what was missed."""
        if (
            envelope.view == self.state.view
            and self.state.current
            and self.state.primary != self.state.id
        ):
            self.extend(
                envelope.sender, state.entries, state.op_lsn, state.commit_lsn, state.commit_hash
            )

    # ---- holes in the own log

    def fill_holes(self) -> None:
        """Fetch damaged entries. The rest of the log stays as it is."""
        if self.repairs.repair is None:
            head = self.state.log.head
            self.repairs.fetch(head.lsn, head.hash, self.filled)
            self.repairs.go_on()

    def filled(self) -> None:
        """Put what was damaged into the log again."""
        suffix = self.repairs.take_result()
        self.storage.persist(self._whole_again, suffix)

    def _whole_again(self) -> None:
        self.state.durable_lsn = self.state.log.op_lsn
        self.writing = {}

    @property
    def is_getting(self) -> bool:
        """Whether what is missing was asked for, and an answer may still come."""
        asking = self.asking if self.repairs.repair is None else self.repairs.repair.asking
        return asking.waits(self.state.now_ms)

    # ---- entries by hash

    def on_get_entries(self, envelope: Envelope, asked: GetEntries) -> None:
        """Send entries that end in the one asked for, if it is here."""
        state = self.state
        if asked.lsn <= state.log.base.lsn:
            self.up.offer_snapshot(envelope.sender)
            return
        if state.log.hash_at(asked.lsn) != asked.hash or self.shared_bytes >= SHARE_BYTES_MAX:
            return
        floor_lsn = max(asked.lsn - asked.number, 0)
        entries = state.log.ending_at(
            asked.lsn, floor_lsn, state.tuning.batch_entries_max, BATCH_BYTES_MAX
        )
        if entries:
            self.shared_bytes += size_of_all(entries)
            state.send(envelope.sender, Entries(tuple(entries)))
