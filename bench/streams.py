"""The floors of the change stream: sinks, what one more costs, readers in Python, latency, a
backlog in the log, a reader that stands still. Debian's Redis with a stream is the peer.

How it measures:
1. Every sink is a process of its own on the load's processors; items/s are those of all sinks
   together, from the first one's request to the last one's end. A pass before is not counted.
2. What one more sink costs is the server's processor time with `SINKS_MANY` less that with one,
   per item and sink: what is spent once per item (looking, counting) is not its cost.
3. Writes at a fixed rate carry the time of their sending; node and Redis take turns. Redis syncs
   its file each second, as late as the node's log at the latest.
4. One reader stands still while others' writes replace every document several times; resident
   memory is read all the while, and compared with the same without that reader.

Elsewhere: the programs (sink.c, latency.c, redstream.c, stream_rows.py), floors of requests and
Spark (run.py), of the engine (engine.py).
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import Verdict
from servers import (
    HERE,
    LOAD_CPUS,
    Node,
    Redis,
    Server,
    figures_of,
    on_cpus,
    run_program,
    start_program,
)

Figures = dict[str, Any]
PARTITIONS = 64
BUCKET = f"default:{PARTITIONS}"
VALUE_BYTES = 256
MEMORY_SHARE = 4
"""One part in so many of the documents is what a bucket keeps in memory for readers to come."""
SINKS = (1, 4, 16)
SINKS_MANY = max(SINKS)
PROFILES = {"canonical": [], "other": ["-g"], "without JSON": ["-u"]}
"""How the sink asks, see sink.c: as our own readers, as gocbcore, as clients of old."""
WRITES_PER_S = 10_000
REDIS_FLUSH = "everysec"
QUOTA_MIB = 256
STALLED_KEYS = 100_000
STALLED_WRITES = 12
"""Times that every document is replaced: several times what the quota has room for."""
SAMPLE_S = 0.02
FLOORS = {"memory": 3_000_000, "log": 1_000_000, "python": 1_000_000, "of_redis": 1.0}
SINK_US_MAX = {"canonical": 0.15, "other": 0.30, "without JSON": 0.30}
STALLED_MAX = 1.0
"""Of the quota."""


def measure_streams(directory: Path, items: int, rounds: int, rows: list[str]) -> Figures:
    """Measure the rows asked for."""
    return {name: ROWS[name](_made(directory / name), items, rounds) for name in rows}


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def fill(node: Node, items: int, *, keys: int = 0) -> None:
    """Write `items` JSON documents through the kv port and let the log catch up."""
    run_program("loadgen", "-o", "fill", "-e", "-c", 10, "-P", 100, "-k", keys or items,
                "-v", VALUE_BYTES, "-b", "default", "-p", PARTITIONS,
                "127.0.0.1", node.kv_port)  # fmt: skip
    node.settle()


# -- sinks


def measure_sinks(directory: Path, items: int, rounds: int) -> Figures:
    """Measure items/s from memory to 1, 4 and 16 sinks, and what a sink costs, by profile."""
    found: Figures = {"items": items // MEMORY_SHARE}
    with Node(directory, "--bucket", BUCKET) as node:
        fill(node, found["items"])
        for profile, how in PROFILES.items():
            counts = SINKS if profile == "canonical" else (1, SINKS_MANY)
            found[profile] = {}
            for sinks in counts:
                say(f"{sinks} sinks, {profile}")
                _sinks_run(node, found["items"], how, sinks)
                runs = [_sinks_run(node, found["items"], how, sinks) for _ in range(rounds)]
                found[profile][str(sinks)] = _median(runs)
            one, many = (found[profile][str(n)]["server_s"] for n in (1, SINKS_MANY))
            found[profile]["more_us"] = (many - one) / (SINKS_MANY - 1) / found["items"] * 1e6
    return found


def _sinks_run(node: Node, items: int, how: list[str], sinks: int) -> Figures:
    node.settle()
    before = node.cpu_s()
    programs = [
        start_program("sink", "-b", "default", *how, "127.0.0.1", node.kv_port)
        for _ in range(sinks)
    ]
    each = [figures_of(program) for program in programs]
    if any(one["items"] != items for one in each):
        raise RuntimeError(f"sinks saw {[one['items'] for one in each]} of {items} items")
    server_s = node.cpu_s() - before
    began, ended = (f(one[k] for one in each) for f, k in ((min, "started_ns"), (max, "ended_ns")))
    seconds = (ended - began) / 1e9
    return {
        "items_per_s": sinks * items / seconds,
        "bytes_per_s": sum(one["bytes"] for one in each) / seconds,
        "server_s": server_s,
        "us_per_item": server_s / items / sinks * 1e6,
        "sinks_busy": sum(one["sink_cpu_s"] for one in each) / seconds,
    }


def _median(runs: list[Figures]) -> Figures:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def measure_log(directory: Path, items: int, rounds: int) -> Figures:
    """Measure the catching up of a backlog that no memory has: after a restart, from the log."""
    say(f"a backlog of {items:,} changes")
    node = Node(directory, "--bucket", BUCKET)
    with node:
        fill(node, items)
        node.stop()
        node.start()
        runs = [_sinks_run(node, items, [], 1) for _ in range(rounds)]
    return {**_median(runs), "first_items_per_s": runs[0]["items_per_s"], "items": items}


def measure_python(directory: Path, items: int, rounds: int) -> Figures:
    """Measure readers in Python, without ring and sink."""
    found: Figures = {"items": items // MEMORY_SHARE}
    with Node(directory, "--bucket", BUCKET) as node:
        fill(node, found["items"])
        for row in ("bulk", "core"):
            say(f"a reader in Python: {row}")
            command = [sys.executable, str(HERE / "stream_rows.py"), row, "--port",
                       str(node.kv_port), "--items", str(found["items"])]  # fmt: skip
            done = subprocess.run(
                on_cpus(LOAD_CPUS, command), check=True, stdout=subprocess.PIPE, text=True
            )
            found[row] = json.loads(done.stdout)["items_per_s"]
    return found


# -- the peer


def measure_redis(directory: Path, items: int, rounds: int) -> Figures:
    """Measure a Redis stream of the same values, read from its start, beside one sink."""
    found: Figures = {"items": items // MEMORY_SHARE}
    if not Redis.is_installed():
        say("no redis-server here: nothing to compare with")
        return found
    with (
        Node(directory, "--bucket", BUCKET) as node,
        Redis(directory, fsync=REDIS_FLUSH) as peer,
    ):
        say("a Redis stream")
        fill(node, found["items"])
        where = ("127.0.0.1", peer.port, found["items"], VALUE_BYTES)
        run_program("redstream", "fill", *where)
        ours, theirs = list[Figures](), list[Figures]()
        for _ in range(rounds + 1):  # the first pass is not counted
            ours.append(_sinks_run(node, found["items"], [], 1))
            peer.settle()
            before = peer.cpu_s()
            run = run_program("redstream", "read", *where)
            run["us_per_item"] = (peer.cpu_s() - before) / found["items"] * 1e6
            theirs.append(run)
    keys = ("items_per_s", "us_per_item")
    for name, runs in (("node", ours), ("redis", theirs)):
        found[name] = _median([{key: run[key] for key in keys} for run in runs[1:]])
    found["ratio"] = found["node"]["items_per_s"] / found["redis"]["items_per_s"]
    return found


def measure_latency(directory: Path, items: int, rounds: int) -> Figures:
    """Measure how long after its sending a write is seen, at a fixed rate."""
    found: Figures = {"writes_per_s": WRITES_PER_S}
    rate = ("-w", WRITES_PER_S)
    with Node(directory, "--bucket", BUCKET) as node:
        targets: dict[str, tuple[Server, list[object]]] = {
            "node": (node, [*rate, "-p", PARTITIONS, "127.0.0.1", node.kv_port])
        }
        peer = Redis(directory, fsync=REDIS_FLUSH) if Redis.is_installed() else None
        if peer is not None:
            peer.start()
            targets["redis"] = (peer, [*rate, "-r", "127.0.0.1", peer.port])
        runs: dict[str, list[Figures]] = {name: [] for name in targets}
        try:
            for number in range(rounds):
                say(f"write to seen, round {number + 1} of {rounds}")
                for name, (server, arguments) in targets.items():
                    runs[name].append(_latency_run(server, arguments))
        finally:
            if peer is not None:
                peer.stop()
    for name, some in runs.items():
        found[name] = _median(some)
    return found


def _latency_run(server: Server, arguments: list[object]) -> Figures:
    server.settle()
    before = server.cpu_s()
    run = run_program("latency", *arguments)
    us = (server.cpu_s() - before) / run["writes"] * 1e6
    return {"us_per_write": us, **{key: run[key] for key in ("p50_us", "p99_us", "writer_late_s")}}


# -- a reader that stands still


def measure_stalled(directory: Path, items: int, rounds: int) -> Figures:
    """Measure the node's memory while everything is replaced, with and without such a reader."""
    found: Figures = {"quota_mib": QUOTA_MIB}
    for name in ("alone", "stalled"):
        say(f"memory of the node, {name}")
        place = _made(directory / name)
        with Node(place, "--bucket", BUCKET, "--memory-quota", f"{QUOTA_MIB}MiB") as node:
            before = node.resident_bytes()
            fill(node, STALLED_KEYS)
            reader = start_program("sink", "-r", 1, "127.0.0.1", node.kv_port)
            try:
                if name == "alone":
                    reader.kill()
                most, written = _replace_all(node)
            finally:
                reader.kill()
                reader.communicate()
        found[name] = {"growth_mib": (most - before) / (1 << 20), "written_mib": written}
    return found


def _replace_all(node: Node) -> tuple[int, float]:
    """Replace the documents; return the most resident bytes meanwhile, and MiB of values sent."""
    most = 0
    for _ in range(STALLED_WRITES):
        writer = start_program("loadgen", "-o", "fill", "-e", "-c", 10, "-P", 100, "-k",
                               STALLED_KEYS, "-v", VALUE_BYTES, "-b", "default", "-p", PARTITIONS,
                               "127.0.0.1", node.kv_port)  # fmt: skip
        while writer.poll() is None:
            most = max(most, node.resident_bytes())
            time.sleep(SAMPLE_S)
        figures_of(writer)
    return most, STALLED_WRITES * STALLED_KEYS * VALUE_BYTES / (1 << 20)


ROWS: dict[str, Callable[[Path, int, int], Figures]] = {
    "sinks": measure_sinks, "log": measure_log, "python": measure_python,
    "redis": measure_redis, "latency": measure_latency, "stalled": measure_stalled,
}  # fmt: skip


def verdicts(found: Figures) -> list[Verdict]:
    """Return the floors of the rows that were measured."""
    judged: list[Verdict] = []
    if sinks := found.get("sinks"):
        figure = sinks["canonical"]["1"]["items_per_s"]
        judged.append(Verdict("items/s from memory to one sink", figure, FLOORS["memory"]))
        for profile, most in SINK_US_MAX.items():
            name = f"processor us/item of one more sink, {profile} profile"
            judged.append(Verdict(name, sinks[profile]["more_us"], most, is_ceiling=True))
    if log := found.get("log"):
        judged.append(Verdict("items/s from the log", log["items_per_s"], FLOORS["log"]))
    if python := found.get("python"):
        for row, name in (("bulk", "the bulk reader"), ("core", "the consumer's core")):
            judged.append(Verdict(f"items/s to {name} in Python", python[row], FLOORS["python"]))
    if "ratio" in found.get("redis", {}):
        ratio = found["redis"]["ratio"]
        judged.append(Verdict("items/s from memory, of Redis", ratio, FLOORS["of_redis"]))
    if stalled := found.get("stalled"):
        share = stalled["stalled"]["growth_mib"] / stalled["quota_mib"]
        name = "memory with a reader that stands still, of the quota"
        judged.append(Verdict(name, share, STALLED_MAX, is_ceiling=True))
    return judged


def say(text: str) -> None:
    """Tell what is being measured."""
    print(f"-- streams: {text}", file=sys.stderr, flush=True)
