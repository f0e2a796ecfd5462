"""Coordinators of several nodes in one event loop, on real files and sockets of loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from millstream.coordination.aio.coordinator import Coordinator, Listening, group_id_of
from millstream.coordination.aio.group_runner import GroupRunner
from millstream.coordination.aio.peers import Place
from millstream.coordination.core.effects import Code, Reply
from millstream.coordination.core.entries import Body
from millstream.coordination.core.pool_effects import FIRST_GROUP
from millstream.coordination.core.standing import founded

GROUP = group_id_of(FIRST_GROUP)
WAIT_S = 40.0
"""Far longer than anything takes; a busy machine may be slow."""


def bound(port: int = 0) -> socket.socket:
    """Return a socket of loopback that nobody listens on yet."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1", port))
    found.setblocking(False)
    return found


async def ask(runner: GroupRunner, *argv: bytes, seen: int | None = None) -> Reply:
    """Have a group change something, or read it."""
    answer = asyncio.get_running_loop().create_future()
    if argv[0] == b"GET":
        runner.read(Body(argv=argv), answer.set_result, seen)
    else:
        runner.request(Body(argv=argv), answer.set_result)
    return await asyncio.wait_for(answer, WAIT_S)


async def until(is_so: Callable[[], Any], wait_s: float = WAIT_S) -> Any:
    """Look until it is so; return what was found."""
    async with asyncio.timeout(wait_s):
        while True:
            if found := is_so():
                return found
            await asyncio.sleep(0.005)  # nobody tells: looked at again


class Nodes:
    """A number of nodes that know each other's addresses; a context manager."""

    def __init__(self, directory: Path, size: int = 3, **options: Any) -> None:
        self.directory, self.size, self.options = directory, size, options
        self.running: dict[int, Coordinator] = {}
        self.ports: dict[int, int] = {}
        self.ids: dict[int, bytes] = {}
        self.fatal: list[BaseException] = []

    async def __aenter__(self) -> Self:
        for number in range(self.size):
            await self.start(number)
        members = tuple(sorted(self.ids.values()))
        for node in self.running.values():
            await node.format(founded(GROUP, node.node_id, members))
            await node.open_group(GROUP)
        return self

    async def __aexit__(self, *_: object) -> None:
        for number in list(self.running):
            await self.stop(number)

    async def start(self, number: int) -> Coordinator:
        """Start a node, on the port that it had before."""
        listening = bound(self.ports.get(number, 0))
        node = self.running[number] = await Coordinator.start(
            self.directory / str(number), Listening(peer=listening), joins=True,
            on_fatal=self.fatal.append, **self.options,
        )  # fmt: skip
        self.ports[number], self.ids[number] = listening.getsockname()[1], node.node_id
        for each in self.running.values():
            for other, node_id in self.ids.items():
                each.places[node_id] = Place("127.0.0.1", self.ports[other])
        return node

    async def stop(self, number: int) -> None:
        """Stop a node."""
        await self.running.pop(number).stop()

    def group(self, number: int) -> GroupRunner:
        """Return the group as a node has it."""
        return self.running[number].groups[GROUP]

    async def ask(self, *argv: bytes) -> Reply:
        """Ask whoever leads, until it is done."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for node in list(self.running.values()):
                    reply = await ask(node.groups[GROUP], *argv)
                    if reply.code is Code.OK:
                        return reply
                await asyncio.sleep(0.02)

    def primary(self) -> int | None:
        """Return which node leads."""
        leading = [n for n, node in self.running.items() if node.groups[GROUP].replica.leading]
        return leading[0] if len(leading) == 1 else None
