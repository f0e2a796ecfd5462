"""How many documents a database has, and how many deleted ones: counted when somebody asks.

Nothing is loaded at a start and nothing counted while documents are written, so a partition that
changed since it was counted last is read once more.

Invariants:
1. Counts are of what is durable, as feeds show it, and remembered with where they were taken.
2. Keys that are no document ids are not counted.
3. `recent` reads at most `COUNTED_AT_ONCE_MAX` changes before it answers; what is more is counted
   beside, by one task, at most one part in `COUNTING_SHARE` of the time.

Elsewhere: reading (`kv.aio.documents.changes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from struct import Struct
from time import monotonic
from typing import Final, NamedTuple

from millstream.documents.tokens import Vector
from millstream.errors import MillstreamError
from millstream.kv.aio.documents.changes import BucketChanges
from millstream.model.partitions import DESIGN_PREFIX
from millstream.model.position import Position
from millstream.runtime.tasks import Tasks
from millstream.wire.frames import description_bytes

__all__ = ["Counts", "DocumentCounts"]

COUNTED_AT_ONCE_MAX: Final = 10_000
"""Changes that are read for the figures of one page: about 10 ms."""
COUNTING_SHARE: Final = 10
_HEAD = Struct(">xBHB").unpack_from
_MUTATION = 0x57
_HEADER_BYTES = 24


class Counts(NamedTuple):
    """Documents of a database."""

    live: int
    deleted: int


class DocumentCounts:
    """Counts the documents of one bucket."""

    def __init__(self, changes: BucketChanges) -> None:
        self._changes = changes
        self._known: dict[int, tuple[Position, Counts]] = {}
        self._turn = asyncio.Lock()
        self._tasks = Tasks()
        self._not_before_s = 0.0

    async def count(self, numbers: Collection[int] | None = None) -> Counts:
        """Return the counts as of now, of some partitions or all; raises as walks do."""
        async with self._turn:
            latest = self._changes.latest()
            wanted = range(len(latest.positions)) if numbers is None else numbers
            new = [n for n in wanted if not self._is_known(n, latest.positions[n])]
            if new:
                positions = list(latest.positions)
                for number in new:
                    positions[number] = Position()
                start = latest._replace(positions=tuple(positions))
                await self._recount(start, new)
            found = [self._known[number][1] for number in wanted if number in self._known]
            return Counts(sum(one.live for one in found), sum(one.deleted for one in found))

    async def recent(self) -> Counts | None:
        """Return the counts as of now if that is quick, else those counted last.

        None: they are not known yet.
        """
        latest = self._changes.latest().positions
        new = [n for n, position in enumerate(latest) if not self._is_known(n, position)]
        if sum(latest[number].seqno for number in new) <= COUNTED_AT_ONCE_MAX:
            return await self.count()
        if not len(self._tasks) and monotonic() >= self._not_before_s:
            self._tasks.start(self._count_beside(), name="counting documents")
        if any(number not in self._known for number in new):
            return None
        found = [counts for _, counts in self._known.values()]
        return Counts(sum(one.live for one in found), sum(one.deleted for one in found))

    async def stop(self) -> None:
        """Give up what is counted beside."""
        await self._tasks.stop()

    async def _count_beside(self) -> None:
        began_s = monotonic()
        with suppress(MillstreamError):  # whoever asks for exact counts is told
            await self.count()
        now_s = monotonic()
        self._not_before_s = now_s + (COUNTING_SHARE - 1) * (now_s - began_s)

    def _is_known(self, number: int, position: Position) -> bool:
        known = self._known.get(number)
        if position == Position():
            self._known.pop(number, None)
            return True
        return known is not None and known[0] == position

    async def _recount(self, start: Vector, numbers: Collection[int]) -> None:
        changes = self._changes.open(start, restarts=False, numbers=numbers)
        found: dict[int, list[int]] = {}
        try:
            async for piece in changes.pieces():
                counts = found.setdefault(piece.snapshot.partition_id, [0, 0])
                for frame in piece.frames:
                    is_live = _is_live(frame)
                    if is_live is not None:
                        counts[not is_live] += 1
                changes.tokens.move(piece.snapshot.partition_id, piece.snapshot.at(piece.covered))
            for number, (live, deleted) in found.items():
                position = changes.tokens.position(number)
                self._known[number] = position, Counts(live, deleted)
        finally:
            changes.close()


def _is_live(frame: bytes) -> bool | None:
    """Return whether a change's document exists now, None if its key is no document id."""
    at = description_bytes(frame)
    opcode, key_bytes, extras_bytes = _HEAD(frame, at)
    begin = at + _HEADER_BYTES + extras_bytes
    key = frame[begin : begin + key_bytes]
    if key[:1] == b"_" and not key.startswith(DESIGN_PREFIX):
        return None
    if not key.isascii():
        try:
            key.decode()
        except UnicodeDecodeError:
            return None
    return bool(opcode == _MUTATION)
