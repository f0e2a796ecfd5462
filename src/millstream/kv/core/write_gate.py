"""Which partitions of a bucket requests may use without further checks, and why not others.

Invariants:
1. `open_tables` and `open_partitions` have the partitions that requests may use without further
   checks. A partition that is not plain (`Partition.is_plain`) has an empty table there, and None.
   For writing, it must be linear, too (`is_linear`), there must be no `refusals`, and writes must
   not be delayed.
2. A copy that may not serve (`Partition.unserved`) is open for nothing that it refuses.

Elsewhere: the right to serve (`kv.core.serving`), refusing and delaying
(`kv.aio.memory_keeper`, `kv.aio.flusher`), the answers (`kv.core.session.session`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.queue.mutation_queue import Entry

__all__ = ["WriteGate"]

_CLOSED: dict[bytes, Entry] = {}
"""Stays empty."""


class WriteGate:
    """The write gate of one bucket."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self._partitions = partitions
        self.open_tables: list[dict[bytes, Entry]] = [_CLOSED] * len(partitions)
        self.open_partitions: list[Partition | None] = [None] * len(partitions)
        self.refusals: set[str] = set()
        """Reasons why all writes are answered with a temporary failure now."""
        self.held_back: set[int] = set()
        """Partitions whose writes are answered with a temporary failure, since a take-over does
        not keep up."""
        self.is_delaying = False
        """Memory is full: writes wait until documents have been evicted, before any is refused."""
        self._waiting: deque[Callable[[], None]] = deque()
        for partition in partitions:
            partition.on_plain = self.reopen
            self.reopen(partition.partition_id)

    def reopen(self, partition_id: int) -> None:
        """A partition, or its table, was replaced: check again whether it may be used freely."""
        partition = self._partitions[partition_id]
        is_plain = partition.is_plain
        self.open_tables[partition_id] = partition.table if is_plain else _CLOSED
        is_open = (
            is_plain
            and partition.is_linear
            and not self.is_delaying
            and not self.refuses(partition_id)
        )
        self.open_partitions[partition_id] = partition if is_open else None

    def refuse(self, reason: str) -> None:
        """Answer writes with a temporary failure until the same reason is withdrawn."""
        self.refusals.add(reason)
        self._reopen_all()

    def accept(self, reason: str) -> None:
        """Withdraw a reason; does nothing if it was not given."""
        self.refusals.discard(reason)
        self._reopen_all()

    def delay(self) -> None:
        """Let writes wait until `end_delay`; those already begun continue."""
        self.is_delaying = True
        self._reopen_all()

    def end_delay(self) -> None:
        """Accept writes again, or refuse them from now on; call `wake_waiting` next."""
        self.is_delaying = False
        self._reopen_all()

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` once after the delay of writes; it must only schedule work."""
        self._waiting.append(callback)

    def wake_waiting(self, most: int) -> bool:
        """Call some of the waiting callbacks, oldest first; return whether there are more."""
        while most > 0 and self._waiting and not self.is_delaying:
            self._waiting.popleft()()
            most -= 1
        return bool(self._waiting) and not self.is_delaying

    def refuses(self, partition_id: int) -> bool:
        """Return whether writes are refused though the partition would accept them."""
        is_unserved = self._partitions[partition_id].unserved
        return bool(self.refusals or is_unserved) or partition_id in self.held_back

    def hold_back(self, partition_id: int) -> None:
        """Answer new writes of the partition with a temporary failure."""
        self.held_back.add(partition_id)
        self.reopen(partition_id)

    def accept_again(self, partition_id: int) -> None:
        """End that; does nothing if none were held back."""
        self.held_back.discard(partition_id)
        self.reopen(partition_id)

    def _reopen_all(self) -> None:
        for partition in self._partitions:
            self.reopen(partition.partition_id)
