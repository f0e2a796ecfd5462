"""Real nodes that lose what they did not flush, and their buckets.

Invariants:
1. A node keeps its addresses over restarts.
2. Whoever finds a node dead that should live starts it again, and it is counted: who plays a
   schedule compares that with what its faults killed.
3. Nodes that do not all come up leave none behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import millstream
from millstream.model.partitions import partition_of
from support.kv.nodes_with_map import ask, give_map
from support.node.node_process import NodeProcess
from support.node.waiting import until

PARTITIONS = 4
NEVER_FLUSH = ("--flush-interval", "600000")
PROMOTION_S = 60
TIMEOUT_S = 30.0
MARKS = [
    next(f"mark{n}" for n in range(1000) if partition_of(b"mark%d" % n, PARTITIONS) == p)
    for p in range(PARTITIONS)
]
"""One key of each partition: a durable write takes along what was written before it."""


class Nodes:
    """Nodes a and b, which lose their tails, and `other`, where sinks are."""

    def __init__(self, folder: Path) -> None:
        self.by_name = {
            name: NodeProcess(folder / name, "--no-memcached", *options)
            for name, options in (("a", NEVER_FLUSH), ("b", NEVER_FLUSH), ("other", ()))
        }
        self.down: set[str] = set()
        """Those that are not to live at present."""
        self.deaths = Counter[str]()
        """How often each was found dead that should live."""
        try:
            for node in self.by_name.values():
                node.start()
                kept = [
                    word for name in ("kv", "http") for word in (f"--{name}", node.ready[name])
                ]
                node.options = (*kept, *node.options)
        except BaseException:  # also when interrupted
            self.close()
            raise

    def close(self) -> None:
        for node in self.by_name.values():
            node.kill()

    def look_after(self) -> None:
        """Start again what was killed by a fault."""
        for name, node in self.by_name.items():
            if name not in self.down and not node.is_running:
                self.deaths[name] += 1
                self.start(name)

    def kill(self, name: str) -> None:
        """SIGKILL, until `start`."""
        self.down.add(name)
        self.by_name[name].kill()

    def start(self, name: str) -> None:
        self.by_name[name].kill()  # what was killed by others is still to be waited for
        self.by_name[name].start()
        self.down.discard(name)

    def pid(self, name: str) -> int:
        return self.by_name[name].pid


class Bucket:
    """A bucket of one node, or of a and b with all that is active on one of them."""

    def __init__(self, nodes: Nodes, name: str, where: str, uuid: str = "") -> None:
        self.nodes, self.name, self.active, self.is_pair = nodes, name, where, bool(uuid)
        if self.is_pair:
            pair = {key: nodes.by_name[key] for key in "ab"}
            give_map(pair, name, [["a", "b"]] * PARTITIONS, uuid=uuid)
            self.promote("a")
            self.until_whole()
        else:
            self._ask(where, "POST", "/buckets", {"name": name, "partitions": PARTITIONS})

    def drop(self) -> None:
        for name in "ab" if self.is_pair else (self.active,):
            self._ask(name, "DELETE", f"/buckets/{self.name}")

    @property
    def hosts(self) -> str:
        names = "ab" if self.is_pair else (self.active,)
        return ",".join(str(self.nodes.by_name[name].ready["kv"]) for name in names)

    def options(self, **more: object) -> dict[str, str]:
        """Return the options of `format("millstream")`."""
        given = {"hosts": self.hosts, "bucket": self.name, **more}
        return {name: str(value) for name, value in given.items()}

    def client(self) -> Any:
        return millstream.connect(self.hosts, bucket=self.name, timeout_s=TIMEOUT_S)

    def write(self, documents: Mapping[str, Any], *, is_durable: bool = False) -> None:
        """Write documents, None for a deletion; durable takes along what came before."""
        with self.client() as client:
            client.apply_many(documents.items()).raise_first()
            if is_durable:
                client.upsert_many([(key, 0) for key in MARKS], durability="persisted")

    def get(self, keys: list[str]) -> dict[str, bytes]:
        with self.client() as client:
            return {key: bytes(found.data) for key, found in client.get_many(keys).items()}

    # -- a pair

    def promote(self, at: str, *words: str) -> None:
        """Run `millstream cluster promote` at a node."""
        address = self.nodes.by_name[at].ready["kv"]
        command = [sys.executable, "-m", "millstream", "cluster", "promote", self.name, "--json"]
        done = subprocess.run(
            [*command, "--connect", address, *words], capture_output=True, timeout=PROMOTION_S,
            env=dict(os.environ), check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
        owners = {one["now"] for one in json.loads(done.stdout)["partitions"]}
        assert len(owners) == 1, owners
        (self.active,) = owners

    def until_whole(self) -> None:
        """Wait until both copies have all that they ever acknowledged, and one follows."""

        def is_whole() -> bool:
            for name in "ab":
                _, told = ask(self.nodes.by_name[name], "GET", f"/buckets/{self.name}/standings")
                if not all(one["is_intact"] and one["is_whole"] for one in told["standings"]):
                    return False
            return True

        until(
            is_whole,
            lambda: {name: node.log()[-2000:] for name, node in self.nodes.by_name.items()},
        )

    def _ask(self, at: str, method: str, path: str, content: Any = None) -> None:
        status, said = ask(self.nodes.by_name[at], method, path, content)
        assert status in (200, 201), said
