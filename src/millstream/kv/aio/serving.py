"""Watches over the rights of a bucket's active copies: closes them in time, and logs changes.

Invariants:
1. What may not be served any longer is closed at its time, whether or not requests come.
2. A change of the number of isolated copies is logged once per turn of the loop.

Elsewhere: the rights (`kv.core.serving`), requests that look by themselves
(`kv.aio.connection`, `kv.core.copies.active`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from millstream.kv.core.bucket import Bucket
from millstream.kv.core.serving import NEVER_MS

__all__ = ["ServingWatch"]

_LOG = logging.getLogger(__name__)


class ServingStatistics(NamedTuple):
    """Statistics of the rights to serve."""

    isolated_partitions: int
    isolated_total: int


class ServingWatch:
    """The watch over one bucket; ended by `stop`."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_scheduled = False
        self._known: frozenset[int] = frozenset()
        """Isolated copies, as they were last logged."""
        self._isolated_total = 0
        bucket.serving.on_news = self._on_news
        self._on_news()

    def statistics(self) -> ServingStatistics:
        """Return how many active copies may not serve now, and how often that happened."""
        return ServingStatistics(len(self._bucket.serving.isolated), self._isolated_total)

    def stop(self) -> None:
        """Watch no more."""
        self._bucket.serving.on_news = lambda: None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_news(self) -> None:
        """Called for single partitions: what follows is done once per turn of the loop."""
        if not self._is_scheduled and self._bucket.is_managed:
            self._is_scheduled = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._is_scheduled = False
        bucket = self._bucket
        bucket.look_at_rights()
        self._tell(frozenset(bucket.serving.isolated))
        next_ms = bucket.serving.next_change_ms
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if next_ms != NEVER_MS:
            wait_s = max(0, next_ms - bucket.now_ms()) / 1000
            self._timer = self._loop.call_later(wait_s, self._look)

    def _tell(self, isolated: frozenset[int]) -> None:
        new, gone = isolated - self._known, self._known - isolated
        self._known = isolated
        self._isolated_total += len(new)
        name = self._bucket.name
        if new:
            _LOG.warning(
                "bucket %s: %d partitions are isolated, and serve %s: no lease of the "
                "coordination service, no contact with a majority of their copies",
                name, len(new), self._bucket.serving.isolated_serve,
            )  # fmt: skip
        served = sum(not self._bucket.partitions[p].refusal for p in gone)
        if served:
            _LOG.warning("bucket %s: %d partitions serve again", name, served)
