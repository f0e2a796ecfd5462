"""How much the members of a group send and keep, and how often: defaults and settings.

Invariants:
1. No decision between members depends on it: each may learn of a change later than the others.
2. A setting that is removed falls back to the default.

Elsewhere: the settings (the state machine has them), when they are read (`execution`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millstream.vsr.core.snapshots import PART_BYTES

__all__ = [
    "APPLY_ENTRIES_MAX",
    "BATCH_ENTRIES_MAX",
    "HEARTBEAT_MS",
    "HINT_ENTRIES_MAX",
    "PATIENCE_MS",
    "PATIENCE_SPREAD_MS",
    "PIPELINE_MAX",
    "RETAIN_BYTES",
    "RETAIN_ENTRIES",
    "SNAPSHOT_BYTES",
    "SNAPSHOT_ENTRIES",
    "SNAPSHOT_SHARE",
    "TUNED",
    "Tuning",
    "numbers_of",
]

HEARTBEAT_MS: Final = 100
"""Time between two signs of life of a primary, and the longest time between two tries of anything
that is tried again."""
APPLY_ENTRIES_MAX: Final = 512
"""Entries applied in one step. One may take a tenth of a millisecond and more."""
BATCH_ENTRIES_MAX: Final = 512
"""Entries of one batch."""
PIPELINE_MAX: Final = 4
"""Batches sent and not yet committed up to which a lone request still leaves at once."""
HINT_ENTRIES_MAX: Final = 65_536
"""Entries committed since the hard state last noted the commit: a vote after a restart may name so
many."""
SNAPSHOT_ENTRIES: Final = 10_000
"""Entries applied since the last snapshot, after which the next is taken. A start applies them."""
SNAPSHOT_BYTES: Final = 64 * 1024 * 1024
"""The same in bytes of the log. It always exceeds the size of the last snapshot."""
SNAPSHOT_SHARE: Final = 4
"""Up to this size the log grows to so many times the last snapshot, so that snapshots are a small
part of the work."""
RETAIN_ENTRIES: Final = 100_000
"""Entries kept in the log before the stable snapshot, for members that lag."""
RETAIN_BYTES: Final = 256 * 1024 * 1024
"""The log is cut further if it has more bytes."""
PATIENCE_MS: Final = 600
"""A member that has not heard its primary for this time, or a little longer, asks for another."""
PATIENCE_SPREAD_MS: Final = 300
"""How much longer at most. It is drawn each time, so that members do not all ask at once."""
TUNED: Final = {
    b"GROUP.SNAPSHOT.ENTRIES": "snapshot_entries",
    b"GROUP.LOG.RETAIN": "retain_entries",
    b"GROUP.BATCH.MAX": "batch_entries_max",
    b"GROUP.PIPELINE": "pipeline_max",
    b"GROUP.HEARTBEAT": "heartbeat_ms",
    b"GROUP.VIEW.TIMEOUT": "view_time_out_ms",
}
"""Settings of the group, and the attribute of `Tuning` for each."""


class Tuning:
    """The limits and times of one member, as they are now."""

    apply_entries_max = APPLY_ENTRIES_MAX
    batch_entries_max = BATCH_ENTRIES_MAX
    pipeline_max = PIPELINE_MAX
    hint_entries_max = HINT_ENTRIES_MAX
    snapshot_entries = SNAPSHOT_ENTRIES
    snapshot_bytes = SNAPSHOT_BYTES
    snapshot_share = SNAPSHOT_SHARE
    retain_entries = RETAIN_ENTRIES
    retain_bytes = RETAIN_BYTES
    part_bytes = PART_BYTES
    heartbeat_ms = HEARTBEAT_MS
    view_time_out_ms = PATIENCE_MS, PATIENCE_MS + PATIENCE_SPREAD_MS

    def __init__(self) -> None:
        self._built_in: dict[str, int | tuple[int, int]] = {}
        """The values that settings have replaced."""

    def tune(self, settings: Mapping[bytes, bytes]) -> None:
        """Take over the current settings of the group."""
        for key, attribute in TUNED.items():
            if attribute not in self._built_in and key in settings:
                self._built_in[attribute] = getattr(self, attribute)
            if attribute in self._built_in:
                kept = settings.get(key)
                setattr(self, attribute, numbers_of(kept) if kept else self._built_in[attribute])

    @property
    def ticks_per_beat(self) -> int:
        """How often a primary is woken for one sign of life."""
        return -(-self.heartbeat_ms // HEARTBEAT_MS)

    @property
    def tick_ms(self) -> float:
        """Time between two Timers."""
        return self.heartbeat_ms / self.ticks_per_beat

    @property
    def beat_ms(self) -> int:
        """Time within which a living member has been heard, or asked again."""
        return max(self.heartbeat_ms, HEARTBEAT_MS)


def numbers_of(value: bytes) -> int | tuple[int, int]:
    """Return the number that a stored value begins with, or both ends of a range."""
    least, _, most = value.split(b" ", 1)[0].partition(b"-")
    return (int(least), int(most)) if most else int(least)
