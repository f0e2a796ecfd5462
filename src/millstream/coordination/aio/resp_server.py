"""The port for clients of the coordination groups: sockets around fronts.

    server = RespServer(backend, UserGuard(users))
    await loop.create_server(server.connection, host, port, ssl=context)

Invariants:
1. What became known in one turn of the loop leaves in one write for each connection.
2. A client that does not read, or asks faster than it is answered, is not read from.
3. A connection has `TURN_REQUESTS_MAX` requests done in a turn; the next turn goes on.
4. After `close` no connection is open.

Elsewhere: everything a request means (`core.front`), who may connect from where (who listens).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Final, cast

from millstream.access.users import UserStore
from millstream.coordination.core.backend import Backend, Guard, Principal
from millstream.coordination.core.front import OUT_BYTES_MAX, Front
from millstream.coordination.core.front_commands import FRONT_COMMANDS
from millstream.coordination.core.register_commands import REGISTER_COMMANDS, Parser
from millstream.runtime.tasks import Tasks

__all__ = ["CONNECTIONS_MAX", "RespServer", "UserGuard"]

_LOG = logging.getLogger(__name__)
CONNECTIONS_MAX: Final = 10_000
"""Of clients of one node; more are told that it is busy, and closed."""
_TOO_MANY: Final = b"-BUSY too many connections; try again, or another node\r\n"


class UserGuard:
    """The users of the node, checked off the loop: that is slow on purpose."""

    def __init__(self, users: UserStore) -> None:
        self._users = users
        self._tasks = Tasks()

    @property
    def asks(self) -> bool:
        """Whether there are users."""
        return not self._users.is_empty

    def check(self, name: str, password: str, done: Callable[[Principal | None], None]) -> None:
        """Find out whether this is a user with this password."""
        self._tasks.start(self._check(name, password, done), name="coordination password check")

    async def _check(
        self, name: str, password: str, done: Callable[[Principal | None], None]
    ) -> None:
        user = await asyncio.to_thread(self._users.check_password, name, password)
        if user is not None and self._users.get(user.name) != user:
            user = None  # changed or deleted while the password was checked
        done(Principal(user.name, user.is_admin) if user is not None else None)

    async def close(self) -> None:
        """Stop checking."""
        await self._tasks.stop()


class RespServer:
    """All connections of a node's clients of the coordination groups."""

    def __init__(
        self,
        backend: Backend,
        guard: Guard,
        vocabulary: Mapping[bytes, Parser] = REGISTER_COMMANDS,
    ) -> None:
        self._backend, self._guard, self._vocabulary = backend, guard, vocabulary
        self._loop = asyncio.get_running_loop()
        self._connections: dict[Front, _Connection] = {}
        self._attached: dict[tuple[int, int], Front] = {}
        self._waiting: dict[_Connection, None] = {}
        self._is_closed = False
        self.connections_total = 0

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    def connection(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        self.connections_total += 1
        front = Front(
            self._backend, self._guard, self._vocabulary, FRONT_COMMANDS,
            number=self.connections_total, attached=self._attached,
            chance_bytes=secrets.token_bytes, on_output=self._on_output,
        )  # fmt: skip
        return _Connection(self, front)

    def drop_user(self, name: str) -> None:
        """Close the connections of a user whose rights changed: they log in again."""
        for front, connection in list(self._connections.items()):
            if front.principal is not None and front.principal.name == name:
                connection.close()

    def close(self) -> None:
        """Close all connections, and those that are still being accepted."""
        self._is_closed = True
        for connection in list(self._connections.values()):
            connection.close()

    # ---- for connections

    def enter(self, connection: _Connection) -> bytes | None:
        """Take a connection in; return what it is told if there is no place."""
        if self._is_closed or len(self._connections) >= CONNECTIONS_MAX:
            return _TOO_MANY
        self._connections[connection.front] = connection
        return None

    def leave(self, connection: _Connection) -> None:
        """A connection is gone."""
        self._connections.pop(connection.front, None)
        self._waiting.pop(connection, None)

    def go_on_soon(self, connection: _Connection) -> None:
        """Go on with a connection in the next turn of the loop."""
        if not self._waiting:
            self._loop.call_soon(self._go_on)
        self._waiting[connection] = None

    def _on_output(self, front: Front) -> None:
        connection = self._connections.get(front)
        if connection is not None:
            self.go_on_soon(connection)

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for connection in waiting:
            connection.go_on()


class _Connection(asyncio.Protocol):
    """One socket."""

    def __init__(self, server: RespServer, front: Front) -> None:
        self.front = front
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._is_reading = True

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

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, or we closed."""
        self._transport = None
        self.front.close()
        self._server.leave(self)

    def data_received(self, data: bytes) -> None:
        """Answer what came; hot path."""
        if self._transport is not None:
            self.front.feed(data)
            self.go_on()

    def pause_writing(self) -> None:
        """The client does not read."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._is_paused = False
        self._server.go_on_soon(self)

    def go_on(self) -> None:
        """Do what can be done, and send what there is to send."""
        transport, front = self._transport, self.front
        if transport is None or transport.is_closing():
            return
        has_more = False if self._is_paused else front.advance()
        if front.has_output and not self._is_paused:
            transport.write(front.take_output())
        if front.is_done:
            self.close()
            return
        if has_more and not self._is_paused:
            self._server.go_on_soon(self)
        self._read(not (has_more or self._is_paused or front.is_clogged))

    def close(self) -> None:
        """Close once what was written has left; at once if the client does not take it."""
        if self._transport is not None:
            (self._transport.abort if self._is_paused else self._transport.close)()

    def _read(self, is_wanted: bool) -> None:
        transport = self._transport
        if is_wanted == self._is_reading or transport is None or transport.is_closing():
            return
        self._is_reading = is_wanted
        if is_wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()
