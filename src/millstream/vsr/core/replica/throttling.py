"""Throttling: a primary slows requests down while a live member lags, so that it can catch up.

Invariants:
1. While a live member lacks more than half of what the log keeps, requests are admitted at half
   the speed at which it catches up, and never none at all.
2. One member slows requests for at most `THROTTLE_MS` in all, until it has caught up. It does not
   matter how often it comes a little nearer, is not heard, or the view changes. After that it is
   left to fetch a snapshot.
3. Sessions end and snapshots are taken as usual meanwhile.

Elsewhere: how a member catches up (`normal_case`, `state_transfer`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millstream.vsr.core.messages import Envelope, GetState
from millstream.vsr.core.replica.member import ReplicaState
from millstream.vsr.core.replica.normal_case import NormalCase
from millstream.vsr.core.replica.reads import Reads
from millstream.vsr.core.tuning import HEARTBEAT_MS

__all__ = ["CAUGHT_UP_PART", "THROTTLED_ENTRIES_MIN", "THROTTLE_MS", "Throttling"]

THROTTLE_MS: Final = 30_000.0
"""Requests are held back at most this long in all for one member that lags, until it has caught
up."""
CAUGHT_UP_PART: Final = 20
"""A member has caught up once it lacks no more than this part of what the log keeps."""
THROTTLED_ENTRIES_MIN: Final = 32
"""At least this many requests are admitted with each heartbeat meanwhile."""


class _Place(NamedTuple):
    lsn: int
    heard_ms: float


class Throttling:
    """Decides which requests are admitted."""

    def __init__(self, state: ReplicaState, normal: NormalCase, reads: Reads) -> None:
        self.state, self.normal, self.reads = state, normal, reads
        self._waited_ms: dict[bytes, float] = {}
        """How long requests were held back for each member since it had caught up."""
        self.begin()

    def begin(self) -> None:
        """Start without knowledge of the members' positions."""
        self._ticked_ms = self.state.now_ms
        self._asked_from: dict[bytes, _Place] = {}
        self._late_lsn = 0
        self._limit_lsn: int | None = None

    @property
    def full(self) -> bool:
        """Whether to refuse requests: this member, or those who lag, can bear no more."""
        limit = self._limit_lsn
        return self.normal.swamped or (limit is not None and self.state.log.op_lsn >= limit)

    def on_get_state(self, envelope: Envelope, asked: GetState) -> None:
        """Note how far who asks is."""
        state = self.state
        if state.leading and envelope.view == state.view:
            self._asked_from[envelope.sender] = _Place(asked.lsn, state.now_ms)

    def tick_primary(self) -> None:
        """Set how much is admitted until the next heartbeat."""
        state = self.state
        if not state.leading:
            return
        passed_ms = min(state.now_ms - self._ticked_ms, 2 * HEARTBEAT_MS)
        self._ticked_ms = state.now_ms
        waited_for = []
        for member, lsn in self._late().items():
            waited_ms = self._waited_ms.get(member, 0.0)
            if waited_ms <= THROTTLE_MS:
                self._waited_ms[member] = waited_ms + passed_ms
                waited_for.append(lsn)
        if not waited_for:
            self._limit_lsn, self._late_lsn = None, 0
            return
        slowest = min(waited_for)
        progress = slowest - self._late_lsn if self._late_lsn else 0
        self._late_lsn = slowest
        self._limit_lsn = state.log.op_lsn + max(THROTTLED_ENTRIES_MIN, progress // 2)

    def _late(self) -> dict[bytes, int]:
        """Return the live members that lack too much, and where they are."""
        state = self.state
        found = {}
        for member in state.members:
            acked = state.acks.get(member)
            if acked is not None and self._has_caught_up(acked):
                self._waited_ms.pop(member, None)
                continue
            place = self._place_of(member)
            lives = place is not None and state.now_ms - place.heard_ms <= self.reads.quorum_ms
            if member != state.id and place is not None and lives:
                lag = state.commit_lsn - place.lsn
                if 2 * lag > state.tuning.retain_entries:
                    found[member] = place.lsn
        return found

    def _has_caught_up(self, lsn: int) -> bool:
        return CAUGHT_UP_PART * (self.state.commit_lsn - lsn) <= self.state.tuning.retain_entries

    def _place_of(self, member: bytes) -> _Place | None:
        acked, asked = self.state.acks.get(member), self._asked_from.get(member)
        if acked is None:
            return asked
        place = _Place(acked, self.reads.heard_at(member))
        return place if asked is None else max(place, asked)
