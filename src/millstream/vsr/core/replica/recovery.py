"""Recovery of a member that has lost its log and still has its promises.

Invariants:
1. The lost log may have held what was acknowledged. So the member votes for nothing, acknowledges
   nothing, confirms nothing, and takes no log that was sent before it asked.
2. It goes on only with the log that a primary gave after it asked, once a quorum of other members
   has answered and none is in a higher view. That view is not below its promise. If the log
   begins with a snapshot, it is the one that the primary named together with the log's end.
3. If more than a minority lost their logs, committed entries may be gone: the members wait.
4. In a group without a journal every restart is such a loss. Only hard states are written.

Elsewhere: detecting that a log is lost (`startup`), fetching the entries (`log_repair`).

Source: Liskov and Cowling 2012, section 4.3; Michael et al., "Recovering Shared Objects Without
Stable Storage", 2017, on the promise.
"""

from __future__ import annotations

from typing import Final

from millstream.vsr.core import messages
from millstream.vsr.core.messages import Envelope, RecoveryResponse
from millstream.vsr.core.replica.execution import Execution
from millstream.vsr.core.replica.log_repair import LogRepair
from millstream.vsr.core.replica.member import ReplicaState, Status
from millstream.vsr.core.replica.normal_case import NormalCase
from millstream.vsr.core.replica.reads import Reads
from millstream.vsr.core.replica.upcalls import Upcalls
from millstream.vsr.core.replica.view_change import ViewChange

__all__ = ["FETCH_MS", "RECOVERY_MS", "Recovery"]

RECOVERY_MS: Final = 1000.0
"""After this time without a result a lost member asks again, with another nonce."""
FETCH_MS: Final = 10 * RECOVERY_MS
"""After this time without any part of the log it asks again, too."""


class Recovery:
    """Recovers a lost log, and helps others to: Recovery, RecoveryResponse."""

    def __init__(
        self, state: ReplicaState, up: Upcalls, execution: Execution, repairs: LogRepair,
        normal: NormalCase, reads: Reads, views: ViewChange,
    ) -> None:  # fmt: skip
        self.state, self.up = state, up
        self.execution, self.repairs = execution, repairs
        self.normal, self.reads, self.views = normal, reads, views
        self.begin()

    def begin(self) -> None:
        """Forget whom it asked."""
        self._nonce = 0
        self._asked_ms = -RECOVERY_MS
        self._responses: dict[bytes, RecoveryResponse] = {}
        self._lost_ms: dict[bytes, float] = {}

    @property
    def is_data_lost(self) -> bool:
        """Whether so many members lack their logs that committed entries may be lost."""
        state = self.state
        if state.status is not Status.LOST:
            return False
        others = sum(1 for at in self._lost_ms.values() if state.now_ms - at <= 10 * RECOVERY_MS)
        return 1 + others > len(state.members) - state.quorum

    def ask(self) -> None:
        """Ask all members, anew if the last attempt brought nothing."""
        state = self.state
        since_ms = max(self._asked_ms, self.repairs.got_ms)
        if self.repairs.repair is not None and (
            self.up.entering or state.now_ms - since_ms < FETCH_MS
        ):
            return self.repairs.go_on()
        if state.now_ms - self._asked_ms >= RECOVERY_MS:
            self.up.stand_down()
            self._nonce, self._asked_ms = self.reads.next_nonce(), state.now_ms
            self._responses = {}
        return state.broadcast(messages.Recovery(self._nonce, state.view))

    def lose_log(self, what: str) -> None:
        """Stop using the own log: it differs from another one where none may differ."""
        state = self.state
        state.contradict(what)
        self.up.stand_down()
        state.become(Status.LOST)
        self.execution.to_apply_lsn = state.commit_lsn
        self.forget_answers()

    def forget_answers(self) -> None:
        """Ask anew: the answers are too old."""
        self._asked_ms = -RECOVERY_MS
        self._nonce, self._responses = self.reads.next_nonce(), {}

    def on_recovery(self, envelope: Envelope, asked: messages.Recovery) -> None:
        """Tell a member that lost its log which view is current, and as primary the log's end."""
        state = self.state
        self._lost_ms[envelope.sender] = state.now_ms
        if state.status is not Status.NORMAL:
            return
        if state.leading and asked.min_view > state.view:
            self.views.hear_higher_view(asked.min_view)
            return
        leads = state.leading and not state.suspended
        lsn = state.flushed_lsn if leads else state.log.base.lsn
        digest = state.log.hash_at(lsn)
        assert digest is not None
        answer = RecoveryResponse(
            asked.nonce, state.view, leads, lsn, digest, *self.normal.sign_of_life()[:2],
            state.stable_id if leads and state.stable is not None else None,
        )  # fmt: skip
        state.send(envelope.sender, answer)

    def on_recovery_response(self, envelope: Envelope, response: RecoveryResponse) -> None:
        """Take the log of the primary once a quorum answered and none is in a later view."""
        state = self.state
        if state.status is not Status.LOST or response.nonce != self._nonce:
            return
        if self.repairs.repair is not None:
            return
        self._responses[envelope.sender] = response
        if len(self._responses) < state.quorum:
            return
        view = max(answer.view for answer in self._responses.values())
        ended = self._responses.get(state.configuration.primary(view))
        if view < state.view or ended is None or not ended.leads or ended.view != view:
            return
        found = None
        if (named := ended.snapshot) is not None and state.log.op_lsn < named.lsn <= ended.op_lsn:
            found = self.up.found_snapshot(named, state.configuration.primary(view))
            if found is None:
                return
        self.repairs.fetch(
            ended.op_lsn, ended.op_hash, lambda: self.views.install_view(view, ended.commit_lsn)
        )
        self.repairs.begin_at(found)
        self.repairs.go_on()
