"""Counts the purges of a node's buckets, so that a bucket is recognized as changed by a purge.

The purge text of a bucket changes after each purge and at the start of each purge; while a purge
runs, each answer differs from the one before. So data cached before or during a purge never
matches a later text. The text includes the revision of the map, because a partition that moved
here came with another map.

Invariants:
1. A purge is counted durably before it is made, and again after it was made.
2. A purge without a reported end counts as ended after `PURGE_S_MAX`.

Elsewhere: the count itself (`kv.aio.engine`), its use (`databases.scans.bucket_view`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import count
from typing import Final

from millstream.kv.aio.engine import BucketEngine

__all__ = ["PURGE_S_MAX", "Purges", "is_none"]

PURGE_S_MAX: Final = 600.0
"""How long a purge may take from its first count to its end."""
_LIFE: Final = secrets.token_hex(4)
"""Part of every text, so that texts of different processes differ."""


def is_none(said: str) -> bool:
    """Return whether a purge text says that there were no purges."""
    return said.startswith("0.")


class Purges:
    """The purges of one node.

    Args:
        find: returns a served bucket by its name, or raises why there is none.
        clock: seconds, monotonic.
    """

    def __init__(self, find: Callable[[str], BucketEngine], clock: Callable[[], float]) -> None:
        self._find, self._clock = find, clock
        self._ends: dict[str, list[float]] = {}
        """Uuid -> for each running purge, the time at which it counts as ended."""
        self._never_made: dict[str, int] = {}
        self._numbers = count()

    def said(self, bucket: str) -> str:
        """Return the purge text of a bucket; `is_none` tells whether there were purges."""
        running = self._find(bucket)
        uuid, now = running.bucket.uuid, self._clock()
        bucket_map = running.bucket.map
        ends = self._ends.get(uuid, [])
        over = [end for end in ends if end <= now]
        if over:
            self._never_made[uuid] = self._never_made.get(uuid, 0) + len(over)
            self._ends[uuid] = ends = [end for end in ends if end > now]
        text = f"{running.purge_epoch}.{0 if bucket_map is None else bucket_map.revision}"
        if bucket_map is not None and bucket_map.generation:
            text += f".{bucket_map.generation}"
        if uuid in self._never_made:
            text += f"-{_LIFE}-{self._never_made[uuid]}"
        return f"{text}-{_LIFE}+{next(self._numbers)}" if ends else text

    async def begin(self, bucket: str) -> None:
        """Count a purge that is about to be made.

        Raises:
            UnavailableError: `disk_full`.
        """
        running = self._find(bucket)
        ends = self._ends.setdefault(running.bucket.uuid, [])
        ends.append(self._clock() + PURGE_S_MAX)
        await running.count_purge()

    async def end(self, bucket: str) -> None:
        """Count a purge that was made, or was given up; raises as `begin`."""
        running = self._find(bucket)
        await running.count_purge()
        ends = self._ends.get(running.bucket.uuid)
        if ends:
            ends.pop(0)
