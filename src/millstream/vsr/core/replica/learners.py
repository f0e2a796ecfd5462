"""Who may become a member fetches the log beforehand, while the group works on: learners.

Invariants:
1. A learner has no vote, and nothing waits for it but the change it is taught for.
2. What it is taught is committed, whoever teaches it; so no other view ever takes anything back,
   and it goes on with another teacher where it stopped.
3. A learner has at most one batch under way, so it takes a bounded share of the primary's time.
4. Nobody is taught what it does not understand: entries and states of a higher format.

Elsewhere: when learners are far enough (`changing`), how they become members (`epochs`).

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
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.normal_case import BATCH_BYTES_MAX
from millstream.vsr.core.replica.recovery import Recovering
from millstream.vsr.core.replica.repair import NewEnd
from millstream.vsr.core.snapshots import Snapshot

__all__ = ["IDLE_MAX", "Learning"]

IDLE_MAX: Final = 3
"""Heartbeats after which what a learner did not acknowledge is sent again."""


@dataclass(slots=True)
class _Pupil:
    lsn: int = -1
    """So far its log is known to be this one; -1: it was never heard."""
    sent_lsn: int = -1
    heard_ms: float = -inf
    idle: int = 0
    """Heartbeats since it came nearer."""
    format_max: int = 0
    """The highest state format that it understands; 0: it was never heard."""
    is_other: bool = False
    """What is committed there is not what is here: it was in a fork of the group."""


class Learning(Recovering):
    """Learn, LearnOk."""

    def begin_learning(self) -> None:
        """Teach nobody, and have no teacher."""
        self._pupils: dict[bytes, _Pupil] = {}
        self._teacher = b""

    # ---- teaching

    def teach(self, nodes: Iterable[bytes]) -> None:
        """Have those of these that are no members learn the log, and nobody else."""
        known = self._pupils
        self._pupils = {
            node: known.get(node, _Pupil()) for node in nodes if node not in self.members
        }
        self.tick_pupils()

    @property
    def pupils(self) -> tuple[bytes, ...]:
        """Who is taught."""
        return tuple(self._pupils)

    def acknowledged(self, node: bytes) -> int:
        """Return how far a member, or a learner, has this log."""
        if node == self.id:
            return self.log.op_lsn
        pupil = self._pupils.get(node)
        return self.acks.get(node, 0) if pupil is None else max(0, pupil.lsn)

    def format_of_pupil(self, node: bytes) -> int:
        """Return the highest state format that a learner understands; 0: it was never heard."""
        pupil = self._pupils.get(node)
        return 0 if pupil is None else pupil.format_max

    def has_other_history(self, node: bytes) -> bool:
        """Return whether a learner has committed what this group has not."""
        pupil = self._pupils.get(node)
        return pupil is not None and pupil.is_other

    def heard_at(self, member: bytes) -> float:
        """Return when a member, or a learner, answered last."""
        pupil = self._pupils.get(member)
        return super().heard_at(member) if pupil is None else pupil.heard_ms

    def tick_pupils(self) -> None:
        """Begin anew with those who come no nearer: what was sent may be lost."""
        for node, pupil in self._pupils.items():
            pupil.idle += 1
            if pupil.idle > IDLE_MAX:
                pupil.idle, pupil.sent_lsn = 0, pupil.lsn
            self._teach(node, pupil, even_nothing=True)

    def _teach(self, node: bytes, pupil: _Pupil, even_nothing: bool = False) -> None:
        entries: list[Entry] = []
        if (
            pupil.lsn >= 0
            and pupil.sent_lsn <= pupil.lsn
            and pupil.format_max >= self.state_format
        ):
            number = min(self.batch_entries_max, self.commit_lsn - pupil.lsn)
            entries = self.log.after(pupil.lsn, number, BATCH_BYTES_MAX)
        if entries or even_nothing:
            pupil.sent_lsn = max([pupil.sent_lsn, *(entry.lsn for entry in entries[-1:])])
            self.send(node, Learn(self.commit_lsn, self._commit_hash, tuple(entries)))

    def on_learn_ok(self, envelope: Envelope, ok: LearnOk) -> None:
        """Send what comes next."""
        pupil = self._pupils.get(envelope.sender)
        if pupil is None or not self.leading:
            return
        pupil.heard_ms, pupil.format_max = self.now_ms, ok.format_max
        if pupil.format_max < self.state_format:
            return
        known = self.log.hash_at(ok.lsn)
        differs = ok.lsn > self.log.op_lsn or known not in (None, ok.hash)
        pupil.is_other = differs and generation(envelope.epoch) < generation(self.epoch)
        if known == ok.hash:
            pupil.idle = 0 if ok.lsn > pupil.lsn else pupil.idle
            pupil.lsn = ok.lsn
            self._teach(envelope.sender, pupil)
        elif ok.lsn < self.log.base.lsn:
            self.offer_snapshot(envelope.sender)

    def committed(self) -> None:
        """Also teach what is committed now."""
        super().committed()
        if self.leading:
            for node, pupil in self._pupils.items():
                self._teach(node, pupil)

    # ---- learning

    @property
    def may_learn(self) -> bool:
        """Whether this node takes part in nothing, and nothing it has may be taken for a vote."""
        outside = not self.members or self.status is Status.RETIRED
        return outside and not self.entering

    @property
    def is_learning(self) -> bool:
        """Whether somebody teaches this node."""
        return self._teacher != b"" and self.may_learn

    def on_learn(self, envelope: Envelope, learn: Learn) -> None:
        """Take what is committed, and say how far this log is durable."""
        if not self.may_learn:
            if envelope.epoch > self.epoch:
                self.ask_epoch(envelope.sender)
            return
        self._teacher = envelope.sender
        if self.disk_is_behind:
            return
        new = self._chained(list(dropwhile(self._is_here, learn.entries)))
        if new and (self.lost or new[0].lsn <= self.log.op_lsn):
            self.flip(self._learned(learn), NewEnd(new[0].lsn - 1, tuple(new)))
            return
        for entry in new:
            self.log.append(entry)
        if new:
            self._write(new)
        self._learned(learn)()

    def _chained(self, entries: list[Entry]) -> list[Entry]:
        """Return these if they are a chain that hangs on this log, else none."""
        if not entries or not (link := self.log.link_at(entries[0].lsn - 1)):
            return []
        try:
            check_chain(link, self.group_id, entries)
        except CorruptionError:
            return []
        return entries

    def learn_from(self, snapshot: Snapshot) -> None:
        """Begin at a snapshot: the teacher's log is cut for it."""
        assert self.may_learn
        self.flip(self._begun, NewEnd(snapshot.id.lsn, (), snapshot))

    def _begun(self) -> None:
        self.lost, self.durable_lsn, self._writing = False, self.log.op_lsn, {}
        self.acknowledge()

    def _is_here(self, entry: Entry) -> bool:
        known = self.log.entry_at(entry.lsn)
        return entry.lsn <= self.commit_lsn or (
            known is not None and known.header.hash == entry.header.hash
        )

    def _learned(self, learn: Learn) -> Callable[[], None]:
        """Return what to do once the entries are in the log: count them as committed."""

        def done() -> None:
            self.lost = self.lost and self.log.op_lsn == 0
            unwritten = bool(self._writing)
            if not unwritten:
                self.durable_lsn = self.log.op_lsn
            for lsn, digest in [
                (learn.commit_lsn, learn.commit_hash),
                *((entry.lsn, entry.header.hash) for entry in learn.entries[-1:]),
            ]:
                if self.log.hash_at(lsn) == digest:
                    self.advance(lsn)
            if not unwritten:
                self.acknowledge()

        return done

    def acknowledge(self) -> None:
        """Also tell a teacher how far this log is durable."""
        if self._teacher == b"" or not self.may_learn:
            return super().acknowledge()
        lsn = min(self.durable_lsn, self.commit_lsn)
        digest = self.log.hash_at(lsn)
        assert digest is not None
        return self.send(self._teacher, LearnOk(lsn, digest, self.machine.format_max))
