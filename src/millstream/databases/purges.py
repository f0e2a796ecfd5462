"""Purges of a node's buckets, counted so that nobody takes a purged bucket for what it was.

What a node says of its purges is another text after each purge, and after each beginning of one:
while one is under way nothing is said twice. So what is remembered of a bucket from before a
purge, or from the middle of one, never fits what is said afterwards. It has the revision of the
map, too: a partition that came from elsewhere came with another map.

Invariants:
1. A purge is counted, durably, before it is made, and again once it was.
2. One that is never said to have been made is over after `PURGE_S_MAX`.

Elsewhere: the count itself (`kv.aio.engine`), what is made of it (`databases.scans.bucket_view`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import count
from typing import Final

from millstream.kv.aio.engine import BucketEngine

__all__ = ["PURGE_S_MAX", "Purges", "is_none"]

PURGE_S_MAX: Final = 600.0
"""How long a purge may take from its count until it is made."""
_LIFE: Final = secrets.token_hex(4)
"""Of this process: what another one says is another text."""


def is_none(said: str) -> bool:
    """Return whether nobody was said to have purged anything."""
    return said.startswith("0.")


class Purges:
    """Of one node.

    Args:
        find: returns a served bucket by its name, or raises why there is none.
        clock: seconds, never going back.
    """

    def __init__(self, find: Callable[[str], BucketEngine], clock: Callable[[], float]) -> None:
        self._find, self._clock = find, clock
        self._ends: dict[str, list[float]] = {}
        """Uuid -> when each purge that is under way is over at the latest."""
        self._never_made: dict[str, int] = {}
        self._numbers = count()

    def said(self, bucket: str) -> str:
        """Return what is said of a bucket's purges; `is_none` tells whether there was none."""
        running = self._find(bucket)
        uuid, now = running.bucket.uuid, self._clock()
        bucket_map = running.bucket.map
        ends = self._ends.get(uuid, [])
        over = [end for end in ends if end <= now]
        if over:
            self._never_made[uuid] = self._never_made.get(uuid, 0) + len(over)
            self._ends[uuid] = ends = [end for end in ends if end > now]
        text = f"{running.purge_epoch}.{0 if bucket_map is None else bucket_map.revision}"
        if uuid in self._never_made:
            text += f"-{_LIFE}-{self._never_made[uuid]}"
        return f"{text}-{_LIFE}+{next(self._numbers)}" if ends else text

    async def begin(self, bucket: str) -> None:
        """A purge is about to be made.

        Raises:
            UnavailableError: `disk_full`.
        """
        running = self._find(bucket)
        ends = self._ends.setdefault(running.bucket.uuid, [])
        ends.append(self._clock() + PURGE_S_MAX)
        await running.count_purge()

    async def end(self, bucket: str) -> None:
        """It was made, or will not be; raises as `begin`."""
        running = self._find(bucket)
        await running.count_purge()
        ends = self._ends.get(running.bucket.uuid)
        if ends:
            ends.pop(0)
