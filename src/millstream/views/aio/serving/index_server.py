"""The index process's side of the socket: accepts calls and streams answers.

Invariants:
1. A connection has one call at a time, and there are at most `CALLS_MAX` connections.
2. A closed connection cancels its running call.
3. No more of an answer is made than its reader takes (`OUT_BYTES_MAX`).
4. Every error is sent as an answer. An unexpected error is logged here, and its answer reveals no
   details. If nothing was sent before, the error is the whole answer.

Elsewhere: the frames (`views.core.index_messages`), the engine's side (`index_link`), what calls
do (`index_host`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

import msgspec

from millstream.errors import MillstreamError, RemoteProtocolError, UnavailableError
from millstream.runtime.tasks import Tasks
from millstream.views.core.index_messages import (
    END,
    REQUEST_BYTES_MAX,
    FrameCutter,
    failure,
    frame,
    message,
)

__all__ = ["CALLS_MAX", "OUT_BYTES_MAX", "Answer", "Calls", "IndexServer"]

_LOG = logging.getLogger(__name__)
CALLS_MAX: Final = 256
"""Connections at a time; one more is closed at once."""
OUT_BYTES_MAX: Final = 1024 * 1024
"""Most bytes of an answer that wait for its reader."""
_HELD_BYTES_MAX: Final = 32 * 1024
"""Pieces that are joined into one write, and dropped if an error comes before it."""
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


class Answer(NamedTuple):
    """A head, and a body in pieces (empty ones are left out)."""

    head: Mapping[str, Any]
    body: AsyncGenerator[bytes, None] | tuple[bytes, ...] = ()


class Calls(Protocol):
    """What is behind the socket."""

    async def call(self, name: str, arguments: dict[str, Any]) -> Answer:
        """Do what is asked.

        Raises:
            MillstreamError: the answer is this error.
        """


class IndexServer:
    """Listens on a socket of this machine; started by `start`, ended by `stop`."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.tasks = Tasks()
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self, path: Path) -> None:
        """Listen; the directory's permissions say who may connect."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(
            lambda: _Connection(self), str(path), backlog=CALLS_MAX
        )

    async def stop(self) -> None:
        """Close everything; calls under way are cancelled."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()
        await self.tasks.stop()


class _Connection(asyncio.Protocol):
    """One connection of the engine."""

    def __init__(self, server: IndexServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._cutter = FrameCutter(REQUEST_BYTES_MAX)
        self._call: asyncio.Task[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=OUT_BYTES_MAX)
        self._server.connections.add(self)
        if len(self._server.connections) > CALLS_MAX:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._can_write.set()
        self._server.connections.discard(self)
        if self._call is not None:
            self._call.cancel()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._cutter.receive(data)
            if not frames:
                return
            if len(frames) > 1 or self._cutter.pending_bytes or self._call is not None:
                raise RemoteProtocolError("a call came before the answer to the previous one")
            request = _OBJECT.decode(frames[0] or b"")
        except (RemoteProtocolError, msgspec.DecodeError) as error:
            _LOG.error("closed a connection of the engine: %s", error)
            self.close()
            return
        name = str(request.pop("call", ""))
        self._call = self._server.tasks.start(self._answer(name, request), name=f"index {name}")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def _answer(self, name: str, arguments: dict[str, Any]) -> None:
        try:
            last = await self._send_answer(name, arguments)
        except MillstreamError as error:
            last = failure(error)
        except OSError as error:
            _LOG.error("call %s failed: %s", name, error)
            last = failure(
                UnavailableError(
                    f"the index cannot be read or written: {error}", code="disk_error"
                )
            )
        except Exception:  # noqa: BLE001 - whatever it is, the engine must not wait for an answer
            _LOG.exception("call %s failed", name)
            last = failure(
                MillstreamError(f"call {name!r} failed; the log says more", code="internal_error")
            )
        self._call = None
        self._write(last)

    async def _send_answer(self, name: str, arguments: dict[str, Any]) -> bytes:
        """Send all but the last bytes, and return those: a short answer is one write."""
        answer = await self._server.calls.call(name, arguments)
        held = message(answer.head)
        if isinstance(answer.body, tuple):
            return held + b"".join(frame(piece) for piece in answer.body if piece) + END
        async with aclosing(answer.body) as pieces:  # whoever has gone, what is read is let go
            async for piece in pieces:
                if piece:
                    if len(held) + len(piece) > _HELD_BYTES_MAX:
                        self._write(held)
                        await self._can_write.wait()
                        held = b""
                    held += frame(piece)
        return held + END

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)
