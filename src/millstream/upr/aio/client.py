"""The asynchronous consumer: follows partitions of a bucket and survives what happens to them.

    async with Consumer("127.0.0.1:11210", bucket="orders", checkpoints=store) as consumer:
        async for event in consumer:
            ...apply it...
            await consumer.save()

Invariants:
1. Events of a partition come in order; `progress` is what holds once the current event is
   applied, so `save` belongs after applying it.
2. A rollback is told once, when the source has accepted the point gone back to: the newest one
   not above the source's answer that a reader can restore exactly who kept every change it was
   sent. Everything of that partition above the seqno told is void.
3. Streams that end, and those of a lost connection, are requested again from the progress. A
   bucket that was re-created, lost rights and a broken protocol are errors.
4. A slow reader slows the source down: bytes are acknowledged when their events were taken.

Elsewhere: where and when streams are requested (`upr.core.driver`, `upr.aio.streams`), what is
kept between runs (`upr.core.checkpoint`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, Literal, NamedTuple, Self

from millstream.errors import RoutingError, StreamError, UsageError
from millstream.model.addresses import parse_address
from millstream.model.position import FailoverLog, Position, position_at
from millstream.runtime.tasks import Tasks
from millstream.upr.aio.checkpoints import CheckpointStore
from millstream.upr.aio.link import TIMEOUT_S
from millstream.upr.aio.streams import PORT_DEFAULT, Access, BucketStreams, Session
from millstream.upr.core.checkpoint import Checkpoint, StreamProgress
from millstream.upr.core.consumer import (
    WINDOW_BYTES,
    BarrierReached,
    ChangesReceived,
    Event,
    RollbackRequired,
    SnapshotCompleted,
    SnapshotStarted,
    StreamOpened,
)
from millstream.upr.core.driver import StreamDriver, recreated
from millstream.upr.core.follower import StreamOptions
from millstream.upr.core.messages import COOKIE_BYTES_MAX, decode_failover_log
from millstream.wire.cluster_map import NodeAddress
from millstream.wire.mcbp import Opcode, StreamFlag, request

__all__ = [
    "BarrierReached",
    "Changes",
    "ConnectionLost",
    "Consumer",
    "ConsumerEvent",
    "RolledBack",
]


LOSSES_MAX: Final = 100
"""Losses of connections that wait for whoever iterates; later ones are not told."""


class Changes(NamedTuple):
    """Changes of one partition, in order; `wire.frames.change_of` cuts a frame.

    `uuid` and `branch` name the history they were read from. The reader's state is consistent
    once `position` is closed.
    """

    partition_id: int
    uuid: int
    branch: int
    position: Position
    frames: list[bytes]


class RolledBack(NamedTuple):
    """History diverged: everything of the partition above `seqno` never happened."""

    partition_id: int
    seqno: int
    uuid: int
    branch: int
    position: Position


class ConnectionLost(NamedTuple):
    """A connection or a stream ended and is requested again; nothing is to be done."""

    reason: str


ConsumerEvent = Changes | SnapshotCompleted | RolledBack | BarrierReached | ConnectionLost


class _Batch(NamedTuple):
    """What a connection brought in one read."""

    session: Session
    events: deque[Event]
    is_handled: asyncio.Event


class Consumer:
    """Follows partitions of one bucket.

    Args:
        address: `HOST:PORT` of a node's kv port; the others are found by the map.
        bucket: its name.
        user: user name; None on a node without users.
        password: that user's.
        partitions: which to follow; all by default.
        checkpoints: where progress is loaded from at the start and saved by `save`.
        start: where to begin a partition without a checkpoint: the `beginning`, or `now`.
        until_now: end when everything that was there at the start has been read.
        tls: context of an encrypted connection; None for plain.
        window_bytes: bytes that may be under way or unhandled, per node.
        timeout_s: longest wait for a connection and for each answer, in seconds.
    """

    def __init__(
        self,
        address: str,
        *,
        bucket: str,
        user: str | None = None,
        password: str | None = None,
        partitions: Sequence[int] | None = None,
        checkpoints: CheckpointStore | None = None,
        start: Literal["beginning", "now"] = "beginning",
        until_now: bool = False,
        tls: ssl.SSLContext | None = None,
        window_bytes: int = WINDOW_BYTES,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._driver = StreamDriver(
            bucket,
            NodeAddress(*parse_address(address, default_port=PORT_DEFAULT)),
            options=StreamOptions(flags=StreamFlag.TO_LATEST if until_now else 0),
            window_bytes=window_bytes,
        )
        access = Access(bucket, user, password, tls, timeout_s)
        self._streams = BucketStreams(access, self._driver, self, "millstream-consumer")
        self._bucket = bucket
        self._partitions = partitions
        self._checkpoints = checkpoints
        self._start = start
        self._bucket_uuid = ""
        self._progress: dict[int, StreamProgress] = {}
        self._tasks = Tasks()
        self._running: asyncio.Task[None] | None = None
        self._batches: asyncio.Queue[_Batch | ConnectionLost | None] = asyncio.Queue()
        """What connections brought, at most one batch for each; None: no more comes."""
        self._batch: _Batch | None = None
        """What is being handled."""
        self._error: Exception | None = None
        """Why no more comes."""
        self._reached: deque[BarrierReached] = deque()
        self._undone: dict[int, int] = {}  # partition -> point gone back to, not told yet
        self._cookies: dict[bytes, int] = {}  # cookie -> barrier, 0 before the first connection
        self._saving: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        """Connect and log in.

        Raises:
            UnavailableError: `unreachable`, `timeout`, `connection_closed`.
            AccessError: `bad_credentials`, `unknown_bucket`.
            UsageError: the checkpoint belongs to another bucket.
            StreamError: `bucket_recreated`.
        """
        if self._checkpoints is not None:
            self._take(await asyncio.to_thread(self._checkpoints.load))
        await self._streams.fetch_map()
        if self._bucket_uuid not in ("", self._driver.map.bucket_uuid):
            raise recreated(self._bucket)
        self._bucket_uuid = self._driver.map.bucket_uuid
        wanted = self._driver.begin(self._partitions, self._progress)
        await self._stand(number for number in wanted if number not in self._progress)
        for cookie in self._cookies:
            self._cookies[cookie] = self._driver.awaited.add(wanted)
        self._running = self._tasks.start(self._run(), name="consumer")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; nothing is saved."""
        await self._tasks.stop()

    def progress(self, partition_id: int) -> StreamProgress:
        """Return the progress of the reader once the current event is applied."""
        return self._progress[partition_id]

    @property
    def checkpoint(self) -> Checkpoint:
        """The progress of all partitions, for a reader that stores it with its own state."""
        return Checkpoint(self._bucket, self._bucket_uuid, dict(self._progress))

    async def save(self) -> None:
        """Save the checkpoint durably; call it when the event in hand is applied."""
        assert self._checkpoints is not None, "the consumer was given no place for checkpoints"
        checkpoint = self.checkpoint
        # A caller that is cancelled leaves the thread writing: the next one waits for it.
        while self._saving is not None and not self._saving.done():
            await asyncio.wait([self._saving])
        self._saving = asyncio.get_running_loop().run_in_executor(
            None, self._checkpoints.save, checkpoint
        )
        await asyncio.shield(self._saving)

    def barrier(self, cookie: bytes) -> None:
        """Have `BarrierReached` come once everything was yielded that there is now, or more.

        To be called by whoever iterates. On a lost connection the cookie is sent again.

        Args:
            cookie: 1 to 64 bytes, none that waits already.

        Raises:
            UsageError: `bad_cookie`.
        """
        if cookie in self._cookies or not 1 <= len(cookie) <= COOKIE_BYTES_MAX:
            message = f"a cookie has 1 to {COOKIE_BYTES_MAX} bytes and waits once"
            raise UsageError(message, code="bad_cookie")
        self._cookies[cookie] = 0
        if self._running is not None:
            self._cookies[cookie] = self._driver.awaited.add(self._driver.unfinished)
            for session in self._streams.sessions.values():
                self._driver.send_cookies(session.source)
            self._tasks.start(self._streams.send(), name="send cookies")

    async def __aiter__(self) -> AsyncIterator[ConsumerEvent]:
        """Yield events; ends only with `until_now`, or by an error.

        Raises:
            StreamError: `bucket_recreated`; `reader_ended`: it was closed.
            AccessError: a right was lost.
            RemoteProtocolError: the node broke the protocol.
        """
        assert self._running is not None, "iterate inside `async with`"
        while True:
            self._note_barriers()
            batch = self._batch
            if self._reached:
                yield self._reached.popleft()
            elif batch is not None and batch.events:
                event = self._on_event(batch.session, batch.events.popleft())
                if event is not None:
                    yield event
            else:
                if batch is not None:
                    self._driver.send_cookies(batch.session.source)
                    batch.is_handled.set()
                    self._batch = None
                found = await self._batches.get()
                if found is None:
                    self._batches.put_nowait(None)  # for whoever iterates again
                    if self._error is not None:
                        raise self._error
                    if self._driver.unfinished:
                        raise StreamError("the consumer was closed", code="reader_ended")
                    return
                if isinstance(found, ConnectionLost):
                    yield found
                else:
                    self._batch = found

    async def _run(self) -> None:
        try:
            await self._streams.run()
        except Exception as error:  # noqa: BLE001 - whoever iterates gets it
            self._error = error
        finally:
            self._batches.put_nowait(None)

    # -- what connections bring

    def place(self, partition_id: int) -> tuple[Position, FailoverLog]:
        """Return from where to request a stream."""
        self._undone.pop(partition_id, None)
        progress = self._progress[partition_id]
        return progress.position, progress.failover_log

    async def handle(self, session: Session, events: Sequence[Event]) -> None:
        """Give events to the caller that iterates."""
        batch = _Batch(session, deque(events), asyncio.Event())
        self._batches.put_nowait(batch)
        await batch.is_handled.wait()

    def on_lost(self, why: str) -> None:
        """Tell the caller that iterates."""
        if self._batches.qsize() < LOSSES_MAX:
            self._batches.put_nowait(ConnectionLost(why))

    def _on_event(self, session: Session, event: Event) -> ConsumerEvent | None:
        """Keep the progress; return what the reader is to know."""
        match event:
            case ChangesReceived(partition_id, position, frames):
                progress = self._progress[partition_id]
                self._progress[partition_id] = progress._replace(position=position)
                newest = progress.failover_log[0]
                return Changes(partition_id, newest.uuid, newest.branch, position, frames)
            case SnapshotCompleted(partition_id, position):
                self._progress[partition_id] = self._progress[partition_id].with_end(position)
                return event
            case SnapshotStarted(partition_id, position):
                progress = self._progress[partition_id]
                self._progress[partition_id] = progress._replace(position=position)
            case RollbackRequired(partition_id, seqno):
                point = self._progress[partition_id].undo_point(seqno)
                session.core.undone_to(partition_id, point)
                self._undone[partition_id] = point
            case _:
                why = self._streams.take(session, event)
                if isinstance(event, StreamOpened):
                    return self._on_opened(event)
                return ConnectionLost(why) if why else None
        return None

    def _on_opened(self, event: StreamOpened) -> RolledBack | None:
        partition_id, position, log, _ = event
        progress = self._progress[partition_id]._replace(failover_log=log)
        point = self._undone.pop(partition_id, None)
        if point is None:
            self._progress[partition_id] = progress._replace(position=position)
            return None
        self._progress[partition_id] = progress.undone_to(position)
        return RolledBack(partition_id, point, log[0].uuid, log[0].branch, position)

    def _note_barriers(self) -> None:
        for number, reached in self._driver.awaited.take_done().items():
            cookie = next(name for name, mine in self._cookies.items() if mine == number)
            del self._cookies[cookie]
            self._reached.append(BarrierReached(cookie, reached))

    # -- the beginning

    async def _stand(self, partition_ids: Iterable[int]) -> None:
        """Set the first progress of partitions.

        Raises:
            RoutingError: no node serves one at present.
        """
        if self._start == "beginning":
            self._progress.update((number, StreamProgress()) for number in partition_ids)
            return
        new = list(partition_ids)
        for node, numbers in self._driver.by_node(new).items():
            async with self._streams.connected(node) as link:
                highs = await link.high_seqnos()
                for number in numbers:
                    frame = request(Opcode.GET_FAILOVER_LOG, vbucket=number)
                    packet = await link.demand(frame, f"failover log of partition {number}")
                    log = decode_failover_log(packet.value)
                    high = highs.get(number, 0)
                    position = position_at(log, high, high, high) if high else Position()
                    self._progress[number] = StreamProgress(
                        position, log, (high,) if high else (), high
                    )
        for number in new:
            if number not in self._progress:
                raise RoutingError(f"no node serves partition {number} at present; try again")

    def _take(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            return
        if checkpoint.bucket != self._bucket:
            raise UsageError(
                f"the checkpoint is of bucket {checkpoint.bucket!r}, not {self._bucket!r}; "
                "use another one",
                code="wrong_checkpoint",
            )
        self._bucket_uuid = checkpoint.bucket_uuid
        self._progress = dict(checkpoint.progress)
