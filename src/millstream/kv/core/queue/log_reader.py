"""The document log as a partition sees it.

Elsewhere: the log itself (`storage.core.store`), its reader for partitions (`kv.aio.engine`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from millstream.kv.core.queue.mutation_queue import Entry
from millstream.storage.core.segment_files import Sizes

__all__ = ["Fetched", "LogReader"]

Fetched = Callable[[Exception | None], None]
"""Called in the loop when a look-up will not wait, or with the error why it cannot be made."""


class LogReader(Protocol):
    """What a partition needs from the document store."""

    def find(self, partition_id: int, key: bytes) -> Entry | None:
        """Return the newest record of the key as an entry, tombstones included. In the loop.

        Raises:
            BlockingIOError: that would wait for the disk; `fetch` first.
        """

    def fetch(self, partition_id: int, key: bytes, done: Fetched) -> bool:
        """Load the key's record, so that `find` has it while `done` is called.

        False: too many loads are running; `done` is not called.
        """

    def newest_seqno(self, partition_id: int, key: bytes) -> int:
        """Return the seqno of the newest record of the key; 0 if there is none."""

    def backfill(
        self,
        partition_id: int,
        after: int,
        upto: int,
        at: int,
        superseded: set[int],
        *,
        is_described: bool = False,
    ) -> Iterator[tuple[list[bytes], int]]:
        """Yield frames of (after, upto] that nothing up to `at` replaces, with the range covered.

        `superseded`: replaced records whose successors may not be in the log yet. `is_described`:
        each frame has its metadata in front. Blocks.
        """

    def sizes(
        self, partition_id: int, after: int, upto: int, at: int, superseded: set[int]
    ) -> Iterator[Sizes]:
        """Yield the sizes of what `backfill` would yield; reads indexes only. Blocks."""

    def newest_mark(self, partition_id: int, seqno: int) -> int:
        """Return the newest mark at or below `seqno` that can be read as of; 0 if none."""

    def keys(self, partition_id: int) -> Iterator[bytes]:
        """Yield the keys that have a record; blocks."""

    def page(
        self, partition_id: int, low: bytes, high: bytes, count: int, *, descending: bool
    ) -> list[bytes]:
        """Return at most `count` first keys of [low, high) that have a record, in order.

        In descending order from its end if `descending`. Called in the loop: waits only for pages
        of the by-id map.
        """
