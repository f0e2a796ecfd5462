"""Follow a bucket, wherever its partitions are, into a sink that can be undone.

    reader = BucketReader("127.0.0.1:11210", bucket="orders", sink=SqliteSink("orders.db"))
    await reader.run()                       # or: async for effects in reader: ...

Invariants:
1. A bookkeeper's effects reach the sink in order and before anything later is asked of it; what a
   stream says is not handled while the bookkeeper has a question.
2. Every stream that ends is asked for again, unless it reached its end: at the node that a fresh
   map names, with growing pauses until a stream is open. So is one that a node refuses for now.
3. A slow sink slows the source down: a connection is read on when its effects are durable, and at
   most `WRITTEN_MAX` writes wait for whoever iterates.
4. A bucket that was re-created, lost rights, a broken protocol and a sink that fails are errors.

Elsewhere: the order of effects (`upr.core.bookkeeper`), connections (`upr.aio.link`), a reader
without a state of its own (`upr.aio.client`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from struct import Struct
from typing import Final

from millstream.access.kv_login import Login
from millstream.errors import RoutingError, StreamError, UnavailableError, UsageError
from millstream.model.addresses import parse_address
from millstream.runtime.tasks import Tasks
from millstream.upr.aio.link import TIMEOUT_S, Link
from millstream.upr.aio.sinks import Sink
from millstream.upr.core.bookkeeper import Answer, Bookkeeper, Effect, Question
from millstream.upr.core.consumer import (
    WINDOW_BYTES,
    ChangesReceived,
    ConsumerCore,
    Event,
    RollbackRequired,
    SnapshotCompleted,
    StreamEnded,
    StreamOpened,
    StreamRefused,
)
from millstream.upr.core.fetching import decode_answer, encode_question
from millstream.upr.core.follower import StreamOptions
from millstream.upr.core.ring import RING_CHANGES_DEFAULT, RING_CHANGES_MAX
from millstream.wire.cluster_map import ClusterMap, NodeAddress, cluster_map_from
from millstream.wire.mcbp import Feature, Opcode, Status, StreamEndReason, StreamFlag, request
from millstream.wire.replies import error_of_status

__all__ = ["BucketReader"]

_LOG = logging.getLogger(__name__)
PORT_DEFAULT: Final = 11210
PAUSE_S_MIN: Final = 0.05
PAUSE_S_MAX: Final = 5.0
WRITTEN_MAX: Final = 16
"""Writes that whoever iterates has not looked at; then the readers wait."""
_SEQNO: Final = Struct(">HQ")


class _LostError(Exception):
    """A connection is of no further use; its partitions are asked for again."""


@contextlib.contextmanager
def _losing() -> Iterator[None]:
    """Tell a node's failures from those of the sink."""
    try:
        yield
    except (UnavailableError, RoutingError) as error:
        raise _LostError from error


class _Session:
    """Two connections to one node: streams, and documents to go back to."""

    def __init__(self, streams: Link, documents: Link, window_bytes: int) -> None:
        self.streams, self.documents = streams, documents
        self.partitions: set[int] = set()
        self.asking = asyncio.Lock()
        self.has_extensions = False
        self.core = ConsumerCore()
        self._window_bytes = window_bytes

    async def open(self) -> None:
        try:
            self.has_extensions = Feature.MILLSTREAM in await self.streams.open()
            await self.documents.open()
        except BaseException:
            await self.close()
            raise
        self.core = ConsumerCore(
            window_bytes=self._window_bytes, has_extensions=self.has_extensions
        )
        self.core.start(f"millstream-reader-{secrets.token_hex(8)}".encode())

    async def close(self) -> None:
        await self.streams.close()
        await self.documents.close()

    async def ask(self, partition_id: int, question: Question) -> Answer:
        frames = encode_question(question, partition_id, has_extensions=self.has_extensions)
        async with self.asking:
            replies = await self.documents.ask_all(frames)
        return decode_answer(question, replies, address=self.documents.address)

    async def high_seqnos(self) -> dict[int, int]:
        async with self.asking:
            packet = await self.documents.demand(request(Opcode.GET_ALL_VB_SEQNOS), "seqnos")
        return dict(_SEQNO.iter_unpack(packet.value))


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
        tls: ssl.SSLContext | None = None,
        ring_changes: int = RING_CHANGES_DEFAULT,
        window_bytes: int = WINDOW_BYTES,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if not 1 <= ring_changes <= RING_CHANGES_MAX:
            message = f"a ring has 1 to {RING_CHANGES_MAX} changes, not {ring_changes}"
            raise UsageError(message, code="bad_ring")
        self._seed = NodeAddress(*parse_address(address, default_port=PORT_DEFAULT))
        self._bucket, self._sink = bucket, sink
        self._user, self._password, self._tls = user, password, tls
        self._partitions = partitions
        flags = StreamFlag.ACTIVE_ONLY | (StreamFlag.TO_LATEST if until_now else 0)
        self._options = StreamOptions(flags=flags)
        self._ring_changes = ring_changes
        self._window_bytes, self._timeout_s = window_bytes, timeout_s
        self._bookkeepers: dict[int, Bookkeeper] = {}
        self._unfinished: set[int] = set()
        self._homeless: set[int] = set()
        self._sessions: dict[NodeAddress, _Session] = {}
        self._map: ClusterMap | None = None
        self._news = asyncio.Event()
        self._writing = asyncio.Lock()
        self._queue: asyncio.Queue[Sequence[Effect] | None] | None = None
        self._slots = asyncio.Semaphore(WRITTEN_MAX)
        self._pause_s = PAUSE_S_MIN

    async def run(self) -> None:
        """Follow until cancelled, or until all was read that was to be read.

        Raises:
            UnavailableError: no node answers at the start, or the sink cannot write.
            AccessError: bad credentials, or a right is lacking or was lost.
            StreamError: `bucket_recreated`.
            RemoteProtocolError: a node broke the protocol.
        """
        await self._begin()
        try:
            async with asyncio.TaskGroup() as group:
                await self._find_homes(group)
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

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

    async def lag(self) -> dict[int, int]:
        """Return how many seqnos each followed partition is behind its node at present.

        Partitions that are being looked for are missing.
        """
        found: dict[int, int] = {}
        for session in list(self._sessions.values()):
            with contextlib.suppress(UnavailableError, RoutingError):
                highs = await session.high_seqnos()
                for number in session.partitions:
                    reached = self._bookkeepers[number].kept.position.seqno
                    found[number] = max(highs.get(number, 0) - reached, 0)
        return found

    # -- where partitions are --------------------------------------------------------------

    async def _begin(self) -> None:
        """Learn the map, claim the sink, and take up what it holds."""
        map_ = self._map = await self._fetch_map()
        await asyncio.to_thread(self._sink.claim, self._bucket, map_.bucket_uuid)
        stored = await asyncio.to_thread(self._sink.load)
        wanted = range(map_.partition_count) if self._partitions is None else self._partitions
        unknown = [n for n in (*wanted, *stored) if not 0 <= n < map_.partition_count]
        if unknown:
            raise UsageError(
                f"bucket {self._bucket!r} has partitions 0 to {map_.partition_count - 1}, not "
                f"{unknown[0]}",
                code="unknown_partition",
            )
        self._bookkeepers = {
            number: Bookkeeper(number, *stored.get(number, ()), ring_changes=self._ring_changes)
            for number in wanted
        }
        self._unfinished = set(wanted)
        self._homeless = set(wanted)

    async def _find_homes(self, group: asyncio.TaskGroup) -> None:
        """Ask for streams until all came to their end."""
        is_fresh = True
        while self._unfinished:
            if not self._homeless:
                self._news.clear()
                await self._news.wait()
                continue
            with contextlib.suppress(UnavailableError):
                if not is_fresh:
                    await self._refresh_map()
                is_fresh = False
                await self._settle(group)
            if self._homeless:
                await asyncio.sleep(self._pause_s)
                self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)

    async def _settle(self, group: asyncio.TaskGroup) -> None:
        """Ask for the streams of homeless partitions, at the nodes that the map names."""
        map_ = self._map
        assert map_ is not None
        by_node: dict[NodeAddress, list[int]] = {}
        for number in sorted(self._homeless):
            owner = map_.owners[number]
            if owner >= 0:
                # A map of one node: the address given is the way that is known to work.
                node = map_.nodes[owner] if len(map_.nodes) > 1 else self._seed
                by_node.setdefault(node, []).append(number)
        for node, numbers in by_node.items():
            with contextlib.suppress(UnavailableError):
                await self._ask_at(node, numbers, group)

    async def _ask_at(
        self, node: NodeAddress, numbers: Iterable[int], group: asyncio.TaskGroup
    ) -> None:
        session = self._sessions.get(node)
        if session is None:
            session = _Session(self._link(node), self._link(node), self._window_bytes)
            await session.open()
            self._sessions[node] = session
            group.create_task(self._read(node, session))
        for number in numbers:
            self._homeless.discard(number)
            session.partitions.add(number)
            place = self._bookkeepers[number].start_again()
            session.core.follow(number, *place, self._options)
        await session.streams.write(session.core.take_bytes())

    def _link(self, node: NodeAddress) -> Link:
        address = f"{node.host}:{node.port}"
        login = Login(
            address, self._user, self._password or "", self._bucket, self._tls is not None
        )
        return Link(login, *node, tls=self._tls, timeout_s=self._timeout_s)

    async def _fetch_map(self) -> ClusterMap:
        """Ask the nodes known, one after the other; the last one's failure is raised."""
        known = () if self._map is None else self._map.nodes
        for node in dict.fromkeys((*self._sessions, *known, self._seed)):
            link = self._link(node)
            try:
                await link.open()
                packet = await link.demand(request(Opcode.GET_CLUSTER_CONFIG), "the partition map")
                return cluster_map_from(packet.value, host=node.host, port=node.port)
            except UnavailableError:
                if node == self._seed:
                    raise
            finally:
                await link.close()
        raise AssertionError("the seed is asked last")

    async def _refresh_map(self) -> None:
        map_, old = await self._fetch_map(), self._map
        assert old is not None
        if map_.bucket_uuid != old.bucket_uuid:
            raise StreamError(
                f"bucket {self._bucket!r} was deleted and created again: what was read of the old "
                "one is void; begin anew with another sink",
                code="bucket_recreated",
            )
        if map_.version >= old.version:
            self._map = map_

    # -- what nodes say --------------------------------------------------------------------

    async def _read(self, node: NodeAddress, session: _Session) -> None:
        """Handle one session until it is lost or has no partitions left."""
        try:
            while session.partitions:
                with _losing():
                    await session.streams.write(session.core.take_bytes())
                    data = await session.streams.read()
                await self._handle(session, session.core.receive_data(data))
        except _LostError as error:
            _LOG.info("%s; its partitions are asked for again", error.__cause__)
        finally:
            if self._sessions.get(node) is session:
                del self._sessions[node]
            self._homeless |= session.partitions & self._unfinished
            session.partitions.clear()
            self._news.set()
            await session.close()

    async def _handle(self, session: _Session, events: Sequence[Event]) -> None:
        """Turn events into effects, one write for all where no question comes between."""
        effects: list[Effect] = []
        for event in events:
            match event:
                case ChangesReceived(number, position, frames):
                    effects += self._bookkeepers[number].on_changes(frames, position)
                case SnapshotCompleted(number, position):
                    effects += self._bookkeepers[number].on_moved(position)
                case RollbackRequired(number, seqno):
                    point = self._bookkeepers[number].on_rollback(seqno)
                    session.core.undone_to(number, point)
                case StreamOpened(number, position, log):
                    self._pause_s = PAUSE_S_MIN
                    bookkeeper = self._bookkeepers[number]
                    effects += bookkeeper.on_opened(position, log)
                    while (question := bookkeeper.question) is not None:
                        await self._write(effects)
                        with _losing():
                            answer = await session.ask(number, question)
                        effects = bookkeeper.on_answer(answer)
                case StreamEnded(number, _, reason):
                    self._on_ended(session, number, reason)
                case StreamRefused(number, status):
                    self._on_refused(session, number, status)
        await self._write(effects)

    def _on_ended(self, session: _Session, number: int, reason: int) -> None:
        if reason == StreamEndReason.LOST_PRIVILEGES:
            self._on_refused(session, number, Status.EACCESS)
        session.partitions.discard(number)
        if reason == StreamEndReason.OK:
            self._unfinished.discard(number)
        else:
            self._homeless.add(number)
        self._news.set()

    def _on_refused(self, session: _Session, number: int, status: int) -> None:
        what = f"stream of partition {number} of bucket {self._bucket!r}"
        error = error_of_status(status, address=session.streams.address, what=what)
        if not isinstance(error, UnavailableError | RoutingError):
            raise error
        session.partitions.discard(number)
        self._homeless.add(number)
        self._news.set()

    async def _write(self, effects: Sequence[Effect]) -> None:
        """Hand effects to the sink; whoever is cancelled meanwhile waits for the end of it."""
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
