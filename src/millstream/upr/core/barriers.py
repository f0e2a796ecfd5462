"""Barrier cookies of one connection: when each comes back; and the ends of cycles.

A consumer sends a cookie and gets it back once it has been sent everything that was accepted
before the cookie arrived. A cycle is the same, begun by the producer itself: it ends once every
stream has been sent all that there was when the cycle began.

Invariants:
1. A stream takes part with the high seqno that its partition has when the cookie arrives. It is
   through when it has completed a snapshot that ends there or beyond, or has ended. A stream that
   is opened later takes no part.
2. First in, first out: a cookie comes back when all that take part in it, and in every cookie
   before it, are through. Then it is forgotten, and may be used again.
3. At most `BARRIERS_MAX` cookies wait, each once.
4. The reply names who is through by a snapshot, never who has merely ended.

Elsewhere: when a message may be sent (`upr.core.producer`), snapshots (`upr.core.stream`), bytes
(`upr.core.messages`).

Source: UPR design paper, "How ep-engine tracks barrier cookies". Seqnos replace its counting of
cycles: a stream that has completed a snapshot at or past a seqno has been passed by the cycle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from millstream.model.limits import UINT64_MAX
from millstream.upr.core.messages import Reached, RefusedError, encode_barrier_reached
from millstream.upr.core.stream import Stream
from millstream.wire.mcbp import Opcode, Status, request

__all__ = ["BARRIERS_MAX", "Barriers"]

BARRIERS_MAX: Final = 64
"""Cookies of one connection that wait; each keeps a seqno for every stream."""


class _Barrier(NamedTuple):
    cookie: bytes
    opaque: int
    awaited: dict[int, int]
    """Partition -> seqno, of those that are not through."""
    reached: dict[int, Reached]

    def on_step(self, stream: Stream) -> None:
        partition_id = stream.partition_id
        if stream.complete >= self.awaited.get(partition_id, UINT64_MAX):
            del self.awaited[partition_id]
            self.reached[partition_id] = _reached(stream)


class Barriers:
    """The cookies that wait, and the cycle under way."""

    __slots__ = ("_cycle", "_cycles", "_waiting", "is_due", "is_idle")

    def __init__(self) -> None:
        self._waiting: deque[_Barrier] = deque()
        self._cycle: _Barrier | None = None
        self._cycles = 0
        self.is_idle = True
        """Nothing waits: steps need not be reported."""
        self.is_due = False
        """There is something to take."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, cookie: bytes, opaque: int, streams: Iterable[Stream]) -> None:
        """Take a cookie that `streams` take part in.

        Raises:
            RefusedError: it waits already, or too many do.
        """
        if any(barrier.cookie == cookie for barrier in self._waiting):
            raise RefusedError(Status.KEY_EEXISTS, "that cookie has not come back yet")
        if len(self._waiting) == BARRIERS_MAX:
            raise RefusedError(Status.ETMPFAIL, f"{BARRIERS_MAX} cookies wait already")
        self._waiting.append(_begun(cookie, opaque, streams))
        self._look()

    def begin_cycle(self, streams: Iterable[Stream]) -> None:
        """Begin a cycle unless one is under way or there is nothing to send."""
        if self._cycle is None:
            cycle = _begun(b"", 0, streams)
            self._cycle = cycle if cycle.awaited else None
            self._look()

    def on_step(self, stream: Stream) -> None:
        """A stream may have completed a snapshot, which is sent before what is taken next."""
        for barrier in self._all():
            barrier.on_step(stream)
        self._look()

    def on_end(self, partition_id: int) -> None:
        """A stream has ended: nothing waits for it any more."""
        for barrier in self._all():
            barrier.awaited.pop(partition_id, None)
        self._look()

    def take(self) -> bytes:
        """Return the next message that is due, and forget what it is about."""
        assert self.is_due
        if self._waiting and not self._waiting[0].awaited:
            cookie, opaque, awaited, reached = self._waiting.popleft()
            assert not awaited, "a barrier waits for its streams"
            message = encode_barrier_reached(cookie, opaque, reached)
        else:
            self._cycle = None
            self._cycles += 1
            message = request(Opcode.CYCLE_END, extras=self._cycles.to_bytes(8, "big"))
        self._look()
        return message

    def clear(self) -> None:
        """Forget everything."""
        self._waiting.clear()
        self._cycle = None
        self._look()

    def _all(self) -> Iterable[_Barrier]:
        return self._waiting if self._cycle is None else (*self._waiting, self._cycle)

    def _look(self) -> None:
        self.is_idle = not self._waiting and self._cycle is None
        is_cycle_over = self._cycle is not None and not self._cycle.awaited
        self.is_due = is_cycle_over or bool(self._waiting and not self._waiting[0].awaited)


def _begun(cookie: bytes, opaque: int, streams: Iterable[Stream]) -> _Barrier:
    """Look at where the streams are and where their partitions are."""
    barrier = _Barrier(cookie, opaque, {}, {})
    for stream in streams:
        seqno = stream.source.high_seqno
        if stream.is_broken:  # its seqnos are of a history that is gone: only its end counts
            barrier.awaited[stream.partition_id] = UINT64_MAX
        elif stream.complete >= seqno:
            barrier.reached[stream.partition_id] = _reached(stream)
        else:
            barrier.awaited[stream.partition_id] = seqno
    return barrier


def _reached(stream: Stream) -> Reached:
    return Reached(stream.source.failover_log[0].uuid, stream.complete)
