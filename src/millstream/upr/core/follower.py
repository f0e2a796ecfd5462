"""The reader of one partition: keeps its position exactly, asks, and is told to roll back.

A follower is asked for stream requests and fed with what the stream brings; it never touches the
reader's state. The reader stores `position` (and `failover_log`) together with that state.

Invariants:
1. `snap_start` is the reader's last complete end, never a marker's start: a marker above the
   position opens a snapshot (snap_start = seqno), one at or below it continues one (snap_start =
   the smaller of its own and the marker's).
2. `uuid` is that of the newest failover entry whose seqno is below snap_end.
3. The fifth member is set only while snap_start = 0 in a load from the beginning.
4. Seqnos ascend strictly, and no change lies outside a marker; a snapshot that continues an
   unfinished one reaches at least its end.
5. A rollback to 0 for an unknown uuid is believed only after the failover logs were compared.

Elsewhere: bytes and flow control (`upr.core.consumer`), the rule itself (`model.position`).

Source: the rollback rule's consumer side, docs/concepts/rollback.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from millstream.errors import LocalProtocolError, RemoteProtocolError
from millstream.model.limits import UINT64_MAX
from millstream.model.position import FailoverLog, Position, position_at, upper_of
from millstream.upr.core.messages import StreamRequest

__all__ = ["Follower", "FollowerState", "StreamOptions", "common_point"]


class FollowerState(Enum):
    """Life of the stream of one partition, as its reader sees it."""

    IDLE = auto()
    ASKING = auto()
    COMPARING = auto()
    """Told to go to 0: the source's failover log was asked for."""
    ROLLING_BACK = auto()
    """The reader was told to undo and has not said yet that it did."""
    OPEN = auto()
    CLOSING = auto()


_MOVES: Final[Mapping[FollowerState, frozenset[FollowerState]]] = {
    FollowerState.IDLE: frozenset({FollowerState.ASKING}),
    FollowerState.ASKING: frozenset(
        {
            FollowerState.OPEN,
            FollowerState.COMPARING,
            FollowerState.ROLLING_BACK,
            FollowerState.IDLE,
        }
    ),
    FollowerState.COMPARING: frozenset({FollowerState.ROLLING_BACK, FollowerState.IDLE}),
    FollowerState.ROLLING_BACK: frozenset({FollowerState.ASKING, FollowerState.IDLE}),
    FollowerState.OPEN: frozenset({FollowerState.CLOSING, FollowerState.IDLE}),
    FollowerState.CLOSING: frozenset({FollowerState.IDLE}),
}


class StreamOptions(NamedTuple):
    """What a reader asks for beside its position; see `StreamRequest`.

    `branch_min`: a source whose newest branch is lower is left alone: the stream ends as closed.
    """

    end: int = UINT64_MAX
    flags: int = 0
    lease: int | None = None
    as_of: int | None = None
    end_uuid: int | None = None
    branch_min: int = 0


def common_point(position: Position, mine: FailoverLog, theirs: FailoverLog) -> int:
    """Return the seqno to undo to where the two failover logs part; 0 if nowhere.

    0 also if the source knows the position's uuid: then the purge point spoke.
    """
    if any(entry.uuid == position.uuid for entry in theirs):
        return 0
    tops = (
        min(mine_upper, theirs_upper)
        for entry in mine
        if (theirs_upper := upper_of(theirs, entry.uuid, UINT64_MAX)) is not None
        and (mine_upper := upper_of(mine, entry.uuid, position.seqno)) is not None
    )
    is_complete = position.seqno == position.snap_end
    return min(max(tops, default=0), position.seqno if is_complete else position.snap_start)


class Follower:
    """Position and stream state of one partition."""

    __slots__ = ("_has_compared", "failover_log", "options", "partition_id", "position", "state")

    def __init__(
        self,
        partition_id: int,
        position: Position,
        failover_log: FailoverLog,
        options: StreamOptions,
    ) -> None:
        self.partition_id = partition_id
        self.position = position
        self.failover_log = failover_log
        self.options = options
        self.state = FollowerState.IDLE
        self._has_compared = False

    def _move(self, to: FollowerState) -> None:
        if to not in _MOVES[self.state]:
            message = f"stream of partition {self.partition_id}: no way from {self.state} to {to}"
            raise LocalProtocolError(message, code="bad_state")
        self.state = to

    # -- what the reader does

    def ask(self) -> StreamRequest:
        """Return the request that goes on from the position."""
        self._move(FollowerState.ASKING)
        end, flags, lease, as_of, end_uuid, _ = self.options
        return StreamRequest(self.partition_id, self.position, end, flags, lease, as_of, end_uuid)

    def undone_to(self, seqno: int) -> None:
        """Take note that the reader's state is that of the complete snapshot `seqno`."""
        if self.state is not FollowerState.ROLLING_BACK or seqno > self.position.seqno:
            message = f"partition {self.partition_id} was not told to undo, or not to {seqno}"
            raise LocalProtocolError(message, code="bad_state")
        self.position = self._at(seqno) if seqno else Position()

    def close(self) -> None:
        """Take note that the stream is being closed; what still comes is passed over."""
        self._move(FollowerState.CLOSING)

    # -- what the source says

    def on_opened(self, log: FailoverLog, purge_seqno: int | None) -> None:
        """Take the source's failover log, and its purge seqno as asked for before the stream."""
        self._move(FollowerState.OPEN)
        self._has_compared = False
        self.failover_log = log
        _, seqno, snap_start, snap_end, purge = self.position
        if seqno == 0:
            purge = purge_seqno
        snap_end = snap_end if seqno > snap_start else seqno
        self.position = position_at(log, seqno, snap_start, snap_end, purge)
        self._check()

    def on_refused(self) -> None:
        """Take note that the request was refused for another reason than history, or given up."""
        self._move(FollowerState.IDLE)

    def on_rollback(self, seqno: int) -> int | None:
        """Return the seqno to undo to; None: compare the failover logs first.

        Raises:
            RemoteProtocolError: the seqno is not below the position.
        """
        if seqno >= self.position.seqno:
            message = f"partition {self.partition_id} told to go back to {seqno}, not below"
            raise RemoteProtocolError(f"{message} {self.position.seqno}", code="bad_rollback")
        if seqno == 0 and not self._has_compared:
            self._has_compared = True
            self._move(FollowerState.COMPARING)
            return None
        self._move(FollowerState.ROLLING_BACK)
        return seqno

    def on_failover_log(self, theirs: FailoverLog) -> int:
        """Return the seqno to undo to, now that the source's failover log is known."""
        self._move(FollowerState.ROLLING_BACK)
        return common_point(self.position, self.failover_log, theirs)

    def on_marker(self, start: int, end: int) -> None:
        """Open or continue a snapshot.

        Raises:
            RemoteProtocolError: an impossible range.
        """
        _, seqno, snap_start, snap_end, purge = self.position
        is_new = start > seqno
        if not start <= end or end < snap_end or (is_new and seqno < snap_end):
            message = f"partition {self.partition_id}: marker [{start}, {end}] at {self.position}"
            raise RemoteProtocolError(message, code="bad_marker")
        start = seqno if is_new else min(snap_start, start)
        self.position = position_at(self.failover_log, seqno, start, end, purge)
        self._check()

    def on_advanced(self, seqno: int) -> bool:
        """Move to `seqno`, of a change or of an advance; return whether a snapshot is complete.

        Raises:
            RemoteProtocolError: not above the position, or beyond the marker.
        """
        position = self.position
        if not position.seqno < seqno <= position.snap_end:
            message = f"partition {self.partition_id}: seqno {seqno} at {position}"
            raise RemoteProtocolError(message, code="bad_order")
        if seqno == position.snap_end:
            self.position = self._at(seqno)
            return True
        self.position = position._replace(seqno=seqno)
        return False

    def on_ended(self) -> None:
        """Take note that the stream ended or its closing was confirmed."""
        self._move(FollowerState.IDLE)

    def _check(self) -> None:
        """Assert that the position is inside its snapshot."""
        _, seqno, snap_start, snap_end, _ = self.position
        assert snap_start <= seqno <= snap_end, f"{self.position} is outside of its snapshot"

    def _at(self, seqno: int) -> Position:
        """Return the position of a complete snapshot."""
        if not self.failover_log:  # restored without its log: its one uuid is all it knows
            return Position(self.position.uuid, seqno, seqno, seqno)
        return position_at(self.failover_log, seqno, seqno, seqno)
