"""The port for clients of the coordination groups: a socket for each RESP session.

    server = RespServer(backend, UserGuard(users))
    await loop.create_server(server.connection, host, port, ssl=context)

Invariants:
1. All output of one turn of the loop leaves in one write for each connection.
2. A client that does not read, or sends faster than it is answered, is not read from.
3. At most `TURN_REQUESTS_MAX` requests of a connection are processed in a turn. The next turn
   continues.
4. After `close` no connection is open.
5. Where there are users, a client that has not logged in after `LOGIN_S_MAX` is cut off; of more
   than `STRANGERS_MAX` such clients, or than half of the places, the oldest. A client with a token
   is logged out at most `LOOK_S` after the token ends, and has that time to log in again.
6. When more than `WAITING_BYTES_MAX` are held for all clients together, replies and incomplete
   requests, the clients are cut off whose data has waited longest. A client that takes its data is
   not cut off, however slow it is.

Elsewhere: the meaning of requests (`core.resp.session`), logins (`aio.user_guard`), who may
connect from where (the listener).
"""

from __future__ import annotations

import asyncio
import logging
import resource
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final, cast

from millstream.coordination.core.backend import Backend, Guard, Principal
from millstream.coordination.core.group_state import GROUP_COMMANDS
from millstream.coordination.core.namespace.admission import Parser
from millstream.coordination.core.namespace.state.run import Notice
from millstream.coordination.core.resp.common_commands import CONNECTION_COMMANDS
from millstream.coordination.core.resp.session import OUT_BYTES_MAX, RespSession

__all__ = [
    "CONNECTIONS_MAX",
    "DESCRIPTORS_KEPT",
    "LOGIN_S_MAX",
    "LOOK_S",
    "RECEIVED_BYTES_MIN",
    "STRANGERS_MAX",
    "WAITING_BYTES_MAX",
    "RespServer",
]

_LOG = logging.getLogger(__name__)
CONNECTIONS_MAX: Final = 20_000
"""Most connections of clients of one node. Further ones are told that it is busy, and closed."""
DESCRIPTORS_KEPT: Final = 512
"""Descriptors of the process that are kept for files and other nodes. Clients get at most the
rest, or half of all if that is more."""
LOGIN_S_MAX: Final = 10.0
"""How long a client may be connected without a log-in, where there are users."""
STRANGERS_MAX: Final = 1000
"""Clients without a log-in, where there are users, or half of the places if those are fewer; for a
further one the oldest is cut off."""
WAITING_BYTES_MAX: Final = 256 * 1024 * 1024
"""Replies that wait for clients to take them, and requests that are not whole or not begun; beyond
that the slowest are cut off."""
RECEIVED_BYTES_MIN: Final = 8 * 1024
"""What a client has sent of a request counts from here on."""
LOOK_S: Final = 1.0
"""How often it is looked at who has logged in, whose token has ended, who takes what waits, and
who has heard nothing."""
_TLS_BYTES: Final = 64 * 1024
"""Bytes given to a connection with TLS at once."""
_NEVER: Final = float("inf")
_KV_REQUEST: Final = b"\x80"
"""How a client of the kv port begins; commands of RESP begin with * or a letter."""
_NOT_KV: Final = b"-ERR this port speaks RESP (coordination): documents are at the kv port\r\n"
_TOO_MANY: Final = b"-BUSY too many connections; try again, or another node\r\n"


class RespServer:
    """All connections of a node's clients of the coordination groups."""

    def __init__(
        self,
        backend: Backend,
        guard: Guard,
        vocabulary: Mapping[bytes, Parser] = GROUP_COMMANDS,
        *,
        now_s: Callable[[], float] = lambda: time.time_ns() / 1e9,
    ) -> None:
        self._backend, self._guard, self._vocabulary = backend, guard, vocabulary
        self._now_s = now_s
        self._loop = asyncio.get_running_loop()
        self._connections: dict[RespSession, _Connection] = {}
        self._attached: dict[tuple[int, int], RespSession] = {}
        self._waiting: dict[_Connection, None] = {}
        self._strangers: dict[_Connection, float] = {}
        self._passing: dict[_Connection, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._places = _places()
        self.connections_total = self.cut_total = 0
        self.waiting_bytes = 0
        """What waited when it was looked at last; some of it may have been taken since."""

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    def connection(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        self.connections_total += 1
        resp = RespSession(
            self._backend, self._guard, self._vocabulary, CONNECTION_COMMANDS,
            number=self.connections_total, attached=self._attached,
            chance_bytes=secrets.token_bytes, on_output=self._on_output,
            call_later=lambda after_ms, call: self._loop.call_later(after_ms / 1000, call),
        )  # fmt: skip
        return _Connection(self, resp)

    def drop_user(self, name: str) -> None:
        """Close the connections of a user whose rights changed: they log in again."""
        for resp, connection in list(self._connections.items()):
            if resp.principal is not None and resp.principal.name == name:
                connection.close()

    def notify(self, gid: int, notice: Notice) -> None:
        """Tell the client of a session that a request is worth repeating, if it is here."""
        if resp := self._attached.get((gid, notice.session)):
            resp.listener.notify(gid, notice)

    def close(self) -> None:
        """Close all connections, and those that are still being accepted."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._connections.values()):
            connection.close()

    # ---- for connections

    def time(self) -> float:
        """Return the loop's time."""
        return self._loop.time()

    def enter(self, connection: _Connection) -> bytes | None:
        """Take a connection in; return what it is told if there is no place."""
        most = min(CONNECTIONS_MAX, self._places)
        if self._is_closed or len(self._connections) >= most:
            return _TOO_MANY
        if len(self._strangers) >= min(STRANGERS_MAX, most // 2) and self._guard.asks:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cut()
        self._connections[connection.resp] = connection
        self._strangers[connection] = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look_around)
        return None

    def recognise(self, connection: _Connection, principal: Principal | None) -> None:
        """Note that a client has logged in as this user, or has logged out."""
        self._strangers.pop(connection, None)
        self._passing.pop(connection, None)
        if principal is None:
            self._strangers[connection] = self._loop.time()
        elif principal.until_s < _NEVER:
            self._passing[connection] = principal.until_s

    def leave(self, connection: _Connection) -> None:
        """A connection is gone."""
        self._connections.pop(connection.resp, None)
        self._waiting.pop(connection, None)
        self._strangers.pop(connection, None)
        self._passing.pop(connection, None)
        self.waiting_bytes -= connection.waiting_bytes
        connection.waiting_bytes = 0

    def note_waiting(self, connection: _Connection, waiting: int) -> None:
        """Count what waits for a client; make room if it is too much for the node."""
        self.waiting_bytes += waiting - connection.waiting_bytes
        connection.waiting_bytes = waiting
        if self.waiting_bytes > WAITING_BYTES_MAX:
            self._make_room()

    def _make_room(self) -> None:
        some = [one for one in self._connections.values() if one.waiting_bytes]
        for one in some:
            one.waiting_bytes = one.count()
        self.waiting_bytes = sum(one.waiting_bytes for one in some)
        for one in sorted(some, key=_since):
            if self.waiting_bytes <= WAITING_BYTES_MAX:
                return
            self.waiting_bytes -= one.waiting_bytes
            one.waiting_bytes = 0
            self.cut_total += 1
            _LOG.warning("too many bytes are held for clients: closed client %d", one.resp.number)
            one.cut()

    def _look_around(self) -> None:
        self._timer = None
        if self._connections:
            self._timer = self._loop.call_later(LOOK_S, self._look_around)
        self._backend.tick(self._loop.time() * 1000)
        until = self._loop.time() - LOGIN_S_MAX
        if self._guard.asks:
            for stranger in [one for one, since in self._strangers.items() if since <= until]:
                stranger.cut()
        now_s = self._now_s()
        for connection in [one for one, until_s in self._passing.items() if until_s <= now_s]:
            connection.resp.log_in(None)
            connection.go_on()
        for connection in list(self._connections.values()):
            connection.look()

    def go_on_soon(self, connection: _Connection) -> None:
        """Go on with a connection in the next turn of the loop."""
        if not self._waiting:
            self._loop.call_soon(self._go_on)
        self._waiting[connection] = None

    def _on_output(self, resp: RespSession) -> None:
        connection = self._connections.get(resp)
        if connection is not None:
            self.go_on_soon(connection)
            if resp.waiting_bytes >= OUT_BYTES_MAX:
                self.note_waiting(connection, connection.count())

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for connection in waiting:
            connection.go_on()


def _since(connection: _Connection) -> tuple[float, float]:
    """Return since when nothing has moved, for an order of who goes first."""
    heard_at = connection.heard_at if connection.received() else _NEVER
    return min(connection.paused_at, heard_at), -connection.waiting_bytes


def _places() -> int:
    """Return how many clients the descriptors of this process are enough for."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(most - DESCRIPTORS_KEPT, most // 2)


class _Connection(asyncio.Protocol):
    """One socket."""

    def __init__(self, server: RespServer, resp: RespSession) -> None:
        self.resp = resp
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._is_reading = True
        self._principal: Principal | None = None
        """The user, as the server knows."""
        self._is_tls = False
        self._is_new = True
        self._left_bytes = 0
        self.paused_at = _NEVER
        """When it ceased to take replies."""
        self.heard_at = 0.0
        self.waiting_bytes = 0
        """Waiting bytes, as counted by the server."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new connection."""
        transport = cast("asyncio.Transport", transport)  # other loops have classes of their own
        refused = self._server.enter(self)
        if refused is not None:
            transport.write(refused)
            transport.close()
            return
        self._transport = transport
        transport.set_write_buffer_limits(high=OUT_BYTES_MAX)
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        peer = transport.get_extra_info("peername")
        self.resp.source = str(peer[0]) if isinstance(peer, tuple) else "?"

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, or we closed."""
        self._transport = None
        self.resp.close()
        self._server.leave(self)

    def data_received(self, data: bytes) -> None:
        """Answer what came; hot path."""
        if self._transport is not None:
            if self._is_new:
                self._is_new = False
                if data.startswith(_KV_REQUEST):
                    self._transport.write(_NOT_KV)
                    self._transport.close()
                    return
            self.heard_at = self._server.time()
            self.resp.feed(data)
            self.go_on()

    def pause_writing(self) -> None:
        """The client does not read."""
        self._is_paused = True
        self.paused_at = asyncio.get_running_loop().time()
        self._left_bytes = self._transport.get_write_buffer_size() if self._transport else 0

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._is_paused, self.paused_at = False, _NEVER
        self.resp.show_life()
        self._server.go_on_soon(self)

    def count(self) -> int:
        """Return how many bytes are held for the client."""
        transport = self._transport
        unsent = transport.get_write_buffer_size() if transport is not None else 0
        return self.resp.waiting_bytes + unsent + self.received()

    def received(self) -> int:
        """Return how many of them are of requests, if that is worth it."""
        received = self.resp.cutter.held_bytes
        return received if received >= RECEIVED_BYTES_MIN else 0

    def look(self) -> None:
        """See whether a client that is waited for takes anything."""
        if self._is_paused and self._transport is not None:
            left = self._transport.get_write_buffer_size()
            if left < self._left_bytes:
                self.resp.show_life()
            self._left_bytes = left
        if self.waiting_bytes:
            self._server.note_waiting(self, self.count())

    def go_on(self) -> None:
        """Do what can be done, and send what there is to send."""
        transport, resp = self._transport, self.resp
        if transport is None or transport.is_closing():
            return
        has_more = False if self._is_paused else resp.advance()
        if resp.principal is not self._principal:
            self._principal = resp.principal
            self._server.recognise(self, resp.principal)
        if resp.has_output and not self._is_paused:
            self._write(resp.take_output())
        if resp.is_done:
            self.close()
            return
        if has_more and not self._is_paused:
            self._server.go_on_soon(self)
        self._read(not (has_more or self._is_paused or resp.is_clogged))
        waiting = self.count()
        if waiting or self.waiting_bytes:
            self._server.note_waiting(self, waiting)

    def close(self) -> None:
        """Close once what was written has left; at once if the client does not take it."""
        if self._transport is not None:
            (self._transport.abort if self._is_paused else self._transport.close)()

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        if not self._is_tls:
            self._transport.write(data)
            return
        # What it has encrypted is not counted among what waits, and it encrypts each write whole.
        for at in range(0, len(data), _TLS_BYTES):
            self._transport.write(data[at : at + _TLS_BYTES])

    def cut(self) -> None:
        """Close at once, and keep nothing of what waits."""
        if self._transport is not None:
            self._transport.abort()
            self.resp.close()

    def _read(self, is_wanted: bool) -> None:
        transport = self._transport
        if is_wanted == self._is_reading or transport is None or transport.is_closing():
            return
        self._is_reading = is_wanted
        if is_wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()
