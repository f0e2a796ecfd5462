"""Connects to the nodes of a bucket and reads the streams that a driver decides on.

    streams = BucketStreams(access, driver, reader)
    await streams.fetch_map()
    driver.begin(partitions)
    await streams.run()

Invariants:
1. Every event of a connection is given to the reader in order. The connection is read on, and
   bytes are acknowledged, only when the reader has handled what came before.
2. A lost connection costs its own partitions only: they are requested again.
3. An error of the reader, a lost right and a broken protocol end `run`.

Elsewhere: what is requested where and when (`upr.core.driver`), what is kept
(`upr.aio.client`, `upr.aio.following`), one connection (`upr.aio.link`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from millstream.access.kv_login import Login
from millstream.errors import RoutingError, UnavailableError
from millstream.model.position import FailoverLog, Position
from millstream.upr.aio.link import Link
from millstream.upr.core.consumer import Event
from millstream.upr.core.driver import Source, StreamDriver
from millstream.wire.cluster_map import NodeAddress
from millstream.wire.mcbp import Feature

__all__ = ["PORT_DEFAULT", "Access", "BucketStreams", "LostError", "Session", "losing"]

_LOG = logging.getLogger(__name__)
PORT_DEFAULT: Final = 11210
NEWER_MAP_S: Final = 1.0
"""Longest wait for each further node, once one has answered that has no newer map."""


class LostError(Exception):
    """A connection is of no further use; its partitions are requested again."""


@contextlib.contextmanager
def losing() -> Iterator[None]:
    """Turn a node's failures into `LostError`, to tell them from those of a reader."""
    try:
        yield
    except (UnavailableError, RoutingError) as error:
        raise LostError from error


class Access(NamedTuple):
    """How nodes are logged in to; `timeout_s` bounds a connection and each answer, in seconds."""

    bucket: str
    user: str | None
    password: str | None
    tls: ssl.SSLContext | None
    timeout_s: float

    def link(self, node: NodeAddress) -> Link:
        """Return a connection that is not open yet."""
        login = Login(
            f"{node.host}:{node.port}", self.user, self.password or "", self.bucket,
            self.tls is not None,
        )  # fmt: skip
        return Link(login, *node, tls=self.tls, timeout_s=self.timeout_s)


class Session:
    """Connections to one node: one for streams, and one for questions once there are any."""

    def __init__(self, access: Access, source: Source, streams: Link, features: frozenset[int]):
        self.source, self.streams = source, streams
        self.core = source.core
        self.has_extensions = Feature.MILLSTREAM in features
        self._questions = access.link(source.node)
        self._is_open = False
        self._asking = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[Link]:
        """Connect for questions beside the streams; one caller asks at a time.

        Raises:
            UnavailableError: `unreachable`, `timeout`, `connection_closed`.
        """
        async with self._asking:
            if not self._is_open:
                await self._questions.open()
                self._is_open = True
            yield self._questions

    async def close(self) -> None:
        """Close the connections."""
        await self.streams.close()
        await self._questions.close()


class Reader(Protocol):
    """Who reads: keeps positions, and handles events."""

    def place(self, partition_id: int) -> tuple[Position, FailoverLog]:
        """Return from where to request a stream; what was under way is void."""

    async def handle(self, session: Session, events: Sequence[Event]) -> None:
        """Handle what came over a connection.

        Raises:
            LostError: the connection is of no further use.
        """

    def on_lost(self, why: str) -> None:
        """A connection was lost; its partitions are requested again."""


class BucketStreams:
    """The connections of one reader.

    Args:
        access: how to log in.
        driver: decides.
        reader: handles events.
        name: first part of the names of connections.
    """

    def __init__(self, access: Access, driver: StreamDriver, reader: Reader, name: str) -> None:
        self.sessions: dict[NodeAddress, Session] = {}
        self._access, self._driver, self._reader, self._name = access, driver, reader, name
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Read until all streams came to their end.

        Raises:
            MillstreamError: what no further request mends.
        """
        try:
            async with asyncio.TaskGroup() as group:
                await self._request_all(group)
        except BaseExceptionGroup as failed:  # its first error says it all
            raise failed.exceptions[0] from None

    async def fetch_map(self) -> None:
        """Ask the nodes known for the map, one after the other, until one has a newer one.

        A node that has none newer may be behind itself, so the next one is asked.

        Raises:
            UnavailableError: none answers; why the last one does not.
            StreamError: `bucket_recreated`.
        """
        failure: UnavailableError | None = None
        has_answer = False
        for node in self._driver.nodes_to_ask():
            try:
                async with asyncio.timeout(NEWER_MAP_S if has_answer else None):
                    async with self.connected(node) as link:
                        map_ = await link.cluster_map()
            except UnavailableError as error:
                failure = error
                continue
            except TimeoutError:
                continue
            has_answer = True
            if self._driver.take_map(map_):
                return
        if not has_answer and failure is not None:
            raise failure

    @contextlib.asynccontextmanager
    async def connected(self, node: NodeAddress) -> AsyncIterator[Link]:
        """Connect to a node for some questions."""
        link = self._access.link(node)
        try:
            await link.open()
            yield link
        finally:
            await link.close()

    def take(self, session: Session, event: Event) -> str:
        """Give an event to the driver; see `StreamDriver.on_event`."""
        why = self._driver.on_event(session.source, event)
        if why or not self._driver.unfinished:
            self._news.set()
        return why

    def give_up(self, session: Session, partition_id: int) -> None:
        """Look for a partition elsewhere; see `StreamDriver.give_up`."""
        self._driver.give_up(session.source, partition_id)
        self._news.set()

    async def send(self) -> None:
        """Send what cores have for their nodes; nothing is acknowledged."""
        for session in list(self.sessions.values()):
            with contextlib.suppress(UnavailableError):
                await session.streams.write(session.core.take_bytes(is_handled=False))

    async def _request_all(self, group: asyncio.TaskGroup) -> None:
        driver, is_fresh = self._driver, True
        while driver.unfinished:
            self._news.clear()
            if not driver.homeless:
                await self._news.wait()
                continue
            with contextlib.suppress(UnavailableError):
                if not is_fresh:
                    await self.fetch_map()
                is_fresh = False
                for node, numbers in driver.by_node(driver.homeless).items():
                    with contextlib.suppress(UnavailableError):
                        await self._request_at(node, numbers, group)
            await self._pause(driver.next_pause_s())

    async def _pause(self, pause_s: float) -> None:
        """Wait, but not once all has been read."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                while self._driver.unfinished:
                    self._news.clear()
                    await self._news.wait()

    async def _request_at(
        self, node: NodeAddress, numbers: Sequence[int], group: asyncio.TaskGroup
    ) -> None:
        session = self.sessions.get(node)
        if session is None:
            session = await self._open(node)
            group.create_task(self._read(session), name=f"read {node.host}:{node.port}")
        for number in numbers:
            self._driver.request(session.source, number, *self._reader.place(number))
        await session.streams.write(session.core.take_bytes(is_handled=False))

    async def _open(self, node: NodeAddress) -> Session:
        link = self._access.link(node)
        try:
            features = await link.open()
            self._driver.take_map(await link.cluster_map())  # it must be the same bucket
            name = f"{self._name}-{secrets.token_hex(8)}".encode()
            has_extensions = Feature.MILLSTREAM in features
            source = self._driver.open(node, name, has_extensions=has_extensions)
        except BaseException:  # also when cancelled: the connection is closed
            await link.close()
            raise
        session = self.sessions[node] = Session(self._access, source, link, features)
        return session

    async def _read(self, session: Session) -> None:
        """Read one connection until it is lost or has no streams left."""
        source, link, core = session.source, session.streams, session.core
        try:
            while source.partitions:
                with losing():
                    await link.write(core.take_bytes())
                    data = await link.read()
                events = core.receive_data(data)
                if events:
                    await self._reader.handle(session, events)
        except LostError as error:
            why = str(error.__cause__)
            _LOG.info("%s; its partitions are requested again", why)
            self._reader.on_lost(why)
        finally:
            if self.sessions.get(source.node) is session:
                del self.sessions[source.node]
            self._driver.lose(source)
            self._news.set()
            await session.close()
