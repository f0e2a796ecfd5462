"""The flusher: group commits of a bucket's changes to its log.

A commit takes all unwritten changes of every partition, up to the present high, writes them, and
makes them durable with one fdatasync: in the flush thread, or in the loop if a write waits for it
and the disk is fast.

Invariants:
1. One commit runs at a time, also while the flusher is being stopped.
2. A write is reported as persisted only after the fdatasync of its commit returned.
3. An error of the disk is fatal: `on_fatal` is called once and nothing is flushed afterwards.
4. While it is `paused`, no commit and no application of by-id runs, except those that the pausing
   task requests.
5. Slow appends in the loop take at most a tenth of its time.

Elsewhere: what a commit takes and which waiters are notified (`kv.core.flush`).

Source: mutation queue paper; UPR design paper, "How items in the partition write queue flow".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from millstream.errors import MillstreamError, UnavailableError
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.flush import FlushPlan
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.statistics import COUNTS, SECONDS, Histogram
from millstream.runtime.pace import Pace
from millstream.storage.core.commit import Changes
from millstream.storage.core.store import EncodedCommit, LogStore

__all__ = [
    "BY_ID_CHANGES_MAX",
    "DISK_FULL",
    "DISK_FULL_SECONDS_MAX",
    "DISK_FULL_STOP_SECONDS_MAX",
    "GATHER_SHARE",
    "GATHER_S_MAX",
    "QUICK_APPEND_BYTES_MAX",
    "QUICK_APPEND_S_MAX",
    "QUICK_ENCODE_BYTES_MAX",
    "SLOW_APPEND_PAUSE",
    "SLOW_APPEND_PAUSE_MAX",
    "Flusher",
]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)
BY_ID_CHANGES_MAX: Final = 1_000_000
"""Changes the by-id map lags behind the log, at which it is brought up to date: a start replays
them, and they take some 100 bytes of memory each."""
DISK_FULL_SECONDS_MAX: Final = 10
"""How long accepted durable writes wait for space before they are answered as ambiguous; other
writes are refused meanwhile."""
DISK_FULL_STOP_SECONDS_MAX: Final = 10
"""How long a bucket that is being stopped waits for space: the supervisor waits no longer."""
DISK_FULL: Final = "disk_full"
"""Reason of refused writes: there is no space for accepted ones. Also the code of that error."""
GATHER_SHARE: Final = 4
"""The next commit waits for the writes of clients answered by the last one, for the last one's
duration divided by this. Otherwise two halves of the clients alternate, and wait for two syncs
each."""
GATHER_S_MAX: Final = 0.002
"""The longest such wait."""
QUICK_APPEND_BYTES_MAX: Final = 256 * 1024
"""Bytes of a commit that is appended in the loop: switching to a thread and back costs more."""
QUICK_ENCODE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of a commit that is encoded in the loop: checksums of more take longer than 1 ms."""
QUICK_APPEND_S_MAX: Final = 0.001
"""Duration of an append on a fast disk; only after such a one is another made in the loop."""
SLOW_APPEND_PAUSE: Final = 10
"""After a slower append, all are made in the thread, for this multiple of its duration."""
SLOW_APPEND_PAUSE_MAX: Final = 1000
"""Upper bound of that multiple: it doubles while the next append in the loop is slow, too."""


class FlusherStatistics(NamedTuple):
    """Statistics of a flusher."""

    commits_total: int
    changes_total: int
    bytes_total: int
    commit_changes: Histogram
    commit_seconds: Histogram
    disk_full_total: int
    by_id_pending: int


class Flusher:
    """Writes one bucket's changes; subscribes to the bucket itself."""

    def __init__(
        self,
        bucket: Bucket,
        store: LogStore,
        *,
        interval_ms: int,
        by_id_changes_max: int = BY_ID_CHANGES_MAX,
        on_persisted: Callable[[], None],
        on_fatal: Callable[[Exception], None],
    ) -> None:
        self._bucket = bucket
        self._by_id_changes_max = min(by_id_changes_max, BY_ID_CHANGES_MAX)
        self._store = store
        self._interval_s = interval_ms / 1000
        self._on_persisted = on_persisted
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"flush {bucket.name}")
        self._on_changes: Callable[[Changes], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._applying: asyncio.Task[None] | None = None
        self._sealing: asyncio.Task[None] | None = None
        self._must_seal_again = False
        self._is_hurried = False
        self._is_stopping = False
        self._pause = asyncio.Lock()
        self.has_failed = False
        """The disk failed: nothing is flushed any more, and no receipt may be written."""
        self._plan: FlushPlan[asyncio.Future[None]] = FlushPlan(bucket.partitions)
        self.commit_total = 0
        self.change_total = 0
        self._bytes_total = 0
        self._disk_full_total = 0
        self._commit_changes = Histogram(COUNTS)
        self._commit_seconds = Histogram(SECONDS)
        self._last_s = 0.0
        self._is_quick_from_s = 0.0
        self._slow_pause = SLOW_APPEND_PAUSE
        bucket.subscribe(self.wake)

    def wake(self) -> None:
        """There are changes: flush within the interval."""
        if self._timer is None and self._task is None and self._may_start():
            self._timer = self._loop.call_later(self._interval_s, self._start)

    def hurry(self) -> None:
        """A write waits for the disk: flush at the end of the present step of the loop."""
        if not self._is_hurried:
            self._is_hurried = True
            if self._task is None and self._may_start():
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = self._loop.call_later(0, self._start)

    async def until_persisted(self, partition_id: int, seqno: int) -> None:
        """Return once everything of the partition up to `seqno` is durable.

        Raises:
            UnavailableError: `disk_failed`, it will not be.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        if self._plan.wait(partition_id, seqno, future):
            if self.has_failed:
                self._plan.abandon()
                raise UnavailableError("the disk failed earlier; restart", code="disk_failed")
            self.hurry()
            await future

    async def stop(self) -> None:
        """Flush everything and bring the by-id map up to date; nothing may change any more.

        An error of the disk is reported as usual; see `has_failed`.
        """
        self._is_stopping = True
        self._bucket.unsubscribe(self.wake)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        async with self._pause:
            await self._stop()
        if self._sealing is not None:
            await asyncio.wait([self._sealing])

    async def _stop(self) -> None:
        await self._until_idle()
        try:
            while not self.has_failed and self._plan.is_dirty():
                await self._commit()
            if not self.has_failed:
                await self._in_thread(self._store.commit_by_id)
        except (MillstreamError, OSError) as error:
            self.fail(error)
        self._thread.shutdown()

    # -- exclusive use of the log

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Within this context no commit and no application of by-id runs; changes wait.

        Raises:
            UnavailableError: `disk_failed`; `stopping`: the bucket is being stopped.
        """
        async with self._pause:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            await self._until_idle()
            if self.has_failed:
                raise UnavailableError("the disk failed earlier; restart", code="disk_failed")
            if self._is_stopping:
                raise UnavailableError("the bucket is being stopped; retry", code="stopping")
            try:
                yield
            finally:
                self._loop.call_soon(self._go_on)

    async def flush(self, partition: Partition) -> None:
        """Make a partition's changes durable; only while paused, and while it takes no change.

        Raises:
            UnavailableError: the disk failed, or the bucket is being stopped while it is full;
                nothing is flushed then.
        """
        try:
            while partition.is_dirty:
                await self._commit()
        except (MillstreamError, OSError) as error:
            self.fail(error)
            raise

    async def flush_all(self) -> None:
        """Return once every change made before is in the log, or was replaced before that.

        Raises:
            UnavailableError: as `paused`; the disk failed, or the bucket is being stopped while it
                is full.
        """
        partitions = self._bucket.partitions
        highs = [partition.high_seqno for partition in partitions]
        async with self.paused():
            try:
                while any(
                    p.queue.frozen_seqno < min(high, p.queue.high_seqno)
                    for p, high in zip(partitions, highs, strict=True)
                ):
                    await self._commit()
            except (MillstreamError, OSError) as error:
                self.fail(error)
                raise

    async def in_thread(
        self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Call a function of the store in the flush thread; only while paused.

        Raises:
            UnavailableError: `disk_full`: nothing was written; `disk_failed`.
        """
        call = partial(function, *args, **kwargs)
        try:
            return await self._loop.run_in_executor(self._thread, call)
        except (MillstreamError, OSError) as error:
            if not (isinstance(error, UnavailableError) and error.code == "disk_full"):
                self.fail(error)
            raise

    def undone(self, partition: Partition) -> None:
        """Notify the waiters for changes that a rollback removed; only while paused."""
        for future in self._plan.undone(partition):
            if not future.done():
                message = f"partition {partition.partition_id} was rolled back: write it again"
                future.set_exception(UnavailableError(message, code="rolled_back"))
        self._on_persisted()

    def _go_on(self) -> None:
        """Start again after a pause, or where a commit left changes."""
        if self._task is None and not self._pause.locked():
            is_hurried, self._is_hurried = self._is_hurried, False
            if self._plan.is_dirty():
                (self.hurry if is_hurried else self.wake)()

    def statistics(self) -> FlusherStatistics:
        """Return the statistics of commits."""
        return FlusherStatistics(
            commits_total=self.commit_total,
            changes_total=self.change_total,
            bytes_total=self._bytes_total,
            commit_changes=self._commit_changes,
            commit_seconds=self._commit_seconds,
            disk_full_total=self._disk_full_total,
            by_id_pending=self._store.count_pending_by_id(),
        )

    # -- inside

    async def _until_idle(self) -> None:
        while (running := self._task or self._applying) is not None:
            await asyncio.wait([running])

    def _may_start(self) -> bool:
        return not (self.has_failed or self._is_stopping or self._pause.locked())

    def _start(self) -> None:
        self._timer = None
        self._task = self._loop.create_task(self._run(), name=f"flush {self._bucket.name}")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.fail(error)
        else:
            self._go_on()

    def fail(self, error: Exception) -> None:
        """End the writing for good: waiters are notified, and `on_fatal` is called, once."""
        if self.has_failed:
            return
        self.has_failed = True
        _LOG.critical("bucket %s cannot be written: %s", self._bucket.name, error)
        for future in self._plan.abandon():
            if not future.done():
                future.set_exception(error)
        self._on_fatal(error)

    async def _run(self) -> None:
        is_more, somebody_waits = True, False
        while (is_more or self._is_hurried) and not self._pause.locked():
            somebody_waits = self._is_hurried or (is_more and somebody_waits)
            self._is_hurried = False
            is_more = await self._commit(somebody_waits=somebody_waits)
            self._apply_by_id()
            if is_more:
                await asyncio.sleep(0)  # one commit takes as much of the loop as one step may
            elif self._is_hurried:
                await asyncio.sleep(min(self._last_s / GATHER_SHARE, GATHER_S_MAX))

    def follow(self, on_changes: Callable[[Changes], None]) -> None:
        """Subscribe a function to the log's records of a partition; one at a time."""
        self._on_changes = on_changes

    def catch_up(self) -> None:
        """Apply to the by-id map what a start read in the log, so that the next start need not."""
        self._apply_by_id(1)
        self.seal_by_id()

    async def bring_by_id_up(self) -> None:
        """Bring the by-id map up to the present end of the log."""
        await self.until_by_id_rests()
        self._apply_by_id(1)
        await self.until_by_id_rests()

    async def until_by_id_rests(self) -> None:
        """Return once no application of by-id runs, nor a pause in which one might run."""
        while self._applying is not None or self._pause.locked():
            if self._applying is not None:
                await asyncio.wait([self._applying])
            async with self._pause:
                pass

    def _apply_by_id(self, changes_min: int | None = None) -> None:
        """Bring the by-id map up to date in parallel with commits, if it lags enough."""
        changes_min = self._by_id_changes_max if changes_min is None else changes_min
        lags = self._store.count_pending_by_id() >= changes_min
        if lags and self._applying is None:
            self._applying = self._loop.create_task(
                self._apply_steps(), name=f"by-id {self._bucket.name}"
            )
            self._applying.add_done_callback(self._applied)

    async def _apply_steps(self) -> None:
        """Apply pending changes; while the disk is full retry, including newer ones."""
        for second in count():
            try:
                pace = Pace()
                for _ in self._store.by_id_steps(self._store.take_by_id()):
                    await pace.breathe(0)
                return
            except UnavailableError as error:
                await self._wait_for_space(error, second)

    def _applied(self, task: asyncio.Task[None]) -> None:
        self._applying = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.fail(error)
        else:
            self.seal_by_id()

    def seal_by_id(self) -> None:
        """Let the next start verify the pages of the by-id map, once they are unchanged."""
        if self._sealing is not None:
            self._must_seal_again = True
        elif not (self._applying or self.has_failed or self._is_stopping):
            self._sealing = self._loop.create_task(self._seal(), name=f"seal {self._bucket.name}")
            self._sealing.add_done_callback(self._sealed)

    async def _seal(self) -> None:
        with suppress(OSError):
            self._store.seal_by_id(await asyncio.to_thread(self._store.checksum_by_id))

    def _sealed(self, _: asyncio.Task[None]) -> None:
        self._sealing = None
        if self._must_seal_again:  # the pages may have changed meanwhile
            self._must_seal_again = False
            self.seal_by_id()

    async def _commit(self, *, somebody_waits: bool = False) -> bool:
        """Make one group commit; return whether more is waiting than one may take."""
        began_s = perf_counter()
        commit = self._plan.freeze(self._last_s)
        if commit is None:
            return False
        if commit.frame_bytes <= QUICK_ENCODE_BYTES_MAX:
            encoded = self._store.encode(commit.batches)
        else:
            encoded = await self._in_thread(self._store.encode, commit.batches)
        commit.batches.clear()  # the frames are still in the processor's cache
        await self._append(encoded, in_loop=somebody_waits and self._is_quick(encoded))
        self._last_s = perf_counter() - began_s
        self._store.absorb(encoded)
        if self._on_changes is not None:
            for piece in encoded.pieces:
                if isinstance(piece, Changes):
                    self._on_changes(piece)
        self.commit_total += 1
        self.change_total += commit.changes
        self._bytes_total += encoded.size
        self._commit_changes.observe(commit.changes)
        self._commit_seconds.observe(self._last_s)
        for future in self._plan.persisted(commit):
            if not future.done():
                future.set_result(None)
        self._on_persisted()
        return commit.is_more

    def _is_quick(self, commit: EncodedCommit) -> bool:
        """Return whether an append in the loop costs less than switching to a thread and back."""
        return (
            commit.size <= QUICK_APPEND_BYTES_MAX
            and perf_counter() >= self._is_quick_from_s
            and self._store.is_quick(commit)
        )

    async def _append(self, commit: EncodedCommit, *, in_loop: bool) -> None:
        """Append; while the disk is full refuse writes and retry each second."""
        bucket = self._bucket
        for second in count():
            try:
                if in_loop:
                    self._append_in_loop(commit)
                else:
                    await self._in_thread(self._store.append, commit)
            except UnavailableError as error:
                if error.code == DISK_FULL:
                    bucket.writes.refuse(DISK_FULL)
                    if second == DISK_FULL_SECONDS_MAX:
                        bucket.give_up_waiting()
                        self._on_persisted()
                await self._wait_for_space(error, second)
            else:
                if second:
                    bucket.writes.accept(DISK_FULL)
                return

    def _append_in_loop(self, commit: EncodedCommit) -> None:
        """Append, and measure the speed of the disk.

        The thread cannot measure it: with a busy loop it waits for the interpreter's lock.
        """
        began_s = perf_counter()
        self._store.append(commit)
        took_s = perf_counter() - began_s
        if took_s <= QUICK_APPEND_S_MAX:
            self._slow_pause = SLOW_APPEND_PAUSE
        else:
            self._is_quick_from_s = began_s + took_s * (1 + self._slow_pause)
            self._slow_pause = min(2 * self._slow_pause, SLOW_APPEND_PAUSE_MAX)

    async def _wait_for_space(self, error: UnavailableError, waited_s: int) -> None:
        """Wait a second for space; raises the error if it is another one, or time is up."""
        is_over = self._is_stopping and waited_s >= DISK_FULL_STOP_SECONDS_MAX
        if error.code != DISK_FULL or is_over:
            raise error
        _LOG.error("bucket %s: %s; it is tried again", self._bucket.name, error)
        self._disk_full_total += 1
        await asyncio.sleep(1)

    async def _in_thread(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return await self._loop.run_in_executor(self._thread, function, *arguments)
