"""The documents of a partition that expire next, found without a request for them.

An index in memory, by key. It is filled when documents with an expiry are written. It is also
filled by a scan of the partition after a start, and when more documents have an expiry than fit
into the index. It then keeps those that expire first, and `horizon` says how far it is complete.

Invariants:
1. Every live document that expires before `horizon` is in the index. An indexed document may not
   be due or may be gone, so each key that is taken out must be checked against its document.
2. A key is in the index once, with the latest expiry with which it was added. It may come up
   earlier, if its expiry was moved later; then it is put back.
3. At most `count_max` keys are held.
4. Times are Unix seconds and come with each call. A clock that is set back only delays `next_due`;
   nothing is forgotten.

Elsewhere: checking the document (`partition`), the steps and the scan (`kv.aio.pager`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from struct import Struct
from typing import Final

__all__ = [
    "EXPIRIES_MAX",
    "EXPIRIES_PER_PARTITION_MAX",
    "FOREVER",
    "Expiries",
    "absolute_expiry",
    "expiries_of",
]

EXPIRIES_MAX: Final = 262_144
"""Keys in all expiry indexes of a bucket: some 200 bytes each."""
EXPIRIES_PER_PARTITION_MAX: Final = 16_384
"""The same for one partition: making room among so many takes a few milliseconds."""
FOREVER: Final = 1 << 32
"""Larger than every expiry."""
_KEPT_SHARE: Final = 0.75
_SLACK_FACTOR: Final = 2
_MUTATION: Final = 0x57
_NEVER: Final = bytes(4)
_cut_expiry = Struct(">44xI").unpack_from
_RELATIVE_SECONDS_MAX: Final = 30 * 24 * 3600
_SECOND_NS: Final = 1_000_000_000


def absolute_expiry(expiry: int, now_ns: int) -> int:
    """Return Unix seconds: 0 stays never; up to 30 days count from now."""
    if 0 < expiry <= _RELATIVE_SECONDS_MAX:
        return now_ns // _SECOND_NS + expiry
    return expiry


class Expiries:
    """The index of one partition."""

    __slots__ = ("_by_key", "_heap", "count_max", "horizon", "on_first")

    def __init__(self, count_max: int = 0, *, is_complete: bool = False) -> None:
        self.count_max = count_max
        self.horizon = FOREVER if is_complete and count_max else 0
        self.on_first: Callable[[], None] | None = None
        """Called once, before the first key is added."""
        self._by_key: dict[bytes, int] = {}
        self._heap: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, key: bytes, expiry: int) -> None:
        """Add a document that was written with an expiry, not 0. O(log n), mostly O(1)."""
        known = self._by_key.get(key)
        if known is None:
            if expiry >= self.horizon:
                return
            if self.on_first is not None:
                self._tell_first()
            if len(self._by_key) >= self.count_max:
                self._make_room()
                if expiry >= self.horizon:
                    return
        self._by_key[key] = expiry
        if known is None or expiry < known:
            heappush(self._heap, (expiry, key))
            if len(self._heap) > _SLACK_FACTOR * self.count_max:
                self._build_heap()

    def next_due(self, now_s: int) -> bytes | None:
        """Take a key whose expiry is not later than `now_s`; None if there is none."""
        heap, by_key = self._heap, self._by_key
        while heap and heap[0][0] <= now_s:
            _, key = heappop(heap)
            expiry = by_key.pop(key, FOREVER)
            if expiry <= now_s:
                return key
            if expiry < self.horizon:  # its expiry was moved later meanwhile
                by_key[key] = expiry
                heappush(heap, (expiry, key))
        return None

    # -- scans

    def needs_scan(self, until_s: int) -> bool:
        """Return whether documents that expire by then may be missing here."""
        return self.count_max > 0 and self.horizon <= until_s

    def begin_scan(self) -> None:
        """Begin a scan: every live document with an expiry is added, or was written since."""
        self.horizon = FOREVER

    def forget(self) -> None:
        """Forget everything: the history may have changed."""
        self._tell_first()
        self.horizon = 0
        self._by_key.clear()
        self._heap.clear()

    # -- inside

    def _tell_first(self) -> None:
        tell, self.on_first = self.on_first, None
        if tell is not None:
            tell()

    def _make_room(self) -> None:
        """Keep those that expire first; lower the horizon to where some are missing.

        The horizon never rises: some keys here may have been moved later, to a time where others
        are missing already.
        """
        by_key, kept = self._by_key, int(self.count_max * _KEPT_SHARE)
        horizon = min(self.horizon, sorted(by_key.values())[kept])
        nearest = {key: expiry for key, expiry in by_key.items() if expiry < horizon}
        for key, expiry in by_key.items():
            if len(nearest) >= kept:
                break
            if expiry == horizon:
                nearest[key] = expiry
        self._by_key, self.horizon = nearest, horizon
        self._build_heap()

    def _build_heap(self) -> None:
        self._heap = [(expiry, key) for key, expiry in self._by_key.items()]
        heapify(self._heap)


def expiries_of(frames: Iterable[bytes]) -> list[tuple[bytes, int]]:
    """Return key and expiry of the changed documents that have one."""
    return [
        (frame[55 : 55 + (frame[2] << 8 | frame[3])], _cut_expiry(frame)[0])
        for frame in frames
        if frame[1] == _MUTATION and frame[44:48] != _NEVER
    ]
