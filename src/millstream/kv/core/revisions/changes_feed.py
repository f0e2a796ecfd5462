"""A walk over the partitions of a bucket for HTTP readers, which cannot roll anything back.

    feed = ChangesFeed(partitions, start, restarts=False)
    for number in feed.behind():          # partitions that have something new
        walk = feed.walks[number]
        while walk.begin():               # a snapshot is open, or was already
            piece = walk.from_memory()
            if piece is None:             # `next(walk.chunks, None)` in a thread
                piece = walk.from_log(chunk)

Invariants:
1. Only changes that cannot be lost are read: a snapshot ends at the partition's durable mark.
2. The reader's position is judged by the rollback rule at the start and before every snapshot, in
   each partition separately: a fail-over, a restart or a move of one partition leaves the others
   where they are.
3. Each snapshot is read as of its end, so a key is in it once. If a hold is lost, a new one is
   opened, and the reader stays inside the promised snapshot.
4. Read changes are used only if the hold is still held, in the epoch in which it was opened.
5. A walk is registered as a reader of its partition, so that unread changes are not forgotten.

Elsewhere: threads and waiting (`kv.aio.documents.changes`), tokens (`documents.tokens`), the
content of a row (`gateway.core.changes`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from heapq import merge
from itertools import repeat
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple

from millstream.documents.tokens import History, Vector, judged_position, may_hide
from millstream.errors import UnavailableError
from millstream.model.limits import STREAM_STEP_BYTES_MAX
from millstream.model.partitions import PartitionState
from millstream.model.position import Position, entry_below
from millstream.upr.core.source import Hold, PartitionSource
from millstream.wire.frames import description_bytes, seqno_of

__all__ = [
    "ChangesFeed", "PartitionWalk", "Piece", "Snapshot", "history_of", "in_order_of_time",
    "lasting_mark",
]  # fmt: skip

PIECE_ITEMS_MAX: Final = 256
"""Changes in memory that are read in one step of the loop."""
_CAS: Final = Struct(">Q")
_CAS_AT: Final = 16
Chunk = tuple[list[bytes], int]


class Snapshot(NamedTuple):
    """The snapshot of a partition that is being read."""

    partition_id: int
    uuid: int
    snap_start: int
    snap_end: int
    purge_seqno: int | None

    def at(self, seqno: int) -> Position:
        """Return the position of a reader that has read so far. Hot path."""
        if seqno >= self.snap_end:
            return Position(self.uuid, seqno, seqno, seqno)
        return Position(self.uuid, seqno, self.snap_start, self.snap_end, self.purge_seqno)


class Piece(NamedTuple):
    """Changes of one partition, seqno ascending, and the range they cover."""

    snapshot: Snapshot
    frames: list[bytes]
    """With metadata in front: see `wire.frames`."""
    covered: int
    """Nothing else follows up to this seqno."""


def history_of(source: PartitionSource) -> History:
    """Return the history by which positions in a partition are judged."""
    return History(source.failover_log, source.high_seqno, source.purge_seqno)


def lasting_mark(source: PartitionSource) -> int:
    """Return the newest readable seqno whose changes cannot be lost.

    Raises:
        UnavailableError: `majority_unknown`.
    """
    source.check_durable()
    return source.durable_mark()


class PartitionWalk:
    """One partition, and the reader's position in it.

    Args:
        source: the partition.
        position: of the reader.
        restarts: positions in a lost history do not count (see `judged_position`).
    """

    __slots__ = (
        "_epoch", "_hold", "_is_reader", "_snapshot", "_source", "_upto", "chunks", "position",
        "restarts",
    )  # fmt: skip

    def __init__(self, source: PartitionSource, position: Position, *, restarts: bool) -> None:
        self._source = source
        self._hold: Hold | None = None
        self._snapshot: Snapshot | None = None
        self._epoch = -1
        """Epoch in which the position was judged."""
        self._is_reader = False
        self._upto = 0
        self.restarts = restarts
        self.position = position
        self.chunks: Iterator[Chunk] | None = None
        """To be read on in a thread: the next changes are on the disk."""
        if self._is_served and not self.is_suspended:
            self._judge()

    @property
    def sent(self) -> int:
        """See `upr.core.source.Reader`."""
        return self.position.seqno

    @property
    def memory_after(self) -> int:
        """See `upr.core.source.Reader`."""
        return max(self.sent, self._upto)

    @property
    def is_suspended(self) -> bool:
        """Return whether to ask again soon."""
        source = self._source
        return source.is_suspended or (self._is_served and source.awaits_majority)

    @property
    def is_durable_known(self) -> bool:
        """Return whether it is known which changes are durable."""
        return self._source.is_durable_known

    def lag(self) -> int:
        """Return how many seqnos there are to read; 0 if none, or none now.

        Raises:
            UnavailableError: `not_my_partition`.
        """
        self._check_state()
        source = self._source
        if self.is_suspended:
            return 0
        if source.epoch != self._epoch:
            self._let_go()
            self._judge()
        return max(0, source.durable_mark() - self.position.seqno)

    @property
    def _is_served(self) -> bool:
        return self._source.state is PartitionState.ACTIVE

    @property
    def is_open(self) -> bool:
        """Return whether a snapshot is open."""
        return self._hold is not None

    def _check_state(self) -> None:
        source = self._source
        if not (self._is_served or source.is_suspended):
            raise UnavailableError(
                f"partition {source.partition_id} is not active on this node: ask the node that "
                "has it",
                code="not_my_partition",
            )
        if not self.is_suspended:
            source.check_durable()

    def _judge(self) -> None:
        """Roll the position back to where the partition's history contains the reader's."""
        self._epoch = self._source.epoch
        self.position = judged_position(
            self.position, history_of(self._source), restarts=self.restarts
        )

    def begin(self) -> bool:
        """Open a snapshot unless one is open; False: there is nothing to read now.

        Raises:
            UnavailableError: `not_my_partition`.
        """
        source = self._source
        if self._hold is not None:
            if self._is_sound():
                return True
            self._let_go()
        if self.is_suspended:
            return False
        self._check_state()
        self._judge()
        mark = source.durable_mark()
        if mark <= self.position.seqno:
            return False
        hold = source.open_hold(mark, self.position.seqno)
        if hold is None:
            return False
        if not self._is_reader:
            self._is_reader = True
            source.add_reader(self)
        self._hold = hold
        self._snapshot = self._opened(hold.at)
        if hold.is_logged or self.position.seqno < source.memory_floor:
            self._open_log()
        return True

    def _opened(self, at: int) -> Snapshot:
        """Return the snapshot that ends at `at`, or the open one, extended to there."""
        source = self._source
        _, seqno, snap_start, snap_end, purge = self.position
        is_inside = snap_start < seqno < snap_end
        snap_start = snap_start if is_inside else seqno
        end = max(at, snap_end) if is_inside else at
        if snap_start:
            purge = None
        elif purge is None or not seqno:
            purge = source.purge_seqno
        uuid = entry_below(source.failover_log, end).uuid
        return Snapshot(source.partition_id, uuid, snap_start, end, purge)

    def _is_sound(self) -> bool:
        assert self._hold is not None
        return self._source.epoch == self._epoch and self._source.is_held(self._hold)

    def _open_log(self) -> None:
        assert self._hold is not None
        source, at, is_logged = self._source, self._hold.at, self._hold.is_logged
        self._upto = at if is_logged else min(at, source.memory_floor)
        self.chunks = source.backfill(
            self.position.seqno, at, is_logged=is_logged, is_described=True
        )

    def from_memory(self) -> Piece | None:
        """Return the next changes; None: they are on the disk, `chunks` reads them."""
        assert self._hold is not None
        if self.chunks is not None:
            return None
        found = self._source.described_slice(
            self.position.seqno, self._hold.at, STREAM_STEP_BYTES_MAX, PIECE_ITEMS_MAX
        )
        if found is None:
            self._open_log()
            return None
        return self._piece(*found)

    def from_log(self, chunk: Chunk | None) -> Piece | None:
        """Take what was read from `chunks`, None at their end; None: begin again."""
        if self._hold is None or not self._is_sound():
            self._let_go()
            return None
        if chunk is None:
            self.chunks = None
            chunk = [], max(self._upto, self.position.seqno)
        return self._piece(*chunk)

    def _piece(self, frames: list[bytes], covered: int) -> Piece:
        """Advance past these changes; at the end of the snapshot release it."""
        assert self._hold is not None
        assert self._snapshot is not None
        piece = Piece(self._snapshot, frames, covered)
        self.position = self._snapshot.at(covered)
        if covered >= self._hold.at:
            self._let_go()
        return piece

    def _let_go(self) -> None:
        if self._hold is not None:
            self._source.release_hold(self._hold)
        self._hold = self._snapshot = self.chunks = None
        self._upto = 0

    def close(self) -> None:
        """Stop reading."""
        self._let_go()
        if self._is_reader:
            self._source.remove_reader(self)
            self._is_reader = False


class ChangesFeed:
    """The walks of one reader.

    Args:
        partitions: all of a bucket.
        start: position of the reader, in this bucket.
        restarts: the reader sees a subset of the documents, selected by content.
        numbers: of the partitions that are read; None: all.

    Raises:
        UnavailableError: `not_my_partition`.
    """

    def __init__(
        self,
        partitions: Sequence[PartitionSource],
        start: Vector,
        *,
        restarts: bool,
        numbers: Collection[int] | None = None,
    ) -> None:
        restarts = restarts or may_hide(start.purge_epoch)
        pairs = list(zip(partitions, start.positions, strict=True))
        self.walks = {
            number: PartitionWalk(*pairs[number], restarts=restarts)
            for number in (range(len(pairs)) if numbers is None else numbers)
        }
        self._start = start.positions

    def mark_purges(self) -> None:
        """Documents were purged: lost changes may have hidden something."""
        for walk in self.walks.values():
            walk.restarts = True

    @property
    def positions(self) -> tuple[Position, ...]:
        """Return the position of the reader after everything that was sent."""
        walks = self.walks
        return tuple(
            walks[number].position if number in walks else position
            for number, position in enumerate(self._start)
        )

    @property
    def is_suspended(self) -> bool:
        """Return whether some partition is about to change: ask again soon."""
        return any(walk.is_suspended for walk in self.walks.values())

    @property
    def is_durable_known(self) -> bool:
        """Return whether it is known of all partitions which changes are durable."""
        return all(walk.is_durable_known for walk in self.walks.values())

    def behind(self) -> list[int]:
        """Return the partitions that have something to read, in a fair order.

        First those inside a snapshot, so that snapshots are completed however small the reader's
        steps are; then those that are furthest behind.

        Raises:
            UnavailableError: `not_my_partition`.
        """
        lags = {number: walk.lag() for number, walk in self.walks.items()}
        return sorted(
            (number for number, lag in lags.items() if lag),
            key=lambda number: (self.walks[number].position.is_closed, -lags[number]),
        )

    def lag(self) -> int:
        """Return how many seqnos there are to read; rows are never more.

        Raises:
            UnavailableError: `not_my_partition`.
        """
        return sum(walk.lag() for walk in self.walks.values())

    def close(self) -> None:
        """Stop reading."""
        for walk in self.walks.values():
            walk.close()


def in_order_of_time(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Reorder pieces of several partitions by the CAS of their changes, which is a time.

    The changes of one partition keep their order.
    """
    lines: dict[int, list[tuple[int, Piece]]] = {}
    empty: dict[int, Piece] = {}
    for piece in pieces:
        number = piece.snapshot.partition_id
        lines.setdefault(number, []).extend(map(_alone, *_columns(piece)))
        empty.pop(number, None)
        if not piece.frames:
            empty[number] = piece
    for _, piece in merge(*lines.values(), key=itemgetter(0)):
        yield piece
    yield from empty.values()


def _columns(piece: Piece) -> tuple[Iterator[Snapshot], list[bytes], list[int]]:
    covered = list(map(seqno_of, piece.frames))
    covered[-1:] = [piece.covered] if covered else []
    return repeat(piece.snapshot), piece.frames, covered


def _alone(snapshot: Snapshot, frame: bytes, covered: int) -> tuple[int, Piece]:
    cas: int = _CAS.unpack_from(frame, description_bytes(frame) + _CAS_AT)[0]
    return cas, Piece(snapshot, [frame], covered)
