"""Counts the documents and the deleted documents of a database, on request.

Nothing is loaded at a start. A partition is read once, at the first request. From then on its
counts follow the log: each record names its key's previous record. Following ends after
`FOLLOWED_SECONDS_MAX` without a request, when history is rolled back or deletions are forgotten,
and where copies on other nodes decide what is durable. Then the partition is read again.

Invariants:
1. Counts are of durable changes, as feeds show them, and are stored with their position.
2. Keys that are no document ids are not counted.
3. `recent` reads at most `COUNTED_AT_ONCE_MAX` changes before it answers. The rest is counted in
   the background, by one task, with at most one part in `COUNTING_SHARE` of the time.
4. For a followed partition the seqnos of all deletions are known, which shows whether a record
   replaced a document or a deletion. A bucket has at most `FOLLOWED_DELETIONS_MAX` of them.

Elsewhere: reading (`kv.aio.documents.changes`), the previous record
(`kv.core.queue.mutation_queue`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from struct import Struct
from time import monotonic
from typing import Final, NamedTuple

from millstream.documents.tokens import Vector
from millstream.errors import MillstreamError
from millstream.kv.aio.documents.changes import BucketChanges
from millstream.kv.core.partition.partition import Partition
from millstream.model.partitions import DESIGN_PREFIX, PartitionState
from millstream.model.position import Position
from millstream.runtime.pace import Turns
from millstream.runtime.tasks import Tasks
from millstream.storage.core.commit import Changes
from millstream.wire.frames import description_bytes, seqno_of

__all__ = [
    "FOLLOWED_DELETIONS_MAX", "FOLLOWED_SECONDS_MAX", "WAITING_RECORDS_MAX", "Counts",
    "DocumentCounts",
]  # fmt: skip

FOLLOWED_SECONDS_MAX: Final = 300.0
"""How long counts follow the log without a request."""
FOLLOWED_DELETIONS_MAX: Final = 1_000_000
"""Deletions of a bucket whose seqnos are stored: some 100 bytes each."""
WAITING_RECORDS_MAX: Final = 1_000_000
"""Records of a partition that may be written during its count, for it to be followed."""

COUNTED_AT_ONCE_MAX: Final = 10_000
"""Changes that are read for the numbers of one page: about 10 ms."""
COUNTING_SHARE: Final = 10
_HEAD = Struct(">xBHB").unpack_from
_MUTATION = 0x57
_HEADER_BYTES = 24


class Counts(NamedTuple):
    """Document counts of a database."""

    live: int
    deleted: int


class _Followed:
    """The counts of a partition, as of a record of its log."""

    __slots__ = ("_waiting", "deletions", "epoch", "live", "purge_seqno", "seqno")

    def __init__(self, partition: Partition) -> None:
        self.epoch, self.purge_seqno = partition.epoch, partition.purge_seqno
        self.seqno = partition.persisted_seqno
        self.live = 0
        self.deletions: set[int] = set()
        self._waiting: list[Changes] | None = []
        """Records written during the count; None: the count is finished."""

    @property
    def is_counted(self) -> bool:
        return self._waiting is None

    def take(self, changes: Changes) -> bool:
        """Apply new records; False: they are too many to keep until the count is finished."""
        if self._waiting is not None:
            self._waiting.append(changes)
            return sum(len(one.seqnos) for one in self._waiting) <= WAITING_RECORDS_MAX
        dead = frozenset(changes.tombstones)
        for seqno, key, previous in zip(
            changes.seqnos, changes.keys, changes.previous_seqnos, strict=True
        ):
            if seqno <= self.seqno or not _is_id(key):
                continue
            if previous in self.deletions:
                self.deletions.discard(previous)
            elif previous:
                self.live -= 1
            if seqno in dead:
                self.deletions.add(seqno)
            else:
                self.live += 1
        self.seqno = max(self.seqno, changes.seqnos[-1])
        return True

    def begin(self, seqno: int, live: int, deletions: set[int]) -> bool:
        """The count up to a seqno is finished; False: it is older than where this began."""
        waiting, began = self._waiting or [], self.seqno
        self.seqno, self.live, self.deletions, self._waiting = seqno, live, deletions, None
        for changes in waiting:
            self.take(changes)
        return seqno >= began

    def is_of(self, partition: Partition) -> bool:
        """Return whether this is still the durable state of a partition."""
        return (
            self.is_counted
            and self.epoch == partition.epoch
            and self.purge_seqno == partition.purge_seqno
            and self.seqno == partition.persisted_seqno
            and partition.state is PartitionState.ACTIVE
            and _is_alone(partition)
        )


def _is_alone(partition: Partition) -> bool:
    acknowledged = partition.acknowledged
    return acknowledged is None or acknowledged.is_alone


class DocumentCounts:
    """Counts the documents of one bucket.

    Args:
        changes: of the bucket.
        follow: subscribes a function to the log's records from then on; None: no following.
    """

    def __init__(
        self,
        changes: BucketChanges,
        follow: Callable[[Callable[[Changes], None]], None] | None = None,
    ) -> None:
        self._changes = changes
        self._followed: dict[int, _Followed] = {}
        self._deletions = 0
        """Deletions whose seqnos all followed partitions have."""
        self._asked_s = monotonic()
        self._follows = follow is not None
        if follow is not None:
            follow(self._take)
        self._known: dict[int, tuple[Position, Counts]] = {}
        self._turn = asyncio.Lock()
        self._tasks = Tasks()
        self._not_before_s = 0.0

    async def count(self, numbers: Collection[int] | None = None) -> Counts:
        """Return the current counts, of some partitions or all; raises as walks do."""
        self._asked_s = monotonic()
        async with self._turn:
            turns = Turns()
            await self._changes.known()
            latest = self._changes.latest()
            wanted = range(len(latest.positions)) if numbers is None else numbers
            for number in wanted:
                await turns.give()
                if not self._is_known(number, latest.positions[number]):
                    positions = list(latest.positions)
                    positions[number] = Position()
                    start = latest._replace(positions=tuple(positions))
                    await self._recount(start, number, turns)
            return self._sum(wanted)

    def _sum(self, numbers: Iterable[int]) -> Counts:
        found = [self._known[number][1] for number in numbers if number in self._known]
        return Counts(sum(one.live for one in found), sum(one.deleted for one in found))

    def _take(self, changes: Changes) -> None:
        """The log took records of a partition."""
        number = changes.partition_id
        followed = self._followed.get(number)
        if followed is None:
            return
        deletions = len(followed.deletions)
        does_fit = followed.take(changes)
        self._deletions += len(followed.deletions) - deletions
        if (
            not does_fit
            or self._deletions > FOLLOWED_DELETIONS_MAX
            or monotonic() - self._asked_s > FOLLOWED_SECONDS_MAX
        ):
            self._drop(number)

    def _drop(self, number: int) -> None:
        """Stop following a partition, if it is followed."""
        followed = self._followed.pop(number, None)
        if followed is not None:
            self._deletions -= len(followed.deletions)

    async def recent(self) -> Counts | None:
        """Return the current counts if that is quick, else the last ones.

        None: they are not known yet.
        """
        self._asked_s = monotonic()
        await self._changes.known()
        turns, new = Turns(), list[int]()
        latest = self._changes.latest().positions
        for number, position in enumerate(latest):
            await turns.give()
            if not self._is_known(number, position):
                new.append(number)
        if sum(latest[number].seqno for number in new) <= COUNTED_AT_ONCE_MAX:
            return await self.count()
        if not len(self._tasks) and monotonic() >= self._not_before_s:
            self._tasks.start(self._count_beside(), name="counting documents")
        if any(number not in self._known for number in new):
            return None
        return self._sum(list(self._known))

    async def stop(self) -> None:
        """Stop the background count."""
        await self._tasks.stop()

    async def _count_beside(self) -> None:
        began_s = monotonic()
        with suppress(MillstreamError):  # requests for exact counts get the error
            await self.count()
        now_s = monotonic()
        self._not_before_s = now_s + (COUNTING_SHARE - 1) * (now_s - began_s)

    def _is_known(self, number: int, position: Position) -> bool:
        partition, followed = self._changes.partitions[number], self._followed.get(number)
        if followed is not None and followed.is_of(partition):
            self._known[number] = position, Counts(followed.live, len(followed.deletions))
            return True
        known = self._known.get(number)
        if position == Position():
            self._known.pop(number, None)
            if self._follows and followed is None and not partition.persisted_seqno:
                followed = self._followed[number] = _Followed(partition)
                followed.begin(0, 0, set())
            return True
        return known is not None and known[0] == position

    async def _recount(self, start: Vector, number: int, turns: Turns) -> None:
        """Count a partition, and follow it from then on."""
        partition = self._changes.partitions[number]
        self._drop(number)
        followed = self._followed[number] = _Followed(partition)
        changes = self._changes.open(start, restarts=False, numbers=[number])
        live, deletions = 0, set[int]()
        try:
            async for piece in changes.pieces(turns):
                for frame in piece.frames:
                    is_live = _is_live(frame)
                    if is_live:
                        live += 1
                    elif is_live is not None:
                        deletions.add(seqno_of(frame))
                changes.tokens.move(number, piece.snapshot.at(piece.covered))
            position = changes.tokens.position(number)
            self._known[number] = position, Counts(live, len(deletions))
            if self._followed.get(number) is followed:
                is_level = self._follows and followed.begin(position.seqno, live, deletions)
                self._deletions += len(followed.deletions)
                if not is_level or self._deletions > FOLLOWED_DELETIONS_MAX:
                    self._drop(number)
        except MillstreamError:
            self._drop(number)
            raise
        finally:
            changes.close()


def _is_id(key: bytes) -> bool:
    """Return whether a key is a document's id."""
    if key[:1] == b"_" and not key.startswith(DESIGN_PREFIX):
        return False
    if not key.isascii():
        try:
            key.decode()
        except UnicodeDecodeError:
            return False
    return True


def _is_live(frame: bytes) -> bool | None:
    """Return whether a change's document exists now; None if its key is no document id."""
    at = description_bytes(frame)
    opcode, key_bytes, extras_bytes = _HEAD(frame, at)
    begin = at + _HEADER_BYTES + extras_bytes
    if not _is_id(frame[begin : begin + key_bytes]):
        return None
    return bool(opcode == _MUTATION)
