"""Nodes of a run: started, joined to one group, killed, stopped, with full disks or wrong clocks.

Invariants:
1. Whatever was started or mounted is gone after `close`.
2. A node that ends by itself is started again by `revive`; that it ended is counted.

Elsewhere: the network (`network`), when what is done (`faults`).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coordination_faults.network import Network, run
from coordination_faults.talk import Connection, Refused
from node_process import NodeProcess
from waiting import until

__all__ = ["LOGIN", "Nodes"]

LOGIN = ("tester", "a word that only tests know")
_SECRET = "a secret that only the nodes of a test share"
_DISK = "size=192m,mode=700"
_FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
_WAIT_S = 2.0
_FORM_S = 60.0
_NOT_YET = ("NOTREADY", "BUSY", "NOQUORUM")


class Nodes:
    """Nodes 1 to `count`, in directories of `folder`."""

    def __init__(self, folder: Path, network: Network, count: int) -> None:
        self.network, self.folder = network, folder
        self.numbers = range(1, count + 1)
        self.counts: Counter[str] = Counter()
        self.has_disks = os.geteuid() == 0
        self.has_clocks = _FAKETIME.exists()
        self._mounted: list[Path] = []
        self._stopped: dict[int, list[int]] = {}
        self.processes = {node: self._process(node) for node in self.numbers}

    def _process(self, node: int) -> NodeProcess:
        folder = self.folder / f"node{node}"
        folder.mkdir(mode=0o700)
        if self.has_disks:
            run("mount", "-t", "tmpfs", "-o", _DISK, "tmpfs", str(folder))
            self._mounted.append(folder)
        env = {"MILLSTREAM_CLUSTER_SECRET": _SECRET}
        if self.has_clocks:
            self._clock(node).write_text("+0")
            env |= {
                "LD_PRELOAD": str(_FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(self._clock(node)),
                "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }  # fmt: skip
        options = ["--no-memcached", "--user", ":".join(LOGIN), *self.network.options(node)]
        if node > 1:
            host, port = self.network.peers_address(1)
            options += ["--join", f"{host}:{port}"]
        return NodeProcess(folder, *options, env=env, prefix=self.network.prefix(node))

    def _clock(self, node: int) -> Path:
        return self.folder / f"clock{node}"

    # ---- what happens to them

    def start(self, node: int) -> None:
        """Start it and wait for its ready line."""
        self.processes[node].start()

    def kill(self, node: int) -> None:
        """SIGKILL, at any moment."""
        self._stopped.pop(node, None)
        self.processes[node].kill()

    def kill_one(self, node: int, rng: random.Random) -> None:
        """SIGKILL to one process of its family, not the first."""
        if children := self.pids(node)[1:]:
            _signal([rng.choice(children)], signal.SIGKILL)

    def pause(self, node: int) -> None:
        """SIGSTOP, the whole family."""
        pids = self.pids(node)
        self._stopped[node] = pids
        _signal(pids, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT to all that were stopped."""
        for pids in self._stopped.values():
            _signal(pids, signal.SIGCONT)
        self._stopped.clear()

    def fill(self, node: int) -> None:
        """Leave no room on its disk."""
        folder = self.processes[node].data_dir
        free = os.statvfs(folder)
        with (folder / "ballast").open("wb") as ballast, contextlib.suppress(OSError):
            os.posix_fallocate(ballast.fileno(), 0, free.f_bavail * free.f_frsize)

    def make_room(self) -> None:
        """Take away what fills disks."""
        for node in self.numbers:
            (self.processes[node].data_dir / "ballast").unlink(missing_ok=True)

    def set_clock(self, node: int, offset_s: int) -> None:
        """Have its wall clock jump so far from the true time."""
        self._clock(node).write_text(f"{offset_s:+d}")

    def revive(self) -> None:
        """Start whoever does not run."""
        for node in self.numbers:
            process = self.processes[node]
            if not process.is_running:
                if process.has_ended:
                    self.counts["ended by itself"] += 1
                    process.kill()
                self.start(node)

    def pids(self, node: int) -> list[int]:
        """Return the processes of a node; none if it does not run."""
        process = self.processes[node]
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return process.pids() if process.is_running else []
        return []

    # ---- their group

    def form(self) -> None:
        """Start them all and make one group of them."""
        for node in self.numbers:
            self.start(node)

        def others() -> list[str]:
            rows = [_fields(row) for row in self.ask(1, "ADMIN", "NODES")]
            return [row["node"] for row in rows if not row["is_here"]]

        if wanted := len(self.numbers) - 1:
            until(lambda: len(others()) == wanted, self.log_ends, _FORM_S)
            self._until_done("ADMIN", "GROUP", "ADD", "1", *others())

    def _until_done(self, *words: str) -> None:
        """Ask node 1 again while it says that it cannot yet, as an administrator would."""

        def is_done() -> bool:
            try:
                self.ask(1, *words, wait_s=_FORM_S)
            except Refused as refused:
                if refused.code not in _NOT_YET:
                    raise
                return False
            return True

        until(is_done, self.log_ends, _FORM_S)

    def ask(self, node: int, *words: str, wait_s: float = _WAIT_S) -> Any:
        """Ask a node as an administrator; Refused or OSError where it does not do it."""
        with _connected(self.network.clients_address(node), wait_s) as connection:
            return connection.call(*words)

    def applied(self, node: int) -> int:
        """Return up to where a node has applied the log of its group."""
        return int(_fields(self.ask(node, "ADMIN", "STATUS", "1"))["applied_lsn"])

    def log_ends(self) -> str:
        """Return the last lines of every node's log."""
        return "\n".join(f"node {n}:\n{self.processes[n].log()[-3000:]}" for n in self.numbers)

    def close(self) -> None:
        """End all of it."""
        self.go_on()
        for process in self.processes.values():
            process.kill()
        for folder in self._mounted:
            subprocess.run(["umount", str(folder)], check=False)


@contextlib.contextmanager
def _connected(address: tuple[str, int], wait_s: float) -> Iterator[Connection]:
    connection = Connection(address, wait_s)
    try:
        connection.call("AUTH", *LOGIN)
        yield connection
    finally:
        connection.close()


def _fields(row: list[Any]) -> dict[str, Any]:
    return dict(zip(row[::2], row[1::2], strict=True))


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
