"""Pages of keys in order, and the keys of a partition that only its newest records have.

Most pages need few of them, and many come: so they are kept as they come, in slices, of which the
least and the greatest key are known. A page looks into a slice only if both show that it has to. A
slice into which many pages have looked is sorted, which costs as much as looking into it some
eight times.

Elsewhere: what else a page has (`by_id`), keys that are not in the log yet
(`kv.core.queue.blocks`).
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from millstream import accelerated

__all__ = ["LOOKS_MAX", "SLICE_KEYS", "KeyPage", "NewKeys", "keys_within"]

SLICE_KEYS: Final = 1024
"""Keys of one slice."""
LOOKS_MAX: Final = 8
"""Looks into a slice before it is sorted, which takes 0.4 ms."""


class KeyPage:
    """The first keys of [low, high) of all that are added; `count` at most.

    Args:
        low: the first key that belongs there.
        high: the end, which does not.
        count: how many keys there are at most.
        descending: whether the page begins at the end.
    """

    __slots__ = ("_count", "_descending", "high", "keys", "low")

    def __init__(self, low: bytes, high: bytes, count: int, *, descending: bool) -> None:
        self._count, self._descending = count, descending
        self.low, self.high = low, high
        """Other keys belong on the page only if they are in [low, high)."""
        self.keys: list[bytes] = []
        """In order, each once."""

    def may_have(self, least: bytes, greatest: bytes) -> bool:
        """Return whether one of the keys from `least` to `greatest` may belong on the page."""
        return least < self.high and self.low <= greatest

    def add(self, keys: Sequence[bytes]) -> None:
        """Add keys of [low, high), in any order."""
        if not keys:
            return
        self.keys = sorted({*self.keys, *keys}, reverse=self._descending)[: self._count]
        if len(self.keys) == self._count and self._descending:
            self.low = self.keys[-1]
        elif len(self.keys) == self._count:
            self.high = self.keys[-1]

    def add_sorted(self, keys: Sequence[bytes], prefix: bytes = b"") -> None:
        """Add those of sorted keys that belong there; only those with a prefix, without it."""
        begin, end = bisect_left(keys, prefix + self.low), bisect_left(keys, prefix + self.high)
        if self._descending:
            begin = max(begin, end - self._count)
        found = keys[begin : min(end, begin + self._count)]
        self.add([key[len(prefix) :] for key in found] if prefix else found)


class NewKeys:
    """The keys; one that is added twice is named twice."""

    __slots__ = ("_loose", "_runs", "_slices")

    def __init__(self) -> None:
        self._loose: list[bytes] = []
        """In the order they came; the slices are at its beginning."""
        self._slices: list[_Slice] = []
        self._runs: list[list[bytes]] = []
        """Each sorted."""

    def add(self, keys: Iterable[bytes]) -> None:
        """Add keys, in any order."""
        self._loose += keys

    def after(self, earlier: NewKeys) -> NewKeys:
        """Return both as one."""
        both = NewKeys()
        both._runs = earlier._runs + self._runs
        both._loose = earlier._loose + self._loose
        return both

    def add_to(self, page: KeyPage) -> None:
        """Put those on a page that belong there; sort one slice at most."""
        for run in self._runs:
            page.add_sorted(run)
        loose, slices, worn = self._loose, self._slices, -1
        for begin in range(len(slices) * SLICE_KEYS, len(loose) - SLICE_KEYS + 1, SLICE_KEYS):
            keys = loose[begin : begin + SLICE_KEYS]
            slices.append(_Slice(min(keys), max(keys)))
        for number, each in enumerate(slices):
            if page.may_have(each.least, each.greatest):
                begin = number * SLICE_KEYS
                page.add(keys_within(loose, begin, begin + SLICE_KEYS, page.low, page.high))
                each.looks += 1
                if each.looks >= LOOKS_MAX:
                    worn = number
        page.add(keys_within(loose, len(slices) * SLICE_KEYS, len(loose), page.low, page.high))
        if worn >= 0:
            self._sort(worn)

    def _sort(self, number: int) -> None:
        begin, end = number * SLICE_KEYS, (number + 1) * SLICE_KEYS
        self._runs.append(sorted(self._loose[begin:end]))
        del self._loose[begin:end], self._slices[number]


class _Slice:
    __slots__ = ("greatest", "least", "looks")

    def __init__(self, least: bytes, greatest: bytes) -> None:
        self.least, self.greatest = least, greatest
        self.looks = 0


def keys_within(keys: list[bytes], begin: int, end: int, low: bytes, high: bytes) -> list[bytes]:
    """Return those of `keys[begin:end]` that are in [low, high), in their order."""
    return [key for key in keys[begin:end] if low <= key < high]


accelerated.bind(sys.modules[__name__], "keys_within")
