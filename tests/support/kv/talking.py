"""A client of nodes in the same loop: one command at a time, followed to whoever can do it."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from millstream.coordination.core.client.events import ErrorReply
from millstream.coordination.core.client.wire import Replies, packed
from support.coordination.coordinators import WAIT_S, Nodes

__all__ = ["Talker", "follow"]


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
    """Say it to any node, then to the one that is named, until one does it or says why not."""
    ports = [nodes.coord_ports[number] for number in nodes.running]
    port = ports[0]
    async with asyncio.timeout(WAIT_S):
        while True:
            reply = await once(port, *words)
            if not isinstance(reply, str) or reply.split()[0] not in _ELSEWHERE:
                return reply
            named = reply.rpartition(":")[2]
            is_named = reply.startswith("NOTPRIMARY") and named.isdigit()
            port = int(named) if is_named else ports[(ports.index(port) + 1) % len(ports)]
            if port not in ports:
                port = ports[0]
            await asyncio.sleep(0.02)  # nobody tells: asked again


_ELSEWHERE = ("NOTPRIMARY", "BUSY", "NOQUORUM", "UNKNOWN", "BEHIND", "LOST")
