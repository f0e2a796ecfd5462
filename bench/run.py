"""`make bench`: measures a node beside Debian's memcached and writes docs/benchmarks.md.

How it measures:
1. Processor time of the server per operation, not wall time; the same compiled generator, the same
   requests and the same processor for both servers, in rounds of every order. What a node leaves
   to do after the last reply (log, by-id map) is counted. Means are compared: compaction falls
   into one round and not into the next. A run that other programs disturbed is repeated a few
   times.
2. A fixed loop of pure Python before and after tells how fast the machine was.
3. A run fails by the floors of what it measured; those of older figures are only shown.

Elsewhere: the change stream (streams.py), the engine (engine.py), views (views.py), Spark
(spark.py), coordination (coordination.py, primitives.py), documents over HTTP (documents.py),
loading beyond memory (loading.py), open consoles (consoles.py), clusters (clusters.py), their
costs (cluster_costs.py), how others fail over (fail_overs.py), what is printed (report.py), the
servers (servers.py).
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import cluster_costs
import clusters
import consoles
import coordination
import documents
import engine
import fail_overs
import loading
import millstream
import primitives
import report
import spark
import streams
import views
from millstream import accelerated
from report import Verdict
from servers import (
    Memcached,
    Node,
    Server,
    build_programs,
    machine_cpu_s,
    run_program,
)

Figures = dict[str, Any]
SOURCES = Path(__file__).resolve().parent.parent / "src"
"""What is measured: of this checkout, and of no other one the environment may have."""
PARTITIONS = 64
KEYS = 100_000
VALUE_BYTES = 256
OTHERS_BUSY_MAX = 0.15
"""Processors kept busy by other programs above which a run counts as disturbed."""
KV_LOADS = {  # name: (operation, connections, requests per batch)
    "get": ("get", 50, 1),
    "set": ("set", 50, 1),
    "get_x100": ("get", 10, 100),
    "set_x100": ("set", 10, 100),
}
RATIO_FLOORS = {"python": {"get": 0.6, "set": 0.45}, "compiled": {"get": 0.65, "set": 0.5}}
"""Of memcached, by how the hot functions run."""
STREAM_ROUNDS = 3
CASES = (
    "kv",
    "streams",
    *spark.CASES,
    "engine",
    "views",
    "coordination",
    "primitives",
    "documents",
    "loading",
    "consoles",
    "clusters",
    "fail_overs",
    "manager",
    "gathering",
    "redundancy",
)


def yardstick_s() -> float:
    """Time a fixed loop of pure Python; best of five, in seconds."""

    def once() -> float:
        started = time.process_time()
        table: dict[int, int] = {}
        for number in range(300_000):
            table[number & 1023] = table.get(number & 1023, 0) + number
        return time.process_time() - started

    return min(once() for _ in range(5))


def cost_of(server: Server, arguments: list[object], tries: int) -> Figures:
    """Run the generator until a run was undisturbed, at most `tries` times; the calmest counts."""
    runs: list[Figures] = []
    while len(runs) < tries and (not runs or runs[-1]["others_busy"] > OTHERS_BUSY_MAX):
        runs.append(_cost_of_once(server, arguments))
    return min(runs, key=lambda run: run["others_busy"])


def _cost_of_once(server: Server, arguments: list[object]) -> Figures:
    """Return the generator's figures with the server's microseconds per operation."""
    server.settle()
    before, machine_before = server.cpu_s(), machine_cpu_s()
    figures = run_program("loadgen", *arguments)
    at_end, machine_at_end = server.cpu_s(), machine_cpu_s()
    server.settle()
    spent, operations = server.cpu_s() - before, figures["operations"]
    return {
        "us": spent / operations * 1e6,
        "us_to_last_reply": (at_end - before) / operations * 1e6,
        "busy": (at_end - before) / figures["seconds"],
        "generator_busy": figures["generator_cpu_s"] / figures["seconds"],
        "others_busy": max(
            0.0, machine_at_end - machine_before - (at_end - before) - figures["generator_cpu_s"]
        )
        / figures["seconds"],
        **{k: figures[k] for k in ("operations_per_s", "p50_us", "p99_us")},
    }


def kv_targets(peer: Memcached | None, node: Node) -> dict[str, tuple[Server, list[object]]]:
    """Return the ports to load: server, and the arguments that address it."""
    plain: list[object] = ["-k", KEYS, "-v", VALUE_BYTES]
    kv = [*plain, "-b", "default", "-p", PARTITIONS]
    targets: dict[str, tuple[Server, list[object]]] = {
        "memcached port": (node, [*plain, "127.0.0.1", node.memcached_port]),
        "kv port": (node, [*kv, "127.0.0.1", node.kv_port]),
    }
    if peer is not None:
        targets["memcached"] = (peer, [*plain, "127.0.0.1", peer.port])
    return targets


def measure_kv(directory: Path, rounds: int, seconds: float, tries: int) -> Figures:
    """Measure GET and SET on memcached and on both ports of a node, in alternating rounds."""
    runs: dict[str, dict[str, list[Figures]]] = {}
    peer = Memcached(directory) if Memcached.is_installed() else None
    if peer is not None:
        peer.start()
    try:
        with Node(directory, "--bucket", f"default:{PARTITIONS}") as node:
            targets = kv_targets(peer, node)
            for _, where in targets.values():
                run_program("loadgen", "-o", "fill", "-P", 100, *where)
            for number in range(rounds):
                for load, (operation, connections, depth) in KV_LOADS.items():
                    say(f"kv round {number + 1} of {rounds}: {load}")
                    how = ["-o", operation, "-c", connections, "-P", depth, "-s", seconds]
                    orders = list(permutations(targets))
                    for name in orders[number % len(orders)]:
                        server, where = targets[name]
                        cost = cost_of(server, [*how, *where], tries)
                        runs.setdefault(load, {}).setdefault(name, []).append(cost)
    finally:
        if peer is not None:
            peer.stop()
    return {load: _summary(by_target) for load, by_target in runs.items()}


def _summary(by_target: dict[str, list[Figures]]) -> Figures:
    peer = by_target.get("memcached")
    summary: Figures = {}
    for name, costs in by_target.items():
        middle = {key: statistics.median(cost[key] for cost in costs) for key in costs[0]}
        middle["us"] = statistics.mean(cost["us"] for cost in costs)
        if peer is not None:
            ratios = [theirs["us"] / ours["us"] for theirs, ours in zip(peer, costs, strict=True)]
            middle["ratio"] = statistics.mean(cost["us"] for cost in peer) / middle["us"]
            middle["ratio_min"], middle["ratio_max"] = min(ratios), max(ratios)
        summary[name] = middle
    return summary


def verdicts(results: Figures) -> list[Verdict]:
    """Return what was measured beside every floor."""
    found: list[Verdict] = []
    hot_functions = results.get("machine", {}).get("hot_functions", "python").partition(":")[0]
    for load, floor in RATIO_FLOORS[hot_functions].items():
        for port, figures in results.get("kv", {}).get(load, {}).items():
            if "ratio" in figures and port != "memcached":
                found.append(Verdict(f"{load} on the {port}", figures["ratio"], floor))
    found += streams.verdicts(results.get("streams", {}))
    found += spark.verdicts(results)
    found += engine.verdicts(results["engine"]) if "engine" in results else []
    found += views.verdicts(results["views"]) if "views" in results else []
    if "coordination" in results:
        found += coordination.verdicts(results["coordination"])
    if "primitives" in results:
        found += primitives.verdicts(results["primitives"])
    found += documents.verdicts(results["documents"]) if "documents" in results else []
    if "loading" in results:
        found += [Verdict(*row) for row in loading.rows(results["loading"])]
    if "consoles" in results:
        found += [Verdict(*row) for row in consoles.rows(results["consoles"])]
    if "clusters" in results:
        found += [Verdict(*row) for row in clusters.verdicts_of(results["clusters"])]
    return found


def machine() -> Figures:
    """Describe the machine."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "processor": model,
        "processors": len(Path("/proc/stat").read_text().split("\ncpu")) - 1,
        "memory_gib": round(memory_kib / 1048576),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "hot_functions": accelerated.state(),
    }


def say(text: str) -> None:
    """Tell what is being measured."""
    print(f"-- {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Measure what was asked for; 1 if a floor is not reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=CASES, action="append")
    parser.add_argument(
        "--rows", choices=streams.ROWS, action="append", help="of the streams alone"
    )
    parser.add_argument("--rounds", type=int, default=6, help="rounds of the loads with clients")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one such load")
    parser.add_argument("--tries", type=int, default=3, help="of a kv load that was disturbed")
    parser.add_argument("--items", type=int, default=1_000_000, help="documents streamed and read")
    parser.add_argument("--documents", type=int, default=500_000, help="of the bucket with views")
    parser.add_argument("--no-report", action="store_true", help="leave docs/benchmarks.md alone")
    options = parser.parse_args()
    options.only = ["streams"] if options.rows else options.only
    cases: dict[str, Callable[[Path], Figures]] = {
        "kv": lambda at: measure_kv(at, options.rounds, options.seconds, options.tries),
        "streams": lambda at: streams.measure_streams(
            at, options.items, STREAM_ROUNDS, options.rows or list(streams.ROWS)
        ),
        "spark": lambda at: spark.measure_rows(at, options.items),
        "spark_streams": lambda at: spark.measure_streams(at, options.items),
        "spark_sinks": spark.measure_sinks,
        "spark_sql": spark.measure_sql,
        "spark_views": spark.measure_views,
        "engine": lambda at: engine.measure_engine(
            at, options.items, options.rounds, options.seconds
        ),
        "views": lambda at: views.measure_views(at, options.documents),
        "coordination": lambda at: coordination.measure_coordination(at, options.seconds),
        "primitives": lambda at: primitives.measure_primitives(at, options.seconds),
        "documents": documents.measure_documents,
        "loading": loading.measure_loading,
        "consoles": consoles.measure_consoles,
        "clusters": clusters.measure_clusters,
        "fail_overs": fail_overs.measure_fail_overs,
        "manager": cluster_costs.measure_manager,
        "gathering": cluster_costs.measure_gathering,
        "redundancy": cluster_costs.measure_redundancy,
    }
    found = Path(millstream.__file__)
    if SOURCES not in found.parents:
        sys.exit(f"{sys.executable} has the Millstream of {found.parent}; `make distclean setup`")
    build_programs()
    results = report.load() if options.only else {}
    former_streams = results.get("streams", {}) if options.rows else {}
    command = "make bench" + (f' ARGS="{" ".join(sys.argv[1:])}"' * (len(sys.argv) > 1))
    results["date"] = time.strftime("%Y-%m-%d", time.gmtime())
    results["command"] = command
    before = yardstick_s()
    chosen = [name for name in cases if not options.only or name in options.only]
    for name, measure in cases.items():
        if name in chosen:
            with tempfile.TemporaryDirectory(prefix="millstream-bench-") as directory:
                results[name] = measure(Path(directory))
            results.setdefault("measured", {})[name] = f"`{command}`, {results['date']}"
    if former_streams:
        results["streams"] = former_streams | results["streams"]
    results["yardstick_s"] = [before, yardstick_s()]
    results["machine"] = machine()
    if not options.no_report:
        report.save(results, verdicts(results))
    print(json.dumps(results, indent=1))
    judged = verdicts({name: results[name] for name in ("machine", *chosen)})
    for one in judged:
        print(f"{'ok    ' if one.is_reached else 'BELOW '} {one.name}: {one.figure:,.2f} "
              f"({'at most' if one.is_ceiling else 'at least'} {one.wanted:,})")  # fmt: skip
    return int(not all(one.is_reached for one in judged))


if __name__ == "__main__":
    sys.exit(main())
