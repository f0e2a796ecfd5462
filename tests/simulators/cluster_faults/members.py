"""The nodes of a run as members of one cluster: founded, healed, asked, and administered.

Invariants:
1. Administrators are refused or late while there are faults; that is counted, and is no error.
2. A node that is out of the cluster is emptied before it joins again.

Elsewhere: processes, what happens to them (`coordination_faults.nodes`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from millstream.client.http import HttpClient
from millstream.errors import MillstreamError
from simulators.coordination_faults.network import Network
from simulators.coordination_faults.nodes import LOGIN, Nodes
from support.node.waiting import until

__all__ = ["BUCKET", "COPIES", "FOUNDERS", "LISTENERS", "SETTLE_S_MAX", "Members"]

LISTENERS = {"kv": 11210, "http": 5984, "coord": 7379, "peer": 7380}
BUCKET = "default"
PARTITIONS, COPIES, FOUNDERS = 16, 3, 3
COMMAND_S = 60.0
SETTLE_S_MAX = 300.0
"""From the healing of everything until all copies and index parts are there again."""
_ASK_S = 3.0
_REPEAT_S = 5.0
_SHOWN_LINES = 40
"""Of a log, where something is wrong."""


class Members(Nodes):
    """Nodes 1 to `count`; those up to `FOUNDERS` make the cluster."""

    def __init__(self, folder: Path, network: Network, count: int) -> None:
        super().__init__(folder, network, count)
        self._https = {
            node: HttpClient(
                *network.clients_address(node, "http"),
                user=LOGIN[0], password=LOGIN[1], tls=None, timeout_s=_ASK_S,
            )
            for node in self.numbers
        }  # fmt: skip
        self.has_cancelled = False
        """A plan was cancelled: what it would have moved or filled stays until a rebalance."""

    def _options(self, _: int) -> list[str]:
        return ["--bucket", f"{BUCKET}:{PARTITIONS}"]

    def kv(self, node: int) -> str:
        """Return the address of a node for clients."""
        return "{}:{}".format(*self.network.clients_address(node, "kv"))

    def http(self, node: int) -> HttpClient:
        """Return the HTTP port of a node."""
        return self._https[node]

    # ---- the cluster

    def found(self) -> None:
        """Start the founders and make one cluster of them."""
        self._start(self.numbers)
        self.command(1, "init", "--name", "faults", strict=True)
        for node in range(2, FOUNDERS + 1):
            self.join(node, 1, strict=True)
        words = "bucket", "set", BUCKET, "--replicas", f"{COPIES - 1}"
        self._millstream(1, *words, strict=True)
        self.command(1, "rebalance", "--wait", strict=True)
        until(self.is_settled, lambda: f"{self.cluster_status()}\n{self.log_ends()}", SETTLE_S_MAX)

    def join(self, node: int, at: int, *, strict: bool = False) -> None:
        """Have a node join that is alone."""
        host, port = self.network.peers_address(at, "http")
        self.command(node, "join", f"{host}:{port}", strict=strict)

    def command(self, at: int, *words: str, strict: bool = False) -> dict[str, Any]:
        """Run `millstream cluster ...` at a node; return what it printed as JSON."""
        return self._millstream(at, "cluster", *words, "--json", strict=strict)

    def _millstream(self, at: int, *words: str, strict: bool) -> dict[str, Any]:
        login = {"MILLSTREAM_USER": LOGIN[0], "MILLSTREAM_PASSWORD": LOGIN[1]}
        call = [sys.executable, "-m", "millstream", *words, "--connect", self.kv(at)]
        try:
            done = subprocess.run(
                call, capture_output=True, text=True, timeout=COMMAND_S, check=False,
                env={**os.environ, **login},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            self.counts[f"{' '.join(words[:2])}: no answer"] += 1
            assert not strict, f"{words}: no answer\n{self.log_ends()}"
            return {}
        self.counts[f"{' '.join(words[:2])}: {done.returncode}"] += 1
        assert not strict or not done.returncode, f"{words}: {done.stderr}"
        found: dict[str, Any] = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        return found

    def administer_cluster(self, at: int, *words: str) -> None:
        """Have an administrator say a command while other things happen."""
        self._administrators.submit(self.command, at, *words)

    def administer_join(self, node: int, at: int) -> None:
        """Have an administrator add a node, and give it its share."""

        def add() -> None:
            self.join(node, at)
            self.command(at, "rebalance")

        self._administrators.submit(add)

    def cluster_status(self) -> dict[str, Any]:
        """Return the status as the first node tells it that can; empty: none can."""
        for node in self.numbers:
            if self.processes[node].is_running:
                try:
                    found = self.http(node).request("GET", "/_millstream/cluster")
                except MillstreamError:
                    continue
                if found.get("cluster", {}).get("name") == "faults":
                    return found
        return {}

    def records(self) -> dict[int, dict[str, Any]]:
        """Return what the cluster knows of its members, by the number of the node."""
        numbers = {self.network.peers_address(node)[0]: node for node in self.numbers}
        return {
            numbers[one["host"]]: one
            for one in self.cluster_status().get("nodes", [])
            if one["state"] != "out"
        }

    def members(self) -> list[int]:
        """Return the nodes that are members."""
        return sorted(self.records())

    def is_settled(self) -> bool:
        """Whether all members are in, with all copies and index parts, and nothing is moved."""
        status = self.cluster_status()
        nodes = [one for one in status.get("nodes", []) if one["state"] != "out"]
        buckets = [
            one["partitions"] == one["whole"] == one["served"] == one["indexed"]
            for one in status.get("buckets", [])
        ]
        return (
            len(nodes) >= FOUNDERS
            and all(one["state"] == "in" and one["is_admitted"] for one in nodes)
            and len(buckets) == 1 and all(buckets)
            and not status.get("plan")
            and (status.get("coordination") or {"may_fail": 0})["may_fail"] >= 1
        )  # fmt: skip

    def settle(self) -> list[str]:
        """Wait until everything is there again, as an administrator helps; else say what is not.

        An administrator takes back a node whose copies were handed over, and resets the count of
        automatic fail-overs. After a cancelled plan it asks for a rebalance.
        """
        end, next_s = time.monotonic() + SETTLE_S_MAX, 0.0
        while not self.is_settled():
            now = time.monotonic()
            if now > end:
                text = f"{json.dumps(self.cluster_status())}\n{self.log_ends()}"
                return [f"not settled {SETTLE_S_MAX:g} s after all is healed: {text}"]
            if now > next_s:
                self._help()
                next_s = time.monotonic() + _REPEAT_S
            self._is_over.wait(0.2)
        self.command(1, "failover", "--reset")
        return []

    def _help(self) -> None:
        if self.has_cancelled and not self.cluster_status().get("plan"):
            self.command(1, "rebalance")
            self.has_cancelled = False
        for record in self.records().values():
            if record["state"] == "failed":
                self.command(1, "rebalance", "--add", record["id"])
            elif record["state"] == "joining":
                self.command(1, "rebalance")

    def empty(self, node: int) -> None:
        """Start a node that is out as a new one."""
        self.kill(node)
        folder = self.processes[node].data_dir
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.start(node)

    # ---- what must be so at the end

    def odd_copies(self) -> list[str]:
        """Return what is wrong about copies, once writes are over."""
        copies: dict[int, list[tuple[str, Any]]] = {}
        path = f"/_millstream/buckets/{BUCKET}/standings"
        for node in self.members():
            for one in self.http(node).request("GET", path)["standings"]:
                if one["state"] in ("active", "replica"):
                    place = one["branch_at_end"], one["complete_end"]
                    copies.setdefault(one["partition"], []).append((one["state"], place))
        wrong = [f"partition {one} has no copy" for one in range(PARTITIONS) if one not in copies]
        for partition, found in copies.items():
            actives = [place for state, place in found if state == "active"]
            if len(actives) != 1 or len(found) != COPIES or {p for _, p in found} != {*actives}:
                wrong.append(f"copies of partition {partition}: {found}")
        return wrong

    def log_faults(self) -> list[str]:
        """Return what logs have that no fault of the environment explains."""
        found = []
        for node in self.numbers:
            lines = self.processes[node].log().splitlines()
            found += [
                "\n".join([f"log of node {node}:", *lines[max(0, at - 3) : at + _SHOWN_LINES]])
                for at, line in enumerate(lines)
                if line.startswith(("Traceback", "AssertionError"))
            ]
        return found
