"""Long work on a bucket's documents, in small steps of the loop: expiry, and deleting all.

Every `EXPIRY_INTERVAL_S` the pager turns due documents into expirations, also those not in memory;
streams carry them like every change. If the index of expiries (`kv.core.partition.expiry`) does
not reach far enough, it is filled from a scan of the partition, log first.

Invariants:
1. A step takes about `runtime.pace.STEP_S`, and other tasks then get some four times as long.
2. Only active copies expire documents.
3. A wipe deletes the documents that existed when its time came, and answers once they are gone.
4. After `stop` nothing is read or changed.
5. The file `no-expiries` is in a bucket's directory only while no document in its log has an
   expiry. It is written at a clean stop, and removed, durably, before the first such document is
   accepted. With it a start needs no scan.

Elsewhere: what is due (`kv.core.partition.expiry`), checking a document
(`kv.core.partition.partition`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from millstream.errors import CorruptionError
from millstream.kv.aio.reading_back import with_documents
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.partition.expiry import (
    EXPIRIES_MAX,
    EXPIRIES_PER_PARTITION_MAX,
    FOREVER,
    Expiries,
    expiries_of,
)
from millstream.kv.core.partition.partition import Partition
from millstream.model.limits import STREAM_STEP_BYTES_MAX, STREAM_STEP_ITEMS_MAX
from millstream.model.partitions import PartitionState
from millstream.runtime.files import sync_directory, write_atomically
from millstream.runtime.pace import Pace
from millstream.runtime.tasks import Tasks

__all__ = ["EXPIRY_INTERVAL_S", "NoExpiries", "Pager"]

_LOG = logging.getLogger(__name__)
EXPIRY_INTERVAL_S: Final = 5.0
"""How often the pager looks for due documents."""
_SECOND_NS: Final = 1_000_000_000
_MARK: Final = "no-expiries"


class NoExpiries:
    """The file that says that no document of a bucket has an expiry; written outside the loop."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _MARK
        self.is_there = self._path.exists()

    def remove(self) -> None:
        """Remove the file durably; further calls cost nothing. Raises OSError."""
        if self.is_there:
            self._path.unlink(missing_ok=True)
            sync_directory(self._path.parent)
            self.is_there = False

    def write(self) -> None:
        """Write the file; nothing may change any more. Raises OSError."""
        if not self.is_there:
            write_atomically(self._path, b"")
            self.is_there = True


class PagerStatistics(NamedTuple):
    """Statistics of a pager."""

    expired_total: int
    index_keys: int
    unscanned_partitions: int
    scans_total: int
    scanned_changes_total: int


class Pager:
    """The pager of one bucket; started when created, ended by `stop`.

    Args:
        bucket: whose partitions get their indexes of expiries.
        now_ns: the clock, Unix time.
        mark: the file that tells whether a scan is needed.
        on_fatal: called if the file cannot be removed: nothing may be written any more.
        interval_s: between two checks.
    """

    def __init__(
        self,
        bucket: Bucket,
        *,
        now_ns: Callable[[], int],
        mark: NoExpiries,
        on_fatal: Callable[[Exception], None],
        interval_s: float = EXPIRY_INTERVAL_S,
    ) -> None:
        self._bucket = bucket
        self._now_ns = now_ns
        self._mark = mark
        self._on_fatal = on_fatal
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._stopping = asyncio.Event()
        self._wipe_timer: asyncio.TimerHandle | None = None
        self._scan_total = 0
        self._scanned_total = 0
        count_max = min(EXPIRIES_PER_PARTITION_MAX, EXPIRIES_MAX // bucket.partition_count)
        for partition in bucket.partitions:
            has_none = mark.is_there or partition.queue.high_seqno == 0
            partition.expiries = Expiries(count_max, is_complete=has_none)
            partition.expiries.on_first = self._on_first
        self._pager = self._tasks.start(self._run(), name=f"pager {bucket.name}")

    @property
    def knows_of_none(self) -> bool:
        """Return whether it is certain that no document has an expiry."""
        return all(
            partition.expiries.horizon == FOREVER and not len(partition.expiries)
            for partition in self._bucket.partitions
        )

    def statistics(self) -> PagerStatistics:
        """Return statistics of past and known future expirations."""
        partitions = self._bucket.partitions
        indexes = [partition.expiries for partition in partitions]
        return PagerStatistics(
            expired_total=sum(partition.expired_total for partition in partitions),
            index_keys=sum(map(len, indexes)),
            unscanned_partitions=sum(index.horizon == 0 for index in indexes),
            scans_total=self._scan_total,
            scanned_changes_total=self._scanned_total,
        )

    async def stop(self) -> None:
        """Stop the running work; a scheduled wipe does not take place."""
        self._stopping.set()
        if self._wipe_timer is not None:
            self._wipe_timer.cancel()
        await self._tasks.finish()

    def _on_first(self) -> None:
        """A document with an expiry is about to be written, or may have come back."""
        try:
            self._mark.remove()
        except OSError as error:
            self._on_fatal(error)

    # -- deleting everything

    def wipe(self, at_ns: int, done: Callable[[], None]) -> None:
        """Delete everything at a time; `done` is called once it is gone, or will be later.

        A later call replaces one whose time has not come.
        """
        if self._wipe_timer is not None:
            self._wipe_timer.cancel()
            self._wipe_timer = None
        wait_s = (at_ns - self._now_ns()) / _SECOND_NS
        if wait_s <= 0:
            self._begin_wipe(done)
        else:
            self._wipe_timer = self._loop.call_later(wait_s, self._begin_wipe, _nobody_waits)
            done()

    def _begin_wipe(self, done: Callable[[], None]) -> None:
        self._wipe_timer = None
        self._tasks.start(self._wipe(done), name=f"wipe {self._bucket.name}")

    async def _wipe(self, done: Callable[[], None]) -> None:
        pace = Pace()
        try:
            for delete in self._bucket.wiping():
                await with_documents(delete)
                if pace.is_over:
                    self._bucket.changed()
                    await pace.breathe()
                    if self._stopping.is_set():
                        return
        except CorruptionError:
            return  # the reader has reported it, the bucket is being stopped
        self._bucket.changed()
        done()

    # -- expiring

    async def _run(self) -> None:
        try:
            while not await self._is_stopped_within(self._interval_s):
                await self._fill_indexes()
                await self._expire()
        except CorruptionError as error:
            _LOG.warning(
                "bucket %s: removing expired documents has stopped: %s", self._name, error
            )
        except _Stopped:
            return

    @property
    def _name(self) -> str:
        return self._bucket.name

    async def _is_stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True

    def _active(self) -> list[Partition]:
        partitions = self._bucket.partitions
        return [p for p in partitions if p.state == PartitionState.ACTIVE]

    async def _expire(self) -> None:
        """Turn due documents into expirations."""
        pace, has_changes = Pace(), False
        for partition in self._active():
            while (key := self._next_due(partition)) is not None:
                has_changes |= await with_documents(partial(partition.expire, key, self._now_ns()))
                if pace.is_over:
                    if has_changes:
                        self._bucket.changed()
                    await self._rest(pace)
                    has_changes = False
        if has_changes:
            self._bucket.changed()

    def _next_due(self, partition: Partition) -> bytes | None:
        if partition.refusal is not None or partition.unserved:
            return None  # it stays in the index
        return partition.expiries.next_due(self._now_ns() // _SECOND_NS)

    async def _fill_indexes(self) -> None:
        for partition in self._active():
            soon_s = int(self._now_ns() // _SECOND_NS + 2 * self._interval_s)
            if partition.expiries.needs_scan(soon_s):
                await self._scan(partition)

    async def _scan(self, partition: Partition) -> None:
        """Add all documents of a partition to its index; stops if the partition changes."""
        pace, expiries = Pace(), partition.expiries
        expiries.begin_scan()
        at, after, epoch = partition.high_seqno, 0, partition.epoch
        try:
            while after < at:
                if partition.epoch != epoch:
                    expiries.forget()
                    return
                taken = partition.memory_slice(
                    after, at, STREAM_STEP_BYTES_MAX, STREAM_STEP_ITEMS_MAX
                )
                if taken is None:
                    after = await self._scan_log(partition, after, at, pace)
                else:
                    frames, after = taken
                    await self._show(expiries, frames, pace)
        except BaseException:  # also when cancelled: half a scan is none
            expiries.forget()
            raise
        self._scan_total += 1

    async def _scan_log(self, partition: Partition, after: int, at: int, pace: Pace) -> int:
        chunks = partition.backfill(after, at)
        while True:
            chunk = await self._loop.run_in_executor(None, next, chunks, None)
            pace.restart()
            if chunk is None:
                return after
            frames, after = chunk
            await self._show(partition.expiries, frames, pace)

    async def _show(self, expiries: Expiries, frames: list[bytes], pace: Pace) -> None:
        self._scanned_total += len(frames)
        for key, expiry in expiries_of(frames):
            expiries.add(key, expiry)
        await self._rest(pace)

    async def _rest(self, pace: Pace) -> None:
        await pace.breathe()
        if self._stopping.is_set():
            raise _Stopped


class _Stopped(Exception):
    """The pager is being stopped during its work."""


def _nobody_waits() -> None: ...
