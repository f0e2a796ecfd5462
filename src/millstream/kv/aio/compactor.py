"""The compactor of a bucket: keeps its log small in the background.

At intervals, and after many writes, it checks how much of the log is dead. If that is too much it
makes a pass: low points move, dead records are marked, and runs of segments are rewritten until
little is dead.

Invariants:
1. One pass runs at a time, and in it one run. Decisions are made in the loop, in steps of some
   milliseconds. A thread reads and writes, one step at a time, so the loop never waits longer.
2. Low points are durable before anything is marked or dropped by them. They pass nothing that is
   being read; a reader that began in the meantime loses its hold, and is told. So does a reader
   that holds back more than `HELD_BYTES_MAX` of the log.
3. While more is dead than alive, slack included, it works without pauses, and in longer steps once
   it is late. Otherwise it pauses `REST_FACTOR` times as long as it works.
4. It waits while the disk is full. Any other error of the disk ends the writing of the bucket.
5. After `stop` nothing is written. A run that is not swapped in yet leaves no trace.
6. Unused attachments are swept between two passes, never during one.

Elsewhere: the policy (`kv.core.queue.low_points`, `storage.core.compaction_plan`), the work
(`storage.core.reclaiming`), the sweep (`kv.aio.documents.blob_sweeping`).

Source: docs/design/0004-compaction.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from time import thread_time
from typing import Final, NamedTuple, Protocol, TypeVar

from millstream.errors import CorruptionError, UnavailableError
from millstream.kv.aio.documents.blob_sweeping import Pacing
from millstream.kv.aio.flusher import Flusher
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.queue.low_points import PURGE_AGE_S, HistoryWindow, allowed_points
from millstream.model.partitions import PartitionState
from millstream.runtime.pace import REST_FACTOR, STEP_S
from millstream.runtime.tasks import Tasks
from millstream.storage.core.compaction import KeyBatch
from millstream.storage.core.compaction_plan import DEAD_SHARE_KEPT, choose_run, is_due
from millstream.storage.core.disk_errors import disk_error
from millstream.storage.core.store import LogStore

__all__ = ["Compactor", "CompactorStatistics"]

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
LOOK_INTERVAL_S: Final = 5.0
LOOK_BYTES: Final = 16 * 1024 * 1024
"""Bytes written to the bucket after which it checks at once."""
PURGE_INTERVAL_S: Final = 3600.0
"""How often it looks for deletions that are old enough to be forgotten."""
DISK_FULL_PAUSE_S: Final = 60.0
HELD_PAUSE_S: Final = 60.0
"""Pause before history that a reader held is tried again."""
HELD_BYTES_MAX: Final = 1024 * 1024 * 1024
"""What leases and streams may hold back of a bucket's log beyond the window; beyond this they are
lost."""
LATE_BYTES: Final = 16 * 1024 * 1024
"""Bytes written during a pass after which it is late if more is dead than allowed."""
LATE_STEP_S: Final = 0.02
"""Processor time of a step in the thread when late: the thread then takes about as much of the
interpreter's lock as the loop, which slows writes down to what can be compacted."""
FIRST_PASS_BYTES: Final = 64 * 1024 * 1024
"""Assumed bytes written during the first pass; later passes use the last one's."""
_SECOND_NS: Final = 1_000_000_000


class CompactorStatistics(NamedTuple):
    """Statistics of a compactor; bytes are those of whole files."""

    passes_total: int
    runs_total: int
    segments_total: int
    rewritten_bytes_total: int
    reclaimed_bytes_total: int
    segments: int
    live_bytes: int
    dead_bytes: int
    tombstones: int


class Sweeping(Protocol):
    """Removes unused attachments: see `BlobSweep`."""

    def is_due(self) -> bool:
        """Return whether a sweep is due."""

    async def run(self, pacing: Pacing) -> None:
        """Make one sweep."""


class _StoppedError(Exception):
    """The compactor is being stopped during its work."""


class Compactor:
    """The compactor of one bucket; started when created, ended by `stop`.

    Args:
        bucket: whose partitions know what is still read.
        store: the log.
        flusher: its commits wait while low points move and a run is installed.
        now_ns: the clock, Unix time, for the age of deletions and history.
        monotonic_ns: a monotonic clock, for pauses.
        on_corrupt: called when a damaged record or index was found.
        window: of history.
        purge_age_s: age at which deletions may be forgotten; 0: never.
        sweep: removes unused attachments.
    """

    def __init__(
        self,
        bucket: Bucket,
        store: LogStore,
        flusher: Flusher,
        *,
        now_ns: Callable[[], int],
        monotonic_ns: Callable[[], int],
        on_corrupt: Callable[[CorruptionError], None],
        window: HistoryWindow,
        purge_age_s: int = PURGE_AGE_S,
        sweep: Sweeping,
    ) -> None:
        self._bucket = bucket
        self._store = store
        self._reclaiming = store.reclaiming
        self._flusher = flusher
        self._now_ns = now_ns
        self._monotonic_ns = monotonic_ns
        self._on_corrupt = on_corrupt
        self._window = window
        self._purge_age_s = purge_age_s
        self._sweep = sweep
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._is_asked = False
        self._has_ended = False
        self._waiters: list[asyncio.Future[None]] = []
        self._next_look_bytes = LOOK_BYTES
        self._late_at_bytes, self._pass_bytes = 0, FIRST_PASS_BYTES
        """`_pass_bytes`: written during the last pass; the next begins earlier by that, at most by
        half of the slack: after a burst it would reclaim little for its cost."""
        self._purge_at_ns = self._next_pass_ns = 0
        self._marked_replaced: int | None = None
        """Number of the records replaced since the start that marking has seen."""
        self._is_pressed = self._is_passing = False
        self._passes = self._runs = self._segments = self._rewritten = self._reclaimed = 0
        self._tasks.start(self._run(), name=f"compactor {bucket.name}")

    # -- from outside

    @property
    def is_running(self) -> bool:
        """Return whether a pass was requested or is running."""
        return self._is_asked or self._is_passing

    def on_commit(self) -> None:
        """A commit was written. O(1)."""
        if self._store.appended_bytes >= self._next_look_bytes:
            self._wake.set()

    def ask(self) -> None:
        """Request a pass that rewrites everything that contains dead records."""
        self._is_asked = True
        self._wake.set()

    async def compact(self) -> None:
        """Do the same, and return once it is done.

        Raises:
            UnavailableError: `stopping`, or an error of the disk.
        """
        if self._has_ended:
            raise UnavailableError("the bucket is not compacted any more", code="stopping")
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        self.ask()
        await waiter

    async def stop(self) -> None:
        """Stop the running work; at once, unless a run is being installed."""
        self._is_stopping = True
        self._wake.set()
        await self._tasks.finish()

    def statistics(self) -> CompactorStatistics:
        """Return what was done, and the current state as far as it is counted."""
        counts = self._reclaiming.counts
        return CompactorStatistics(
            passes_total=self._passes,
            runs_total=self._runs,
            segments_total=self._segments,
            rewritten_bytes_total=self._rewritten,
            reclaimed_bytes_total=self._reclaimed,
            segments=len(counts) + 1,
            live_bytes=sum(one.live_bytes for one in counts),
            dead_bytes=sum(one.dead_bytes for one in counts),
            tombstones=sum(one.tombstones for one in counts),
        )

    # -- looking

    async def _run(self) -> None:
        error: Exception = UnavailableError("the bucket is being stopped; retry", code="stopping")
        try:
            while not self._is_stopping:
                self._wake.clear()
                await self._look()
                await self._sleep(LOOK_INTERVAL_S)
        except _StoppedError:
            pass
        except CorruptionError as damage:
            error = damage
            self._on_corrupt(damage)
        except UnavailableError as failure:
            error = failure
            self._flusher.fail(failure)
        finally:
            self._has_ended = True
            self._answer(self._waiters, error)

    @staticmethod
    def _answer(waiters: list[asyncio.Future[None]], error: Exception | None = None) -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error) if error else waiter.set_result(None)
        waiters.clear()

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _look(self) -> None:
        """Make a pass if it is due or requested; on a full disk wait, then make it."""
        waiters = self._waiters[:]
        is_asked, self._is_asked = self._is_asked, False
        try:
            await self._count()
            self._sample()
            self._is_passing = self._is_due() or is_asked
            if self._is_passing:
                await self._pass(0.0 if is_asked else DEAD_SHARE_KEPT)
            if is_asked or self._sweep.is_due():
                self._is_passing = True
                await self._sweep.run(self)
        except UnavailableError as error:
            if error.code != "disk_full":
                raise
            _LOG.warning("bucket %s is not compacted: %s", self._bucket.name, error)
            self._is_asked, self._is_passing = self._is_asked or is_asked, False
            del self._waiters[: len(waiters)]
            self._answer(waiters, error)
            self._wake.clear()
            await self._sleep(DISK_FULL_PAUSE_S)
        else:
            self._is_passing = False
            del self._waiters[: len(waiters)]
            self._answer(waiters)

    async def _count(self) -> None:
        if not self._reclaiming.is_counted():
            await self._steps(self._reclaiming.count_steps())
        if self._marked_replaced is None:
            self._marked_replaced = -self._reclaiming.count_superseded()

    def _sample(self) -> None:
        for partition_id, seqno in self._reclaiming.take_rollbacks():
            self._window.rolled_back(partition_id, seqno)
        store, now_ns = self._store, self._now_ns()
        if self._window.is_sample_due(now_ns, store.appended_bytes):
            self._window.take(
                now_ns, store.appended_bytes, store.replaced_total, self._reclaiming.newest_marks()
            )
        self._next_look_bytes = store.appended_bytes + LOOK_BYTES

    def _is_due(self) -> bool:
        assert self._marked_replaced is not None
        counts, sizes, store = self._reclaiming.counts, self._reclaiming.sizes, self._store
        dead, live = sum(one.dead_bytes for one in counts), sum(one.live_bytes for one in counts)
        now_ns = self._now_ns()
        over = self._window.over(now_ns, store.appended_bytes)
        slack = self._window.slack_bytes(now_ns, over)
        slack = max(sizes.segment_bytes_min, slack - min(self._pass_bytes, slack // 2))
        fresh = max(0, over.replaced_total - self._marked_replaced) if over else 0
        replaced = max(0, store.replaced_total - self._marked_replaced)
        live -= min(live, replaced * self._change_bytes())
        dead += fresh * self._change_bytes()
        self._is_pressed = dead > live + slack
        return (
            (self._monotonic_ns() >= self._next_pass_ns and is_due(live, dead, slack))
            or bool(choose_run(counts, sizes.segment_bytes_max, [one.number for one in counts]))
            or self._is_purge_due()
        )

    def _is_purge_due(self) -> bool:
        has_tombstones = any(one.tombstones for one in self._reclaiming.counts)
        is_time = self._monotonic_ns() >= self._purge_at_ns
        return self._purge_age_s > 0 and has_tombstones and is_time

    # -- a pass

    async def _pass(self, kept_share: float) -> None:
        reclaiming = self._reclaiming
        began_bytes = self._store.appended_bytes
        self._late_at_bytes = began_bytes + LATE_BYTES
        await self._move_low_points()
        marking = reclaiming.begin_marking()
        await self._steps(marking.steps())
        reclaiming.end_marking(marking)
        await self._steps(reclaiming.count_steps())
        self._passes += 1
        bytes_max, done = reclaiming.sizes.segment_bytes_max, list[int]()
        choose = partial(choose_run, bytes_max=bytes_max, done=done, kept_share=kept_share)
        while choose(reclaiming.counts):
            run = choose(reclaiming.may_rewrite())
            if not run:
                await self._flusher.bring_by_id_up()
                run = choose(reclaiming.may_rewrite())
            if not run:
                break
            await self._rewrite(run)
            done.append(run[-1])
            await self._steps(reclaiming.count_steps())
        self._pass_bytes = self._store.appended_bytes - began_bytes

    async def _move_low_points(self) -> None:
        """Move history by the window, purge points by age; durable on return."""
        store, partitions = self._store, self._bucket.partitions
        over = self._window.over(self._now_ns(), store.appended_bytes)
        if over is None:
            return
        purge = await self._old_tombstones(over.marks)
        async with self._flusher.paused():
            self._lose_costly_holds(over.marks)
            points, is_held = {}, False
            for p, partition in enumerate(partitions):
                now = store.partition(p)
                present = now.history_seqno, now.purge_seqno
                limits = partition.history_limit(), partition.purge_limit()
                moved = allowed_points(present, (over.marks[p], purge[p]), now.high_seqno, limits)
                is_held |= moved[0] < over.marks[p] <= now.high_seqno
                if moved != present and partition.state is not PartitionState.ABSENT:
                    points[p] = moved
                    partition.purge_seqno = max(partition.purge_seqno, moved[1])
            if points:
                await self._flusher.in_thread(store.set_low_points, points)
            for p, (history_seqno, _) in points.items():
                partitions[p].queue.holds.lose_below(history_seqno)
        if is_held:  # a later pass removes what is held back
            self._next_pass_ns = self._monotonic_ns() + int(HELD_PAUSE_S * _SECOND_NS)
        else:
            self._marked_replaced = over.replaced_total

    def _lose_costly_holds(self, marks: Sequence[int]) -> None:
        """Let readers hold back no more of the disk than allowed: older states are lost."""
        partitions, change_bytes = self._bucket.partitions, self._change_bytes()
        if self._reclaiming.count_superseded() * change_bytes <= HELD_BYTES_MAX:
            return
        held_max = HELD_BYTES_MAX // change_bytes // len(partitions)
        for p, held in enumerate(self._reclaiming.superseded_by_partition()):
            holds = partitions[p].queue.holds
            oldest = holds.oldest_at()
            if held > held_max and oldest is not None and oldest < marks[p]:
                _LOG.warning(
                    "bucket %s: what held partition %d as of %d is lost, too much had to be kept",
                    self._bucket.name, p, oldest,
                )  # fmt: skip
                holds.lose_below(marks[p])

    def _change_bytes(self) -> int:
        """Return the approximate length of a record."""
        counts = self._reclaiming.counts
        return max(1, sum(one.bytes for one in counts) // max(1, sum(c.changes for c in counts)))

    async def _old_tombstones(self, marks: Sequence[int]) -> list[int]:
        """Return, by partition, the seqno up to which deletions are old enough to be forgotten."""
        limits = [0] * self._bucket.partition_count
        if self._is_purge_due():
            interval_s = min(PURGE_INTERVAL_S, self._purge_age_s / 4)
            self._purge_at_ns = self._monotonic_ns() + int(interval_s * _SECOND_NS)
            limits = [
                min(mark, partition.history_limit(), partition.purge_limit())
                for mark, partition in zip(marks, self._bucket.partitions, strict=True)
            ]
        cutoff_ns = self._now_ns() - self._purge_age_s * _SECOND_NS
        scan = self._reclaiming.purge_scan(limits, cutoff_ns)
        await self._steps(scan.steps())
        return scan.seqnos

    async def _rewrite(self, run: list[int]) -> None:
        reclaiming = self._reclaiming
        before = sum(one.bytes for one in reclaiming.counts if one.number in run)
        compaction = reclaiming.begin_run(run)
        try:
            await self._steps(compaction.steps())
            await self._tell_by_id(
                compaction.gone_keys(), partial(reclaiming.forget, compaction), may_stop=True
            )
            await self._in_thread(compaction.swap)
        except BaseException:  # also when cancelled: its files are removed
            await self._in_thread(compaction.abandon)
            raise
        async with self._flusher.paused():
            reclaiming.install(compaction)
        await self._in_thread(compaction.remove_old)
        await self._tell_by_id(
            compaction.moved_keys(), partial(reclaiming.move, compaction), may_stop=False
        )
        self._flusher.seal_by_id()
        self._runs += 1
        self._segments += len(run)
        self._rewritten += compaction.size
        self._reclaimed += before - compaction.size
        _LOG.info(
            "bucket %s: segments %d to %d became one, %d bytes became %d",
            self._bucket.name, run[0], run[-1], before, compaction.size,
        )  # fmt: skip

    # -- steps

    @property
    def _step_s(self) -> float:
        """Return the length of a step in the thread."""
        is_late = self._is_pressed and self._store.appended_bytes >= self._late_at_bytes
        return LATE_STEP_S if is_late else STEP_S

    async def steps(self, steps: Iterator[None]) -> None:
        """Take the steps of a sweep; as fast as a pass if one is due."""
        self._is_due()
        await self._steps(steps)

    async def rest(self) -> None:
        """Let other tasks run between two steps in the loop."""
        self._is_due()
        await self._rest(may_stop=True)

    async def _steps(self, steps: Iterator[None]) -> None:
        while not await self._in_thread(_take_steps, steps, self._step_s):
            await self._rest(may_stop=True)

    async def _tell_by_id(
        self,
        batches: Iterator[KeyBatch],
        tell: Callable[[KeyBatch], None],
        *,
        may_stop: bool,
    ) -> None:
        is_over = False
        while not is_over:
            found, is_over = await self._in_thread(_next_batches, batches, self._step_s)
            for batch in found:
                await self._flusher.until_by_id_rests()
                tell(batch)
                await self._rest(may_stop=may_stop)
            if not found:
                await self._rest(may_stop=may_stop)

    async def _rest(self, *, may_stop: bool) -> None:
        if may_stop and self._is_stopping:
            raise _StoppedError
        is_hasty = self._is_pressed or self._is_stopping or self._waiters
        await asyncio.sleep(0 if is_hasty else STEP_S * REST_FACTOR)

    async def _in_thread(self, function: Callable[..., _T], *arguments: object) -> _T:
        try:
            return await self._loop.run_in_executor(None, function, *arguments)
        except OSError as error:
            raise disk_error(error, f"bucket {self._bucket.name}") from error


def _take_steps(steps: Iterator[None], step_s: float) -> bool:
    """Take steps for about this much processor time; return whether they are finished."""
    end = thread_time() + step_s
    for _ in steps:  # noqa: SIM110 - a generator that is gone on with later
        if thread_time() >= end:
            return False
    return True


def _next_batches(batches: Iterator[KeyBatch], step_s: float) -> tuple[list[KeyBatch], bool]:
    """Return the batches with keys of about this much processor time, and whether they are all."""
    end, found = thread_time() + step_s, list[KeyBatch]()
    for batch in batches:
        if batch.keys:
            found.append(batch)
        if thread_time() >= end:
            return found, False
    return found, True
