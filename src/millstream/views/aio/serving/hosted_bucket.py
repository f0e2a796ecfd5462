"""The indexes of one bucket in the index process, and the queries of them.

Invariants:
1. There is one index per signature of a design document. Documents with equal signatures share it,
   and a renamed document keeps it.
2. An index without a design document is closed when its last reader ends. Its files stay until
   `clean_up`, so that a document that returns finds them.
3. A damaged index is set aside and rebuilt. An index that cannot start, or whose partition states
   cannot be set, is closed and retried later. Other indexes are not affected.
4. No index is opened twice, or by two callers at once.
5. An index that opens slowly (its functions may loop while they are compiled) delays no other: it
   is opened in the background, and only its own queries wait.

Elsewhere: orders of the engine (`bucket_order`), one index (`hosted_index`), updates
(`indexing`), answers (`answering`), calls (`index_host`).
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncGenerator, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from millstream.errors import ConditionError, CorruptionError, MillstreamError, UnavailableError
from millstream.runtime.tasks import Tasks
from millstream.views.aio.indexing.index_source import Histories
from millstream.views.aio.indexing.indexing import BucketIndexer, IndexerSpec
from millstream.views.aio.indexing.served_index import IndexProgress
from millstream.views.aio.serving import owned_parts
from millstream.views.aio.serving.answering import AskedView, Form, answer
from millstream.views.aio.serving.bucket_order import BucketOrder, designs_of, sources_of
from millstream.views.aio.serving.gathering import NOBODY, NodeAccess
from millstream.views.aio.serving.hosted_index import (
    HostedIndex,
    WorkSeen,
    figures_shown,
    shown_without_views,
)
from millstream.views.aio.serving.index_server import Answer
from millstream.views.aio.serving.opening import OpeningIndexes, made
from millstream.views.aio.serving.outside_writer import OutsideWriter
from millstream.views.aio.serving.owned_parts import Asked
from millstream.views.aio.serving.preparing import keep_prepared
from millstream.views.core.design.design_documents import DesignDocument, by_signature
from millstream.views.core.index.header import bitmap_of
from millstream.views.core.query.parameters import Query, parse_query
from millstream.views.core.reduce.reductions import ReduceLimit

__all__ = [
    "COMPACT_BYTES_MIN",
    "COMPACT_CHECK_S",
    "COMPACT_SHARE",
    "HostedBucket",
]

_LOG = logging.getLogger(__name__)
COMPACT_CHECK_S: Final = 30.0
"""How often is looked whether an index should be compacted."""
COMPACT_SHARE: Final = 2
"""An index is compacted whose file is so many times what is in use of it."""
COMPACT_BYTES_MIN: Final = 16 * 1024 * 1024
"""Size of a file below which that does not matter."""
REBUILD_WAIT_S: Final = 10.0
"""How long readers of a damaged index may take to end before it is given up all the same."""
STOP_WAIT_S: Final = 2.0
"""How long readers of all indexes of a bucket may take to end when it is stopped; whoever has the
bucket dropped waits little longer."""
LAZY_S_MAX: Final = 600.0
"""How long an update may take that was asked for by a query which did not wait for it."""
COMPACT_PAUSE_S: Final = 0.005
"""Pause between two steps of a compaction."""
INDEXES: Final = "indexes"


class HostedBucket:
    """The indexes of one bucket; `start`, then `apply` as often as something changes, `stop`.

    Args:
        order: the first one.
        path: the bucket's directory.
        kv: address of the engine's socket.
        executor: threads that map and commit; shared with other buckets.
        reduce_limit: what becomes of reduce results that do not shrink.
        access: how other nodes are followed.
    """

    def __init__(
        self,
        order: BucketOrder,
        path: Path,
        kv: str,
        executor: ThreadPoolExecutor,
        reduce_limit: ReduceLimit = "true",
        access: NodeAccess = NOBODY,
    ) -> None:
        self._reduce_limit = reduce_limit
        self._kv, self._access = kv, access
        self.name, self.uuid = order.name, order.uuid
        self._folder = path / INDEXES
        self._order = order
        self._executor = executor
        self._histories = Histories()
        self._indexer = BucketIndexer(
            IndexerSpec(order.name, order.uuid, self._folder, self._histories),
            sources_of(order, self._kv, self._access),
            executor,
        )
        self._indexer.on_damage = self._damaged_now
        self._open: dict[str, HostedIndex] = {}
        self._closing: dict[str, HostedIndex] = {}
        """Wanted no more, or not to be written at present, and still read."""
        self._designs: dict[str, DesignDocument] = {}
        self._refusals: dict[str, MillstreamError] = {}
        """Why a design document, or an index by its signature, cannot be used."""
        self._change = asyncio.Lock()
        self._tasks = Tasks()
        self._opening = OpeningIndexes(self._opened, self.apply, self._tasks)
        self._work, self._parts = WorkSeen(), owned_parts.PartsTold()
        self._is_stopping = False

    async def start(self) -> None:
        """Begin to keep indexes fresh."""
        await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True)
        await self._indexer.start()
        self._tasks.start(self._keep_house(), name=f"care of indexes of {self.name}")
        prepared = keep_prepared(lambda: self._open, self._damaged)
        self._tasks.start(prepared, name=f"preparing indexes of {self.name}")

    async def stop(self) -> None:
        """Finish what is being committed, and close everything."""
        self._is_stopping = True
        await self._tasks.stop()
        async with self._change:
            await self._indexer.stop()
            for hosted in self._opening.left_over():
                await asyncio.to_thread(hosted.close)
            given_up_at = asyncio.get_running_loop().time() + STOP_WAIT_S
            for hosted in (*self._open.values(), *self._closing.values()):
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(given_up_at):
                        await hosted.until_unused()
                await asyncio.to_thread(hosted.close)
            self._open.clear()
            self._closing.clear()

    # -- which indexes there are

    async def apply(self, order: BucketOrder | None = None) -> None:
        """Become what the engine says; None: what it said last, also while this waited."""
        async with self._change:
            order = order or self._order
            self._histories.is_guarded = order.owned is not None
            if order.reads != self._order.reads:
                await self._indexer.set_sources(sources_of(order, self._kv, self._access))
            self._order = order
            wanted = self._parse(order)
            for signature in [each for each in self._open if each not in wanted]:
                await self._retire(signature)
            for signature in self._open:
                self._open[signature].design = wanted[signature]
                is_automatic = owned_parts.is_kept_fresh(order, wanted[signature])
                self._indexer.set_automatic(signature, is_automatic)
                await self._set_keeper(wanted[signature])
            new, unwanted = await self._opening.open(wanted, self._open)
            for hosted in unwanted:
                self._close_later(hosted)
            try:
                await self._set_partitions(new)
                for hosted in new:
                    await self._take_in(hosted)
            except BaseException:  # also when cancelled: what is open is known
                for hosted in new:
                    if hosted.signature not in {*self._open, *self._closing}:
                        self._close_later(hosted)
                raise
            finally:
                self._opening.taken_in()

    async def until_open(self, name: str) -> None:
        """Wait while the index of a design document is being opened, for `OPEN_S_MAX` at most."""
        if (design := self._designs.get(name)) is not None:
            await self._opening.until_open(design.signature)

    async def _set_keeper(self, design: DesignDocument) -> None:
        try:
            offers, signature = self._indexer.offers, design.signature
            if design.engine != "node":
                offers.forget(signature)
            is_kept_here = design.engine == "node" and not offers.is_taken(signature)
            await self._indexer.set_kept_here(signature, is_kept_here=is_kept_here)
        except (MillstreamError, OSError) as error:
            self._refuse(design.signature, error)

    def _parse(self, order: BucketOrder) -> dict[str, DesignDocument]:
        """Return the design documents with views, by signature."""
        self._designs, refusals = designs_of(order)
        for name, error in refusals.items():
            _LOG.warning("design document %s of %s: %s", name, self.name, error)
        self._refusals = dict(refusals)
        return by_signature(self._designs.values())

    async def _opened(self, design: DesignDocument) -> HostedIndex | None:
        signature = design.signature
        hosted = self._closing.pop(signature, None)
        try:
            if hosted is None:
                path = self._folder / signature
                hosted = await made(HostedIndex, design, self.uuid, path, self._reduce_limit)
            else:
                await asyncio.to_thread(hosted.mapper.resume)
        except (MillstreamError, OSError) as error:
            self._refuse(signature, error)
            return None
        hosted.design, hosted.is_doomed = design, False
        return hosted

    def _refuse(self, signature: str, error: MillstreamError | OSError) -> None:
        """Tell waiting callers why there is no index now. Maintenance tries to open it again."""
        _LOG.error("index %s of %s cannot be used: %s", signature, self.name, error)
        said = error if isinstance(error, MillstreamError) else _disk_error(error)
        self._refusals[signature] = said

    async def _take_in(self, hosted: HostedIndex) -> None:
        """Keep an open index fresh, and answer queries from it."""
        design = hosted.design
        for partition, log in hosted.index.newest.failover_logs.items():
            self._histories.note(partition, log)
        try:
            await self._indexer.add(
                hosted.index,
                hosted.mapper,
                is_automatic=owned_parts.is_kept_fresh(self._order, design),
                is_kept_here=design.engine == "node",
            )
        except CorruptionError as error:
            if hosted.rebuilt_because:  # a new one, too: not by what was in the files
                self._give_up(hosted, error)
            else:
                await self._begin_anew(hosted, str(error))
        except (MillstreamError, OSError) as error:
            self._give_up(hosted, error)
        else:
            self._open[hosted.signature] = hosted

    def _give_up(self, hosted: HostedIndex, error: MillstreamError | OSError) -> None:
        """Close an index that cannot be written, until it can be."""
        self._refuse(hosted.signature, error)
        self._close_later(hosted)

    async def _set_partitions(self, new: Collection[HostedIndex]) -> None:
        order = self._order
        held = {
            partition
            for hosted in (*self._open.values(), *new)
            for partition in hosted.index.newest.positions
        }
        passive = {*order.passive, *(held & set(order.resting))}
        frozen = () if order.owned is None else order.owned.frozen
        failed = await self._indexer.set_partitions(order.active, sorted(passive), frozen)
        for signature, error in failed.items():
            if isinstance(error, CorruptionError):
                self._damaged_now(signature, error)
            else:  # it would go on answering for partitions that are elsewhere
                hosted = self._open.pop(signature)
                await self._indexer.remove(signature)
                self._give_up(hosted, error)

    async def _retire(self, signature: str) -> None:
        """Close an index once no query reads it. Its files stay."""
        hosted = self._open.pop(signature)
        await self._indexer.remove(signature)
        self._close_later(hosted)

    def _close_later(self, hosted: HostedIndex) -> None:
        """Close what is not kept fresh, unless it is wanted again before."""
        hosted.mapper.close()
        self._closing[hosted.signature] = hosted
        self._tasks.start(self._close_unused(hosted), name=f"close index {hosted.signature}")

    async def _close_unused(self, hosted: HostedIndex) -> None:
        await hosted.until_unused()
        async with self._change:
            if self._closing.get(hosted.signature) is hosted and not hosted.is_used:
                del self._closing[hosted.signature]
                await asyncio.to_thread(hosted.close)
                if hosted.is_doomed:
                    await asyncio.to_thread(shutil.rmtree, hosted.path, ignore_errors=True)
                    _LOG.info("index %s of %s is removed", hosted.signature, self.name)

    async def clean_up(self) -> None:
        """Remove the files that no design document needs; of an index still read, at its end."""
        async with self._change:
            wanted = {
                *self._opening.signatures,
                *(each.signature for each in self._designs.values()),
            }
            for signature, hosted in self._closing.items():
                hosted.is_doomed = signature not in wanted  # else it is closed to be tried again
            kept = {*self._open, *self._closing, *wanted}
            for path in await asyncio.to_thread(lambda: sorted(self._folder.iterdir())):
                if path.name not in kept:
                    await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
                    _LOG.info("files of index %s of %s are removed", path.name, self.name)

    async def _rebuild(self, hosted: HostedIndex, why: str) -> None:
        """Set a damaged index aside and begin a new one."""
        async with self._change:
            if self._open.get(hosted.signature) is not hosted or self._is_stopping:
                return
            _LOG.error("index %s of %s is built anew: %s", hosted.signature, self.name, why)
            del self._open[hosted.signature]
            await self._indexer.remove(hosted.signature)
            with suppress(TimeoutError):
                async with asyncio.timeout(REBUILD_WAIT_S):
                    await hosted.until_unused()
            await self._begin_anew(hosted, why)

    async def _begin_anew(self, hosted: HostedIndex, why: str) -> None:
        await asyncio.to_thread(hosted.set_aside)
        again = await self._opened(hosted.design)
        if again is not None:
            again.rebuilt_because = why
            await self._take_in(again)

    def _damaged(self, hosted: HostedIndex, error: CorruptionError) -> None:
        """Something of an index cannot be read: begin a new one in the background.

        A reader may say so of one that was set aside already.
        """
        if self._open.get(hosted.signature) is hosted:
            name = f"rebuild {hosted.signature}"
            self._tasks.start(self._rebuild(hosted, str(error)), name=name)

    def _damaged_now(self, signature: str, error: CorruptionError) -> None:
        """The same of the index that is kept fresh."""
        hosted = self._open.get(signature)
        if hosted is not None:
            self._damaged(hosted, error)

    # -- calls

    def _found(self, name: str) -> tuple[HostedIndex, DesignDocument]:
        """Return the index of a design document.

        Raises:
            ConditionError: `missing`.
            UsageError: `missing_named_view`, it has no views; why it cannot be used.
        """
        if name in self._refusals:
            raise self._refusals[name]
        design = self._designs.get(name)
        if design is None:
            raise ConditionError("missing", code="missing")
        if not design.views:
            design.number_of("")
        if design.signature in self._refusals:
            raise self._refusals[design.signature]
        hosted = self._open.get(design.signature)
        if hosted is None:
            raise UnavailableError("the index is being opened", code="index_unavailable")
        return hosted, design

    @property
    def order(self) -> BucketOrder:
        """What the engine said last."""
        return self._order

    @contextmanager
    def asked_view(self, name: str, view: str) -> Iterator[AskedView]:
        """Hold a view open; what a query has to know of it. Raises as `query`."""
        hosted, design = self._found(name)
        asked = hosted.asked_view(design.views[design.number_of(view)])
        with hosted.used():
            yield asked

    async def query(
        self,
        name: str,
        view: str,
        options: dict[str, Any],
        partitions: Collection[int] | None = None,
        form: Form = "json",
        keys: Asked | None = None,
    ) -> Answer:
        """Answer a query.

        Args:
            name: of the design document.
            view: of it.
            options: of the query.
            partitions: to answer for; None: all of the bucket.
            form: the whole answer, or a part for who merges several.
            keys: in a managed cluster, of the index records by which this node was chosen.

        Raises:
            UsageError: `missing_named_view`, `query_parse_error`.
            ConditionError: `missing`, `seq_unreachable`.
            RoutingError: `not_my_partition`.
            UnavailableError: `index_timeout`, and as `answering.answer`.
        """
        hosted, design = self._found(name)
        number = design.number_of(view)
        asked = hosted.asked_view(design.views[number])
        query = parse_query(options)
        query.check(asked.reduce >= 0, asked.encode)
        count = self._order.partition_count
        wanted = range(count) if partitions is None else partitions
        bitmap = (1 << count) - 1 if partitions is None else bitmap_of(partitions)
        await owned_parts.until_settled(lambda: self._order, wanted, keys)
        owned_parts.check_asked(self._order, wanted, keys)
        async with AsyncExitStack() as stack:
            stack.enter_context(hosted.used())
            try:
                await self._until_fresh(hosted, query, wanted, keys)
                await self._until_whole(hosted, wanted, query.timeout / 1000)
                snapshot = await owned_parts.snapshot_at_floor(
                    hosted, lambda: self._order, self._indexer, wanted, self._catch_up
                )
                answered = await answer(snapshot, asked, query, bitmap, form)
            except CorruptionError as error:
                self._damaged(hosted, error)
                raise
            if query.update == "lazy":
                self._tasks.start(self._freshen(hosted), name=f"lazy update {name}")
            if isinstance(answered.chunks, tuple):
                return Answer(answered.head, answered.chunks)
            rest = stack.pop_all()
        return Answer(answered.head, self._body(hosted, answered.chunks, rest))

    async def _body(
        self, hosted: HostedIndex, chunks: AsyncGenerator[bytes, None], rest: AsyncExitStack
    ) -> AsyncGenerator[bytes, None]:
        async with rest, aclosing(chunks):
            try:
                async for chunk in chunks:
                    yield chunk
            except CorruptionError as error:
                self._damaged(hosted, error)
                raise

    async def _until_fresh(
        self, hosted: HostedIndex, query: Query, wanted: Collection[int], keys: Asked | None
    ) -> None:
        timeout_s = query.timeout / 1000
        began = time.monotonic()
        if query.update == "true":
            order, signature = (lambda: self._order), hosted.signature
            await owned_parts.updated(order, self._indexer, signature, wanted, keys, timeout_s)
        if query.at is not None:
            left_s = timeout_s - (time.monotonic() - began)
            await self._indexer.wait_for_positions(hosted.signature, query.at, left_s)

    async def _until_whole(
        self, hosted: HostedIndex, partitions: Collection[int], timeout_s: float
    ) -> None:
        """Wait for rows that are missing though there were some: whatever `update` says."""
        if late := hosted.lacking(partitions, self._order.owed):
            await self._indexer.updated(hosted.signature, late, timeout_s)

    def _catch_up(self, hosted: HostedIndex) -> None:
        """Let an index reach the floors: it may not be kept fresh by itself."""

        async def freshen() -> None:
            await self._freshen(hosted)
            hosted.is_catching_up = False

        if not hosted.is_catching_up:
            hosted.is_catching_up = True
            self._tasks.start(freshen(), name=f"late {hosted.signature}")

    async def parts(self, known: int) -> dict[str, Any]:
        """Return how far the indexes are in each part of a managed bucket; see `PartsTold`."""
        opened, is_opening = list(self._open.values()), bool(self._opening.signatures)
        return await self._parts.told(
            self._order, opened, self._indexer, is_opening=is_opening, known=known
        )

    async def prepare(self, partitions: Collection[int], timeout_s: float) -> bool:
        """Wait until all indexes have partitions that are about to become active; False: not so.

        An index that cannot be kept fresh is not waited for.
        """
        until = time.monotonic() + timeout_s
        is_whole = True
        for signature, hosted in list(self._open.items()):
            if hosted.design.engine != "node":
                continue
            try:
                await self._indexer.updated(signature, partitions, until - time.monotonic())
            except MillstreamError as error:
                _LOG.warning(
                    "index %s of %s does not have partitions %s yet: %s",
                    signature, self.name, sorted(partitions), error,
                )  # fmt: skip
                is_whole = False
        return is_whole

    async def _freshen(self, hosted: HostedIndex) -> None:
        with suppress(MillstreamError):
            await self._indexer.updated(hosted.signature, self._order.active, LAZY_S_MAX)

    def writer(self, name: str) -> OutsideWriter:
        """Return what a writer outside may do with an index; raises as `query`."""
        return OutsideWriter(self._found(name)[0], self._indexer, lambda: self._order.owned)

    def offers(self, building: Collection[str]) -> list[str]:
        """Return the design documents whose builds a pipeline may do; it says which it does."""
        signatures = {d.signature for name, d in self._designs.items() if name in building}
        offered = self._indexer.offers.heard(signatures, time.monotonic())
        return sorted(hosted.design.name for s in offered if (hosted := self._open.get(s)))

    # -- what is seen

    def info(self, name: str) -> dict[str, Any]:
        """Return what `_info` shows; raises as `query`."""
        known = self._designs.get(name)
        if known is not None and not known.views:
            return shown_without_views(known)
        hosted, design = self._found(name)
        return hosted.shown(design, self._progress()[hosted.signature])

    def _progress(self) -> dict[str, IndexProgress]:
        return {progress.signature: progress for progress in self._indexer.progress()}

    def tasks(self) -> list[dict[str, Any]]:
        """Return what is being done, as `_active_tasks` shows it."""
        shown: list[dict[str, Any]] = []
        for signature, progress in sorted(self._progress().items()):
            hosted = self._open.get(signature)
            if hosted is not None:
                shown += self._work.tasks(hosted, progress, self.name, self._names_of(signature))
        return shown

    def _names_of(self, signature: str) -> list[str]:
        return [
            f"_design/{name}"
            for name, design in self._designs.items()
            if design.signature == signature
        ]

    def figures(self) -> dict[str, float]:
        """Return the figures of all indexes together, by the names of group `index`."""
        opened = list(self._open.values())
        shown = figures_shown(opened, self._progress().values(), self._indexer.work())
        return shown | {"broken": len(self._refusals)}

    # -- compaction

    def compact(self, name: str) -> None:
        """Begin to write an index anew, densely; raises as `query`."""
        hosted, _ = self._found(name)
        self._start_compaction(hosted)

    def _start_compaction(self, hosted: HostedIndex) -> None:
        if not hosted.is_compacting:
            hosted.is_compacting = True
            self._tasks.start(self._compact(hosted), name=f"compact index {hosted.signature}")

    async def _compact(self, hosted: HostedIndex) -> None:
        before = hosted.index.sizes().file_bytes
        try:
            with hosted.used():
                is_done = False
                while not is_done:
                    is_done = await self._indexer.compact_step(hosted.signature)
                    await asyncio.sleep(COMPACT_PAUSE_S)
        except CorruptionError as error:
            self._damaged_now(hosted.signature, error)
        except (MillstreamError, OSError) as error:
            _LOG.warning("index %s was not compacted: %s", hosted.signature, error)
        else:
            after = hosted.index.sizes().file_bytes
            _LOG.info("index %s: %d bytes became %d", hosted.signature, before, after)
        finally:
            hosted.is_compacting = False

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(COMPACT_CHECK_S)
            # What could not be opened is tried again, what was opened late is taken in.
            can_be_tried = any(each.retry != "never" for each in self._refusals.values())
            if can_be_tried or self._opening.signatures:
                await self.apply()
            for hosted in list(self._open.values()):
                await asyncio.to_thread(hosted.staging.expire)
                sizes = hosted.index.sizes()
                is_large = sizes.file_bytes >= COMPACT_BYTES_MIN
                if is_large and sizes.file_bytes > COMPACT_SHARE * sizes.used_bytes:
                    self._start_compaction(hosted)


def _disk_error(error: OSError) -> UnavailableError:
    return UnavailableError(f"the index cannot be opened: {error}", code="disk_error")
