"""Chooses the documents that leave memory when a bucket is above its limit; they leave completely.

A clock hand goes round the documents of one partition after another. A document stays for this
round if it was read since the hand last passed, or written since the hand last left the partition
(in the first round: the newer half). Any other document is evicted, with key and metadata. The log
has all that is needed to bring one back, with its revision, lineage and seqno.

Invariants:
1. Only what the log has is evicted, deletions included: it is at or below the queue's floor, so no
   reader is served from it either.
2. A tombstone is evicted when the hand first reaches it.
3. A step looks at no more than `STEP_DOCUMENTS`.
4. If a whole round found nothing to evict, no further round starts until more is persisted or read
   back.

Elsewhere: the memory limits (`memory`), the pace of the steps (`kv.aio.memory_keeper`), reading
back (`partition`, `kv.aio.reading_back`).
"""

from __future__ import annotations

from typing import Final

from millstream.kv.core.partition.memory import Memory
from millstream.kv.core.partition.partition import Partition

__all__ = ["STEP_DOCUMENTS", "Evictor"]

STEP_DOCUMENTS: Final = 1024
"""Documents examined in one step: about a millisecond if all of them are evicted."""
_NEVER: Final = (0, -1, -1, -1)


class Evictor:
    """The clock hand of one bucket."""

    def __init__(self, partitions: list[Partition], memory: Memory) -> None:
        self._partitions = partitions
        self._memory = memory
        self._at = 0
        self._hands = [0] * len(partitions)
        self._began_at = [partition.persisted_seqno for partition in partitions]
        self._left_at: list[int | None] = [None] * len(partitions)
        """Persisted seqno when the hand left a partition; None: it was not there yet."""
        self._fruitless = [_NEVER] * len(partitions)
        """The state in which a partition had nothing to evict."""
        self._begun, self._found = _NEVER, False
        """Of the current round: its first state, and whether anything can be evicted."""
        self.evicted_total = 0
        self.evicted_bytes = 0

    def step(self) -> bool:
        """Evict some documents, until `Memory.low_bytes` is reached; False: none can be."""
        count = len(self._partitions)
        for _ in range(count):
            if not self._is_fruitless(self._at):
                self._sweep(self._at)
                return True
            self._at = (self._at + 1) % count
        return False

    def press(self) -> bool:
        """Drop what queues keep for slow readers, who then read the log; False: nothing."""
        before = [partition.queue.floor for partition in self._partitions]
        for partition in self._partitions:
            partition.queue.collect(0)
        return before != [partition.queue.floor for partition in self._partitions]

    def _is_fruitless(self, at: int) -> bool:
        return self._fruitless[at] == _state(self._partitions[at])

    def _sweep(self, at: int) -> None:
        """Continue in one partition; go to the next one at its end."""
        partition, hand = self._partitions[at], self._hands[at]
        if hand == 0:
            partition.queue.release()
            self._begun, self._found = _state(partition), False
        residents, memory = partition.residents, self._memory
        floor, before = partition.queue.floor, memory.table_bytes
        left_at = self._left_at[at]
        if left_at is None:  # the first time: the newer half stays
            left_at = self._left_at[at] = (self._began_at[at] + floor) // 2
        hand, count, may_go = residents.sweep(
            hand, STEP_DOCUMENTS, floor, left_at, memory.low_bytes - memory.other_bytes
        )
        self._found |= may_go
        self.evicted_total += count
        self.evicted_bytes += before - memory.table_bytes
        self._hands[at] = hand
        if hand >= len(residents.ring):
            self._leave(at, floor)

    def _leave(self, at: int, floor: int) -> None:
        """The hand has completed a partition."""
        if not self._found:
            self._fruitless[at] = self._begun
        self._hands[at], self._left_at[at] = 0, floor
        self._at = (at + 1) % len(self._partitions)


def _state(partition: Partition) -> tuple[int, int, int, int]:
    """Return the state that has to change before a partition has documents to evict again."""
    residents, queue = partition.residents, partition.queue
    return id(residents.table), queue.persisted_seqno, queue.floor, residents.read_back_total
