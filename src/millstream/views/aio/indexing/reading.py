"""Reads the changes of a bucket for one group of indexes, over one connection to each source.

Invariants:
1. Positions are judged before streams are requested. If an index of a larger group was rolled
   back, the group ends and its indexes are grouped again (`Regroup`).
2. If an index does not accept a part that the source sent in order, the group ends, and the index
   is read again from its position. No part is skipped.
3. Reading continues during mapping and commits while the buffer has room.
4. An unreachable source affects only its own partitions. If a source is lost, the group ends and
   starts again without it.

Elsewhere: what is taken when (`views.core.index.indexer`, `views.core.index.first_build`), one
index (`views.aio.indexing.served_index`), groups (`views.aio.indexing.indexing`).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from typing import TYPE_CHECKING, Final

from millstream.errors import AccessError, MillstreamError, StreamError, UnavailableError
from millstream.upr.core.consumer import WINDOW_BYTES
from millstream.views.aio.indexing.first_rows import FirstRows
from millstream.views.aio.indexing.index_source import IndexerSpec, ReadableCopy
from millstream.views.aio.indexing.index_sources import Lines, Source, divided, open_lines
from millstream.views.aio.indexing.served_index import Gathered
from millstream.views.core.design.documents import Changes
from millstream.views.core.index.first_build import FirstBuild
from millstream.views.core.index.header import Judged
from millstream.views.core.index.indexer import Feed, Member, Part, lowest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from millstream.upr.aio.link import Link
    from millstream.views.aio.indexing.served_index import ServedIndex

__all__ = ["CONNECTS_MAX", "READ_BYTES_MAX", "GroupReader", "Regroup", "first_of"]

READ_BYTES_MAX: Final = 64 * 1024
"""Bytes cut into frames in one step of the loop."""
CONNECTS_MAX: Final = 10
"""Most connections of one first build, one after the other."""
CONNECT_PAUSE_S: Final = 0.5
"""Pause before a first build goes on over another connection."""


class Regroup(Exception):
    """The indexes of a group must no longer share a connection."""


_Work = list[tuple["ServedIndex", "FirstRows"]]
"""Indexes in their first build, and the sorted rows of each."""


class GroupReader:
    """Reads for some indexes until it ends.

    Args:
        name: of this group.
        spec: which bucket.
        served: the indexes; one that is removed is taken out of the list.
        sources: the nodes that are read.
        on_commit: called after each commit.
        is_first: a first build.
    """

    def __init__(
        self,
        name: str,
        spec: IndexerSpec,
        served: list[ServedIndex],
        sources: Sequence[Source],
        on_commit: Callable[[GroupReader], None],
        *,
        is_first: bool,
    ) -> None:
        self.name = name
        self.served = served
        self.is_first = is_first
        self.task: asyncio.Task[None] | None = None
        self.error: BaseException | None = None
        """Why it ended. None: it was told to."""
        self._spec = spec
        self._sources = sources
        self._on_commit = on_commit
        self._news = asyncio.Event()
        """Set if something was gathered, or somebody waits."""
        self._taken = asyncio.Event()
        """Set if there may be room again."""
        self._builds: dict[str, FirstBuild] = {}
        """Readers by the address of the source."""
        self._is_ending = False
        self._has_lost_rows = False
        """Set if a batch of a first build was not mapped for all its indexes."""
        self._followed: frozenset[int] = frozenset()

    @property
    def seqnos_read(self) -> int:
        """The progress of a first build, summed over all partitions."""
        return sum(sum(build.positions.values()) for build in self._builds.values())

    def wake(self) -> None:
        """Commit what is complete now: somebody waits."""
        self._news.set()

    def end(self) -> None:
        """Stop reading. A running commit is finished."""
        self._is_ending = True
        if self.task is not None:
            self.task.cancel()

    def end_if_idle(self) -> None:
        """End the group if no query waits for its indexes and none of them is kept fresh."""
        if not any(served.is_automatic or served.waiting for served in self.served):
            self.end()

    def look(self, copies: Mapping[int, ReadableCopy]) -> None:
        """Start again if other partitions can be read now, or an index has to be built."""
        wanted = {p for served in self.served for p in served.places}
        highs = {p: each.judged.high_seqno for p, each in copies.items()}
        is_behind = any(served.is_to_be_built(highs) for served in self.served)
        if self._followed and (is_behind or wanted & copies.keys() - self._followed):
            self.end()

    async def run(self) -> None:
        """Read until something ends the group.

        Raises:
            Regroup: its indexes need a new plan.
            MillstreamError: the source cannot be read, or an index not written.
        """
        try:
            await (self._read_first() if self.is_first else self._follow())
        except asyncio.CancelledError:
            if not self._is_ending:
                raise
            raise Regroup from None

    # -- following

    async def _follow(self) -> None:
        lines = await self._open(p for served in self.served for p in served.places)
        try:
            copies = lines.copies
            await self._judge(copies)
            starts = {p: place for p, place in lowest(self._members()).items() if p in copies}
            self._check_served(lines, starts)
            self._followed = frozenset(starts)
            judged = {partition: each.judged for partition, each in copies.items()}
            feeds: list[tuple[Link, Feed]] = []
            for link, here in lines.opened:
                ours = {p: place for p, place in starts.items() if p in here}
                if ours:
                    feed = Feed(ours, window_bytes=WINDOW_BYTES)
                    await link.write(feed.open(self._connection_name()))
                    feeds.append((link, feed))
            for served in self.served:
                served.error, served.failure = "; ".join(map(str, lines.failures)), None
            async with asyncio.TaskGroup() as group:
                for link, feed in feeds:
                    group.create_task(self._read(link, feed), name=f"read {self.name}")
                every = [feed for _, feed in feeds]
                group.create_task(self._commit(every, judged), name=f"commit {self.name}")
        finally:
            await lines.close()

    async def _open(self, partitions: Iterable[int]) -> Lines:
        return await open_lines(self._sources, self._spec, partitions)

    def _check_served(self, lines: Lines, found: Collection[int]) -> None:
        if not found:
            addresses = ", ".join(line.link.address for line in lines.opened) or "no node"
            raise UnavailableError(
                f"{addresses} serves no partition of bucket {self._spec.bucket!r} now",
                code="not_served",
            )

    def _members(self) -> list[Member]:
        return [Member(served.signature, served.places) for served in self.served]

    def _connection_name(self) -> bytes:
        return f"millstream:index:{self.name[:100]}:{secrets.token_hex(6)}".encode()

    async def _judge(self, copies: Mapping[int, ReadableCopy]) -> None:
        """Roll indexes back where the sources say so."""
        judged = {partition: each.judged for partition, each in copies.items()}
        rolled_back = [
            await served.roll_back(judged)
            for served in list(self.served)
            if served in self.served  # else it was removed meanwhile
        ]
        if any(rolled_back) and len(self.served) > 1:
            raise Regroup

    async def _read(self, link: Link, feed: Feed) -> None:
        await self._receive(link, feed, lambda data: feed.receive_data(data, time.monotonic()))
        if feed.is_denied:
            message = f"{feed.ended}: the right to stream bucket {self._spec.bucket!r} was lost"
            raise AccessError(message)
        raise StreamError(f"{feed.ended}; read again from the position of the index")

    async def _receive(
        self, link: Link, reader: Feed | FirstBuild, receive: Callable[[bytes], None]
    ) -> None:
        """Give received bytes to a reader until it is done, as fast as it can take them."""
        try:
            while not reader.is_read:
                receive(await link.read(bytes_max=READ_BYTES_MAX))
                self._news.set()
                while reader.is_full:
                    self._taken.clear()
                    await self._taken.wait()
                await link.write(reader.take_bytes())
                await asyncio.sleep(0)  # what is buffered is read without a pause
        finally:
            self._news.set()

    async def _commit(self, feeds: Sequence[Feed], judged: Mapping[int, Judged]) -> None:
        while True:
            self._news.clear()
            is_awaited = any(served.waiting for served in self.served)
            dues_s = [feed.due_in(time.monotonic(), is_awaited=is_awaited) for feed in feeds]
            due_s = min((due for due in dues_s if due is not None), default=None)
            if due_s != 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(due_s):
                        await self._news.wait()
                continue
            parts = dict[int, Part]()
            for feed in feeds:
                parts |= feed.take_parts(time.monotonic())
            self._taken.set()
            gathered = Gathered(parts, _as_of(parts, judged))
            for served in list(self.served):
                if served in self.served:  # else it was removed beside the commit before
                    await self._publish(served, gathered)
            self._on_commit(self)

    async def _publish(self, served: ServedIndex, gathered: Gathered) -> None:
        try:
            published = await served.publish(gathered)
        except MillstreamError:
            if served in self.served:
                raise
            return  # it was set apart or removed meanwhile, and others go on
        left_out = published.left_out if published is not None else {}
        wrong = {p: why for p, why in left_out.items() if why not in _HARMLESS}
        if wrong:
            partition, why = next(iter(wrong.items()))
            raise StreamError(
                f"index {served.signature} does not take partition {partition} ({why}); it is "
                f"read again from its position"
            )

    # -- first build

    async def _read_first(self) -> None:
        rows = [
            FirstRows(len(served.index.newest.trees), self._spec.folder) for served in self.served
        ]
        work = list(zip(self.served, rows, strict=True))
        partitions = {p for served in self.served for p in served.places}
        failures = list[MillstreamError]()
        try:
            for source, here in divided(self._sources, partitions):
                try:
                    await self._read_source(source, here, work)
                except MillstreamError as error:
                    if source.address in self._builds:  # rows of it are among the others
                        raise
                    failures.append(error)
            if not self._builds:
                if failures:
                    raise failures[0]
                self._check_served(Lines([], []), ())
            await self._load(work)
        finally:
            for each in rows:
                each.close()

    async def _read_source(self, source: Source, partitions: Collection[int], work: _Work) -> None:
        """Read what one node has, over several connections if needed.

        Raises:
            MillstreamError: why it cannot be read.
        """
        for count in range(CONNECTS_MAX):
            if await self._is_read_whole(
                source, partitions, work, is_last=count + 1 == CONNECTS_MAX
            ):
                return
            await asyncio.sleep(CONNECT_PAUSE_S)

    async def _is_read_whole(
        self, source: Source, partitions: Collection[int], work: _Work, *, is_last: bool
    ) -> bool:
        """Read over one connection. False: it was lost before the end."""
        build = self._builds.get(source.address)
        lines = Lines([], [])
        try:
            lines = await open_lines([source], self._spec, partitions)
            if build is None:
                self._check_served(lines, lines.copies)
                await self._judge(lines.copies)
                build = self._builds[source.address] = FirstBuild(lines.copies)
            link = lines.opened[0].link
            await link.write(build.connect(self._connection_name()))
            await self._map_first(link, build, work)
        except MillstreamError:
            if is_last or build is None or self._has_lost_rows:
                raise
            return False
        finally:
            await lines.close()
        return True

    async def _map_first(self, link: Link, build: FirstBuild, work: _Work) -> None:
        """Read and map until everything is mapped."""
        reading = asyncio.ensure_future(self._receive(link, build, build.receive_data))
        try:
            while True:
                self._news.clear()
                batch = build.take_batch()
                if batch is not None:
                    self._taken.set()
                    changes = Changes(*batch)
                    for served, rows in work:
                        if served in self.served:
                            await self._add_first(served, rows, changes)
                    continue
                if reading.done():
                    reading.result()
                    return
                await self._news.wait()
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def _add_first(self, served: ServedIndex, rows: FirstRows, changes: Changes) -> None:
        """Map a batch for one index. It comes once, so a failure ends the whole build."""
        try:
            await served.add_first(rows, changes)
        except MillstreamError:
            if served in self.served and not served.is_stopping:  # else the others go on
                self._has_lost_rows = True
                raise

    async def _load(self, work: _Work) -> None:
        """Commit by the sources' current judgement."""
        whole = {p: place for build in self._builds.values() for p, place in build.whole.items()}
        left_out = {p for build in self._builds.values() for p in build.left_out}
        lines = await self._open(whole)
        await lines.close()
        judged = {partition: each.judged for partition, each in lines.copies.items()}
        for served, rows in work:
            if served in self.served:
                try:
                    await served.load(rows, whole, left_out, judged)
                except UnavailableError:
                    if served in self.served:  # else it was removed meanwhile, and others go on
                        raise
        self._on_commit(self)


def _as_of(parts: Mapping[int, Part], judged: Mapping[int, Judged]) -> dict[int, Judged]:
    """Return the sources' judgement after they have sent these parts."""
    return {
        partition: Judged(
            part.failover_log,
            max(part.end.snap_end, judged[partition].high_seqno),
            judged[partition].purge_seqno,
        )
        for partition, part in parts.items()
    }


_HARMLESS: Final = frozenset({"nothing_new", "not_indexed"})


def first_of(error: BaseException) -> BaseException:
    """Return the first error of a group of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
