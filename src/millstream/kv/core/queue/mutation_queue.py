"""The in-memory queue of one partition: its one mutator appends, many readers take slices.

Documents and counters are kept apart. A document's frame is in a slot, 1,024 slots to a block, so
its place is computed from its seqno. Once a newer change of the key superseded it, the slot is
blank, and joining a slice skips it. A counter's change (INCR, DECR) is in a map of the counters
with the same block number, and is removed when superseded: however often a counter changes, the
queue has it once.

Invariants:
1. Slot `seqno & 1023` of block `seqno >> 10` belongs to that seqno. A block exists only if a
   document fell into it, and is padded with blanks only where counters took seqnos in between.
2. A change above the floor is in its slot or map iff it is the newest of its key.
3. A superseded change that a hold can still see is kept in `holds`; any other one is dropped.
4. `previous` of a change is the seqno of the key's previous record *in the log*, never of a change
   that was superseded before a flush took it.
5. The floor passes only persisted changes, the oldest block first. Changes that readers have still
   to read stay, unless they exceed `bytes_max` or are older than `QUEUE_SECONDS_MAX`: then the log
   serves them.
6. On a replica no version at or below the end of its newest complete snapshot is replaced by one
   above it, neither for holds nor for the log.

Elsewhere: the blocks (`kv.core.queue.blocks`), holds and what they keep (`kv.core.queue.holds`),
the log (`storage`), streams (`upr`).

Source: mutation queue paper, "Design summary"; docs/design/0003-mutation-queue.md.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate, chain
from typing import Final

from millstream import accelerated
from millstream.kv.core.queue.blocks import (
    BITS,
    BLOCK_SLOTS,
    CLOSED,
    NOTHING,
    Block,
    Entry,
    FrozenChanges,
    Item,
)
from millstream.kv.core.queue.holds import Holds, Superseded
from millstream.model.limits import PARTITIONS_DEFAULT, QUEUE_BYTES_MAX, QUEUE_SECONDS_MAX
from millstream.storage.core.new_keys import KeyPage
from millstream.upr.core.source import Reader

__all__ = [
    "COUNTER_BYTES",
    "HISTORY_SHARE",
    "QUEUE_BYTES_DEFAULT",
    "SLOT_BYTES",
    "Block",
    "Entry",
    "FrozenChanges",
    "MutationQueue",
]

QUEUE_BYTES_DEFAULT: Final = QUEUE_BYTES_MAX // PARTITIONS_DEFAULT
HISTORY_SHARE: Final = 4
"""A queue's bytes divided by this are kept for future readers."""
SLOT_BYTES: Final = 64
"""Memory of a slot without its frame: three references and a number."""
COUNTER_BYTES: Final = 256
"""The same for a counter, with its place in the map."""
_MASK: Final = BLOCK_SLOTS - 1


class MutationQueue:
    """The changes of one partition in memory, and the holds on its past states."""

    __slots__ = (
        "_aged_seqno",
        "_ageing_seqno",
        "_ageing_since_s",
        "_counter_count",
        "_owed",
        "_passing",
        "_settled_hold",
        "blocks",
        "bytes_max",
        "counters",
        "floor",
        "frame_bytes",
        "frozen_seqno",
        "guarded_seqno",
        "high_seqno",
        "holds",
        "persisted_seqno",
        "readers",
        "settled_seqno",
        "tail",
        "tail_end",
    )

    def __init__(self, high_seqno: int, bytes_max: int = QUEUE_BYTES_DEFAULT) -> None:
        self.bytes_max = bytes_max
        """Bound of the persisted changes kept; holds may keep as much again."""
        self.readers: list[Reader] = []
        """Streams and other readers that read on from a position."""
        self.holds = Holds()
        self._reset(high_seqno)

    def _reset(self, high_seqno: int) -> None:
        self.floor = high_seqno
        self.high_seqno = high_seqno
        self.frozen_seqno = high_seqno
        """Changes at or below it are in the log, or being written there."""
        self.persisted_seqno = high_seqno
        self.settled_seqno: int | None = None
        """On a replica, the end of its newest complete snapshot; None: every change is
        complete."""
        self.frame_bytes = 0
        self.blocks: dict[int, Block] = {}
        self.counters: dict[int, dict[int, Item]] = {}
        self.tail, self.tail_end = CLOSED, -1
        """The block with the slot of the next change, and the block's last seqno."""
        self.guarded_seqno = high_seqno
        """Only changes above it are in slots and visible only to readers of the newest state."""
        self._counter_count = 0
        self._owed: dict[int, Item] = {}
        self._passing: dict[int, int] = {}
        """For changes that left their slots before they were written to the log: what they
        replaced."""
        self._settled_hold = 0
        self._aged_seqno = self._ageing_seqno = high_seqno
        self._ageing_since_s = 0.0

    @property
    def bytes_held(self) -> int:
        """Return the bytes of frames, slots and maps, without what is kept for holds."""
        slots = BLOCK_SLOTS * len(self.blocks)
        if self.blocks:
            slots += len(next(reversed(self.blocks.values())).frames) - BLOCK_SLOTS
        return self.frame_bytes + SLOT_BYTES * slots + COUNTER_BYTES * self._counter_count

    @property
    def retained_bytes(self) -> int:
        """Return the bytes kept for holds alone."""
        return self.holds.bytes_kept

    @property
    def bytes_beside(self) -> int:
        """Return the bytes without the newest frames (the hash table has them), with kept ones."""
        return self.bytes_held - self.frame_bytes + self.holds.bytes_kept

    # -- the mutator

    def append(self, entry: Entry, frame: bytes, old_seqno: int = 0, old: bytes = b"") -> None:
        """Add the change of a document with seqno `high_seqno + 1`. O(1).

        `Partition.store` does the same inline, unless the former change is guarded.

        Args:
            entry: of the document; its side goes to the log.
            frame: of the change.
            old_seqno: seqno of the key's former change, 0 if there is none.
            old: frame of the former change.
        """
        previous = old_seqno
        if old_seqno > self.guarded_seqno:
            former, slot = self.blocks[old_seqno >> BITS], old_seqno & _MASK
            former.frames[slot] = NOTHING
            if old_seqno > self.frozen_seqno:
                previous = former.previous[slot]
            self.frame_bytes += len(frame) - len(old)
        else:
            if old_seqno > self.floor:
                previous = self._supersede(entry, old_seqno, old)
            self.frame_bytes += len(frame)
        seqno = self.high_seqno + 1
        block = self.tail
        if seqno > self.tail_end:
            block = self.open_slot(seqno)
        block.append(entry, frame, previous)
        self.high_seqno = seqno

    def append_counter(
        self, entry: Entry, frame: bytes, old_seqno: int = 0, old: bytes = b""
    ) -> None:
        """Add the change of a counter with seqno `high_seqno + 1`; arguments as of `append`."""
        previous = old_seqno
        if old_seqno > self.floor:
            previous = self._supersede(entry, old_seqno, old)
        seqno = self.high_seqno + 1
        items = self.counters.get(seqno >> BITS)
        if items is None:
            items = self.counters[seqno >> BITS] = {}
        items[seqno] = (entry, frame, previous)
        self._counter_count += 1
        self.tail, self.tail_end = CLOSED, -1  # the next document is not in the next slot
        self.guarded_seqno = self.high_seqno = seqno
        self.frame_bytes += len(frame)

    def open_slot(self, seqno: int) -> Block:
        """Return the block of a document, ready to append it."""
        block = self.blocks.get(seqno >> BITS)
        if block is None:
            block = self.blocks[seqno >> BITS] = Block()
        block.pad(seqno & _MASK)
        self.tail, self.tail_end = block, seqno | _MASK
        return block

    def _supersede(self, entry: Entry, seqno: int, frame: bytes) -> int:
        """Remove a change above the floor from memory; return the `previous` of its successor."""
        number, slot = seqno >> BITS, seqno & _MASK
        is_logged = seqno <= self.frozen_seqno
        items = self.counters.get(number)
        counter = items.pop(seqno, None) if items else None
        if counter is not None:
            previous = seqno if is_logged else counter[2]
            self._counter_count -= 1
            if is_logged and seqno > self.persisted_seqno:
                self._passing[seqno] = counter[2]
            if not items:
                del self.counters[number]
        else:
            block = self.blocks[number]
            previous = seqno if is_logged else block.previous[slot]
            block.frames[slot] = NOTHING
        self.frame_bytes -= len(frame)
        if not is_logged and self.settled_seqno is not None and seqno <= self.settled_seqno:
            self._owed[seqno] = (Entry(entry.key, frame, entry.side), frame, previous)
            previous, is_logged = seqno, True
        if seqno <= self.holds.high:
            successor = self.high_seqno + 1
            kept = Superseded(frame, previous, successor, is_logged, entry.side)
            self.holds.keep(seqno, kept)
            if self.holds.bytes_kept > self.bytes_max:
                self._keep_less()
        return previous

    # -- holds

    def open_hold(self, at: int | None) -> tuple[int, int] | None:
        """Keep the state as of `at` readable; (hold id, at), or None if it is not.

        Only the present state (None: its seqno), or one that is already frozen, can be frozen.
        """
        if at is None:
            at = self.complete_seqno
        if not self.can_freeze(at):
            return None
        hold_id = self.holds.open_frozen(at)
        self.guarded_seqno = max(self.guarded_seqno, at)
        return hold_id, at

    def can_freeze(self, at: int) -> bool:
        """Return whether the state as of `at` is the present one, or already frozen."""
        return at == self.high_seqno == self.complete_seqno or self.holds.is_frozen(at)

    @property
    def complete_seqno(self) -> int:
        """Return the newest seqno at which the state here once existed at its source."""
        return self.high_seqno if self.settled_seqno is None else self.settled_seqno

    def is_held(self, hold_id: int) -> bool:
        """Return whether the hold was neither released nor lost."""
        return self.holds.is_held(hold_id)

    def release_hold(self, hold_id: int) -> None:
        """Release a hold; a lost one is ignored."""
        self.holds.release(hold_id)
        self._guard()

    def _keep_less(self) -> None:
        """Holds keep too much: first drop what the log can serve, then lose the oldest holds."""
        self.collect(0)
        while self.holds.bytes_kept > self.bytes_max and self.holds.lose_oldest():
            pass
        self._guard()

    def _guard(self) -> None:
        newest = -1
        for items in reversed(self.counters.values()):
            newest = next(reversed(items))
            break
        self.guarded_seqno = max(self.floor, self.holds.high, newest, self.settled_seqno or 0)

    def pass_over(self, seqno: int) -> None:
        """On a replica: its source has no change up to `seqno`."""
        if seqno > self.high_seqno:
            self.high_seqno = seqno
            self.tail, self.tail_end = CLOSED, -1  # the next document is not in the next slot

    def settle(self, seqno: int) -> None:
        """On a replica: a snapshot of its source is complete at `seqno`, the present high.

        The state there stays readable, and goes to the log completely, until the next one. At a
        start it may be below the high if the queue is empty: the log has it.
        """
        assert seqno == self.high_seqno or self.floor == self.high_seqno
        hold_id = self.holds.open_frozen(seqno)
        self.holds.asked(hold_id, seqno)  # readers with other holds need more
        self.holds.release(self._settled_hold)
        self._settled_hold, self.settled_seqno = hold_id, seqno
        self._guard()

    def settle_all(self) -> None:
        """The copy is active from now on: every change is a complete state."""
        self.holds.release(self._settled_hold)
        self._settled_hold, self.settled_seqno = 0, None
        self._guard()

    def restart(self, high_seqno: int) -> None:
        """Forget everything: history went back to `high_seqno`. All holds are lost."""
        self.holds.lose_all()
        self._reset(high_seqno)

    # -- readers

    def add_unflushed_keys(self, page: KeyPage, purge_seqno: int) -> None:
        """Put keys on a page whose only change may not be in the log.

        Looks at the changes not there, but for those of blocks whose keys are all out of the
        page's range. A key that has a record in the log is left out, unless that was purged:
        records up to `purge_seqno` may have been.
        """
        logged_seqno = self.persisted_seqno
        after = logged_seqno + 1
        for number in range(after >> BITS, (self.high_seqno >> BITS) + 1):
            block = self.blocks.get(number)
            if block is not None and page.may_have(block.least, block.greatest):
                begin = max(0, after - (number << BITS))
                page.add(
                    block.unlogged_keys(begin, logged_seqno, purge_seqno, page.low, page.high)
                )
            counters = self.counters.get(number)
            if counters is not None:
                page.add([
                    entry.key
                    for seqno, (entry, _, previous) in counters.items()
                    if seqno >= after and not purge_seqno < previous <= logged_seqno
                    and page.low <= entry.key < page.high
                ])  # fmt: skip

    def memory_slice(
        self, after: int, at: int, bytes_max: int, items_max: int
    ) -> tuple[list[bytes], int] | None:
        """Return frames in (after, last] that are the newest of their key as of `at`, and last.

        `last` is `at` once everything is covered. None: `after` is below the floor, read the log.
        At least one seqno is covered, however large its frame; a slice ends with its block.
        O(slots covered).
        """
        if after < self.floor:
            return None
        number = after + 1 >> BITS
        base = number << BITS
        begin = after + 1 - base
        end = min(at + 1 - base, begin + items_max, BLOCK_SLOTS)
        chunk = self._frames(number, begin, end)
        if number in self.holds.kept:
            for seqno, frame in self.holds.visible(after, base + end - 1, at):
                chunk[seqno - after - 1] = frame
        elif not chunk:
            return [], min(at, self._next_number(number) - 1)
        if not self._is_within(number, bytes_max):
            sizes = list(accumulate(map(len, chunk)))
            if sizes and sizes[-1] > bytes_max:
                chunk = chunk[: max(1, bisect_left(sizes, bytes_max))]
        return chunk if all(chunk) else list(filter(None, chunk)), after + len(chunk)

    def slots(self, after: int, at: int, items_max: int) -> tuple[list[bytes], int, int] | None:
        """Return the block of seqno `after` + 1 and the range of it that `memory_slice` would cut.

        None: there are counters, or versions kept for readers, or it is not in memory.
        """
        number = after + 1 >> BITS
        block = self.blocks.get(number)
        is_plain = number not in self.counters and number not in self.holds.kept
        if after < self.floor or block is None or not is_plain:
            return None
        base = number << BITS
        begin = after + 1 - base
        end = min(at + 1 - base, begin + items_max, BLOCK_SLOTS)
        return (block.frames, begin, end) if end <= len(block.frames) else None

    def _is_within(self, number: int, bytes_max: int) -> bool:
        """Return whether all frames of a block are known to have at most so many bytes."""
        block = self.blocks.get(number)
        if block is None or number in self.counters or number in self.holds.kept:
            return False
        return block.is_within(bytes_max)

    def _frames(self, number: int, begin: int, end: int) -> list[bytes]:
        """Return the newest frames in slots [begin, end) of both sides; an empty slot is blank.

        Empty if the block has nothing at all.
        """
        block, items = self.blocks.get(number), self.counters.get(number)
        if block is None and not items and number not in self.holds.kept:
            return []
        chunk = block.frames[begin:end] if block is not None else []
        chunk += [NOTHING] * (end - begin - len(chunk))
        if items:
            first = (number << BITS) + begin
            for seqno, item in items.items():
                if 0 <= seqno - first < len(chunk):
                    chunk[seqno - first] = item[1]
        return chunk

    def _next_number(self, number: int) -> int:
        """Return the first seqno of the next block that has anything."""
        sides = (self.blocks, self.counters, self.holds.kept)
        later = (other for side in sides for other in side if other > number)
        return min(later, default=(self.high_seqno >> BITS) + 1) << BITS

    def kept_below(self, after: int, upto: int, at: int) -> list[tuple[int, bytes]]:
        """Return (seqno, frame) of changes in (after, upto] visible as of `at` that no log has."""
        return self.holds.visible(after, upto, at)

    def superseded_in_log(self, at: int) -> set[int]:
        """Return seqnos of log records that changes at or below `at` replaced.

        The log itself knows the replacements by persisted changes.
        """
        found = set(self.holds.replaced_in_log(at))
        first = self.persisted_seqno + 1
        for number, block in self.blocks.items():
            base = number << BITS
            if base + BLOCK_SLOTS > first and base <= at:
                found.update(block.previous[max(0, first - base) : at - base + 1])
        for number, items in self.counters.items():
            if number >= first >> BITS:
                found.update(item[2] for seqno, item in items.items() if seqno <= at)
        found.update(item[2] for seqno, item in self._owed.items() if seqno <= at)
        found.update(previous for seqno, previous in self._passing.items() if seqno <= at)
        return found

    # -- the flusher

    def freeze(self) -> FrozenChanges:
        """Return what must go to the log up to the present high, which becomes frozen."""
        first, high = self.frozen_seqno + 1, self.high_seqno
        begin, end = first >> BITS, high >> BITS
        self.frozen_seqno = high
        if begin == end and not self._owed:
            return self._freeze_number(begin, first)
        numbers = self._numbers(begin, end)
        frozen = FrozenChanges.joined([self._freeze_number(number, first) for number in numbers])
        self._passing.update((seqno, item[2]) for seqno, item in self._owed.items())
        self._owed.clear()
        return frozen

    def _numbers(self, first: int, last: int) -> list[int]:
        """Return the numbers of blocks in [first, last] with changes to flush, ascending."""
        owed = (seqno >> BITS for seqno in self._owed)
        found = {n for n in chain(self.blocks, self.counters, owed) if first <= n <= last}
        return sorted(found)

    def _freeze_number(self, number: int, first: int) -> FrozenChanges:
        """Return what must go to the log of a number, from seqno `first` on."""
        base = number << BITS
        begin = first - base if first > base else 0
        if number in self.counters or self._owed:
            return self._merged(number, begin).frozen(0, base + begin)
        block = self.blocks.get(number)
        if block is None:
            return FrozenChanges([], [], [], [], [])
        return block.frozen(begin, base + begin)

    def _merged(self, number: int, begin: int) -> Block:
        """Return a block of a number's slots from `begin` on, with changes outside slots."""
        block, first = self.blocks.get(number), (number << BITS) + begin
        merged = block.copied(begin) if block is not None else Block()
        for items in (self.counters.get(number), self._owed):
            for seqno, item in items.items() if items else ():
                if seqno >= first and seqno >> BITS == number:
                    merged.put(seqno - first, item)
        return merged

    # -- trimming

    def trim(self, persisted_seqno: int) -> None:
        """Everything up to `persisted_seqno` is durable: drop the oldest of it that may go.

        A part of the bound is kept for future readers, the rest only for readers that have still
        to read it; above the bound nothing is kept.
        """
        first, self.persisted_seqno = self.persisted_seqno + 1, persisted_seqno
        if first >> BITS != persisted_seqno + 1 >> BITS:
            for number in self._whole(first, persisted_seqno):
                self.blocks[number].entries, self.blocks[number].previous = [], []
        if self._passing:
            self._passing = {s: p for s, p in self._passing.items() if s > persisted_seqno}
        history_bytes = self.bytes_max // HISTORY_SHARE
        if self.bytes_held > history_bytes:
            self.release(history_bytes)
            self.collect(self.bytes_max)

    def release(self, bytes_max: int = 0) -> None:
        """Drop the oldest persisted changes that no reader waits for, above `bytes_max`."""
        needed = min((r.memory_after for r in self.readers), default=self.persisted_seqno)
        self.collect(bytes_max, max(needed, self._aged_seqno))

    def _whole(self, first: int, last: int) -> list[int]:
        """Return the numbers of blocks that ended in [first, last]."""
        begin, end = first >> BITS, last + 1 >> BITS
        if end - begin > len(self.blocks):  # on a replica seqnos may be far apart
            return [number for number in self.blocks if begin <= number < end]
        return [number for number in range(begin, end) if number in self.blocks]

    def age(self, now_s: float) -> None:
        """Apply the age limit: what is persisted for `QUEUE_SECONDS_MAX` waits for no reader."""
        if now_s - self._ageing_since_s >= QUEUE_SECONDS_MAX:
            self._aged_seqno, self._ageing_seqno = self._ageing_seqno, self.persisted_seqno
            self._ageing_since_s = now_s
            self.trim(self.persisted_seqno)

    def collect(self, bytes_max: int, upto: int | None = None) -> None:
        """Drop the oldest persisted changes while more than `bytes_max` are held.

        At most those up to `upto`. Readers that have still to read them read the log.
        """
        excess = self.bytes_held - bytes_max
        limit = self.persisted_seqno if upto is None else min(upto, self.persisted_seqno)
        before = self.floor
        while excess > 0 and self.floor < limit:
            number = self.floor + 1 >> BITS
            end = min(limit, (number << BITS) + _MASK)
            if number in self.blocks or number in self.counters or number in self.holds.kept:
                excess -= self._collect(number, end)
            else:
                end = min(limit, self._next_number(number) - 1)
            self.floor = end
        if self.floor != before:
            self._guard()

    def _collect(self, number: int, upto: int) -> int:
        """Drop what a block has up to a seqno; return the freed bytes."""
        freed = overhead = 0
        block, items = self.blocks.get(number), self.counters.get(number)
        if block is not None:
            begin, end = max(0, self.floor + 1 - (number << BITS)), upto - (number << BITS) + 1
            freed += block.blank(begin, end)
            if end == BLOCK_SLOTS:
                del self.blocks[number]
                overhead += SLOT_BYTES * len(block.frames)
        for seqno in [s for s in items if s <= upto] if items else ():
            assert items
            freed += len(items.pop(seqno)[1])
            self._counter_count -= 1
            overhead += COUNTER_BYTES
        if items is not None and not items:
            del self.counters[number]
        self.holds.pass_floor(number, upto)
        self.frame_bytes -= freed
        return freed + overhead

    def check(self) -> None:
        """Assert the invariants; for tests."""
        frames = [frame for block in self.blocks.values() for frame in block.frames]
        frames += [item[1] for items in self.counters.values() for item in items.values()]
        assert self.frame_bytes == sum(map(len, frames))
        assert list(self.blocks) == sorted(self.blocks)
        for number, block in self.blocks.items():
            assert len(block.frames) <= BLOCK_SLOTS
            last = (number << BITS) + len(block.frames) - 1
            assert last <= self.high_seqno
            if (number << BITS) + _MASK > self.persisted_seqno:
                assert len(block.frames) == len(block.entries) == len(block.previous)
        for number, items in self.counters.items():
            assert items
            assert all(self.floor < s <= self.high_seqno and s >> BITS == number for s in items)
            assert list(items) == sorted(items)
        assert self._counter_count == sum(map(len, self.counters.values()))
        assert self.floor <= self.persisted_seqno <= self.frozen_seqno <= self.high_seqno
        newest = max((max(items) for items in self.counters.values()), default=-1)
        assert self.guarded_seqno >= max(self.floor, self.holds.high, newest)
        self.holds.check(self.floor)


accelerated.bind(
    MutationQueue, "freeze", Block, Entry, FrozenChanges,
    also=(MutationQueue._freeze_number, Block.frozen),
)  # fmt: skip
