"""Figures of the last five minutes, hour and day, in bounded memory.

Samples are taken each second. There are three rings: 1 s for 5 minutes, 10 s for an hour, 60 s for
a day. A slot of the longer ones has the mean of its samples, or of a figure in `LARGEST` the
largest one.

Invariants:
1. A slot without a sample is not known (NaN here, null for readers), never 0.
2. A series has at most `SLOTS` numbers; series of what is gone are dropped when their last slot
   leaves the longest ring. There are at most `SERIES_MAX` series.

Elsewhere: what is sampled (`gateway.aio.node.observing_pages`).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

__all__ = [
    "LARGEST",
    "LEVELS",
    "SERIES_MAX",
    "SLOTS",
    "Key",
    "Level",
    "Samples",
    "Window",
    "rates",
]


class Level(NamedTuple):
    """A ring: the seconds of a slot, and how many slots there are."""

    interval_s: int
    size: int


LEVELS: Final = (Level(1, 300), Level(10, 360), Level(60, 1_440))
SLOTS: Final = sum(level.size for level in LEVELS)
SERIES_MAX: Final = 2_000
"""Some 35 MB. What comes above it is not sampled."""
LARGEST: Final = frozenset({"loop_lag_ms", "stream_lag", "unflushed"})
"""Figures of which a longer slot has the largest."""
Key = tuple[str, str]
"""Bucket, empty for the node; name of the figure."""


class Window(NamedTuple):
    """Slots of one ring that a reader is told of; it stays the same while samples are added."""

    number: int
    """Of the ring."""
    slots: range

    @property
    def interval_s(self) -> int:
        """Return the seconds of a slot."""
        return LEVELS[self.number].interval_s

    @property
    def times_s(self) -> list[int]:
        """Return the Unix times at which the slots begin, oldest first."""
        return [slot * self.interval_s for slot in self.slots]


class _Ring:
    """One series in one ring."""

    __slots__ = ("counts", "values")

    def __init__(self, size: int) -> None:
        self.values = array("d", [math.nan]) * size
        self.counts = 0
        """Samples in the newest slot."""


class Samples:
    """All series in all rings."""

    def __init__(self) -> None:
        self._rings: dict[Key, tuple[_Ring, ...]] = {}
        self._seen: dict[Key, int] = {}
        """Second of the last sample."""
        self._newest = [-1] * len(LEVELS)
        """Number of the newest slot of each ring; slots are counted from 1970."""
        self._last = 0
        """The last second."""

    def add(self, second: int, figures: Mapping[Key, float]) -> None:
        """Take the samples of a second.

        Args:
            second: Unix time. A second before the last one is passed over; after a clock that was
                set back by more than a minute, nothing of before is kept.
            figures: by bucket and name.
        """
        if second < self._last - LEVELS[-1].interval_s:
            self._rings, self._seen, self._newest = {}, {}, [-1] * len(LEVELS)
        elif second < self._last:
            return
        self._last = second
        for number, level in enumerate(LEVELS):
            self._advance(number, second // level.interval_s)
        for key, value in figures.items():
            rings = self._rings.get(key)
            if rings is None:
                if len(self._rings) >= SERIES_MAX:
                    continue
                rings = self._rings[key] = tuple(_Ring(level.size) for level in LEVELS)
            self._seen[key] = second
            for number, level in enumerate(LEVELS):
                self._take(rings[number], self._newest[number] % level.size, key[1], value)
        if second % LEVELS[-1].interval_s == 0:
            self._forget(second - LEVELS[-1].interval_s * LEVELS[-1].size)

    def keys(self) -> list[Key]:
        """Return which series there are, in order."""
        return sorted(self._rings)

    def window(self, span_s: int) -> Window:
        """Return the newest slots of the finest ring that holds so many seconds."""
        lengths = (level.interval_s * level.size for level in LEVELS)
        number = next((n for n, length in enumerate(lengths) if length >= span_s), len(LEVELS) - 1)
        level, newest = LEVELS[number], self._newest[number]
        count = min(level.size, max(1, span_s // level.interval_s), newest + 1)
        return Window(number, range(newest - count + 1, newest + 1))

    def series(self, window: Window, key: Key) -> list[float | None]:
        """Return the numbers of a series in a window; what has been overwritten is not known."""
        rings = self._rings.get(key)
        if rings is None:
            return [None] * len(window.slots)
        values, size = rings[window.number].values, LEVELS[window.number].size
        newest = self._newest[window.number]
        found = (
            values[slot % size] if newest - size < slot <= newest else math.nan
            for slot in window.slots
        )  # fmt: skip
        return [None if value != value else value for value in found]

    def _advance(self, number: int, slot: int) -> None:
        """Begin a slot; the ones that were jumped over are not known."""
        newest, size = self._newest[number], LEVELS[number].size
        assert slot >= newest, "time goes on"
        if slot == newest:
            return
        self._newest[number] = slot
        for rings in self._rings.values():
            ring = rings[number]
            ring.counts = 0
            for passed in range(max(newest + 1, slot - size + 1), slot + 1):
                ring.values[passed % size] = math.nan

    @staticmethod
    def _take(ring: _Ring, at: int, name: str, value: float) -> None:
        held, ring.counts = ring.values[at], ring.counts + 1
        if ring.counts == 1:
            ring.values[at] = value
        elif name in LARGEST:
            ring.values[at] = max(held, value)
        else:
            ring.values[at] = held + (value - held) / ring.counts

    def _forget(self, second: int) -> None:
        """Drop series without a sample since a second."""
        for key in [key for key, seen in self._seen.items() if seen < second]:
            del self._rings[key], self._seen[key]


def rates(
    before: Mapping[Key, float], now: Mapping[Key, float], seconds: float, names: Iterable[str]
) -> dict[Key, float]:
    """Return by how much totals grew per second; what went back is not known."""
    wanted = frozenset(names)
    return {
        key: (value - before[key]) / seconds
        for key, value in now.items()
        if key[1] in wanted and key in before and value >= before[key] and seconds > 0
    }
