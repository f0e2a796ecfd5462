"""Documents of partitions that are active here, by id, with all their stored metadata.

Invariants:
1. Ids are looked up on demand, a few per partition at a time: the cost of a page depends on its
   size, not on the number of documents. Documents are read on demand.
2. Others get a turn of the loop when a scan has worked for `runtime.pace.STEP_S`.
3. A scan that ends without an error has read every partition, active throughout, to its end.

Elsewhere: the users of scans (`databases.documents.local_node`,
`databases.scans.distributed_scans`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from functools import partial
from time import thread_time
from typing import Final, NamedTuple

from millstream.documents.stored import load
from millstream.errors import UnavailableError
from millstream.kv.aio.reading_back import with_documents
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.active import active_copy, check_served
from millstream.kv.core.partition.partition import Partition
from millstream.model.partitions import PartitionState, partition_of
from millstream.model.sides import split
from millstream.runtime.pace import Pace
from millstream.wire.frames import described

__all__ = ["Range", "ordered_keys", "scanned"]

LANE_KEYS_MIN: Final = 16
"""Number of ids looked up first per partition; doubled each time, up to `LANE_KEYS_MAX`."""
LANE_KEYS_MAX: Final = 256


class Range(NamedTuple):
    """Ids from `start` to `end`, both included, in the order of their bytes."""

    start: bytes
    end: bytes
    descending: bool = False
    after: bytes | None = None
    """All ids up to this one have been read."""
    of_kv: bool = False
    """Whether to include keys that are no document ids: keys that only kv clients use."""

    def behind(self, key: bytes) -> Range:
        """Return the rest of the range after a key."""
        return self._replace(after=key)

    def admits(self, key: bytes) -> bool:
        """Return whether an id is in the rest of the range."""
        if not self.start <= key <= self.end:
            return False
        if self.after is None:
            return True
        return key < self.after if self.descending else key > self.after


async def scanned(
    bucket: Bucket, numbers: Collection[int], wanted: Range, now_ns: Callable[[], int]
) -> AsyncGenerator[tuple[bytes, bytes], None]:
    """Yield keys of existing documents, each with its frame and metadata.

    Raises:
        UnavailableError: `not_my_partition`; `temporarily_unavailable`.
    """
    pace = Pace(thread_time)
    async with aclosing(ordered_keys(bucket, numbers, wanted, pace)) as keys:
        async for key in keys:
            found = await with_documents(partial(_described, bucket, key, now_ns))
            await pace.breathe(0)
            if found is not None:
                yield key, found


def _described(bucket: Bucket, key: bytes, now_ns: Callable[[], int]) -> bytes | None:
    """Return a document with its stored metadata; None if it does not exist."""
    partition = active_copy(bucket, key)
    partition.live(key, now_ns())
    entry = partition.entry(key)
    if entry is None:
        return None
    document = load(bucket.uuid, key, entry.frame, entry.side)
    if not document.exists or document.winner.is_deleted:
        return None
    return described(entry.frame, *split(entry.side))


async def ordered_keys(
    bucket: Bucket, numbers: Collection[int], wanted: Range, pace: Pace
) -> AsyncGenerator[bytes, None]:
    """Yield keys in order, including keys of deleted documents.

    A key that is added or removed during the scan may be included or not.

    Args:
        bucket: has the keys.
        numbers: the partitions.
        wanted: which keys.
        pace: of the whole scan: its reader gives others a turn after each document.

    Raises:
        UnavailableError: `not_my_partition`, a partition is not active here, or no longer;
            `isolated`.
    """
    if wanted.start == wanted.end:
        alone = partition_of(wanted.start, bucket.partition_count)
        numbers = [alone] if alone in numbers else []
    lanes = [_Lane(bucket, bucket.partitions[number], wanted) for number in numbers]
    descending = wanted.descending
    while True:
        for lane in lanes:
            lane.fill()
            await pace.breathe(0)
        open_ends = [lane.keys[-1] for lane in lanes if not lane.is_over]
        bound = (max(open_ends) if descending else min(open_ends)) if open_ends else None
        found = [key for lane in lanes for key in lane.taken(bound)]
        found.sort(reverse=descending)
        for key in found:
            if wanted.of_kv or _is_id(key):
                yield key
        if bound is None:
            break
    for lane in lanes:
        lane.check()


class _Lane:
    """The unread keys of one partition; the first of them are loaded."""

    def __init__(self, bucket: Bucket, partition: Partition, wanted: Range) -> None:
        self._bucket = bucket
        self._partition, self._descending = partition, wanted.descending
        self._low, self._high = wanted.start, wanted.end + b"\0"
        if wanted.after is not None and wanted.descending:
            self._high = min(self._high, wanted.after)
        elif wanted.after is not None:
            self._low = max(self._low, wanted.after + b"\0")
        self._count = LANE_KEYS_MIN
        self.keys: list[bytes] = []
        self.is_over = False
        """There are no keys after `keys`."""

    def fill(self) -> None:
        """Load the next keys if few are left."""
        if self.is_over or len(self.keys) > self._count // 4:
            return
        self.check()
        found = self._partition.page(
            self._low, self._high, self._count, descending=self._descending
        )
        self.is_over = len(found) < self._count
        self.keys += found
        if found and self._descending:
            self._high = found[-1]
        elif found:
            self._low = found[-1] + b"\0"
        self._count = min(2 * self._count, LANE_KEYS_MAX)

    def check(self) -> None:
        """Raise if the partition is not active here, or may not serve: it would look empty."""
        check_served(self._bucket, (self._partition.partition_id,))
        if self._partition.state is not PartitionState.ACTIVE:
            raise UnavailableError(
                f"partition {self._partition.partition_id} is not active on this node",
                code="not_my_partition",
                retry="refresh_map",
            )

    def taken(self, bound: bytes | None) -> list[bytes]:
        """Remove and return the keys up to a bound, or all."""
        if bound is None:
            end = len(self.keys)
        elif self._descending:
            end = next((at for at, key in enumerate(self.keys) if key < bound), len(self.keys))
        else:
            end = bisect_right(self.keys, bound)
        found, self.keys = self.keys[:end], self.keys[end:]
        return found


def _is_id(key: bytes) -> bool:
    if key[:1] == b"_" and not key.startswith(b"_design/"):
        return False
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True
