"""The stream of one partition: which snapshot is sent, from memory or from the log.

Each snapshot is read as of a frozen end (a hold), so every key is in it at most once and it ends
at a seqno that is sent. A step sends a slice of it.

Invariants:
1. No change is sent outside a marker; seqnos ascend; a marker starts above the end of the one
   before, except where it continues a snapshot whose hold was lost.
2. The first marker starts at the snapshot start that was asked for. Later ones start at their
   first change if read from memory, right after what was sent if read from the log.
3. Inside a snapshot at the request, or after a lost hold, the next snapshot reaches at least the
   end that was promised.
4. The first memory snapshot after one from the log carries the checkpoint flag.
5. A stream of a fixed view (a lease, a seqno) ends exactly after its end, be it inside the
   snapshot; any other finishes the snapshot that contains its end.
6. A change that is described is one item with its description, from source to wire: nothing comes
   between them.
7. At most one chunk of the log is being read and one is waiting, per stream.
8. With a condition, what memory has goes through a worker thread as what the log has.

Elsewhere: turns, flow control and replies (`upr.core.producer`), the judgement of the request
(`upr.core.decision`).

Source: UPR design paper, "How ep-engine streams a consistent snapshot for a partition".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from itertools import accumulate
from typing import Final, NamedTuple

from millstream.model.partitions import PartitionState
from millstream.upr.core.decision import Grant
from millstream.upr.core.profile import Profile
from millstream.upr.core.selecting import Condition, selected
from millstream.upr.core.source import BucketSource, Hold, PartitionSource
from millstream.wire.frames import change_of, is_put, seqno_of, stream_end
from millstream.wire.mcbp import Opcode, SnapshotFlag, StreamEndReason, request

__all__ = ["Chunk", "LogRead", "Stream", "StreamState"]

Chunk = tuple[list[bytes], int]
"""Canonical frames, and the seqno covered up to."""

_NOTHING: Final = (b"", 0)
_LOOK_ITEMS: Final = 16
_LOOK_BYTES: Final = 1 << 30
"""How far the oldest unsent change is looked for: what follows may have been replaced since."""


class StreamState(Enum):
    """Where the next change comes from."""

    PENDING = auto()
    """No snapshot is open: nothing to send, or not our turn to read the log."""
    BACKFILLING = auto()
    IN_MEMORY = auto()
    DEAD = auto()


_MOVES: Final[Mapping[StreamState, frozenset[StreamState]]] = {
    StreamState.PENDING: frozenset(
        {StreamState.BACKFILLING, StreamState.IN_MEMORY, StreamState.DEAD}
    ),
    StreamState.BACKFILLING: frozenset(
        {StreamState.IN_MEMORY, StreamState.PENDING, StreamState.DEAD}
    ),
    StreamState.IN_MEMORY: frozenset(
        {StreamState.BACKFILLING, StreamState.PENDING, StreamState.DEAD}
    ),
    StreamState.DEAD: frozenset(),
}


class LogRead(NamedTuple):
    """One `next` to be called on `chunks` in a worker thread, for `stream`."""

    stream: Stream
    chunks: Iterator[Chunk]


class Stream:
    """What one consumer is sent of one partition.

    Args:
        source: the partition.
        grant: what the request was granted.
        opaque: of the request, carried by every message.
        profile: how frames look on the connection.
        has_advances: the peer knows SEQNO_ADVANCED.
        bucket: whose other streams may share what is joined; None: there are none.
        skips_deletes: leave tombstones out of the first snapshot, as far as it is read from the
            log; only from the beginning.
        condition: documents for which it is false are left out; None: none is.
    """

    __slots__ = (
        "_chunk",
        "_chunk_at",
        "_chunks",
        "_condition",
        "_disk_before",
        "_end_min",
        "_epoch",
        "_grant",
        "_hold",
        "_is_disk",
        "_is_marked",
        "_is_reading",
        "_last_item",
        "_limit",
        "_marker_flags",
        "_marker_start",
        "_next_chunk",
        "_profile",
        "_role",
        "_sharing",
        "_skips_deletes",
        "_slice",
        "_upto",
        "complete",
        "has_advances",
        "opaque",
        "sent",
        "source",
        "state",
        "tells_awaited",
    )

    def __init__(
        self,
        source: PartitionSource,
        grant: Grant,
        opaque: int,
        profile: Profile,
        *,
        has_advances: bool,
        skips_deletes: bool,
        bucket: BucketSource | None = None,
        condition: Condition | None = None,
    ) -> None:
        self.source = source
        self._sharing = bucket if condition is None else None
        self._condition = condition
        self.opaque = opaque
        self.state = StreamState.PENDING
        self.has_advances = has_advances
        self.sent = grant.start
        """Everything at or below is sent, or superseded by what will be."""
        self.complete = grant.start if grant.start >= grant.snap_end else grant.snap_start
        """End of the last complete snapshot that the consumer has or is sent."""
        self._slice = source.described_slice if profile.is_described else source.memory_slice
        self.tells_awaited = False
        """The consumer is a copy, and hurries its disk for what somebody waits for."""
        self._profile = profile
        self._grant = grant
        self._epoch = source.epoch
        self._role: PartitionState = source.state
        self._skips_deletes = skips_deletes and grant.start == 0
        self._end_min = grant.snap_end
        self._marker_start: int | None = grant.snap_start
        """Start of the next marker if that is fixed."""
        self._marker_flags = SnapshotFlag(0)
        """Beside those that say where the snapshot is read from."""
        self._hold: Hold | None = None
        self._limit = 0
        self._is_marked = False
        self._is_disk = False
        self._disk_before = False
        self._last_item = 0
        self._chunks: Iterator[Chunk] | None = None
        self._chunk: Chunk | None = None
        self._chunk_at = 0
        self._next_chunk: Chunk | None = None
        self._is_reading = False
        self._upto = 0
        source.add_reader(self)

    def _move(self, to: StreamState) -> None:
        assert to in _MOVES[self.state], f"no way from {self.state} to {to}"
        self.state = to

    @property
    def partition_id(self) -> int:
        """Number of the partition."""
        return self.source.partition_id

    @property
    def selects(self) -> bool:
        """Whether documents are left out by a condition."""
        return self._condition is not None

    @property
    def lag(self) -> int:
        """How many seqnos it has still to send of those there are."""
        return max(0, min(self.source.high_seqno, self._grant.end) - self.sent)

    def unsent_ns(self) -> int | None:
        """Return when the oldest change that it has still to send was made, by its CAS (Unix, ns).

        None: it has sent all, or that change is not in memory.
        """
        source = self.source
        found = None
        if self.lag:
            found = source.memory_slice(self.sent, source.high_seqno, _LOOK_BYTES, _LOOK_ITEMS)
        return change_of(found[0][0]).cas if found and found[0] else None

    @property
    def status(self) -> str:
        """What it does, in a word."""
        return self.state.name.lower().replace("_", "-")

    @property
    def memory_after(self) -> int:
        """What is at or below will not be asked of memory."""
        is_log = self.state is StreamState.BACKFILLING
        return max(self.sent, self._upto) if is_log else self.sent

    @property
    def is_broken(self) -> bool:
        """Whether the partition is no longer what was read: the next step ends the stream."""
        return self.source.epoch != self._epoch

    @property
    def is_undone(self) -> bool:
        """Whether it is broken because changes that were sent were rolled back."""
        source = self.source
        return self.is_broken and source.high_seqno < self.sent and source.state is self._role

    @property
    def is_over(self) -> bool:
        """Whether its last message was returned."""
        return self.state is StreamState.DEAD

    # -- one step

    def is_ready(self) -> bool:
        """Return whether a step may do something. Hot path: called for every stream each round."""
        source = self.source
        return (
            self.sent != source.high_seqno
            or self._hold is not None
            or source.epoch != self._epoch
            or self.sent >= self._grant.end
        )

    def step(self, bytes_max: int, items_max: int, *, may_backfill: bool) -> tuple[bytes, int]:
        """Return what to send next, and how much work that was: 0 if there is nothing to do now.

        Args:
            bytes_max: at least 1; one change may overshoot it, and markers are not counted.
            items_max: changes, at least 1.
            may_backfill: a snapshot that must be read from the log may be begun.
        """
        reason = self._broken_reason()
        if reason is not None:
            return self.end(reason), 1
        if self._hold is not None and not self.source.is_held(self._hold):
            self._lose_hold()
        if self._hold is None:
            if self.sent >= max(self._grant.end, self._end_min):
                return self.end(StreamEndReason.OK), 1
            if not self._begin(may_backfill):
                lost = self._grant.hold is not None
                return (self.end(StreamEndReason.TOO_SLOW), 1) if lost else _NOTHING
        return self._send(bytes_max, items_max)

    def _broken_reason(self) -> StreamEndReason | None:
        """Return why the stream cannot go on, None if it can."""
        if not self.is_broken:
            return None
        return StreamEndReason.ROLLED_BACK if self.is_undone else StreamEndReason.STATE_CHANGED

    def _begin(self, may_backfill: bool) -> bool:
        """Open a snapshot; False: not now (for a fixed view: never again)."""
        source, fixed = self.source, self._grant.hold
        is_memory = self.sent >= source.memory_floor
        if fixed is not None:
            if not source.is_held(fixed):
                return False
            is_memory = is_memory and not fixed.is_logged
            if not is_memory and not may_backfill:
                return True
            self._hold, self._limit = fixed, self._grant.end
        else:
            high = self._newest()
            if high <= self.sent or high < self._end_min or not (is_memory or may_backfill):
                return False
            hold = self._open_hold(high)
            if hold is None:
                return False
            if hold.is_logged and not may_backfill:
                source.release_hold(hold)
                return False
            is_memory = is_memory and not hold.is_logged
            self._hold, self._limit = hold, hold.at
        self._is_marked = False
        self._is_disk = self._is_disk or not is_memory
        if is_memory:
            self._move(StreamState.IN_MEMORY)
        else:
            self._open_log()
        return True

    def _newest(self) -> int:
        """Return where a snapshot that begins now may end."""
        source = self.source
        if not self._grant.is_durable_only:
            return source.high_seqno
        return source.durable_mark() if source.persisted_seqno > self.sent else 0

    def _open_hold(self, newest: int) -> Hold | None:
        if self._grant.is_durable_only:
            return self.source.open_hold(newest, self.sent)
        wanted_at = self._grant.wanted_at
        if wanted_at is not None and wanted_at >= self._end_min:
            hold = self.source.open_hold(wanted_at, self.sent)
            if hold is not None:
                return hold
        return self.source.open_hold(None, self.sent)

    def _send(self, bytes_max: int, items_max: int) -> tuple[bytes, int]:
        if self._hold is None:  # a fixed view that must wait for its turn to read the log
            return _NOTHING
        before = self.sent
        data = self._send_shared(bytes_max, items_max)
        if data is not None:
            return data, self.sent - before
        found = self._next_frames(bytes_max, items_max)
        if found is None:
            return _NOTHING
        frames, covered = found
        if covered > self._limit:
            covered = self._limit
            while frames and seqno_of(frames[-1]) > covered:
                frames.pop()
        self.sent = covered
        work = max(1, len(frames))
        if self.state is StreamState.IN_MEMORY:
            work = max(1, covered - before)  # slots passed over are work, too
        head = tail = b""
        if frames:
            self._last_item = seqno_of(frames[-1])
            if not self._is_marked:
                head = self._marker(before, seqno_of(frames[0]))
        if covered >= self._limit:
            tail = self._finish(before)
        if frames:
            tail = self._profile.join(frames, self.partition_id, self.opaque, head, tail)
        return tail, work

    def _send_shared(self, bytes_max: int, items_max: int) -> bytes | None:
        """Send what was joined for another reader, or is for one; None: go frame by frame."""
        slices = self._sharing.shared_slices if self._sharing is not None else None
        if slices is None or self.state is not StreamState.IN_MEMORY or self.sent >= self._limit:
            return None
        before = self.sent
        shared = slices.take(self.source, before, self._limit, bytes_max, items_max)
        if shared is None or not self._profile.shares(shared):
            return None
        head = tail = b""
        if not self._is_marked:
            head = self._marker(before, shared.first_seqno)
        self.sent, self._last_item = shared.covered, shared.last_seqno
        if self.sent >= self._limit:
            tail = self._finish(before)
        return self._profile.join_shared(shared, self.partition_id, self.opaque, head, tail)

    def _next_frames(self, bytes_max: int, items_max: int) -> Chunk | None:
        """Return frames after what was sent; None while the log is being read."""
        assert self._hold is not None
        if self.sent >= self._limit:
            return [], self.sent
        if self.state is StreamState.IN_MEMORY:
            found = self._slice(self.sent, self._hold.at, bytes_max, items_max)
            if found is None:
                self._open_log()
            elif self._condition is None:
                return found
            else:
                self._move(StreamState.BACKFILLING)
                self._upto = found[1]
                self._chunks = selected(iter([found]), self._condition)
        return self._from_log(bytes_max, items_max)

    # -- snapshots

    def _marker(self, before: int, first_item: int) -> bytes:
        """Announce the snapshot."""
        assert self._hold is not None
        if self._marker_start is None:
            self._marker_start = before + 1 if self._is_disk else first_item
        flags = SnapshotFlag.DISK if self._is_disk else SnapshotFlag.MEMORY
        flags |= self._marker_flags
        if self.tells_awaited and self.source.awaited_seqno > before:
            flags |= SnapshotFlag.AWAITED
        if self._disk_before and not self._is_disk:
            flags |= SnapshotFlag.CHECKPOINT
        self._disk_before = self._is_disk
        self._is_marked = True
        return self._profile.marker(
            self.partition_id, self.opaque, self._marker_start, self._hold.at, flags,
            self.source.purge_seqno,
        )  # fmt: skip

    def _finish(self, before: int) -> bytes:
        """Close the snapshot, or the part of it that was asked for."""
        assert self._hold is not None
        data = b""
        at = self._hold.at
        if self.sent == at != self._last_item and self.has_advances:
            if not self._is_marked:
                data = self._marker(before, at)
            extras = at.to_bytes(8, "big")
            data += request(
                Opcode.DCP_SEQNO_ADVANCED,
                vbucket=self.partition_id,
                opaque=self.opaque,
                extras=extras,
            )
        if self.sent >= at:
            self.complete = at
        self._release()
        self._marker_start = None
        self._end_min = 0
        self._is_disk = self._skips_deletes = False
        self._move(StreamState.PENDING)
        if self.sent >= self._grant.end:
            data += self.end(StreamEndReason.OK)
        return data

    def _lose_hold(self) -> None:
        """Go on from what was sent, in a snapshot that continues the one promised."""
        assert self._hold is not None
        if self._is_marked:
            self._end_min = max(self._end_min, self._hold.at)
            self._is_disk, self._skips_deletes = True, False
        self._hold = None
        self._forget_log()
        self._move(StreamState.PENDING)

    def end(self, reason: StreamEndReason) -> bytes:
        """Give everything up and return the last message."""
        self.abandon()
        return stream_end(self.partition_id, self.opaque, reason)

    def abandon(self) -> None:
        """Give everything up; nothing more is sent."""
        self._release()
        self.source.remove_reader(self)
        if self._grant.owns_hold and self._grant.hold is not None:
            self.source.release_hold(self._grant.hold)
        self._move(StreamState.DEAD)

    def _release(self) -> None:
        if self._hold is not None and self._hold is not self._grant.hold:
            self.source.release_hold(self._hold)
        self._hold = None
        self._forget_log()

    # -- the log

    def _open_log(self) -> None:
        assert self._hold is not None
        self._move(StreamState.BACKFILLING)
        at, is_logged = self._hold.at, self._hold.is_logged
        self._upto = at if is_logged else min(at, self.source.memory_floor)
        self._chunks = self.source.backfill(
            self.sent, at, is_logged=is_logged, is_described=self._profile.is_described
        )
        if self._condition is not None:
            self._chunks = selected(self._chunks, self._condition)

    def _forget_log(self) -> None:
        self._chunks = self._chunk = self._next_chunk = None
        self._is_reading = False

    def take_read(self) -> LogRead | None:
        """Return the read to start now, if any; `on_chunk` ends it."""
        if self._chunks is None or self._is_reading or self._next_chunk is not None:
            return None
        self._is_reading = True
        return LogRead(self, self._chunks)

    def on_chunk(self, read: LogRead, chunk: Chunk | None) -> None:
        """Take what was read; None: the log has no more. A read given up meanwhile is dropped."""
        if read.chunks is not self._chunks:
            return
        self._is_reading = False
        if chunk is None:
            self._chunks = None
        else:
            self._next_chunk = chunk

    def on_read_failed(self, read: LogRead) -> bytes:
        """End the stream: the log could not be read."""
        if read.chunks is not self._chunks or self.state is StreamState.DEAD:
            return b""
        return self.end(StreamEndReason.BACKFILL_FAILED)

    def _from_log(self, bytes_max: int, items_max: int) -> Chunk | None:
        if self._chunk is None:
            if self._next_chunk is None:
                if self._chunks is not None:
                    return None
                self._move(StreamState.IN_MEMORY)
                return [], max(self.sent, self._upto)
            self._chunk, self._chunk_at, self._next_chunk = self._next_chunk, 0, None
        frames, last = self._chunk
        part = frames[self._chunk_at : self._chunk_at + items_max]
        sizes = list(accumulate(map(len, part)))
        if sizes and sizes[-1] > bytes_max:
            part = part[: max(1, bisect_right(sizes, bytes_max))]
        self._chunk_at += len(part)
        covered = last if self._chunk_at == len(frames) else seqno_of(part[-1])
        if covered == last:
            self._chunk = None
        if self._skips_deletes:
            part = [f for f in part if is_put(f) or seqno_of(f) == self._limit]
        return part, covered
