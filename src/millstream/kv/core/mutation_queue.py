"""The in-memory queue of one partition: its one mutator appends, many readers take slices.

Seqnos of a partition are dense, so the slot of a change is its seqno minus the floor. A slot holds
the change's frame, or nothing once a newer change of the same key superseded it; joining a slice
passes over empty slots.

Invariants:
1. Slot i belongs to seqno `floor + 1 + i`; `high_seqno` is the last slot.
2. A slot is non-empty iff its change is the newest of its key in the partition.
3. A superseded change that a hold (lease, stream snapshot) can still see stays in `retained`.
4. `previous` of a change is the seqno of the key's previous record *in the log*: never of a change
   that was superseded before a flush took it.
5. The floor passes only seqnos that are persisted and not retained.

Elsewhere: the log (`storage`), streams (`upr`).

Source: mutation queue paper, "Design summary"; reading as of a seqno is described in
docs/concepts/snapshots.md.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate, compress
from operator import attrgetter
from typing import Final, NamedTuple

from msgspec import Struct

from millstream.model.limits import PARTITIONS_DEFAULT, QUEUE_BYTES_MAX

__all__ = [
    "HELD_FACTOR_MAX",
    "QUEUE_BYTES_DEFAULT",
    "SLOT_BYTES",
    "Entry",
    "FrozenChanges",
    "MutationQueue",
]

QUEUE_BYTES_DEFAULT: Final = QUEUE_BYTES_MAX // PARTITIONS_DEFAULT
HELD_FACTOR_MAX: Final = 4
"""Times the bound of a queue that holds may make it, before they are lost."""
SLOT_BYTES: Final = 64
"""Memory of a slot without its frame: three references and a number."""
_TRIM_SLOTS_MIN: Final = 1024
_NOTHING: Final = b""


class Entry(Struct, gc=False):
    """A document in memory: its key, its newest frame, tombstones included, and its lineage.

    Changed in place; without the collector's notice, for there are millions.
    """

    key: bytes
    frame: bytes
    lineage: bytes


_key_of = attrgetter("key")
_lineage_of = attrgetter("lineage")


class FrozenChanges(NamedTuple):
    """What a flush takes, column by column, seqno ascending."""

    seqnos: list[int]
    keys: list[bytes]
    frames: list[bytes]
    previous_seqnos: list[int]
    lineages: list[bytes]


class _Superseded(NamedTuple):
    frame: bytes
    previous_seqno: int
    successor: int


class MutationQueue:
    """The changes of one partition that are in memory, and who holds which past state."""

    __slots__ = (
        "_holds",
        "_next_hold",
        "bytes_max",
        "entries",
        "floor",
        "frame_bytes",
        "frozen_seqno",
        "high_seqno",
        "hold_high",
        "previous",
        "retained",
        "retained_bytes",
        "slots",
    )

    def __init__(self, high_seqno: int, bytes_max: int = QUEUE_BYTES_DEFAULT) -> None:
        self.bytes_max = bytes_max
        """Wanted bound of what is held; superseded frames kept for holds may be as much again."""
        self.floor = high_seqno
        self.high_seqno = high_seqno
        self.frozen_seqno = high_seqno
        """Everything at or below is in the log, or on its way there."""
        self.retained: dict[int, _Superseded] = {}
        self.retained_bytes = 0
        self.frame_bytes = 0
        self.slots: list[bytes] = []
        self.entries: list[Entry] = []
        self.previous: list[int] = []
        self._holds: dict[int, int] = {}
        self.hold_high = -1
        self._next_hold = 1

    @property
    def bytes_held(self) -> int:
        """Frames in slots, and what the slots themselves take."""
        return self.frame_bytes + SLOT_BYTES * len(self.slots)

    # -- the mutator

    def append(self, entry: Entry, frame: bytes, old_seqno: int = 0, old: bytes = b"") -> None:
        """Add the change with seqno `high_seqno + 1`. O(1).

        `Partition.store` does the same in place, but for changes that a hold can see.

        Args:
            entry: of the document; its lineage goes to the log.
            frame: of the change.
            old_seqno: seqno of the key's former change, 0 if there is none; its slot is blanked.
            old: frame of the former change.
        """
        previous = old_seqno
        index = old_seqno - self.floor - 1
        if index >= 0:
            if old_seqno > self.frozen_seqno:
                previous = self.previous[index]
            if old_seqno <= self.hold_high:
                self._retain(old_seqno, _Superseded(old, previous, self.high_seqno + 1))
            self.slots[index] = _NOTHING
            self.frame_bytes -= len(old)
        self.entries.append(entry)
        self.slots.append(frame)
        self.previous.append(previous)
        self.high_seqno += 1
        self.frame_bytes += len(frame)

    def _retain(self, seqno: int, superseded: _Superseded) -> None:
        self.retained[seqno] = superseded
        self.retained_bytes += len(superseded.frame)
        if self.retained_bytes > self.bytes_max:
            self._lose_holds()

    # -- holds

    def open_hold(self, at: int | None) -> tuple[int, int] | None:
        """Keep the state as of `at` readable; (hold id, at), or None if it cannot be.

        Only the present high (None), or the `at` of a hold that is still held, can be frozen.
        """
        if at is None:
            at = self.high_seqno
        elif at != self.high_seqno and at not in self._holds.values():
            return None
        hold_id = self._next_hold
        self._next_hold += 1
        self._holds[hold_id] = at
        self.hold_high = max(self.hold_high, at)
        return hold_id, at

    def is_held(self, hold_id: int) -> bool:
        """Return whether the hold was neither released nor lost."""
        return hold_id in self._holds

    def release_hold(self, hold_id: int) -> None:
        """Give up a hold; releasing a lost one is harmless."""
        if self._holds.pop(hold_id, None) is not None:
            self._drop_unseen()

    def _lose_holds(self) -> None:
        """A lost hold is an answer: its readers go back to where their snapshot began."""
        self._holds.clear()
        self._drop_unseen()

    def _drop_unseen(self) -> None:
        ats = sorted(self._holds.values())
        self.hold_high = ats[-1] if ats else -1
        if not self.retained:
            return
        kept: dict[int, _Superseded] = {}
        for seqno, superseded in self.retained.items() if ats else ():
            at = bisect_left(ats, seqno)
            if at < len(ats) and ats[at] < superseded.successor:
                kept[seqno] = superseded
        self.retained = kept
        self.retained_bytes = sum(len(superseded.frame) for superseded in kept.values())

    # -- readers

    def memory_slice(
        self, after: int, at: int, bytes_max: int, items_max: int
    ) -> tuple[list[bytes], int] | None:
        """Return frames in (after, last] that are the newest of their key as of `at`, and last.

        `last` is `at` once everything is covered. None: `after` is below the floor, read the log.
        At least one slot is covered, however large. O(slots covered).
        """
        begin = after - self.floor
        if begin < 0:
            return None
        end = min(at - self.floor, begin + items_max)
        chunk = self.slots[begin:end]
        if self.retained:
            self._fill(chunk, after, at)
        sizes = list(accumulate(map(len, chunk)))
        if sizes and sizes[-1] > bytes_max:
            chunk = chunk[: max(1, bisect_left(sizes, bytes_max))]
        return [frame for frame in chunk if frame], after + len(chunk)

    def _fill(self, chunk: list[bytes], after: int, at: int) -> None:
        for index, frame in enumerate(chunk):
            superseded = None if frame else self.retained.get(after + 1 + index)
            if superseded is not None and superseded.successor > at:
                chunk[index] = superseded.frame

    def superseded_in_log(self, at: int) -> set[int]:
        """Return seqnos of log records that changes in memory at or below `at` replaced."""
        return set(self.previous[: max(0, at - self.floor)])

    # -- the flusher

    def freeze(self) -> FrozenChanges:
        """Return what must go to the log up to the present high, which becomes frozen."""
        begin, first = self.frozen_seqno - self.floor, self.frozen_seqno + 1
        self.frozen_seqno = self.high_seqno
        slots = self.slots[begin:]
        entries = list(compress(self.entries[begin:], slots))
        return FrozenChanges(
            list(compress(range(first, self.high_seqno + 1), slots)),
            list(map(_key_of, entries)),
            list(filter(None, slots)),
            list(compress(self.previous[begin:], slots)),
            list(map(_lineage_of, entries)),
        )

    def trim(self, persisted_seqno: int) -> None:
        """Drop the oldest persisted slots while more than the bound is held.

        A retained change keeps the slots above it; past `HELD_FACTOR_MAX` the holds are lost.
        """
        if self.bytes_held <= self.bytes_max:
            return
        if self.retained and self.bytes_held > HELD_FACTOR_MAX * self.bytes_max:
            self._lose_holds()
        limit = min([persisted_seqno, *(seqno - 1 for seqno in self.retained)]) - self.floor
        count, excess, freed = 0, self.bytes_held - self.bytes_max, 0
        while count < limit and excess > freed + count * SLOT_BYTES:
            freed += len(self.slots[count])
            count += 1
        if count < min(limit, _TRIM_SLOTS_MIN):
            return
        del self.slots[:count]
        del self.entries[:count]
        del self.previous[:count]
        self.floor += count
        self.frame_bytes -= freed

    def check(self) -> None:
        """Assert the invariants; for tests."""
        columns = (self.slots, self.entries, self.previous)
        assert {len(column) for column in columns} == {len(self.slots)}
        assert self.floor + len(self.slots) == self.high_seqno
        assert self.frame_bytes == sum(map(len, self.slots))
        assert self.floor <= self.frozen_seqno <= self.high_seqno
        for seqno, superseded in self.retained.items():
            assert seqno > self.floor
            assert any(seqno <= at < superseded.successor for at in self._holds.values())
