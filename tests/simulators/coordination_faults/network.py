"""The network between the nodes, and what can be done to it: real links, or proxies.

A node's number is the last part of its address. `cut` has what one node sends to another vanish,
`slow` has a node's link be slow, `lose` has it lose some of what comes, `heal` ends all of that.
Clients reach all nodes at all times, so that one that is cut off may be asked, and must not lie.

Invariants:
1. What is cut is silent: nobody is told that a connection has ended.
2. Whatever was made is gone after `close`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from simulators.coordination_faults.talk import Address

__all__ = [
    "COORDINATION",
    "Links",
    "Network",
    "Proxies",
    "has_namespaces",
    "run",
    "run_inside_hub",
]

COORDINATION = {"coord": 7379, "peer": 7380}
"""Listeners of nodes that only coordinate, and their ports behind real links."""
_SLOW = ("rate", "512kbit", "burst", "8kb", "latency", "400ms")
_SLOW_BYTES, _SLOW_S = 2048, 0.03
_LOSSY = ("netem", "loss", "10%")
_LOSSY_ELSE = ("tbf", "rate", "1mbit", "burst", "1600", "limit", "1600")
"""Where the kernel has no netem: a queue that is too short, and drops what comes at once."""
_BREAK_SHARE = 0.02
"""Of what a proxy is given, where it breaks connections in the middle of it."""
_NOBODY = "02:00:00:00:de:ad"
_SUBNET = "10.77.0"
_LINK = "eth0"


class Network(Protocol):
    """Between nodes that are numbered from 1."""

    def options(self, node: int) -> tuple[str, ...]:
        """Return the options of `serve` that are about addresses."""

    def prefix(self, node: int) -> tuple[str, ...]:
        """Return the command that a node is started with."""

    def clients_address(self, node: int, listener: str = "coord") -> Address:
        """Return where clients reach a node."""

    def peers_address(self, node: int, listener: str = "peer") -> Address:
        """Return where other nodes reach it."""

    def cut(self, sender: int, receiver: int) -> None:
        """Lose what `sender` sends to `receiver`."""

    def slow(self, node: int) -> None:
        """Make a node's link slow."""

    def lose(self, node: int) -> None:
        """Have a node's link lose some of what it is given."""

    @property
    def losses(self) -> int:
        """How often that has happened, up to the last healing."""

    def heal(self) -> None:
        """End it all."""

    def close(self) -> None:
        """Take everything away."""


def run(*words: str) -> str:
    """Run a command that has to succeed, and return what it says."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr or done.stdout}"
    return done.stdout


def has_namespaces() -> bool:
    """Whether this process may make network namespaces, and has what makes links slow."""
    probe = "unshare --net ip link add one type veth peer name two && command -v tc"
    made = subprocess.run(["sh", "-c", probe], capture_output=True, check=False)
    return os.geteuid() == 0 and made.returncode == 0


def run_inside_hub(module: str, seed: int) -> int:
    """Run a module again, with the same arguments, in a new namespace for the clients."""
    hub = f"faults{os.getpid()}"
    run("ip", "netns", "add", hub)
    try:
        again = [sys.executable, "-m", module, *sys.argv[1:], "--seed", f"{seed}", "--hub", hub]
        return subprocess.run(["ip", "netns", "exec", hub, *again], check=False).returncode
    finally:
        subprocess.run(["ip", "netns", "del", hub], check=False)


class Links:
    """A namespace for each node, joined by a bridge in a namespace in which the clients are.

    This process must be in the latter, `hub`. Frames that are to be lost are sent to a machine
    that is not there.
    """

    def __init__(self, hub: str, count: int, listeners: Mapping[str, int] = COORDINATION) -> None:
        self.hub, self.count, self._ports = hub, count, listeners
        self._cut: set[tuple[int, int]] = set()
        self._slow: set[int] = set()
        self.losses = 0
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "bridge", "type", "bridge")
        run("ip", "link", "set", "bridge", "up")
        run("ip", "addr", "add", f"{_SUBNET}.100/24", "dev", "bridge")
        try:
            for node in range(1, count + 1):
                self._plug_in(node)
        except BaseException:
            self.close()
            raise

    def _plug_in(self, node: int) -> None:
        space, port = self._space(node), f"port{node}"
        run("ip", "netns", "add", space)
        run("ip", "link", "add", port, "type", "veth", "peer", "name", _LINK, "netns", space)
        run("ip", "link", "set", port, "master", "bridge", "up")
        run("ip", "-n", space, "link", "set", "lo", "up")
        run("ip", "-n", space, "link", "set", _LINK, "up")
        run("ip", "-n", space, "addr", "add", f"{_SUBNET}.{node}/24", "dev", _LINK)

    def _space(self, node: int) -> str:
        return f"{self.hub}-{node}"

    def options(self, node: int) -> tuple[str, ...]:
        host = f"{_SUBNET}.{node}"
        words = [w for one, port in self._ports.items() for w in (f"--{one}", f"{host}:{port}")]
        return (*words, "--advertise", host, "--insecure-plaintext")

    def prefix(self, node: int) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self._space(node))

    def clients_address(self, node: int, listener: str = "coord") -> Address:
        return f"{_SUBNET}.{node}", self._ports[listener]

    def peers_address(self, node: int, listener: str = "peer") -> Address:
        return f"{_SUBNET}.{node}", self._ports[listener]

    def cut(self, sender: int, receiver: int) -> None:
        self._cut.add((sender, receiver))
        run("ip", "-n", self._space(sender), "neigh", "replace", f"{_SUBNET}.{receiver}",
            "lladdr", _NOBODY, "dev", _LINK, "nud", "permanent")  # fmt: skip

    def slow(self, node: int) -> None:
        self._slow.add(node)
        self._shape(node, "tbf", *_SLOW)

    def lose(self, node: int) -> None:
        self._slow.add(node)
        try:
            self._shape(node, *_LOSSY)
        except AssertionError:
            self._shape(node, *_LOSSY_ELSE)

    def _shape(self, node: int, *how: str) -> None:
        run("tc", "-n", self._space(node), "qdisc", "replace", "dev", _LINK, "root", *how)

    def heal(self) -> None:
        for sender, receiver in self._cut:
            there = f"{_SUBNET}.{receiver}"
            run("ip", "-n", self._space(sender), "neigh", "del", there, "dev", _LINK)
        for node in self._slow:
            told = run("tc", "-s", "-n", self._space(node), "qdisc", "show", "dev", _LINK)
            self.losses += sum(map(int, re.findall(r"dropped (\d+)", told)))
            run("tc", "-n", self._space(node), "qdisc", "del", "dev", _LINK, "root")
        self._cut.clear()
        self._slow.clear()

    def close(self) -> None:
        for node in range(1, self.count + 1):
            subprocess.run(
                ["ip", "netns", "del", self._space(node)], capture_output=True, check=False
            )


class Proxies:
    """What nodes say to each other goes through this process, on loopback.

    Node n listens at 127.0.1.n and says that it is at 127.0.2.n, where the proxy is. Which node
    has dialled is seen from whose socket it is. The listeners have ports from `port` on.
    """

    def __init__(
        self,
        count: int,
        port: int,
        pids: Callable[[int], Iterable[int]],
        listeners: Iterable[str] = COORDINATION,
    ) -> None:
        self.count, self.port, self._pids = count, port, pids
        self._ports = {one: port + number for number, one in enumerate(listeners)}
        self._cut: set[tuple[int, int]] = set()
        self._slow: set[int] = set()
        self._lossy: set[int] = set()
        self.losses = 0
        self._chance = random.Random(port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._healed = asyncio.Event()
        for node in range(1, count + 1):
            for there in self._ports.values():
                self._do(self._listen(node, there))

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(10)

    async def _listen(self, node: int, port: int) -> None:
        def dialled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._carry((node, port), reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._servers.append(await asyncio.start_server(dialled, f"127.0.2.{node}", port))

    async def _carry(
        self, to: tuple[int, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        node, port = to
        address = writer.get_extra_info("peername")
        # Looking for the socket takes long on a busy machine; other connections go on meanwhile.
        sender = await self._loop.run_in_executor(None, self._who_dialled, address, port)
        with contextlib.suppress(OSError):
            there_reader, there = await asyncio.open_connection(f"127.0.1.{node}", port)
            forth = self._loop.create_task(self._pump(sender, node, reader, there))
            back = self._loop.create_task(self._pump(node, sender, there_reader, writer))
            try:
                await asyncio.wait((forth, back), return_when=asyncio.FIRST_COMPLETED)
            finally:
                forth.cancel()
                back.cancel()
                await asyncio.gather(forth, back, return_exceptions=True)
                there.close()
                writer.close()
        writer.close()

    def _who_dialled(self, address: Address, to_port: int) -> int:
        port = f":{address[1]:04X}"
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(port) and fields[2].endswith(f":{to_port:04X}"):
                socket = f"socket:[{fields[9]}]"
                for node in range(1, self.count + 1):
                    if any(_has_open(pid, socket) for pid in self._pids(node)):
                        return node
        return 0

    async def _pump(
        self,
        sender: int,
        receiver: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_SLOW_BYTES if self._slow else 65536):
                while (sender, receiver) in self._cut:
                    await self._healed.wait()
                if sender in self._slow or receiver in self._slow:
                    await asyncio.sleep(_SLOW_S)  # a slow line is the fault itself
                is_last = self._breaks(sender, receiver)
                writer.write(data[: len(data) // 2] if is_last else data)
                await writer.drain()
                if is_last:
                    return

    def _breaks(self, sender: int, receiver: int) -> bool:
        """Whether the connection ends now, perhaps in the middle of a message."""
        lossy = bool({sender, receiver} & self._lossy)
        breaks = lossy and self._chance.random() < _BREAK_SHARE
        self.losses += breaks
        return breaks

    def options(self, node: int) -> tuple[str, ...]:
        host = f"127.0.1.{node}"
        words = [w for one, port in self._ports.items() for w in (f"--{one}", f"{host}:{port}")]
        return (*words, "--advertise", f"127.0.2.{node}")

    def prefix(self, node: int) -> tuple[str, ...]:
        return ()

    def clients_address(self, node: int, listener: str = "coord") -> Address:
        return f"127.0.1.{node}", self._ports[listener]

    def peers_address(self, node: int, listener: str = "peer") -> Address:
        return f"127.0.2.{node}", self._ports[listener]

    def cut(self, sender: int, receiver: int) -> None:
        self._loop.call_soon_threadsafe(self._cut.add, (sender, receiver))

    def slow(self, node: int) -> None:
        self._loop.call_soon_threadsafe(self._slow.add, node)

    def lose(self, node: int) -> None:
        self._loop.call_soon_threadsafe(self._lossy.add, node)

    def heal(self) -> None:
        def now() -> None:
            self._cut.clear()
            self._slow.clear()
            self._lossy.clear()
            self._healed.set()
            self._healed = asyncio.Event()

        self._loop.call_soon_threadsafe(now)

    def close(self) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _has_open(pid: int, socket: str) -> bool:
    with contextlib.suppress(OSError):
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(descriptor.path) == socket:
                    return True
    return False
