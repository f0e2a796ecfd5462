"""`millstream cluster up`: several nodes on this machine as one cluster, for development.

Invariants:
1. The nodes end with the command, whatever ends it: SIGINT, SIGTERM, or that no majority of them
   lives. One that ends before is told of, with the command that starts it again.
2. Run again over the same directory it brings up the same cluster, on other ports.
3. Addresses are printed once every partition is served, with all its copies.

Elsewhere: one node (`cli.serving.serve`), the other commands (`cli.serving.cluster`).
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
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer

from millstream.cli.connect import JsonOption
from millstream.cli.node_http import path_of
from millstream.cli.serving.cluster_asking import ask_cluster, settled, status_of
from millstream.client.http import HttpClient
from millstream.errors import ConditionError, UnavailableError
from millstream.model.addresses import parse_address

__all__ = ["DATA_DEFAULT", "NODES_MAX", "READY_S", "SETTLED_S", "STOP_S", "up"]

BUCKET: Final = "default"
NODES_MAX: Final = 7
"""Nodes that one machine is asked to run."""
READY_S: Final = 60.0
"""How long a node may take to start."""
SETTLED_S: Final = 180.0
"""How long the cluster may take to be made, and to serve every partition with all copies."""
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
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            metavar="R",
            help="Copies of bucket 'default' besides the active ones. Default 1, of one node 0.",
            min=0,
            max=3,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Start nodes on loopback as one cluster, with a bucket 'default', until interrupted.

    Prints where they are once every partition is served with all its copies.
    """
    with ExitStack() as stack:
        running = _Running(stack)
        ready = [running.start(data / "node1")]
        # Its port is another one each time, so the others are told where it is.
        peer = str(ready[0]["peer"])
        ready += [running.start(data / f"node{n}", "--join", peer) for n in range(2, nodes + 1)]
        _make_cluster(ready, replicas, running.check)
        _show(ready, is_json=json)
        running.wait()


def _make_cluster(
    ready: list[dict[str, Any]], replicas: int | None, watch: Callable[[], None]
) -> None:
    """Make the nodes one cluster, or go on with the one they are; wait until it is whole.

    Raises:
        UnavailableError: `timeout`: it is not, after `SETTLED_S`.
    """
    nodes = [_http_of(node) for node in ready]
    first, is_new = nodes[0], not _is_managed(nodes[0])
    path = path_of("_millstream", "cluster")
    if is_new:
        content = {"name": "", "coordinators": _group_of(len(nodes))}
        first.request("POST", f"{path}/init", content)
    for node in nodes[1:]:
        watch()
        if is_new or not _is_managed(node):
            node.request("POST", f"{path}/join", {"address": first.address})
    settled(first, timeout_s=SETTLED_S, watch=watch)
    if is_new or replicas is not None:
        wanted = min(1, len(nodes) - 1) if replicas is None else replicas
        _give_copies(first, {"replicas": wanted, "strict": replicas is not None})
    ask_cluster(first, "rebalance", {})
    settled(first, timeout_s=SETTLED_S, watch=watch)


def _give_copies(http: HttpClient, copies: dict[str, Any]) -> None:
    """Give the bucket its copies; an empty one is made anew, which is quicker than to move it."""
    path = path_of("_millstream", "buckets", BUCKET)
    bucket = http.request("GET", path)
    if bucket["high_seqno"]:
        http.request("PATCH", path, copies)
        return
    http.request("DELETE", path)
    http.request("PUT", path, {"partitions": bucket["partitions"], **copies})


def _http_of(node: dict[str, Any]) -> HttpClient:
    host, port = parse_address(str(node["http"]), default_port=0)
    return HttpClient(host, port, user=None, password="", tls=None, timeout_s=SETTLED_S)


def _is_managed(http: HttpClient) -> bool:
    try:
        status_of(http)
    except ConditionError as error:
        if error.code != "not_managed":
            raise
        return False
    except UnavailableError:  # it is, and has no quorum before the others are up
        return True
    return True


def _group_of(nodes: int) -> int:
    """Return how many nodes coordinate: of an even number one does not."""
    return max(1, nodes - (nodes + 1) % 2)


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
        again = shlex.join(["millstream", *command[3:]])
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

    def check(self) -> None:
        """Refuse to go on if a node has ended, or this command was interrupted.

        Raises:
            UnavailableError: `not_started`.
        """
        if self._ended.is_set():
            raise UnavailableError("interrupted before the cluster was ready", code="not_started")
        for process in self._processes:
            if process.poll() is not None:
                raise UnavailableError(
                    f"node {process.pid} has stopped with code {process.returncode} before the "
                    "cluster was ready; its log says why",
                    code="not_started",
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
