"""A managed cluster of real nodes, for tests from outside: its members, commands and writers.

Invariants:
1. A node keeps its addresses when it is started again.
2. Waits are for a condition, each with a time limit.
3. What a writer was told is written down before the next write, so that the truth is known.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any, Self

from millstream import connect
from millstream.errors import MillstreamError
from support.http.http_calls import call
from support.node.node_process import NodeProcess, free_port
from support.node.waiting import until

BUCKET = "default"
COMMAND_S = 300.0
_PORTS = ("kv", "http", "coord", "peer")


def run(*words: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run a command; return what it printed and its exit code."""
    return subprocess.run(
        [sys.executable, "-m", "millstream", *words],
        capture_output=True, text=True, timeout=timeout_s, env=dict(os.environ), check=False,
    )  # fmt: skip


class ManagedNodes:
    """Nodes n1, n2, n3 ... of one cluster.

    Args:
        make: makes a node that was not started, in a directory of this name.
        partitions: of the bucket `default` of the first node.
        login: an administrator, where there are users. Commands take it from the environment.
        tls: of connections to the nodes' pages.
    """

    def __init__(
        self,
        make: Callable[..., NodeProcess],
        partitions: int = 16,
        *,
        login: tuple[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._make = make
        self._partitions = partitions
        self._login, self._tls = login, tls
        self.nodes: dict[str, NodeProcess] = {}

    def start(self, name: str) -> NodeProcess:
        """Start a new node, alone."""
        ports = [word for one in _PORTS for word in (f"--{one}", f"127.0.0.1:{free_port()}")]
        node = self.nodes[name] = self._make(
            "--no-memcached", "--bucket", f"{BUCKET}:{self._partitions}", *ports, name=name
        )
        node.start()
        return node

    def command(self, at: str, *words: str, code: int = 0) -> dict[str, Any]:
        """Run `millstream cluster ... --json` at a node; return what it printed."""
        place = ("--connect", str(self.nodes[at].ready["kv"]))
        done = run("cluster", *words, "--json", *place, timeout_s=COMMAND_S)
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        found: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
        return found

    def bucket(self, at: str, *words: str) -> None:
        """Run `millstream bucket ...` at a node."""
        done = run("bucket", *words, "--connect", str(self.nodes[at].ready["kv"]))
        assert done.returncode == 0, (words, done.stdout, done.stderr)

    def found(self, *names: str, replicas: int = 1, coordinators: int = 3) -> Self:
        """Make a cluster of new nodes, and have the bucket on all of them."""
        first = names[0]
        self.start(first)
        self.command(first, "init", "--name", "test", "--coordinators", str(coordinators))
        for name in names[1:]:
            self.join(name, first)
        self.bucket(first, "set", BUCKET, "--replicas", str(replicas))
        self.command(first, "rebalance", "--wait")
        self.until_whole()
        if len(names) >= coordinators >= 3:
            until(lambda: self.may_fail(first) >= 1, lambda: {"status": self.status(first)})
        return self

    def may_fail(self, at: str) -> int:
        """Return how many nodes that coordinate may fail, as a node tells it."""
        coordination = self.status(at).get("coordination") or {"may_fail": 0}
        return int(coordination["may_fail"])

    def join(self, name: str, to: str) -> None:
        """Start a node and have it join."""
        self.start(name)
        self.command(name, "join", str(self.nodes[to].ready["http"]))

    def ask(
        self, at: str, path: str, login: tuple[str, str] | None = None
    ) -> tuple[int, Any]:  # fmt: skip
        """Return status and JSON of a page of a node."""
        base = self.nodes[at].http
        return call(base, "GET", path, login=login or self._login, tls=self._tls)

    def status(self, at: str) -> dict[str, Any]:
        """Return the status of the cluster as one node tells it; empty: it cannot tell."""
        status, answer = self.ask(at, "/_millstream/cluster")
        found: dict[str, Any] = answer if status == 200 else {}
        return found

    def state_of(self, name: str, at: str) -> str:
        """Return the state of a member as another node tells it; empty: it cannot tell."""
        nodes = self.status(at).get("nodes", [])
        return next((str(one["state"]) for one in nodes if one["name"] == name), "")

    def running(self) -> list[str]:
        """Return the names of the nodes that run."""
        return [name for name, node in self.nodes.items() if node.is_running]

    def standings(self, at: str, bucket: str = BUCKET) -> list[dict[str, Any]]:
        """Return how a node's copies stand."""
        status, answer = self.ask(at, f"/_millstream/buckets/{bucket}/standings")
        assert status == 200, answer
        found: list[dict[str, Any]] = answer["standings"]
        return found

    def actives(self, names: list[str] | None = None) -> dict[int, list[str]]:
        """Return which of these nodes have each partition active; None: of all that run."""
        found: dict[int, list[str]] = {}
        for name in names or self.running():
            for one in self.standings(name):
                if one["state"] == "active":
                    found.setdefault(one["partition"], []).append(name)
        return found

    def until_whole(self, at: str | None = None) -> None:
        """Wait until no plan is left and every partition has all its copies."""
        asked = at or self.running()[0]

        def is_whole() -> bool:
            status = self.status(asked)
            buckets = status.get("buckets", [])
            return (
                bool(buckets)
                and not status.get("plan")
                and all(one["partitions"] == one["whole"] == one["served"] for one in buckets)
            )

        until(is_whole, lambda: {"status": self.status(asked), **self.logs()})

    def until_served(self, names: list[str]) -> float:
        """Wait until each partition is active on one of these nodes; return after how long."""
        begun = time.monotonic()
        every = list(range(self._partitions))
        until(
            lambda: sorted(self.actives(names)) == every,
            lambda: {"actives": self.actives(names), **self.logs()},
        )
        return time.monotonic() - begun

    def until_all_in(self) -> None:
        """Wait until every node is a member with a session, and every partition is whole."""
        asked = self.running()[0]

        def is_so() -> bool:
            known = self.status(asked).get("nodes", [])
            return len(known) == len(self.nodes) and all(
                one["state"] == "in" and one["has_session"] and one["is_admitted"] for one in known
            )

        until(is_so, lambda: {"status": self.status(asked), **self.logs()})
        self.until_whole(asked)

    def go_through_changes(self, writer: Writer, *, writes: int) -> None:
        """Let n2 fail over and come back, and n4 join; documents are written all the time."""

        def until_written() -> None:
            before = writer.count
            until(lambda: writer.count > before + writes, lambda: (writer.errors, self.logs()))

        self.nodes["n2"].kill()
        self.until_served(["n1", "n3"])
        until_written()
        self.nodes["n2"].start()
        self.until_whole("n1")
        self.join("n4", "n1")
        self.command("n1", "rebalance", "--wait")
        self.until_whole("n1")
        assert any("n4" in at for at in self.actives().values())
        until_written()

    def logs(self) -> dict[str, str]:
        """Return the ends of the nodes' logs."""
        return {name: node.log()[-3000:] for name, node in self.nodes.items()}


class Writer:
    """Writes documents with a majority's acknowledgement until it is stopped.

    `known`: key -> value last acknowledged. `errors`: what failed; `gap_s`: the longest time
    between two acknowledgements.
    """

    def __init__(self, nodes: ManagedNodes, keys: int = 200) -> None:
        self.known: dict[str, int] = {}
        self.tried: dict[str, int] = {}
        self.errors: list[str] = []
        self.gap_s = 0.0
        self.count = 0
        self._seeds = [node.kv for node in nodes.nodes.values() if node.is_running]
        self._keys = keys
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        last = time.monotonic()
        number = 0
        others = [f"{h}:{p}" for h, p in self._seeds]
        while not self._stop.is_set():
            try:
                with connect(others, bucket=BUCKET, timeout_s=15.0) as client:
                    while not self._stop.is_set():
                        key = f"w{number % self._keys}"
                        number += 1
                        self.tried[key] = number
                        client.upsert(key, {"n": number}, durability="majority")
                        self.known[key] = number
                        now = time.monotonic()
                        self.gap_s, last = max(self.gap_s, now - last), now
                        self.count += 1
            except MillstreamError as error:
                self.errors.append(f"{type(error).__name__}: {error}")

    def check(self, nodes: ManagedNodes) -> None:
        """Fail unless every acknowledged write is there, or a later one that was tried.

        The writer has stopped.
        """
        assert self.count, self.errors
        others = [f"{h}:{p}" for h, p in (nodes.nodes[n].kv for n in nodes.running())]
        with connect(others, bucket=BUCKET, timeout_s=30.0) as client:
            for key, number in self.known.items():
                found = client.get(key)
                assert found is not None, f"{key} is lost, it was {number}"
                assert number <= found.value["n"] <= self.tried[key], (key, number, found.value)


class Poller:
    """Asks a view of all nodes in turn, `stale=ok`; its documents never change.

    `short`: answers that lacked rows; `refused`: answers other than 200.
    """

    DOCUMENTS = 200

    def __init__(self, nodes: ManagedNodes) -> None:
        self.short: list[Any] = []
        self.refused: list[str] = []
        self.count = 0
        self._nodes = nodes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        first = nodes.running()[0]
        with connect([f"{h}:{p}" for h, p in [nodes.nodes[first].kv]], bucket=BUCKET) as client:
            for number in range(self.DOCUMENTS):
                client.upsert(f"p{number}", {"polled": number}, durability="majority")
        design = {"views": {"all": {"map": "function (d) { if (d.polled >= 0) emit(d.polled) }"}}}
        self._ask(first, "PUT", "/default/_design/polled", design)
        until(lambda: self._rows(first) == self.DOCUMENTS, lambda: nodes.logs())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _ask(self, name: str, method: str, path: str, content: Any = None) -> Any:
        body = None if content is None else json.dumps(content).encode()
        headers = {"Content-Type": "application/json"}
        url = f"{self._nodes.nodes[name].http}{path}"
        asked = urllib.request.Request(url, body, headers, method=method)
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return json.load(answer)

    def _rows(self, name: str) -> int | None:
        """Return the number of rows; None: it was refused."""
        try:
            answer = self._ask(name, "GET", "/default/_design/polled/_view/all?stale=ok")
        except (OSError, ValueError) as error:
            self.refused.append(str(error))
            return None
        return len(answer["rows"])

    def _run(self) -> None:
        while not self._stop.is_set():
            for name in self._nodes.running():
                found = self._rows(name)
                self.count += found is not None
                if found not in (None, self.DOCUMENTS):
                    self.short.append((name, found))
