"""Connections between nodes: messages to an address, and messages from any node.

Each node dials those that it sends to, so a connection carries messages one way. It begins with
lines: `millstream-peer 1`, followed by the first message of a SCRAM login if the nodes share a
secret, and the answers to it. Then come frames, the greeting of the dialling node first.

Invariants:
1. Sending never waits: a message without room or connection is lost, as on any network.
2. Where a login is required, nothing is received from a node that has not logged in, nor as a user
   who was dropped. Connections without a login give way to new ones.
3. Invalid bytes end the connection. Its node dials again.
4. A node that cannot be reached, or hangs up at once, is dialled at most once each
   `BACKOFF_S_MAX`, and only while there is something to send.
5. Receiving gives the loop back after `TURN_S`.
6. Why connections from a host are closed is logged once in `TOLD_S`, however many come.

Elsewhere: the frames (`vsr.core.messages`), dispatch (`aio.coordinator`).
docs/reference/coordination-messages.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import ssl
import time
from collections.abc import Callable
from typing import Final

from millstream.access.scram_client import ScramClient
from millstream.access.users import NODE_USER, UserStore
from millstream.coordination.aio.handshakes import Handshakes
from millstream.coordination.core.pool.messages import Address
from millstream.errors import AccessError, MillstreamError, RemoteProtocolError
from millstream.runtime.tasks import Tasks
from millstream.vsr.core.messages import FRAME_BYTES_MAX, LENGTH

__all__ = [
    "BACKOFF_S",
    "BACKOFF_S_MAX",
    "CONNECT_S_MAX",
    "IDLE_S",
    "INCOMING_MAX",
    "LOGIN_LINE_BYTES_MAX",
    "LOGIN_S_MAX",
    "OUTGOING_BYTES_MAX",
    "OUTGOING_MAX",
    "STRANGERS_MAX",
    "TOLD_MAX",
    "TOLD_S",
    "TURN_S",
    "UNACKNOWLEDGED_S",
    "Peers",
]

_LOG = logging.getLogger(__name__)
OUTGOING_BYTES_MAX: Final = 32 * 1024 * 1024
"""What may wait to be sent to one node; beyond that messages are lost."""
OUTGOING_MAX: Final = 256
"""Nodes that are dialled; to others nothing is sent."""
INCOMING_MAX: Final = 512
"""Connections of other nodes; further ones are closed at once."""
STRANGERS_MAX: Final = 64
"""Most connections that have not logged in yet. A further one replaces the oldest. As many more
may be in their TLS handshake."""
CONNECT_S_MAX: Final = 2.0
"""How long a connection may take to be made."""
LOGIN_S_MAX: Final = 5.0
"""How long its log-in may take."""
LOGIN_LINE_BYTES_MAX: Final = 4096
"""Most bytes of one line of the log-in."""
BACKOFF_S: Final = 0.05
"""Pause before a lost node is dialled again. It doubles each time."""
BACKOFF_S_MAX: Final = 0.5
"""The longest such wait."""
UNACKNOWLEDGED_S: Final = 3.0
"""A connection is closed after this time without a sign that bytes arrive."""
IDLE_S: Final = 60.0
"""A connection over which nothing was sent for so long is closed."""
TOLD_S: Final = 60.0
"""The same reason to close connections from one host is not logged again for so long."""
TOLD_MAX: Final = 256
"""Most such reasons that are remembered."""
TURN_S: Final = 0.004
"""How long messages of one connection are looked at before others have their turn."""
_READ_BYTES: Final = 256 * 1024
_LOST: Final = (
    OSError, RuntimeError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError,
    MillstreamError,
)  # fmt: skip
"""RuntimeError: some loops raise it at who writes to what the other side has reset. ValueError: a
name that cannot be one."""
_PREFACE: Final = b"millstream-peer 1"
_MECHANISM: Final = "SCRAM-SHA256"
_WELCOME: Final = b"ok"


class Peers:
    """Of one node; begins to listen by `listen`, ended by `close`.

    Args:
        on_frame: takes what comes, its length cut off; what it raises ends the connection.
        greeting: returns the frames that are said first to whoever is at an address.
        users: whose log-in as `@node` is asked for, if it has one or has users.
        secret: what this node logs in with; empty: it does not.
        tls: contexts for being dialled and for dialling; None: plain.
        on_refused: called each time that an address refuses a connection: nobody listens there.
    """

    def __init__(
        self,
        on_frame: Callable[[bytes], None],
        greeting: Callable[[Address], bytes] = lambda _: b"",
        *,
        users: UserStore | None = None,
        secret: str = "",
        tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
        on_refused: Callable[[Address], None] = lambda _: None,
    ) -> None:
        self.on_refused = on_refused
        self._on_frame, self.greeting = on_frame, greeting
        self._users, self.secret = users, secret
        self._server_tls = tls[0] if tls is not None else None
        self.client_tls = tls[1] if tls is not None else None
        self._links: dict[Address, _Link] = {}
        self._server: asyncio.Server | None = None
        self._is_closed = False
        self._handshakes: Handshakes | None = None
        self._incoming: dict[asyncio.StreamWriter, str] = {}
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        self._told: dict[tuple[str, str], float] = {}
        """Host and reason -> when it was logged; the oldest first."""
        self.tasks = Tasks()
        self.dropped_total = 0
        """Messages that found no room or no connection."""
        self.received_total = self.sent_total = 0

    async def listen(self, listening: socket.socket) -> None:
        """Take connections of other nodes."""
        if self._server_tls is None:
            self._server = await asyncio.start_server(
                self._serve, sock=listening, limit=_READ_BYTES
            )
            return
        loop = asyncio.get_running_loop()

        def make() -> asyncio.Protocol:
            reader = asyncio.StreamReader(_READ_BYTES, loop)
            return asyncio.StreamReaderProtocol(reader, self._serve, loop)

        self._handshakes = Handshakes(
            listening, STRANGERS_MAX, make, self._server_tls,
            timeout_s=LOGIN_S_MAX, most=STRANGERS_MAX,
        )  # fmt: skip

    async def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        if self._handshakes is not None:
            await self._handshakes.close()
        for writer in list(self._incoming):
            writer.close()
        await self.tasks.stop()
        self._links.clear()

    @property
    def connected(self) -> int:
        """How many nodes can be sent to now."""
        return sum(link.is_up for link in self._links.values())

    # ---- sending

    def send(self, address: Address, frame: bytes) -> None:
        """Try to deliver a frame, its length included."""
        if self._is_closed:
            return
        link = self._links.get(address)
        if link is None or link.is_over:
            if link is None and len(self._links) >= OUTGOING_MAX:
                self.dropped_total += 1
                return
            link = self._links[address] = _Link(self, address)
        link.send(frame)

    def hang_up(self, address: Address) -> None:
        """Close the connection to a node that is there no more."""
        if link := self._links.pop(address, None):
            link.end()

    def forget(self, address: Address) -> None:
        """A link over which nothing was sent has ended."""
        self._links.pop(address, None)

    # ---- receiving

    def drop_user(self, name: str) -> None:
        """Close the connections of nodes that logged in as a user whose rights changed."""
        for writer, user in self._incoming.items():
            if user == name:
                writer.transport.abort()

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # One that was accepted before the end may come after it: nobody would ever close it.
        if self._is_closed or len(self._incoming) >= INCOMING_MAX:
            writer.close()
            return
        if len(self._strangers) >= STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        self._incoming[writer], self._strangers[writer] = "", None
        _tune(writer)
        task = self.tasks.start(self._receive(reader, writer), name="messages of a node")
        task.add_done_callback(lambda _: self._forget(writer))

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._incoming.pop(writer, None)
        self._strangers.pop(writer, None)

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(LOGIN_S_MAX):
                user = await self._welcome(reader, writer)
            self._incoming[writer] = user
            self._strangers.pop(writer, None)
            await self._read_messages(reader)
        except (OSError, RuntimeError, asyncio.IncompleteReadError):  # TimeoutError included
            pass
        except (MillstreamError, asyncio.LimitOverrunError) as error:
            is_known = isinstance(error, MillstreamError) and error.code == "refused_node"
            self._tell(writer, str(error), is_known=is_known)  # the pool has said what is known
        finally:
            writer.close()

    def _tell(self, writer: asyncio.StreamWriter, why: str, *, is_known: bool) -> None:
        peer = writer.get_extra_info("peername")
        host, now_s = str(peer[0]) if peer else "?", time.monotonic()
        is_told = now_s - self._told.get((host, why), -TOLD_S) < TOLD_S
        if not is_told:
            self._told.pop((host, why), None)
            self._told[host, why] = now_s
            if len(self._told) > TOLD_MAX:
                del self._told[next(iter(self._told))]
        level = logging.DEBUG if is_known or is_told else logging.WARNING
        _LOG.log(level, "a connection of a node at %s is closed: %s", host, why)

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Return who it is, if that was asked."""
        begin = await reader.readexactly(1)  # a client of another protocol may send no line end
        preface = first = b""
        if begin == _PREFACE[:1]:
            preface, _, first = (begin + await _line(reader)).partition(b" n,,")
        if preface != _PREFACE:
            writer.write(b"e=this port is for other nodes\n")
            raise RemoteProtocolError(
                "it does not speak the protocol of nodes", code="bad_greeting"
            )
        wanted = self._users is not None and (
            not self._users.is_empty or self._users.get(NODE_USER) is not None
        )
        try:
            if first and self._users is not None:
                return await self._log_in(b"n,," + first, reader, writer)
            if wanted:
                raise AccessError(
                    "it must log in: start all nodes with the same cluster secret",
                    code="login_required",
                )
            writer.write(_WELCOME + b"\n")
        except AccessError as error:
            writer.write(b"e=" + str(error).encode() + b"\n")
            raise
        return ""

    async def _log_in(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> str:
        assert self._users is not None
        peer = writer.get_extra_info("peername")
        server = self._users.scram_server(_MECHANISM, str(peer[0]) if peer else "?")
        challenge, _ = server.step(first)
        writer.write(challenge + b"\n")
        final, user = server.step(await _line(reader))
        if user is None or not user.is_admin or self._users.get(user.name) != user:
            raise AccessError("only nodes and administrators may connect", code="not_allowed")
        writer.write(final + b"\n")
        return user.name

    async def _read_messages(self, reader: asyncio.StreamReader) -> None:
        buffer = bytearray()
        while data := await reader.read(_READ_BYTES):
            buffer += data
            until = time.monotonic() + TURN_S
            at = 0
            while (end := _end_of_frame(buffer, at)) is not None:
                frame = bytes(memoryview(buffer)[at + LENGTH.size : end])
                at = end
                self.received_total += 1
                self._on_frame(frame)
                if time.monotonic() >= until:
                    await asyncio.sleep(0)
                    until = time.monotonic() + TURN_S
            del buffer[:at]


class _Link:
    """To one other node; there is a task while it is dialled, connected or waited for."""

    def __init__(self, peers: Peers, address: Address) -> None:
        self._peers, self._address = peers, address
        self._loop = asyncio.get_running_loop()
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._writer: asyncio.StreamWriter | None = None
        self._sent_at = self._loop.time()
        self._task = peers.tasks.start(self._run(), name=f"messages to node {address.text}")

    @property
    def is_up(self) -> bool:
        return self._writer is not None

    @property
    def is_over(self) -> bool:
        return self._task.done()

    def send(self, frame: bytes) -> None:
        waiting = self._pending_bytes
        if self._writer is not None:
            waiting += self._writer.transport.get_write_buffer_size()
        if waiting + len(frame) > OUTGOING_BYTES_MAX:
            self._peers.dropped_total += 1
            return
        self._sent_at = self._loop.time()
        self._peers.sent_total += 1
        if self._writer is not None and not self._writer.transport.is_closing():
            self._writer.write(
                frame
            )  # at once: the node's disk is to begin as early as this one's
        else:
            self._pending.append(frame)
            self._pending_bytes += len(frame)

    def end(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        backoff_s, said = BACKOFF_S, ""
        while self._loop.time() - self._sent_at < IDLE_S:
            dialled_at, why = self._loop.time(), "it has closed the connection"
            try:
                await self._connect_and_wait()
                if self._loop.time() - dialled_at >= BACKOFF_S_MAX:
                    backoff_s = BACKOFF_S
            except _LOST as error:
                why = str(error) or "no answer in time"
                if isinstance(error, ConnectionRefusedError):
                    self._peers.on_refused(self._address)
            finally:
                self._hang_up()
            if why != said:
                _LOG.info("node %s cannot be reached: %s", self._address.text, why)
                said = why
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            self._pending, self._pending_bytes = [], 0
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
        self._peers.forget(self._address)

    def _hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def _connect_and_wait(self) -> None:
        async with asyncio.timeout(CONNECT_S_MAX):
            reader, writer = await asyncio.open_connection(
                *self._address, ssl=self._peers.client_tls, limit=_READ_BYTES
            )
        try:
            _tune(writer)
            async with asyncio.timeout(LOGIN_S_MAX):
                await self._greet(reader, writer)
            frames, self._pending, self._pending_bytes = self._pending, [], 0
            writer.writelines(frames)
            self._writer = writer
            while self._loop.time() - self._sent_at < IDLE_S:
                try:
                    async with asyncio.timeout(IDLE_S) as waiting:
                        await reader.read(1)  # nothing comes but the end
                        return
                except TimeoutError:
                    if not waiting.expired():
                        raise  # the system's: nobody acknowledges what was sent
        finally:
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._peers.secret:
            client = ScramClient(_MECHANISM, NODE_USER, self._peers.secret)
            writer.write(_PREFACE + b" " + client.first() + b"\n")
            proof = await asyncio.to_thread(client.next, await _line(reader))
            writer.write(proof + b"\n")
            client.finish(await _line(reader))
        else:
            writer.write(_PREFACE + b"\n")
            answer = await _line(reader)
            if answer != _WELCOME:
                raise AccessError(f"it refuses this node: {answer.decode(errors='replace')}")
        writer.write(self._peers.greeting(self._address))


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readuntil(b"\n")
    if len(line) > LOGIN_LINE_BYTES_MAX:
        raise RemoteProtocolError("a line of the log-in is too long", code="bad_greeting")
    return line[:-1]


def _end_of_frame(buffer: bytearray, at: int) -> int | None:
    """Return where the frame at `at` ends, None if it is not all here."""
    if len(buffer) - at < LENGTH.size:
        return None
    (length,) = LENGTH.unpack_from(buffer, at)
    if length > FRAME_BYTES_MAX:
        raise RemoteProtocolError(f"a message of {length} bytes", code="bad_frame")
    end = at + LENGTH.size + int(length)
    return end if end <= len(buffer) else None


def _tune(writer: asyncio.StreamWriter) -> None:
    """Set the keep-alive of the system, which detects dead nodes also on idle connections."""
    found = writer.get_extra_info("socket")
    options = (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(2 * UNACKNOWLEDGED_S)),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, int(UNACKNOWLEDGED_S)),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNACKNOWLEDGED_S * 1000)),
    )
    for level, option, value in options:
        with contextlib.suppress(OSError):
            found.setsockopt(level, option, value)
