"""A managed cluster of three nodes: fail-over after kill -9, moves beside a writer, idle cost.

And one machine with one engine and with two: how much more two of them write.

How it measures:
1. A fail-over lasts from the kill -9 of all processes of a node to the next write of a key of it
   that a majority acknowledges. The client repeats it every 10 ms. The killed node is by turns one
   that only has data, the orchestrator, the primary of coordination, and both of these. The parts
   of a fail-over are read in the logs of the other nodes.
2. A writer counts errors, and the longest time between two acknowledgements, while a fourth node
   is added and removed again. Its p99 stands beside that of the same writer without moves.
3. The idle cost is the processor time of all processes of a node, without clients.
4. One engine and two take turns, on all processors, with the load generators beside them: one
   generator for each engine, with keys of its partitions. Writes ask for no durability.

Elsewhere: the report (report.py), the runner (run.py).
"""

import asyncio
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import millstream
from millstream.coordination.aio.client.asking import ask_node
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.errors import MillstreamError
from servers import BUILD, CPUS, Server, figures_of, free_port, on_cpus

Figures = dict[str, Any]
FAIL_OVERS = 30
PARTITIONS = 64
IDLE_S = 20.0
WRITER_S = 10.0
WAIT_S = 120.0
RETRY_S = 0.01
P50_S_MAX = 1.5
P99_S_MAX = 3.0
ENGINE_ROUNDS = 5
ENGINE_S = 4
ENGINE_CLIENTS = 20
ENGINE_DEPTH = 50
ENGINE_RATIO_MIN = 1.2
"""By how much two engines write more than one on two processors that the load shares."""
P99_TIMES_MAX = 2.0
"""How much slower 99 of 100 writes may be while partitions move."""
ROLES = ("data", "orchestrator", "primary", "both")
"""What the killed node is, by turns."""
PHASES = {
    "detected": re.compile(r"has no session any more|this node is the orchestrator, token"),
    "decided": re.compile(r"fail over \S+: silent: written"),
    "active": re.compile(r"copies became active in branch"),
    "mapped": re.compile(r"data map: written"),
}
"""Lines of the log that end a part of a fail-over."""
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.]+)Z ")
_LISTENERS = ("kv", "http", "coord", "peer")


class Member(Server):
    """A node that keeps its ports."""

    has_ready_line = True

    def __init__(self, directory: Path, name: str) -> None:
        self.ports = {listener: free_port() for listener in _LISTENERS}
        command = [sys.executable, "-m", "millstream", "serve", "--data", str(directory / name)]
        command += ["--no-memcached", "--no-ninep", "--bucket", f"default:{PARTITIONS}"]
        for listener, port in self.ports.items():
            command += [f"--{listener}", f"127.0.0.1:{port}"]
        super().__init__(command, directory / f"{name}.log", pinned=False)

    def start(self) -> None:
        """Start it, and wait for its ready line."""
        super().start()
        self.ready_line()

    @property
    def kv(self) -> str:
        """Return the address for clients."""
        return f"127.0.0.1:{self.ports['kv']}"

    def say(self, *words: str) -> str:
        """Run a command at this node."""
        done = subprocess.run(
            [sys.executable, "-m", "millstream", *words, "--connect", self.kv],
            capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{words}: {done.stderr}")
        return done.stdout

    def status(self) -> Figures:
        """Return the status of the cluster."""
        found: Figures = json.loads(self.say("cluster", "status", "--json"))
        return found

    def coordinate(self, *words: bytes) -> Any:
        """Ask the coordination port of this node."""
        return asyncio.run(ask_node(AsyncClient([f"127.0.0.1:{self.ports['coord']}"]), *words))


class Machine(Server):
    """A machine with one engine or several, on free ports."""

    has_ready_line = True

    def __init__(self, directory: Path, engines: int) -> None:
        command = [sys.executable, "-m", "millstream", "serve"]
        command += ["--data", str(directory / f"engines-{engines}"), "--engines", str(engines)]
        command += ["--no-memcached", "--no-ninep", "--bucket", f"default:{PARTITIONS}"]
        command += [word for name in _LISTENERS for word in (f"--{name}", "127.0.0.1:0")]
        self.kv = ""
        super().__init__(command, directory / f"engines-{engines}.log", pinned=False)

    def start(self) -> None:
        """Start it, and keep its address."""
        super().start()
        self.kv = json.loads(self.ready_line())["kv"]

    def partitions(self) -> dict[int, list[int]]:
        """Return the partitions of each engine, by its kv port."""
        found: dict[int, list[int]] = {}
        with millstream.connect(self.kv) as client:
            for partition in range(PARTITIONS):
                found.setdefault(client.router.node_of(partition).port, []).append(partition)
        return found


def measure_clusters(directory: Path) -> Figures:
    """Measure fail-overs, a rebalance and the idle cost."""
    engines = measure_engines(directory)
    with ExitStack() as stack:
        nodes = [stack.enter_context(Member(directory, f"n{n}")) for n in (1, 2, 3)]
        nodes[0].say("cluster", "init", "--name", "bench")
        for node in nodes[1:]:
            node.say("cluster", "join", f"127.0.0.1:{nodes[0].ports['http']}")
        nodes[0].say("bucket", "set", "default", "--replicas", "2")
        _until_settled(nodes[0], 3)
        idle = _idle(nodes)
        fail_overs = list(_fail_overs(nodes))
        fourth = stack.enter_context(Member(directory, "n4"))
        return {
            "engines": engines,
            "idle_ms_per_s": idle,
            "fail_over_s": [one["served"] for one in fail_overs],
            "fail_overs": fail_overs,
            **_moves(nodes, fourth),
        }


def measure_engines(directory: Path) -> Figures:
    """Return writes/s of a machine with one engine and with two, by turns."""
    found: dict[int, list[float]] = {1: [], 2: []}
    with ExitStack() as stack:
        machines = {count: stack.enter_context(Machine(directory, count)) for count in found}
        places = {count: machine.partitions() for count, machine in machines.items()}
        for _ in range(ENGINE_ROUNDS):
            for count, its in places.items():
                programs = [_load(port, chosen, len(its)) for port, chosen in its.items()]
                rates = [figures_of(one)["operations_per_s"] for one in programs]
                found[count].append(sum(rates))
    return {"one_per_s": found[1], "two_per_s": found[2]}


def _load(port: int, partitions: list[int], engines: int) -> subprocess.Popen[str]:
    """Start a load generator, on all processors."""
    words = ["-o", "set", "-c", ENGINE_CLIENTS // engines, "-P", ENGINE_DEPTH, "-s", ENGINE_S,
             "-b", "default", "-p", PARTITIONS, "-w", ",".join(map(str, partitions)),
             "127.0.0.1", port]  # fmt: skip
    return subprocess.Popen(
        on_cpus(CPUS, [str(BUILD / "loadgen"), *map(str, words)]),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _ratio(engines: Figures) -> float:
    return statistics.median(engines["two_per_s"]) / statistics.median(engines["one_per_s"])


def verdicts_of(found: Figures) -> Iterator[tuple[str, float, float]]:
    """Yield each measurement and its floor. Larger is better."""
    times = sorted(found["fail_over_s"])
    yield "fail-over at the median", P50_S_MAX / statistics.median(times), 1.0
    yield "fail-over, 99 of 100", P99_S_MAX / times[-1], 1.0
    ratio = found["moving"]["p99_ms"] / found["calm"]["p99_ms"]
    yield "p99 of writes while partitions move", P99_TIMES_MAX / ratio, 1.0
    if "engines" in found:
        yield "writes of two engines, by those of one", _ratio(found["engines"]), ENGINE_RATIO_MIN
    yield (
        "writes without an error while partitions move",
        float(not found["moving"]["errors"]),
        1.0,
    )


def lines(found: Figures) -> Iterator[str]:
    """Yield the section of docs/benchmarks.md."""
    times = sorted(found["fail_over_s"])
    yield (
        f"Three nodes of a managed cluster on this machine, {PARTITIONS} partitions with two "
        "replicas, default settings. One client writes with durability `majority`, one write at a "
        "time."
    )
    yield ""
    yield "| what | figure |"
    yield "| --- | --- |"
    yield f"| kill -9 of a node to the next majority write, {len(times)} times, p50 | {statistics.median(times):.2f} s |"  # noqa: E501
    yield f"| the same, shortest and longest | {times[0]:.2f} s, {times[-1]:.2f} s |"
    yield from _lines_of_roles(found.get("fail_overs", []))
    for name, text in (("calm", "no partition moves"), ("moving", "a node is added and removed")):
        one = found[name]
        yield (
            f"| writes while {text}: writes/s, p99, longest gap, errors | {one['per_s']:,.0f}, "
            f"{one['p99_ms']:.0f} ms, {one['gap_s']:.2f} s, {one['errors']} |"
        )
    yield f"| time to add a node and to remove it | {found['moving_s']:.0f} s |"
    if "engines" in found:
        one, two = (
            statistics.median(found["engines"][name]) for name in ("one_per_s", "two_per_s")
        )
        yield (
            "| writes/s without durability, 2 processors, of one engine, of two, ratio | "
            f"{one:,.0f}, {two:,.0f}, {_ratio(found['engines']):.2f} |"
        )
    yield f"| idle node, all processes | {found['idle_ms_per_s']:.0f} ms of processor per second |"


def _until_settled(node: Member, count: int) -> None:
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        with suppress(RuntimeError):
            found = node.status()
            states = [one["state"] for one in found["nodes"] if one["has_session"]]
            whole = all(one["partitions"] == one["whole"] for one in found["buckets"])
            may_fail = (found["coordination"] or {"may_fail": 0})["may_fail"]
            if states.count("in") == count and whole and not found["plan"] and may_fail:
                return
        time.sleep(0.1)
    raise RuntimeError(f"the cluster does not settle: {node.status()}")


def _idle(nodes: list[Member]) -> float:
    before = sum(node.cpu_s() for node in nodes)
    time.sleep(IDLE_S)
    return (sum(node.cpu_s() for node in nodes) - before) / len(nodes) / IDLE_S * 1000


def _lines_of_roles(fail_overs: list[Figures]) -> Iterator[str]:
    texts = {
        "data": "only has data", "orchestrator": "is the orchestrator",
        "primary": "is the primary of coordination", "both": "is both",
    }  # fmt: skip
    for role, text in texts.items():
        mine = [one for one in fail_overs if one["role"] == role]
        if mine:
            parts = ", ".join(
                f"{statistics.median(one[phase] for one in mine if phase in one):.2f}"
                for phase in (*PHASES, "served")
                if any(phase in one for one in mine)
            )
            yield (
                f"| the node {text}, {len(mine)} times: session ended, fail-over written, copies "
                f"active, map written, client served, p50, s | {parts} |"
            )


def _fail_overs(nodes: list[Member]) -> Iterator[Figures]:
    for number in range(FAIL_OVERS):
        wanted = ROLES[number % len(ROLES)]
        node = _node_of_role(nodes, wanted)
        others = [one for one in nodes if one is not node]
        with millstream.connect([one.kv for one in others], timeout_s=0.5) as client:
            owned = {
                client.partition_of(key): key
                for key in (f"k{n}" for n in range(4 * PARTITIONS))
                if client.router.node_of(client.partition_of(key)).port == node.ports["kv"]
            }
        role = _role_of(nodes, node)
        seen = {one: one.log.stat().st_size for one in others}
        key, begun = next(iter(owned.values())), time.time_ns() / 1e9
        node.kill()
        served_s = _next_write([one.kv for one in others], key)
        yield {"role": role, **_phases(seen, begun), "served": served_s}
        node.start()
        _until_settled(others[0], len(nodes))
        others[0].say("cluster", "failover", "--reset")
        others[0].say("cluster", "rebalance", "--wait")  # it serves a share again
        _until_settled(others[0], len(nodes))


def _primary_of(nodes: list[Member]) -> Member:
    """Return the node that leads the group that coordinates."""
    (group,) = nodes[0].coordinate(b"VDS", b"1").values()
    port = int(group[b"primary"].rsplit(b":", 1)[1])
    return next(node for node in nodes if node.ports["coord"] == port)


def _node_of_role(nodes: list[Member], role: str) -> Member:
    """Return a node that has a role, after the primary was moved for that if needed."""
    name = nodes[0].status()["orchestrator"]["name"]
    orchestrator = nodes[int(name[1:]) - 1]
    others = [node for node in nodes if node is not orchestrator]
    primary = orchestrator if role == "both" else others[0]
    until = time.monotonic() + WAIT_S
    while (present := _primary_of(nodes)) is not primary and time.monotonic() < until:
        (group,) = nodes[0].coordinate(b"VDS", b"1").values()
        ports = [int(member.rsplit(b":", 1)[1]) for member in group[b"members"]]
        wanted = group[b"nodes"][ports.index(primary.ports["coord"])]
        with suppress(MillstreamError):
            present.coordinate(b"ADMIN", b"GROUP", b"MOVE-PRIMARY", b"1", wanted)
        time.sleep(1.0)  # what `VDS` says may be old by so much
    return {"data": others[1], "primary": others[0]}.get(role, orchestrator)


def _role_of(nodes: list[Member], node: Member) -> str:
    """Return what a node is now."""
    is_primary = _primary_of(nodes) is node
    if nodes[0].status()["orchestrator"]["name"] == f"n{nodes.index(node) + 1}":
        return "both" if is_primary else "orchestrator"
    return "primary" if is_primary else "data"


def _phases(seen: dict[Member, int], begun: float) -> Figures:
    """Return when each part of a fail-over was over first, in seconds after the kill."""
    found: Figures = {}
    for node, offset in seen.items():
        with node.log.open("rb") as log:
            log.seek(offset)
            text = log.read().decode(errors="replace")
        for line in text.splitlines():
            stamp = _STAMP.match(line)
            if stamp is None:
                continue
            passed_s = datetime.fromisoformat(stamp[1] + "+00:00").timestamp() - begun
            for phase, pattern in PHASES.items():
                if pattern.search(line) and passed_s > 0:
                    found[phase] = min(found.get(phase, passed_s), passed_s)
    return found


def _next_write(seeds: list[str], key: str) -> float:
    begun = time.monotonic()
    while time.monotonic() < begun + WAIT_S:
        try:
            with millstream.connect(seeds, timeout_s=5.0) as client:
                client.upsert(key, {"at": begun}, durability="majority")
                return time.monotonic() - begun
        except MillstreamError:
            time.sleep(RETRY_S)
    raise RuntimeError("no node serves the partition")


class _Writer:
    def __init__(self, seeds: list[str]) -> None:
        self.times: list[float] = []
        self.errors = 0
        self._seeds = seeds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def figures(self) -> Figures:
        """Stop, and return what was measured."""
        self._stop.set()
        self._thread.join()
        times = sorted(self.times)
        return {
            "per_s": len(times) / sum(times),
            "p99_ms": times[int(len(times) * 0.99)] * 1000,
            "gap_s": times[-1],
            "errors": self.errors,
        }

    def _run(self) -> None:
        number = 0
        with millstream.connect(self._seeds, timeout_s=15.0) as client:
            while not self._stop.is_set():
                begun = time.monotonic()
                number += 1
                try:
                    client.upsert(f"w{number % 1000}", {"n": number}, durability="majority")
                except MillstreamError:
                    self.errors += 1
                self.times.append(time.monotonic() - begun)


def _moves(nodes: list[Member], fourth: Member) -> Figures:
    writer = _Writer([node.kv for node in nodes])
    time.sleep(WRITER_S)
    calm = writer.figures()
    writer, begun = _Writer([node.kv for node in nodes]), time.monotonic()
    fourth.say("cluster", "join", f"127.0.0.1:{nodes[0].ports['http']}")
    nodes[0].say("cluster", "rebalance", "--wait")
    _until_settled(nodes[0], 4)
    nodes[0].say("cluster", "remove", "n4")
    _until_settled(nodes[0], 3)
    moving_s = time.monotonic() - begun
    return {"calm": calm, "moving": writer.figures(), "moving_s": moving_s}
