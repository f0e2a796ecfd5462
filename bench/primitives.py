"""Locks, ephemeral sequential elements, watches and idle sessions, beside etcd and ZooKeeper.

How it measures:
1. All groups, of three members each, run at once and take turns under one compiled generator,
   which speaks the protocols of all (primgen.c says what one operation is): rounds in changing
   order, medians of them.
2. Sessions are at the primary. Who watches is at all members, as many at each.
3. Idle sessions give a sign of life as often in each group, which is a fresh one and runs alone.
   Their memory is what its members have more of than just before; of a JVM that is also what it
   has not collected yet.

Elsewhere: the groups (groups.py), the generator (primgen.c), what is printed
(report_coordination.py).
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from groups import SIZE, Etcd, Group, Millstream, ZooKeeper
from report import Verdict
from servers import build_programs, figures_of, run_program, start_program

Figures = dict[str, Any]
KINDS: tuple[type[Group], ...] = (Millstream, Etcd, ZooKeeper)
LOADS = ("lock", "create")
CLIENTS = (1, 16, 64)
VALUE_BYTES = {"lock": 0, "create": 256, "watch": 256}
WATCHERS = 1_000
SESSIONS = 10_000
"""As many as one node takes: nobody else can ask the primary anything meanwhile."""
IDLE_S = 20.0
SETTLE_S = 2.0
"""Between the last session's opening and the time that counts."""
ROUNDS = 3
FLOOR_CLIENTS = 64
WORDS = {"lock": "locks/s", "create": "ephemeral sequential elements/s"}


def measure_primitives(
    directory: Path, seconds: float, watchers: int = WATCHERS, sessions: int = SESSIONS
) -> Figures:
    """Measure every group there is on this machine."""
    kinds = [kind for kind in KINDS if kind.is_installed()]
    with ExitStack() as stack:
        groups = [stack.enter_context(kind(_folder(directory, "loads", kind))) for kind in kinds]
        rows = {
            f"{load} {clients}": in_turns(groups, load, clients, seconds)
            for load in LOADS
            for clients in CLIENTS
        }
        watch = in_turns(groups, "watch", watchers, seconds)
    idle = {kind.name: idle_or_why_not(kind, directory, sessions) for kind in kinds}
    return {
        "rows": rows, "watch": watch, "watchers": watchers, "idle": idle, "sessions": sessions
    }  # fmt: skip


def _folder(directory: Path, name: str, kind: type[Group]) -> Path:
    folder = directory / f"{name}-{kind.name}"
    folder.mkdir()
    return folder


def in_turns(groups: list[Group], operation: str, clients: int, seconds: float) -> Figures:
    """Load the groups in turn; return the medians of each."""
    runs: dict[str, list[Figures]] = {group.name: [] for group in groups}
    for turn in range(ROUNDS):
        first = turn % len(groups)
        for group in groups[first:] + groups[:first]:
            runs[group.name].append(_load(group, operation, clients, seconds))
    return {
        name: {
            key: statistics.median(run[key] for run in found)
            for key in ("operations_per_s", "p50_us", "p99_us", "us")
        }
        for name, found in runs.items()
    }


def _load(group: Group, operation: str, clients: int, seconds: float) -> Figures:
    before = group.cpu_s()
    figures = run_program(
        "primgen", "-p", group.name, "-o", operation, "-c", clients, "-s", seconds,
        "-v", VALUE_BYTES[operation], *_addresses(group),
    )  # fmt: skip
    served = figures["operations"] + figures["uncounted"]
    figures["us"] = (group.cpu_s() - before) / served * 1e6
    return figures


def _addresses(group: Group) -> list[str]:
    """Return where the members are, the primary first."""
    primary = group.primary()
    if primary is None:
        raise RuntimeError(f"{group.name} has no primary while nothing fails")
    return [group.address((primary + number) % SIZE) for number in range(SIZE)]


def idle_or_why_not(kind: type[Group], directory: Path, sessions: int) -> Figures:
    """Return what idle sessions cost, or that a group did not keep them all."""
    try:
        return idle_of(kind, directory, sessions)
    except RuntimeError as error:  # what was measured before is not lost for it
        return {"failed": str(error).rpartition("]: ")[2]}


def idle_of(kind: type[Group], directory: Path, sessions: int, seconds: float = IDLE_S) -> Figures:
    """Open sessions in a group of its own; return what they cost while they are idle."""
    with kind(_folder(directory, "idle", kind)) as group:
        addresses = _addresses(group)
        bytes_before = group.resident_bytes()
        program = start_program(
            "primgen", "-p", kind.name, "-o", "idle", "-c", sessions,
            "-s", seconds + 2 * SETTLE_S, *addresses,
        )  # fmt: skip
        try:
            assert program.stdout is not None
            opened = program.stdout.readline()
            if not opened:
                figures_of(program)  # it says why
            time.sleep(SETTLE_S)
            before, began = group.cpu_s(), time.monotonic()
            time.sleep(seconds)
            used_s, took_s = group.cpu_s() - before, time.monotonic() - began
            bytes_after = group.resident_bytes()
            figures = figures_of(program)
        finally:
            _end(program)
        return {
            "open_per_s": sessions / json.loads(opened)["seconds"],
            "signs_per_s": figures["operations_per_s"],
            "cpu_s_per_s": used_s / took_s,
            "bytes": bytes_after,
            "bytes_per_session": (bytes_after - bytes_before) / sessions,
        }


def _end(program: subprocess.Popen[str]) -> None:
    program.kill()
    program.wait()


def verdicts(found: Figures) -> list[Verdict]:
    """Return the floors and what was measured."""
    judged = []
    for peer in found["watch"].keys() - {"node"}:
        for load in LOADS:
            row = found["rows"][f"{load} {FLOOR_CLIENTS}"]
            ratio = row["node"]["operations_per_s"] / row[peer]["operations_per_s"]
            judged.append(
                Verdict(f"{WORDS[load]}, {FLOOR_CLIENTS} clients, of {peer}", ratio, 1.0)
            )
        ratio = found["watch"]["node"]["p99_us"] / found["watch"][peer]["p99_us"]
        name = f"99th percentile until {found['watchers']:,} watchers heard, of {peer}"
        judged.append(Verdict(name, ratio, 1.0, is_ceiling=True))
    kept = 0 if "failed" in found["idle"]["node"] else found["sessions"]
    judged.append(Verdict("idle sessions kept", kept, found["sessions"]))
    return sorted(judged, key=lambda one: one.name)


def main() -> None:
    """Measure one row of some groups, to look for what is slow."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    names = [kind.name for kind in KINDS]
    parser.add_argument("--group", choices=names, action="append")
    parser.add_argument("--row", choices=(*LOADS, "watch", "idle"), default="lock")
    parser.add_argument("--clients", type=int, default=FLOOR_CLIENTS)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    kinds = [kind for kind in KINDS if kind.name in (options.group or names)]
    build_programs()
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        if options.row == "idle":
            found = {
                kind.name: idle_of(kind, directory, options.clients, options.seconds)
                for kind in kinds
            }
        else:
            groups = [stack.enter_context(kind(_folder(directory, "row", kind))) for kind in kinds]
            found = in_turns(groups, options.row, options.clients, options.seconds)
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
