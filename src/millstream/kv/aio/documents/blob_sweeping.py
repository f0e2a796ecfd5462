"""The sweep: removes attachments that nothing names any more.

    list old files -> be told of all that is relied on from here on -> have the log take what is in
    memory -> look through what holds keep, and through the log -> wait for copies -> remove

Invariants:
1. A file is removed only if no readable change names it: none in history, none that a hold keeps,
   none made since the sweep began. During a sweep the log is not compacted, and history does not
   move.
2. A file is not removed if it was put less than `UNNAMED_SECONDS_MIN` ago: its document may
   follow.
3. A file is not removed before every following copy is past everything that this node had when the
   log had been read, since the copy may be about to request what an older change named.
4. A name that is relied on meanwhile stays. A file that is being removed counts as missing, and a
   put of it waits until it is gone. Both are decided in the loop.
5. Memory: `NAMES_MAX` names at a time, and the seqnos that history replaced of one partition.

Elsewhere: the remaining names (`kv.core.revisions.unused_blobs`), the files
(`kv.aio.documents.blobs`), timing, steps and handling of errors (`kv.aio.compactor`).

Source: docs/design/0034-unused-attachments.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple, Protocol

from millstream.errors import CorruptionError
from millstream.kv.aio.documents.blobs import UNNAMED_SECONDS_MIN, BlobFiles
from millstream.kv.aio.flusher import DISK_FULL, Flusher
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.revisions.unused_blobs import UnnamedBlobs, have_reached, high_ends
from millstream.model.limits import UINT64_MAX
from millstream.storage.core.store import LogStore

__all__ = ["BlobStatistics", "BlobSweep", "Pacing"]

_LOG = logging.getLogger(__name__)
NAMES_MAX: Final = 65_536
"""Names checked at a time, some 100 bytes each; for more files the log is read several times."""
REMOVED_AT_ONCE: Final = 64
"""Files that count as missing while they are removed."""
INTERVAL_S: Final = 3600
"""Interval of automatic sweeps."""
REST_FACTOR: Final = 50
"""Minimal interval as a multiple of the last sweep's duration."""
COPIES_SECONDS_MAX: Final = 60
"""How long to wait for copies that lag; then the next sweep tries again."""
COPIES_LOOK_S: Final = 0.05
"""Pause between two checks of the copies."""
_SECOND_NS: Final = 1_000_000_000


class BlobStatistics(NamedTuple):
    """Statistics of attachments."""

    files: int
    bytes: int
    sweeps_total: int
    removed_total: int
    removed_bytes_total: int


class Pacing(Protocol):
    """Pacing of the work: see `Compactor`."""

    async def steps(self, steps: Iterator[None]) -> None:
        """Take steps in a thread, a few at a time."""

    async def rest(self) -> None:
        """Let other tasks run."""


class BlobSweep:
    """The sweep of one bucket.

    Args:
        bucket: whose changes name attachments.
        store: its log.
        flusher: writes what is in memory to the log.
        files: the attachments.
        forget: called with names that are going to be removed.
        now_ns: Unix time, for the age of files.
        monotonic_ns: a monotonic clock, for the interval of sweeps.
    """

    def __init__(
        self,
        bucket: Bucket,
        store: LogStore,
        flusher: Flusher,
        files: BlobFiles,
        *,
        forget: Callable[[Collection[bytes]], None],
        now_ns: Callable[[], int],
        monotonic_ns: Callable[[], int],
    ) -> None:
        self._bucket = bucket
        self._store = store
        self._flusher = flusher
        self._files = files
        self._forget = forget
        self._now_ns = now_ns
        self._monotonic_ns = monotonic_ns
        self._due_ns = 0
        self._known_bytes = -1
        """Bytes appended to the log when the last sweep began."""
        self._known_ns = 0
        """Files put before then were already checked."""
        self._sweeps = 0

    def is_due(self) -> bool:
        """Return whether it is time, and there may be something new to find."""
        has_news = (
            self._store.appended_bytes != self._known_bytes or self._files.put_ns > self._known_ns
        )
        return self._files.count > 0 and has_news and self._monotonic_ns() >= self._due_ns

    def statistics(self) -> BlobStatistics:
        """Return statistics of files and removals."""
        files = self._files
        return BlobStatistics(
            files.count, files.bytes, self._sweeps, files.removed_count, files.removed_bytes
        )

    async def run(self, pacing: Pacing) -> None:
        """Make one sweep.

        Raises:
            UnavailableError: of the flusher, or as the pacing raises; nothing is lost by that.
            CorruptionError: a damaged record was found.
        """
        began_ns = self._monotonic_ns()
        known_bytes = self._store.appended_bytes
        put_before_s = self._now_ns() / _SECOND_NS - UNNAMED_SECONDS_MIN
        after, is_done = b"", True
        try:
            while True:
                names: list[bytes] = []
                await pacing.steps(self._files.old(put_before_s, after, NAMES_MAX, names))
                if names:
                    is_done &= await self._judge(names, put_before_s, pacing)
                if len(names) < NAMES_MAX:
                    break
                after = names[-1]
        except (CorruptionError, OSError) as error:
            if isinstance(error, CorruptionError) and error.code != "bad_sidecar":
                raise
            _LOG.error(
                "bucket %s: unused attachments are not removed: %s", self._bucket.name, error
            )
            is_done = False
        self._sweeps += 1
        took_ns = self._monotonic_ns() - began_ns
        self._due_ns = began_ns + max(INTERVAL_S * _SECOND_NS, REST_FACTOR * took_ns)
        if is_done:
            self._known_bytes = known_bytes
            self._known_ns = began_ns - UNNAMED_SECONDS_MIN * _SECOND_NS

    async def _judge(self, names: list[bytes], put_before_s: float, pacing: Pacing) -> bool:
        """Remove those of the names that nothing needs; return whether that could be done."""
        if DISK_FULL in self._bucket.writes.refusals:
            return False  # what is in memory cannot be written to the log
        unnamed = UnnamedBlobs(names)
        with self._files.telling(unnamed):
            await self._flusher.flush_all()
            for partition in self._bucket.partitions:
                unnamed.found_beside(partition.queue.holds.sides())
                await pacing.rest()
            await pacing.steps(self._look_through_log(unnamed))
            if unnamed and not await self._until_copies_have_all(pacing):
                return False
            while unnamed:
                await self._remove(unnamed, put_before_s, pacing)
        return True

    def _look_through_log(self, unnamed: UnnamedBlobs) -> Iterator[None]:
        """Find the names in the sidecars of all readable records; blocks."""
        store = self._store
        for partition_id in range(self._bucket.partition_count):
            if not unnamed:
                return
            history = store.partition(partition_id).history_seqno
            replaced = store.superseded(partition_id, 0, history)
            yield
            for changes in store.scan(partition_id, 0, UINT64_MAX, replaced):
                unnamed.found_in(change.sidecar for change in changes)
                yield

    async def _until_copies_have_all(self, pacing: Pacing) -> bool:
        partitions = self._bucket.partitions
        ends = high_ends(partitions)
        give_up_ns = self._monotonic_ns() + COPIES_SECONDS_MAX * _SECOND_NS
        while not have_reached(partitions, ends):
            if self._monotonic_ns() >= give_up_ns:
                _LOG.info("bucket %s: unused attachments are kept, copies lag", self._bucket.name)
                return False
            await asyncio.sleep(COPIES_LOOK_S)
            await pacing.rest()
        return True

    async def _remove(self, unnamed: UnnamedBlobs, put_before_s: float, pacing: Pacing) -> None:
        files = self._files
        batch = unnamed.take(REMOVED_AT_ONCE, files.putting)
        with files.removing(batch):
            self._forget(batch)
            await pacing.steps(files.remove(batch, put_before_s))
