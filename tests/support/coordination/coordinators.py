"""Coordinators of several nodes in one event loop, on real files and sockets of loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from millstream.coordination.aio.coordinator import Coordinator, Listening
from millstream.coordination.aio.group_runner import GroupRunner
from millstream.coordination.core.pool.effects import FIRST_GROUP
from millstream.coordination.core.pool.messages import Address
from millstream.vsr.core.effects import Code, Reply
from millstream.vsr.core.entries import Body
from support.node.node_process import free_port

GROUP = b"group-of-the-test"[:16]
WAIT_S = 60.0
"""Far longer than anything takes; a busy machine may be slow."""


def bound(port: int | None = None) -> socket.socket:
    """Return a socket of loopback that nobody listens on yet; its port can be had again."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1", free_port() if port is None else port))
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


async def admin(node: Coordinator, *argv: bytes) -> bytes:
    """Have a node carry out an administrator's command."""
    answer = asyncio.get_running_loop().create_future()
    node.requests.admin((b"ADMIN", *argv), answer.set_result)
    return await asyncio.wait_for(answer, WAIT_S)


class Nodes:
    """Nodes of one pool with one group of them all; a context manager."""

    def __init__(self, directory: Path, size: int = 3, **options: Any) -> None:
        self.directory, self.size, self.options = directory, size, options
        self.running: dict[int, Coordinator] = {}
        self.ports: dict[int, int] = {}
        self.coord_ports: dict[int, int] = {}
        self.ninep_ports: dict[int, int] = {}
        self.fatal: list[BaseException] = []

    async def __aenter__(self) -> Self:
        for number in range(self.size):
            await self.start(number)
        first = self.running[0]
        await until(lambda: len(first.pool.pool.tables.others()) == self.size - 1)
        await until(lambda: self.group(0).replica.leading)
        others = [self.running[number].node_id.hex().encode() for number in range(1, self.size)]
        answer = b"-BUSY" if others else b""
        while _is_for_now(answer):  # its first entry is not committed yet
            answer = await admin(first, b"GROUP", b"ADD", b"%d" % FIRST_GROUP, *others)
        assert not answer.startswith(b"-"), answer
        await until(lambda: all(FIRST_GROUP in n.groups.numbered for n in self.running.values()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for number in list(self.running):
            await self.stop(number)

    async def start(self, number: int) -> Coordinator:
        """Start a node, on the ports that it had before; all but the first join the first."""
        listening, coord = bound(self.ports.get(number)), bound(self.coord_ports.get(number))
        self.ports[number] = port = listening.getsockname()[1]
        self.coord_ports[number] = coord_port = coord.getsockname()[1]
        ninep = bound(self.ninep_ports.get(number))
        self.ninep_ports[number] = ninep.getsockname()[1]
        join = (Address("127.0.0.1", self.ports[0]),) if number else ()
        node = self.running[number] = await Coordinator.start(
            self.directory / str(number),
            Listening(
                coord=coord, peer=listening, host="127.0.0.1", peer_port=port,
                coord_port=coord_port, ninep=ninep,
            ),
            join=join, on_fatal=self.fatal.append, **self.options,
        )  # fmt: skip
        return node

    async def stop(self, number: int) -> None:
        """Stop a node."""
        await self.running.pop(number).stop()

    def group(self, number: int) -> GroupRunner:
        """Return the group as a node has it."""
        return self.running[number].groups.numbered[FIRST_GROUP]

    async def ask(self, *argv: bytes) -> Reply:
        """Ask whoever leads, until it is done."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for number in list(self.running):
                    reply = await ask(self.group(number), *argv)
                    if reply.code is Code.OK:
                        return reply
                await asyncio.sleep(0.02)  # nobody tells: asked again

    async def admin(self, *argv: bytes) -> tuple[Coordinator, bytes]:
        """Ask all in turn, until one does it or says why not; return which, and its answer."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for node in list(self.running.values()):
                    answer = await admin(node, *argv)
                    if not _is_for_now(answer):
                        return node, answer
                await asyncio.sleep(0.02)  # nobody tells: asked again

    def primary(self) -> int | None:
        """Return which node leads, None unless it is one."""
        leading = [number for number in self.running if self.group(number).replica.leading]
        return leading[0] if len(leading) == 1 else None

    async def leader(self) -> int:
        """Wait until one node leads; return which."""
        await until(lambda: self.primary() is not None)
        number = self.primary()
        assert number is not None
        return number


def _is_for_now(answer: bytes) -> bool:
    """Whether a refusal says that another node, or the same one later, may do it."""
    return answer.partition(b" ")[0] in (b"-NOTPRIMARY", b"-BUSY", b"-NOQUORUM", b"-NOTREADY")
