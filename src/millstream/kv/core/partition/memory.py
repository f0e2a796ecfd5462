"""Accounting of the memory of a bucket's documents, and its limits.

It counts the entries of the hash tables (`entry.size_of`), and besides them slots of the queues,
superseded changes kept for readers, keys that wait for the by-id map, and the filters of keys that
have left.

Invariants:
1. `table_bytes` is right after every change of a table; `other_bytes` is as of the last look.
2. `low_bytes < high_bytes < room_bytes < quota_bytes`.

Elsewhere: what is evicted (`eviction`), and when (`kv.aio.memory_keeper`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = [
    "BY_ID_SHARE",
    "HIGH_SHARE",
    "LOW_SHARE",
    "PENDING_CHANGE_BYTES",
    "QUEUE_SHARE",
    "ROOM_SHARE",
    "UNLIMITED",
    "Memory",
]

HIGH_SHARE: Final = 0.85
"""Share of the quota above which documents are evicted."""
LOW_SHARE: Final = 0.75
"""Share of the quota down to which documents are evicted."""
ROOM_SHARE: Final = 0.98
"""Share of the quota below which writes that waited for room continue."""
UNLIMITED: Final = 1 << 62
QUEUE_SHARE: Final = 4
"""Queues may hold the quota divided by this for slow readers."""
BY_ID_SHARE: Final = 8
"""Changes that wait for the by-id map may hold the quota divided by this."""
PENDING_CHANGE_BYTES: Final = 160
"""Memory of such a change."""


def _nobody_cares() -> None: ...


class Memory:
    """The memory of one bucket, shared by its partitions."""

    __slots__ = (
        "high_bytes",
        "low_bytes",
        "on_high",
        "other_bytes",
        "quota_bytes",
        "room_bytes",
        "table_bytes",
    )

    def __init__(self, quota_bytes: int = UNLIMITED) -> None:
        self.quota_bytes = quota_bytes
        self.high_bytes = int(quota_bytes * HIGH_SHARE)
        self.low_bytes = int(quota_bytes * LOW_SHARE)
        self.room_bytes = int(quota_bytes * ROOM_SHARE)
        self.table_bytes = 0
        self.other_bytes = 0
        self.on_high: Callable[[], None] = _nobody_cares
        """Called when a document was read back above `high_bytes`."""

    @property
    def used_bytes(self) -> int:
        """Return the memory used now."""
        return self.table_bytes + self.other_bytes

    @property
    def is_high(self) -> bool:
        """Return whether documents should be evicted."""
        return self.table_bytes + self.other_bytes > self.high_bytes

    @property
    def has_room(self) -> bool:
        """Return whether waiting writes can continue."""
        return self.table_bytes + self.other_bytes <= self.room_bytes

    @property
    def pressure(self) -> float:
        """Return the pressure: 0 up to `high_bytes`, 1 from the quota on."""
        above = self.used_bytes - self.high_bytes
        return min(1.0, max(0.0, above / (self.quota_bytes - self.high_bytes)))

    @property
    def is_exhausted(self) -> bool:
        """Return whether writes must be refused."""
        return self.table_bytes + self.other_bytes > self.quota_bytes
