"""Documents of partitions that are active here, by id, with all that is stored of them.

Invariants:
1. Ids are gathered first, in a thread; documents are read when they are wanted, as they are then.
2. The loop is given back after every `SCAN_TURN` documents.

Elsewhere: who asks for them (`node.own_parts`, `node.spread_scans`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from functools import partial
from typing import Final, NamedTuple

from millstream.documents.stored import load
from millstream.kv.aio.reading_back import with_documents
from millstream.kv.core.active import active_copy
from millstream.kv.core.bucket import Bucket
from millstream.model.sides import split
from millstream.wire.frames import described

__all__ = ["SCAN_TURN", "Range", "keys_between", "scanned"]

SCAN_TURN: Final = 50
"""Documents looked at before others have a turn."""


class Range(NamedTuple):
    """Ids from `start` to `end`, both included, in the order of their bytes."""

    start: bytes
    end: bytes
    descending: bool = False
    after: bytes | None = None
    """Up to there all was read."""

    def behind(self, key: bytes) -> Range:
        """Return what is left behind a key."""
        return self._replace(after=key)

    def admits(self, key: bytes) -> bool:
        """Whether an id is still to come."""
        if not self.start <= key <= self.end:
            return False
        if self.after is None:
            return True
        return key < self.after if self.descending else key > self.after


async def scanned(
    bucket: Bucket, numbers: Collection[int], wanted: Range, now_ns: Callable[[], int]
) -> AsyncGenerator[tuple[bytes, bytes], None]:
    """Yield keys of documents that exist, each with its described frame.

    Raises:
        UnavailableError: `not_my_partition`; `temporarily_unavailable`.
    """
    keys = await asyncio.to_thread(keys_between, bucket, numbers, wanted)
    for number, key in enumerate(keys, 1):
        found = await with_documents(partial(_described, bucket, key, now_ns))
        if number % SCAN_TURN == 0:
            await asyncio.sleep(0)
        if found is not None:
            yield key, found


def _described(bucket: Bucket, key: bytes, now_ns: Callable[[], int]) -> bytes | None:
    """Return a document as it is stored, None where there is none."""
    partition = active_copy(bucket, key)
    partition.live(key, now_ns())
    entry = partition.entry(key)
    if entry is None:
        return None
    document = load(bucket.uuid, key, entry.frame, entry.side)
    if not document.exists or document.winner.is_deleted:
        return None
    return described(entry.frame, *split(entry.side))


def keys_between(bucket: Bucket, numbers: Collection[int], wanted: Range) -> list[bytes]:
    """Return the keys that are document ids, in order; deleted documents' are among them."""
    found: list[bytes] = []
    for number in numbers:
        known = bucket.partitions[number].known_keys()
        found += [key for key in known if wanted.admits(key) and _is_id(key)]
    found.sort(reverse=wanted.descending)
    return found


def _is_id(key: bytes) -> bool:
    if key[:1] == b"_" and not key.startswith(b"_design/"):
        return False
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True
