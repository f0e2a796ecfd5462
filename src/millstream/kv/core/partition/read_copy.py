"""The reading side of a partition's copy, for streams, leases and compaction.

Invariants:
1. Only active copies and replicas are read, and no read begins while a state or a history is about
   to change.
2. Of a copy that follows another, readers see its last complete end.
3. The side of a change in memory is that of the key's entry iff the entry has this very frame. A
   change that holds keep has its own side. So nothing extra is kept for readers that want sides.

Elsewhere: what is kept in memory for readers (`kv.core.queue.mutation_queue`,
`kv.core.queue.holds`), the interface of a stream's source (`upr.core.source`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from operator import attrgetter, is_
from struct import Struct
from typing import Final

from millstream.errors import UnavailableError
from millstream.kv.core.partition.acknowledgement import Acknowledged
from millstream.kv.core.partition.residents import Residents
from millstream.kv.core.partition.states import STREAMED
from millstream.kv.core.queue.blocks import BITS
from millstream.kv.core.queue.entry import Entry
from millstream.kv.core.queue.holds import with_kept, with_kept_sizes
from millstream.kv.core.queue.log_reader import LogReader
from millstream.kv.core.queue.mutation_queue import MutationQueue
from millstream.model.lineage import as_of
from millstream.model.partitions import PartitionState
from millstream.model.sides import has_sidecar, split
from millstream.storage.core.records import key_of
from millstream.storage.core.segment_files import Sizes
from millstream.upr.core.source import Hold, Reader
from millstream.wire.frames import described, described_all, seqno_of

__all__ = ["MAJORITY_AWAITED", "ReadCopy"]

MAJORITY_AWAITED: Final = "majority_awaited"
"""Error code: too few copies follow for now."""

_rev_of: Final = Struct(">32xQ").unpack_from
_frame_of: Final = attrgetter("frame")
_side_of: Final = attrgetter("side")


class ReadCopy:
    """The reading side of a `Partition`, which has the rest."""

    __slots__ = ()

    partition_id: int
    state: PartitionState
    is_suspended: bool
    persisted_seqno: int
    acknowledged: Acknowledged | None
    queue: MutationQueue
    residents: Residents
    table: dict[bytes, Entry]
    _branch_seqno: int
    """Its seqno when it was opened, became active or went back."""
    _log: LogReader

    @property
    def high_seqno(self) -> int:
        """Return the newest seqno; of a copy that follows another, its last complete end."""
        queue = self.queue  # as its `complete_seqno`, but without the call
        return queue.high_seqno if queue.settled_seqno is None else queue.settled_seqno

    def open_hold(self, at: int | None = None, start: int | None = None) -> Hold | None:
        """Keep the state as of `at` readable; None if it is not readable.

        Readable are the present state (None), a state that is held, and marks of the log. `start`:
        changes at or below it are not going to be read; None: unknown yet.
        """
        if self.is_suspended or self.state not in STREAMED:
            return None
        return self._hold(at, start)

    def open_rest(self, start: int) -> Hold | None:
        """As `open_hold` of the present state, for the stream that hands a dead copy over."""
        is_dead = self.state is PartitionState.DEAD and not self.is_suspended
        return self._hold(None, start) if is_dead else None

    def _hold(self, at: int | None, start: int | None) -> Hold | None:
        opened, is_logged = self.queue.open_hold(at), False
        at = self.high_seqno if at is None else at
        if opened is None and at and self._log.newest_mark(self.partition_id, at) == at:
            opened, is_logged = (self.queue.holds.open_logged(at), at), True
        if opened is None:
            return None
        if start is not None:
            self.queue.holds.asked(opened[0], start)
        return Hold(*opened, is_logged)

    def release_hold(self, hold: Hold) -> None:
        """Release a hold."""
        self.queue.release_hold(hold.hold_id)

    def is_held(self, hold: Hold) -> bool:
        """Return whether the hold's state can still be read."""
        return self.queue.is_held(hold.hold_id)

    @property
    def has_copies(self) -> bool:
        """Return whether a majority of its copies requires copies other than this one."""
        return self.acknowledged is not None and not self.acknowledged.is_alone

    @property
    def majority_seqno(self) -> int:
        """Return the seqno that a majority of the copies has at least in memory."""
        acknowledged = self.acknowledged
        return self.high_seqno if acknowledged is None else acknowledged.majority_seqno

    @property
    def durable_seqno(self) -> int:
        """Return the seqno up to which changes cannot be lost: a majority has them on disk.

        0 where it is not known: only the active one of several copies knows it.
        """
        acknowledged = self.acknowledged
        if acknowledged is None or acknowledged.is_alone:
            return self.persisted_seqno
        return acknowledged.durable_seqno if self.state is PartitionState.ACTIVE else 0

    def durable_mark(self) -> int:
        """Return the newest readable seqno whose changes cannot be lost; 0: none."""
        lasting = self._lasting_seqno
        return self._log.newest_mark(self.partition_id, lasting) if lasting else 0

    @property
    def _lasting_seqno(self) -> int:
        """As `durable_seqno`; also what was durable before the map named other copies."""
        acknowledged = self.acknowledged
        if acknowledged is None or acknowledged.is_alone:
            return self.persisted_seqno
        return acknowledged.kept_seqno if self.state is PartitionState.ACTIVE else 0

    @property
    def is_durable_known(self) -> bool:
        """Return whether it is known what a majority of the copies has.

        After a promotion or a rollback this is unknown until a majority has all that was left.
        Before that, 0 does not mean that nothing is durable, and another number does not mean
        that no more is. A copy that is not active is not asked.
        """
        if not self.has_copies or self.state is not PartitionState.ACTIVE:
            return True
        return self._lasting_seqno >= max(self._branch_seqno, 1) or self.high_seqno == 0

    @property
    def awaits_majority(self) -> bool:
        """Return whether it is unknown what a majority has, but known soon: copies follow."""
        return not self.is_durable_known and self._may_reach_majority

    def may_be_known(self, now_ns: int) -> bool:
        """Return whether what a majority has is unknown, but may be known soon (Unix time).

        Copies follow, or may be about to connect, as after the partition moved.
        """
        acknowledged = self.acknowledged
        if acknowledged is None or self.is_durable_known:
            return False
        return acknowledged.is_possible or acknowledged.are_awaited(now_ns)

    @property
    def _may_reach_majority(self) -> bool:
        return self.acknowledged is None or self.acknowledged.is_possible

    def check_durable(self) -> None:
        """Raise if it is not known which changes are durable.

        Raises:
            UnavailableError: `majority_unknown`.
        """
        if not self.is_durable_known:
            raise UnavailableError(
                "it is not known which changes a majority of the copies of partition "
                f"{self.partition_id} has: {self._copies_text}",
                code="majority_unknown",
                retry="backoff",
            )

    def check_majority(self, now_ns: int) -> None:
        """Raise if a change cannot reach a majority of the copies now (Unix time).

        Raises:
            UnavailableError: `majority_awaited`: too few copies follow, others may be about to
                connect, as after the partition moved; `majority_impossible`.
        """
        acknowledged = self.acknowledged
        if acknowledged is None or acknowledged.is_possible:
            return
        if acknowledged.are_awaited(now_ns):
            raise UnavailableError(
                f"nothing was changed: {acknowledged.following + 1} of "
                f"{len(acknowledged.row) + 1} copies of partition {self.partition_id} are there, "
                "others may be on their way; try again",
                code=MAJORITY_AWAITED,
                retry="backoff",
            )
        raise UnavailableError(
            f"nothing was changed: no majority of the copies of partition "
            f"{self.partition_id} can take it, {self._copies_text}",
            code="majority_impossible",
            retry="backoff",
        )

    @property
    def _copies_text(self) -> str:
        acknowledged = self.acknowledged
        assert acknowledged is not None
        return (
            f"{acknowledged.following + 1} of {len(acknowledged.row) + 1} copies are there, and "
            f"{acknowledged.majority} are a majority; bring the others back. If they are lost: "
            "`millstream cluster rebalance` makes new copies in a managed cluster; elsewhere "
            "`millstream cluster promote --drop NODE` takes nodes out of the map"
        )

    def add_reader(self, reader: Reader) -> None:
        """Keep in memory, within bounds, what the reader has still to read."""
        self.queue.readers.append(reader)

    def remove_reader(self, reader: Reader) -> None:
        """Remove a reader; does nothing if it was not there."""
        if reader in self.queue.readers:
            self.queue.readers.remove(reader)

    def history_limit(self) -> int:
        """Return the seqno up to which replaced versions are not needed by readers."""
        at = self.queue.holds.oldest_at()
        return self.high_seqno if at is None else at

    def purge_limit(self) -> int:
        """Return the seqno up to which a majority has the tombstones and no reader needs them."""
        start = self.queue.holds.lowest_start()
        starts = [reader.sent for reader in self.queue.readers]
        if self.has_copies and self.state is PartitionState.ACTIVE:
            starts.append(self.durable_seqno)
        return min([self.high_seqno if start is None else start, *starts])

    def memory_slice(
        self, after: int, at: int, bytes_max: int, items_max: int
    ) -> tuple[list[bytes], int] | None:
        """See `MutationQueue.memory_slice`."""
        return self.queue.memory_slice(after, at, bytes_max, items_max)

    def slots(self, after: int, at: int, items_max: int) -> tuple[list[bytes], int, int] | None:
        """See `MutationQueue.slots`."""
        return self.queue.slots(after, at, items_max)

    def described_slice(
        self, after: int, at: int, bytes_max: int, items_max: int
    ) -> tuple[list[bytes], int] | None:
        """See `PartitionSource.described_slice`."""
        found = self.queue.memory_slice(after, at, bytes_max, items_max)
        if found is None:
            return None
        frames, last = self._described(found[0]), found[1]
        sizes = list(accumulate(map(len, frames)))
        if sizes and sizes[-1] > bytes_max:
            frames = frames[: max(1, bisect_right(sizes, bytes_max))]
            if len(frames) < len(sizes):
                last = seqno_of(frames[-1])
        return frames, last

    def _described(self, frames: list[bytes]) -> list[bytes]:
        """Return changes in memory with their metadata in front."""
        # Column by column: the processor then waits for several of these objects at once.
        entries = list(map(self.table.get, map(key_of, frames)))
        if None not in entries and all(map(is_, map(_frame_of, entries), frames)):
            sides = list(map(_side_of, entries))
        else:
            sides = list(map(self._side, entries, frames))
        if self.residents.has_sidecars:
            return [
                described(frame, *split(side)) for frame, side in zip(frames, sides, strict=True)
            ]
        return described_all(frames, sides)

    def _side(self, entry: Entry | None, frame: bytes) -> bytes:
        """Return the side of a change in memory; see the invariants."""
        if entry is not None and entry.frame is frame:
            return entry.side
        seqno = seqno_of(frame)
        side = self.queue.holds.kept[seqno >> BITS][seqno].side
        return side if has_sidecar(side) else as_of(side, _rev_of(frame)[0])

    def backfill(
        self, after: int, at: int, *, is_logged: bool = False, is_described: bool = False
    ) -> Iterator[tuple[list[bytes], int]]:
        """Yield frames as of `at` from the log, with the range that they cover.

        The range is (after, at] if `at` is a mark of the log, else (after, min(at, floor)]. Call
        it in the loop; run `next` in a thread. `is_described`: each frame has its metadata in
        front.
        """
        queue = self.queue
        upto = at if is_logged else min(at, queue.floor)
        superseded = set() if is_logged else queue.superseded_in_log(at)
        chunks = self._log.backfill(
            self.partition_id, after, upto, at, superseded, is_described=is_described
        )
        kept = [] if is_logged else queue.kept_below(after, upto, at)
        if kept and is_described:
            seqnos, frames = zip(*kept, strict=True)
            kept = list(zip(seqnos, self._described(list(frames)), strict=True))
        return with_kept(chunks, kept)

    def sizes(self, after: int, at: int, *, is_logged: bool = False) -> Iterator[Sizes]:
        """Yield the sizes of what `backfill` yields; reads indexes only. Same threads."""
        queue = self.queue
        upto = at if is_logged else min(at, queue.floor)
        superseded = set() if is_logged else queue.superseded_in_log(at)
        chunks = self._log.sizes(self.partition_id, after, upto, at, superseded)
        kept = [] if is_logged else queue.kept_below(after, upto, at)
        return with_kept_sizes(chunks, kept)
