"""A bucket on several real nodes, for tests from outside: its map, its copies, its promotions.

Invariants:
1. A node keeps its addresses when it is started again.
2. Waits are for a condition, each with a time limit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from millstream.model.partitions import partition_of
from millstream.wire.mcbp import Opcode, Packet
from support.kv.nodes_with_map import ask, give_map, map_of
from support.kv.raw_client import RawClient
from support.node.node_process import NodeProcess, kept_ports
from support.node.waiting import WAIT_S, until

BUCKET = "orders"
MAJORITY, PERSISTED_ON_MAJORITY = b"\x11\x01", b"\x11\x03"


class BucketNodes:
    """Nodes named a, b, c ...; `rows`: of the map, by partition."""

    def __init__(self, nodes: Sequence[NodeProcess], rows: Sequence[Sequence[str]]) -> None:
        self.nodes = {chr(ord("a") + n): node for n, node in enumerate(nodes)}
        self.partitions = len(rows)
        for node in nodes:
            node.options += kept_ports()
            node.start()
        self.map = map_of(self.nodes, rows)
        give_map(self.nodes, BUCKET, rows)

    # -- pages

    def call(self, name: str, method: str, path: str, content: Any = None) -> tuple[int, Any]:
        """Ask a page of the bucket; return status and answer."""
        return ask(self.nodes[name], method, f"/buckets/{BUCKET}{path}", content)

    def standing(self, name: str, p: int = 0) -> dict[str, Any]:
        """Return how a node's copy stands."""
        status, answer = self.call(name, "GET", "/standings")
        assert status == 200, answer
        found: dict[str, Any] = answer["standings"][p]
        return found

    def copy(self, name: str, p: int = 0) -> dict[str, Any]:
        """Return a node's copy as shown."""
        status, answer = self.call(name, "GET", f"/partitions/{p}")
        assert status == 200, answer
        found: dict[str, Any] = answer
        return found

    def actives(self, p: int = 0) -> list[str]:
        """Return the running nodes whose copy is active."""
        running = [name for name, node in self.nodes.items() if node.is_running]
        return [name for name in running if self.standing(name, p)["state"] == "active"]

    def until(self, what: Callable[[], object]) -> None:
        """Wait for a condition."""
        until(what, lambda: {n: x.log()[-2000:] for n, x in self.nodes.items()})

    def until_level(self, *names: str) -> None:
        """Wait until these nodes' copies have the same histories and the same end."""

        def is_level() -> bool:
            for p in range(self.partitions):
                found = [self.copy(name, p) for name in names]
                ends = {(one["high_seqno"], one["received_seqno"]) for one in found}
                logs = {json.dumps(one["failover_log"]) for one in found}
                if len(ends) > 1 or len(logs) > 1:
                    return False
            return True

        self.until(is_level)

    def until_whole(self, *names: str) -> None:
        """Wait until these nodes' copies have everything they ever acknowledged."""
        members = ("is_intact", "is_whole")
        every = [(name, p) for name in names for p in range(self.partitions)]
        self.until(lambda: all(self.standing(*one)[m] for one in every for m in members))

    # -- documents, over plain connections

    def put(self, name: str, key: bytes, value: bytes, *, framing: bytes = b"") -> Packet:
        """Write at one node, whoever has the key."""
        with RawClient(self.nodes[name].kv, BUCKET) as client:
            return client.ask(
                Opcode.SET, vbucket=partition_of(key, self.partitions), key=key, value=value,
                extras=bytes(8), framing=framing,
            )  # fmt: skip

    def get(self, name: str, key: bytes) -> Packet:
        """Read at one node."""
        with RawClient(self.nodes[name].kv, BUCKET) as client:
            return client.ask(Opcode.GET, vbucket=partition_of(key, self.partitions), key=key)

    # -- commands

    def start_promotion(self, at: str, *words: str) -> subprocess.Popen[bytes]:
        """Begin `millstream cluster promote`, asking one node."""
        command = [sys.executable, "-m", "millstream", "cluster", "promote", BUCKET, "--json"]
        command += ["--connect", str(self.nodes[at].ready["kv"]), *words]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)
        )

    def promote(self, at: str, *words: str, code: int = 0) -> dict[str, Any]:
        """Run it, and return what it printed."""
        return ended(self.start_promotion(at, *words), code)


def ended(process: subprocess.Popen[bytes], *codes: int) -> dict[str, Any]:
    """Wait for a promotion; return what it printed."""
    out, err = process.communicate(timeout=2 * WAIT_S)
    assert process.returncode in codes, err.decode()
    found: dict[str, Any] = json.loads(out)
    return found
