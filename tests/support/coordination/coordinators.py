"""Coordinators of several nodes in one event loop, on real files and sockets of loopback.

On a busy machine another member may lead at any time. Then a test that asks one node once fails,
though nothing is wrong. A test has the choice of

- `Nodes.ask`, `Nodes.admin` and `support.kv.talking.follow`: ask whoever leads, until it answers;
- `support.kv.talking.done`: the same for changes that answer differently the second time;
- `Nodes.while_one_leads`: run what needs one primary all the time, and run it again if it had two.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
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
VIEWS_MAX = 10
"""So often another primary may interrupt a test."""


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
        async with asyncio.timeout(WAIT_S):
            while not self._is_whole():
                answer = await admin(first, b"GROUP", b"ADD", b"%d" % FIRST_GROUP, *others)
                assert not answer.startswith(b"-") or _is_for_now(answer), answer
                await asyncio.sleep(0.005)  # nobody tells: asked again
        await until(lambda: all(FIRST_GROUP in n.groups.numbered for n in self.running.values()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for number in list(self.running):
            await self.stop(number)

    def _is_whole(self) -> bool:
        """Whether somebody leads a group of all nodes."""
        groups = [node.groups.numbered.get(FIRST_GROUP) for node in self.running.values()]
        leading = [one.replica for one in groups if one is not None and one.replica.leading]
        return any(len(one.members) == self.size for one in leading)

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
        """Ask whoever leads, until it is done.

        Where the answer is not known (UNKNOWN) it is asked again: a change may be made twice.
        """
        async with asyncio.timeout(WAIT_S):
            while True:
                for number in list(self.running):
                    reply = await ask(self.group(number), *argv)
                    if reply.code is Code.OK:
                        return reply
                await asyncio.sleep(0.02)  # nobody tells: asked again

    async def admin(self, *argv: bytes, final: bytes = b"") -> tuple[Coordinator, bytes]:
        """Ask all in turn, until one does it or says why not; return which, and its answer.

        Commands of administrators may be said twice: what was done already is answered as done.
        `final`: begins an answer that is returned although another one may come later.
        """
        async with asyncio.timeout(WAIT_S):
            while True:
                for node in list(self.running.values()):
                    answer = await admin(node, *argv)
                    if not _is_for_now(answer) or (final and answer.startswith(final)):
                        return node, answer
                await asyncio.sleep(0.02)  # nobody tells: asked again

    async def known(self, number: int) -> None:
        """Wait until all nodes know a group with a number."""
        tables = [node.pool.pool.tables for node in self.running.values()]
        await until(lambda: all(one.numbered(number) for one in tables))

    def primary(self) -> int | None:
        """Return which node leads and is heard by a quorum, None unless it is one."""
        replicas = {number: self.group(number).replica for number in self.running}
        leading = [n for n, one in replicas.items() if one.leading and not one.suspended]
        return leading[0] if len(leading) == 1 else None

    async def leader(self) -> int:
        """Wait until one node leads; return which."""
        await until(lambda: self.primary() is not None)
        number = self.primary()
        assert number is not None
        return number

    async def while_one_leads(self, scenario: Callable[[int], Awaitable[None]]) -> None:
        """Run a scenario, given the primary; run it again if it failed and the primary changed.

        The scenario may run several times on what the time before has left.
        """
        for _ in range(VIEWS_MAX):
            number = await self.leader()
            view = self.group(number).replica.view
            try:
                return await scenario(number)
            except Exception:
                if (self.primary(), self.group(number).replica.view) == (number, view):
                    raise
        raise AssertionError(f"another primary interrupted it {VIEWS_MAX} times")


def _is_for_now(answer: bytes) -> bool:
    """Whether a refusal says that another node, or the same one later, may do it."""
    return answer.partition(b" ")[0] in _FOR_NOW


_FOR_NOW = (b"-NOTPRIMARY", b"-BUSY", b"-NOQUORUM", b"-NOTREADY", b"-UNKNOWN")
