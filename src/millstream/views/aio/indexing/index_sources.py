"""The nodes from which the indexes of a bucket are read, and the partitions read at each.

The index process of a node with data has one source, the engine beside it. The index process of a
node without data has the nodes of the cluster as sources, each for its active partitions.

Invariants:
1. A partition is read from one source at a time: the last one that was named for it.
2. A source that cannot be reached affects its own partitions only: they count as unreadable for
   now. It is an error if no source can be reached.
3. A partition that is read from a source because it is active there is not read from a replica:
   that copy may have been active until a moment ago, and lacks what was written since.
4. As long as no source reports anything new, `CopiesAsker.ask` returns the same object.

Elsewhere: the answer of one source (`index_source`), who reads (`reading`, `indexing`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from millstream.errors import MillstreamError, RoutingError, UnavailableError
from millstream.views.aio.indexing.index_source import (
    IndexerSpec,
    ReadableCopies,
    ask_copies,
)
from millstream.views.core.query.wait_for import Wanted, judge

if TYPE_CHECKING:
    from millstream.upr.aio.link import Link
    from millstream.views.core.index.header import Header

__all__ = ["CopiesAsker", "Line", "Lines", "Source", "divided", "open_lines"]


class Source(NamedTuple):
    """A node, and the partitions that are active and read there. None: all, also replicas."""

    address: str
    link_to: Callable[[], Link]
    partitions: frozenset[int] | None = None

    @property
    def is_active_only(self) -> bool:
        """Whether replica copies there must not be read."""
        return self.partitions is not None


class Line(NamedTuple):
    """A connection to a source, and the state of its copies."""

    link: Link
    copies: ReadableCopies


class Lines(NamedTuple):
    """The connections that could be opened, and the errors of the others."""

    opened: list[Line]
    failures: list[MillstreamError]

    @property
    def copies(self) -> ReadableCopies:
        """The states reported by all sources together."""
        return joined([line.copies for line in self.opened])

    async def close(self) -> None:
        """End all connections."""
        for line in self.opened:
            await line.link.close()


def divided(sources: Sequence[Source], partitions: Iterable[int]) -> list[tuple[Source, set[int]]]:
    """Return which partitions to read at which source, without sources that have none."""
    left = set(partitions)
    found = []
    for source in reversed(sources):
        here = left if source.partitions is None else left & source.partitions
        left = left - here
        if here:
            found.append((source, here))
    return found[::-1]


def joined(every: Sequence[ReadableCopies]) -> ReadableCopies:
    """Combine the reports of several sources.

    The report of a single source is returned as it is.
    """
    if len(every) == 1:
        return every[0]
    return ReadableCopies({p: one for copies in every for p, one in copies.items()})


async def open_lines(
    sources: Sequence[Source], spec: IndexerSpec, partitions: Iterable[int]
) -> Lines:
    """Connect to the sources of some partitions, and ask for the states of their copies.

    Raises:
        MillstreamError: the error of the first source, if no source can be read.
    """
    lines = Lines([], [])
    try:
        for source, here in divided(sources, partitions):
            link = source.link_to()
            try:
                await link.open_bucket(spec.bucket_uuid)
                copies = await ask_copies(
                    link, here, is_active_only=source.is_active_only, histories=spec.histories
                )
                lines.opened.append(Line(link, copies))
            except MillstreamError as error:
                await link.close()
                lines.failures.append(error)
            except BaseException:  # cancelled
                await link.close()
                raise
    except BaseException:
        await lines.close()
        raise
    if lines.failures and not lines.opened:
        raise lines.failures[0]
    return lines


class _Asked:
    """A source that is asked repeatedly over one connection."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.copies = ReadableCopies()
        self.failure: MillstreamError | None = None
        self._link: Link | None = None

    async def ask(self, spec: IndexerSpec, partitions: Collection[int]) -> None:
        """Ask the source. A connection that was used before may have been closed meanwhile."""
        is_used = self._link is not None
        try:
            try:
                await self._ask_once(spec, partitions)
            except UnavailableError:
                if not is_used:
                    raise
                await self._ask_once(spec, partitions)
            self.failure = None
        except MillstreamError as error:
            self.failure, self.copies = error, ReadableCopies()

    async def _ask_once(self, spec: IndexerSpec, partitions: Collection[int]) -> None:
        link, self._link = self._link, None
        is_new = link is None
        link = link or self.source.link_to()
        try:
            if is_new:
                await link.open_bucket(spec.bucket_uuid)
            self.copies = await ask_copies(
                link, partitions, self.copies,
                is_active_only=self.source.is_active_only, histories=spec.histories,
            )  # fmt: skip
        except BaseException:  # cancelled as well: an answer may still come
            await link.close()
            raise
        self._link = link

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()
            self._link = None


class CopiesAsker:
    """Knows the copies at all sources. Questions that arrive together are asked once."""

    def __init__(self, spec: IndexerSpec, sources: Sequence[Source]) -> None:
        self._spec = spec
        self._asked = [_Asked(source) for source in sources]
        self._asking = asyncio.Lock()
        self._running: list[asyncio.Task[None]] = []
        """One asker for each source."""
        self._is_closed = False
        self._count = 0
        self._parts: list[ReadableCopies] = []
        self.copies = ReadableCopies()
        """The last answer."""

    async def set_sources(self, sources: Sequence[Source]) -> None:
        """Ask these sources from now on. Callers that wait for an answer wait for theirs."""
        if self._is_closed:
            return
        before, self._asked = self._asked, [_Asked(source) for source in sources]
        for task in self._running:
            task.cancel()
        for asked in before:
            await asked.close()

    async def ask(self, partitions: Collection[int]) -> ReadableCopies:
        """Return the current state of the copies.

        Raises:
            MillstreamError: the error of the first source, if none can be asked.
            UnavailableError: `stopped`: the subscription was closed meanwhile.
        """
        before = self._count
        async with self._asking:
            if self._count > before + 1:  # one was begun and answered meanwhile
                return self.copies
            asked = await self._ask_all(partitions)
            failed = [each.failure for each, _ in asked if each.failure is not None]
            if failed and len(failed) == len(asked):
                raise failed[0]
            self._count += 1
            parts = [each.copies for each, _ in asked]
            is_same = len(parts) == len(self._parts)
            if not is_same or any(a is not b for a, b in zip(parts, self._parts, strict=True)):
                self._parts, self.copies = parts, joined(parts)
            return self.copies

    async def _ask_all(self, partitions: Collection[int]) -> list[tuple[_Asked, set[int]]]:
        """Ask the sources. Start again if they are replaced meanwhile."""
        while True:
            if self._is_closed:
                raise UnavailableError(
                    f"the index of bucket {self._spec.bucket!r} stops; ask again later",
                    code="stopped",
                )
            current = self._asked
            by_address = {each.source.address: each for each in current}
            shares = divided([each.source for each in current], partitions)
            asked = [(by_address[source.address], here) for source, here in shares]
            async with asyncio.TaskGroup() as group:
                self._running = [
                    group.create_task(each.ask(self._spec, here)) for each, here in asked
                ]
            if current is self._asked and not self._is_closed:
                return asked

    def judged(self, header: Header, wanted: Mapping[int, Wanted]) -> tuple[list[int], list[int]]:
        """Return the partitions that are waited for, and those that cannot be reached.

        Raises:
            RoutingError: `not_my_partition`: one is not indexed here.
        """
        late, lost = [], []
        for partition, each in wanted.items():
            position = header.positions.get(partition)
            if position is None:
                raise RoutingError(f"partition {partition} is not indexed here")
            copy = self.copies.get(partition)
            verdict = judge(
                each,
                position,
                header.failover_logs.get(partition, ()),
                copy.judged.log if copy else None,
                copy.judged.purge_seqno if copy else 0,
            )
            if verdict == "waiting":
                late.append(partition)
            elif verdict == "unreachable":
                lost.append(partition)
        return late, lost

    def failure_of(self, partition: int) -> MillstreamError | None:
        """Return why the source of a partition could not be asked last."""
        for asked in self._asked:
            if asked.source.partitions is None or partition in asked.source.partitions:
                return asked.failure
        return None

    async def close(self) -> None:
        """Close all connections. Waiting callers get an error at once."""
        self._is_closed = True
        for task in self._running:
            task.cancel()
        async with self._asking:
            for asked in self._asked:
                await asked.close()
