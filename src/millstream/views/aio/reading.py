"""Reads the changes of a bucket for one group of indexes, over one connection.

Invariants:
1. Positions are judged before streams are asked for; who had to go back to an older root and is
   in company is planned for anew (`Regroup`).
2. An index that does not take a part which the source sent in order ends the group, so that it is
   read for from where it stands: no part is ever skipped.
3. Reading goes on beside mapping and commits, as far as the buffer has room.

Elsewhere: what is taken when (`views.core.indexer`, `views.core.first_build`), the indexes
(`views.aio.served`), who is with whom (`views.aio.indexing`).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.errors import AccessError, MillstreamError, StreamError, UnavailableError
from millstream.upr.core.consumer import WINDOW_BYTES
from millstream.views.aio.index_source import SourceStanding, ask_standings, open_source
from millstream.views.aio.served import FirstRows, Gathered
from millstream.views.core.documents import Changes
from millstream.views.core.first_build import FirstBuild
from millstream.views.core.header import Judged
from millstream.views.core.indexer import Feed, Member, Part, lowest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from millstream.upr.aio.link import Link
    from millstream.views.aio.served import ServedIndex

__all__ = ["CONNECTS_MAX", "READ_BYTES_MAX", "GroupReader", "IndexerSpec", "Regroup"]

READ_BYTES_MAX: Final = 64 * 1024
"""Cut in one step of the loop."""
CONNECTS_MAX: Final = 10
"""Connections of one first build, one after the other."""
CONNECT_PAUSE_S: Final = 0.5
"""Before a first build goes on over another one."""


class IndexerSpec(NamedTuple):
    """Which bucket, and where runs of a first build are kept."""

    bucket: str
    bucket_uuid: str
    folder: Path


class Regroup(Exception):
    """The indexes of a group belong together no longer."""


class GroupReader:
    """Reads for some indexes until it ends.

    Args:
        name: of this group.
        spec: which bucket.
        served: the indexes; one that is removed is taken out of the list.
        link_to: makes a connection.
        on_commit: called after each commit.
        is_first: a first build.
    """

    def __init__(
        self,
        name: str,
        spec: IndexerSpec,
        served: list[ServedIndex],
        link_to: Callable[[], Link],
        on_commit: Callable[[GroupReader], None],
        *,
        is_first: bool,
    ) -> None:
        self.name = name
        self.served = served
        self.is_first = is_first
        self.task: asyncio.Task[None] | None = None
        self.error: BaseException | None = None
        """Why it ended; None: by order."""
        self._spec = spec
        self._link_to = link_to
        self._on_commit = on_commit
        self._news = asyncio.Event()
        """Something was gathered, or somebody waits."""
        self._taken = asyncio.Event()
        """There may be room again."""
        self._build: FirstBuild | None = None
        self._is_ending = False
        self._followed: frozenset[int] = frozenset()

    @property
    def seqnos_read(self) -> int:
        """How far a first build is, all partitions together."""
        return 0 if self._build is None else sum(self._build.positions.values())

    def wake(self) -> None:
        """Somebody waits: what is whole is to be committed now."""
        self._news.set()

    def end(self) -> None:
        """Read nothing more; a commit that has begun is finished."""
        self._is_ending = True
        if self.task is not None:
            self.task.cancel()

    def look(self, standings: Mapping[int, SourceStanding]) -> None:
        """Begin anew if other partitions can be read now."""
        wanted = {p for served in self.served for p in served.places}
        if self._followed and frozenset(wanted & standings.keys()) - self._followed:
            self.end()

    async def run(self) -> None:
        """Read until something ends it.

        Raises:
            Regroup: its indexes are to be planned for anew.
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
        link = self._link_to()
        try:
            await open_source(link, self._spec.bucket, self._spec.bucket_uuid)
            standings = await self._judge(link)
            starts = {
                partition: place
                for partition, place in lowest(self._members()).items()
                if partition in standings
            }
            self._check_served(link, starts)
            self._followed = frozenset(starts)
            judged = {partition: each.judged for partition, each in standings.items()}
            feed = Feed(starts, window_bytes=WINDOW_BYTES)
            await link.write(feed.open(self._connection_name()))
            for served in self.served:
                served.error, served.failure = "", None
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(link, feed), name=f"read {self.name}")
                group.create_task(self._commit(feed, judged), name=f"commit {self.name}")
        finally:
            await link.close()

    def _check_served(self, link: Link, found: Collection[int]) -> None:
        if not found:
            raise UnavailableError(
                f"{link.address} serves no partition of bucket {self._spec.bucket!r} now",
                code="not_served",
            )

    def _members(self) -> list[Member]:
        return [Member(served.signature, served.places) for served in self.served]

    def _connection_name(self) -> bytes:
        return f"millstream:index:{self.name[:100]}:{secrets.token_hex(6)}".encode()

    async def _judge(self, link: Link) -> dict[int, SourceStanding]:
        """Have indexes go back where the source says so."""
        standings = await ask_standings(link, {p for each in self.served for p in each.places})
        judged = {partition: each.judged for partition, each in standings.items()}
        rolled_back = [
            await served.roll_back(judged)
            for served in list(self.served)
            if served in self.served  # else it was removed meanwhile
        ]
        if any(rolled_back) and len(self.served) > 1:
            raise Regroup
        return standings

    async def _read(self, link: Link, feed: Feed) -> None:
        while not feed.ended:
            feed.receive_data(await link.read(bytes_max=READ_BYTES_MAX), time.monotonic())
            self._news.set()
            while feed.is_full:
                self._taken.clear()
                await self._taken.wait()
            await link.write(feed.take_bytes())
            await asyncio.sleep(0)  # what is buffered is read without a pause
        if feed.is_denied:
            message = f"{feed.ended}: the right to stream bucket {self._spec.bucket!r} was lost"
            raise AccessError(message)
        raise StreamError(f"{feed.ended}; read again from where the index stands")

    async def _commit(self, feed: Feed, judged: Mapping[int, Judged]) -> None:
        while True:
            self._news.clear()
            is_awaited = any(served.waiting for served in self.served)
            due_s = feed.due_in(time.monotonic(), is_awaited=is_awaited)
            if due_s != 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(due_s):
                        await self._news.wait()
                continue
            parts = feed.take_parts(time.monotonic())
            self._taken.set()
            gathered = Gathered(parts, _as_of(parts, judged))
            for served in list(self.served):
                if served in self.served:  # else it was removed beside the commit before
                    await self._publish(served, gathered)
            self._on_commit(self)

    async def _publish(self, served: ServedIndex, gathered: Gathered) -> None:
        published = await served.publish(gathered)
        left_out = published.left_out if published is not None else {}
        wrong = {p: why for p, why in left_out.items() if why not in _HARMLESS}
        if wrong:
            partition, why = next(iter(wrong.items()))
            raise StreamError(
                f"index {served.signature} does not take partition {partition} ({why}); it is "
                "read for again from where it stands"
            )

    # -- first build

    async def _read_first(self) -> None:
        rows = [
            FirstRows(len(served.index.newest.trees), self._spec.folder) for served in self.served
        ]
        work = list(zip(self.served, rows, strict=True))
        try:
            for count in range(CONNECTS_MAX):
                if await self._is_read_whole(work, is_last=count + 1 == CONNECTS_MAX):
                    return
                await asyncio.sleep(CONNECT_PAUSE_S)
        finally:
            for each in rows:
                each.close()

    async def _is_read_whole(
        self, work: list[tuple[ServedIndex, FirstRows]], *, is_last: bool
    ) -> bool:
        """Read over one connection, and load; false: it was lost before the end."""
        link = self._link_to()
        try:
            await open_source(link, self._spec.bucket, self._spec.bucket_uuid)
            standings = await ask_standings(link, {p for each in self.served for p in each.places})
            if self._build is None:
                self._check_served(link, standings)
                self._build = FirstBuild(standings)
            await link.write(self._build.connect(self._connection_name()))
            await self._map_first(link, self._build, work)
        except MillstreamError:
            if is_last or self._build is None:
                raise
            return False
        finally:
            await link.close()
        await self._load(work, self._build)
        return True

    async def _map_first(
        self, link: Link, build: FirstBuild, work: list[tuple[ServedIndex, FirstRows]]
    ) -> None:
        """Read and map until everything has been."""
        reading = asyncio.ensure_future(self._receive_first(link, build))
        try:
            while True:
                self._news.clear()
                batch = build.take_batch()
                if batch is not None:
                    self._taken.set()
                    changes = Changes(*batch)
                    for served, rows in work:
                        if served in self.served:
                            await served.add_first(rows, changes)
                    continue
                if reading.done():
                    reading.result()
                    return
                await self._news.wait()
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def _receive_first(self, link: Link, build: FirstBuild) -> None:
        try:
            while not build.is_read:
                build.receive_data(await link.read(bytes_max=READ_BYTES_MAX))
                self._news.set()
                while build.is_full:
                    self._taken.clear()
                    await self._taken.wait()
                await link.write(build.take_bytes())
                await asyncio.sleep(0)  # what is buffered is read without a pause
        finally:
            self._news.set()

    async def _load(self, work: list[tuple[ServedIndex, FirstRows]], build: FirstBuild) -> None:
        """Commit, as the source judges now."""
        link = self._link_to()
        try:
            await open_source(link, self._spec.bucket, self._spec.bucket_uuid)
            standings = await ask_standings(link, build.whole)
        finally:
            await link.close()
        judged = {partition: each.judged for partition, each in standings.items()}
        for served, rows in work:
            if served in self.served:
                try:
                    await served.load(rows, build.whole, build.left_out, judged)
                except UnavailableError:
                    if served in self.served:  # else it was removed meanwhile, and others go on
                        raise
        self._on_commit(self)


def _as_of(parts: Mapping[int, Part], judged: Mapping[int, Judged]) -> dict[int, Judged]:
    """Return how the source judges, now that it has sent these parts."""
    return {
        partition: Judged(
            part.failover_log,
            max(part.end.snap_end, judged[partition].high_seqno),
            judged[partition].purge_seqno,
        )
        for partition, part in parts.items()
    }


_HARMLESS: Final = frozenset({"nothing_new", "not_indexed"})
