"""Which segments are worth rewriting: pure decisions from what they hold.

Dead is what no reader may ask for: marked superseded, or killed by a rollback.

Invariants:
1. A run is a row of neighbours whose live records fit into one segment.
2. While more than `DEAD_SHARE_KEPT` of the live bytes are dead there is a run to rewrite, unless
   all that has dead records was rewritten already.
3. There are at most `SEGMENTS_BASE_MAX` sealed segments and twice as many as full ones would be,
   as far as neighbours fit into one.

Elsewhere: what is dead (`marking`), the rewriting (`compaction`), when to look (`kv.aio`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

__all__ = [
    "DEAD_SHARE_KEPT",
    "DEAD_SHARE_MAX",
    "RUN_SEGMENTS_MAX",
    "SEGMENTS_BASE_MAX",
    "SegmentCounts",
    "choose_run",
    "is_due",
]

DEAD_SHARE_MAX: Final = 0.5
"""Dead bytes, as a share of the live ones, at which compaction begins."""
DEAD_SHARE_KEPT: Final = 0.2
"""Down to which it goes on: less would copy much to gain little."""
RUN_SEGMENTS_MAX: Final = 32
"""Segments rewritten as one."""
SEGMENTS_BASE_MAX: Final = 32
_SMALL_SHARE: Final = 8
"""A neighbour not larger than this part of a full segment comes along."""


class SegmentCounts(NamedTuple):
    """What a sealed segment holds; `tombstones`: deletions among the records that are not dead."""

    number: int
    bytes: int
    dead_bytes: int
    changes: int
    dead: int
    tombstones: int

    @property
    def live_bytes(self) -> int:
        """What a rewriting would leave, about."""
        return self.bytes - self.dead_bytes


def is_due(live_bytes: int, dead_bytes: int, slack_bytes: int) -> bool:
    """Return whether so much is dead that compaction should begin."""
    return dead_bytes > DEAD_SHARE_MAX * live_bytes + slack_bytes


def choose_run(
    segments: Sequence[SegmentCounts],
    bytes_max: int,
    done: Collection[int] = (),
    kept_share: float = DEAD_SHARE_KEPT,
) -> list[int]:
    """Return the numbers of the run to rewrite next, none if all is well.

    Args:
        segments: the sealed ones that may be rewritten, in log order, without gaps.
        bytes_max: of a full segment.
        done: those that were rewritten just now.
        kept_share: of the live bytes, so much that is dead is left.
    """
    dead, live = sum(s.dead_bytes for s in segments), sum(s.live_bytes for s in segments)
    waiting = [at for at, s in enumerate(segments) if s.dead_bytes and s.number not in done]
    begin = end = 0
    if waiting and dead > kept_share * live:
        worst = max(waiting, key=lambda at: segments[at].dead_bytes / segments[at].bytes)
        begin, end = _widened(segments, worst, bytes_max)
    elif len(segments) > SEGMENTS_BASE_MAX + 2 * (dead + live) // bytes_max:
        begin, end = _cheapest(segments, bytes_max)
    return [segment.number for segment in segments[begin:end]]


def _widened(segments: Sequence[SegmentCounts], at: int, bytes_max: int) -> tuple[int, int]:
    """Take along neighbours that are mostly dead, or small, as far as all fits."""
    begin, end, live = at, at + 1, segments[at].live_bytes
    while end - begin < RUN_SEGMENTS_MAX:
        fitting = [
            at
            for at in (begin - 1, end)
            if 0 <= at < len(segments)
            and live + segments[at].live_bytes <= bytes_max
            and segments[at].live_bytes <= max(segments[at].dead_bytes, bytes_max // _SMALL_SHARE)
        ]
        if not fitting:
            break
        best = min(fitting, key=lambda at: segments[at].live_bytes)
        begin, end = min(begin, best), max(end, best + 1)
        live += segments[best].live_bytes
    return begin, end


def _cheapest(segments: Sequence[SegmentCounts], bytes_max: int) -> tuple[int, int]:
    """Return the row that takes the least copying for each segment it saves."""
    best, cost = (0, 0), float("inf")
    for begin in range(len(segments)):
        live = segments[begin].live_bytes
        for end in range(begin + 2, min(begin + RUN_SEGMENTS_MAX, len(segments)) + 1):
            live += segments[end - 1].live_bytes
            if live > bytes_max:
                break
            if live / (end - begin - 1) < cost:
                best, cost = (begin, end), live / (end - begin - 1)
    return best
