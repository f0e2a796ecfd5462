"""Keeps the indexes of one bucket up to date.

Indexes at near positions form a group, which shares one connection (`views.core.index.indexer`).
Each group has a task. When a group ends, its indexes are assigned to new groups after a pause that
grows up to `PAUSE_S_MAX`.

Invariants:
1. One thread at a time changes an index: the one that holds its lock. The event loop only reads
   headers.
2. Threads map, sort and commit. The event loop cuts frames, `READ_BYTES_MAX` at a time.
3. Before anything is read, the source judges the positions, and indexes are rolled back if
   necessary.
4. One commit serves all queries that wait for an index. They get an error if it can never come.
5. After `stop` nothing is changed.
6. An index with slow functions delays no other index: its work is ended after `SLOW_S` and
   continues in a group and a thread of its own.

Elsewhere: reading of one group (`reading`), source nodes (`index_sources`), the rule of `at`
(`views.core.query.wait_for`), the index itself (`views.core.index.index`).

Source: docs/design/0013-indexer.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from operator import add
from typing import TYPE_CHECKING, Final, TypeVar

from millstream.errors import CorruptionError, MillstreamError, RoutingError, UsageError
from millstream.model.position import Position
from millstream.runtime.tasks import Tasks
from millstream.views.aio.indexing.cleaning import Cleaning
from millstream.views.aio.indexing.index_source import IndexerSpec
from millstream.views.aio.indexing.index_sources import CopiesAsker, Source
from millstream.views.aio.indexing.reading import GroupReader, Regroup, first_of
from millstream.views.aio.indexing.served_index import (
    SLOW_S,
    IndexProgress,
    IndexWork,
    ServedIndex,
)
from millstream.views.core.index.header import Judged
from millstream.views.core.index.indexer import JOIN_CHANGES_MAX, Member, gap, plan
from millstream.views.core.index.offers import Offers
from millstream.views.core.query.wait_for import Wanted, lost_in, not_reached, unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from millstream.views.aio.indexing.index_source import ReadableCopies
    from millstream.views.aio.indexing.served_index import ChangeMapper
    from millstream.views.core.index.header import Header
    from millstream.views.core.index.index import Index

__all__ = ["FIRST_PAUSE_S", "LOOK_S", "WATCH_S", "BucketIndexer", "IndexerSpec"]

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")
FIRST_PAUSE_S: Final = 0.05
"""Time between adding an index and its first build, so that indexes added together share it."""
LOOK_S: Final = 2.0
"""How often the source is asked for its positions and copies."""
WATCH_S: Final = 0.25
"""How often to look for functions that take long."""


class BucketIndexer:
    """The indexes of one bucket.

    Args:
        spec: which bucket.
        sources: the nodes that have it.
        executor: threads that map and commit; shared with other buckets.
    """

    def __init__(
        self, spec: IndexerSpec, sources: Sequence[Source], executor: ThreadPoolExecutor
    ) -> None:
        self._spec = spec
        self._sources = tuple(sources)
        self._asker = CopiesAsker(spec, sources)
        self._executor = executor
        self._indexes: dict[str, ServedIndex] = {}
        self._groups: dict[str, GroupReader] = {}
        self._group_count = 0
        self._active = self._passive = self._frozen = frozenset[int]()
        self._news = asyncio.Event()
        self._tasks = Tasks()
        self._cleaning = Cleaning(self._tasks, self._damaged)
        self._work_before = IndexWork()
        """Work of indexes that were removed."""
        self.offers = Offers()
        """Builds that a pipeline may take."""
        self.on_damage: Callable[[str, CorruptionError], None] = lambda *_: None
        """Called with an index that cannot be read or written any more, perhaps repeatedly."""

    # -- life

    async def start(self) -> None:
        """Start to keep the indexes fresh."""
        self._tasks.start(self._look_after(), name=f"indexes of {self._spec.bucket}")
        self._tasks.start(self._look_at_source(), name=f"source of {self._spec.bucket}")
        self._tasks.start(self._watch(), name=f"slow indexes of {self._spec.bucket}")

    async def stop(self) -> None:
        """Stop reading. A running commit is finished, running maps are stopped."""
        for served in self._indexes.values():
            served.give_up()
            served.mapper.stop()
        await self._tasks.stop()
        for served in self._indexes.values():
            async with served.lock:
                served.close()
        await self._asker.close()

    # -- what there is to do

    async def add(
        self,
        index: Index,
        mapper: ChangeMapper,
        *,
        is_automatic: bool = True,
        is_kept_here: bool = True,
    ) -> str:
        """Keep an index fresh from now on; return its signature.

        Args:
            index: opened; nobody else may change it from now on.
            mapper: of the same design; closed when the index is removed.
            is_automatic: keep it fresh even if nobody waits.
            is_kept_here: false: an outside writer keeps it; see `change`.
        """
        served = ServedIndex(index, mapper, self._executor, is_automatic=is_automatic)
        served.frozen = self._frozen
        assert served.signature not in self._indexes, "an index is added once"
        await served.begin(self._active, self._passive, is_kept_here=is_kept_here)
        if served.is_new:
            served.retry_at = time.monotonic() + FIRST_PAUSE_S
        self._indexes[served.signature] = served
        self._cleaning.begin(served)
        self._news.set()
        return served.signature

    def set_automatic(self, signature: str, is_automatic: bool) -> None:
        """Set whether an index is kept fresh without queries."""
        self._indexes[signature].is_automatic = is_automatic
        self._news.set()

    async def set_kept_here(self, signature: str, *, is_kept_here: bool) -> None:
        """Set whether an index is kept here or by an outside writer."""
        served = self._served(signature)
        if served.is_kept_here == served.is_meant_here == is_kept_here:
            return
        if is_kept_here:
            await served.begin(self._active, self._passive, is_kept_here=True)
        else:
            served.mean(is_here=False)
            await self._leave_group(served)
        self._news.set()

    def is_meant_here(self, signature: str) -> bool:
        """Whether an index should be kept here. Its outside writer may not have been told yet."""
        return self._served(signature).is_meant_here

    async def take_offer(self, signature: str) -> bool:
        """Leave a build to an outside writer. False: the build is not offered."""
        if not self.offers.take(signature, time.monotonic()):
            return False
        await self.set_kept_here(signature, is_kept_here=False)
        return True

    def end_offer(self, signature: str) -> None:
        """Resume an index whose build an outside writer has finished."""
        self.offers.ended(signature)
        self._news.set()

    async def change(
        self, signature: str, work: Callable[[Mapping[int, Judged]], _Result]
    ) -> _Result:
        """Run the work of an outside writer in a thread, with the source's current judgement.

        Raises:
            UsageError: `missing`: there is no such index any more.
            UnavailableError: the source does not answer; also what `work` raises.
        """
        served = self._served(signature)
        judged = {p: copy.judged for p, copy in (await self._ask()).items()}
        before = served.index.newest
        result = await served.change(lambda: work(judged))
        if served.index.newest is not before:
            self._cleaning.begin(served)
        return result

    def check(self, signature: str) -> None:
        """Raise if an index is being given up. Called during long work of `change`."""
        self._served(signature).check()

    async def remove(self, signature: str) -> None:
        """Forget an index. Its files may be removed afterwards."""
        served = self._indexes.pop(signature)
        self.offers.forget(signature)
        self._work_before = IndexWork(*map(add, self._work_before, served.work))
        served.give_up()
        served.mapper.stop()  # else a map that loops would hold up all other indexes
        self._cleaning.forget(signature)
        await self._leave_group(served)
        async with served.lock:
            served.close()
        served.give_up()  # whatever its group said of it at its end
        self._news.set()

    async def set_partitions(
        self, active: Collection[int], passive: Collection[int] = (), frozen: Collection[int] = ()
    ) -> dict[str, MillstreamError | OSError]:
        """Set which partitions are indexed. Queries see `active` partitions, not `passive` ones.

        Others in an index are cleaned out of it step by step. `frozen` ones are not read.

        Returns:
            By signature, why an index could not be told; it stays as it was.
        """
        before = (self._active | self._passive) - self._frozen
        self._active, self._passive = frozenset(active), frozenset(passive)
        self._frozen = frozenset(frozen)
        failed: dict[str, MillstreamError | OSError] = {}

        async def set_states(served: ServedIndex) -> None:
            served.frozen = self._frozen
            try:
                await served.set_states(self._active, self._passive)
            except (MillstreamError, OSError) as error:
                failed[served.signature] = error
            else:
                self._cleaning.begin(served)

        # All at once: one whose functions take long holds up no other.
        await asyncio.gather(*map(set_states, list(self._indexes.values())))
        if before != (self._active | self._passive) - self._frozen:
            await self._stop_groups()
        self._news.set()
        return failed

    async def _stop_groups(self) -> None:
        """End groups, so that they read again from where their indexes are."""
        groups = [group for group in self._groups.values() if not group.is_first]
        await asyncio.gather(*map(self._stop_group, groups))

    async def set_sources(self, sources: Sequence[Source]) -> None:
        """Set which nodes are read from now on, at once. First builds under way keep theirs."""
        self._sources = tuple(sources)
        await self._asker.set_sources(sources)
        await self._stop_groups()
        for served in self._indexes.values():
            served.retry_at = 0.0
        self._news.set()

    async def compact_step(self, signature: str) -> bool:
        """Go on with a compaction of an index. Return whether it is finished.

        Raises:
            UsageError: `missing`: there is no such index any more.
            MillstreamError: as `Index.compact_step`.
        """
        return await self._served(signature).compact_step()

    # -- waiting

    async def updated(self, signature: str, partitions: Collection[int], timeout_s: float) -> None:
        """Wait until an index has everything that some partitions have now.

        Raises:
            UsageError: `missing`: there is no such index.
            RoutingError: `not_my_partition`: one is not indexed here, or not served.
            UnavailableError: `timeout`; `isolated`; or the source or the index is gone.
            ConditionError: `seq_unreachable`: it was lost while it was waited for.
        """
        served, began = self._served(signature), time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                copies = await self._ask()
        except TimeoutError:
            raise not_reached({}, {}, ()) from None
        copies.check_served(partitions)
        if served.is_known_to_have(partitions, copies):
            return
        absent = [p for p in partitions if copies.lacks(p, is_active=p in self._active)]
        if absent:
            raise self._asker.failure_of(absent[0]) or RoutingError(
                f"partition {absent[0]} is not served from here now: ask again with the new map"
            )
        wanted = {
            p: Wanted(Position(copies[p].uuid, *[copies[p].judged.high_seqno] * 3), is_token=True)
            for p in partitions
        }
        left_s = timeout_s - (time.monotonic() - began)
        current = {p: copies[p].judged for p in partitions}
        header = await self._wait_until(served, wanted, left_s, current)
        served.note_that_it_has(partitions, copies, header)

    async def wait_for_positions(
        self, signature: str, wanted: Mapping[int, Wanted], timeout_s: float
    ) -> None:
        """Wait until an index has reached a vector.

        Raises:
            UsageError: `missing`: there is no such index.
            RoutingError: `not_my_partition`.
            UnavailableError: `timeout`, naming what was not reached; `index_unavailable`.
            ConditionError: `seq_unreachable`.
            AccessError, StreamError: the source will never be read again as it is.
        """
        await self._wait_until(self._served(signature), wanted, timeout_s, {})

    async def _wait_until(
        self,
        served: ServedIndex,
        wanted: Mapping[int, Wanted],
        timeout_s: float,
        current: Mapping[int, Judged],
    ) -> Header:
        """Wait for a vector, and until the index has nothing that `current` does not contain.

        Returns:
            The header that has it.
        """
        served.waiting += 1
        has_asked = False
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    changed, header = served.changed, served.index.newest
                    late, lost = self._asker.judged(header, wanted)
                    late = late or lost_in(header, current)
                    if held := self._frozen.intersection(late):
                        raise RoutingError(f"the index of {min(held)} is being handed over")
                    if lost and has_asked:
                        raise unreachable(wanted, lost)
                    if not late and not lost:
                        return header
                    if lost:  # what is known of the source may be older than the write
                        await self._ask()
                        has_asked = True
                        continue
                    if served.failure is not None:
                        raise served.failure
                    self._wake(served)
                    await changed.wait()
        except TimeoutError:
            header = served.index.newest
            late = self._asker.judged(header, wanted)[0] or lost_in(header, current)
            raise not_reached(wanted, header.positions, late) from None
        finally:
            served.waiting -= 1
            if not served.waiting and not served.is_automatic:
                self._news.set()

    def _wake(self, served: ServedIndex) -> None:
        """Commit what was gathered, or start to read: somebody waits."""
        if served.group:
            self._groups[served.group].wake()
        else:
            self._news.set()

    def _served(self, signature: str) -> ServedIndex:
        if (served := self._indexes.get(signature)) is None:
            raise UsageError(f"no index {signature} here", code="missing")
        return served

    # -- what is seen

    def progress(self) -> list[IndexProgress]:
        """Return the progress of each index."""
        highs = self._highs()
        return [self._progress_of(served, highs) for served in self._indexes.values()]

    def _highs(self) -> dict[int, int]:
        return {p: each.judged.high_seqno for p, each in self._asker.copies.items()}

    def _progress_of(self, served: ServedIndex, highs: Mapping[int, int]) -> IndexProgress:
        group = self._groups.get(served.group)
        seqnos_read = group.seqnos_read if group is not None and group.is_first else None
        return served.progress(highs, seqnos_read, is_held=self.offers.is_held(served.signature))

    def work(self) -> IndexWork:
        """Return the work done since the start."""
        every = [self._work_before, *(served.work for served in self._indexes.values())]
        return IndexWork(*(sum(column) for column in zip(*every, strict=True)))

    # -- groups

    async def _look_after(self) -> None:
        """Keep every index that should be read in a suitable group, until cancelled."""
        while True:
            self._news.clear()
            now = time.monotonic()
            self._take_back(now)
            for is_automatic in (True, False):
                await self._regroup(is_automatic=is_automatic, now=now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._next_look_s(now)):
                    await self._news.wait()

    def _take_back(self, now: float) -> None:
        """Take over what an outside writer has built or lost. This may wait for a commit."""
        for signature in self.offers.lapsed(now):
            self.offers.taken_back(signature, now)
            served = self._indexes[signature]
            served.mean(is_here=True)
            self._tasks.start(self._keep_again(served), name=f"take back {signature}")

    async def _keep_again(self, served: ServedIndex) -> None:
        while served.is_meant_here and not served.is_kept_here and not served.is_stopping:
            try:
                await self.set_kept_here(served.signature, is_kept_here=True)
            except (MillstreamError, OSError):
                await asyncio.sleep(LOOK_S)

    def _next_look_s(self, now: float) -> float:
        pauses = [each.retry_at - now for each in self._indexes.values() if not each.group]
        return max(0.01, min([LOOK_S, *(pause for pause in pauses if pause > 0)]))

    async def _regroup(self, *, is_automatic: bool, now: float) -> None:
        """Start groups, and join groups that have come near each other."""
        wanted = [
            served
            for served in self._indexes.values()
            if served.is_automatic == is_automatic
            and served.is_kept_here
            and served.places
            and not (served.group and self._groups[served.group].is_first)
            and (served.group or is_automatic or served.waiting)
        ]
        due = [served for served in wanted if served.group or served.retry_at <= now]
        highs = self._highs()
        to_be_built = [served for served in wanted if served.is_to_be_built(highs)]
        for other in self._indexes.values():
            if other.is_automatic == is_automatic and other not in to_be_built:
                is_needed = other.is_to_be_built(highs)
                self.offers.withdraw(other.signature, now, is_needed=is_needed)
        held = [s for s in to_be_built if self.offers.holds(s.signature, s.lacking(highs), now)]
        wanted, due, to_be_built = (
            [each for each in some if each not in held] for some in (wanted, due, to_be_built)
        )
        if any(served in due for served in to_be_built):  # then all of them together
            due = [served for served in wanted if served in due or served in to_be_built]
        members = [
            Member(
                served.signature, served.places, served.group, served in to_be_built,
                served.is_slow,
            )
            for served in due
        ]  # fmt: skip
        for group in plan(members):
            running = {s.group for each in group.signatures if (s := self._indexes.get(each))}
            if len(running) == 1 and running != {""}:
                self._groups[running.pop()].end_if_idle()
                continue
            for name in running - {""}:
                if name in self._groups:  # it may end while another is waited for
                    await self._stop_group(self._groups[name])
            self._start_group(group.signatures, is_first=group.is_first)

    def _start_group(self, signatures: Collection[str], *, is_first: bool) -> None:
        self._group_count += 1
        name = f"{self._spec.bucket}/{self._group_count}"
        served = [self._indexes[each] for each in signatures if each in self._indexes]
        if not served:
            return
        group = GroupReader(
            name, self._spec, served, self._sources, self._on_commit, is_first=is_first
        )
        self._groups[name] = group
        for each in served:
            each.group = name
        group.task = self._tasks.start(self._run_group(group), name=f"index {name}")
        group.task.add_done_callback(lambda _: self._forget(group))

    async def _run_group(self, group: GroupReader) -> None:
        """Read for a group until it ends. Then its indexes wait for a new plan."""
        try:
            await group.run()
        except* Regroup:
            pass
        except* (MillstreamError, OSError) as failed:
            group.error = first_of(failed)
        except* Exception as failed:  # noqa: BLE001 - one index must not end all others for ever
            group.error = first_of(failed)
            _LOG.error("indexes %s: internal error", group.name, exc_info=group.error)

    def _forget(self, group: GroupReader) -> None:
        """Note that a group has ended, maybe before it began."""
        del self._groups[group.name]
        for served in group.served:
            served.group = ""
            served.note_end(group.error)
            if group.error is not None and served.damage is not None:
                self.on_damage(served.signature, served.damage)
        self._news.set()

    async def _leave_group(self, served: ServedIndex) -> None:
        """Stop reading for an index. The others of its group go on."""
        for group in list(self._groups.values()):
            if served in group.served:
                if len(group.served) == 1:
                    await self._stop_group(group)
                else:
                    group.served.remove(served)
                    served.group = ""

    async def _stop_group(self, group: GroupReader) -> None:
        assert group.task is not None
        group.end()
        while True:
            done, _ = await asyncio.wait([group.task], timeout=SLOW_S)
            if done:
                return
            for served in group.served:
                if served.mapper.busy_s > SLOW_S:
                    served.mapper.stop()

    async def _watch(self) -> None:
        """Put indexes whose functions take long into groups of their own."""
        while True:
            for served in list(self._indexes.values()):
                if served.is_found_slow and not served.is_stopping:
                    _LOG.warning(
                        "index %s of %s: a call of its functions took over %g s; it is kept fresh "
                        "apart from others for a while",
                        served.signature, self._spec.bucket, SLOW_S,
                    )  # fmt: skip
                    self._set_apart(served)
            await asyncio.sleep(WATCH_S)

    def _set_apart(self, served: ServedIndex) -> None:
        """Stop the running work of an index, and read it in a group of its own."""
        served.count_as_slow()
        for group in self._groups.values():
            if served in group.served:
                if len(group.served) == 1:
                    group.end()
                else:
                    group.served.remove(served)
                    served.group = ""
        served.mapper.stop()
        self._news.set()

    def _damaged(self, signature: str, error: CorruptionError) -> None:
        self.on_damage(signature, error)

    def _on_commit(self, group: GroupReader) -> None:
        """Check whether groups have met after a commit."""
        for served in group.served:
            served.pauses.restart()
            self._cleaning.begin(served)
        if group.is_first:
            return
        here = group.served[0] if group.served else None
        for other in self._groups.values():
            if here is None or other is group or other.is_first or not other.served:
                continue
            there = other.served[0]
            is_alike = there.is_automatic == here.is_automatic
            if is_alike and gap(here.places, there.places) <= JOIN_CHANGES_MAX // 2:
                self._news.set()

    # -- the source

    async def _look_at_source(self) -> None:
        """Refresh what is known of the source: for progress, and to see copies come and go."""
        while True:
            if self._indexes:
                with contextlib.suppress(MillstreamError):
                    await self._ask()
                for group in self._groups.values():
                    if not group.is_first:
                        group.look(self._asker.copies)
                for served in self._indexes.values():
                    served.tell()  # a history that is gone will not be reached
            await asyncio.sleep(LOOK_S)

    async def judged(self, *, is_new: bool) -> Mapping[int, Judged]:
        """Return how the sources judge, as asked last; `is_new`: ask them first."""
        if is_new:
            with contextlib.suppress(MillstreamError):
                await self._ask()
        return self._asker.copies.judged

    def is_built(self, signature: str) -> bool:
        """Whether the first build of an index is over."""
        return not self._served(signature).is_new

    async def _ask(self) -> ReadableCopies:
        return await self._asker.ask(self._active | self._passive)
