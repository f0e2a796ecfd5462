"""The engine's own floors: append, ingest, read-back, backfill, memory, opening, durable writes.

How it measures:
1. What needs no client runs in a process of its own (engine_rows.py) on the server's processor, in
   processor time, beside a limit from the same process.
2. Opening is the wall time of `Node.start` over the directory of a node that was killed with its
   by-id map nearly a million changes behind, and over that of one that was stopped.
3. Evicted documents are read through the kv port of a node whose memory has room for a fifth.
4. Persisted writes come from the compiled generator, one request at a time per connection, in
   turns with Debian's Redis, which syncs before it answers, too.

Elsewhere: floors of requests, streams and Spark (run.py).
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from millstream import connect
from millstream.client.connection import Connection
from millstream.wire.mcbp import Opcode, request
from report import Verdict
from servers import (
    HERE,
    SERVER_CPUS,
    Node,
    Redis,
    Server,
    machine_cpu_s,
    on_cpus,
    run_program,
)

Figures = dict[str, Any]
PARTITIONS = 64
BUCKET = f"default:{PARTITIONS}"
KEYS = 100_000
VALUE_BYTES = 256
CLIENTS = (1, 64, 256)
PERSIST_LEVEL = 3
QUIET_S = 2.0
EVICTED_KEYS = 300_000
QUOTA = "32MiB"
"""A fifth of what these take."""
TAIL_SHARE = 0.99
"""Of the changes at which a node brings its by-id map up to date."""
FLOORS = {
    "append": 1_000_000,
    "docs": 150_000,
    "updates": 100_000,
    "find": 150_000,
    "backfill": 2_000_000,
}
CEILINGS = {
    "queued_bytes": 450,
    "open_killed_s_per_million": 2.0,
    "open_stopped_s": 0.3,
}
REDIS_RATIOS = {1: 0.61, 64: 0.5, 256: 0.5}
"""Of Redis in the same run. Elsewhere etcd reached 0.61, 0.32 and 0.24 of it."""
PERSISTED_FLOORS = {1: 3_500, 64: 24_000, 256: 25_000}
"""Writes per second of etcd on a quiet machine of this size: asked for where there is no Redis."""
SYNC_US_MAX = 200
"""Of a disk on which those can be asked for: there one record was synced in 120."""


def measure_engine(directory: Path, items: int, rounds: int, seconds: float) -> Figures:
    """Measure all rows."""
    found: Figures = {"items": items, "others_busy": others_busy()}
    for name in ("append", "memory", "ingest"):
        say(name)
        (directory / name).mkdir()
        found[name] = row(name, data=directory / name, items=300_000)
    found["opening"] = measure_opening(directory, int(items * TAIL_SHARE))
    for name in ("find", "backfill"):
        say(name)
        found[name] = row(name, data=directory / "data", items=int(items * TAIL_SHARE))
    found["evicted"] = measure_evicted(directory, seconds)
    found["persisted"] = measure_persisted(directory, rounds, seconds)
    return found


def others_busy() -> float:
    """Return how many processors other programs keep busy now, while nothing of ours runs."""
    before, began = machine_cpu_s(), time.monotonic()
    time.sleep(QUIET_S)
    return (machine_cpu_s() - before) / (time.monotonic() - began)


def row(name: str, *, data: Path, items: int, then: str = "die") -> Figures:
    """Run one row of engine_rows.py and return its figures."""
    done = subprocess.run(
        on_cpus(
            SERVER_CPUS,
            [sys.executable, str(HERE / "engine_rows.py"), name, "--data", str(data),
             "--items", str(items), "--then", then],
        ),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    figures: Figures = json.loads(done.stdout)
    return figures


def measure_opening(directory: Path, items: int) -> Figures:
    """Fill a node, kill it, open what it left several times; then the same after clean stops."""
    say("opening")
    with Node(directory, "--bucket", BUCKET) as node:
        run_program("loadgen", "-o", "fill", "-e", "-c", 10, "-P", 100, "-k", items,
                    "-v", VALUE_BYTES, "-b", "default", "-p", PARTITIONS,
                    "127.0.0.1", node.kv_port)  # fmt: skip
        node.settle()
        node.kill()
    data = directory / "data"
    killed = [row("start", data=data, items=items) for _ in range(3)]
    last = row("start", data=data, items=items, then="stop")
    stopped = [row("start", data=data, items=items, then="stop") for _ in range(3)]
    return {
        "tail": killed[0]["pending"],
        "killed_s": statistics.median(run["seconds"] for run in killed),
        "by_id_s": last["by_id_seconds"] - last["seconds"],
        "stopped_s": statistics.median(run["seconds"] for run in stopped),
    }


def measure_evicted(directory: Path, seconds: float) -> Figures:
    """Read random documents of a node that has a fifth of them in memory."""
    place = directory / "evicted"
    place.mkdir()
    found: Figures = {}
    with Node(place, "--bucket", BUCKET, "--memory-quota", QUOTA) as node:
        address = f"127.0.0.1:{node.kv_port}"
        with connect(address) as client:
            value = bytes(VALUE_BYTES)
            documents = ((b"bench-%09d" % n, value) for n in range(EVICTED_KEYS))
            client.upsert_many(documents).raise_first()
            client.wait_persisted()
        for depth, clients in ((1, 50), (100, 10)):
            say(f"reads of evicted documents, batches of {depth}")
            node.settle()
            before, spent = _read_back(address), node.cpu_s()
            figures = run_program(
                "loadgen", "-o", "get", "-c", clients, "-P", depth, "-s", seconds,
                "-k", EVICTED_KEYS, "-v", VALUE_BYTES, "-b", "default", "-p", PARTITIONS,
                "127.0.0.1", node.kv_port,
            )  # fmt: skip
            node.settle()
            figures["us"] = (node.cpu_s() - spent) / figures["operations"] * 1e6
            in_loop, by_threads = (b - a for a, b in zip(before, _read_back(address), strict=True))
            figures["evicted_share"] = (in_loop + by_threads) / figures["operations"]
            figures["thread_share"] = by_threads / max(1, in_loop + by_threads)
            found[str(depth)] = figures
        found["resident_bytes"] = node.resident_bytes()
    return found


def _read_back(address: str) -> tuple[int, int]:
    """Return how many documents a node has read back, in the loop and by threads."""
    host, _, port = address.rpartition(":")
    figures: dict[bytes, bytes] = {}
    with Connection(host, int(port), bucket="default") as connection:
        connection.send(request(Opcode.STAT, opaque=1))
        while b"" not in figures:
            figures |= {packet.key: packet.value for packet in connection.receive()}
    return (
        int(figures[b"reading_back_in_loop_total"]),
        int(figures[b"reading_back_by_threads_total"]),
    )


def measure_persisted(directory: Path, rounds: int, seconds: float) -> Figures:
    """Measure single persisted writes, the node and Redis in turns."""
    place = directory / "persisted"
    place.mkdir()
    found: Figures = {"sync_us": sync_us(place / "sync")}
    with Node(place, "--bucket", BUCKET) as node:
        durable = ["-d", PERSIST_LEVEL, "-b", "default", "-p", PARTITIONS]
        targets: dict[str, tuple[Server, list[object]]] = {
            "node": (node, [*durable, "127.0.0.1", node.kv_port])
        }
        peer = Redis(place) if Redis.is_installed() else None
        if peer is None:
            say("no redis-server here: persisted writes are measured without it")
        else:
            peer.start()
            targets["redis"] = (peer, ["-r", "127.0.0.1", peer.port])
        try:
            for clients in CLIENTS:
                say(f"persisted writes, {clients} clients")
                found[str(clients)] = _in_turns(targets, clients, rounds, seconds)
        finally:
            if peer is not None:
                peer.stop()
    return found


def _in_turns(
    targets: dict[str, tuple[Server, list[object]]], clients: int, rounds: int, seconds: float
) -> Figures:
    runs: dict[str, list[Figures]] = {name: [] for name in targets}
    for _ in range(rounds):
        for name, (server, where) in targets.items():
            server.settle()
            before = server.cpu_s()
            how = ["-o", "set", "-c", clients, "-s", seconds, "-k", KEYS, "-v", VALUE_BYTES]
            figures = run_program("loadgen", *how, *where)
            figures["us"] = (server.cpu_s() - before) / figures["operations"] * 1e6
            runs[name].append(figures)
    keys = ("operations_per_s", "p50_us", "p99_us", "us")
    found: Figures = {
        name: {key: statistics.median(run[key] for run in some) for key in keys}
        for name, some in runs.items()
    }
    if "redis" in runs:
        found["ratio"] = statistics.median(
            ours["operations_per_s"] / theirs["operations_per_s"]
            for ours, theirs in zip(runs["node"], runs["redis"], strict=True)
        )
    return found


def sync_us(path: Path) -> float:
    """Return the median time of writing and syncing one small record over zeros, in us."""
    times = []
    with path.open("wb", buffering=0) as file:
        file.write(bytes(1 << 20))
        os.fsync(file.fileno())
        for number in range(500):
            began = time.perf_counter()
            os.pwrite(file.fileno(), b"x" * 352, number * 352)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def verdicts(found: Figures) -> list[Verdict]:
    """Return the floors and what was measured."""
    ingest, opening, persisted = found["ingest"], found["opening"], found["persisted"]
    appended = found["append"]["few"]["per_s"]
    judged = [
        Verdict("changes/s appended in the core", appended, FLOORS["append"]),
        Verdict("new documents/s ingested", ingest["docs"]["per_s"], FLOORS["docs"]),
        Verdict("updates/s ingested", ingest["updates"]["per_s"], FLOORS["updates"]),
        Verdict("evicted values/s read back", found["find"]["per_s"], FLOORS["find"]),
        Verdict("items/s backfilled", found["backfill"]["per_s"], FLOORS["backfill"]),
        Verdict("bytes per queued item of 272", found["memory"]["queued"],
                CEILINGS["queued_bytes"], is_ceiling=True),
        Verdict("seconds to open per million changes after a kill",
                opening["killed_s"] / opening["tail"] * 1e6,
                CEILINGS["open_killed_s_per_million"], is_ceiling=True),
        Verdict("seconds to open after a clean stop", opening["stopped_s"],
                CEILINGS["open_stopped_s"], is_ceiling=True),
    ]  # fmt: skip
    for clients in CLIENTS:
        figures = persisted[str(clients)]
        name = f"persisted writes/s, {clients} client{'s' * (clients > 1)}"
        if "ratio" in figures:
            judged.append(Verdict(f"{name}, of Redis", figures["ratio"], REDIS_RATIOS[clients]))
        elif persisted["sync_us"] <= SYNC_US_MAX:
            figure = figures["node"]["operations_per_s"]
            judged.append(Verdict(name, figure, PERSISTED_FLOORS[clients]))
    return judged


def say(text: str) -> None:
    """Tell what is being measured."""
    print(f"-- engine: {text}", file=sys.stderr, flush=True)
