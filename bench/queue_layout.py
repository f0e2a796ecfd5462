"""The mutation queue's layout beside that of the paper: figures of the design note about it.

How it measures: processor time, best of several runs, in one process, each row beside its rival:
1. reading: whole slices of slots and counters, and two cursors merged change by change;
2. counters: one that changes a million times, in the map, and in slots shared with documents;
3. finding the place of a superseded change: by arithmetic, and by searching a list of arrays;
4. giving up short holds beside a lease for which much is kept.

Elsewhere: the engine's floors (engine.py).
"""

import gc
import random
import time
import tracemalloc
from bisect import bisect_left
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import chain

from millstream.kv.core.queue.blocks import BLOCK_SLOTS
from millstream.kv.core.queue.mutation_queue import Entry, MutationQueue

ITEMS = 300_000
FRAME = bytes(272)
HOLDS = 1_000
KEPT = 20_000
SLICE_BYTES = 512 * 1024
ENTRY = Entry(b"key", FRAME, b"")


def best_us(work: Callable[[], object], count: int, rounds: int = 5) -> float:
    """Return the least processor time of several runs, in microseconds per item."""

    def once() -> float:
        started = time.process_time()
        work()
        return time.process_time() - started

    return min(once() for _ in range(rounds)) / count * 1e6


def filled(counter_share: float) -> MutationQueue:
    """Return a queue of changes of which none was superseded."""
    queue, chance = MutationQueue(0, 1 << 40), random.Random(1)
    for _ in range(ITEMS):
        is_counter = chance.random() < counter_share
        (queue.append_counter if is_counter else queue.append)(ENTRY, FRAME)
    return queue


def read_slices(queue: MutationQueue) -> int:
    """Read everything as a stream does, without sending."""
    after = total = 0
    while after < queue.high_seqno:
        found = queue.memory_slice(after, queue.high_seqno, SLICE_BYTES, BLOCK_SLOTS)
        assert found is not None
        frames, after = found
        total += len(b"".join(frames))
    return total


def read_cursors(queue: MutationQueue) -> int:
    """Read everything with one cursor for documents and one for counters."""

    def documents() -> Iterator[tuple[int, bytes]]:
        for number, block in queue.blocks.items():
            for slot, frame in enumerate(block.frames):
                if frame:
                    yield number * BLOCK_SLOTS + slot, frame

    counters = chain.from_iterable(
        ((seqno, item[1]) for seqno, item in items.items()) for items in queue.counters.values()
    )
    total, waiting = 0, list[bytes]()
    for _, frame in merge(documents(), counters):
        waiting.append(frame)
        if len(waiting) == BLOCK_SLOTS:
            total += len(b"".join(waiting))
            waiting.clear()
    return total + len(b"".join(waiting))


def reading() -> None:
    for share in (0.0, 0.1, 0.5):
        queue = filled(share)
        assert read_slices(queue) == read_cursors(queue)
        slices = best_us(lambda q=queue: read_slices(q), ITEMS)
        cursors = best_us(lambda q=queue: read_cursors(q), ITEMS)
        figures = f"slices {slices:.3f} us, cursors {cursors:.3f} us an item"
        print(f"read, {share:4.0%} counters: {figures}")


def counting() -> None:
    def count(side: str) -> MutationQueue:
        queue = MutationQueue(0, 1 << 40)
        append = getattr(queue, side)
        append(ENTRY, FRAME)
        for seqno in range(1, 1_000_000):
            append(ENTRY, FRAME, seqno, FRAME)
        return queue

    for name, side in (("map", "append_counter"), ("slots", "append")):
        spent = best_us(lambda s=side: count(s), 1_000_000, 3)
        gc.collect()
        tracemalloc.start()
        queue = count(side)
        gc.collect()
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        read = best_us(lambda q=queue: read_slices(q), 1) / 1000
        print(
            f"a million changes of one counter, {name}: {spent:.2f} us each, {size:,} bytes left, "
            f"read in {read:.2f} ms"
        )


def finding() -> None:
    arrays = [list(range(at, at + BLOCK_SLOTS)) for at in range(0, ITEMS, BLOCK_SLOTS)]
    firsts, blocks = [array[0] for array in arrays], dict(enumerate(arrays))
    chance = random.Random(2)
    wanted = [chance.randrange(ITEMS) for _ in range(100_000)]

    def by_search() -> None:
        for seqno in wanted:
            array = arrays[bisect_left(firsts, seqno + 1) - 1]
            assert array[bisect_left(array, seqno)] == seqno

    def by_arithmetic() -> None:
        for seqno in wanted:
            assert blocks[seqno >> 10][seqno & 1023] == seqno

    print(
        f"find: arithmetic {best_us(by_arithmetic, len(wanted)):.3f} us, "
        f"search {best_us(by_search, len(wanted)):.3f} us"
    )


def holding() -> None:
    queue = MutationQueue(0, 1 << 40)
    for _ in range(KEPT):
        queue.append(ENTRY, FRAME)
    queue.open_hold(None)
    for seqno in range(1, KEPT + 1):
        queue.append(ENTRY, FRAME, seqno, FRAME)

    def holds() -> None:
        for _ in range(HOLDS):
            opened = queue.open_hold(None)
            assert opened is not None
            queue.append(ENTRY, FRAME, queue.high_seqno, FRAME)
            queue.release_hold(opened[0])

    kept = {s: change for group in queue.holds.kept.values() for s, change in group.items()}

    def scan() -> int:
        return len([seqno for seqno, change in kept.items() if seqno <= KEPT < change.successor])

    print(
        f"{KEPT} changes kept for a lease: a short hold beside it {best_us(holds, HOLDS):.2f} us, "
        f"looking at all that is kept {best_us(scan, 1):.0f} us"
    )


if __name__ == "__main__":
    for row in (reading, counting, finding, holding):
        row()
