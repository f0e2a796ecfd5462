"""`millstream cluster up`: several nodes on this machine, for development.

Invariants:
1. The nodes end with the command, whatever ends it: SIGINT, SIGTERM, or that no majority of them
   lives. One that ends before is told of, with the command that starts it again.
2. Run again over the same directory it brings up the same nodes, on other ports.

Elsewhere: one node (`cli.serving.serve`), making them one group (`cli.coordination.cluster_pool`).
"""

from __future__ import annotations

import json as json_module
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer

from millstream.cli.connect import JsonOption, Who
from millstream.cli.coordination.cluster_pool import GROUP_DEFAULT, grow, wait_for_nodes
from millstream.cli.coordination.coord import Coordination
from millstream.errors import UnavailableError

__all__ = ["DATA_DEFAULT", "NODES_MAX", "READY_S", "STOP_S", "up"]

NODES_MAX: Final = 7
"""Nodes that one machine is asked to run."""
READY_S: Final = 60.0
"""How long a node may take to start."""
STOP_S: Final = 20.0
"""How long a node may take to stop; then it is killed."""
DATA_DEFAULT: Final = Path("millstream-cluster")
_LISTENERS: Final = ("kv", "http", "coord", "peer")
_FREE: Final = "127.0.0.1:0"
_POLL_S: Final = 0.2


def up(
    nodes: Annotated[
        int, typer.Option("--nodes", metavar="N", help="How many.", min=1, max=NODES_MAX)
    ] = 3,
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="Where their directories are made.")
    ] = DATA_DEFAULT,
    json: JsonOption = False,
) -> None:
    """Start nodes on loopback, coordinating as one group, until this command is interrupted.

    Prints where they are once they are ready. Of an even number one stays without the group.
    """
    with ExitStack() as stack:
        running = _Running(stack)
        ready = [running.start(data / "node1")]
        peer = str(ready[0]["peer"])
        ready += [running.start(data / f"node{n}", "--join", peer) for n in range(2, nodes + 1)]
        with Coordination(str(ready[0]["coord"]), Who(None, "")) as here:
            ids = wait_for_nodes(here, nodes)
            own = [row[b"node"].decode() for row in here.ask("ADMIN", "NODES") if row[b"is_here"]]
            others = [one for one in ids if one not in own]
            members = own + others[: nodes - 1 - (nodes + 1) % 2]
            grow(here, GROUP_DEFAULT, members)
        _show(ready, is_json=json)
        running.wait()


class _Running:
    """The nodes; ended with the stack."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._processes: list[subprocess.Popen[bytes]] = []
        self._again: dict[int, str] = {}
        self._ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._end)
            stack.callback(signal.signal, number, before)
        stack.callback(self._stop)

    def _end(self, _: int, __: FrameType | None) -> None:
        self._ended.set()

    def start(self, directory: Path, *options: str) -> dict[str, Any]:
        """Start a node; return its ready line."""
        command = [sys.executable, "-m", "millstream", "serve", "--data", str(directory)]
        command += [word for name in _LISTENERS for word in (f"--{name}", _FREE)]
        command += ["--no-memcached", "--no-ninep", *options]
        # Who it belongs to is in its directory: it needs nobody to join.
        without = command[3 : len(command) - len(options)]
        again = shlex.join(["millstream", *without])
        directory.parent.mkdir(parents=True, exist_ok=True)
        log = self._stack.enter_context((directory.parent / f"{directory.name}.log").open("ab"))
        # A session of its own: an interrupt from the keyboard reaches this process only.
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
        self._processes.append(process)
        self._again[process.pid] = again
        return self._ready(process, directory)

    def _ready(self, process: subprocess.Popen[bytes], directory: Path) -> dict[str, Any]:
        assert process.stdout is not None
        until = time.monotonic() + READY_S
        while time.monotonic() < until and not self._ended.is_set():
            if select.select([process.stdout], [], [], _POLL_S)[0]:
                if line := process.stdout.readline():
                    ready: dict[str, Any] = json_module.loads(line)
                    return {"data": str(directory), **ready}
                break
        raise UnavailableError(
            f"the node in {directory} does not start: {directory}.log says why", code="not_started"
        )

    def wait(self) -> None:
        """Return when interrupted.

        Raises:
            UnavailableError: no majority of the nodes lives any more.
        """
        while not self._ended.wait(_POLL_S):
            for process in self._processes:
                if process.pid in self._again and process.poll() is not None:
                    again = self._again.pop(process.pid)
                    text = f"node {process.pid} has stopped with code {process.returncode}"
                    print(f"{text}; to start it again: {again}", file=sys.stderr, flush=True)
            if len(self._again) * 2 <= len(self._processes):
                raise UnavailableError("most nodes have stopped; the others are stopped too")

    def _stop(self) -> None:
        for process in self._processes:
            process.terminate()
        until = time.monotonic() + STOP_S
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _show(ready: list[dict[str, Any]], *, is_json: bool) -> None:
    if is_json:
        print(json_module.dumps({"event": "ready", "nodes": ready}), flush=True)
        return
    lines = []
    for node in ready:
        lines += [str(node["data"]), *(f"  {name:5}  {node[name]}" for name in _LISTENERS)]
    print(*lines, "ready; interrupt this command to stop them all", sep="\n", flush=True)
