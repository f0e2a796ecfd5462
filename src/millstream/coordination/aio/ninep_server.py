"""The port of the file service: sockets around connections, and an API client per attach.

    server = NinepServer("127.0.0.1:7379", guard)
    await loop.create_server(server.connection, host, port)

Invariants:
1. Every attach has its own session, which ends when the attach is no longer used, and at once when
   the connection closes. A session that the group has ended closes the connection.
2. Requests go to the primary, wherever it is. A change is repeated under its number for
   `DEADLINE_S`.
3. A client that does not read is not read from.
4. Where there are users, a client that has not attached after `LOGIN_S_MAX` is cut off. The oldest
   of these clients is cut off when there is no place for a new one.
5. After `close` no connection is open, and the sessions have ended if their groups could be
   reached.

Elsewhere: messages (`core.ninep.connection`), the API (`aio.client`).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final, cast

from millstream.coordination.aio.client.group_client import Client
from millstream.coordination.core.backend import Guard
from millstream.coordination.core.ninep.connection import (
    Begin,
    Close,
    Connection,
    Effect,
    End,
    Enquire,
    Send,
    Wait,
)
from millstream.coordination.core.ninep.fids import Ask, Failed
from millstream.coordination.core.ninep.packets import MSIZE_MAX
from millstream.errors import MillstreamError, OutcomeUnknownError
from millstream.runtime.tasks import Tasks

__all__ = ["CONNECTIONS_MAX", "DEADLINE_S", "LOGIN_S_MAX", "NinepServer"]

_LOG = logging.getLogger(__name__)
CONNECTIONS_MAX: Final = 128
"""Most connections of one node. Further ones are closed."""
DEADLINE_S: Final = 10.0
"""How long a request is tried; then it has timed out."""
LOGIN_S_MAX: Final = 10.0
"""How long a client may be connected without an attach, where there are users."""


class NinepServer:
    """All connections of a node's clients of the file service.

    Args:
        address: `host:port` of this node for clients of the groups.
        guard: whether there are users.
        tls: how to check nodes, if they speak TLS.
    """

    def __init__(self, address: str, guard: Guard, tls: ssl.SSLContext | None = None) -> None:
        self._address, self._guard, self._tls = address, guard, tls
        self._connections: dict[_Connection, None] = {}
        self.tasks = Tasks()
        self._is_closed = False
        self.connections_total = 0

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    def connection(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        self.connections_total += 1
        return _Connection(self, Connection(lambda: self._guard.asks))

    async def close(self) -> None:
        """Close all connections, and end their sessions."""
        self._is_closed = True
        for connection in list(self._connections):
            connection.end()
        await self.tasks.finish()

    # ---- for connections

    def enter(self, connection: _Connection) -> bool:
        """Take a connection in, if there is room."""
        if len(self._connections) >= CONNECTIONS_MAX and self.asks_login:
            stranger = next((one for one in self._connections if one.is_stranger), None)
            if stranger is not None:
                self.leave(stranger)
                stranger.cut()
        if self._is_closed or len(self._connections) >= CONNECTIONS_MAX:
            return False
        self._connections[connection] = None
        return True

    def begin(self, login: Begin, on_lost: Callable[[], None]) -> Client:
        """Return a client of the API for an attach."""
        return Client(
            [self._address], user=login.user, password=login.password, deadline_s=DEADLINE_S,
            tls=self._tls, on_session_lost=on_lost,
        )  # fmt: skip

    @property
    def asks_login(self) -> bool:
        """Whether there are users."""
        return self._guard.asks

    def leave(self, connection: _Connection) -> None:
        """A connection is gone."""
        self._connections.pop(connection, None)


class _Connection(asyncio.Protocol):
    """One socket."""

    def __init__(self, server: NinepServer, core: Connection) -> None:
        self._server, self._core = server, core
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._is_reading = True
        self._attaches: dict[int, _Attach] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._login: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new connection."""
        self._transport = cast("asyncio.Transport", transport)
        if not self._server.enter(self):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=MSIZE_MAX)
        if self._server.asks_login:
            self._login = self._loop.call_later(LOGIN_S_MAX, self._look_for_login)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, or we closed: so are its sessions."""
        self._transport = None
        self._server.leave(self)
        if self._login is not None:
            self._login.cancel()
        for timer in self._timers.values():
            timer.cancel()
        for attach in list(self._attaches):
            self._end(attach)

    def data_received(self, data: bytes) -> None:
        """Do what came."""
        self._core.feed(data)
        self._go_on()

    def pause_writing(self) -> None:
        """The client does not read."""
        self._is_paused = True
        self._read()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._is_paused = False
        self._go_on()

    def cut(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_stranger(self) -> bool:
        """Whether the connection has attached no file system."""
        return not any(attach.has_asked for attach in self._attaches.values())

    def end(self) -> None:
        """Close at once, and end its sessions while the node still takes requests."""
        self.cut()
        self.connection_lost(None)

    def _look_for_login(self) -> None:
        self._login = None
        if self.is_stranger:
            self.cut()

    def _go_on(self) -> None:
        while self._transport is not None and not self._is_paused:
            self._core.advance()
            effects = self._core.take_effects()
            if not effects:
                break
            self._do(effects)
        self._read()

    def _read(self) -> None:
        is_wanted = not (self._is_paused or self._core.is_clogged)
        transport = self._transport
        if transport is None or transport.is_closing() or is_wanted == self._is_reading:
            return
        self._is_reading = is_wanted
        (transport.resume_reading if is_wanted else transport.pause_reading)()

    def _do(self, effects: list[Effect]) -> None:
        out: list[bytes] = []
        for effect in effects:
            match effect:
                case Send(data):
                    out.append(data)
                case Enquire(ticket, asks):
                    self._server.tasks.start(self._enquire(ticket, asks), name="9P request")
                case Begin(attach):
                    self._attaches[attach] = _Attach(self._server.begin(effect, self.cut))
                case End(attach):
                    self._end(attach)
                case Wait(ticket, ms):
                    self._timers[ticket] = self._loop.call_later(ms / 1000, self._waited, ticket)
                case Close(reason):
                    _LOG.info("closed a client of the file service: %s", reason)
                    if out and self._transport is not None:
                        self._transport.write(b"".join(out))
                        out.clear()
                    self.cut()
        if out and self._transport is not None:
            self._transport.write(b"".join(out))

    async def _enquire(self, ticket: int, asks: list[Ask]) -> None:
        replies = await asyncio.gather(*(self._ask(one) for one in asks))
        if self._transport is not None:
            self._core.answered(ticket, list(replies))
            self._do(self._core.take_effects())
            self._go_on()

    async def _ask(self, one: Ask) -> Any:
        attach = self._attaches.get(one.attach)
        if attach is None:
            return Failed("SESSIONEXPIRED")
        return await attach.ask(one)

    def _waited(self, ticket: int) -> None:
        self._timers.pop(ticket, None)
        self._core.paused(ticket)
        self._do(self._core.take_effects())
        self._go_on()

    def _end(self, attach: int) -> None:
        self._server.tasks.start(self._attaches.pop(attach).close(), name="end of an attach")


class _Attach:
    """The session of one attach."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stack = AsyncExitStack()
        self._is_entered = self._is_closed = False
        self.has_asked = False
        """Whether anything was answered: then it is logged in."""

    async def ask(self, one: Ask) -> Any:
        """Run a command. Return its reply, or `Failed`."""
        if not self._is_entered:
            self._is_entered = True
            await self._stack.enter_async_context(self._client)
        if self._is_closed:
            return Failed("SESSIONEXPIRED")
        try:
            reply = await self._client.execute(*one.words, is_change=one.is_change)
        except OutcomeUnknownError as error:
            return Failed("UNKNOWN", str(error))
        except MillstreamError as error:
            return Failed(error.code.upper(), str(error))
        self.has_asked = True
        return reply

    async def close(self) -> None:
        """End the session."""
        self._is_closed = True
        if self._is_entered:
            await self._stack.aclose()
