"""A listening socket with TLS whose connections count from the moment that they are accepted.

Invariants:
1. At most `most` handshakes are under way. For a further one the oldest is cut off, once it has
   had `HANDSHAKE_S_MIN`; until then nobody else is accepted.
2. A handshake that has not ended after `timeout_s` is cut off.
3. Where no descriptor is left the oldest that has had that time is cut off, and nothing else ends.

Elsewhere: who is let in then (`aio.resp_server`, `aio.peers`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from millstream.runtime.tasks import Tasks

__all__ = ["ACCEPT_RETRY_S", "HANDSHAKE_S_MIN", "Handshakes"]

_LOG = logging.getLogger(__name__)
HANDSHAKE_S_MIN: Final = 1.0
"""Shortest time that every client gets, however many others come."""
ACCEPT_RETRY_S: Final = 0.1
"""After an error of the system, as where no descriptor is left, before it is asked again."""


class Handshakes:
    """Of one socket; ended by `close`.

    Args:
        listening: bound, and listened on from now on.
        backlog: connections that may wait to be accepted.
        make: returns the protocol of a connection whose handshake begins.
        timeout_s: how long a handshake may take.
        most: how many may be under way.
    """

    def __init__(
        self,
        listening: socket.socket,
        backlog: int,
        make: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext,
        *,
        timeout_s: float,
        most: int,
    ) -> None:
        self._listening, self._make, self._tls = listening, make, tls
        self._timeout_s, self._most = timeout_s, most
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._under_way: dict[asyncio.Task[None], float] = {}
        """Since when, the oldest first."""
        listening.setblocking(False)
        listening.listen(backlog)
        self._accepting = self._tasks.start(self._accept(), name="accepting connections")

    @property
    def under_way(self) -> int:
        """How many have not ended."""
        return len(self._under_way)

    async def close(self) -> None:
        """Stop listening, and accept no more connections."""
        await self._tasks.stop()
        self._listening.close()

    async def _accept(self) -> None:
        while True:
            try:
                found, _ = await self._loop.sock_accept(self._listening)
            except OSError as error:
                _LOG.warning("a connection cannot be accepted: %s", error)
                if self._under_way and self._oldest_left_s() <= 0:
                    next(iter(self._under_way)).cancel()
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            while len(self._under_way) >= self._most:
                await self._make_room()
            task = self._tasks.start(self._let_in(found), name="handshake of a connection")
            self._under_way[task] = self._loop.time()
            task.add_done_callback(self._under_way.pop)

    def _oldest_left_s(self) -> float:
        since = next(iter(self._under_way.values()))
        return since + HANDSHAKE_S_MIN - self._loop.time()

    async def _make_room(self) -> None:
        """Wait until one has ended, or the oldest has had its time and is cut off."""
        oldest, left_s = next(iter(self._under_way)), self._oldest_left_s()
        ended, _ = await asyncio.wait(
            self._under_way, timeout=max(0, left_s), return_when=asyncio.FIRST_COMPLETED
        )
        if not ended:
            oldest.cancel()
            await asyncio.wait([oldest])

    async def _let_in(self, found: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make, found, ssl=self._tls, ssl_handshake_timeout=self._timeout_s
            )
        except (OSError, RuntimeError) as error:
            _LOG.debug("a handshake failed: %s", error)
