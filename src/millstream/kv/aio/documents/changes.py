"""A walk over a bucket's changes that waits for threads that read the log, and for new changes.

Invariants:
1. The log is read in worker threads, one chunk at a time. If a walk is cancelled meanwhile, the
   chunk is dropped.
2. Memory holds one chunk, or at most `ORDERED_BYTES_MAX` of a small answer.
3. A small answer over all partitions is ordered by time; a large one goes partition by partition.
   So does an answer over some partitions: its caller orders it with the others.
4. When a bucket is no longer served, all its walks end.
5. The loop gets control after `STEP_S`, also where all changes are in memory.

Elsewhere: what is read, and positions (`kv.core.revisions.changes_feed`), the pages
(`gateway.aio.documents.changes_pages`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

from millstream.documents.tokens import (
    History,
    TokenWriter,
    Vector,
    origin_of,
    start_at,
    vector_at,
)
from millstream.errors import ConditionError, UnavailableError
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.active import check_served
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.revisions.changes_feed import (
    ChangesFeed,
    Piece,
    history_of,
    in_order_of_time,
    lasting_mark,
)
from millstream.model.position import Position
from millstream.runtime.pace import Turns

__all__ = [
    "ORDERED_BYTES_MAX", "ORDERED_CHANGES_MAX", "SUSPENDED_SECONDS_MAX", "SUSPENDED_WAIT_S",
    "BucketChanges", "Changes",
]  # fmt: skip

ORDERED_CHANGES_MAX: Final = 2048
"""Seqnos that a reader may lack, in all partitions, to get them ordered by time."""
ORDERED_BYTES_MAX: Final = 4 * 1024 * 1024
SUSPENDED_WAIT_S: Final = 0.02
SUSPENDED_SECONDS_MAX: Final = 10.0
"""How long a partition may be about to change, for instance be moved, before the reader, or who
changes documents, gets an error."""
UNKNOWN_SECONDS_MAX: Final = 1.0
"""How long a request waits for copies to follow a partition that has just moved."""


class Changes:
    """One reader's walk.

    Args:
        bucket: whose changes are read.
        start: position of the reader.
        restarts: the reader sees a subset of the documents, selected by content.
        purge_epoch: number of purges of the bucket so far.
        on_close: called once.
        numbers: of the partitions that are read; None: all.

    Raises:
        UnavailableError: `not_my_partition`.
    """

    def __init__(
        self,
        bucket: Bucket,
        start: Vector,
        *,
        restarts: bool,
        purge_epoch: Callable[[], int],
        on_close: Callable[[Changes], None],
        numbers: Collection[int] | None = None,
    ) -> None:
        self._bucket = bucket
        self._feed = ChangesFeed(bucket.partitions, start, restarts=restarts, numbers=numbers)
        self._is_ordered = numbers is None
        self._purge_epoch = purge_epoch
        self._on_close = on_close
        self.news = asyncio.Event()
        """Set when there may be more to read, or the bucket is no longer served."""
        self._is_closed = self._is_dropped = False
        self._turns: Turns
        epoch = max(start.purge_epoch, purge_epoch())
        self.tokens = TokenWriter(Vector(start.origin, self._feed.positions, epoch))
        """Position of the reader; advanced by whoever sends it changes."""
        bucket.subscribe_durable(self.news.set)

    def lag(self) -> int:
        """Return the number of seqnos above the reader's position.

        Raises:
            UnavailableError: `not_my_partition`; `majority_unknown`.
        """
        self.check()
        partitions, tokens = self._bucket.partitions, self.tokens
        return sum(
            max(0, lasting_mark(partitions[number]) - tokens.position(number).seqno)
            for number in self._feed.walks
        )

    @property
    def positions(self) -> Mapping[int, Position]:
        """Return the reader's position after everything that was sent, by partition."""
        return {number: walk.position for number, walk in self._feed.walks.items()}

    def has_more(self) -> bool:
        """Return whether there may be something to read.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `not_my_partition`.
        """
        self._check_served()
        return self._feed.is_suspended or self._feed.lag() > 0

    async def pieces(self, turns: Turns | None = None) -> AsyncGenerator[Piece, None]:
        """Yield the changes available now, each partition to the end of one snapshot.

        The reader then has all changes that were durable at the beginning, and its position says
        so.

        Args:
            turns: of a request that reads several walks.

        Raises:
            ConditionError: `bucket_not_found`, the bucket was removed.
            UnavailableError: `not_my_partition`; `temporarily_unavailable`.
        """
        self._turns = turns or Turns()
        await self._settled()
        await self._give_turns()  # each of these looks at all partitions
        numbers = self._feed.behind()
        await self._give_turns()
        if self._is_ordered and numbers and self._feed.lag() <= ORDERED_CHANGES_MAX:
            gathered = await self._gather(numbers)
            await self._give_turns()
            for piece in in_order_of_time(gathered):
                yield piece
        for number in numbers:
            while (found := await self._next(number)) is not None:
                self._mark_purges()
                yield found
                if not self._feed.walks[number].is_open:
                    break
        self._follow_rollbacks()

    async def _gather(self, numbers: list[int]) -> list[Piece]:
        """Read partitions as far as memory allows; finished ones are removed from the list."""
        gathered, size = list[Piece](), 0
        while numbers and size <= ORDERED_BYTES_MAX:
            piece = await self._next(numbers[0])
            if piece is not None:
                gathered.append(piece)
                size += sum(map(len, piece.frames))
            if not self._feed.walks[numbers[0]].is_open:
                del numbers[0]
        self._mark_purges()
        return gathered

    async def _next(self, number: int) -> Piece | None:
        """Return the next changes of a partition; None: there are none now.

        A partition that began to change after the walk was begun is waited for: it may have some.
        """
        walk = self._feed.walks[number]
        await self._give_turns()
        while True:
            while walk.begin():
                piece = walk.from_memory()
                if piece is not None:
                    await self._give_turns()
                else:
                    chunks = walk.chunks
                    assert chunks is not None
                    piece = walk.from_log(await asyncio.to_thread(next, chunks, None))
                    self._check_served()
                if piece is not None:
                    return piece
            if not walk.is_suspended:
                return None
            await self._settled()

    async def _give_turns(self) -> None:
        """Let others run, between what is read and what its reader does with it, too."""
        if self._turns.is_over:
            await self._turns.give()
            self._check_served()

    async def _settled(self) -> None:
        """Wait while a partition is about to change."""
        waited_s, feed = 0.0, self._feed
        self._check_served()
        while feed.is_suspended or (not feed.is_durable_known and waited_s < UNKNOWN_SECONDS_MAX):
            if feed.is_suspended and waited_s >= SUSPENDED_SECONDS_MAX:
                raise UnavailableError(
                    "a partition of the database is being moved, or its copies have not reported "
                    "what they have: ask again",
                    code="temporarily_unavailable",
                )
            await asyncio.sleep(SUSPENDED_WAIT_S)
            waited_s += SUSPENDED_WAIT_S
            self.check()

    def _mark_purges(self) -> None:
        """Update the purge epoch before the effects of a purge are shown."""
        epoch = self._purge_epoch()
        if epoch > self.tokens.purge_epoch:
            self.tokens.mark_purges(epoch)
            self.mark_purges()

    def mark_purges(self) -> None:
        """Documents were purged: lost changes may have hidden something."""
        self._feed.mark_purges()

    def _follow_rollbacks(self) -> None:
        """Everything was sent: set the reader's position to that of its walks."""
        for number, position in self.positions.items():
            if self.tokens.position(number) != position:
                self.tokens.move(number, position)

    async def wait(self, seconds: float) -> bool:
        """Return once there may be more to read; False: the time has passed without changes.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `not_my_partition`.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            self.news.clear()
            if self.has_more():
                return True
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self.news.wait()
            if loop.time() >= until:
                return False

    def check(self) -> None:
        """Raise `ConditionError`, `bucket_not_found`, once the bucket is no longer served."""
        if self._is_dropped:
            raise ConditionError(
                f"bucket {self._bucket.name!r} is not served any more", code="bucket_not_found"
            )

    def _check_served(self) -> None:
        """The same, and `isolated` if a copy may not serve now."""
        self.check()
        check_served(self._bucket, self._feed.walks)

    def drop(self) -> None:
        """The bucket is no longer served: the reader is told."""
        self._is_dropped = True
        self.news.set()

    def close(self) -> None:
        """Stop reading; may be called repeatedly."""
        if not self._is_closed:
            self._is_closed = True
            self._bucket.unsubscribe(self.news.set)
            self._feed.close()
            self._on_close(self)


class BucketChanges:
    """The walks over one bucket.

    Args:
        bucket: that is served.
        purge_epoch: number of its purges so far.
        ancestors: uuids of databases that it is a copy of: it continues for readers of those.
    """

    def __init__(
        self,
        bucket: Bucket,
        purge_epoch: Callable[[], int] = int,
        ancestors: tuple[str, ...] = (),
    ) -> None:
        self._bucket = bucket
        self._purge_epoch = purge_epoch
        self.origin = origin_of(bucket.uuid)
        """Its name in tokens."""
        self.origins = {self.origin, *map(origin_of, ancestors)}
        """The same, with the databases that it is a copy of."""
        self._open: set[Changes] = set()
        self._is_dropped = False
        self._unknown_s: float | None = None
        """Time of the first request that waited for what a majority has; None: none waits."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def uuid(self) -> str:
        """Return the uuid of the database."""
        return self._bucket.uuid

    @property
    def partitions(self) -> Sequence[Partition]:
        """Return the partitions of the bucket."""
        return self._bucket.partitions

    def histories(self) -> list[History]:
        """Return the histories by which positions are judged."""
        return [history_of(partition) for partition in self._bucket.partitions]

    def purge_epoch(self) -> int:
        """Return the number of purges."""
        return self._purge_epoch()

    async def known(self) -> None:
        """Wait a little if it is not known what a majority has, but may be known soon.

        All requests that wait in vain do so together, once: they return after
        `UNKNOWN_SECONDS_MAX`, and what is asked then gets the error.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while self._may_be_known():
            self._unknown_s = loop.time() if self._unknown_s is None else self._unknown_s
            if loop.time() >= min(began_s, self._unknown_s) + UNKNOWN_SECONDS_MAX:
                return
            await asyncio.sleep(SUSPENDED_WAIT_S)
        self._unknown_s = None

    def _may_be_known(self) -> bool:
        now_ns = time.time_ns()
        awaited = [one for one in self._bucket.partitions if one.may_be_known(now_ns)]
        return bool(awaited)  # all were asked: for each the time runs from now on

    def latest(self) -> Vector:
        """Return the position of a reader that has all durable changes: `update_seq`.

        Raises:
            UnavailableError: `majority_unknown`.
        """
        marks = [lasting_mark(partition) for partition in self._bucket.partitions]
        return vector_at(self.origin, self.histories(), marks, self._purge_epoch())

    def start_of(self, since: Vector | int | None) -> Vector:
        """Return the position for a token, a number, or None: now.

        Raises:
            UsageError: `bad_request`: a token of another database.
        """
        return start_at(since, self.latest(), self.histories(), self.origins)

    def open(
        self, start: Vector, *, restarts: bool, numbers: Collection[int] | None = None
    ) -> Changes:
        """Return a walk from a position on; to be closed.

        Args:
            start: as `start_of` returns it.
            restarts: the reader sees a subset of the documents, selected by content.
            numbers: of the partitions that are read; None: all.

        Raises:
            UnavailableError: `not_my_partition`.
        """
        changes = Changes(
            self._bucket, start, restarts=restarts, purge_epoch=self._purge_epoch,
            on_close=self._open.discard, numbers=numbers,
        )  # fmt: skip
        self._open.add(changes)
        if self._is_dropped:
            changes.drop()
        return changes

    def drop(self) -> None:
        """The bucket is no longer served."""
        self._is_dropped = True
        for changes in self._open:
            changes.drop()
