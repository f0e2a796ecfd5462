"""Reads evicted documents back: from the page cache in the loop, the rest in threads.

    find -> BlockingIOError -> fetch -> (a thread reads) -> done, which looks up again: find has it

The by-id map gives the place of a record in the loop: an LMDB look-up, whose pages are cached
except after a start. So a key that was never written costs some microseconds and no thread.

Invariants:
1. A record read by a thread is available during one call of `done`, and used only if by-id still
   names the same record at the same place: a later change or a rollback wins.
2. At most `READS_WAITING_MAX` look-ups wait for threads; more are refused.
3. After `stop` no thread reads any more.

Elsewhere: what waits meanwhile (`kv.core.session.session`), what is loaded into memory
(`kv.core.partition.residents`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple, TypeVar

from millstream.errors import CorruptionError, UnavailableError
from millstream.kv.core.partition.residents import NotInMemory
from millstream.kv.core.queue.log_reader import Fetched
from millstream.kv.core.queue.mutation_queue import Entry
from millstream.model.sides import side_of
from millstream.storage.core.by_id import ByIdValue
from millstream.storage.core.segment_files import Sizes
from millstream.storage.core.store import LogStore, StoredChange

__all__ = [
    "BUSY_WAIT_S",
    "READS_WAITING_MAX",
    "READ_THREADS_MAX",
    "LoopReader",
    "ReadingBack",
    "ReadingBackStatistics",
    "StoreReader",
    "telling_of_damage",
    "with_documents",
]

READ_THREADS_MAX: Final = 4
"""Threads that read documents of one bucket back; started on first use."""
READS_WAITING_MAX: Final = 4096
"""Look-ups of one bucket that wait for these threads; more are answered as a temporary failure."""
BUSY_WAIT_S: Final = 0.01
"""Pause before a job retries when too many look-ups wait."""
_T = TypeVar("_T")


@contextmanager
def telling_of_damage(on_corrupt: Callable[[CorruptionError], None]) -> Iterator[None]:
    """Report damage before the reader gets the error."""
    try:
        yield
    except CorruptionError as error:
        on_corrupt(error)
        raise


async def with_documents(call: Callable[[], _T]) -> _T:
    """Call a function that reads a document; retry it once the document was read from the disk."""
    try:
        return call()
    except NotInMemory as absent:
        found: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        _fetch(absent, call, found)
    return await found


def _fetch(absent: NotInMemory, call: Callable[[], _T], found: asyncio.Future[_T]) -> None:
    if not absent.fetch(partial(_call_again, call, found)):
        found.get_loop().call_later(BUSY_WAIT_S, _call_again, call, found, None)


def _call_again(
    call: Callable[[], _T], found: asyncio.Future[_T], error: Exception | None
) -> None:
    if found.done():
        return
    try:
        if error is not None:
            raise error
        found.set_result(call())
    except NotInMemory as absent:  # it changed meanwhile
        _fetch(absent, call, found)
    except Exception as failure:  # noqa: BLE001 - the awaiting caller gets it
        found.set_exception(failure)


class _Offer(NamedTuple):
    """A record read by a thread, and its place by by-id."""

    partition_id: int
    key: bytes
    located: ByIdValue
    change: StoredChange | None


class ReadingBackStatistics(NamedTuple):
    """Totals since the bucket was opened."""

    in_loop_total: int
    """Documents read back from the page cache."""
    by_threads_total: int
    """Documents read back from the disk."""
    waiting: int
    """Look-ups that wait for a thread now."""


class ReadingBack:
    """Point reads of one bucket's log.

    Args:
        name: of the bucket.
        store: its log.
        on_corrupt: called, in any thread, with a damaged record.
    """

    def __init__(
        self, name: str, store: LogStore, on_corrupt: Callable[[CorruptionError], None]
    ) -> None:
        self._store = store
        self._on_corrupt = on_corrupt
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(READ_THREADS_MAX, thread_name_prefix=f"read {name}")
        self._offer: _Offer | None = None
        self._is_stopping = False
        self.waiting_count = 0
        self.resident_total = 0
        """Documents read back in the loop."""
        self.fetched_total = 0
        """Documents read back by threads."""

    def find(self, partition_id: int, key: bytes) -> Entry | None:
        """See `kv.core.queue.log_reader.LogReader`; hot path of reading back."""
        if self._offer is not None and self._is_offered(partition_id, key):
            found = self._offer.change
            self.fetched_total += 1
            if found is None:
                with telling_of_damage(self._on_corrupt):
                    self._store.refuse_absence(partition_id, self._offer.located)
        else:
            with telling_of_damage(self._on_corrupt):
                found = self._store.find_resident(partition_id, key)
            if found is not None:
                self.resident_total += 1
        return (
            None
            if found is None
            else Entry(key, found.frame, side_of(found.lineage, found.sidecar))
        )

    def _is_offered(self, partition_id: int, key: bytes) -> bool:
        offer = self._offer
        return (
            offer is not None
            and offer[:2] == (partition_id, key)
            and self._store.locate(partition_id, key) == offer.located
        )

    def fetch(self, partition_id: int, key: bytes, done: Fetched) -> bool:
        """See `kv.core.queue.log_reader.LogReader`."""
        if self.waiting_count >= READS_WAITING_MAX:
            return False
        located = self._store.locate(partition_id, key)
        if located is None:
            self._loop.call_soon(done, None)
            return True
        self.waiting_count += 1
        future = self._loop.run_in_executor(self._threads, self._read, partition_id, key, located)
        future.add_done_callback(partial(self._fetched, partition_id, key, located, done))
        return True

    async def run(self, call: Callable[[], _T]) -> _T:
        """Run a function that reads the log in one of the threads; raises as it does.

        Raises:
            UnavailableError: `stopping`.
        """
        stopping = UnavailableError("the bucket is being stopped; retry", code="stopping")
        if self._is_stopping:
            raise stopping
        future = self._loop.run_in_executor(self._threads, self._told, call)
        try:
            return await future
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise stopping from error

    def _told(self, call: Callable[[], _T]) -> _T:
        with telling_of_damage(self._on_corrupt):
            return call()

    def _read(self, partition_id: int, key: bytes, located: ByIdValue) -> StoredChange | None:
        with telling_of_damage(self._on_corrupt):
            return self._store.read(partition_id, key, located)

    def _fetched(
        self,
        partition_id: int,
        key: bytes,
        located: ByIdValue,
        done: Fetched,
        future: asyncio.Future[StoredChange | None],
    ) -> None:
        self.waiting_count -= 1
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._offer = _Offer(partition_id, key, located, future.result())
        elif not isinstance(error, Exception):
            raise error
        try:
            done(error)
        finally:
            self._offer = None

    def statistics(self) -> ReadingBackStatistics:
        """Return the current statistics."""
        return ReadingBackStatistics(self.resident_total, self.fetched_total, self.waiting_count)

    async def stop(self) -> None:
        """Let the threads end; pending reads are cancelled."""
        self._is_stopping = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._threads.shutdown)


class StoreReader:
    """The log as partitions read it."""

    def __init__(self, store: LogStore, on_corrupt: Callable[[CorruptionError], None]) -> None:
        self._store = store
        self._on_corrupt = on_corrupt

    def find(self, partition_id: int, key: bytes) -> Entry | None:
        """Return the newest record of the key, tombstones included; blocks."""
        with telling_of_damage(self._on_corrupt):
            found = self._store.find(partition_id, key)
        return Entry(key, found.frame, side_of(found.lineage, found.sidecar)) if found else None

    def newest_seqno(self, partition_id: int, key: bytes) -> int:
        """Return the seqno of the newest record of the key; 0 if there is none."""
        with telling_of_damage(self._on_corrupt):
            found = self._store.locate(partition_id, key)
        return found[0] if found else 0

    def backfill(
        self,
        partition_id: int,
        after: int,
        upto: int,
        at: int,
        superseded: set[int],
        *,
        is_described: bool = False,
    ) -> Iterator[tuple[list[bytes], int]]:
        """Yield frames of (after, upto] that nothing up to `at` replaces, here or in `superseded`.

        `is_described`: each frame has its metadata in front. Blocks.
        """
        if after >= upto:
            return
        last = after
        with telling_of_damage(self._on_corrupt):
            skip = self._store.superseded(partition_id, after, at) | superseded
            for frames, last in self._store.scan_frames(
                partition_id, after, upto, skip, is_described=is_described
            ):
                yield frames, last
        if last < upto:
            yield [], upto

    def sizes(
        self, partition_id: int, after: int, upto: int, at: int, superseded: set[int]
    ) -> Iterator[Sizes]:
        """Yield the sizes of the same records, without descriptions. Blocks."""
        with telling_of_damage(self._on_corrupt):
            skip = self._store.superseded(partition_id, after, at) | superseded
            yield from self._store.sizes(partition_id, after, upto, skip)
        yield (), (), upto

    def newest_mark(self, partition_id: int, seqno: int) -> int:
        """Return the newest mark at or below `seqno` that can be read as of; 0 if none."""
        try:  # asked of all partitions at once: `telling_of_damage` takes longer than the look
            return self._store.newest_mark(partition_id, seqno)
        except CorruptionError as error:
            self._on_corrupt(error)
            raise

    def keys(self, partition_id: int) -> Iterator[bytes]:
        """Yield the keys that have a record, tombstones included; blocks."""
        with telling_of_damage(self._on_corrupt):
            yield from self._store.keys(partition_id)

    def page(
        self, partition_id: int, low: bytes, high: bytes, count: int, *, descending: bool
    ) -> list[bytes]:
        """Return the first keys of a range; see `LogReader`."""
        with telling_of_damage(self._on_corrupt):
            return self._store.page(partition_id, low, high, count, descending=descending)


class LoopReader(StoreReader):
    """The same in the loop, which must not wait for the disk."""

    def __init__(
        self,
        store: LogStore,
        on_corrupt: Callable[[CorruptionError], None],
        reading: ReadingBack,
    ) -> None:
        super().__init__(store, on_corrupt)
        self.find = reading.find  # type: ignore[method-assign]
        self.fetch = reading.fetch
