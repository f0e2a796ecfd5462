"""The in-memory queue of one partition: its one mutator appends, many readers take slices.

Documents and counters are kept apart. A document's frame stands in a slot, 1,024 slots to a block,
so that its place is computed from its seqno; once a newer change of the key superseded it the slot
is blank, and joining a slice passes over it. A counter's change (INCR, DECR) stands in a map of
those with the same block number, and leaves it when superseded: however often a counter changes,
the queue has it once.

Invariants:
1. Slot `seqno & 1023` of block `seqno >> 10` belongs to that seqno; a block is there only if a
   document fell into it, and is padded with blanks only where counters took seqnos between.
2. A change above the floor is in its slot or map iff it is the newest of its key.
3. A superseded change that a hold (lease, stream snapshot) can still see stays in `retained`, and
   no other does.
4. `previous` of a change is the seqno of the key's previous record *in the log*: never of a change
   that was superseded before a flush took it.
5. The floor passes only seqnos that are persisted and not retained; blocks go oldest first.

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
    "BLOCK_SLOTS",
    "HELD_FACTOR_MAX",
    "QUEUE_BYTES_DEFAULT",
    "SLOT_BYTES",
    "Block",
    "Entry",
    "FrozenChanges",
    "MutationQueue",
]

QUEUE_BYTES_DEFAULT: Final = QUEUE_BYTES_MAX // PARTITIONS_DEFAULT
HELD_FACTOR_MAX: Final = 4
"""Times the bound of a queue that holds may make it, before they are lost."""
SLOT_BYTES: Final = 64
"""Memory of a slot without its frame: three references and a number."""
COUNTER_BYTES: Final = 256
"""The same of a counter, with its place in the map."""
BLOCK_SLOTS: Final = 1024
_BITS: Final = 10
_MASK: Final = BLOCK_SLOTS - 1
_NOTHING: Final = b""


class Entry(Struct, gc=False):
    """A document in memory: its key, its newest frame, tombstones included, and its lineage.

    Changed in place; without the collector's notice, for there are millions.
    """

    key: bytes
    frame: bytes
    lineage: bytes


_NOBODY: Final = Entry(_NOTHING, _NOTHING, _NOTHING)
_key_of = attrgetter("key")
_lineage_of = attrgetter("lineage")


class FrozenChanges(NamedTuple):
    """What a flush takes, column by column, seqno ascending."""

    seqnos: list[int]
    keys: list[bytes]
    frames: list[bytes]
    previous_seqnos: list[int]
    lineages: list[bytes]


class Block:
    """Documents of 1,024 seqnos: parallel lists, only ever appended to and blanked."""

    __slots__ = ("entries", "frames", "previous")

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.entries: list[Entry] = []
        self.previous: list[int] = []

    def pad(self, slots: int) -> None:
        """Pass over seqnos that counters took, or that are below the floor."""
        missing = slots - len(self.frames)
        self.frames += [_NOTHING] * missing
        self.entries += [_NOBODY] * missing
        self.previous += [0] * missing


class _CounterItem(NamedTuple):
    entry: Entry
    frame: bytes
    previous: int


class _Superseded(NamedTuple):
    frame: bytes
    previous_seqno: int
    successor: int


_CLOSED: Final = Block()
_CLOSED.pad(BLOCK_SLOTS)


class MutationQueue:
    """The changes of one partition that are in memory, and who holds which past state."""

    __slots__ = (
        "_holds",
        "_next_hold",
        "blocks",
        "bytes_max",
        "counters",
        "floor",
        "frame_bytes",
        "frozen_seqno",
        "guarded_seqno",
        "high_seqno",
        "hold_high",
        "retained",
        "retained_bytes",
        "tail",
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
        self.blocks: dict[int, Block] = {}
        self.counters: dict[int, dict[int, _CounterItem]] = {}
        self.tail = _CLOSED
        """The block that takes the next document if its next slot is that document's."""
        self._holds: dict[int, int] = {}
        self.hold_high = -1
        self.guarded_seqno = -1
        """A change at or below may be held, or a counter's: superseding it takes `append`."""
        self._next_hold = 1

    @property
    def bytes_held(self) -> int:
        """Frames, and what the slots and maps themselves take."""
        slots = BLOCK_SLOTS * len(self.blocks)
        if self.blocks:
            slots += len(next(reversed(self.blocks.values())).frames) - BLOCK_SLOTS
        counters = sum(map(len, self.counters.values())) if self.counters else 0
        return self.frame_bytes + SLOT_BYTES * slots + COUNTER_BYTES * counters

    # -- the mutator

    def append(self, entry: Entry, frame: bytes, old_seqno: int = 0, old: bytes = b"") -> None:
        """Add the change of a document with seqno `high_seqno + 1`. O(1).

        `Partition.store` does the same in place, unless the former change is guarded.

        Args:
            entry: of the document; its lineage goes to the log.
            frame: of the change.
            old_seqno: seqno of the key's former change, 0 if there is none.
            old: frame of the former change.
        """
        previous = self._supersede(old_seqno, old) if old_seqno else 0
        seqno = self.high_seqno + 1
        block = self.tail
        if seqno & _MASK != len(block.frames):
            block = self.open_slot(seqno)
        block.frames.append(frame)
        block.entries.append(entry)
        block.previous.append(previous)
        self.high_seqno = seqno
        self.frame_bytes += len(frame)

    def append_counter(
        self, entry: Entry, frame: bytes, old_seqno: int = 0, old: bytes = b""
    ) -> None:
        """Add the change of a counter with seqno `high_seqno + 1`; arguments as of `append`."""
        previous = self._supersede(old_seqno, old) if old_seqno else 0
        seqno = self.high_seqno + 1
        items = self.counters.get(seqno >> _BITS)
        if items is None:
            items = self.counters[seqno >> _BITS] = {}
        items[seqno] = _CounterItem(entry, frame, previous)
        self.tail = _CLOSED  # the next document is not in the next slot
        self.guarded_seqno = self.high_seqno = seqno
        self.frame_bytes += len(frame)

    def open_slot(self, seqno: int) -> Block:
        """Return the block of a document, ready to append it."""
        block = self.blocks.get(seqno >> _BITS)
        if block is None:
            block = self.blocks[seqno >> _BITS] = Block()
        block.pad(seqno & _MASK)
        self.tail = block
        return block

    def _supersede(self, seqno: int, frame: bytes) -> int:
        """Take a change out of its slot or map; return the `previous` of its successor."""
        if seqno <= self.floor:
            return seqno
        number, slot = seqno >> _BITS, seqno & _MASK
        items = self.counters.get(number)
        counter = items.pop(seqno, None) if items else None
        if counter is not None:
            previous = counter.previous
            if not items:
                del self.counters[number]
        else:
            block = self.blocks[number]
            previous = block.previous[slot]
            block.frames[slot] = _NOTHING
        if seqno <= self.frozen_seqno:
            previous = seqno
        self.frame_bytes -= len(frame)
        if seqno <= self.hold_high:
            self._retain(seqno, _Superseded(frame, previous, self.high_seqno + 1))
        return previous

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
        self.guarded_seqno = max(self.guarded_seqno, at)
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
        self.guarded_seqno = max(self.hold_high, self._newest_counter())
        if not self.retained:
            return
        kept: dict[int, _Superseded] = {}
        for seqno, superseded in self.retained.items() if ats else ():
            at = bisect_left(ats, seqno)
            if at < len(ats) and ats[at] < superseded.successor:
                kept[seqno] = superseded
        self.retained = kept
        self.retained_bytes = sum(len(superseded.frame) for superseded in kept.values())

    def _newest_counter(self) -> int:
        for items in reversed(self.counters.values()):
            return next(reversed(items))
        return -1

    # -- readers

    def memory_slice(
        self, after: int, at: int, bytes_max: int, items_max: int
    ) -> tuple[list[bytes], int] | None:
        """Return frames in (after, last] that are the newest of their key as of `at`, and last.

        `last` is `at` once everything is covered. None: `after` is below the floor, read the log.
        At least one seqno is covered, however large its frame. O(slots covered).
        """
        if after < self.floor:
            return None
        number, begin = after + 1 >> _BITS, after + 1 & _MASK
        end = min(at - (number << _BITS) + 1, begin + items_max, BLOCK_SLOTS)
        chunk = self._frames(number, begin, end)
        if self.retained:
            self._fill(chunk, after, at)
        if not any(chunk):
            return [], (number << _BITS) + end - 1
        sizes = list(accumulate(map(len, chunk)))
        if sizes[-1] > bytes_max:
            chunk = chunk[: max(1, bisect_left(sizes, bytes_max))]
        return [frame for frame in chunk if frame], after + len(chunk)

    def _frames(self, number: int, begin: int, end: int) -> list[bytes]:
        """Return the newest frames in slots [begin, end) of both sides, blank where none is."""
        block, items = self.blocks.get(number), self.counters.get(number)
        chunk = block.frames[begin:end] if block is not None else []
        chunk += [_NOTHING] * (end - begin - len(chunk))
        if items:
            first = (number << _BITS) + begin
            for seqno, item in items.items():
                if 0 <= seqno - first < len(chunk):
                    chunk[seqno - first] = item.frame
        return chunk

    def _fill(self, chunk: list[bytes], after: int, at: int) -> None:
        for index, frame in enumerate(chunk):
            superseded = None if frame else self.retained.get(after + 1 + index)
            if superseded is not None and superseded.successor > at:
                chunk[index] = superseded.frame

    def superseded_in_log(self, at: int) -> set[int]:
        """Return seqnos of log records that changes in memory at or below `at` replaced."""
        found: set[int] = set()
        for number, block in self.blocks.items():
            found.update(block.previous[: max(0, at - (number << _BITS) + 1)])
        for items in self.counters.values():
            found.update(item.previous for seqno, item in items.items() if seqno <= at)
        if self.retained:
            found.update(old.previous_seqno for seqno, old in self.retained.items() if seqno <= at)
        return found

    # -- the flusher

    def freeze(self) -> FrozenChanges:
        """Return what must go to the log up to the present high, which becomes frozen."""
        frozen = FrozenChanges([], [], [], [], [])
        first, self.frozen_seqno = self.frozen_seqno + 1, self.high_seqno
        numbers = self._numbers(first >> _BITS)
        for number in numbers:
            begin = max(0, first - (number << _BITS))
            block = self.blocks.get(number)
            frames = block.frames[begin:] if block else []
            entries = block.entries[begin:] if block else []
            previous = block.previous[begin:] if block else []
            base = (number << _BITS) + begin
            items = self.counters.get(number)
            if items:
                self._merge(items, base, frames, entries, previous)
            entries = list(compress(entries, frames))
            frozen.seqnos.extend(compress(range(base, base + len(frames)), frames))
            frozen.keys.extend(map(_key_of, entries))
            frozen.previous_seqnos.extend(compress(previous, frames))
            frozen.lineages.extend(map(_lineage_of, entries))
            frozen.frames.extend(filter(None, frames))
        return frozen

    def _numbers(self, first: int) -> list[int]:
        """Return the numbers, from one on, of which something is held, ascending."""
        found = [number for number in self.blocks if number >= first]
        if self.counters:
            found = sorted({*found, *(number for number in self.counters if number >= first)})
        return found

    @staticmethod
    def _merge(
        items: dict[int, _CounterItem],
        base: int,
        frames: list[bytes],
        entries: list[Entry],
        previous: list[int],
    ) -> None:
        """Put counters from seqno `base` on into their slots of copied columns."""
        missing = next(reversed(items)) - base + 1 - len(frames)
        frames += [_NOTHING] * missing
        entries += [_NOBODY] * missing
        previous += [0] * missing
        for seqno, item in items.items():
            index = seqno - base
            if index >= 0:
                entries[index], frames[index], previous[index] = item

    def trim(self, persisted_seqno: int) -> None:
        """Drop the oldest persisted changes while more than the bound is held.

        A retained change keeps what is above it; past `HELD_FACTOR_MAX` the holds are lost.
        """
        held = self.bytes_held
        if held <= self.bytes_max:
            return
        if self.retained and held > HELD_FACTOR_MAX * self.bytes_max:
            self._lose_holds()
        limit = min([persisted_seqno, *(seqno - 1 for seqno in self.retained)])
        excess = held - self.bytes_max
        while excess > 0 and self.floor < limit:
            number = self.floor + 1 >> _BITS
            upto = min(limit, (number << _BITS) + _MASK)
            excess -= self._collect(number, upto)
            self.floor = upto

    def _collect(self, number: int, upto: int) -> int:
        """Drop what block `number` has up to a seqno; return the bytes that freed."""
        freed = overhead = 0
        block, items = self.blocks.get(number), self.counters.get(number)
        if block is not None:
            gone = upto - (number << _BITS) + 1
            freed += sum(map(len, block.frames[:gone]))
            if gone >= BLOCK_SLOTS:
                del self.blocks[number]
                overhead += SLOT_BYTES * BLOCK_SLOTS
            else:
                gone = min(gone, len(block.frames))
                block.frames[:gone] = [_NOTHING] * gone
                block.entries[:gone] = [_NOBODY] * gone
                block.previous[:gone] = [0] * gone
        for seqno in [s for s in items if s <= upto] if items else ():
            assert items
            freed += len(items.pop(seqno).frame)
            overhead += COUNTER_BYTES
        if items is not None and not items:
            del self.counters[number]
        self.frame_bytes -= freed
        return freed + overhead

    def check(self) -> None:
        """Assert the invariants; for tests."""
        frames = [frame for block in self.blocks.values() for frame in block.frames]
        frames += [item.frame for items in self.counters.values() for item in items.values()]
        assert self.frame_bytes == sum(map(len, frames))
        assert list(self.blocks) == sorted(self.blocks)
        for number, block in self.blocks.items():
            assert len(block.frames) == len(block.entries) == len(block.previous) <= BLOCK_SLOTS
            last = (number << _BITS) + len(block.frames) - 1
            assert self.floor < last <= self.high_seqno or last == self.floor
        for number, items in self.counters.items():
            assert items
            assert all(self.floor < s <= self.high_seqno and s >> _BITS == number for s in items)
            assert list(items) == sorted(items)
        assert self.floor <= self.frozen_seqno <= self.high_seqno
        assert self.guarded_seqno >= max(self.hold_high, self._newest_counter())
        for seqno, superseded in self.retained.items():
            assert seqno > self.floor
            assert any(seqno <= at < superseded.successor for at in self._holds.values())
