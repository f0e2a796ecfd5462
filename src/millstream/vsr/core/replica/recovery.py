"""A member that has its promises but has lost its log: nobody until the group told it anew.

Invariants:
1. A lost log may have held what was acknowledged, so its member votes for nothing, acknowledges
   nothing, confirms nothing, and takes no log that somebody sent before it asked.
2. It goes on only with the log that the primary of a view gave after it asked, once a quorum of
   other members answered and none is in a higher view; and that view is not below its promise.
   The snapshot that a log begins with is the one that its primary named with the log's end.
3. More than a minority of such members means that what is committed may be gone: they wait.
4. In a group without a journal every restart is such a loss; nothing but standings is written.

Elsewhere: telling that a log is lost (`recovery`), fetching the entries (`repair`).

Source: Liskov and Cowling 2012, section 4.3; Michael et al., "Recovering Shared Objects Without
Stable Storage", 2017, on the promise.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from millstream.vsr.core.messages import Envelope, Recovery, RecoveryResponse
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.repair import Repair
from millstream.vsr.core.replica.view_change import Views
from millstream.vsr.core.snapshots import Snapshot, SnapshotId

__all__ = ["FETCH_MS", "RECOVERY_MS", "Recovering"]

RECOVERY_MS: Final = 1000.0
"""After so long without a result a lost member asks again, with another nonce."""
FETCH_MS: Final = 10 * RECOVERY_MS
"""After so long in which nothing of the log came it asks again, too."""


class Recovering(Views):
    """Recovery, RecoveryResponse."""

    def begin_recovering(self) -> None:
        """Have asked nobody."""
        self._nonce = 0
        self._asked_ms = -RECOVERY_MS
        self._responses: dict[bytes, RecoveryResponse] = {}
        self._lost_ms: dict[bytes, float] = {}

    @property
    def is_data_lost(self) -> bool:
        """Whether so many members lack their logs that what was committed may be gone."""
        if self.status is not Status.LOST:
            return False
        others = sum(1 for at in self._lost_ms.values() if self.now_ms - at <= 10 * RECOVERY_MS)
        return 1 + others > len(self.members) - self.quorum

    def ask_to_recover(self) -> None:
        """Ask all members what there is, anew if the last time came to nothing."""
        since_ms = max(self._asked_ms, self.got_ms)
        if self.repair is not None and (self.entering or self.now_ms - since_ms < FETCH_MS):
            return self.go_on_repairing()
        if self.now_ms - self._asked_ms >= RECOVERY_MS:
            self.stand_down()
            self._nonce, self._asked_ms = self.next_nonce(), self.now_ms
            self._responses = {}
        return self.broadcast(Recovery(self._nonce, self.view))

    def lose_log(self, what: str) -> None:
        """Believe the own log no more: it differs from another one where none may."""
        self.contradict(what)
        self.stand_down()
        self.status = Status.LOST
        self._to_apply_lsn = self.commit_lsn
        self.forget_answers()

    def give_up(self) -> None:
        """Also ask anew, if the log is lost."""
        super().give_up()
        self.forget_answers()

    def forget_answers(self) -> None:
        """Ask anew: what was answered is too old."""
        self._asked_ms = -RECOVERY_MS
        self._nonce, self._responses = self.next_nonce(), {}

    @abstractmethod
    def found_snapshot(self, named: SnapshotId, giver: bytes) -> Snapshot | None:
        """Return what was fetched if it may stand for this; else fetch it, to be asked again."""

    def on_recovery(self, envelope: Envelope, asked: Recovery) -> None:
        """Tell a member that lost its log which view there is, and as primary the log's end."""
        self._lost_ms[envelope.sender] = self.now_ms
        if self.status is not Status.NORMAL:
            return
        if self.leading and asked.min_view > self.view:
            self.hear_higher_view(asked.min_view)
            return
        leads = self.leading and not self.suspended
        lsn = self.flushed_lsn if leads else self.log.base.lsn
        digest = self.log.hash_at(lsn)
        assert digest is not None
        answer = RecoveryResponse(
            asked.nonce, self.view, leads, lsn, digest, *self.sign_of_life()[:2],
            self.stable_id if leads and self.stable is not None else None,
        )  # fmt: skip
        self.send(envelope.sender, answer)

    def on_recovery_response(self, envelope: Envelope, response: RecoveryResponse) -> None:
        """Take the primary's log once a quorum has answered and nobody is in a later view."""
        if self.status is not Status.LOST or response.nonce != self._nonce:
            return
        if self.repair is not None:
            return
        self._responses[envelope.sender] = response
        if len(self._responses) < self.quorum:
            return
        view = max(answer.view for answer in self._responses.values())
        ended = self._responses.get(self.configuration.primary(view))
        if view < self.view or ended is None or not ended.leads or ended.view != view:
            return
        found = None
        if (named := ended.snapshot) is not None and self.log.op_lsn < named.lsn <= ended.op_lsn:
            found = self.found_snapshot(named, self.configuration.primary(view))
            if found is None:
                return
        self.repair = Repair(self.log, ended.op_lsn, ended.op_hash, self.spare)
        self._repaired = lambda: self._install_view(view, ended.commit_lsn)
        if found is not None:
            self.repair.use(found)
        self.go_on_repairing()
