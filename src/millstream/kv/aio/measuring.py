"""Measures what leases show: memory in the loop, block by block, the log in a thread.

Invariants:
1. What was measured counts only if the hold and the copy's history are still there afterwards.
2. A node measures for one request at a time. After `MEASURE_S` a request ends with the pieces that
   there are, at least one; the client asks again for the rest.

Elsewhere: the pieces (`kv.core.measuring`), lengths from the log (`storage.core.live`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from millstream.kv.core.measuring import Piece, Pieces
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.queue.blocks import BLOCK_SLOTS
from millstream.model.limits import UINT64_MAX
from millstream.storage.core.segment_files import Sizes
from millstream.upr.core.source import Hold
from millstream.wire.frames import seqno_of

__all__ = ["MEASURE_S", "Asked", "measure"]

MEASURE_S: Final = 0.5
"""Time after which a request to measure a lease takes no more from memory or the log."""

Asked = tuple[Partition, Hold, int]
"""A partition, the hold on it, and the seqno above which its rows are measured."""


async def measure(
    asked: Sequence[Asked], limits: tuple[int, int, int], turn: asyncio.Semaphore
) -> Mapping[int, Sequence[Piece]]:
    """Return the pieces of partitions; those that are lost or left for later are missing.

    Args:
        asked: partitions that a lease holds.
        limits: see `Pieces`.
        turn: one for all requests of a node.

    Raises:
        CorruptionError: an index of the log is damaged.
    """
    found: dict[int, Sequence[Piece]] = {}
    async with turn:
        end_s = time.monotonic() + MEASURE_S
        for partition, hold, after in asked:
            pieces = await _pieces(partition, hold, after, Pieces(*limits), end_s)
            if pieces is not None:
                found[partition.partition_id] = pieces
                if time.monotonic() >= end_s:
                    break
    return found


async def _pieces(
    partition: Partition, hold: Hold, after: int, pieces: Pieces, end_s: float
) -> list[Piece] | None:
    """Return the pieces of (after, hold.at]; None: the hold is lost."""
    epoch, at = partition.epoch, hold.at
    while after < at and not pieces.is_full:
        if partition.epoch != epoch or not partition.is_held(hold):
            return None
        found = None
        if not hold.is_logged:
            found = partition.memory_slice(after, at, UINT64_MAX, BLOCK_SLOTS)
        if found is None:
            sizes = partition.sizes(after, at, is_logged=hold.is_logged)
            after = await asyncio.to_thread(_take, pieces, sizes, after, end_s)
        else:
            frames, after = found
            pieces.add(list(map(len, frames)), partial(_seqno_in, frames))
            if time.monotonic() >= end_s:
                pieces.stop()
            await asyncio.sleep(0)
    is_there = partition.epoch == epoch and partition.is_held(hold)
    return pieces.finish(at) if is_there else None


def _seqno_in(frames: Sequence[bytes], index: int) -> int:
    return seqno_of(frames[index])


def _take(pieces: Pieces, sizes: Iterator[Sizes], after: int, end_s: float) -> int:
    """Add rows of the log; return the seqno that they cover up to."""
    for seqnos, lengths, last in sizes:
        pieces.add(lengths, seqnos.__getitem__)
        after = last
        if time.monotonic() >= end_s:
            pieces.stop()
        if pieces.is_full:
            break
    return after
