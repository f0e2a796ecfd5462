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
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from simulators.coordination_faults.network import Network, run
from simulators.coordination_faults.talk import Connection, Refused
from support.node.node_process import NodeProcess
from support.node.waiting import until

__all__ = ["LOGIN", "MEMBERS", "Nodes"]

LOGIN = ("tester", "a word that only tests know")
_SECRET = "a secret that only the nodes of a test share"
_DISK = "size=192m,mode=700"
_INSIDE = Path(__file__).parent / "inside"
_WAIT_S = 2.0
_FORM_S = 180.0
MEMBERS = 3
"""Of the group when a run begins; the other nodes take no part until they are put in."""
_TRIES = 8


class Nodes:
    """Nodes 1 to `count`, in directories of `folder`."""

    def __init__(self, folder: Path, network: Network, count: int) -> None:
        self.network, self.folder = network, folder
        self.numbers = range(1, count + 1)
        self.counts: Counter[str] = Counter()
        self.has_disks = os.geteuid() == 0
        self._mounted: list[Path] = []
        self._stopped: dict[int, list[int]] = {}
        self._administrators = ThreadPoolExecutor(4)
        self._is_over = threading.Event()
        self.processes = {node: self._process(node) for node in self.numbers}

    def _process(self, node: int) -> NodeProcess:
        folder = self.folder / f"node{node}"
        folder.mkdir(mode=0o700)
        if self.has_disks:
            run("mount", "-t", "tmpfs", "-o", _DISK, "tmpfs", str(folder))
            self._mounted.append(folder)
        self._clock(node).write_text("0")
        env = {
            "MILLSTREAM_CLUSTER_SECRET": _SECRET,
            "COORDINATION_FAULTS_CLOCK": str(self._clock(node)),
            "PYTHONPATH": os.pathsep.join(
                [str(_INSIDE), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
        }
        options = ["--no-memcached", "--user", ":".join(LOGIN), *self.network.options(node)]
        options += self._options(node)
        process = NodeProcess(folder, *options, env=env, prefix=self.network.prefix(node))
        process.ready_s = _FORM_S
        return process

    def _options(self, node: int) -> list[str]:
        """Return more options of a node."""
        return ["--join", "{}:{}".format(*self.network.peers_address(1))] if node > 1 else []

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
        self._clock(node).write_text(f"{offset_s}")

    def revive(self) -> None:
        """Start whoever does not run, all at a time."""
        down = [node for node in self.numbers if not self.processes[node].is_running]
        for node in down:
            if self.processes[node].has_ended:
                self.counts["ended by itself"] += 1
                self.processes[node].kill()
        self._start(down)

    def _start(self, nodes: Iterable[int]) -> None:
        with ThreadPoolExecutor() as at_a_time:
            list(at_a_time.map(self.start, nodes))

    def pids(self, node: int) -> list[int]:
        """Return the processes of a node; none if it does not run."""
        process = self.processes[node]
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return process.pids() if process.is_running else []
        return []

    # ---- their group

    def form(self) -> None:
        """Start them all and make one group of some of them."""
        self._start(self.numbers)
        until(self._is_one_group, self.log_ends, _FORM_S)

    def _is_one_group(self) -> bool:
        """Whether it is; if not, bring that about as an administrator would."""
        for node in self.numbers:
            with contextlib.suppress(Refused, OSError):
                told = _fields(self.ask(node, "ADMIN", "STATUS", "1"))
                if len(told["nodes"]) == MEMBERS and told.get("is_quorum_ok"):
                    return True
                ids = [_fields(row)["node"] for row in self.ask(node, "ADMIN", "NODES")]
                wanted = [one for one in ids if one not in told["nodes"]]
                if len(ids) == len(self.numbers) and wanted:
                    wanted = wanted[: MEMBERS - 1]
                    self.ask(node, "ADMIN", "GROUP", "ADD", "1", *wanted, wait_s=_FORM_S)
        return False

    def administer(self, words: Callable[[list[str], list[str]], list[str]]) -> None:
        """Have an administrator say a command about the group until it is answered, or not.

        `words` makes it of the ids of members and of the other nodes. Faults go on meanwhile.
        """
        self._administrators.submit(self._administer, words)

    def _administer(self, words: Callable[[list[str], list[str]], list[str]]) -> None:
        said: list[str] = []
        for attempt in range(_TRIES):
            node = list(self.numbers)[attempt % len(self.numbers)]
            with contextlib.suppress(Refused, OSError):
                told = self.status(node)
                if not said:
                    ids = [_fields(row)["node"] for row in self.ask(node, "ADMIN", "NODES")]
                    members = told["nodes"]
                    said = words(members, [one for one in ids if one not in members])
                answer = self._said_to(_number_in(told["primary"] or ""), said)
                self.counts[f"{said[0]} {answer}"] += 1
                if answer not in ("NOTPRIMARY", "BUSY", "NOQUORUM", "UNKNOWN", "no answer"):
                    return
            if self._is_over.wait(0.3):
                return

    def _said_to(self, node: int, words: list[str]) -> str:
        try:
            self.ask(node, "ADMIN", "GROUP", *words, wait_s=2 * _WAIT_S)
        except Refused as refused:
            return refused.code
        except OSError:
            return "no answer"
        return "OK"

    def ask(self, node: int, *words: str, wait_s: float = _WAIT_S) -> Any:
        """Ask a node as an administrator; Refused or OSError where it does not do it."""
        with _connected(self.network.clients_address(node), wait_s) as connection:
            return connection.call(*words)

    def status(self, node: int) -> dict[str, Any]:
        """Return what a node says of the group."""
        return _fields(self.ask(node, "ADMIN", "STATUS", "1"))

    def is_one(self) -> bool:
        """Whether all members of the newest epoch have applied the same."""
        told = [self.status(node) for node in self.numbers]
        newest = max(one["epoch"] for one in told)
        there = [
            one for one in told if one["epoch"] == newest and one["role"] in ("primary", "backup")
        ]
        if not there or len(there) < len(there[0]["nodes"]):
            return False
        return len({one["applied_lsn"] for one in there}) == 1

    def stop_and_check(self) -> list[str]:
        """Stop all; return what is wrong about how they end or about their files."""
        wrong = []
        for node in self.numbers:
            process = self.processes[node]
            if code := process.stop():
                wrong.append(f"node {node} ended with {code}")
            command = [sys.executable, "-m", "millstream", "check", str(process.data_dir)]
            checked = subprocess.run(command, capture_output=True, text=True, check=False)
            if checked.returncode:
                wrong.append(f"files of node {node}: {checked.stdout}{checked.stderr}")
        return wrong

    def log_ends(self) -> str:
        """Return what each node says of the group, and the last lines of its log."""
        return "\n".join(
            f"node {n}: {self._said_of_group(n)}\n{self.processes[n].log()[-3000:]}"
            for n in self.numbers
        )

    def _said_of_group(self, node: int) -> str:
        try:
            return str(self.status(node))
        except (Refused, OSError) as error:
            return repr(error)

    def close(self) -> None:
        """End all of it."""
        self._is_over.set()
        self._administrators.shutdown()
        self.go_on()
        for process in self.processes.values():
            process.kill()
        for folder in self._mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)


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


def _number_in(address: str) -> int:
    """Return which node is at an address; 1 if that is not known."""
    part = address.rpartition(":")[0].rpartition(".")[2]
    return int(part) if part.isdigit() else 1


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
