"""What a replica says about itself, and why it cannot do its work.

Elsewhere: the form of it (`report`).
"""

from __future__ import annotations

from millstream.vsr.core.configuration import generation
from millstream.vsr.core.replica.learners import Learners
from millstream.vsr.core.replica.log_repair import LogRepair
from millstream.vsr.core.replica.member import ReplicaState, Status
from millstream.vsr.core.replica.normal_case import NormalCase
from millstream.vsr.core.replica.reads import Reads
from millstream.vsr.core.replica.reconfiguration import Reconfiguration
from millstream.vsr.core.replica.recovery import FETCH_MS, Recovery
from millstream.vsr.core.replica.requested_changes import RequestedChanges
from millstream.vsr.core.replica.snapshot_taking import Snapshots
from millstream.vsr.core.replica.state_transfer import StateTransfer
from millstream.vsr.core.replica.view_change import ViewChange
from millstream.vsr.core.report import Report

__all__ = ["Reporting"]


class Reporting:
    """A picture of the other parts."""

    def __init__(
        self, state: ReplicaState, repairs: LogRepair, normal: NormalCase, reads: Reads,
        views: ViewChange, recovery: Recovery, learners: Learners,
        reconfiguration: Reconfiguration, changes: RequestedChanges, snapshots: Snapshots,
        transfer: StateTransfer,
    ) -> None:  # fmt: skip
        self.state, self.repairs, self.normal, self.reads = state, repairs, normal, reads
        self.views, self.recovery, self.learners = views, recovery, learners
        self.reconfiguration, self.changes = reconfiguration, changes
        self.snapshots, self.transfer = snapshots, transfer
        self._trouble, self._trouble_ms = "", 0.0

    def report(self) -> Report:
        """Return a picture of this moment."""
        state = self.state
        members = state.members
        is_quorum_ok = self._is_quorum_ok()
        others = [*(member for member in members if member != state.id), *self.learners.pupils]
        lags = tuple((one, self.changes.lag(one)) for one in others) if state.leading else ()
        return Report(
            self._role(), self._status(), state.epoch, state.view, members,
            state.primary if members else None, state.log.op_lsn, state.commit_lsn,
            state.commit_lsn, lags, self.snapshots.snapshot_number, is_quorum_ok,
            self.normal.fault_tolerance if is_quorum_ok else 0, len(state.table),
            self.reads.reads_waiting + self.reconfiguration.requests_waiting,
            state.now_ms - self.views.view_changed_ms, self.views.view_reason, state.repaired,
            state.is_diverged, self.recovery.is_data_lost, state.contradiction, state.state_format,
            state.machine.format_max, self._trouble,
            state.now_ms - self._trouble_ms if self._trouble else 0.0,
        )  # fmt: skip

    @property
    def told_commit_lsn(self) -> int | None:
        """What is committed as far as the primary, which is heard, said; None: it is not heard."""
        state = self.state
        if state.leading:
            return None if state.suspended else state.commit_lsn
        is_told = (
            state.status is Status.NORMAL and self.views.hears_primary and self.normal.told_lsn > 0
        )
        return max(self.normal.told_lsn, state.commit_lsn) if is_told else None

    @property
    def troubled(self) -> bool:
        """Whether the member cannot do its work, perhaps only for a moment."""
        return bool(self._trouble)

    def look_for_trouble(self) -> None:
        """Note why this member cannot do its work, and since when."""
        before, self._trouble = self._trouble, self._reason()
        if not before and self._trouble:
            self._trouble_ms = self.state.now_ms

    def _reason(self) -> str:
        state = self.state
        silent_ms, newest = state.now_ms - self.repairs.got_ms, self.reconfiguration.newest.epoch
        if state.status is Status.RETIRED and generation(newest) > generation(state.epoch):
            return (
                f"the group was forced to go on without this member, in epoch {newest}: what is "
                "here counts no more"
            )
        if state.is_outside:
            return ""
        if self.recovery.is_data_lost:
            return "more members than may have lost their logs: what was committed may be gone"
        if missing := self.transfer.missing_snapshot:
            return f"its state is missing: it wants snapshot {missing} of another member"
        if not state.has_state:
            return "its state is being restored from a snapshot"
        if (
            self.repairs.repair is not None
            and self.repairs.repair.wanted is not None
            and silent_ms > FETCH_MS
        ):
            return (
                f"entry {self.repairs.repair.wanted.lsn} of the log is missing or damaged here, "
                "and no member has given it"
            )
        if state.status is Status.LOST:
            return "its log is lost: it wants that of a primary"
        if state.leading and state.suspended:
            silent = [one for one in state.members if self.changes.is_silent(one)]
            return f"no quorum answers; silent: {' '.join(one.hex() for one in silent)}"
        if state.status is Status.VIEWCHANGE and state.log.holes:
            return (
                f"no primary leads, and entry {state.log.holes[0]} of the log is missing or "
                "damaged here: another member has to give it"
            )
        if state.status is Status.VIEWCHANGE:
            return "no primary leads: not enough members vote for one"
        if state.status is Status.GAP:
            return "it has not heard a primary since it started"
        return "" if state.leading or self.views.hears_primary else "the primary is not heard"

    def _role(self) -> str:
        state = self.state
        if self.learners.is_learning:
            return "learner"
        if state.status is Status.RETIRED:
            return "retired"
        if not state.members:
            return "idle"
        return "primary" if state.leading else "backup"

    def _status(self) -> str:
        state = self.state
        if state.status is Status.NORMAL and not state.has_state:
            return Status.GAP.value
        ending = state.status is Status.NORMAL and state.closing
        return "RECONFIGURATION" if ending else state.status.value

    def _is_quorum_ok(self) -> bool:
        state = self.state
        if state.leading:
            return not state.suspended
        return state.status is Status.NORMAL and self.views.hears_primary
