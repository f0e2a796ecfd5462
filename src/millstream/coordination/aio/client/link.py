"""One connection to a node: commands are sent, and replies are cut from what comes.

Invariants:
1. Replies are handed on in order, in the loop; nothing is handed on after `lost`.

Elsewhere: the bytes (`core.client.wire`), who asks what and repeats it (`group_client`,
`cli.coordination.coord`).
"""

from __future__ import annotations

import asyncio
import fcntl
import ssl
import struct
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Self

from millstream.coordination.core.client.wire import Replies
from millstream.coordination.core.shell.replies import ReplyCutter
from millstream.errors import RemoteProtocolError
from millstream.model.addresses import parse_address

__all__ = ["LONG_BYTES", "PORT", "Link"]

PORT: Final = 7379
"""The default port of nodes for clients of their groups."""
LONG_BYTES: Final = 64 * 1024
"""If more than this was sent since the last reply, it counts whether the node takes it."""


class Link(asyncio.Protocol):
    """One connection.

    Args:
        received: called with each reply.
        lost: called once the connection is gone, with the reason if there is one.
        moving: called if only a part of a reply has come.
        cutter: how replies are cut; None: as Python values.
    """

    transport: asyncio.Transport

    def __init__(
        self,
        received: Callable[[Link, Any], None],
        lost: Callable[[Link, Exception | None], None],
        moving: Callable[[Link], None] = lambda _: None,
        cutter: ReplyCutter | None = None,
    ) -> None:
        self._received, self._lost, self._moving = received, lost, moving
        self._cutter: Replies | ReplyCutter = cutter or Replies()
        self._error: RemoteProtocolError | None = None
        self._written = self._answered = self._left = 0
        """How many bytes were written: all, before the last reply came, and taken when looked."""

    async def connect(self, address: str, tls: ssl.SSLContext | None) -> Self:
        """Connect to a node; `tls`: how to check it, if it speaks TLS.

        Raises:
            OSError: there is no connection.
            UsageError: `bad_address`.
        """
        host, port = parse_address(address, default_port=PORT)
        await asyncio.get_running_loop().create_connection(lambda: self, host, port, ssl=tls)
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = transport  # type: ignore[assignment]

    def send(self, data: bytes) -> None:
        """Send data a little at a time: what TLS has encrypted cannot be withdrawn."""
        self._written += len(data)
        for at in range(0, len(data), LONG_BYTES):
            self.transport.write(data[at : at + LONG_BYTES])

    def has_moved(self) -> bool:
        """Return whether the node has taken some of what is long since this was asked last."""
        waiting = self.transport.get_write_buffer_size()
        left = self._written - waiting - _unacknowledged(self.transport)
        is_long, has_moved = self._written - self._answered > LONG_BYTES, left != self._left
        self._left = left
        return is_long and has_moved

    def data_received(self, data: bytes) -> None:
        """Cut replies and hand them on."""
        is_part = True
        try:
            for reply in self._cutter.feed(data):
                is_part, self._answered = False, self._written
                self._received(self, reply)
        except RemoteProtocolError as error:
            self._error = error
            self.transport.abort()
            return
        if is_part:
            self._moving(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that it is gone."""
        self._lost(self, self._error or exc)


def _unacknowledged(transport: asyncio.Transport) -> int:
    """Return how many bytes the system keeps until the other side has them."""
    found = transport.get_extra_info("socket")
    size = struct.pack("i", 0)
    with suppress(OSError, AttributeError):  # not every system tells
        size = fcntl.ioctl(found.fileno(), termios.TIOCOUTQ, size)
    return int(struct.unpack("i", size)[0])
