"""A walk over a bucket's changes that waits: for threads that read the log, and for new changes.

Invariants:
1. The log is read in worker threads, one chunk at a time; a walk that is given up meanwhile drops
   what comes.
2. In memory are one chunk, or at most `ORDERED_BYTES_MAX` of a small answer.
3. A small answer, of all partitions together, is in the order of time; a large one goes partition
   by partition. So does that of some partitions: who puts it beside others orders it.
4. A bucket that is served no more ends all its walks.

Elsewhere: what is read and where a reader stands (`kv.core.revisions.changes_feed`), who is shown
it (`gateway.aio.documents.changes_pages`).
"""

from __future__ import annotations

import asyncio
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
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.revisions.changes_feed import (
    ChangesFeed,
    Piece,
    history_of,
    in_order_of_time,
    lasting_mark,
)
from millstream.model.position import Position

__all__ = ["ORDERED_BYTES_MAX", "ORDERED_CHANGES_MAX", "BucketChanges", "Changes"]

ORDERED_CHANGES_MAX: Final = 2048
"""How many seqnos a reader may lack, in all partitions, to be given them in the order of time."""
ORDERED_BYTES_MAX: Final = 4 * 1024 * 1024
SUSPENDED_WAIT_S: Final = 0.02
SUSPENDED_SECONDS_MAX: Final = 10.0
"""How long a partition may be about to change, for instance be moved, before a reader is told."""

UNKNOWN_SECONDS_MAX: Final = 1.0
"""How long a reader waits for copies to follow a partition that has just moved."""


class Changes:
    """One reader's walk.

    Args:
        bucket: whose changes are read.
        start: where the reader stands.
        restarts: it sees a part of the documents, by what is in them.
        purge_epoch: how often documents of the bucket were purged so far.
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
        """Set when there may be more to read, or the bucket is gone."""
        self._is_closed = self._is_dropped = False
        epoch = max(start.purge_epoch, purge_epoch())
        self.tokens = TokenWriter(Vector(start.origin, self._feed.positions, epoch))
        """Where the reader stands: whoever shows it changes moves it along."""
        bucket.subscribe_durable(self.news.set)

    def lag(self) -> int:
        """Return how many seqnos there are above where the reader stands.

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
        """Where the reader of everything that was given out stands, by partition."""
        return {number: walk.position for number, walk in self._feed.walks.items()}

    def has_more(self) -> bool:
        """Whether there may be something to read.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `not_my_partition`.
        """
        self.check()
        return self._feed.is_suspended or self._feed.lag() > 0

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield what there is to read now, each partition to the end of one snapshot.

        The reader has then all that was durable at the beginning, and stands there.

        Raises:
            ConditionError: `bucket_not_found`, it went away.
            UnavailableError: `not_my_partition`; `temporarily_unavailable`.
        """
        await self._settled()
        numbers = self._feed.behind()
        if self._is_ordered and numbers and self._feed.lag() <= ORDERED_CHANGES_MAX:
            for gathered in in_order_of_time(await self._gather(numbers)):
                yield gathered
        for number in numbers:
            while (piece := await self._next(number)) is not None:
                self._mark_purges()
                yield piece
                if not self._feed.walks[number].is_open:
                    break
        self._follow_rollbacks()

    async def _gather(self, numbers: list[int]) -> list[Piece]:
        """Read partitions, as far as memory allows; those read to the end leave the list."""
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
        """Return what comes next in a partition; None: there is nothing, or not now."""
        walk = self._feed.walks[number]
        while walk.begin():
            piece = walk.from_memory()
            if piece is None:
                chunks = walk.chunks
                assert chunks is not None
                piece = walk.from_log(await asyncio.to_thread(next, chunks, None))
                self.check()
            if piece is not None:
                return piece
        return None

    async def _settled(self) -> None:
        """Wait while a partition is about to change."""
        waited_s = 0.0
        self.check()
        while self._feed.is_suspended:
            if waited_s >= SUSPENDED_SECONDS_MAX:
                raise UnavailableError(
                    "a partition of the database is being moved, or its copies have not said yet "
                    "what they have: ask again",
                    code="temporarily_unavailable",
                )
            await asyncio.sleep(SUSPENDED_WAIT_S)
            waited_s += SUSPENDED_WAIT_S
            self.check()
        while not self._feed.is_durable_known and waited_s < UNKNOWN_SECONDS_MAX:
            await asyncio.sleep(SUSPENDED_WAIT_S)
            waited_s += SUSPENDED_WAIT_S
            self.check()

    def _mark_purges(self) -> None:
        """Before anything is shown that a purge may have made."""
        epoch = self._purge_epoch()
        if epoch > self.tokens.purge_epoch:
            self.tokens.mark_purges(epoch)
            self.mark_purges()

    def mark_purges(self) -> None:
        """Documents were purged: what was lost may have hidden something."""
        self._feed.mark_purges()

    def _follow_rollbacks(self) -> None:
        """The reader has been given everything: it stands where its walks do."""
        for number, position in self.positions.items():
            if self.tokens.position(number) != position:
                self.tokens.move(number, position)

    async def wait(self, seconds: float) -> bool:
        """Return once there may be more to read; False: there was nothing for so long.

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
        """Raise `ConditionError`, `bucket_not_found`, once the bucket is served no more."""
        if self._is_dropped:
            raise ConditionError(
                f"bucket {self._bucket.name!r} is not served any more", code="bucket_not_found"
            )

    def drop(self) -> None:
        """The bucket is served no more: whoever reads is told."""
        self._is_dropped = True
        self.news.set()

    def close(self) -> None:
        """Read no more; harmless if done before."""
        if not self._is_closed:
            self._is_closed = True
            self._bucket.unsubscribe(self.news.set)
            self._feed.close()
            self._on_close(self)


class BucketChanges:
    """The walks over one bucket.

    Args:
        bucket: that is served.
        purge_epoch: how often documents of it were purged so far.
        ancestors: uuids of databases that it is a copy of: it goes on where readers of these were.
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
        """How tokens name it."""
        self.origins = {self.origin, *map(origin_of, ancestors)}
        """The same of the databases that it is a copy of, too."""
        self._open: set[Changes] = set()
        self._is_dropped = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def uuid(self) -> str:
        """Of the database."""
        return self._bucket.uuid

    @property
    def partitions(self) -> Sequence[Partition]:
        """Of the bucket."""
        return self._bucket.partitions

    def histories(self) -> list[History]:
        """Return what positions of its partitions are judged by."""
        return [history_of(partition) for partition in self._bucket.partitions]

    def purge_epoch(self) -> int:
        """Return how often documents were purged."""
        return self._purge_epoch()

    def latest(self) -> Vector:
        """Return where a reader stands who has everything that lasts: `update_seq`.

        Raises:
            UnavailableError: `majority_unknown`.
        """
        marks = [lasting_mark(partition) for partition in self._bucket.partitions]
        return vector_at(self.origin, self.histories(), marks, self._purge_epoch())

    def start_of(self, since: Vector | int | None) -> Vector:
        """Return where a reader stands who says a token, a number, or None: now.

        Raises:
            UsageError: `bad_request`: a token of another database.
        """
        return start_at(since, self.latest(), self.histories(), self.origins)

    def open(
        self, start: Vector, *, restarts: bool, numbers: Collection[int] | None = None
    ) -> Changes:
        """Return a walk from there on, to be closed.

        Args:
            start: as `start_of` returns it.
            restarts: the reader sees a part of the documents, by what is in them.
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
        """The bucket is served no more."""
        self._is_dropped = True
        for changes in self._open:
            changes.drop()
