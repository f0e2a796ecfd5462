"""The engine's side of the socket to the index process: calls, and streamed answers.

Invariants:
1. A connection has one call at a time. There are at most `LINKS_MAX` connections, and at most
   `SHARE_MAX` for the queries of one design document. A call waits at most `WAIT_S` for one.
2. Abandoning an answer closes its connection, which cancels the call in the index process.
3. Reading stops while `HELD_BYTES_MAX` of an answer wait for the reader.
4. If the index process ends, every running call fails with `index_unavailable`.

Elsewhere: the frames (`views.core.index_messages`), the other side (`index_server`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from millstream.errors import MillstreamError, RemoteProtocolError, UnavailableError
from millstream.views.core.index_messages import (
    CHUNK_BYTES_MAX,
    FrameCutter,
    error_from,
    message,
)

__all__ = [
    "HELD_BYTES_MAX",
    "LINKS_MAX",
    "SHARE_MAX",
    "WAIT_S",
    "IndexLink",
    "StreamedAnswer",
    "unavailable",
]

LINKS_MAX: Final = 128
"""Calls to the index process under way at a time."""
SHARE_MAX: Final = 32
"""Most requests for one design document: one that waits for its index does not block others."""
WAIT_S: Final = 10.0
"""How long a call waits for a connection to be free."""
HELD_BYTES_MAX: Final = 1024 * 1024
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


def unavailable(why: str) -> UnavailableError:
    """Return the error of a call that the index process cannot answer now."""
    return UnavailableError(
        f"views are not available: {why}; try again in a moment", code="index_unavailable"
    )


class IndexLink:
    """The connections to one index process.

    Args:
        path: of its socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._idle: list[_Connection] = []
        self._used: set[_Connection] = set()
        self._free = asyncio.Semaphore(LINKS_MAX)
        self._shares: dict[str, _Share] = {}
        self._is_closed = False

    async def call(self, name: str, /, *, share: str = "", **arguments: Any) -> StreamedAnswer:
        """Send a call and return its answer once its head is there.

        Args:
            name: of the call.
            share: what is counted with it; empty: nothing else.
            arguments: of the call.

        Raises:
            UnavailableError: `index_unavailable`, `too_many_calls`.
            MillstreamError: what the index process answers.
        """
        taken = await self._take_share(share) if share else None
        try:
            await self._take_turn(self._free, f"{LINKS_MAX} queries of views are under way")
            try:
                connection = self._idle.pop() if self._idle else await self._connect()
            except BaseException:  # also when cancelled: the turn is given back
                self._free.release()
                raise
        except BaseException:
            self._leave_share(taken)
            raise
        self._used.add(connection)
        answer = StreamedAnswer(self, connection, taken)
        try:
            connection.send(message({"call": name, **arguments}))
            answer.head = _OBJECT.decode(await connection.next_frame())
        except BaseException:  # also when cancelled: the connection is not used again
            await answer.close()
            raise
        return answer

    async def ask(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """Send a call that has no body and return its head; raises as `call`."""
        answer = await self.call(name, **arguments)
        async for _ in answer:
            pass
        return answer.head

    def close(self) -> None:
        """Close all connections; calls under way end with `index_unavailable`."""
        self._is_closed = True
        for connection in [*self._idle, *self._used]:
            connection.close()
        self._idle.clear()

    async def _take_share(self, name: str) -> _Share:
        share = self._shares.setdefault(name, _Share(name))
        share.users += 1
        try:
            await self._take_turn(share.free, f"{SHARE_MAX} queries of {name} are under way")
        except BaseException:
            self._forget_share(share)
            raise
        return share

    def _leave_share(self, share: _Share | None) -> None:
        if share is not None:
            share.free.release()
            self._forget_share(share)

    def _forget_share(self, share: _Share) -> None:
        share.users -= 1
        if not share.users:
            del self._shares[share.name]

    async def _take_turn(self, free: asyncio.Semaphore, why_not: str) -> None:
        if self._is_closed:
            raise unavailable("the index process has ended")
        if not free.locked():  # the usual case, without a timer
            await free.acquire()
            return
        try:
            async with asyncio.timeout(WAIT_S):
                await free.acquire()
        except TimeoutError as error:
            raise UnavailableError(why_not, code="too_many_calls") from error

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_unix_connection(
                lambda: _Connection(self._gone), self._path
            )
        except OSError as error:
            raise unavailable(f"the index process does not answer ({error})") from error
        return connection

    def _gone(self, connection: _Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def give_back(self, connection: _Connection, share: _Share | None, *, is_clean: bool) -> None:
        """Take a connection whose answer is over; one in the middle of an answer is closed."""
        self._used.discard(connection)
        self._free.release()
        self._leave_share(share)
        if is_clean and connection.is_open and not self._is_closed:
            self._idle.append(connection)
        else:
            connection.close()


class StreamedAnswer:
    """An answer: its head, and its body as it comes. Ends by being read out, or by `close`."""

    def __init__(
        self, link: IndexLink, connection: _Connection, share: _Share | None = None
    ) -> None:
        self.head: dict[str, Any] = {}
        self._link = link
        self._share = share
        self._connection: _Connection | None = connection

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the pieces.

        Raises:
            MillstreamError: what befell the other side, `index_unavailable` if it ended.
        """
        while self._connection is not None:
            try:
                piece = await self._connection.next_frame()
            except MillstreamError:
                await self.close()
                raise
            if piece:
                yield piece
            else:
                self._end(is_clean=True)

    async def close(self) -> None:
        """Want no more of it; harmless after its end."""
        self._end(is_clean=False)

    def _end(self, *, is_clean: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            is_clean = is_clean or connection.has_failed
            self._link.give_back(connection, self._share, is_clean=is_clean)


class _Share:
    """Calls that are counted together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.free = asyncio.Semaphore(SHARE_MAX)
        self.users = 0
        """Calls under way, and those that wait."""


class _Connection(asyncio.Protocol):
    """One socket; frames wait in order until somebody takes them."""

    def __init__(self, gone: Any) -> None:
        self._gone = gone
        self._transport: asyncio.Transport | None = None
        self._cutter = FrameCutter(CHUNK_BYTES_MAX)
        self._frames: deque[bytes | None] = deque()
        self._held_bytes = 0
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._why = "the index process has ended"
        self.has_failed = False
        """The call ended with an error: nothing more comes of it."""

    @property
    def is_open(self) -> bool:
        """Whether calls can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._gone(self)
        self._wake()

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._cutter.receive(data)
        except RemoteProtocolError as error:
            self._why = str(error)
            self.close()
            return
        self._frames += frames
        self._held_bytes += len(data)
        if self._held_bytes > HELD_BYTES_MAX and self._frames and not self._is_paused:
            self._is_paused = True
            assert self._transport is not None
            self._transport.pause_reading()
        self._wake()

    def send(self, data: bytes) -> None:
        """Send a call."""
        self.has_failed = False
        if self._transport is not None:
            self._transport.write(data)

    async def next_frame(self) -> bytes:
        """Return the next frame.

        Raises:
            MillstreamError: the error that came in its place.
        """
        found = await self._next()
        if found is not None:
            return found
        error = await self._next()
        assert error is not None
        self.has_failed = True
        raise error_from(error)

    async def _next(self) -> bytes | None:
        while not self._frames:
            if self._transport is None:
                raise unavailable(self._why)
            self._go_on()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        found = self._frames.popleft()
        self._held_bytes -= 4 + len(found or b"")
        if self._held_bytes <= HELD_BYTES_MAX:
            self._go_on()
        return found

    def close(self) -> None:
        """Close the socket."""
        if self._transport is not None:
            self._transport.close()

    def _go_on(self) -> None:
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
