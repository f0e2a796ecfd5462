"""The nodes of the demonstration's cluster, and the commands that an operator gives them.

Invariants:
1. A node keeps its addresses and its directory when it is started again.
2. Every wait has a time limit; when it is over the error says what was waited for.

Elsewhere: processes (`children`), the play (`cluster`).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from millstream.client.http import HttpClient
from millstream.demo.children import READY_S, Child, serve_words
from millstream.errors import MillstreamError, UnavailableError
from millstream.model.addresses import parse_address

__all__ = ["Members", "wait_until"]

SETTLED_S: Final = 180.0
COMMAND_S: Final = 240.0
ANSWER_S: Final = 10.0
_LISTENERS: Final = ("kv", "http", "coord", "peer")
_POLL_S: Final = 0.25


def wait_until(is_so: Callable[[], bool], what: str, wait_s: float = SETTLED_S) -> None:
    """Look until it is so.

    Raises:
        UnavailableError: `timeout`: it is not so after `wait_s` seconds; says what was waited for.
    """
    deadline = time.monotonic() + wait_s
    while not is_so():
        if time.monotonic() > deadline:
            raise UnavailableError(f"waited {wait_s:.0f} s for: {what}", code="timeout")
        time.sleep(_POLL_S)


class Members:
    """Nodes n1, n2, ... on loopback.

    Args:
        work_dir: for their directories and logs.
        bucket: NAME:PARTITIONS of the bucket that the first node has.
    """

    def __init__(self, work_dir: Path, bucket: str) -> None:
        self._work_dir, self._bucket = work_dir, bucket
        self._running: dict[str, Child] = {}
        self._ready: dict[str, dict[str, Any]] = {}
        self._joined: set[str] = set()
        self._starts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*self._running]:
            self.stop(name)

    @property
    def names(self) -> list[str]:
        """The members that run."""
        return [name for name in self._running if name in self._joined]

    @property
    def kv_addresses(self) -> str:
        """HOST:PORT of the kv listeners of the members that run, separated by commas."""
        return ",".join(str(self._ready[name]["kv"]) for name in self.names)

    def start(self, name: str) -> None:
        """Start a node, or start it again.

        Raises:
            UnavailableError: `child_ended`, `timeout`.
        """
        ready = self._ready.get(name, {})
        listeners = {each: str(ready.get(each, "127.0.0.1:0")) for each in _LISTENERS}
        self._starts += 1
        words = serve_words(self._work_dir / "nodes" / name, listeners)
        words += [] if self._ready else ["--bucket", self._bucket]
        child = Child(self._work_dir, f"{name}-{self._starts}", words)
        try:
            self._ready[name] = child.wait_for_lines(1, READY_S)[0]
        except BaseException:  # also when interrupted: no child is left running
            child.stop()
            raise
        self._running[name] = child

    def kill(self, name: str) -> None:
        """Kill a node as `kill -9` does."""
        self._running.pop(name).kill()

    def stop(self, name: str) -> int:
        """Stop a node cleanly; return its exit code."""
        return self._running.pop(name).stop()

    def command(self, at: str, *words: str) -> dict[str, Any]:
        """Run a command at a node; return what it printed as JSON, if anything.

        Raises:
            UnavailableError: `command_failed`: with what it wrote to stderr.
        """
        call = [sys.executable, "-m", "millstream", *words, "--connect", self._ready[at]["kv"]]
        try:
            done = subprocess.run(call, capture_output=True, timeout=COMMAND_S, check=False)
        except subprocess.TimeoutExpired as late:
            text = f"`millstream {' '.join(words)}` takes longer than {COMMAND_S:.0f} s"
            raise UnavailableError(text, code="timeout") from late
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            text = f"`millstream {' '.join(words)}` failed with code {done.returncode}: {said}"
            raise UnavailableError(text, code="command_failed")
        text = done.stdout.decode().strip()
        found: dict[str, Any] = msgspec.json.decode(text) if text.startswith("{") else {}
        return found

    def found(self, *names: str) -> None:
        """Start nodes, and make them one cluster with the name of the demonstration."""
        first = names[0]
        for name in names:
            self.start(name)
        self.command(first, "cluster", "init", "--name", "demo", "--json")
        self._joined.add(first)
        for name in names[1:]:
            self.join(name, first)

    def join(self, name: str, to: str) -> None:
        """Have a node join that was started."""
        self.command(name, "cluster", "join", str(self._ready[to]["http"]), "--json")
        self._joined.add(name)

    def http(self, name: str) -> HttpClient:
        """Return the HTTP port of a node."""
        host, port = parse_address(str(self._ready[name]["http"]), default_port=0)
        return HttpClient(host, port, user=None, password="", tls=None, timeout_s=ANSWER_S)

    def status(self, at: str) -> dict[str, Any]:
        """Return the status of the cluster as one node tells it; empty: it cannot tell now."""
        try:
            return self.http(at).request("GET", "/_millstream/cluster")
        except MillstreamError:
            return {}

    def until_whole(self, at: str, bucket: str) -> None:
        """Wait until no plan is left, and the bucket has all its copies and index parts.

        Raises:
            UnavailableError: `timeout`.
        """

        def is_whole() -> bool:
            found = self.status(at)
            return not found.get("plan") and any(
                one["partitions"] == one["whole"] == one["served"] == one["indexed"]
                for one in found.get("buckets", [])
                if one["name"] == bucket
            )

        wait_until(is_whole, f"every partition of {bucket} is served with all its copies")

    def until_served(self, at: str, bucket: str, without: str) -> None:
        """Wait until every partition is served, and none by a node that is gone.

        Raises:
            UnavailableError: `timeout`.
        """

        def is_served() -> bool:
            found = self.status(at)
            nodes = {one["name"]: one for one in found.get("nodes", [])}
            return (
                without in nodes
                and not nodes[without]["active"]
                and any(
                    one["partitions"] == one["served"]
                    for one in found["buckets"]
                    if one["name"] == bucket
                )
            )

        wait_until(is_served, f"every partition of {bucket} is served without {without}")

    def until_out(self, name: str, at: str) -> None:
        """Wait until a node is no member any more.

        Raises:
            UnavailableError: `timeout`.
        """

        def is_out() -> bool:
            nodes = self.status(at).get("nodes", [])
            return any(one["name"] == name and one["state"] == "out" for one in nodes)

        wait_until(is_out, f"{name} is out of the cluster")
