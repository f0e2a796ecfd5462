"""Forced groups: a group that has lost its majority for good goes on from one member.

An operator decides it, at a member that has log and state. The member begins an epoch of another
generation, of itself alone, and commits in it all of its log that is whole. Entries may be lost.

Invariants:
1. Nothing is forced while a quorum of members answers, or a primary is heard, or before this
   process has listened for as long as living members may be silent.
2. All that is whole in this member's log is kept, in its order. Entries that were not known to be
   committed are committed. Entries that only other members have are lost. Nothing is reordered.
3. The operator is told what may be lost before anything changes, and has to confirm it.
4. Members of the epoch before hear of the new one when they speak, or sooner while it is the
   first one. Then they retire: they are not in it, and their votes do not count in it.

Elsewhere: generations (`configuration`), retiring (`reconfiguration`), the command (the pool).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millstream.vsr.core.configuration import Configuration, forked_epoch
from millstream.vsr.core.effects import Code, Force
from millstream.vsr.core.messages import StartEpoch
from millstream.vsr.core.replica.learners import Learners
from millstream.vsr.core.replica.member import ReplicaState, Status
from millstream.vsr.core.replica.normal_case import NormalCase
from millstream.vsr.core.replica.reconfiguration import Reconfiguration
from millstream.vsr.core.replica.repair import NewEnd
from millstream.vsr.core.replica.storage import Storage
from millstream.vsr.core.replica.upcalls import Upcalls
from millstream.vsr.core.replica.view_change import PATIENCE_MS_MAX, ViewChange
from millstream.vsr.core.values import NULL, array, bulk, integer, mapping

__all__ = ["LISTEN_MS", "ForcedGroups"]

LISTEN_MS: Final = 2 * PATIENCE_MS_MAX
"""A living member sends something within half of this time, unless a longer time-out is set."""
_SALTS: Final = 1 << 16


class ForcedGroups:
    """Goes on alone if an operator asks for it (Force)."""

    def __init__(
        self, state: ReplicaState, up: Upcalls, storage: Storage, normal: NormalCase,
        views: ViewChange, learners: Learners, reconfiguration: Reconfiguration,
    ) -> None:  # fmt: skip
        self.state, self.up, self.storage, self.normal = state, up, storage, normal
        self.views, self.learners, self.reconfiguration = views, learners, reconfiguration
        self.begun_ms = 0.0
        """When this process began to listen."""
        self.spoke_ms: dict[bytes, float] = {}
        """When each member last sent something that only a member with a log sends."""
        self._led_acks: dict[bytes, int] = {}
        """How far the others were when this process led last."""

    def stand_down(self) -> None:
        """Remember how far the others were."""
        if self.state.leading:
            self._led_acks = dict(self.state.acks)

    def tick_primary(self) -> None:
        """Tell former members of the new epoch before they ask one another."""
        state = self.state
        if state.leading and state.configuration.is_fork:
            for member in state.configuration.old:
                if member != state.id:
                    state.send(member, StartEpoch(state.configuration))

    def on_force(self, asked: Force) -> None:
        """Report what may be lost. If that is confirmed, go on alone."""
        state = self.state
        refusal = self._not_forced()
        if refusal is None:
            salt = int(state.chance() * _SALTS)
            epoch = forked_epoch(max(state.epoch, self.reconfiguration.newest.epoch), salt)
            if epoch is None:
                refusal = Code.BADCONFIG, "it has forked too often: restore a backup of it"
        if refusal is not None:
            code, text = refusal
            return state.reply(asked.ticket, code, text.encode())
        assert epoch is not None
        loss = self._loss(epoch if asked.is_confirmed else None)
        if not asked.is_confirmed:
            return state.reply(asked.ticket, Code.OK, loss)
        return self._go_on_alone(epoch, lambda: state.reply(asked.ticket, Code.OK, loss))

    def _not_forced(self) -> tuple[Code, str] | None:
        """Return why this member may not go on alone."""
        state = self.state
        if state.is_outside:
            return Code.BADCONFIG, "this node is no member of the group"
        if self.reconfiguration.next_known is not None or self.reconfiguration.entering:
            return (
                Code.CONFLICT,
                f"the group has gone on to epoch {self.reconfiguration.newest.epoch}",
            )
        if len(state.members) == 1:
            return Code.CONFLICT, "this member is the whole group already"
        if state.status is Status.LOST:
            return Code.BADCONFIG, "the log of this member is lost: ask another one"
        if not state.has_state:
            return Code.BADCONFIG, "the state of this member is missing: ask another one, or later"
        if (state.leading and not state.suspended) or (not state.leading and self._follows_one):
            return Code.CONFLICT, f"it has a primary, {state.primary.hex()}"
        answering = [one for one in state.members if self._answers(one)]
        if len(answering) >= state.quorum:
            text = " ".join(one.hex() for one in answering)
            return Code.CONFLICT, f"a quorum of its members answers: {text}"
        left_ms = self.begun_ms + self._listen_ms - state.now_ms
        if left_ms > 0:
            text = f"this member has not listened for long enough: {left_ms / 1000:.0f} s more"
            return Code.NOTREADY, text
        return None

    @property
    def _listen_ms(self) -> float:
        return max(LISTEN_MS, 2 * self.state.tuning.view_time_out_ms[1])

    @property
    def _follows_one(self) -> bool:
        return self.state.status is Status.NORMAL and self.views.hears_primary

    def _answers(self, member: bytes) -> bool:
        spoke_ms = self.spoke_ms.get(member)
        is_heard = spoke_ms is not None and self.state.now_ms - spoke_ms <= self._listen_ms
        return member == self.state.id or is_heard

    def _loss(self, epoch: int | None) -> bytes:
        """Return what is kept and what may be lost. `epoch`: the one that begins, if any."""
        state = self.state
        end_lsn, commit_lsn = state.log.whole_lsn, state.commit_lsn
        told_lsn = max(self.normal.told_lsn, commit_lsn)
        others = [one for one in state.members if one != state.id]
        texts = [
            f"what was acknowledged behind LSN {end_lsn} by a quorum without this member is lost; "
            "it does not know whether there is any"
        ]
        if end_lsn > commit_lsn:
            texts.append(
                f"entries {commit_lsn + 1} to {end_lsn} are kept, though not known to be committed"
            )
        if told_lsn > end_lsn:
            texts.append(f"entries {end_lsn + 1} to {told_lsn} were committed and are lost")
        if state.log.op_lsn > end_lsn:
            texts.append(
                f"entry {end_lsn + 1} is damaged: it and all up to {state.log.op_lsn} are lost"
            )
        if not state.configuration.journalled:
            texts.append("it keeps no journal: alone it is lost with this process, so add members")
        known = state.acks if state.leading else self._led_acks
        return mapping((
            (b"epoch", integer(state.epoch)), (b"view", integer(state.view)),
            (b"forced_epoch", NULL if epoch is None else integer(epoch)),
            (b"kept_lsn", integer(end_lsn)), (b"committed_lsn", integer(commit_lsn)),
            (b"told_lsn", integer(told_lsn)),
            (b"silent", array([
                mapping((
                    (b"node", bulk(one.hex().encode())), (b"heard_ms", self._heard_ago(one)),
                    (b"acknowledged_lsn", integer(known[one]) if one in known else NULL),
                ))
                for one in others if not self._answers(one)
            ])),
            (b"may_be_lost", array([bulk(text.encode()) for text in texts])),
        ))  # fmt: skip

    def _heard_ago(self, member: bytes) -> bytes:
        spoke_ms = self.spoke_ms.get(member)
        return NULL if spoke_ms is None else integer(int(self.state.now_ms - spoke_ms))

    def _go_on_alone(self, epoch: int, then: Callable[[], None]) -> None:
        state = self.state
        self.up.stand_down()
        self.up.give_up()
        # What others have told of later entries may be of another log than this one.
        end_lsn, known = state.log.whole_lsn, state.log.link_at(state.commit_lsn)
        assert known is not None
        state.belong_to(Configuration(
            epoch, (state.id,), 0, state.members, known.lsn, known.hash,
            state.configuration.journalled,
        ))  # fmt: skip
        state.view, state.last_normal = 0, (epoch, 0)
        self.reconfiguration.begin()
        self.learners.begin()
        self.views.begin()
        state.become(Status.GAP)
        end = NewEnd(end_lsn, ()) if state.log.op_lsn > end_lsn else None

        def lead() -> None:
            self.views.why = "it was forced to go on alone"
            self.views.lead(end_lsn)
            then()

        self.storage.persist(lead, end)
