"""What the settings of a group say of its members: how much they send and keep, and how often.

Invariants:
1. Nothing of it decides anything between members: each may have it later than the others.
2. What is set no more is again what it was by itself.

Elsewhere: the settings (the state machine has them), when they are looked at (`member`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["HEARTBEAT_MS", "TUNED", "Tuned", "numbers_of"]

HEARTBEAT_MS: Final = 100
"""Between two signs of life of a primary, if nothing else is set, and the longest time between two
tries of whatever has to be tried again."""
TUNED: Final = {
    b"GROUP.SNAPSHOT.ENTRIES": "snapshot_entries",
    b"GROUP.LOG.RETAIN": "retain_entries",
    b"GROUP.BATCH.MAX": "batch_entries_max",
    b"GROUP.PIPELINE": "pipeline_max",
    b"GROUP.HEARTBEAT": "heartbeat_ms",
    b"GROUP.VIEW.TIMEOUT": "view_time_out_ms",
}
"""Settings of the group, and which attribute of a replica says the same."""


class Tuned:
    """A member, as far as it is tuned; the other attributes are of the classes above."""

    heartbeat_ms = HEARTBEAT_MS

    def __init__(self) -> None:
        self._built_in: dict[str, int | tuple[int, int]] = {}
        """Of what settings have changed: what it is without them."""

    def tune(self, settings: Mapping[bytes, bytes]) -> None:
        """Take what the group's settings say now."""
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
        """Between two Timers."""
        return self.heartbeat_ms / self.ticks_per_beat

    @property
    def beat_ms(self) -> int:
        """Within which a member that is there has been heard, or asked, again."""
        return max(self.heartbeat_ms, HEARTBEAT_MS)


def numbers_of(value: bytes) -> int | tuple[int, int]:
    """Return the number that a kept value begins with, or both ends of a range."""
    least, _, most = value.split(b" ", 1)[0].partition(b"-")
    return (int(least), int(most)) if most else int(least)
