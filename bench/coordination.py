"""Three members of a coordination group beside three of etcd, under the same load.

How it measures:
1. Both groups run at once and take turns under the load, so that the machine is the same; a group
   that nobody asks anything costs next to nothing. Wall time counts here: whoever waits for an
   acknowledgement waits for three processes and their disks. Processor time stands beside it.
2. The generator is compiled, one code for both protocols, and talks to the primary alone.
3. A fail-over lasts from the kill -9 of the primary to the first write that is acknowledged, tried
   anew each 10 ms at the members that are left.
4. Elements of a namespace take turns with registers of the same group, which cost the least, and
   with etcd's keys.

Elsewhere: the groups (groups.py), the generator (coordgen.c), what is printed
(report_coordination.py).
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from groups import Etcd, Group, Millstream, fail_over_s
from report import Verdict
from servers import build_programs, run_program

Figures = dict[str, Any]
CLIENTS = (1, 16, 64, 256)
OPERATIONS = {"put": "writes/s", "get": "reads/s"}
TREE = ("put", "get", "create", "count", "push")
"""What is done to elements, by as many clients as `TREE_CLIENTS`."""
TREE_CLIENTS = 64
TREE_FLOORS = {"put": 1 / 1.2, "get": 1 / 1.2}
"""Of registers."""
_TREE_WORDS = (
    ("CREATENAMESPACE", "/bench"), ("CREATE", "BINARY", "/bench/many"),
    ("CREATE", "COUNTER", "/bench/counter"), ("CREATE", "QUEUE", "/bench/queue"),
    ("CONFIG", "SET", "/bench", "LIMIT.CHILDREN", "1000000"),
    ("CONFIG", "SET", "/bench", "LIMIT.ITEMS", "1000000"),
)  # fmt: skip
KEYS = 10_000
VALUE_BYTES = 256
ROUNDS = 3
FAIL_OVERS = 10
FLOORS = {("put", 64): 1.0, ("put", 256): 1.0, ("get", 64): 1.0}
"""Of etcd, by operation and clients."""
FAIL_OVER_S = 1.0
"""At the median."""


def measure_coordination(directory: Path, seconds: float, fail_overs: int = FAIL_OVERS) -> Figures:
    """Measure writes, reads and fail-overs of both groups."""
    with Millstream(directory) as node:
        if not Etcd.is_installed():
            return measure_groups([node], seconds, fail_overs)
        with Etcd(directory) as etcd:
            return measure_groups([node, etcd], seconds, fail_overs)


def measure_groups(groups: Iterable[Group], seconds: float, fail_overs: int) -> Figures:
    """Measure any groups that run already."""
    groups = list(groups)
    for group in groups:
        run_program("coordgen", *group.options, "-o", "fill", "-k", KEYS, _primary_of(group))
    rows = {
        f"{operation} {clients}": measure_load(groups, operation, clients, seconds)
        for clients in CLIENTS
        for operation in OPERATIONS
    }
    return {
        "rows": rows,
        "tree": measure_tree(groups, seconds),
        "fail_over_s": {group.name: fail_over_s(group, fail_overs) for group in groups},
    }


def measure_tree(groups: list[Group], seconds: float) -> Figures:
    """Let elements of the node's group take turns with its registers, and with etcd's keys."""
    node = next((group for group in groups if isinstance(group, Millstream)), None)
    if node is None:
        return {}
    primary = node.primary()
    assert primary is not None
    for words in _TREE_WORDS:
        node.nodes[primary].ask(*words)
    run_program("coordgen", "-n", "-o", "fill", "-k", KEYS, "-v", VALUE_BYTES, _primary_of(node))
    rows = {}
    for operation in TREE:
        turns = {"elements": (node, ("-n",))}
        if operation in OPERATIONS:
            turns |= {group.name: (group, group.options) for group in groups}
        rows[operation] = _in_turns(turns, operation, TREE_CLIENTS, seconds)
    return rows


def measure_load(groups: list[Group], operation: str, clients: int, seconds: float) -> Figures:
    """Let the groups take turns; return the medians of each."""
    turns = {group.name: (group, group.options) for group in groups}
    return _in_turns(turns, operation, clients, seconds)


def _in_turns(
    turns: dict[str, tuple[Group, tuple[str, ...]]], operation: str, clients: int, seconds: float
) -> Figures:
    """Load groups in turn, each as its options say; return the medians of each."""
    runs: dict[str, list[Figures]] = {name: [] for name in turns}
    for turn in range(ROUNDS):
        for name in list(turns) if turn % 2 == 0 else list(turns)[::-1]:
            group, options = turns[name]
            before = group.cpu_s()
            figures = run_program(
                "coordgen", *options, "-o", operation, "-c", clients, "-s", seconds,
                "-k", KEYS, "-v", VALUE_BYTES, _primary_of(group),
            )  # fmt: skip
            served = figures["operations"] + figures["uncounted"]
            figures["us"] = (group.cpu_s() - before) / served * 1e6
            runs[name].append(figures)
    keys = ("operations_per_s", "p50_us", "p99_us", "us")
    return {
        name: {key: statistics.median(run[key] for run in found) for key in keys}
        for name, found in runs.items()
    }


def _primary_of(group: Group) -> str:
    number = group.primary()
    if number is None:
        raise RuntimeError(f"{group.name} has no primary while nothing fails")
    return group.address(number)


def verdicts(found: Figures) -> list[Verdict]:
    """Return the floors and what was measured."""
    judged = []
    for (operation, clients), floor in FLOORS.items():
        row = found["rows"][f"{operation} {clients}"]
        if "etcd" in row:
            ratio = row["node"]["operations_per_s"] / row["etcd"]["operations_per_s"]
            name = f"coordination, {OPERATIONS[operation]}, {clients} clients, of etcd"
            judged.append(Verdict(name, ratio, floor))
    for operation, floor in TREE_FLOORS.items():
        row = found.get("tree", {}).get(operation, {})
        if row:
            ratio = row["elements"]["operations_per_s"] / row["node"]["operations_per_s"]
            judged.append(Verdict(f"elements, {operation}, of registers", ratio, floor))
    median_s = statistics.median(found["fail_over_s"]["node"])
    judged.append(Verdict("seconds of a fail-over", median_s, FAIL_OVER_S, is_ceiling=True))
    return judged


def main() -> None:
    """Print the figures of one of the groups alone, to look for what is slow."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--group", choices=("node", "etcd"), default="node")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--fail-overs", type=int, default=FAIL_OVERS)
    parser.add_argument("--tree", action="store_true", help="elements beside registers alone")
    options = parser.parse_args()
    build_programs()
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as directory:
        kind = Millstream if options.group == "node" else Etcd
        with kind(Path(directory)) as group:
            if options.tree:
                print(json.dumps(measure_tree([group], options.seconds), indent=1))
                return
            print(
                json.dumps(measure_groups([group], options.seconds, options.fail_overs), indent=1)
            )


if __name__ == "__main__":
    main()
