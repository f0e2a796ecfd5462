"""Keeps a bucket within its memory quota: evicts in small steps, delays and refuses writes.

Invariants:
1. A step takes about `runtime.pace.STEP_S`. Other tasks get four times as long between two steps,
   and less the nearer memory is to the quota: at the quota one turn of the loop.
2. At the quota writes wait until there is room (`Memory.has_room`). If none could be made for
   `DELAY_S_MAX` they are refused until `Memory.is_high` is over. Acknowledged writes are not
   affected.
3. If only unpersisted documents could be evicted, the flusher flushes at once.
4. The cost of a check does not grow with the number of partitions. The memory of the queues is
   counted every `COUNT_INTERVAL_S` while there is activity.

Elsewhere: what is evicted (`kv.core.partition.eviction`), how a write is refused
(`kv.core.bucket`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from millstream.kv.core.bucket import Bucket
from millstream.kv.core.partition.eviction import Evictor
from millstream.kv.core.partition.memory import Memory
from millstream.runtime.pace import REST_FACTOR, Pace
from millstream.runtime.tasks import Tasks

__all__ = [
    "COUNT_INTERVAL_S",
    "DELAY_S_MAX",
    "MEMORY",
    "WAKE_MAX",
    "MemoryKeeper",
    "MemoryStatistics",
]

_LOG = logging.getLogger(__name__)
COUNT_INTERVAL_S: Final = 0.1
"""How often memory outside the hash tables is counted."""
DELAY_S_MAX: Final = 2.0
"""How long writes wait for room without a break; then they are refused."""
WAKE_MAX: Final = 16
"""Connections that continue in one turn of the loop after a delay: each may bring a full
buffer."""
MEMORY: Final = "memory"
"""Reason of refused writes: the quota is exhausted, and no room could be made."""


class MemoryStatistics(NamedTuple):
    """Statistics of one bucket; totals since it was opened, sizes in bytes."""

    quota_bytes: int
    used_bytes: int
    table_bytes: int
    resident_share: float
    evicted_total: int
    evicted_bytes_total: int
    delayed_total: int
    delayed_seconds_total: float
    exhausted_total: int
    is_refusing: bool
    longest_step_seconds: float


class MemoryKeeper:
    """The memory keeper of one bucket; started when created, ended by `stop`.

    Args:
        bucket: whose writes it may refuse.
        memory: what its partitions count.
        pending_bytes: returns the memory of the by-id map and the like for this bucket.
        known_keys: approximate number of keys in the log when the bucket was opened.
    """

    def __init__(
        self,
        bucket: Bucket,
        memory: Memory,
        pending_bytes: Callable[[], int] = lambda: 0,
        known_keys: int = 0,
    ) -> None:
        self._bucket = bucket
        self._memory = memory
        self._pending_bytes = pending_bytes
        self._known_keys = known_keys
        self._evictor = Evictor(bucket.partitions, memory)
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._timer: asyncio.TimerHandle | None = None
        self._is_evicting = False
        self._is_at_a_loss = False
        self._is_stopping = False
        self._delayed_since_s = 0.0
        self._delayed_total = self._exhausted_total = 0
        self._delayed_s = 0.0
        self._longest_step_s = 0.0
        bucket.subscribe(self.look)
        memory.on_high = self.look

    async def stop(self) -> None:
        """Stop evicting."""
        self._is_stopping = True
        self._bucket.unsubscribe(self.look)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._bucket.writes.is_delaying:
            self._end_delay()
        await self._tasks.stop()

    def look(self) -> None:
        """Memory has changed; O(1)."""
        if self._timer is None and not self._is_stopping:
            self._timer = self._loop.call_later(COUNT_INTERVAL_S, self._count)
        if self._memory.is_high and not self._is_at_a_loss:
            self._begin()

    def on_persisted(self) -> None:
        """More can be evicted than before."""
        self._is_at_a_loss = False
        self.look()

    def statistics(self) -> MemoryStatistics:
        """Return the current statistics."""
        memory, evictor = self._memory, self._evictor
        return MemoryStatistics(
            memory.quota_bytes, memory.used_bytes, memory.table_bytes, self._resident_share(),
            evictor.evicted_total, evictor.evicted_bytes,
            self._delayed_total, self._delayed_s, self._exhausted_total,
            MEMORY in self._bucket.writes.refusals, self._longest_step_s,
        )  # fmt: skip

    def _resident_share(self) -> float:
        """Return the share of documents and tombstones in memory; approximate after a rollback.

        After a purge, too.
        """
        residents = [partition.residents for partition in self._bucket.partitions]
        in_memory = sum(len(some.table) for some in residents)
        read_back = sum(some.read_back_total for some in residents)
        absent = max(0, self._known_keys + self._evictor.evicted_total - read_back)
        return in_memory / (in_memory + absent) if absent else 1.0

    # -- inside

    def _count(self) -> None:
        """Count the memory of the queues."""
        self._timer = None
        self._memory.other_bytes = self._pending_bytes() + sum(
            one.queue.bytes_beside + one.residents.departed_bytes
            for one in self._bucket.partitions
        )
        self._is_at_a_loss = False
        self._judge()
        if self._memory.is_high:
            self.look()

    def _begin(self) -> None:
        self._judge()
        if not self._is_evicting and not self._is_stopping:
            self._is_evicting = True
            self._tasks.start(self._evict(), name=f"evict {self._bucket.name}")

    def _judge(self) -> None:
        """Delay or refuse writes, or accept them again."""
        bucket, memory = self._bucket, self._memory
        if MEMORY in bucket.writes.refusals:
            if not memory.is_high:
                _LOG.info("bucket %s: accepts writes again", bucket.name)
                bucket.writes.accept(MEMORY)
        elif bucket.writes.is_delaying:
            if memory.has_room:
                self._end_delay()
            elif self._loop.time() - self._delayed_since_s >= DELAY_S_MAX:
                self._exhausted_total += 1
                _LOG.warning("bucket %s: its memory quota is exhausted", bucket.name)
                bucket.writes.refuse(MEMORY)
                self._end_delay()
        elif memory.is_exhausted and not self._is_stopping:
            self._delayed_total += 1
            self._delayed_since_s = self._loop.time()
            bucket.writes.delay()

    def _end_delay(self) -> None:
        self._delayed_s += self._loop.time() - self._delayed_since_s
        self._bucket.writes.end_delay()
        self._wake()

    def _wake(self) -> None:
        if self._bucket.writes.wake_waiting(WAKE_MAX):
            self._loop.call_soon(self._wake)

    async def _evict(self) -> None:
        try:
            await self._evict_down(Pace())
        finally:
            self._is_evicting = False

    async def _evict_down(self, pace: Pace) -> None:
        memory, evictor = self._memory, self._evictor
        while memory.used_bytes > memory.low_bytes:
            if not evictor.step() and not (memory.is_exhausted and evictor.press()):
                self._is_at_a_loss = True
                self._bucket.hurry()
                return
            self._judge()
            if pace.is_over:
                await pace.breathe(REST_FACTOR * (1 - memory.pressure))
                self._longest_step_s = max(self._longest_step_s, pace.longest_s)
