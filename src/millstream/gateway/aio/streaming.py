"""Answers that arrive in pieces, as a body that leaves in pieces.

Invariants:
1. No more of an answer is asked for than the client takes: a piece is fetched when the one before
   it is on its way.
2. A client that goes away ends the query: while it waits within `GONE_CHECK_S`, while it is
   answered with the next piece.
3. An error before the first byte has left is answered as any error. After that the connection is
   cut, so that nobody takes the beginning for the whole.

Elsewhere: which answers (`view_pages`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final, Self

from aiohttp import web

from millstream.documents.reading import Piece
from millstream.errors import MillstreamError
from millstream.gateway.aio.answers import SHARES, loggable, page_of
from millstream.gateway.aio.room import hold_copies
from millstream.runtime.pace import Turns

__all__ = [
    "GONE_CHECK_S",
    "SENT_BYTES_MAX",
    "WHOLE_BYTES_MAX",
    "WhileThere",
    "as_they_come",
    "forget_frames",
    "send_events",
    "send_pieces",
    "stream",
]

_LOG = logging.getLogger(__name__)
GONE_CHECK_S: Final = 0.5
"""How often is looked whether the client of a query that waits is still there."""
WHOLE_BYTES_MAX: Final = 64 * 1024
"""What an answer may have to leave as a whole, with its length in front."""
SENT_BYTES_MAX: Final = 256 * 1024
"""Handed to a connection in one go."""


class WhileThere:
    """Within `with`, cancels the request's task once its client has gone."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._timer = self._loop.call_later(GONE_CHECK_S, self._look)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            assert self._task is not None
            self._task.cancel()
        else:
            self._timer = self._loop.call_later(GONE_CHECK_S, self._look)


def _hold(piece: Piece) -> Piece:
    """Reserve memory for a large piece and its source in the name of the request."""
    if len(piece) > WHOLE_BYTES_MAX:
        hold_copies(len(piece))
    return piece


async def as_they_come(pieces: Iterable[Piece]) -> AsyncIterator[Piece]:
    """Yield pieces that are made without waiting; others have turns between them."""
    turns = Turns()
    for piece in pieces:
        await turns.give()
        yield piece


async def stream(
    request: web.Request,
    pieces: AsyncIterator[Piece],
    headers: Mapping[str, str],
    content_type: str = "application/json",
) -> web.StreamResponse:
    """Send what comes in pieces; raises what they raise while nothing has left.

    Raises:
        UnavailableError: `temporarily_unavailable`: there is no room for a piece.
    """
    held, size = list[Piece](), 0
    async for piece in pieces:
        _share(request)
        held.append(_hold(piece))
        size += len(piece)
        if size > WHOLE_BYTES_MAX:
            break
    else:
        return web.Response(body=b"".join(held), headers=dict(headers), content_type=content_type)
    response = web.StreamResponse(headers=headers)
    response.content_type = content_type
    response.enable_chunked_encoding()
    last = held.pop()
    return await send_pieces(request, response, pieces, [b"".join(held), last])


def _share(request: web.Request) -> None:
    """Reserve the answer's share of the loop beside kv clients."""
    shares = request.app.get(SHARES)
    if shares is not None:
        shares.share()


async def _write(response: web.StreamResponse, piece: Piece) -> None:
    """Send a piece; a large one bit by bit, so that it is not copied and others have turns."""
    if len(piece) <= SENT_BYTES_MAX:
        await response.write(piece)
        return
    view = memoryview(piece)
    for start in range(0, len(view), SENT_BYTES_MAX):
        await response.write(view[start : start + SENT_BYTES_MAX])
        await asyncio.sleep(0)


async def send_pieces(
    request: web.Request,
    response: web.StreamResponse,
    pieces: AsyncIterator[Piece],
    first: Sequence[Piece] = (),
) -> web.StreamResponse:
    """Send the headers, then each piece when it is there; an error cuts the connection."""
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    turns = Turns()
    try:
        for piece in first:
            await _write(response, piece)
        async for piece in pieces:
            _share(request)
            await _write(response, _hold(piece))
            await turns.give()
    except MillstreamError as error:
        _LOG.warning("%s %s was cut off: %s", request.method, page_of(request), loggable(error))
        _cut(request)
        return response
    except ConnectionError as error:
        forget_frames(error)
        _LOG.debug("%s %s: the client has gone", request.method, request.path)
        return response
    await response.write_eof()
    return response


async def send_events(request: web.Request, events: AsyncIterator[bytes]) -> web.StreamResponse:
    """Send server-sent events as they come, for as long as the client is there."""
    response = web.StreamResponse()
    response.content_type = "text/event-stream"
    response.enable_chunked_encoding()
    with WhileThere(request):
        return await send_pieces(request, response, events)


def forget_frames(error: ConnectionError) -> None:
    """Free what the calls that wrote to a closed connection held.

    The future that such a call waited for has the error, and the error's traceback has the call's
    frame, which has the future. The garbage collector, which looks at old objects once in many
    hours, would be the only one to free these and the pieces of the answer.
    """
    error.__traceback__ = None


def _cut(request: web.Request) -> None:
    """End the connection, so that the client does not take a part for the whole."""
    if request.transport is not None:
        request.transport.abort()
