"""Blocks of 1,024 consecutive seqnos, stored in columns, and the columns that a flush takes.

Invariants:
1. The place of a change is computed from its seqno: block `seqno >> BITS`, slot `seqno & 1023`.
2. The columns of a block are equally long, except those that a full and durable block has dropped.
   A filled slot is only ever blanked.

Elsewhere: the set of blocks, and counters, which are in maps (`kv.core.queue.mutation_queue`).
"""

from __future__ import annotations

from itertools import compress
from typing import Final, NamedTuple

from millstream import accelerated
from millstream.kv.core.queue.entry import Entry
from millstream.model.limits import KEY_BYTES_MAX
from millstream.model.sides import has_sidecar, split
from millstream.storage.core.records import ChangeColumns

__all__ = ["BITS", "BLOCK_SLOTS", "CLOSED", "NOTHING", "Block", "Entry", "FrozenChanges", "Item"]

BITS: Final = 10
BLOCK_SLOTS: Final = 1 << BITS
NOTHING: Final = b""
_ABOVE_KEYS: Final = b"\xff" * (KEY_BYTES_MAX + 1)
_NOBODY: Final = Entry(NOTHING, NOTHING, NOTHING)
Item = tuple[Entry, bytes, int]
"""Entry, frame and previous seqno of a change that is in no slot."""


class FrozenChanges(NamedTuple):
    """What a flush takes, column by column, seqno ascending."""

    seqnos: list[int]
    keys: list[bytes]
    frames: list[bytes]
    previous_seqnos: list[int]
    sides: list[bytes]

    def batch(self, partition_id: int, *, has_sidecars: bool) -> ChangeColumns:
        """Return them in the form of the log; `has_sidecars`: the sides may contain some."""
        if not has_sidecars or not any(map(has_sidecar, self.sides)):
            return ChangeColumns(partition_id, *self)
        lineages, sidecars = zip(*map(split, self.sides), strict=True)
        return ChangeColumns(partition_id, *self[:-1], lineages, sidecars)

    @classmethod
    def joined(cls, parts: list[FrozenChanges]) -> FrozenChanges:
        """Concatenate parts."""
        if len(parts) == 1:
            return parts[0]
        joined = cls([], [], [], [], [])
        for part in parts:
            for column, more in zip(joined, part, strict=True):
                column.extend(more)  # type: ignore[attr-defined]
        return joined


class Block:
    """Documents of 1,024 seqnos: parallel lists that are only appended to and blanked.

    Entries and previous seqnos are for the flush: a full and durable block has none.
    """

    __slots__ = ("_bytes_most", "entries", "frames", "greatest", "least", "previous")

    def __init__(self) -> None:
        self._bytes_most: int | None = None
        self.frames: list[bytes] = []
        self.entries: list[Entry] = []
        self.previous: list[int] = []
        self.least, self.greatest = _ABOVE_KEYS, NOTHING
        """All keys are within, perhaps those of blanked slots, too."""

    def append(self, entry: Entry, frame: bytes, previous: int) -> None:
        """Fill the next slot."""
        self.frames.append(frame)
        self.entries.append(entry)
        self.previous.append(previous)
        self._widen(entry.key)

    def _widen(self, key: bytes) -> None:
        if key < self.least:
            self.least = key
        if key > self.greatest:
            self.greatest = key

    def pad(self, slots: int) -> None:
        """Skip seqnos that are no documents here: of counters, or below the floor."""
        missing = slots - len(self.frames)
        self.frames += [NOTHING] * missing
        self.entries += [_NOBODY] * missing
        self.previous += [0] * missing

    def put(self, slot: int, item: Item) -> None:
        """Fill a slot that is blank or not there yet."""
        if slot >= len(self.frames):
            self.pad(slot + 1)
        self.entries[slot], self.frames[slot], self.previous[slot] = item
        self._widen(item[0].key)

    def blank(self, begin: int, end: int) -> int:
        """Blank a range of slots; return the number of bytes that were in it."""
        gone = self.frames[begin:end]
        self.frames[begin:end] = [NOTHING] * len(gone)
        if self.entries:
            self.entries[begin:end] = [_NOBODY] * len(gone)
        return sum(map(len, gone))

    def is_within(self, bytes_max: int) -> bool:
        """Return whether it is full and known to have at most so many bytes of frames.

        They are counted once, since from then on they only become fewer.
        """
        if len(self.frames) < BLOCK_SLOTS:
            return False
        if self._bytes_most is None:
            self._bytes_most = sum(map(len, self.frames))
        return self._bytes_most <= bytes_max

    def copied(self, begin: int) -> Block:
        """Return a block of the slots from `begin` on."""
        block = Block()
        block.frames = self.frames[begin:]
        block.entries = self.entries[begin:]
        block.previous = self.previous[begin:]
        block.least, block.greatest = self.least, self.greatest
        return block

    def unlogged_keys(
        self, begin: int, logged_seqno: int, purge_seqno: int, low: bytes, high: bytes
    ) -> list[bytes]:
        """Return the keys of [low, high) in slots from `begin` on that may have no other record.

        Args:
            begin: the first slot.
            logged_seqno: the log has the records up to it.
            purge_seqno: records up to it may have been purged.
            low: the first key.
            high: the end, which is not in the range.
        """
        slots = zip(self.entries[begin:], self.frames[begin:], self.previous[begin:], strict=False)
        return [
            entry.key
            for entry, frame, previous in slots
            if frame and not purge_seqno < previous <= logged_seqno and low <= entry.key < high
        ]

    def frozen(self, begin: int, first: int) -> FrozenChanges:
        """Return what a flush takes of the slots from `begin` on, which is that of `first`."""
        frames, entries = self.frames[begin:], self.entries[begin:]
        previous = self.previous[begin:]
        seqnos = list(range(first, first + len(frames)))
        if not all(frames):
            seqnos, entries = list(compress(seqnos, frames)), list(compress(entries, frames))
            previous, frames = list(compress(previous, frames)), list(filter(None, frames))
        keys, sides = [entry.key for entry in entries], [entry.side for entry in entries]
        return FrozenChanges(seqnos, keys, frames, previous, sides)


CLOSED: Final = Block()
"""A block that is never written to."""
CLOSED.pad(BLOCK_SLOTS)

accelerated.bind(Block, "unlogged_keys", Entry)
