"""The part of a following copy that tracks its open snapshot and how it grows.

    replica.on_opened(log, purge_seqno, high) # the source accepted our position
    replica.apply_marker(start, end)          # a snapshot begins, or goes on with a later end
    replica.apply_change(frame, side)         # as the source had it: seqno, CAS, rev, side
    replica.apply_advance(seqno)              # the source has nothing else up to there

These correspond to a consumer's events (`upr.core.consumer`): `StreamOpened` has the log, and in a
load from 0 the purge seqno in its position. `SnapshotStarted` is a marker from
`position.snap_start + 1` to `position.snap_end`. `SnapshotCompleted` without a change before it is
an advance.

A snapshot has each key at most once, so within a snapshot the copy's state is that of no moment.
Its state at its last complete snapshot, at `complete_end`, is what others may read, what is
acknowledged, and where a new history begins if the copy is made active.

Invariants:
1. `complete_end <= queue.high_seqno <= range_end`; all three are equal when nothing is missing.
2. A version at or below `complete_end` is not replaced by one above it: never in the log, and for
   readers as far as memory allows (`MutationQueue.settle`).
3. A batch for the log has, before its changes, the end of their snapshot, and the failover log and
   low points of the source if they are new. Only complete ends are marks.
4. Nothing is taken from a source of a lower branch than the highest that the copy knows.
5. A copy that lost changes that it may have acknowledged reports that (`is_intact`, `is_whole`)
   until it has what its source had when it came back. The log keeps this across restarts.

Elsewhere: the position as its reader keeps it (`upr.core.follower`), moves between states
(`partition`), the log's records (`storage.core.commit`).

Source: the released protocol's replication; docs/design/0006-copies.md.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, Protocol

from millstream.documents.stored import blobs_of
from millstream.errors import LocalProtocolError
from millstream.kv.core.partition.blobs import Blobs, BlobsMissing
from millstream.kv.core.partition.expiry import Expiries
from millstream.kv.core.partition.residents import Residents
from millstream.kv.core.partition.states import FOLLOWING
from millstream.kv.core.queue.entry import Entry
from millstream.kv.core.queue.mutation_queue import MutationQueue
from millstream.model.limits import UINT64_MAX
from millstream.model.partitions import DESIGN_PREFIX, PartitionState
from millstream.model.position import FailoverLog, Position, position_at
from millstream.model.sides import has_sidecar, sidecar_of
from millstream.storage.core.records import (
    NOTHING_OWED,
    ChangeColumns,
    CopyNews,
    LowPoints,
    Owed,
    key_of,
)

__all__ = ["SPARSE_SEQNOS", "Copy", "Replica"]

_cas_seqno = Struct(">16xQQ").unpack_from
_expiry = Struct(">44xI").unpack_from
_MUTATION: Final = 0x57
SPARSE_SEQNOS: Final = 16
"""A change this far above its predecessor is kept in the queue's map, since slots would be
wasted."""


class Copy(Protocol):
    """The part of a partition that its replica part reads and changes."""

    partition_id: int
    state: PartitionState
    failover_log: FailoverLog
    last_branch: int
    last_cas: int
    purge_seqno: int
    persisted_seqno: int
    queue: MutationQueue
    residents: Residents
    expiries: Expiries
    blobs: Blobs
    design_keys: set[bytes]

    @property
    def is_suspended(self) -> bool:
        """Return whether it is being rolled back."""

    def former(self, key: bytes) -> tuple[Entry | None, int]:
        """Return the newest change of the key, if memory needs it, and its seqno, 0 for none."""

    def replace_log(self, failover_log: FailoverLog) -> None:
        """Replace the failover log by another copy's."""


class Replica:
    """The part of a partition's copy that is used while it is not active."""

    __slots__ = (
        "_frozen_range_end",
        "_has_new_log",
        "_low_points",
        "_new_owed",
        "_partition",
        "_source_high",
        "complete_end",
        "frozen_mark",
        "owed",
        "range_end",
    )

    def __init__(
        self,
        partition: Copy,
        complete_end: int,
        range_end: int = 0,
        owed: Owed = NOTHING_OWED,
    ) -> None:
        self._partition = partition
        self.complete_end = complete_end
        self.range_end = max(range_end, complete_end)
        self.frozen_mark = complete_end
        """The newest complete end that is a mark of the log, or about to be one."""
        self._frozen_range_end = range_end
        self._has_new_log = False
        self._source_high = UINT64_MAX
        """What the source had when its stream was opened last; by default it is unknown."""
        self._low_points: LowPoints | None = None
        self.owed = owed
        """The seqnos that it must reach again before it counts in a promotion: for the levels in
        memory, and for those on disk."""
        self._new_owed: Owed | None = None
        partition.queue.settle(complete_end)

    @property
    def position(self) -> Position:
        """Return the position of the copy, as a reader of its source."""
        partition, end = self._partition, self.complete_end
        log, top = partition.failover_log, partition.queue.high_seqno
        if not top:
            return Position()
        purge_seqno = None if end else partition.purge_seqno
        return position_at(log, top, end, self.range_end, purge_seqno)

    @property
    def is_intact(self) -> bool:
        """Return whether it has all it ever acknowledged: nothing was lost with its memory."""
        return self.complete_end >= self.owed.memory

    @property
    def is_whole(self) -> bool:
        """Return whether it has on disk all it ever acknowledged as being there."""
        return self._partition.persisted_seqno >= self.owed.disk

    @property
    def is_filled(self) -> bool:
        """Return whether it has on disk all that its source had when the stream was opened last.

        Until then it may lack what its source has had for long, or have old versions of that.
        """
        return self._partition.persisted_seqno >= self._source_high

    # -- messages of the source

    def accepts(self, log: FailoverLog) -> bool:
        """Return whether a source with this failover log may be followed, or rolled back for."""
        return log[0].branch >= self._partition.last_branch

    def on_opened(self, log: FailoverLog, purge_seqno: int, source_high: int = UINT64_MAX) -> None:
        """Take the failover log of a source that accepted `position`, branches included.

        Args:
            log: newest first.
            purge_seqno: of the source, requested before the stream; used in a load from 0.
            source_high: its high seqno, requested after it accepted, or before if its history is
                unchanged since: at this seqno a copy that lost changes is complete again. By
                default it is unknown, and the copy stays as it is.

        Raises:
            LocalProtocolError: `bad_state`; `stale_source`: its history is older than the one that
                this copy has promised to follow.
        """
        partition, top = self._partition, self._partition.queue.high_seqno
        self._check_following()
        if not self.accepts(log):
            message = f"partition {partition.partition_id}: the source's branch {log[0].branch}"
            raise LocalProtocolError(
                f"{message} is older than {partition.last_branch}; follow the newest active copy",
                code="stale_source",
            )
        partition.last_branch = log[0].branch
        if log != partition.failover_log:
            partition.replace_log(log)
            self._has_new_log = True
        self._owe(source_high)
        self._source_high = source_high
        if top == self.complete_end:
            self.range_end = top
        if top == 0:
            partition.purge_seqno = purge_seqno
            self._low_points = LowPoints(purge_seqno, purge_seqno)

    def _owe(self, source_high: int) -> None:
        """Record at which seqno the missing changes will be there again."""
        memory, disk = self.owed
        owed = Owed(
            memory if self.is_intact else source_high, disk if self.is_whole else source_high
        )
        if owed != self.owed:
            self.owed = self._new_owed = owed

    def apply_marker(self, start: int, end: int) -> None:
        """Open a snapshot, or extend the open one.

        Raises:
            LocalProtocolError: `bad_state`; `bad_order`: no such snapshot can follow.
        """
        self._check_following()
        top = self._partition.queue.high_seqno
        if end <= top or end < start or end < self.range_end or top < min(self.range_end, start):
            raise self._disorder(f"marker [{start}, {end}]")
        self.range_end = end

    def apply_change(self, frame: bytes, side: bytes) -> None:
        """Apply a change of the open snapshot, a canonical frame, unmodified.

        Raises:
            LocalProtocolError: `bad_state`; `bad_order`: it is not above the last one, or outside
                the snapshot.
            NotInMemory: the previous change of the key must first be read from the disk, or
                attachments that it names fetched.
        """
        partition, queue, key = self._partition, self._partition.queue, key_of(frame)
        cas, seqno = _cas_seqno(frame)
        if not queue.high_seqno < seqno <= self.range_end:
            raise self._disorder(f"change {seqno}")
        self._check_following()
        entry, old_seqno = partition.former(key)
        if has_sidecar(side):
            self._look_beside(side)
        if entry is None:
            entry = partition.residents.add(key, b"", side)
            if key.startswith(DESIGN_PREFIX):
                partition.design_keys.add(key)
        old = entry.frame
        is_sparse = seqno - queue.high_seqno > SPARSE_SEQNOS
        append = queue.append_counter if is_sparse else queue.append
        queue.pass_over(seqno - 1)
        append(entry, frame, old_seqno, old)
        partition.residents.replace(entry, frame, side)  # the queue may owe the log the old
        if frame[1] == _MUTATION and (expiry := _expiry(frame)[0]):
            partition.expiries.add(key, expiry)
        partition.last_cas = max(partition.last_cas, cas)
        if seqno == self.range_end:
            self._complete()

    def _look_beside(self, side: bytes) -> None:
        """Check a document with a sidecar: the attachments that it names must be here first."""
        partition = self._partition
        names = blobs_of(sidecar_of(side))
        missing = partition.blobs.missing(names) if names else []
        if missing:
            raise BlobsMissing(partition.blobs, partition.partition_id, missing)
        partition.residents.expect_sidecars()

    def apply_advance(self, seqno: int) -> None:
        """Record that the open snapshot has no other change up to `seqno`.

        Raises:
            LocalProtocolError: as `apply_change`.
        """
        queue = self._partition.queue
        if not queue.high_seqno < seqno <= self.range_end:
            raise self._disorder(f"advance to {seqno}")
        self._check_following()
        queue.pass_over(seqno)
        if seqno == self.range_end:
            self._complete()

    def _complete(self) -> None:
        self.complete_end = self.range_end
        self._partition.queue.settle(self.complete_end)

    def _check_following(self) -> None:
        partition = self._partition
        if partition.state not in FOLLOWING or partition.is_suspended:
            message = f"partition {partition.partition_id} is {partition.state.name.lower()}"
            raise LocalProtocolError(f"{message} and follows no node now", code="bad_state")

    def _disorder(self, what: str) -> LocalProtocolError:
        message = f"partition {self._partition.partition_id}: {what} cannot follow"
        return LocalProtocolError(f"{message} {self.position}", code="bad_order")

    # -- the flusher

    @property
    def is_dirty(self) -> bool:
        """Return whether the log lacks the newest complete end or the source's history."""
        is_new = self._has_new_log or self._new_owed is not None
        return is_new or self.complete_end > self.frozen_mark

    def freeze(self) -> ChangeColumns:
        """Return what the log lacks, and mark it as frozen."""
        partition, end = self._partition, self.complete_end
        frozen = partition.queue.freeze()
        log = partition.failover_log if self._has_new_log else ()
        range_end = self.range_end if self.range_end > self._frozen_range_end else 0
        news = CopyNews(log, self._low_points, range_end, self._new_owed)
        mark = end if end > self.frozen_mark else 0
        self._has_new_log, self._low_points, self._new_owed = False, None, None
        self._frozen_range_end, self.frozen_mark = self.range_end, end
        batch = frozen.batch(partition.partition_id, has_sidecars=partition.residents.has_sidecars)
        return batch._replace(mark=mark, news=news)
