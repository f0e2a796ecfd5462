"""The shell of one producer connection: writes what the core produces, reads the log in threads.

Invariants:
1. One step of stream data per turn of the loop, none while the connection is paused.
2. The log is read in worker threads only, a chunk ahead at most.
3. After `close` nothing is written and nothing is held.
4. News of the bucket are looked at as they come while that takes little of the time
   (`LOOK_SHARE`), else once per `GATHER_S`: under load changes leave in batches.

Elsewhere: every decision (`upr.core.producer`), the socket and the opening of the stream (the kv
port).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic_ns, perf_counter, time_ns
from typing import Final, Protocol

from millstream.errors import MillstreamError
from millstream.runtime.tasks import Tasks
from millstream.upr.core.producer import Producer, Rollback, StreamFigures
from millstream.upr.core.selecting import Conditions, no_conditions
from millstream.upr.core.source import BucketSource
from millstream.upr.core.stream import Chunk, LogRead
from millstream.upr.core.takeover import TakeOverStream
from millstream.wire.mcbp import Packet

__all__ = ["GATHER_S", "StreamConnection", "StreamSession"]

GATHER_S: Final = 0.001
"""The longest that changes gather before they are sent, if some were sent just before."""
LOOK_SHARE: Final = 4
"""Work is not gathered while small rounds take less than one part in this many of the time."""

_SELECTORS: Final = ThreadPoolExecutor(1, "stream-selectors")
"""Conditions on documents are worked out in one thread, so that the loop competes with no more
than one for the interpreter."""
_LOG = logging.getLogger(__name__)


class StreamConnection(Protocol):
    """The socket as a stream sees it."""

    @property
    def is_paused(self) -> bool:
        """Whether the socket's send buffer is full."""

    def write(self, data: bytes) -> None:
        """Send bytes, in order with all other replies on the connection."""

    def close(self) -> None:
        """Close the connection."""


class StreamSession:
    """The streams of one connection, from DCP_OPEN to its end. Made and called in the loop.

    Args:
        connection: to write to.
        source: the bucket.
        name: of the consumer, for logs and statistics.
        flags: of DCP_OPEN, already checked.
        is_extended: HELLO granted the feature of our own.
        has_json: HELLO granted the JSON bit.
        may_take_over: the user is an administrator.
        config: returns the cluster map as JSON.
        conditions: makes conditions on documents; they are worked out in a thread.
    """

    def __init__(
        self,
        connection: StreamConnection,
        source: BucketSource,
        name: str,
        flags: int,
        *,
        is_extended: bool,
        has_json: bool,
        may_take_over: bool = False,
        config: Callable[[], bytes] = bytes,
        conditions: Conditions = no_conditions,
    ) -> None:
        self._connection = connection
        self._source = source
        self._name = name
        self._producer = Producer(
            source, flags, is_extended=is_extended, has_json=has_json,
            may_take_over=may_take_over, config=config, conditions=conditions,
        )  # fmt: skip
        self.since_ms = time_ns() // 1_000_000
        """When it was opened (Unix)."""
        self.last_rollback: Rollback | None = None
        self._noted: tuple[int, int, int] | None = None
        """The rollback of the producer that `last_rollback` is of."""
        self._stops = Tasks()
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._is_closed = False
        self._hears_of_durable = False
        self._looked_at_s = self._credited_at_s = 0.0
        self._credit_s = 0.0
        """Time that looks may take now without waiting."""
        self._tick_ms = self._producer.tick_ms
        self._timer = self._loop.call_later(self._tick_ms / 1000, self._tick)
        source.subscribe(self._on_news)

    def on_packet(self, packet: Packet) -> None:
        """Take a request of the stream protocol, or any response."""
        if not self._is_closed:
            self._producer.on_packet(packet)
            self._note_rollback()
            if self._producer.settings.is_durable_only and not self._hears_of_durable:
                self._hears_of_durable = True
                self._source.subscribe_durable(self._on_news)
            self._answer()

    def on_resume(self) -> None:
        """The socket can take more."""
        self._wake()

    def figures(self) -> StreamFigures:
        """Return how far the streams are."""
        return self._producer.figures()

    def statistics(self) -> list[tuple[str, str]]:
        """Return what STAT `dcp` shows of this connection."""
        prefix = f"eq_dcpq:{self._name}:"
        return [(prefix + name, text) for name, text in self._producer.statistics()]

    def positions(self) -> Iterator[tuple[int, str, int, int, int, int | None]]:
        """Yield what `Producer.positions` does."""
        return self._producer.positions()

    def progress(self, partition_id: int) -> tuple[str, int] | None:
        """Return the state and position of a partition's stream; None if it has none."""
        return self._producer.progress(partition_id)

    def close(self) -> None:
        """Give everything up; harmless if done before."""
        if not self._is_closed:
            self._is_closed = True
            self._source.unsubscribe(self._on_news)
            self._timer.cancel()
            self._producer.close()

    # -- inside

    def _on_news(self) -> None:
        """The bucket changed: called once per batch, so it only sees that somebody looks soon."""
        self._producer.on_news()
        if not (self._is_scheduled or self._is_closed):
            self._is_scheduled = True
            pause_s = self._pause_s(perf_counter())
            if pause_s > 0:
                self._loop.call_later(pause_s, self._pump)
            else:
                self._loop.call_soon(self._pump)

    def _pause_s(self, now_s: float) -> float:
        """Return how long changes should gather that have just come."""
        earned_s = (now_s - self._credited_at_s) / LOOK_SHARE
        self._credit_s = min(max(self._credit_s, -GATHER_S) + earned_s, GATHER_S / LOOK_SHARE)
        self._credited_at_s = now_s
        return 0.0 if self._credit_s > 0 else self._looked_at_s + GATHER_S - now_s

    def _note_rollback(self) -> None:
        told = self._producer.last_rollback
        if told is not None and told is not self._noted:
            self._noted = told
            self.last_rollback = Rollback(*told, time_ns() // 1_000_000)

    def _wake(self) -> None:
        """Send what there is, in the next turn of the loop."""
        if not (self._is_scheduled or self._is_closed):
            self._is_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_scheduled = False
        if self._is_closed or self._connection.is_paused:
            return
        began_s = perf_counter()
        data = self._producer.produce()
        self._note_rollback()
        if data:
            self._connection.write(data)
        for read in self._producer.take_reads():
            threads = _SELECTORS if read.stream.selects else None
            future = self._loop.run_in_executor(threads, _next_chunk, read)
            future.add_done_callback(partial(self._on_read, read))
        self._looked_at_s = perf_counter()
        self._credit_s -= self._looked_at_s - began_s
        if data is not None:
            self._wake()

    async def _stop(self, stream: TakeOverStream) -> None:
        """Make a copy dead that is being taken over; goes on if the connection is lost."""
        partition_id, has_stopped = stream.partition_id, True
        try:
            await self._source.stop_copy(partition_id, stream.epoch)
        except MillstreamError as error:
            _LOG.error("partition %d cannot be handed over: %s", partition_id, error)
            has_stopped = False
        if not self._is_closed:
            self._producer.on_stopped(stream, has_stopped=has_stopped)
            self._answer()

    def _answer(self) -> None:
        for stream in self._producer.take_stops():
            self._stops.start(self._stop(stream), name="stop a copy that is handed over")
        replies = self._producer.take_replies()
        if replies:
            self._connection.write(replies)
        if self._producer.wants_close:
            _LOG.warning("stream consumer %s is dead or broke the protocol: closed", self._name)
            self.close()
            self._connection.close()
            return
        if self._producer.tick_ms != self._tick_ms:
            self._start_timer()
        self._wake()

    def _start_timer(self) -> None:
        self._timer.cancel()
        self._tick_ms = self._producer.tick_ms
        self._timer = self._loop.call_later(self._tick_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._producer.on_tick(monotonic_ns() // 1_000_000)
        self._start_timer()
        self._answer()

    def _on_read(self, read: LogRead, future: asyncio.Future[Chunk | None]) -> None:
        """A worker thread is done with one chunk."""
        if self._is_closed or future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._producer.on_chunk(read, future.result())
        else:
            partition_id = read.stream.partition_id
            _LOG.error("cannot read partition %d for a stream", partition_id, exc_info=error)
            self._producer.on_read_failed(read)
        self._answer()


def _next_chunk(read: LogRead) -> Chunk | None:
    """Read on; in a worker thread."""
    return next(read.chunks, None)
