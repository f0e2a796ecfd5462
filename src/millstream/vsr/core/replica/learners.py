"""Learners: nodes that fetch the log before they become members, while the group works on.

Invariants:
1. A learner has no vote. Only the change of members that it is taught for waits for it.
2. It is taught committed entries only. No view change takes them back, so it can go on with
   another teacher where it stopped.
3. A learner has at most one batch under way, so it takes a bounded share of the primary's time.
4. A learner is not sent what it does not understand: entries and states of a higher format.

Elsewhere: when learners are ready (`requested_changes`), how they become members
(`reconfiguration`).

Source: Liskov and Cowling 2012, section 7.1, on warming up new replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import dropwhile
from math import inf
from typing import Final

from millstream.errors import CorruptionError
from millstream.vsr.core.configuration import generation
from millstream.vsr.core.entries import Entry, check_chain
from millstream.vsr.core.messages import Envelope, Learn, LearnOk
from millstream.vsr.core.replica.execution import Execution
from millstream.vsr.core.replica.member import ReplicaState
from millstream.vsr.core.replica.normal_case import BATCH_BYTES_MAX, NormalCase
from millstream.vsr.core.replica.reads import Reads
from millstream.vsr.core.replica.repair import NewEnd
from millstream.vsr.core.replica.storage import Storage
from millstream.vsr.core.replica.upcalls import Upcalls
from millstream.vsr.core.snapshots import Snapshot

__all__ = ["IDLE_MAX", "Learners"]

IDLE_MAX: Final = 3
"""Heartbeats after which entries that a learner did not acknowledge are sent again."""


@dataclass(slots=True)
class _Pupil:
    lsn: int = -1
    """Up to here its log is known to be this one. -1: it was never heard."""
    sent_lsn: int = -1
    heard_ms: float = -inf
    idle: int = 0
    """Heartbeats since it last made progress."""
    format_max: int = 0
    """The highest state format that it understands. 0: it was never heard."""
    is_other: bool = False
    """It has committed what is not committed here: it was in a fork of the group."""


class Learners:
    """Teaches learners as a primary, and learns as one of them: Learn, LearnOk."""

    def __init__(
        self, state: ReplicaState, up: Upcalls, execution: Execution, storage: Storage,
        normal: NormalCase, reads: Reads,
    ) -> None:  # fmt: skip
        self.state, self.up = state, up
        self.execution, self.storage = execution, storage
        self.normal, self.reads = normal, reads
        self.begin()

    def begin(self) -> None:
        """Start without learners and without a teacher."""
        self._pupils: dict[bytes, _Pupil] = {}
        self._teacher = b""

    # ---- teaching

    def teach(self, nodes: Iterable[bytes]) -> None:
        """Teach the log to those of these nodes that are not members, and to no others."""
        known = self._pupils
        self._pupils = {
            node: known.get(node, _Pupil()) for node in nodes if node not in self.state.members
        }
        self.tick()

    @property
    def pupils(self) -> tuple[bytes, ...]:
        """The nodes that are taught."""
        return tuple(self._pupils)

    def acknowledged(self, node: bytes) -> int:
        """Return how far a member or a learner has this log."""
        state = self.state
        if node == state.id:
            return state.log.op_lsn
        pupil = self._pupils.get(node)
        return state.acks.get(node, 0) if pupil is None else max(0, pupil.lsn)

    def format_of_pupil(self, node: bytes) -> int:
        """Return the highest state format that a learner supports; 0 if it sent none yet."""
        pupil = self._pupils.get(node)
        return 0 if pupil is None else pupil.format_max

    def has_other_history(self, node: bytes) -> bool:
        """Return whether a learner has committed what this group has not."""
        pupil = self._pupils.get(node)
        return pupil is not None and pupil.is_other

    def heard_at(self, member: bytes) -> float:
        """Return when a member or a learner last answered."""
        pupil = self._pupils.get(member)
        return self.reads.heard_at(member) if pupil is None else pupil.heard_ms

    def tick(self) -> None:
        """Start again with learners that make no progress: what was sent may be lost."""
        for node, pupil in self._pupils.items():
            pupil.idle += 1
            if pupil.idle > IDLE_MAX:
                pupil.idle, pupil.sent_lsn = 0, pupil.lsn
            self._teach(node, pupil, even_nothing=True)

    def _teach(self, node: bytes, pupil: _Pupil, even_nothing: bool = False) -> None:
        state = self.state
        entries: list[Entry] = []
        if (
            pupil.lsn >= 0
            and pupil.sent_lsn <= pupil.lsn
            and pupil.format_max >= state.state_format
        ):
            number = min(state.tuning.batch_entries_max, state.commit_lsn - pupil.lsn)
            entries = state.log.after(pupil.lsn, number, BATCH_BYTES_MAX)
        if entries or even_nothing:
            pupil.sent_lsn = max([pupil.sent_lsn, *(entry.lsn for entry in entries[-1:])])
            state.send(node, Learn(state.commit_lsn, self.normal.commit_hash, tuple(entries)))

    def on_learn_ok(self, envelope: Envelope, ok: LearnOk) -> None:
        """Send what comes next."""
        state = self.state
        pupil = self._pupils.get(envelope.sender)
        if pupil is None or not state.leading:
            return
        pupil.heard_ms, pupil.format_max = state.now_ms, ok.format_max
        if pupil.format_max < state.state_format:
            return
        known = state.log.hash_at(ok.lsn)
        differs = ok.lsn > state.log.op_lsn or known not in (None, ok.hash)
        pupil.is_other = differs and generation(envelope.epoch) < generation(state.epoch)
        if known == ok.hash:
            pupil.idle = 0 if ok.lsn > pupil.lsn else pupil.idle
            pupil.lsn = ok.lsn
            self._teach(envelope.sender, pupil)
        elif ok.lsn < state.log.base.lsn:
            self.up.offer_snapshot(envelope.sender)

    def committed(self) -> None:
        """Teach what is committed now."""
        if self.state.leading:
            for node, pupil in self._pupils.items():
                self._teach(node, pupil)

    # ---- learning

    @property
    def may_learn(self) -> bool:
        """Whether this node takes part in nothing, and nothing of it may count as a vote."""
        return self.state.is_outside and not self.up.entering

    @property
    def is_learning(self) -> bool:
        """Whether somebody teaches this node."""
        return self._teacher != b"" and self.may_learn

    def on_learn(self, envelope: Envelope, learn: Learn) -> None:
        """Take what is committed, and report how far this log is durable."""
        state = self.state
        if not self.may_learn:
            if envelope.epoch > state.epoch:
                self.up.ask_epoch(envelope.sender)
            return
        self._teacher = envelope.sender
        if self.normal.disk_is_behind:
            return
        new = self._chained(list(dropwhile(self._is_here, learn.entries)))
        if new and (state.lost or new[0].lsn <= state.log.op_lsn):
            self.storage.persist(self._learned(learn), NewEnd(new[0].lsn - 1, tuple(new)))
            return
        for entry in new:
            state.log.append(entry)
        if new:
            self.normal.write(new)
        self._learned(learn)()

    def _chained(self, entries: list[Entry]) -> list[Entry]:
        """Return the entries if they are a chain that follows this log, else none."""
        if not entries or not (link := self.state.log.link_at(entries[0].lsn - 1)):
            return []
        try:
            check_chain(link, self.state.group_id, entries)
        except CorruptionError:
            return []
        return entries

    def learn_from(self, snapshot: Snapshot) -> None:
        """Begin at a snapshot: the teacher's log no longer holds the entries before it."""
        assert self.may_learn
        self.storage.persist(self._begun, NewEnd(snapshot.id.lsn, (), snapshot))

    def _begun(self) -> None:
        state = self.state
        state.lost, state.durable_lsn, self.normal.writing = False, state.log.op_lsn, {}
        self.up.acknowledge()

    def _is_here(self, entry: Entry) -> bool:
        known = self.state.log.entry_at(entry.lsn)
        return entry.lsn <= self.state.commit_lsn or (
            known is not None and known.header.hash == entry.header.hash
        )

    def _learned(self, learn: Learn) -> Callable[[], None]:
        """Return what to do once the entries are in the log: count them as committed."""
        state = self.state

        def done() -> None:
            state.lost = state.lost and state.log.op_lsn == 0
            unwritten = bool(self.normal.writing)
            if not unwritten:
                state.durable_lsn = state.log.op_lsn
            for lsn, digest in [
                (learn.commit_lsn, learn.commit_hash),
                *((entry.lsn, entry.header.hash) for entry in learn.entries[-1:]),
            ]:
                if state.log.hash_at(lsn) == digest:
                    self.execution.advance(lsn)
            if not unwritten:
                self.up.acknowledge()

        return done

    def acknowledge(self) -> bool:
        """Tell the teacher how far this log is durable. Return whether there is a teacher."""
        state = self.state
        if self._teacher == b"" or not self.may_learn:
            return False
        lsn = min(state.durable_lsn, state.commit_lsn)
        digest = state.log.hash_at(lsn)
        assert digest is not None
        answer = LearnOk(lsn, digest, state.machine.format_max)
        state.send(self._teacher, answer)
        return True
