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
5. With `durable_only` nothing is ever undone, and nothing read from a source that was superseded
   (`upr.core.durable`).
6. A barrier is over when what came before its cookies is durable in the sink.

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
from millstream.errors import (
    LocalProtocolError,
    MillstreamError,
    RoutingError,
    StreamError,
    UnavailableError,
    UsageError,
)
from millstream.model.addresses import parse_address
from millstream.runtime.tasks import Tasks
from millstream.upr.aio.link import TIMEOUT_S, Link
from millstream.upr.aio.sinks import Sink
from millstream.upr.core.awaited import Awaited
from millstream.upr.core.bookkeeper import Answer, Bookkeeper, Effect, Question
from millstream.upr.core.consumer import (
    WINDOW_BYTES,
    BarrierReached,
    ChangesReceived,
    ConsumerCore,
    Event,
    RollbackRequired,
    SnapshotCompleted,
    StreamEnded,
    StreamOpened,
    StreamRefused,
)
from millstream.upr.core.durable import (
    Judgement,
    decode_history,
    encode_history_question,
    judge,
)
from millstream.upr.core.fetching import decode_answer, encode_question
from millstream.upr.core.follower import StreamOptions
from millstream.upr.core.kept import Kept
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

    def __init__(
        self, streams: Link, documents: Link, *, window_bytes: int, durable_only: bool
    ) -> None:
        self.streams, self.documents = streams, documents
        self.partitions: set[int] = set()
        self.opened: set[int] = set()
        self.asking = asyncio.Lock()
        self.has_extensions = False
        self.core = ConsumerCore()
        self._window_bytes, self._durable_only = window_bytes, durable_only

    async def open(self) -> None:
        try:
            self.has_extensions = Feature.MILLSTREAM in await self.streams.open()
            await self.documents.open()
            self.core = ConsumerCore(
                window_bytes=self._window_bytes,
                has_extensions=self.has_extensions,
                durable_only=self._durable_only,
            )
            self.core.start(f"millstream-reader-{secrets.token_hex(8)}".encode())
        except BaseException:  # also when cancelled: connections are closed
            await self.close()
            raise

    async def close(self) -> None:
        await self.streams.close()
        await self.documents.close()

    async def ask(self, partition_id: int, question: Question) -> Answer:
        frames = encode_question(question, partition_id, has_extensions=self.has_extensions)
        async with self.asking:
            replies = await self.documents.ask_all(frames)
        return decode_answer(question, replies, address=self.documents.address)

    async def judge(self, partition_id: int, kept: Kept) -> Judgement:
        async with self.asking:
            replies = await self.documents.ask_all(encode_history_question(partition_id))
        return judge(kept, *decode_history(replies, address=self.documents.address))

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
        self._seed = NodeAddress(*parse_address(address, default_port=PORT_DEFAULT))
        self._bucket, self._sink = bucket, sink
        self._user, self._password, self._tls = user, password, tls
        self._partitions = partitions
        flags = StreamFlag.ACTIVE_ONLY | (StreamFlag.TO_LATEST if until_now else 0)
        self._options = StreamOptions(flags=flags)
        self._durable_only = durable_only
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
        self._begun, self._finished = asyncio.Event(), asyncio.Event()
        self._awaited = Awaited()
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
            async with asyncio.TaskGroup() as group:
                await self._find_homes(group)
        except BaseExceptionGroup as failed:  # its first error says it all
            raise failed.exceptions[0] from None
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
        self._barriers[self._awaited.add(self._unfinished)] = done
        for session in list(self._sessions.values()):
            self._send_cookies(session)
            with contextlib.suppress(UnavailableError):
                await session.streams.write(session.core.take_bytes())
        self._end_barriers()
        await done

    def _send_cookies(self, session: _Session) -> None:
        """Have a node say when it has sent what barriers wait for."""
        try:
            while (cookie := self._awaited.cookie_for(session, session.opened)) is not None:
                session.core.ask_barrier(cookie)
        except LocalProtocolError as error:
            self._give_up_barriers(error)

    def _end_barriers(self) -> None:
        for number in self._awaited.take_done():
            done = self._barriers.pop(number)
            if not done.done():
                done.set_result(None)

    def _give_up_barriers(self, error: MillstreamError) -> None:
        self._end_barriers()
        for done in self._barriers.values():
            if not done.done():
                done.set_exception(error)
        self._barriers.clear()
        self._awaited = Awaited()

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
            number: Bookkeeper(
                number,
                *stored.get(number, ()),
                ring_changes=self._ring_changes,
                is_durable_only=self._durable_only,
            )
            for number in wanted
        }
        self._unfinished = set(wanted)
        self._homeless = set(wanted)
        self._finished.clear()
        self._begun.set()

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
            pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, PAUSE_S_MAX)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._finished.wait(), pause_s)

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
            session = _Session(
                self._link(node),
                self._link(node),
                window_bytes=self._window_bytes,
                durable_only=self._durable_only,
            )
            await session.open()
            self._sessions[node] = session
            group.create_task(self._read(node, session))
        for number in numbers:
            self._homeless.discard(number)
            session.partitions.add(number)
            position, log = self._bookkeepers[number].start_again()
            branch_min = log[0].branch if self._durable_only and log else 0
            options = self._options._replace(branch_min=branch_min)
            session.core.follow(number, position, log, options)
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
        nodes = list(dict.fromkeys((*self._sessions, *known, self._seed)))
        for node in nodes:
            link = self._link(node)
            try:
                await link.open()
                packet = await link.demand(request(Opcode.GET_CLUSTER_CONFIG), "the partition map")
                return cluster_map_from(packet.value, host=node.host, port=node.port)
            except UnavailableError:
                if node == nodes[-1]:
                    raise
            finally:
                await link.close()
        raise AssertionError("the last node that was asked has answered or raised")

    async def _refresh_map(self) -> None:
        map_, old = await self._fetch_map(), self._map
        assert old is not None
        if map_.bucket_uuid != old.bucket_uuid:
            raise StreamError(
                f"bucket {self._bucket!r} was deleted and created again: changes read from the "
                f"old one are invalid; start again with another sink",
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
            _LOG.info("%s; its partitions are requested again", error.__cause__)
        finally:
            if self._sessions.get(node) is session:
                del self._sessions[node]
            self._homeless |= session.partitions & self._unfinished
            session.partitions.clear()
            self._awaited.on_lost(session)
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
                    if self._durable_only:
                        seqno = 0
                        if not await self._may_load_anew(session, number):
                            session.core.give_up(number)
                            self._leave(session, number)
                            continue
                    point = self._bookkeepers[number].on_rollback(seqno)
                    session.core.undone_to(number, point)
                case StreamOpened(number, position, log):
                    bookkeeper = self._bookkeepers[number]
                    self._pause_s = PAUSE_S_MIN
                    session.opened.add(number)
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
                case BarrierReached(cookie, reached):
                    await self._write(effects)
                    effects = []
                    self._awaited.on_reached(cookie, reached)
        await self._write(effects)
        self._send_cookies(session)
        self._end_barriers()

    async def _may_load_anew(self, session: _Session, number: int) -> bool:
        """Whether a reader of durable changes, told to go back, begins anew there; else elsewhere.

        Raises:
            StreamError: `durable_lost`.
        """
        with _losing():
            judgement = await session.judge(number, self._bookkeepers[number].kept)
        if judgement is Judgement.LOST:
            raise StreamError(
                f"partition {number} of bucket {self._bucket!r} at {session.streams.address} "
                f"lacks changes that were durable: more copies were lost than the level allows; "
                f"start again with another sink",
                code="durable_lost",
            )
        return judgement is Judgement.PURGED

    def _leave(self, session: _Session, number: int) -> None:
        """Ask for a partition again, after a pause, where a fresh map says that it is."""
        session.partitions.discard(number)
        session.opened.discard(number)
        self._homeless.add(number)
        self._news.set()

    def _on_ended(self, session: _Session, number: int, reason: int) -> None:
        if reason == StreamEndReason.LOST_PRIVILEGES:
            self._on_refused(session, number, Status.EACCESS)
        self._leave(session, number)
        if reason == StreamEndReason.OK:
            self._unfinished.discard(number)
            self._homeless.discard(number)
            self._awaited.on_end(number)
            if not self._unfinished:
                self._finished.set()

    def _on_refused(self, session: _Session, number: int, status: int) -> None:
        what = f"stream of partition {number} of bucket {self._bucket!r}"
        error = error_of_status(status, address=session.streams.address, what=what)
        if not isinstance(error, UnavailableError | RoutingError):
            raise error
        self._leave(session, number)

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
