"""The document log as a partition sees it.

Elsewhere: the log itself (`storage.core.store`), who reads it for partitions (`kv.aio.engine`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from millstream.kv.core.queue.mutation_queue import Entry

__all__ = ["Fetched", "LogReader"]

Fetched = Callable[[Exception | None], None]
"""Told in the loop that a look-up will not have to wait now, or why it cannot be made."""


class LogReader(Protocol):
    """What a partition asks of the document store."""

    def find(self, partition_id: int, key: bytes) -> Entry | None:
        """Return the newest record of the key as an entry, tombstones included. In the loop.

        Raises:
            BlockingIOError: that would wait for the disk; `fetch` first.
        """

    def fetch(self, partition_id: int, key: bytes, done: Fetched) -> bool:
        """Bring the key's record, so that `find` has it while `done` is called.

        False: too many are being brought already; nothing is called.
        """

    def newest_seqno(self, partition_id: int, key: bytes) -> int:
        """Return the seqno of the newest record of the key, 0 if there is none."""

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
        """Yield frames of (after, upto] that nothing up to `at` replaces, with what they cover.

        `superseded`: records that changes replaced which the log need not have yet.
        `is_described`: each frame with its description in front. Blocks.
        """

    def newest_mark(self, partition_id: int, seqno: int) -> int:
        """Return the newest mark at or below `seqno` that can be read as of, 0 if none."""

    def keys(self, partition_id: int) -> Iterator[bytes]:
        """Yield the keys that have a record; blocks."""

    def page(
        self, partition_id: int, low: bytes, high: bytes, count: int, *, descending: bool
    ) -> list[bytes]:
        """Return the first keys of [low, high) that have a record, in order; `count` at most.

        From its end if `descending`. In the loop: waits for nothing but pages of the by-id map.
        """
