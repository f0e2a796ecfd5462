"""Changes that an operator requests: other members, or another primary.

Invariants:
1. An epoch ends only when every new member, and a quorum of the next members, has just answered
   and lacks at most `LAG_MAX` entries. So the next epoch begins at once, and a wrong address
   fails before anything has changed. The next members tolerate as many failures at that moment as
   the members of now, or as many as their number allows.
2. Before a primary hands over, it lets the next one reach the end of the log, while requests
   wait. So no logged entry is left in doubt. The next one must have answered since it was asked
   for. If it does not within `READY_BEATS`, the change is refused and requests go on.
3. Each request is answered once, after at most `CHANGE_MS_MAX`.

Elsewhere: how an epoch ends (`reconfiguration`), how a view does (`view_change`).

Source: Liskov and Cowling 2012, section 7; V2R2, "Reconfiguration".
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from millstream.vsr.core.configuration import SIZES
from millstream.vsr.core.effects import Code, MovePrimary, Reconfigure
from millstream.vsr.core.replica.learners import Learners
from millstream.vsr.core.replica.member import ReplicaState
from millstream.vsr.core.replica.normal_case import NormalCase
from millstream.vsr.core.replica.reconfiguration import Reconfiguration
from millstream.vsr.core.replica.view_change import ViewChange

__all__ = ["CHANGE_MS_MAX", "LAG_MAX", "MOVE_MS_MAX", "READY_BEATS", "WARM_MS", "RequestedChanges"]

LAG_MAX: Final = 1000
"""Committed entries that a member may lack and still be near enough to begin an epoch."""
READY_BEATS: Final = 3
"""A member that has not answered for this number of heartbeats is not ready."""
WARM_MS: Final = 5000.0
"""A change is given up if for so long nobody it waits for has come nearer."""
CHANGE_MS_MAX: Final = 600_000.0
"""And after so long in any case."""
MOVE_MS_MAX: Final = 5000.0
"""The next primary must reach the end of the log within this time."""


@dataclass(slots=True)
class _Change:
    ticket: int
    members: tuple[bytes, ...]
    since_ms: float
    near_ms: float
    """When somebody came nearer last."""
    reached: int = 0
    """The sum of the LSNs of those it waits for."""
    is_logged: bool = False


@dataclass(slots=True)
class _Move:
    ticket: int
    node: bytes
    since_ms: float
    is_handing_over: bool = False


class RequestedChanges:
    """Does what an operator requests: Reconfigure, MovePrimary."""

    def __init__(
        self, state: ReplicaState, normal: NormalCase, views: ViewChange, learners: Learners,
        reconfiguration: Reconfiguration,
    ) -> None:  # fmt: skip
        self.state, self.normal, self.views = state, normal, views
        self.learners, self.reconfiguration = learners, reconfiguration
        self.asked_format = 0
        """The state format that this primary has asked for (`formats`); changes wait for it."""
        self.begin()

    def begin(self) -> None:
        """Start without a requested change."""
        self._change: _Change | None = None
        self._move: _Move | None = None

    # ---- other members

    def on_reconfigure(self, asked: Reconfigure) -> None:
        """End the epoch for one with these members, as soon as they are ready."""
        state = self.state
        answer = self._refusal(asked.ticket) or self._answer_at_once(asked)
        if answer is not None:
            state.reply(asked.ticket, *answer)
        else:
            self._change = _Change(asked.ticket, asked.members, state.now_ms, state.now_ms)
            self.learners.teach(asked.members)
            self._go_on_changing()

    def _refusal(self, ticket: int) -> tuple[Code, bytes] | None:
        state = self.state
        if not state.leading or self.reconfiguration.next_known:
            return Code.NOTPRIMARY, b""
        if state.suspended:
            return Code.NOQUORUM, b""
        if self._change or self._move or state.closing or state.commit_lsn < state.noop_lsn:
            return Code.BUSY, b""
        if self.asked_format > state.state_format:
            return Code.BUSY, b""
        return None

    def _answer_at_once(self, asked: Reconfigure) -> tuple[Code, bytes] | None:
        state = self.state
        if asked.members == state.members:  # said again, perhaps: the epoch may be a later one
            return Code.OK, b"%d" % state.epoch
        if asked.expected_epoch not in (None, state.epoch):
            return Code.CONFLICT, b"%d" % state.epoch
        if list(asked.members) != sorted(set(asked.members)):
            return Code.BADCONFIG, b"members are not in order, or one is named twice"
        if len(asked.members) not in SIZES:
            return Code.BADCONFIG, b"a group has 3, 5 or 7 members"
        return None

    def _go_on_changing(self) -> None:
        state = self.state
        change = self._change
        if change is None or change.is_logged:
            return None
        too_old = [node for node in change.members if self._is_too_old(node)]
        if too_old:
            return self._end_change(Code.BADCONFIG, self._too_old(too_old[0]))
        others = [node for node in change.members if self.learners.has_other_history(node)]
        if others:
            return self._end_change(Code.BADCONFIG, self._other_history(others[0]))
        late = [member for member in change.members if not self.is_ready(member)]
        is_known = state.state_format == 1 or all(map(self._is_known, change.members))
        if is_known and self._may_begin(change.members, late):
            change.is_logged = True
            return self.reconfiguration.close_epoch(change.members)
        reached = sum(self.learners.acknowledged(member) for member in late)
        if reached > change.reached:
            change.reached, change.near_ms = reached, state.now_ms
        if state.now_ms - change.near_ms > WARM_MS:
            return self._end_change(Code.NOTREADY, self._lags(late))
        return None

    def _may_begin(self, members: tuple[bytes, ...], late: list[bytes]) -> bool:
        """Return whether an epoch of these members survives as much as the one of now."""
        if any(member not in self.state.members for member in late):
            return False
        most = (len(members) - 1) // 2
        survived = most - len(late)
        return survived >= min(self.normal.fault_tolerance, most)

    def _is_known(self, node: bytes) -> bool:
        return node in self.state.members or self.learners.format_of_pupil(node) > 0

    def _is_too_old(self, node: bytes) -> bool:
        return 0 < self.learners.format_of_pupil(node) < self.state.state_format

    def _too_old(self, node: bytes) -> bytes:
        known = self.learners.format_of_pupil(node)
        return (
            f"node {node.hex()} understands state formats up to {known}, the group is at "
            f"{self.state.state_format}: start a newer version there"
        ).encode()

    @staticmethod
    def _other_history(node: bytes) -> bytes:
        return (
            f"node {node.hex()} has another history of this group, from before it was forced to "
            "go on: move its coord directory aside, and start it with --join as a new node"
        ).encode()

    def _end_change(self, code: Code, value: bytes = b"") -> None:
        change, self._change = self._change, None
        if change is not None:
            self.state.reply(change.ticket, code, value)
            self.learners.teach(())

    def lag(self, member: bytes) -> int:
        """Return how many committed entries it lacks."""
        return max(0, self.state.commit_lsn - self.learners.acknowledged(member))

    def is_ready(self, member: bytes) -> bool:
        """Return whether it lives and is nearly as far as the primary."""
        return not self.is_silent(member) and self.lag(member) <= LAG_MAX

    def is_silent(self, member: bytes, since_ms: float = -inf) -> bool:
        """Return whether a member missed some heartbeats, and was silent since a given time."""
        state = self.state
        heard_ms = (
            state.now_ms if member == state.id else max(self.learners.heard_at(member), since_ms)
        )
        return state.now_ms - heard_ms > READY_BEATS * state.tuning.beat_ms

    def _lags(self, members: list[bytes]) -> bytes:
        return b" ".join(
            b"%s %d" % (member.hex().encode(), self.lag(member)) for member in members
        )

    def _abandon_change(self) -> None:
        """Answer that this member can no longer tell the result."""
        change, later = self._change, self.reconfiguration.next_known
        if change is None:
            return
        if not change.is_logged:
            self._end_change(Code.NOQUORUM if self.state.suspended else Code.NOTPRIMARY)
        elif later is not None and self.reconfiguration.has_begun:
            self._end_change(Code.OK, b"%d" % later.epoch)
        else:
            self._end_change(Code.UNKNOWN)

    # ---- another primary

    def on_move_primary(self, asked: MovePrimary) -> None:
        """Hand over to another member, as soon as it is as far as this one."""
        state = self.state
        refusal = self._refusal(asked.ticket)
        if refusal is None and asked.node not in state.members:
            refusal = Code.BADCONFIG, b"it is no member of this group"
        if refusal is not None:
            state.reply(asked.ticket, *refusal)
        elif asked.node == state.id:
            state.reply(asked.ticket, Code.OK)
        else:
            self._move = _Move(asked.ticket, asked.node, state.now_ms)
            self._go_on_moving()

    @property
    def is_changing(self) -> bool:
        """Whether other members are wanted, or another primary."""
        return self._change is not None or self._move is not None

    @property
    def holding(self) -> bool:
        """Whether requests wait for the next epoch, or the next primary, and are not logged."""
        return self.state.closing or (self._move is not None and self._move.is_handing_over)

    def _go_on_moving(self) -> None:
        state = self.state
        move = self._move
        if move is None or state.suspended:
            return
        is_late = state.now_ms - move.since_ms > MOVE_MS_MAX
        if is_late or self.is_silent(move.node, move.since_ms):
            self._end_move(Code.NOTREADY, self._lags([move.node]))
            self.reconfiguration.release_held()
            return
        move.is_handing_over = move.is_handing_over or self.is_ready(move.node)
        done_lsn = min(state.commit_lsn, self.learners.acknowledged(move.node))
        has_answered = self.learners.heard_at(move.node) > move.since_ms
        if move.is_handing_over and has_answered and done_lsn == state.log.op_lsn:
            ahead = state.members.index(move.node) - state.view
            self.views.resign(state.view + ahead % len(state.members))

    def _end_move(self, code: Code, value: bytes = b"") -> None:
        move, self._move = self._move, None
        if move is not None:
            self.state.reply(move.ticket, code, value)

    def view_entered(self) -> None:
        """Answer who asked for another primary: there is one."""
        if self._move is not None:
            self._end_move(Code.OK if self.state.primary == self._move.node else Code.NOTREADY)

    # ---- when things happen

    def tick_primary(self) -> None:
        """See how many may fail, and whether what was asked for can be done now."""
        state = self.state
        if state.leading:
            self.normal.fault_tolerance = max(
                0, sum(map(self.is_ready, state.members)) - state.quorum
            )
            self.learners.tick()
            self._go_on_changing()
            self._go_on_moving()

    def tick(self) -> None:
        """Answer requests that have waited too long."""
        change, move = self._change, self._move
        if change is not None and self.state.now_ms - change.since_ms > CHANGE_MS_MAX:
            self._abandon_change()
        if move is not None and self.state.now_ms - move.since_ms > 2 * MOVE_MS_MAX:
            self._end_move(Code.UNKNOWN)

    def acknowledged(self) -> None:
        """See whether the next primary is as far as this one now."""
        if self._move is not None and self.state.leading:
            self._go_on_moving()

    def learned(self) -> None:
        """Check whether enough members are ready now."""
        if self.state.leading:
            self._go_on_changing()

    def committed(self) -> None:
        """Tell who asked for the epoch that it runs."""
        state = self.state
        change = self._change
        if change is None or state.members != change.members or not state.leading:
            return
        if state.commit_lsn >= state.noop_lsn:
            self._end_change(Code.OK, b"%d" % state.epoch)

    def suspended(self) -> None:
        """Give up requested changes: this member cannot learn how they end."""
        self._abandon_change()
        if self._move is not None and not self.views.resigned:
            self._end_move(Code.NOQUORUM)

    def stood_down(self) -> None:
        """Give up what was asked for, unless this member begins the next epoch."""
        if not self.reconfiguration.entering:
            self._abandon_change()
        if not self.views.resigned:
            self._end_move(Code.NOTPRIMARY)
