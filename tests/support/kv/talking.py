"""A client of nodes in the same loop: one command at a time, followed to whoever can do it."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from millstream.coordination.core.client.events import ErrorReply
from millstream.coordination.core.client.wire import Replies, packed
from support.coordination.coordinators import WAIT_S, Nodes

__all__ = ["Talker", "done", "follow", "once"]


class Talker:
    """A connection to one address for clients; a context manager."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._replies = Replies()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def say(self, *words: str | bytes) -> Any:
        """Return the reply; an error as its text."""
        self._writer.write(packed([w if isinstance(w, bytes) else w.encode() for w in words]))
        while data := await asyncio.wait_for(self._reader.read(65536), WAIT_S):
            for reply in self._replies.feed(data):
                return str(reply) if isinstance(reply, ErrorReply) else reply
        return "LOST"


async def once(port: int, *words: str | bytes) -> Any:
    """Say one thing to a node; LOST if it is not there."""
    try:
        async with Talker(port) as talker:
            return await talker.say(*words)
    except OSError:
        return "LOST"


async def follow(nodes: Nodes, *words: str | bytes) -> Any:
    """Say it to any node, then to the one that is named, until one does it or says why not.

    A change may have been made before it was answered: see `done`.
    """
    return (await _followed(nodes, words))[0]


async def done(nodes: Nodes, *words: str | bytes) -> None:
    """Have something changed.

    Where the answer to one attempt is not known, the next one may answer that there is nothing to
    do: that is right. Any other answer is not. A change that may be made twice, such as PUT, may
    have been.
    """
    reply, is_doubtful = await _followed(nodes, words)
    assert reply == b"OK" or (is_doubtful and _is_done_already(reply)), reply


def _is_done_already(reply: Any) -> bool:
    return reply == b"EXISTS" or str(reply).startswith("ERROR_DOES_NOT_EXISTS")


async def _followed(nodes: Nodes, words: tuple[str | bytes, ...]) -> tuple[Any, bool]:
    """Return the answer, and whether it may have been done before it was answered."""
    is_doubtful = False
    ports = [nodes.coord_ports[number] for number in nodes.running]
    port = ports[0]
    async with asyncio.timeout(WAIT_S):
        while True:
            reply = await once(port, *words)
            if not isinstance(reply, str) or reply.split()[0] not in _ELSEWHERE:
                return reply, is_doubtful
            is_doubtful = is_doubtful or reply.split()[0] in ("UNKNOWN", "LOST")
            named = reply.rpartition(":")[2]
            is_named = reply.startswith("NOTPRIMARY") and named.isdigit()
            port = int(named) if is_named else ports[(ports.index(port) + 1) % len(ports)]
            if port not in ports:
                port = ports[0]
            await asyncio.sleep(0.02)  # nobody tells: asked again


_ELSEWHERE = ("NOTPRIMARY", "BUSY", "NOQUORUM", "UNKNOWN", "BEHIND", "LOST")
