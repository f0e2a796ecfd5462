"""How far each partition goes in the next batch: the limits, and what nodes have measured.

Invariants:
1. A batch has at most `rows_max` rows and `bytes_max` bytes, by what its readers will get. One row
   that is larger is a batch of its own.
2. Without a limit, or if a snapshot cannot exceed it, no node is asked.
3. Each snapshot is measured once, in pieces that a batch takes several of; the rest of them is
   kept for later batches of this process. A partition that could not be measured goes by seqnos.
4. Each batch gives a piece to every partition, in turns, the one with the longest rest first, as
   long as it stays within the limits. So no partition waits for others for ever.

Elsewhere: the rules of offsets (`planner`), who measures (`millstream.client.measuring`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple

from millstream.client.measuring import Piece
from millstream.model.limits import UINT64_MAX
from millstream.pipelines.change_stream.offsets import OffsetEntry

__all__ = ["BatchSizes", "Limits", "Measure"]

Measure = Callable[[int, Mapping[int, int], int, int], Mapping[int, Sequence[Piece]]]
"""(lease id, partition -> seqno, rows, bytes of a piece) -> pieces; see `measure_lease`."""
_end_of: Final = attrgetter("end")


class Limits(NamedTuple):
    """Of one batch; None: no limit."""

    rows: int | None = None
    bytes: int | None = None


class _Measured(NamedTuple):
    lease_id: int | None
    limits: Limits
    after: int
    pieces: Sequence[Piece]

    def rest(self, entry: OffsetEntry, limits: Limits) -> Sequence[Piece]:
        """Return the pieces that end above an entry; none if they are not of its snapshot."""
        if (self.lease_id, self.limits) != (entry.lease_id, limits) or entry.seqno < self.after:
            return ()
        return self.pieces[bisect_right(self.pieces, entry.seqno, key=_end_of) :]


_NOTHING: Final = _Measured(None, Limits(), 0, ())


class BatchSizes:
    """The pieces of one query's snapshots."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._measured: dict[int, _Measured] = {}

    def ends(self, moving: Mapping[int, OffsetEntry], limits: Limits) -> dict[int, int]:
        """Return the seqnos up to which the partitions go that have a part in the next batch.

        Args:
            moving: entries within snapshots that leases hold, not at their ends.
            limits: of the batch.
        """
        lags = {p: entry.snap_end - entry.seqno for p, entry in moving.items()}
        is_within = limits.rows is None or sum(lags.values()) <= limits.rows
        if not moving or (limits.bytes is None and is_within):
            return {p: entry.snap_end for p, entry in moving.items()}
        self._measured = {p: known for p, known in self._measured.items() if p in moving}
        self._measure_missing(moving, limits)
        rests = {
            p: self._measured[p].rest(moving[p], limits)
            for p in sorted(moving, key=lambda p: (-lags[p], p))
        }
        return _taken(rests, limits)

    def _measure_missing(self, moving: Mapping[int, OffsetEntry], limits: Limits) -> None:
        rows = UINT64_MAX if limits.rows is None else max(1, limits.rows // len(moving))
        size = UINT64_MAX if limits.bytes is None else max(1, limits.bytes // len(moving))
        missing: dict[int, dict[int, int]] = {}
        for p, entry in moving.items():
            if not self._measured.get(p, _NOTHING).rest(entry, limits):
                assert entry.lease_id is not None
                missing.setdefault(entry.lease_id, {})[p] = entry.seqno
        for lease_id, after in missing.items():
            found = self._measure(lease_id, after, rows, size)
            for p, seqno in after.items():
                end = min(moving[p].snap_end, seqno + (1 if limits.rows is None else rows))
                pieces = found.get(p) or [Piece(end, end - seqno, 0)]  # its lease is lost
                self._measured[p] = _Measured(lease_id, limits, seqno, pieces)


def _taken(rests: Mapping[int, Sequence[Piece]], limits: Limits) -> dict[int, int]:
    """Take pieces in turns while they fit; return the last end by partition."""
    rows_left: float = inf if limits.rows is None else limits.rows
    bytes_left: float = inf if limits.bytes is None else limits.bytes
    ends: dict[int, int] = {}
    waiting = {p: iter(pieces) for p, pieces in rests.items()}
    while waiting:
        for p, pieces in list(waiting.items()):
            piece = next(pieces, None)
            fits = piece is not None and piece.rows <= rows_left and piece.bytes <= bytes_left
            if piece is None or (ends and not fits):
                del waiting[p]
                continue
            ends[p] = piece.end
            rows_left, bytes_left = rows_left - piece.rows, bytes_left - piece.bytes
    return ends
