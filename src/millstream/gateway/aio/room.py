"""Memory that requests hold at a time: bodies, and attachments inside answers.

Invariants:
1. All requests together hold `ROOM_BYTES_MAX` at most; one that wants more than is left is refused
   while it can be, and nobody waits for room, so nobody waits for somebody who waits.
2. What a request holds is given back when it ends.

Elsewhere: bodies (`answers`, `documents_in`), attachments inside answers (`documents_out`),
clients that do not read their answers (`server`).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from millstream.errors import UnavailableError

__all__ = ["ROOM", "ROOM_BYTES_MAX", "Room", "hold", "hold_copies", "hold_in_room"]

ROOM_BYTES_MAX: Final = 512 * 1024 * 1024
_COPIES: Final = 2


class Room:
    """What is left of the memory for requests."""

    def __init__(self, bytes_max: int = ROOM_BYTES_MAX) -> None:
        self.left = bytes_max


class _Held:
    """What one request holds."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._size = 0

    def at_least(self, size: int) -> None:
        more = size - self._size
        if more <= 0:
            return
        if more > self._room.left:
            raise UnavailableError(
                f"requests under way hold all of the {ROOM_BYTES_MAX} bytes there are for them; "
                "try again, or send less at a time",
                code="temporarily_unavailable",
            )
        self._room.left -= more
        self._size = size

    def give_back(self) -> None:
        self._room.left += self._size
        self._size = 0


ROOM: Final = web.AppKey("room", Room)
_held: ContextVar[_Held | None] = ContextVar("held", default=None)


def hold(size: int) -> None:
    """Have the request that runs hold at least so many bytes until it ends.

    Raises:
        UnavailableError: `temporarily_unavailable`: others hold too many.
    """
    held = _held.get()
    if held is not None:
        held.at_least(size)


def hold_copies(size: int) -> None:
    """Hold what is needed to read so many stored bytes, as they are stored and as they are sent.

    Raises:
        UnavailableError: `temporarily_unavailable`: others hold too many.
    """
    hold(_COPIES * size)


@web.middleware
async def hold_in_room(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Release the memory that a request holds when it ends."""
    held = _Held(request.app[ROOM])
    token = _held.set(held)
    try:
        return await handler(request)
    finally:
        _held.reset(token)
        held.give_back()
