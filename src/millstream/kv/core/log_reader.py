"""The document log as a partition sees it.

Elsewhere: the log itself (`storage.core.store`), who reads it for partitions (`kv.aio.engine`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from millstream.kv.core.mutation_queue import Entry

__all__ = ["LogReader"]


class LogReader(Protocol):
    """What a partition asks of the document store."""

    def find(self, partition_id: int, key: bytes) -> Entry | None:
        """Return the newest record of the key as an entry, tombstones included."""

    def backfill(
        self, partition_id: int, after: int, upto: int, at: int, superseded: set[int]
    ) -> Iterator[tuple[list[bytes], int]]:
        """Yield frames of (after, upto] that nothing up to `at` replaces, with what they cover.

        `superseded`: records that changes replaced which the log need not have yet. Blocks.
        """

    def newest_mark(self, partition_id: int, seqno: int) -> int:
        """Return the newest mark at or below `seqno` that can be read as of, 0 if none."""

    def keys(self, partition_id: int) -> Iterator[bytes]:
        """Yield the keys that have a record; blocks."""
