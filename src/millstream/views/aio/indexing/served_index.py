"""One index that is kept up to date: its writer, its lock, and the queries that wait for it.

Invariants:
1. All changes of the index are made here, one at a time, in a thread. A change that has begun is
   finished even if the caller is cancelled. Then all waiting queries check the index again.
2. Parts are mapped and published by whole partitions. Changes that the index already has are not
   mapped.
3. Rows of a first build are written to sorted runs on disk. A first build that ends early leaves
   no files.
4. An index with slow functions has a thread of its own and delays no other index. Urgent changes
   (`set_states`) interrupt these functions; the interrupted work is repeated later.

Elsewhere: what is read when (`millstream.views.aio.indexing.indexing`), what a commit is
(`views.core.index.index`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from millstream.errors import CorruptionError, MillstreamError, UnavailableError
from millstream.model.pauses import Pauses
from millstream.runtime.tasks import until_done
from millstream.views.aio.indexing.index_mapping import MappedChanges
from millstream.views.core.design.documents import Changes
from millstream.views.core.index.header import (
    DocumentRows,
    Judged,
    MapFailure,
    PartRead,
)
from millstream.views.core.index.indexer import Place, is_worth_building

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Callable,
        Collection,
        Mapping,
    )

    from millstream.model.position import Position
    from millstream.views.aio.indexing.first_rows import FirstRows
    from millstream.views.aio.indexing.index_mapping import MappedChanges
    from millstream.views.core.index.header import Header
    from millstream.views.core.index.index import Index, Published
    from millstream.views.core.index.indexer import Part

__all__ = [
    "PAUSE_S_MAX",
    "PAUSE_S_MIN",
    "SLOW_FOR_S",
    "SLOW_S",
    "WRITER",
    "ChangeMapper",
    "Gathered",
    "IndexProgress",
    "IndexWork",
    "ServedIndex",
]

_LOG = logging.getLogger(__name__)
_FINAL: Final = frozenset({"access_denied", "bad_credentials", "bucket_recreated"})
"""Codes of errors that waiting queries get at once. (A node that starts may lack the bucket.)"""
PAUSE_S_MIN: Final = 0.05
"""Pause before an index is read again after an error. It doubles while nothing is committed.
"""
PAUSE_S_MAX: Final = 5.0
SLOW_S: Final = 2.0
"""A call of functions that takes longer makes their index slow; a batch takes some 0.03 s."""
SLOW_FOR_S: Final = 60.0
"""How long an index counts as slow after such a call."""
RATE_S: Final = 5.0
"""The rate is averaged over this many seconds."""
WRITER: Final = "node indexer"

_Result = TypeVar("_Result")


class IndexWork(NamedTuple):
    """What was done for the indexes of a bucket, those that are gone included."""

    commits: int = 0
    commit_s: float = 0.0
    rollbacks: int = 0


class IndexProgress(NamedTuple):
    """How an index is doing.

    `phase`: `first_build`, `incremental`, `cleanup`, `waiting` (for the source, or an end of a
    pause; `error` says why), `offered` (its build, to a pipeline), `outside` (another process
    writes it) or `asleep` (nobody waits, and
    it is not kept fresh by itself).
    `changes_done` and `changes_total` are seqnos of all partitions; `rate` is of the last seconds.
    """

    signature: str
    phase: str
    changes_done: int
    changes_total: int
    rate: float
    error: str
    waiting: int
    positions: Mapping[int, Position]

    @property
    def pending(self) -> int:
        """Seqnos that the index has not reached."""
        return max(0, self.changes_total - self.changes_done)


class ChangeMapper(Protocol):
    """Runs the maps of one index. Blocking, one thread at a time."""

    def map(self, changes: Changes) -> MappedChanges:
        """Map changes as they came; a deletion contributes nothing."""

    def close(self) -> None:
        """Free what the mapper holds."""

    @property
    def busy_s(self) -> float:
        """For how long functions have been running, 0 if none are; from any thread."""

    def stop(self) -> None:
        """End what is under way, from any thread: a map may run for long."""

    def resume(self) -> None:
        """Make it usable again if it was stopped."""


class Gathered:
    """Parts for several indexes, each of which takes those partitions that it lacks.

    Args:
        parts: by partition.
        judged: how the source judges now.
    """

    def __init__(self, parts: Mapping[int, Part], judged: Mapping[int, Judged]) -> None:
        self.parts, self.judged = parts, judged
        self._changes: dict[frozenset[int], Changes] = {}

    def changes_of(self, partitions: Collection[int]) -> Changes:
        """Return the changes of some partitions; the same object for equal requests."""
        chosen = frozenset(partitions)
        if chosen not in self._changes:
            parts = [self.parts[partition] for partition in sorted(chosen)]
            self._changes[chosen] = Changes(
                [frame for part in parts for frame in part.frames],
                [lineage for part in parts for lineage in part.sides],
            )
        return self._changes[chosen]


class ServedIndex:
    """An index and everything that is known of it in this process.

    Args:
        index: opened.
        mapper: of its design.
        executor: threads.
        is_automatic: it is kept fresh though nobody waits.
    """

    def __init__(
        self,
        index: Index,
        mapper: ChangeMapper,
        executor: ThreadPoolExecutor,
        *,
        is_automatic: bool,
    ) -> None:
        self.index = index
        self.mapper = mapper
        self.signature = index.newest.signature
        self.is_automatic = is_automatic
        self.is_meant_here = False
        """Whether this process should be its writer, not an outside one."""
        self._is_writer = False
        """The newest fencing number is of this process."""
        self.lock = asyncio.Lock()
        self.changed = asyncio.Event()
        """Set when the header is replaced. Each header has a new event."""
        self.waiting = 0
        """How many wait for it."""
        self.group = ""
        """The name of its group."""
        self.retry_at = 0.0
        self.pauses = Pauses(PAUSE_S_MIN, PAUSE_S_MAX)
        self.error = ""
        """Why it is not read."""
        self.failure: BaseException | None = None
        """The error for waiting queries: the index cannot be read at present."""
        self.commits = self.rollbacks = 0
        self.commit_s = 0.0
        """Time of the commits, with the maps they needed."""
        self.damage: CorruptionError | None = None
        """What of its files could not be read."""
        self.is_stopping = False
        self.frozen: frozenset[int] = frozenset()
        """Partitions that stand where they are, to be handed over."""
        self._has_all: tuple[object, Header, frozenset[int]] | None = None
        self._executor = executor
        self._own_thread: ThreadPoolExecutor | None = None
        """Takes the place of `executor` while it is slow."""
        self._slow_until = 0.0
        self._states: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
        """Active and passive partitions, as was said last."""
        self._fence = 0
        self._was_built = False
        self._was_built_in_vain = False
        """A build was not taken, though there was one: changes are brought in one by one."""
        self._sample = (time.monotonic(), 0)
        self._rate = 0.0

    # -- what there is

    @property
    def is_kept_here(self) -> bool:
        """Whether its writer is this process, and none outside."""
        return self.is_meant_here and self._is_writer

    @property
    def places(self) -> dict[int, Place]:
        """Its position in each active or passive partition that is read."""
        header = self.index.newest
        return {
            partition: Place(position, header.failover_logs.get(partition, ()))
            for partition, position in header.positions.items()
            if partition not in self.frozen
        }

    @property
    def work(self) -> IndexWork:
        """What was done for it in this process."""
        return IndexWork(self.commits, self.commit_s, self.rollbacks)

    @property
    def is_new(self) -> bool:
        """Whether the index is new. Then it is built from sorted rows."""
        header = self.index.newest
        has_begun = any(header.roots) or any(p.seqno for p in header.positions.values())
        return not has_begun and not self._was_built

    def is_to_be_built(self, highs: Mapping[int, int]) -> bool:
        """Whether to build it from sorted rows: it is new, or lacks far more than it has.

        Args:
            highs: newest seqnos of the partitions that can be read.
        """
        if self._was_built_in_vain:
            return False
        return self.is_new or is_worth_building(self.places, highs)

    def lacking(self, highs: Mapping[int, int]) -> int | None:
        """Return how many changes it lacks, None where some partition's newest is not known."""
        positions = self.index.newest.positions
        if not positions.keys() <= highs.keys():
            return None
        return sum(max(0, highs[p] - position.seqno) for p, position in positions.items())

    def is_known_to_have(self, partitions: Collection[int], copies: object) -> bool:
        """Whether the index is known to have all of these positions, and has not changed since."""
        known = self._has_all
        return (
            known is not None
            and known[0] is copies
            and known[1] is self.index.newest
            and known[2].issuperset(partitions)
        )

    def note_that_it_has(
        self, partitions: Collection[int], copies: object, header: Header
    ) -> None:
        """Remember what `is_known_to_have` tells."""
        self._has_all = (copies, header, frozenset(partitions))

    @property
    def is_slow(self) -> bool:
        """Whether a call of its functions recently took longer than `SLOW_S`."""
        return time.monotonic() < self._slow_until

    @property
    def is_found_slow(self) -> bool:
        """Whether a call takes longer now, and the index does not count as slow yet."""
        return self.mapper.busy_s > SLOW_S and self._own_thread is None

    def count_as_slow(self) -> None:
        """Use a thread of its own from now on."""
        self._slow_until = time.monotonic() + SLOW_FOR_S
        self._own_thread = ThreadPoolExecutor(1, thread_name_prefix=f"slow {self.signature}")

    def close(self) -> None:
        """Free functions and thread; nothing may be under way."""
        self.mapper.close()
        self._end_own_thread()

    def _end_own_thread(self) -> None:
        if self._own_thread is not None:
            self._own_thread.shutdown(wait=False)
            self._own_thread = None

    def note_end(self, error: BaseException | None) -> None:
        """Note that reading for the index has ended.

        After an error it is read for again after a pause.
        """
        self.retry_at = 0.0
        if error is None:
            return
        if str(error) != self.error:
            _LOG.warning("index %s is not updated: %s", self.signature, error)
        self.error = str(error)
        self.retry_at = time.monotonic() + self.pauses.next()
        code = error.code if isinstance(error, MillstreamError) else ""
        self.failure = error if code in _FINAL else None
        self.tell()

    def tell(self) -> None:
        """Wake all waiting queries."""
        self.changed.set()
        self.changed = asyncio.Event()

    def give_up(self) -> None:
        """Change nothing more, and wake all waiting queries."""
        self.is_stopping = True
        self.failure = UnavailableError("the index was closed", code="index_unavailable")
        self.tell()

    def rate(self, done: int) -> float:
        """Return the recent rate in seqnos per second."""
        now = time.monotonic()
        at, before = self._sample
        if now - at >= RATE_S or done < before:
            self._rate = max(0, done - before) / max(now - at, 1e-3)
            self._sample = now, done
        return self._rate

    def progress(
        self, highs: Mapping[int, int], seqnos_read: int | None, *, is_held: bool
    ) -> IndexProgress:
        """Return how it is doing.

        Args:
            highs: newest seqnos of partitions.
            seqnos_read: what its build has read; None: it is not being built here.
            is_held: its build is offered to others.
        """
        header = self.index.newest
        positions = header.positions
        done = sum(position.seqno for position in positions.values())
        phase = "incremental"
        if seqnos_read is not None:
            phase, done = "first_build", seqnos_read
        elif header.dirty:
            phase = "cleanup"
        elif not self.is_kept_here:
            phase = "outside"
        elif is_held:
            phase = "offered"
        elif not self.group:
            phase = "waiting" if self.is_automatic or self.waiting else "asleep"
        total = sum(max(highs.get(p, 0), positions[p].seqno) for p in positions)
        return IndexProgress(
            self.signature, phase, done, total, self.rate(done), self.error, self.waiting,
            positions,
        )  # fmt: skip

    # -- changes of the index

    def mean(self, *, is_here: bool) -> None:
        """Set where its writer should be. `begin` makes this process its writer."""
        self.is_meant_here, self._is_writer = is_here, False

    async def begin(
        self, active: Collection[int], passive: Collection[int], *, is_kept_here: bool = True
    ) -> None:
        """Become the one writer, if it is to be kept here; say which partitions there are.

        Raises:
            UnavailableError: `stopped`: it is being given up.
            MillstreamError, OSError: its files cannot be used.
        """
        self.mean(is_here=is_kept_here)
        self._states = frozenset(active), frozenset(passive)

        def work() -> None:
            self.check()
            if self.is_meant_here:  # it may have been given to others since
                self._fence = self.index.take_over(WRITER, _now_ms())
                self._is_writer = True
            self.index.set_states(*self._states, _now_ms())

        await self._in_thread(work)

    async def set_states(self, active: Collection[int], passive: Collection[int]) -> None:
        """Set which partitions are here; see `Index.set_states`.

        It does not wait for functions.
        """
        self._states = frozenset(active), frozenset(passive)
        if not self.index.has_states(*self._states):
            async with self._functions_ended():
                await self._in_thread(lambda: self.index.set_states(*self._states, _now_ms()))

    @contextlib.asynccontextmanager
    async def _functions_ended(self) -> AsyncIterator[None]:
        """Within `async with`, a call of functions that takes long is stopped."""

        async def watch() -> None:
            while True:
                await asyncio.sleep(SLOW_S)
                if self.mapper.busy_s > SLOW_S:
                    self.mapper.stop()

        watching = asyncio.ensure_future(watch())
        try:
            yield
        finally:
            watching.cancel()

    async def roll_back(self, judged: Mapping[int, Judged]) -> bool:
        """Go back where the source refuses positions; return whether that was necessary."""
        header = self.index.newest
        if all(
            judged[partition].accepts(position)
            for partition, position in header.positions.items()
            if partition in judged
        ):
            return False
        await self._with_functions(lambda: self.index.roll_back(judged, _now_ms()))
        self.rollbacks += 1
        return True

    async def publish(self, gathered: Gathered) -> Published | None:
        """Map and commit parts; None: the index has all of them."""
        return await self._with_functions(lambda: self._publish(gathered))

    def _publish(self, gathered: Gathered) -> Published | None:
        positions = self.index.newest.positions
        taken = {
            partition: part
            for partition, part in gathered.parts.items()
            if partition in positions and positions[partition].seqno < part.end.seqno
            and partition not in self.frozen
        }  # fmt: skip
        if not taken:
            return None
        judged = gathered.judged
        mapped = self.mapper.map(gathered.changes_of(taken))
        documents: dict[int, list[DocumentRows]] = {partition: [] for partition in taken}
        for document in mapped.documents:
            documents[document.partition].append(document)
        failures: dict[int, list[MapFailure]] = {partition: [] for partition in taken}
        for partition, failure in mapped.failures:
            failures[partition].append(failure)
        reads = {
            partition: PartRead(
                part.start,
                part.end,
                part.failover_log,
                judged[partition].purge_seqno,
                documents[partition],
                failures=failures[partition],
            )
            for partition, part in taken.items()
        }
        return self.index.publish(self._fence, reads, judged, _now_ms())

    async def change(self, work: Callable[[], _Result]) -> _Result:
        """Do what a writer outside asks for."""
        return await self._with_functions(work)

    async def clean_step(self) -> bool:
        """Take some rows out that count for nothing; return whether there are no more."""
        return await self._with_functions(lambda: self.index.clean_step(_now_ms()))

    async def compact_step(self) -> bool:
        """Go on with a compaction; return whether it is over."""
        return await self._with_functions(self.index.compact_step)

    # -- first build

    async def add_first(self, rows: FirstRows, changes: Changes) -> None:
        """Map some changes of a first build."""
        await self._building(lambda: rows.add(self.mapper.map(changes)))

    async def load(
        self,
        rows: FirstRows,
        places: Mapping[int, Place],
        left_out: Collection[int],
        judged: Mapping[int, Judged],
    ) -> None:
        """Commit a first build, or one that replaces all rows.

        Args:
            rows: of all partitions that were begun.
            places: of the partitions that are whole.
            left_out: the others.
            judged: how the source judges now.
        """
        published = await self._building(lambda: self._load(rows, places, left_out, judged))
        self._was_built = True
        self._was_built_in_vain = bool(places or left_out) and not published.partitions

    async def _building(self, work: Callable[[], _Result]) -> _Result:
        """Do a step of a build; after a failed build the index catches up by changes."""
        try:
            return await self._with_functions(work)
        except (MillstreamError, OSError):
            self._was_built_in_vain = not self.is_new
            raise

    def _load(
        self,
        rows: FirstRows,
        places: Mapping[int, Place],
        left_out: Collection[int],
        judged: Mapping[int, Judged],
    ) -> Published:
        start = Place().position
        parts: dict[int, PartRead] = {}
        for partition, (position, log) in places.items():
            if partition in judged:
                failures, before = rows.failures_of(partition)
                parts[partition] = PartRead(
                    start,
                    position,
                    log,
                    judged[partition].purge_seqno,
                    failures=failures,
                    failures_before=before,
                )
        unread = {*left_out, *(places.keys() - parts.keys())}
        back, trees = rows.sorted_rows(unread, self.check)
        is_empty = not any(self.index.newest.roots)
        load = self.index.load if is_empty else self.index.rebuild
        return load(self._fence, parts, judged, back, trees, _now_ms())

    def check(self) -> None:
        """Raise where the index is being given up; in long work."""
        if self.is_stopping:
            raise UnavailableError("the index is being given up", code="stopped")

    # -- threads

    async def _with_functions(self, work: Callable[[], _Result]) -> _Result:
        """Do what may call functions, which may have been stopped."""

        def usable() -> _Result:
            self.check()
            self.mapper.resume()
            return work()

        return await self._in_thread(usable)

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        async with self.lock:
            loop = asyncio.get_running_loop()
            if not self.is_slow:
                self._end_own_thread()
            began, commit = time.monotonic(), self.index.newest.commit
            executor = self._own_thread or self._executor
            future: asyncio.Future[Any] = loop.run_in_executor(executor, work)
            try:
                result: _Result = await until_done(future)
            except CorruptionError as error:
                self.damage = error
                raise
            finally:
                if self._own_thread is not None and time.monotonic() - began > SLOW_S:
                    self._slow_until = time.monotonic() + SLOW_FOR_S
                if self.index.newest.commit != commit:
                    self.commits += self.index.newest.commit - commit
                    self.commit_s += time.monotonic() - began
                self.tell()
            return result


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
