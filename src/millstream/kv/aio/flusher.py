"""The flusher: group commits of a bucket's changes to its log.

A commit takes of every partition what is not in the log yet, up to the present high, and makes it
durable with one write and one fdatasync.

Invariants:
1. One commit is under way at a time; its batches were frozen together in one step of the loop.
2. Nobody is told that a write is persisted before the fdatasync of its commit returned.
3. An error of the disk is fatal: `on_fatal` is called once and nothing is flushed afterwards.

Source: mutation queue paper; UPR design paper, "How items in the partition write queue flow".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from millstream.errors import UnavailableError
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.partition import Partition
from millstream.storage.core.store import EncodedCommit, FlushBatch, LogStore

__all__ = [
    "BY_ID_CHANGES_MAX",
    "COMMIT_CHANGES_MAX",
    "DISK_FULL_SECONDS_MAX",
    "Flusher",
]

_LOG = logging.getLogger(__name__)
BY_ID_CHANGES_MAX: Final = 1_000_000
"""Changes the by-id map lags behind the log, at which it is brought up to date: what a start
replays, and some 100 bytes of memory each."""
COMMIT_CHANGES_MAX: Final = 4096
"""Changes after which a commit takes no further partition: encoding blocks the loop meanwhile."""
DISK_FULL_SECONDS_MAX: Final = 60
"""How long writes wait for space before the node stops."""


class Flusher:
    """Writes one bucket's changes; subscribes to the bucket itself."""

    def __init__(
        self,
        bucket: Bucket,
        store: LogStore,
        *,
        interval_ms: int,
        on_persisted: Callable[[], None],
        on_fatal: Callable[[Exception], None],
    ) -> None:
        self._bucket = bucket
        self._store = store
        self._interval_s = interval_ms / 1000
        self._on_persisted = on_persisted
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"flush {bucket.name}")
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._applying: asyncio.Task[None] | None = None
        self._is_hurried = False
        self.has_failed = False
        """The disk failed: nothing is flushed any more, there must be no receipt."""
        self._waiters: list[tuple[Partition, int, asyncio.Future[None]]] = []
        self.commit_total = 0
        self.change_total = 0
        self._turn = 0
        bucket.subscribe(self.wake)
        bucket.hurry = self.hurry

    def wake(self) -> None:
        """Something changed: flush within the interval."""
        if self._timer is None and self._task is None and not self.has_failed:
            self._timer = self._loop.call_later(self._interval_s, self._start)

    def hurry(self) -> None:
        """Somebody waits for the disk: flush as soon as the present step of the loop is done."""
        if not self._is_hurried:
            self._is_hurried = True
            if self._task is None and not self.has_failed:
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = self._loop.call_later(0, self._start)

    async def until_persisted(self, partition_id: int, seqno: int) -> None:
        """Return once everything of the partition up to `seqno` is durable."""
        partition = self._bucket.partitions[partition_id]
        if partition.persisted_seqno < seqno:
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append((partition, seqno, future))
            self.hurry()
            await future

    async def stop(self) -> None:
        """Flush everything and bring the by-id map up to date; nothing may change any more."""
        self._bucket.unsubscribe(self.wake)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while (running := self._task or self._applying) is not None:
            await asyncio.wait([running])
        while not self.has_failed and self._is_dirty():
            await self._commit()
        if not self.has_failed:
            await self._in_thread(self._store.commit_by_id)
        self._thread.shutdown()

    # -- inside

    def _is_dirty(self) -> bool:
        return any(p.queue.high_seqno != p.queue.frozen_seqno for p in self._bucket.partitions)

    def _start(self) -> None:
        self._timer = None
        self._task = self._loop.create_task(self._run(), name=f"flush {self._bucket.name}")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._fail(error)
        elif self._is_dirty():
            urge, self._is_hurried = self.hurry if self._is_hurried else self.wake, False
            urge()

    def _fail(self, error: Exception) -> None:
        if self.has_failed:
            return
        self.has_failed = True
        _LOG.critical("bucket %s cannot be written: %s", self._bucket.name, error)
        for _, _, future in self._waiters:
            if not future.done():
                future.set_exception(error)
        self._waiters.clear()
        self._on_fatal(error)

    async def _run(self) -> None:
        is_more = True
        while is_more or self._is_hurried:
            self._is_hurried = False
            is_more = await self._commit()
            self._apply_by_id()

    def _apply_by_id(self) -> None:
        """Bring the by-id map up to date beside the commits, if it lags far enough behind."""
        lags = self._store.count_pending_by_id() >= BY_ID_CHANGES_MAX
        if lags and self._applying is None:
            self._applying = self._loop.create_task(
                self._apply_steps(), name=f"by-id {self._bucket.name}"
            )
            self._applying.add_done_callback(self._applied)

    async def _apply_steps(self) -> None:
        for _ in self._store.by_id_steps(self._store.take_by_id()):
            await asyncio.sleep(0)

    def _applied(self, task: asyncio.Task[None]) -> None:
        self._applying = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._fail(error)

    def _next_partitions(self) -> tuple[list[Partition], bool]:
        """Return the partitions of the next commit, and whether some must wait for another.

        Their turns go round, so that none waits for ever behind busier ones.
        """
        everyone = self._bucket.partitions
        turns = everyone[self._turn :] + everyone[: self._turn]
        chosen: list[Partition] = []
        count = 0
        for partition in turns:
            queue = partition.queue
            if queue.high_seqno != queue.frozen_seqno:
                if count >= COMMIT_CHANGES_MAX:
                    self._turn = partition.partition_id
                    return chosen, True
                chosen.append(partition)
                count += queue.high_seqno - queue.frozen_seqno
        return chosen, False

    async def _commit(self) -> bool:
        """Make one group commit; return whether more is waiting than one may take."""
        partitions, is_more = self._next_partitions()
        if not partitions:
            return False
        batches = [_batch(partition) for partition in partitions]
        frozen = [partition.queue.frozen_seqno for partition in partitions]
        count = sum(len(batch.frames) for batch in batches)
        commit = self._store.encode(batches)
        await self._append(commit, is_lone=count == 1 and self._store.is_quick(commit))
        self._store.absorb(commit)
        for partition, seqno in zip(partitions, frozen, strict=True):
            partition.persisted(seqno)
        self.commit_total += 1
        self.change_total += count
        self._release()
        return is_more

    async def _append(self, commit: EncodedCommit, *, is_lone: bool) -> None:
        """Append; while the disk is full try again each second, nothing was written.

        A lone record costs less in the loop than the way to a thread and back.
        """
        for attempt in range(DISK_FULL_SECONDS_MAX + 1):
            try:
                if is_lone:
                    self._store.append(commit)
                else:
                    await self._in_thread(self._store.append, commit)
                return
            except UnavailableError as error:
                if error.code != "disk_full" or attempt == DISK_FULL_SECONDS_MAX:
                    raise
                _LOG.error("bucket %s: %s; its writes wait", self._bucket.name, error)
                await asyncio.sleep(1)

    def _release(self) -> None:
        waiting = []
        for partition, seqno, future in self._waiters:
            if partition.persisted_seqno < seqno:
                waiting.append((partition, seqno, future))
            elif not future.done():
                future.set_result(None)
        self._waiters = waiting
        self._on_persisted()

    async def _in_thread(self, function: Callable[..., None], *arguments: object) -> None:
        await self._loop.run_in_executor(self._thread, function, *arguments)


def _batch(partition: Partition) -> FlushBatch:
    return FlushBatch(partition.partition_id, *partition.freeze())
