"""Slices of changes that were joined for one reader and are sent to others, too.

Readers that begin at the same place, as all do that begin at 0, are sent the same bytes. A slice
is kept joined for those who come after; that it is still right is seen by comparing the frames it
was made of with those that are there now, one by one, by identity: cheap beside making it.

Invariants:
1. A slice that is returned is what `memory_slice` would return, joined.
2. At most `SHARED_BYTES_MAX` are kept, the oldest go first.

Elsewhere: streams (`upr.core.stream`), what a connection makes of a slice (`upr.core.profile`),
the blocks (`kv.core.queue.mutation_queue`).

Source: docs/design/0009-stream-path.md.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final, NamedTuple, Protocol

from millstream.wire.frames import is_put, seqno_of
from millstream.wire.mcbp import Datatype

__all__ = ["SHARED_BYTES_MAX", "SHARED_ITEMS_MIN", "SharedSlice", "SharedSlices", "Slots"]

SHARED_BYTES_MAX: Final = 24 * 1024 * 1024
"""Joined slices kept for other readers, per bucket, while more than one connection streams."""
SHARED_ITEMS_MIN: Final = 64
"""Seqnos that a slice covers at least: of fewer, joining costs little."""
_DATATYPE_AT: Final = 5


class Slots(Protocol):
    """A partition whose newest changes stand in blocks."""

    @property
    def partition_id(self) -> int:
        """Number of the partition."""

    def slots(self, after: int, at: int, items_max: int) -> tuple[list[bytes], int, int] | None:
        """Return the block of the change after `after`, and the slots [begin, end) to send of it.

        Blank slots have nothing to send. The block is the live one: not to be changed, and only
        looked at before anything else happens. None: there is more to it, ask `memory_slice`.
        """


class SharedSlice(NamedTuple):
    """Canonical frames, joined; offsets of each and of those with the JSON bit, and seqnos."""

    body: bytes
    offsets: list[int]
    json_offsets: list[int]
    first_seqno: int
    last_seqno: int
    covered: int
    is_mutations: bool


class SharedSlices:
    """Of one bucket."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int, int], tuple[list[bytes], SharedSlice]] = {}
        self.kept_bytes = 0

    def take(
        self, source: Slots, after: int, at: int, bytes_max: int, items_max: int
    ) -> SharedSlice | None:
        """Return what is in (after, covered] as of `at`; None: ask `memory_slice`. Hot path."""
        found = source.slots(after, at, items_max)
        if found is None:
            return None
        frames, begin, end = found
        if end - begin < SHARED_ITEMS_MIN:
            return None
        key = (source.partition_id, after, end)
        kept = self._kept.get(key)
        if kept is None or kept[0] != frames:
            kept = self._make(key, frames, begin)
        return kept[1] if kept is not None and len(kept[1].body) <= bytes_max else None

    def _make(
        self, key: tuple[int, int, int], frames: list[bytes], begin: int
    ) -> tuple[list[bytes], SharedSlice] | None:
        _, after, end = key
        present = list(filter(None, frames[begin:end]))
        if not present:
            return None
        body = b"".join(present)
        offsets = [0, *accumulate(map(len, present))]
        offsets.pop()
        shared = SharedSlice(
            body, offsets, [at for at in offsets if body[at + _DATATYPE_AT] & Datatype.JSON],
            seqno_of(present[0]), seqno_of(present[-1]), after + end - begin,
            all(map(is_put, present)),
        )  # fmt: skip
        old = self._kept.pop(key, None)
        self.kept_bytes += len(body) - (len(old[1].body) if old is not None else 0)
        self._kept[key] = frames[:], shared
        while self.kept_bytes > SHARED_BYTES_MAX:
            oldest = self._kept.pop(next(iter(self._kept)))
            self.kept_bytes -= len(oldest[1].body)
        return frames, shared

    def clear(self) -> None:
        """Drop all slices: no other stream is left to share them with."""
        self._kept.clear()
        self.kept_bytes = 0
