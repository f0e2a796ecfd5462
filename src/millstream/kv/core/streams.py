"""The connections that stream a bucket's changes, and totals of closed ones.

Elsewhere: the streams (`upr.core.producer`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, Protocol

from millstream.kv.core.statistics import Readers
from millstream.upr.core.producer import Rollback, StreamFigures
from millstream.upr.core.shared_slices import SharedSlices

__all__ = ["ROLLBACKS_MAX", "BucketStreams", "Streaming"]

ROLLBACKS_MAX: Final = 100
"""Rollbacks of closed connections that are remembered."""


class Streaming(Protocol):
    """A connection that streams."""

    def figures(self) -> StreamFigures:
        """Return the progress of its streams."""

    def statistics(self) -> list[tuple[str, str]]:
        """Return what STAT `dcp` shows of it."""

    since_ms: int
    last_rollback: Rollback | None

    def positions(self) -> Iterator[tuple[int, str, int, int, int, int | None]]:
        """Yield what `Producer.positions` does."""

    def progress(self, partition_id: int) -> tuple[str, int] | None:
        """Return the state of a partition's stream in a word, and its seqno."""


class BucketStreams:
    """The streaming connections of one bucket."""

    def __init__(self) -> None:
        self.by_name: dict[str, Streaming] = {}
        """By the name that each connection has given itself."""
        self.past_rollbacks: deque[tuple[str, Rollback]] = deque(maxlen=ROLLBACKS_MAX)
        """Names and last rollbacks of closed connections."""
        self._sent_bytes_before = 0
        """Bytes sent by closed connections."""
        self._stuck_total = self._dead_total = 0
        self._shared_slices = SharedSlices()

    def ended(self, name: str, stream: Streaming) -> None:
        """A streaming connection was closed."""
        figures = stream.figures()
        self._sent_bytes_before += figures.sent_bytes
        self._stuck_total += figures.is_stuck
        self._dead_total += figures.is_dead
        if stream.last_rollback is not None:
            self.past_rollbacks.append((name, stream.last_rollback))
        if self.by_name.get(name) is stream:
            del self.by_name[name]
        if len(self.by_name) <= 1:
            self._shared_slices.clear()

    @property
    def shared_slices(self) -> SharedSlices | None:
        """See `BucketSource.shared_slices`."""
        return self._shared_slices if len(self.by_name) > 1 else None

    def figures(self) -> Readers:
        """Return the statistics of all readers."""
        figures = [stream.figures() for stream in self.by_name.values()]
        return Readers(
            connections=len(figures),
            streams=sum(one.streams for one in figures),
            backfilling=sum(one.backfilling for one in figures),
            lag=max((one.lag for one in figures), default=0),
            unacked_bytes=sum(one.unacked_bytes for one in figures),
            sent_bytes_total=self._sent_bytes_before + sum(one.sent_bytes for one in figures),
            stuck_total=self._stuck_total,
            dead_total=self._dead_total,
        )
