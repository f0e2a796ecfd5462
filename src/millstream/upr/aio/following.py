"""Follow a bucket, wherever its partitions are, into a sink that can be undone.

    reader = BucketReader("127.0.0.1:11210", bucket="orders", sink=SqliteSink("orders.db"))
    await reader.run()                       # or: async for effects in reader: ...

Invariants:
1. A bookkeeper's effects reach the sink in order and before anything later is asked of it; what a
   stream says is not handled while the bookkeeper has a question.
2. A slow sink slows the source down: a connection is read on when its effects are durable, and at
   most `WRITTEN_MAX` writes wait for whoever iterates.
3. A bucket that was re-created, lost rights, a broken protocol and a sink that fails are errors.
4. With `durable_only` nothing is ever undone, and nothing read from a source that was superseded
   (`upr.core.questions`).
5. A barrier is over when what came before its cookies is durable in the sink.

Elsewhere: where and when streams are requested (`upr.core.driver`, `upr.aio.streams`), the order
of effects (`upr.core.bookkeeper`), a reader without a state of its own (`upr.aio.client`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Final

from millstream.errors import (
    LocalProtocolError,
    MillstreamError,
    RoutingError,
    StreamError,
    UnavailableError,
    UsageError,
)
from millstream.model.addresses import parse_address
from millstream.model.position import FailoverLog, Position
from millstream.runtime.tasks import Tasks
from millstream.upr.aio.link import TIMEOUT_S
from millstream.upr.aio.sinks import Sink
from millstream.upr.aio.streams import PORT_DEFAULT, Access, BucketStreams, Session, losing
from millstream.upr.core.bookkeeper import Bookkeeper, Effect
from millstream.upr.core.consumer import (
    WINDOW_BYTES,
    BarrierReached,
    ChangesReceived,
    Event,
    RollbackRequired,
    SnapshotCompleted,
    StreamOpened,
)
from millstream.upr.core.driver import StreamDriver
from millstream.upr.core.follower import StreamOptions
from millstream.upr.core.kept import RING_CHANGES_DEFAULT, RING_CHANGES_MAX
from millstream.upr.core.questions import (
    Judgement,
    decode_answer,
    decode_history,
    encode_history_question,
    encode_question,
    judge,
)
from millstream.wire.cluster_map import NodeAddress
from millstream.wire.mcbp import StreamFlag

__all__ = ["BucketReader"]

WRITTEN_MAX: Final = 16
"""Writes that whoever iterates has not looked at; then the readers wait."""


class BucketReader:
    """Keeps a sink equal to a bucket.

    Args:
        address: `HOST:PORT` of a node's kv port; the others are found by the map.
        bucket: its name.
        sink: what is built, with the places to go on from.
        user: user name; None on a node without users. Needs the rights to stream and to read.
        password: that user's.
        partitions: which to follow; all by default.
        until_now: end when everything that was there has been read.
        durable_only: read nothing that could have to be undone; for a sink that was never followed
            into without. Nodes of ours only.
        tls: context of encrypted connections; None for plain.
        ring_changes: changes of a partition that can be undone without reading it anew.
        window_bytes: bytes that may be under way or unhandled, per node.
        timeout_s: longest wait for a connection and for each answer, in seconds.

    Raises:
        UsageError: an impossible address or ring.
    """

    def __init__(
        self,
        address: str,
        *,
        bucket: str,
        sink: Sink,
        user: str | None = None,
        password: str | None = None,
        partitions: Sequence[int] | None = None,
        until_now: bool = False,
        durable_only: bool = False,
        tls: ssl.SSLContext | None = None,
        ring_changes: int = RING_CHANGES_DEFAULT,
        window_bytes: int = WINDOW_BYTES,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if not 1 <= ring_changes <= RING_CHANGES_MAX:
            message = f"a ring has 1 to {RING_CHANGES_MAX} changes, not {ring_changes}"
            raise UsageError(message, code="bad_ring")
        flags = StreamFlag.ACTIVE_ONLY | (StreamFlag.TO_LATEST if until_now else 0)
        self._driver = StreamDriver(
            bucket,
            NodeAddress(*parse_address(address, default_port=PORT_DEFAULT)),
            options=StreamOptions(flags=flags),
            window_bytes=window_bytes,
            durable_only=durable_only,
        )
        access = Access(bucket, user, password, tls, timeout_s)
        self._streams = BucketStreams(access, self._driver, self, "millstream-reader")
        self._bucket, self._sink = bucket, sink
        self._partitions = partitions
        self._durable_only = durable_only
        self._ring_changes = ring_changes
        self._bookkeepers: dict[int, Bookkeeper] = {}
        self._writing = asyncio.Lock()
        self._queue: asyncio.Queue[Sequence[Effect] | None] | None = None
        self._slots = asyncio.Semaphore(WRITTEN_MAX)
        self._begun = asyncio.Event()
        self._barriers: dict[int, asyncio.Future[None]] = {}

    async def run(self) -> None:
        """Follow until cancelled, or until all was read that was to be read.

        Raises:
            UnavailableError: no node answers at the start, or the sink cannot write.
            AccessError: bad credentials, or a right is lacking or was lost.
            StreamError: `bucket_recreated`; `durable_lost` with `durable_only`: more was lost than
                the level of durability bears.
            LocalProtocolError: `not_supported`: `durable_only` at a node that is none of ours.
            RemoteProtocolError: a node broke the protocol.
        """
        await self._begin()
        try:
            await self._streams.run()
        finally:
            self._give_up_barriers(StreamError("the reader has ended", code="reader_ended"))

    async def __aiter__(self) -> AsyncIterator[Sequence[Effect]]:
        """Follow, and yield what was made durable; leaving the loop ends it.

        Raises:
            MillstreamError: as `run`.
        """
        queue = self._queue = asyncio.Queue()
        self._slots = asyncio.Semaphore(WRITTEN_MAX)
        tasks = Tasks()
        task = tasks.start(self.run(), name="bucket reader")
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (written := await queue.get()) is not None:
                self._slots.release()
                yield written
            task.result()
        finally:
            self._queue = None
            await tasks.stop()

    async def barrier(self) -> None:
        """Return once the sink has, durably, all that was accepted before the call.

        To be called while the reader runs; several may wait at a time.

        Raises:
            LocalProtocolError: `not_supported`: a node is none of ours.
            StreamError: `reader_ended`.
        """
        await self._begun.wait()
        done = asyncio.get_running_loop().create_future()
        self._barriers[self._driver.awaited.add(self._driver.unfinished)] = done
        for session in list(self._streams.sessions.values()):
            self._send_cookies(session)
        await self._streams.send()
        self._end_barriers()
        await done

    def _send_cookies(self, session: Session) -> None:
        """Ask a node to report when it has sent what barriers wait for."""
        try:
            self._driver.send_cookies(session.source)
        except LocalProtocolError as error:
            self._give_up_barriers(error)

    def _end_barriers(self) -> None:
        for number in self._driver.awaited.take_done():
            done = self._barriers.pop(number)
            if not done.done():
                done.set_result(None)

    def _give_up_barriers(self, error: MillstreamError) -> None:
        self._end_barriers()
        for done in self._barriers.values():
            if not done.done():
                done.set_exception(error)
        self._barriers.clear()
        self._driver.awaited.clear()

    async def lag(self) -> dict[int, int]:
        """Return how many seqnos each followed partition is behind its node at present.

        Partitions that are being looked for are missing.
        """
        found: dict[int, int] = {}
        for session in list(self._streams.sessions.values()):
            with contextlib.suppress(UnavailableError, RoutingError):
                async with session.asking() as link:
                    highs = await link.high_seqnos()
                for number in session.source.partitions:
                    reached = self._bookkeepers[number].kept.position.seqno
                    found[number] = max(highs.get(number, 0) - reached, 0)
        return found

    async def _begin(self) -> None:
        """Learn the map, claim the sink, and take up what it holds."""
        await self._streams.fetch_map()
        await asyncio.to_thread(self._sink.claim, self._bucket, self._driver.map.bucket_uuid)
        stored = await asyncio.to_thread(self._sink.load)
        self._bookkeepers = {
            number: Bookkeeper(
                number,
                *stored.get(number, ()),
                ring_changes=self._ring_changes,
                is_durable_only=self._durable_only,
            )
            for number in self._driver.begin(self._partitions, stored)
        }
        self._begun.set()

    # -- what nodes say

    def place(self, partition_id: int) -> tuple[Position, FailoverLog]:
        """Return from where to request a stream."""
        return self._bookkeepers[partition_id].start_again()

    def on_lost(self, why: str) -> None:
        """A connection was lost; nothing is to be done."""

    async def handle(self, session: Session, events: Sequence[Event]) -> None:
        """Turn events into effects, one write for all where no question comes between."""
        effects: list[Effect] = []
        for event in events:
            match event:
                case ChangesReceived(number, position, frames):
                    effects += self._bookkeepers[number].on_changes(frames, position)
                case SnapshotCompleted(number, position):
                    effects += self._bookkeepers[number].on_moved(position)
                case RollbackRequired(number, seqno):
                    await self._go_back(session, number, seqno)
                case StreamOpened(number, position, log):
                    self._streams.take(session, event)
                    effects += self._bookkeepers[number].on_opened(position, log)
                    effects = await self._fetch(session, number, effects)
                case BarrierReached():
                    await self._write(effects)
                    effects = []
                    self._streams.take(session, event)
                case _:
                    self._streams.take(session, event)
        await self._write(effects)
        self._send_cookies(session)
        self._end_barriers()

    async def _fetch(self, session: Session, number: int, effects: list[Effect]) -> list[Effect]:
        """Ask what the bookkeeper has to know now; return the effects not written yet."""
        bookkeeper = self._bookkeepers[number]
        while (question := bookkeeper.question) is not None:
            await self._write(effects)
            frames = encode_question(question, number, has_extensions=session.has_extensions)
            with losing():
                async with session.asking() as link:
                    replies = await link.ask_all(frames)
                answer = decode_answer(question, replies, address=link.address)
            effects = bookkeeper.on_answer(answer)
        return effects

    async def _go_back(self, session: Session, number: int, seqno: int) -> None:
        """Go back to `seqno` or below.

        A reader of durable changes goes back to 0 where deletions were forgotten, else nowhere.

        Raises:
            StreamError: `durable_lost`.
        """
        if self._durable_only:
            judgement = await self._judge(session, number)
            if judgement is Judgement.LOST:
                raise StreamError(
                    f"partition {number} of bucket {self._bucket!r} at {session.streams.address} "
                    f"lacks changes that were durable: more copies were lost than the level "
                    f"allows; start again with another sink",
                    code="durable_lost",
                )
            if judgement is not Judgement.PURGED:
                self._streams.give_up(session, number)
                return
            seqno = 0
        session.core.undone_to(number, self._bookkeepers[number].on_rollback(seqno))

    async def _judge(self, session: Session, number: int) -> Judgement:
        """Ask the node for its history, to know why it wants a reader of durable changes back."""
        with losing():
            async with session.asking() as link:
                replies = await link.ask_all(encode_history_question(number))
            history = decode_history(replies, address=link.address)
        return judge(self._bookkeepers[number].kept, *history)

    async def _write(self, effects: Sequence[Effect]) -> None:
        """Pass effects to the sink. A cancelled caller still waits until this has ended."""
        if not effects:
            return
        async with self._writing:
            writing = asyncio.get_running_loop().run_in_executor(None, self._sink.write, effects)
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await asyncio.wait((writing,))
                raise
        if self._queue is not None:
            await self._slots.acquire()
            self._queue.put_nowait(effects)
