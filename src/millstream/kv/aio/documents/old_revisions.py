"""Searches the log of a bucket for contents of old revisions; and the end of them at a compaction.

Invariants:
1. One search of a bucket runs at a time, in a thread; `SEARCHES_WAITING_MAX` wait at most. It
   rests after each 2 ms, as long, so the loop waits no longer.
2. What had been replaced when the bucket was compacted on request is not found any more, also
   after a restart. What history has passed is not found either: compaction and the sweep of
   attachments may take it at any time.

Elsewhere: the search (`kv.core.revisions.old_revisions`), the threads (`kv.aio.reading_back`),
compaction (`kv.aio.compactor`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from time import sleep, thread_time
from typing import Final

import msgspec

from millstream.kv.aio.documents.local_store import LocalStore
from millstream.kv.aio.reading_back import ReadingBack
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.active import active_copy, not_now
from millstream.kv.core.revisions.old_revisions import Compacted, OldChanges, find_old
from millstream.runtime.pace import STEP_S
from millstream.storage.core.by_id import ByIdValue
from millstream.storage.core.store import LogStore, StoredChange

__all__ = ["SEARCHES_WAITING_MAX", "OldRevisions"]

SEARCHES_WAITING_MAX: Final = 256
"""Searches for old revisions of one bucket that wait; more are refused for the moment."""
_COMPACTED: Final = "compacted"
"""Setting: where each partition was at the last compaction on request."""
_NOTHING: Final = Compacted(0, 0)
_decode: Final = msgspec.msgpack.Decoder(list[Compacted]).decode


class OldRevisions:
    """The old revisions of one bucket.

    Args:
        bucket: of the documents.
        store: its log.
        reading: runs searches in its threads.
        local: has the setting.
    """

    def __init__(
        self, bucket: Bucket, store: LogStore, reading: ReadingBack, local: LocalStore
    ) -> None:
        self._bucket, self._store, self._reading, self._local = bucket, store, reading, local
        kept = local.setting(_COMPACTED)
        nothing = [_NOTHING] * bucket.partition_count
        self._compacted: Sequence[Compacted] = nothing if kept is None else _decode(kept)
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def find(self, key: bytes, wanted: Collection[str], *, lists_all: bool) -> OldChanges:
        """Find contents of revisions of a document in the changes that are on this disk.

        Args:
            key: of the document.
            wanted: revisions.
            lists_all: also list all revisions whose contents are there.

        Raises:
            UnavailableError: as `active_copy`, or too many wait.
            CorruptionError: a record is damaged.
        """
        if self._waiting >= SEARCHES_WAITING_MAX:
            raise not_now(f"{self._waiting} searches for old revisions wait already")
        self._waiting += 1
        try:
            async with self._turn:
                number = active_copy(self._bucket, key).partition_id
                located = self._store.locate(number, key)
                if located is None:
                    return OldChanges([], [])
                search = partial(self._find, number, key, located, wanted, lists_all=lists_all)
                return await self._reading.run(search)
        finally:
            self._waiting -= 1

    def _find(
        self,
        number: int,
        key: bytes,
        located: ByIdValue,
        wanted: Collection[str],
        *,
        lists_all: bool,
    ) -> OldChanges:
        compacted = self._compacted[number].limit(self._bucket.partitions[number].failover_log)
        limit = max(compacted, self._store.partition(number).history_seqno)
        changes = _paced(self._store.versions(number, key, located[0]))
        return find_old(self._bucket.uuid, key, changes, wanted, limit, lists_all=lists_all)

    async def forget(self) -> None:
        """Have nothing found any more of what was replaced by now; durable on return.

        Raises:
            UnavailableError: `disk_full`.
        """
        compacted = [
            Compacted(one.failover_log[0].branch, one.high_seqno) if one.failover_log else _NOTHING
            for one in self._bucket.partitions
        ]
        await self._local.set(_COMPACTED, msgspec.msgpack.encode(compacted))
        self._compacted = compacted


def _paced(changes: Iterator[StoredChange]) -> Iterator[StoredChange]:
    """Yield changes, and give the loop the interpreter's lock after each step."""
    end = thread_time() + STEP_S
    for change in changes:
        yield change
        if thread_time() >= end:
            sleep(STEP_S)
            end = thread_time() + STEP_S
