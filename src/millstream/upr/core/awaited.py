"""Barriers of a reader with several sources: each waits until every partition has passed a cookie.

    number = awaited.add(partitions)
    while (cookie := awaited.cookie_for(source, its open streams)) is not None: send it
    awaited.on_reached(cookie, reached); awaited.on_lost(source); awaited.on_end(partition_id)
    awaited.take_done()

Invariants:
1. A barrier is done once each of its partitions was named in the answer to a cookie that was sent
   after the barrier was asked for, or has come to its end.
2. A cookie of a source that was lost proves nothing; its partitions are asked for again, wherever
   they are.

Elsewhere: cookies at the source (`upr.core.barriers`), when the sink has what came before one
(`upr.aio.following`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from millstream.upr.core.messages import Reached

__all__ = ["Awaited"]


class _Sent(NamedTuple):
    source: object
    partitions: dict[int, frozenset[int]]
    """By the number of the barrier."""


class Awaited:
    """The barriers that one reader waits for."""

    def __init__(self) -> None:
        self._missing: dict[int, set[int]] = {}
        self._reached: dict[int, dict[int, Reached]] = {}
        self._sent: dict[bytes, _Sent] = {}
        self._count = 0

    def add(self, partitions: Iterable[int]) -> int:
        """Begin a barrier of these partitions; return its number."""
        self._count += 1
        self._missing[self._count] = set(partitions)
        self._reached[self._count] = {}
        return self._count

    def cookie_for(self, source: object, streams: Collection[int]) -> bytes | None:
        """Return the cookie that a source must be sent now, None if there is nothing to ask.

        Args:
            source: a connection.
            streams: the partitions whose streams are open there.
        """
        wanted: dict[int, frozenset[int]] = {}
        for number, missing in self._missing.items():
            asked = [sent.partitions.get(number, ()) for sent in self._of(source)]
            partitions = missing.intersection(streams).difference(*asked)
            if partitions:
                wanted[number] = frozenset(partitions)
        if not wanted:
            return None
        self._count += 1
        cookie = self._count.to_bytes(8, "big")
        self._sent[cookie] = _Sent(source, wanted)
        return cookie

    def _of(self, source: object) -> Iterable[_Sent]:
        return (sent for sent in self._sent.values() if sent.source is source)

    def on_reached(self, cookie: bytes, reached: Mapping[int, Reached]) -> None:
        """Take a cookie that came back, and how far the partitions are that have passed it."""
        sent = self._sent.pop(cookie, None)
        for number, partitions in sent.partitions.items() if sent else ():
            if number in self._missing:
                passed = {p: reached[p] for p in partitions if p in reached}
                self._missing[number] -= passed.keys()
                self._reached[number] |= passed

    def on_lost(self, source: object) -> None:
        """Take note that a connection is gone."""
        self._sent = {k: sent for k, sent in self._sent.items() if sent.source is not source}

    def on_end(self, partition_id: int) -> None:
        """Take note that all of a partition was read that was to be read."""
        for missing in self._missing.values():
            missing.discard(partition_id)

    def clear(self) -> None:
        """Forget all barriers."""
        self._missing, self._reached, self._sent = {}, {}, {}

    def take_done(self) -> dict[int, dict[int, Reached]]:
        """Return the barriers that wait for nothing more, once.

        By number: how far each partition was, without those that have come to their end.
        """
        done = [number for number, missing in self._missing.items() if not missing]
        for number in done:
            del self._missing[number]
        return {number: self._reached.pop(number) for number in done}
