"""Normal operation: the primary orders requests, the others keep them, a quorum commits them.

Invariants:
1. An acknowledgement says that all up to its LSN is durable and equal to the primary's log; only
   those given in the primary's epoch and view count, its own like any other.
2. An entry leaves at the end of its step while fewer than `pipeline_max` batches are under way,
   together with the others of that step; beyond that, what arrives forms the next batch. No timer
   delays a request.
3. Same view, same log: an entry that differs from the one held in the same view is never taken.
4. Only a kept reply is answered at once. That there is no such session, or that a request is too
   old, a primary may say wrongly that is one no more; so it is said at apply.
5. A reply is that of the request's own command: a number that a connection counted itself joins
   no other request of that number.
6. What a member missed it gets from the same view's primary and appends; it cuts nothing.
7. At most `UNWRITTEN_*` are on their way to the own disk. Beyond that a primary refuses requests
   and the others take nothing; they ask for what they missed once the disk answers.

Elsewhere: reads and the loss of a quorum (`reading`), other views (`views`).

Source: Liskov and Cowling 2012, section 4.1; V2R2, "Request Processing".
"""

from __future__ import annotations

from abc import abstractmethod
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
from millstream.vsr.core.replica.member import Member, Status, outcome
from millstream.vsr.core.replica.repair import Asking, Repair

__all__ = [
    "BATCH_BYTES_MAX",
    "BATCH_ENTRIES_MAX",
    "HINT_ENTRIES_MAX",
    "PIPELINE_MAX",
    "SHARE_BYTES_MAX",
    "UNCOMMITTED_BYTES_MAX",
    "UNCOMMITTED_ENTRIES_MAX",
    "UNWRITTEN_BYTES_MAX",
    "UNWRITTEN_ENTRIES_MAX",
    "Normal",
]

_USED: Final = (Past.STORED, Past.WAITING, Past.OFFERED)
BATCH_ENTRIES_MAX: Final = 512
"""Entries of one batch."""
BATCH_BYTES_MAX: Final = 1024 * 1024
"""Of one batch; a larger entry is a batch of its own."""
PIPELINE_MAX: Final = 4
"""Batches that are sent and not yet committed while a lone request still leaves at once."""
HINT_ENTRIES_MAX: Final = 65_536
"""Committed since the standing last said how many: so much a vote after a restart may name."""
SHARE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of log and snapshots that a member gives to those who lag, in one heartbeat."""
UNCOMMITTED_ENTRIES_MAX: Final = 10_000
"""Entries of a primary that are not committed; beyond that requests are refused."""
UNCOMMITTED_BYTES_MAX: Final = 16 * 1024 * 1024
"""The same in bytes."""
UNWRITTEN_ENTRIES_MAX: Final = 20_000
"""Entries of a member that its disk has not made durable; beyond that it takes nothing more. More
than can be uncommitted: members whose disks are full alike still have the same log."""
UNWRITTEN_BYTES_MAX: Final = 32 * 1024 * 1024
"""The same in bytes."""


class Normal(Member):
    """Requests, Prepare, PrepareOk, Commit, GetState, NewState."""

    acks: dict[bytes, int]
    flushed_lsn = 0
    durable_lsn = 0
    shared_bytes = 0
    """Given to members that lag, since the last heartbeat."""
    told_lsn = 0
    """What the primary of this view said last that it has committed."""
    fault_tolerance = 0
    """How many more members may fail: as the primary knows since its last tick, and says."""
    noop_lsn = 0
    """Where the primary's own view begins: nothing is read before it is committed."""
    hint_entries_max = HINT_ENTRIES_MAX
    batch_entries_max = BATCH_ENTRIES_MAX
    pipeline_max = PIPELINE_MAX
    _open_bytes = 0
    _is_new = False
    """Something was ordered in this step."""
    _writing: dict[int, int]
    _batches: list[int]
    _prepared: dict[bytes, int]

    def begin_normal(self) -> None:
        """Have nothing under way."""
        self.acks, self._writing, self._batches, self._prepared = {}, {}, [], {}
        self._open_bytes = self.uncommitted_bytes = self.unwritten_bytes = 0
        self._sizes: dict[int, int] = {}
        self.repair: Repair | None = None
        self.is_short = False
        """Nobody answers who is not still fetching: what came now would make that longer."""
        self.spare: dict[int, Entry] = {}
        """Entries fetched of a log that outlive the view: the next end may need them, too."""
        self._asking = Asking()

    # ---- requests

    def on_request(self, request: Request) -> None:
        """Order a client's request, or say why not."""
        if not self.leading:
            return self.reply(request.ticket, Code.NOTPRIMARY)
        if self.suspended or self.is_short:
            return self.reply(request.ticket, Code.NOQUORUM)
        if request.kind is Kind.REQUEST and request.session:
            key = (request.session, request.csn)
            verdict = self.judge(request.instance, *key)
            past, lsn = verdict.past, self._in_flight.get(key)
            if request.is_counted and (lsn is not None or past in _USED):
                return self.reply(request.ticket, Code.SESSIONMOVED)
            if past is Past.STORED:
                return self.reply(request.ticket, *outcome(verdict))
            if lsn is not None:
                self._waiting.setdefault(lsn, []).append(request.ticket)
                return None
            if past is Past.WAITING:
                return self.look_again(request)
        if self.holding:
            return self.hold(request)
        if self.full:
            return self.reply(request.ticket, Code.BUSY)
        return self.order(request)

    @abstractmethod
    def look_again(self, request: Request) -> None:
        """Answer a request that waits: nothing is logged as long as it does."""

    @property
    def full(self) -> bool:
        """Whether to refuse requests."""
        return self.swamped

    @property
    def swamped(self) -> bool:
        """Whether too much is logged and not committed, or not on the own disk."""
        return (
            self.log.op_lsn - self.commit_lsn >= UNCOMMITTED_ENTRIES_MAX
            or self.uncommitted_bytes >= UNCOMMITTED_BYTES_MAX
            or self.disk_is_behind
        )

    @property
    def disk_is_behind(self) -> bool:
        """Whether too much is on its way to the disk: it is full, or far too slow."""
        return (
            self.log.op_lsn - self.durable_lsn >= UNWRITTEN_ENTRIES_MAX
            or self.unwritten_bytes >= UNWRITTEN_BYTES_MAX
        )

    def order(self, request: Request) -> None:
        """Put a request into the log."""
        ticket, body, instance, session, csn, kind, _ = request
        is_open = bool(session) and self.machine.waiting(session, csn) is not None
        entry = self.add(kind, body, instance, session, csn, is_open)
        self._waiting.setdefault(entry.header.lsn, []).append(ticket)

    def add(self, kind: Kind, *of_request: object) -> Entry:
        """Put an entry into the log; it leaves at the end of this step if the pipeline allows."""
        entry = self.next_entry(kind, *of_request)  # type: ignore[arg-type]
        header = entry.header
        if header.session:
            self._in_flight[header.session, header.csn] = header.lsn
        self._open_bytes += HEADER_BYTES + header.body_length
        self._is_new = True
        return entry

    def end_step(self) -> None:
        """Let go what the events of one step have brought."""
        if self._is_new:
            self._is_new = False
            if self.leading:
                self.flush_if_due()

    def flush_if_due(self) -> None:
        """Send as much as the pipeline has room for; a suspended primary says nothing."""
        while not self.suspended and self._due():
            self.flush()

    def _due(self) -> bool:
        waiting = self.log.op_lsn - self.flushed_lsn
        return waiting > 0 and (
            len(self._batches) < self.pipeline_max
            or waiting >= self.batch_entries_max
            or self._open_bytes >= BATCH_BYTES_MAX
        )

    def flush(self) -> None:
        """Send what is new, and write it at the same time."""
        entries = self.log.after(self.flushed_lsn, self.batch_entries_max, BATCH_BYTES_MAX)
        self.broadcast(self._prepare(entries))
        self._write(entries)
        self.flushed_lsn = entries[-1].lsn
        self._batches.append(self.flushed_lsn)
        self._open_bytes -= size_of_all(entries)

    def drop_open_batch(self) -> None:
        """Forget what was neither sent nor written: nobody else will ever know of it."""
        self.log.replace_above(self.flushed_lsn, ())
        self._open_bytes = 0

    def _prepare(self, entries: list[Entry]) -> Prepare:
        return Prepare(tuple(entries), self.commit_lsn, self._commit_hash)

    @property
    def _commit_hash(self) -> bytes:
        return self.log.hash_at(self.commit_lsn) or GENESIS.hash

    def _write(self, entries: Sequence[Entry]) -> None:
        op, size = self.write(entries), size_of_all(entries)
        self._writing[op], self._sizes[op] = entries[-1].lsn, size
        self.unwritten_bytes += size

    def written(self, op: int) -> None:
        """Acknowledge what is durable now; in the middle of a flip, only once that is, too."""
        lsn = self._writing.pop(op)
        self.unwritten_bytes -= self._sizes.pop(op, 0)
        self.durable_lsn = max(self.durable_lsn, lsn)
        if not self.flipping:
            self.acknowledge()

    def acknowledge(self) -> None:
        """Tell the primary how far this log is durable."""
        if self.status is not Status.NORMAL or not self.current:
            return
        lsn = min(self.durable_lsn, self.log.op_lsn)
        if self.leading:
            self.acks[self.id] = lsn
            self._count_acks()
        else:
            digest = self.log.hash_at(lsn)
            assert digest is not None
            self.send(self.primary, PrepareOk(self.wall_ms, lsn, digest, self.machine.format_max))

    def on_prepare_ok(self, envelope: Envelope, ok: PrepareOk) -> None:
        """Count an acknowledgement of this view."""
        if not self.leading or envelope.view != self.view:
            return None
        if self.log.hash_at(ok.lsn) not in (None, ok.hash) or ok.lsn > self.log.op_lsn:
            return self.contradict("an acknowledgement of another log in one view")
        self.acks[envelope.sender] = max(self.acks.get(envelope.sender, 0), ok.lsn)
        self.heard_from(envelope.sender)
        self.clocks.hear(envelope.sender, ok.wall_ms, self.now_ms)
        if ok.lsn > self.commit_lsn:
            self._count_acks()
        return None

    def _count_acks(self) -> None:
        acks = self.acks
        lsns = sorted([acks.get(member, 0) for member in self.members])
        self.advance(lsns[-self.quorum])

    def committed(self) -> None:
        """Go on with what waits for a free place in the pipeline, or say that all is committed."""
        self._batches = [lsn for lsn in self._batches if lsn > self.commit_lsn]
        if not self.leading:
            return
        if self.log.op_lsn > self.flushed_lsn:
            self.flush_if_due()
        elif not self._batches and not self.suspended:
            self.broadcast(self.sign_of_life())

    def note_commit(self) -> None:
        """Have the disk know how much is committed; nothing waits for that."""
        if self.commit_lsn - self.hinted_lsn >= self.hint_entries_max:
            self._writing[self.write_hint()] = 0

    def sign_of_life(self) -> Commit:
        """Return what a primary says when it has nothing else to say."""
        return Commit(self.commit_lsn, self._commit_hash, self.fault_tolerance)

    def remind(self) -> None:
        """Say again what was not acknowledged, and that this primary lives."""
        life = self.sealed(self.sign_of_life())
        for member in self.members:
            if member == self.id:
                continue
            acked = self.acks.get(member, 0)
            stuck = self._prepared.get(member) == acked
            self._prepared[member] = acked
            entries: list[Entry] = []
            if stuck and self.commit_lsn <= acked < self.flushed_lsn:
                sent = min(self.batch_entries_max, self.flushed_lsn - acked)
                entries = self.log.after(acked, sent, BATCH_BYTES_MAX)
            if entries:
                self.send(member, self._prepare(entries))
            else:
                self.effects.append(Send(member, life))

    # ---- the others

    def on_prepare(self, envelope: Envelope, prepare: Prepare) -> None:
        """Keep what the primary of this view says."""
        if prepare.entries and self.follows(envelope):
            self.told_lsn = prepare.commit_lsn
            self.extend(
                envelope.sender, prepare.entries, prepare.entries[-1].lsn,
                prepare.commit_lsn, prepare.commit_hash,
            )  # fmt: skip

    def on_commit(self, envelope: Envelope, commit: Commit) -> None:
        """Learn what is committed."""
        if self.follows(envelope):
            self.fault_tolerance, self.told_lsn = commit.fault_tolerance, commit.commit_lsn
            self.extend(
                envelope.sender, (), commit.commit_lsn, commit.commit_lsn, commit.commit_hash
            )

    def extend(
        self, sender: bytes, entries: tuple[Entry, ...], op_lsn: int, commit_lsn: int,
        commit_hash: bytes,
    ) -> None:  # fmt: skip
        """Append what lies above the own log, of the same view; never cut.

        So far as `op_lsn` the sender's log is known to go.
        """
        assert self.current
        assert not self.leading
        if self.log.holes:
            self.status = Status.GAP
            return self.mend()
        if self._differs(entries):
            return self.lose_log("two logs in one view")
        if entries and not self.disk_is_behind:
            self._take(entries)
        if self.log.op_lsn < op_lsn:
            self.status = Status.GAP
            head = self.log.head
            if not self.disk_is_behind and self._asking.is_due(head, self.now_ms):
                self.send(sender, GetState(head.lsn, head.hash))
        else:
            self.status = Status.NORMAL
            self.spare.clear()
            if not self._writing:
                self.acknowledge()
        if self.log.hash_at(commit_lsn) not in (None, commit_hash):
            return self.lose_log("two logs in one view")
        self.advance(commit_lsn)
        return None

    def _differs(self, entries: tuple[Entry, ...]) -> bool:
        for header, _ in entries:
            if header.lsn > self.log.op_lsn:
                break
            if self.log.hash_at(header.lsn) not in (None, header.hash):
                return True
        return False

    def _take(self, entries: tuple[Entry, ...]) -> None:
        try:
            end = log_entries.check_chain(self.log.head, self.group_id, entries)
        except CorruptionError:
            return self._take_some(entries)
        self.log.extend(entries, end)
        return self._write(entries)

    def _take_some(self, entries: tuple[Entry, ...]) -> None:
        """Take those that hang on the end: others are here already, or later than the next one."""
        new, log = [], self.log
        for entry in entries:
            header = entry.header
            if header.follows(log.head) and header.group_id == self.group_id:
                log.append(entry)
                new.append(entry)
        if new:
            self._write(new)

    def on_get_state(self, envelope: Envelope, asked: GetState) -> None:
        """Give a member of this view what it missed."""
        if envelope.view != self.view or self.status is not Status.NORMAL or not self.current:
            return
        if asked.lsn < self.log.base.lsn:
            self.offer_snapshot(envelope.sender)
            return
        if self.log.hash_at(asked.lsn) != asked.hash or self.shared_bytes >= SHARE_BYTES_MAX:
            return
        entries = self.log.after(asked.lsn, self.batch_entries_max, BATCH_BYTES_MAX)
        self.shared_bytes += size_of_all(entries)
        op_lsn = self.flushed_lsn if self.leading else self.log.op_lsn
        answer = NewState(
            op_lsn, self.commit_lsn, self._commit_hash,
            tuple(entry for entry in entries if entry.lsn <= op_lsn),
        )  # fmt: skip
        self.send(envelope.sender, answer)

    def on_new_state(self, envelope: Envelope, state: NewState) -> None:
        """Append what was missed."""
        if envelope.view == self.view and self.current and self.primary != self.id:
            self.extend(
                envelope.sender, state.entries, state.op_lsn, state.commit_lsn, state.commit_hash
            )

    @property
    def is_getting(self) -> bool:
        """Whether what is missing was asked for, and an answer may still come."""
        asking = self._asking if self.repair is None else self.repair.asking
        return asking.waits(self.now_ms)

    # ---- entries by hash

    def on_get_entries(self, envelope: Envelope, asked: GetEntries) -> None:
        """Give entries that end in the one asked for, if it is here."""
        if asked.lsn <= self.log.base.lsn:
            self.offer_snapshot(envelope.sender)
            return
        if self.log.hash_at(asked.lsn) != asked.hash or self.shared_bytes >= SHARE_BYTES_MAX:
            return
        floor_lsn = max(asked.lsn - asked.number, 0)
        entries = self.log.ending_at(asked.lsn, floor_lsn, self.batch_entries_max, BATCH_BYTES_MAX)
        if entries:
            self.shared_bytes += size_of_all(entries)
            self.send(envelope.sender, Entries(tuple(entries)))
