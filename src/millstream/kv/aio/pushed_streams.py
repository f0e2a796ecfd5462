"""The shell of a connection that feeds copies here: runs the effects of an `AddedFeed`.

Invariants:
1. Changes are applied in parts, each in its own turn of the loop.
2. A rollback or a change of state that has begun is finished if the connection is lost.
3. An unexpected error ends the connection: no copy stays in the middle of a change.
4. A new map ends the connection if a copy fed here follows a node by it.

Elsewhere: every decision (`kv.core.copies.pushed_stream`), the socket (`kv.aio.server`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from millstream.errors import LocalProtocolError, MillstreamError, RemoteProtocolError
from millstream.kv.aio.reading_back import BUSY_WAIT_S
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.feed_effects import ChangeState, Read, Send, TakenOver, Undo
from millstream.kv.core.copies.pushed_stream import AddedFeed
from millstream.kv.core.copies.replica_stream import FULL_WAIT_S
from millstream.model.partitions import PartitionState
from millstream.runtime.tasks import Tasks
from millstream.wire.mcbp import Packet, Status

__all__ = ["FeedConnection", "FeedSession"]

_LOG = logging.getLogger(__name__)


class FeedConnection(Protocol):
    """The socket as a feed sees it."""

    def write(self, data: bytes) -> None:
        """Send bytes, in order with all other replies on the connection."""

    def close(self) -> None:
        """Close the connection."""


class FeedSession:
    """The feeds of one connection, from OPEN to its end. Created and called in the loop.

    Args:
        connection: to write to.
        bucket: of the copies.
        name: of the connection, for logs.
        refuse: creates error replies.
        is_extended: HELLO granted our own feature.
        now_s: Unix time.
    """

    def __init__(
        self,
        connection: FeedConnection,
        bucket: Bucket,
        name: str,
        refuse: Callable[[Packet, Status], bytes],
        *,
        is_extended: bool,
        now_s: Callable[[], int],
    ) -> None:
        self._connection = connection
        self._bucket = bucket
        self._name = name
        self._now_s = now_s
        self._feed = AddedFeed(bucket, refuse, is_extended=is_extended)
        self._loop = asyncio.get_running_loop()
        self._work = Tasks()
        self._is_scheduled = False
        self._is_closed = False
        bucket.subscribe_durable(self._on_durable)
        bucket.subscribe_map(self.end)
        self._wake()

    def on_packet(self, packet: Packet) -> None:
        """Take a stream request, or any response."""
        if self._is_closed:
            return
        with self._ending():
            self._feed.on_packet(packet, self._now_s())
        self._wake()

    def end(self) -> None:
        """Close the connection."""
        self.close()
        self._connection.close()

    def close(self) -> None:
        """The connection has closed; may be called repeatedly."""
        if not self._is_closed:
            self._is_closed = True
            self._feed.close()
            self._bucket.unsubscribe(self._on_durable)
            self._bucket.unsubscribe(self.end)

    # -- inside

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """End the connection if the peer broke the protocol."""
        try:
            yield
        except (RemoteProtocolError, LocalProtocolError) as error:
            _LOG.warning("closed %s, which sent changes to copies: %s", self._name, error)
            self.end()

    def _on_durable(self) -> None:
        self._feed.on_durable()
        self._wake()

    def _wake(self) -> None:
        if not (self._is_scheduled or self._is_closed):
            self._is_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_scheduled = False
        if self._is_closed:
            return
        with self._ending():
            is_more = self._feed.step()
            self._carry_out()
            if is_more:
                self._wake()
            elif self._feed.is_full:
                self._loop.call_later(FULL_WAIT_S, self._wake)

    def _carry_out(self) -> None:
        for effect in self._feed.take_effects():
            match effect:
                case Send(data):
                    self._connection.write(data)
                case Read(absent):
                    if not absent.fetch(self._fetched):
                        self._loop.call_later(BUSY_WAIT_S, self._fetched, None)
                case Undo():
                    self._work.start(self._undo(effect), name="undo a copy that is fed")
                case ChangeState():
                    self._work.start(self._change(effect), name="take a partition over")
                case TakenOver(partition_id, failure) if failure:
                    self._work.start(self._stand_back(partition_id), name="end a take-over")

    def _fetched(self, error: Exception | None) -> None:
        if self._is_closed:
            return
        if error is not None:
            _LOG.error("closed %s, which sent changes to copies: a document cannot be read: %s",
                       self._name, error)  # fmt: skip
            self.end()
            return
        with self._ending():
            self._feed.on_read()
        self._wake()

    async def _undo(self, effect: Undo) -> None:
        partition_id = effect.partition_id
        try:
            seqno = await self._bucket.copies.undo(*effect)
        except MillstreamError as error:
            _LOG.warning(
                "partition %d is not rolled back for %s: %s", partition_id, self._name, error
            )
            if not self._is_closed:
                self._feed.on_not_undone(partition_id)
        except Exception:  # noqa: BLE001 - the peer sees the connection end, and connects again
            self._end_by_mistake(f"partition {partition_id} is not undone")
        else:
            if not self._is_closed:
                self._feed.on_undone(partition_id, seqno)
        self._wake()

    async def _change(self, effect: ChangeState) -> None:
        failure = ""
        try:
            await self._bucket.copies.take_over(*effect)
        except MillstreamError as error:
            failure = str(error)
        except Exception:  # noqa: BLE001 - the peer sees the connection end, and connects again
            self._end_by_mistake(f"partition {effect.partition_id} is not taken over")
        if self._is_closed and effect.state is PartitionState.PENDING:
            await self._stand_back(effect.partition_id)
        elif not self._is_closed:
            self._feed.on_state_changed(effect.partition_id, failure)
        self._wake()

    def _end_by_mistake(self, what: str) -> None:
        _LOG.exception("closed %s, which sent changes to copies: %s", self._name, what)
        self.end()

    async def _stand_back(self, partition_id: int) -> None:
        """Let a copy follow again whose take-over failed."""
        try:
            await self._bucket.copies.stand_back(partition_id)
        except MillstreamError as error:
            _LOG.error("partition %d, which %s was to hand over, cannot follow again: %s",
                       partition_id, self._name, error)  # fmt: skip
