"""Groups of three members that a benchmark loads: Millstream, Debian's etcd and ZooKeeper.

Invariants:
1. All write and sync what they acknowledge, on the same disk, with their defaults otherwise, and
   may use all processors: members and load share them, as on any small machine.
2. Every process started here is gone when the `with` block ends.

Elsewhere: what is measured (coordination.py, primitives.py), processes (servers.py).
"""

import json
import shutil
import socket
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from millstream.cli.connect import Who
from millstream.cli.coordination.coord import Coordination
from millstream.errors import MillstreamError
from servers import Node, Server, free_port, run_program

SIZE = 3
FIRST_GROUP = "1"
"""Number of the group that a first node has."""
FORM_S = 60.0
"""How long a group may take to serve, or a member to come back."""
LAG_MAX = 3
"""Entries that a member may lack which is back."""
ZOOKEEPER = Path("/usr/share/java/zookeeper.jar")
"""Of Debian's zookeeper."""


class Group(ABC):
    """Members and where clients find them; `options` are what the load is told."""

    name = ""
    options: tuple[str, ...] = ()

    members: Sequence[Server]

    @abstractmethod
    def __init__(self, directory: Path) -> None: ...

    def __enter__(self) -> Self:
        try:
            for member in self.members:
                member.start()
            self.form()
            until(lambda: self.primary() is not None, f"{self.name} does not serve")
        except BaseException:  # also when interrupted: no server is left behind
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.stop()

    @staticmethod
    def is_installed() -> bool:
        """Whether there is one to measure."""
        return True

    @abstractmethod
    def form(self) -> None:
        """Make one group of the members that were started."""

    @abstractmethod
    def address(self, number: int) -> str:
        """Return where clients find a member."""

    @abstractmethod
    def primary(self) -> int | None:
        """Return which member takes writes; None if none does."""

    @abstractmethod
    def is_back(self, number: int) -> bool:
        """Return whether a member that was started again has what the others have."""

    def cpu_s(self) -> float:
        """Return user and system time of all members so far."""
        return sum(member.cpu_s() for member in self.members)

    def resident_bytes(self) -> int:
        """Return the resident memory of all members."""
        return sum(member.resident_bytes() for member in self.members)

    def kill_primary(self) -> tuple[int, int, list[str]]:
        """End the primary as a kill -9 does; return which it was, when, and who is left."""
        number = until(self.primary, f"{self.name} has no primary", is_wanted=_is_number)
        assert number is not None
        killed_ns = time.monotonic_ns()
        self.members[number].kill()
        left = [self.address(other) for other in range(SIZE) if other != number]
        return number, killed_ns, left

    def bring_back(self, number: int) -> None:
        """Start a member again and wait until nothing is missing there."""
        self.members[number].start()
        until(lambda: self.is_back(number), f"a member of {self.name} does not come back")


def _is_number(found: object) -> bool:
    return found is not None


def until(look: Callable[[], Any], otherwise: str, is_wanted: Callable[[Any], bool] = bool) -> Any:
    """Look until what is found is wanted.

    Raises:
        RuntimeError: it takes too long.
    """
    give_up = time.monotonic() + FORM_S
    while time.monotonic() < give_up:
        with suppress(OSError, ValueError, KeyError, MillstreamError):  # it is not up yet
            if is_wanted(found := look()):
                return found
        time.sleep(0.05)
    raise RuntimeError(otherwise)


class Etcd(Group):
    """Debian's etcd."""

    name = "etcd"
    options = ("-e",)

    def __init__(self, directory: Path) -> None:
        self.ports = [free_port() for _ in range(SIZE)]
        peers = [f"http://127.0.0.1:{free_port()}" for _ in range(SIZE)]
        cluster = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
        self.members = [
            Server(
                ["etcd", "--name", f"m{number}", "--data-dir", str(directory / f"etcd-{number}"),
                 "--listen-client-urls", f"http://{self.address(number)}",
                 "--advertise-client-urls", f"http://{self.address(number)}",
                 "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", cluster, "--log-level", "error"],
                directory / f"etcd-{number}.log", pinned=False,
            )
            for number, peer in enumerate(peers)
        ]  # fmt: skip

    @staticmethod
    def is_installed() -> bool:
        """Whether there is an etcd to compare with."""
        return shutil.which("etcd") is not None

    def address(self, number: int) -> str:
        return f"127.0.0.1:{self.ports[number]}"

    def form(self) -> None:
        """They have been told of each other."""

    def _status(self, number: int) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://{self.address(number)}/v3/maintenance/status", data=b"{}"
        )
        with urllib.request.urlopen(request, timeout=2) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def primary(self) -> int | None:
        for number in range(SIZE):
            with suppress(OSError):
                status = self._status(number)
                if status.get("leader") == status["header"]["member_id"]:
                    return number
        return None

    def is_back(self, number: int) -> bool:
        leader = self.primary()
        if leader is None or leader == number:
            return leader == number
        mine, theirs = self._status(number), self._status(leader)
        return mine.get("leader") == theirs.get("leader") and int(mine["raftAppliedIndex"]) >= int(
            theirs["raftAppliedIndex"]
        )


class ZooKeeper(Group):
    """Debian's ZooKeeper."""

    name = "zookeeper"

    def __init__(self, directory: Path) -> None:
        self.ports = [free_port() for _ in range(SIZE)]
        peers = "".join(
            f"server.{number}=127.0.0.1:{free_port()}:{free_port()}\n" for number in range(SIZE)
        )
        self.members = [
            self._member(directory / f"zookeeper-{number}", number, peers)
            for number in range(SIZE)
        ]

    def _member(self, data: Path, number: int, peers: str) -> Server:
        """Debian's settings; the number of clients is not limited, as it is nowhere else."""
        data.mkdir()
        (data / "myid").write_text(f"{number}\n")
        settings = data / "zoo.cfg"
        settings.write_text(
            f"tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={data}\n"
            f"clientPort={self.ports[number]}\nclientPortAddress=127.0.0.1\n"
            f"maxClientCnxns=0\nadmin.enableServer=false\n{peers}"
        )
        return Server(
            ["java", "-cp", f"/etc/zookeeper/conf:{ZOOKEEPER}",
             "-Dzookeeper.root.logger=WARN,CONSOLE",
             "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(settings)],
            data.with_suffix(".log"), pinned=False,
        )  # fmt: skip

    @staticmethod
    def is_installed() -> bool:
        return ZOOKEEPER.exists() and shutil.which("java") is not None

    def address(self, number: int) -> str:
        return f"127.0.0.1:{self.ports[number]}"

    def form(self) -> None:
        """They have been told of each other; one that does not follow yet drops connections."""
        until(lambda: all(map(self.is_back, range(SIZE))), f"{self.name} does not serve")

    def _mode(self, number: int) -> str:
        with socket.create_connection(("127.0.0.1", self.ports[number]), 2) as connection:
            connection.sendall(b"srvr")
            with connection.makefile() as lines:
                return next((line[6:].strip() for line in lines if line.startswith("Mode: ")), "")

    def primary(self) -> int | None:
        for number in range(SIZE):
            with suppress(OSError):
                if self._mode(number) == "leader":
                    return number
        return None

    def is_back(self, number: int) -> bool:
        return self._mode(number) in ("leader", "follower")


class CoordinationNode(Node):
    """A node that keeps its ports when it is started again."""

    def __init__(self, directory: Path, first: "CoordinationNode | None" = None) -> None:
        directory.mkdir()
        super().__init__(directory, pinned=False)
        self.first = first
        """Which node it is to join."""
        self.client = self.peer = ""

    def start(self) -> None:
        if self.first is not None and "--join" not in self.command:
            self.command += ["--join", self.first.peer]
        super().start()
        self.client, self.peer = self.ready["coord"], self.ready["peer"]
        for listener in ("coord", "peer"):
            self.command[self.command.index(f"--{listener}") + 1] = self.ready[listener]

    def ask(self, *words: str) -> Any:
        """Send a command and return the reply."""
        with Coordination(self.client, Who(None, "")) as connection:
            return connection.ask(*words)


class Millstream(Group):
    """Nodes of Millstream: the first one's group takes the others in."""

    name = "node"

    def __init__(self, directory: Path) -> None:
        first = CoordinationNode(directory / "node-0")
        others = [CoordinationNode(directory / f"node-{n}", first) for n in range(1, SIZE)]
        self.nodes = [first, *others]
        self.members = self.nodes

    def form(self) -> None:
        first = self.nodes[0]

        def known() -> list[str]:
            return [row[b"node"].decode() for row in first.ask("ADMIN", "NODES")]

        ids = until(known, "the nodes do not find each other", lambda found: len(found) == SIZE)
        until(
            lambda: first.ask("ADMIN", "GROUP", "RECONFIG", FIRST_GROUP, *ids),
            "the first node's group does not take the others in",
        )

    def address(self, number: int) -> str:
        return self.nodes[number].client

    def primary(self) -> int | None:
        for number, node in enumerate(self.nodes):
            with suppress(MillstreamError):
                if node.process is not None and node.ask("SET", "bench", "v") == b"OK":
                    return number
        return None

    def is_back(self, number: int) -> bool:
        primary = self.primary()
        if primary is None or primary == number:
            return primary == number
        has, is_there = self._lsn(number, "applied_lsn"), self._lsn(primary, "commit_lsn")
        return has is not None and is_there is not None and has >= is_there - LAG_MAX

    def _lsn(self, number: int, name: str) -> int | None:
        """Return what a member says of its first group; None while it has none."""
        found: dict[bytes, Any] = self.nodes[number].ask("ADMIN", "STATUS", FIRST_GROUP)
        return found.get(name.encode())


def fail_over_s(group: Group, number: int) -> list[float]:
    """Kill the primary so often; return how long each time nothing was acknowledged."""
    found = []
    for _ in range(number):
        killed, killed_ns, left = group.kill_primary()
        figures = run_program("coordgen", *group.options, "-o", "first", *left)
        found.append((figures["acknowledged_ns"] - killed_ns) / 1e9)
        group.bring_back(killed)
    return sorted(found)
