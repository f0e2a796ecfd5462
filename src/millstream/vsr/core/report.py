"""The status of one replica, for people.

Invariants:
1. It shows one moment. Asking for it changes nothing.
2. Only a primary knows how far the others are, so only its report has `lags`.

Elsewhere: where the figures come from (`replica.reporting`), how they are printed (STATUS).
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["STUCK_MS", "Report"]

STUCK_MS: Final = 10_000.0
"""Trouble that lasts this long does not end by itself: it is logged, and raises an alarm."""


class Report(NamedTuple):
    """One replica's state."""

    role: str
    """primary, backup, learner (it fetches the log and votes for nothing), retired or idle."""
    status: str
    """One of `Status`, or RECONFIGURATION: normal, and the epoch is about to end."""
    epoch: int
    view: int
    members: tuple[bytes, ...]
    primary: bytes | None
    """The primary of its view, as far as it knows. None if it belongs to no epoch."""
    op_lsn: int
    commit_lsn: int
    applied_lsn: int
    lags: tuple[tuple[bytes, int], ...]
    """Committed entries that each other member, and each learner, has not acknowledged."""
    snapshot: int
    """Number of the newest stable snapshot, 0 if there is none."""
    is_quorum_ok: bool
    """Whether it can do its work: as primary a quorum answers, as backup the primary is heard."""
    fault_tolerance: int
    """How many more members may fail now: those that answer and are not far behind, beyond a
    quorum. A backup has it from its primary. Without a quorum it is 0."""
    sessions: int
    queue_depth: int
    """Requests and reads that are accepted and not answered."""
    view_changed_ms: float
    """How long ago it came into this view."""
    view_reason: str
    repaired: int
    """Damaged entries of the log that were replaced since the start of the process."""
    is_diverged: bool
    """Its state once differed from that of the others. It fetched theirs, or will."""
    is_data_lost: bool
    """More members than may fail have lost their logs. The group does not go on by itself."""
    contradiction: str = ""
    """What it last heard that is impossible if all keep their promises. It was not taken."""
    state_format: int = 1
    """The state format of what is applied here."""
    state_format_max: int = 1
    """The highest state format that this program understands."""
    trouble: str = ""
    """Why it cannot do its work, if it cannot."""
    trouble_ms: float = 0.0
    """How long it has been in trouble, in milliseconds."""

    @property
    def is_member(self) -> bool:
        """Whether the group counts on it: it was not replaced, and does not only learn."""
        return self.role in ("primary", "backup")

    @property
    def is_impaired(self) -> bool:
        """Whether it cannot do its work. One that was replaced has none, unless it lost it."""
        return bool(self.trouble) or (self.is_member and not self.is_quorum_ok)

    @property
    def is_stuck(self) -> bool:
        """Whether the member has been unable to work for longer than a usual fail-over takes."""
        return self.trouble_ms >= STUCK_MS
