"""What a managed cluster costs: an idle one, queries over its nodes, a copy that is made anew.

    cluster_costs.py DIRECTORY      # the idle cost alone, one JSON line out

How it measures:
1. The idle cost is the processor time and the bytes sent of three nodes without clients. Beside
   it: three nodes that are each alone. For root the nodes have a network of their own (`unshare
   --net`), so that nobody else's bytes are counted.
2. 100 nodes are not run. The real functions of an orchestrator and of a node are timed on a state
   of 100 nodes with 1,024 partitions of three copies, and the bytes of their messages are counted:
   reports, beats, reads of the state, signs of life between copies. What a node does to compile
   its report, and what carries the messages, is not in it.
3. A view query goes to one node, over one kept connection. Its index has parts on one node, on
   three, on six. All nodes share the processors of this machine.
4. Two nodes have two copies of the data. One of them is killed and removed for good while a third,
   empty one is a member. The time is that from the command until all copies are there again.
   Beside it: the same number of bytes from a file through a socket to a file, synced.

Elsewhere: fail-over, moves beside a writer (clusters.py), others' fail-over (fail_overs.py).
"""

import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

import millstream
from clusters import PARTITIONS, Member
from groups import until
from millstream.cluster.aio.messages import OrdersReply, OrdersRequest
from millstream.cluster.core.admission import Known, judge_order
from millstream.cluster.core.deciding import decide
from millstream.cluster.core.elements import (
    CLUSTER,
    Bucket,
    Cluster,
    Element,
    Live,
    NodeRecord,
    boots_path,
    bucket_path,
    index_map_path,
    live_path,
    map_path,
    name_path,
    node_path,
    state_from_elements,
    to_json,
)
from millstream.cluster.core.memory import Memory
from millstream.cluster.core.orders import Order, Reply
from millstream.cluster.core.reports import CopyReport, NodeReport, PartReport, from_peer
from millstream.cluster.core.settings import REPORT_INTERVAL_MS, SESSION_BEAT_MS
from millstream.cluster.core.step import View
from millstream.model.cluster_maps import (
    DataMap,
    DataRecord,
    Floor,
    IndexMap,
    IndexRecord,
    MapKey,
    data_map_to_json,
    index_map_to_json,
)
from millstream.model.partitions import PartitionState
from millstream.model.standing import Standing
from millstream.vsr.core.versions import Version
from servers import run_program

Figures = dict[str, Any]
IDLE_S, SETTLED_S = 20.0, 3.0
WAIT_S = 300.0
SIMULATED_NODES, SIMULATED_PARTITIONS, COPIES = 100, 1024, 3
STEPS = 20
"""Of the simulated orchestrator; the median counts."""
HTTP_BYTES = 350
"""Headers of a request and of its answer, together, about."""
BEAT_BYTES = 250
"""A linearizable read of an element, and its answer, as RESP, about."""
CONTACT_BYTES, CONTACTS_PER_S = 2 * 24, 10
"""A no-op of the kv protocol and its answer, ten times a second for each node that follows."""
DOCUMENTS = 20_000
INDEX_NODES = (1, 3, 6)
QUERIES = 500
COPY_BYTES, VALUE_BYTES = 1 << 30, 4096
PIECE_BYTES = 1 << 20


def cluster_of(stack: ExitStack, directory: Path, count: int, replicas: int) -> list[Member]:
    """Start nodes as one cluster, with the bucket on all of them."""
    nodes = [stack.enter_context(Member(directory, f"n{n}")) for n in range(1, count + 1)]
    nodes[0].say("cluster", "init", "--name", "bench")
    for node in nodes[1:]:
        node.say("cluster", "join", f"127.0.0.1:{nodes[0].ports['http']}")
    nodes[0].say("bucket", "set", "default", "--replicas", f"{replicas}")
    nodes[0].say("cluster", "rebalance", "--wait")
    until_whole(nodes[0])
    return nodes


def until_whole(node: Member) -> None:
    """Wait until no plan is left, and all copies and index parts are there."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        with suppress(RuntimeError):
            found = node.status()
            if not found["plan"] and all(
                one["partitions"] == one["whole"] == one["served"] == one["indexed"]
                for one in found["buckets"]
            ):
                return
        time.sleep(0.1)
    raise RuntimeError(f"the cluster does not settle: {node.status()}")


# ---- idle


def measure_manager(directory: Path) -> Figures:
    """Measure the idle cost of three nodes, and compute that of many."""
    words = [sys.executable, str(Path(__file__)), str(directory)]
    if os.geteuid() == 0:
        words = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *words]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    real: Figures = json.loads(done.stdout)
    return {**real, "has_own_network": os.geteuid() == 0, "simulated": simulated(SIMULATED_NODES)}


def idle(directory: Path) -> Figures:
    """Return processor time and bytes of a node, of a cluster and of single nodes."""
    found = {}
    for name in ("single", "cluster"):
        at = directory / name
        at.mkdir()
        with ExitStack() as stack:
            if name == "cluster":
                nodes = cluster_of(stack, at, 3, 2)
            else:
                nodes = [stack.enter_context(Member(at, f"n{n}")) for n in range(3)]
            time.sleep(SETTLED_S)
            cpu_s, sent = sum(node.cpu_s() for node in nodes), _sent_bytes()
            time.sleep(IDLE_S)
            cpu_s, sent = sum(node.cpu_s() for node in nodes) - cpu_s, _sent_bytes() - sent
            per_node_s = len(nodes) * IDLE_S
            found[name] = {
                "cpu_ms_per_s": cpu_s / per_node_s * 1000,
                "bytes_per_s": sent / per_node_s,
            }
    return found


def _sent_bytes() -> int:
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split(":")[1].split()[8])
    raise RuntimeError("there is no loopback interface")


class Simulated:
    """The state of an idle cluster as its elements, and the reports of its nodes."""

    def __init__(self, count: int) -> None:
        self.names = [f"{n:032x}" for n in range(1, count + 1)]
        self.token, self.uuid, key = Version(1, 1, 9), "ab" * 16, MapKey(1, 7)
        places = range(SIMULATED_PARTITIONS)
        rows = [
            tuple(self.names[(place + copy) % count] for copy in range(min(COPIES, count)))
            for place in places
        ]
        data = DataMap(key, self.uuid, tuple(DataRecord(key, row[0], 1, (row,)) for row in rows))
        index = IndexMap(key, self.uuid, tuple(IndexRecord(key, row[0]) for row in rows))
        bucket = Bucket("default", SIMULATED_PARTITIONS, len(rows[0]) - 1)
        ports = {"kv": 11210, "http": 5984, "coord": 7379, "peer": 7380}
        self.elements = {
            CLUSTER: to_json(Cluster("cd" * 16, "bench", 1, 0)),
            bucket_path(self.uuid): to_json(bucket),
            map_path(self.uuid): data_map_to_json(data),
            index_map_path(self.uuid): index_map_to_json(index),
            name_path("default"): self.uuid.encode(),
        }
        for name in self.names:
            record = NodeRecord(name[-4:], "10.0.0.1", ports, ("data", "index", "coord"), "", "in")
            addresses = {one: f"10.0.0.1:{port}" for one, port in ports.items()}
            self.elements |= {
                node_path(name): to_json(record),
                live_path(name): to_json(Live("ef" * 16, addresses, 1)),
                boots_path(name): b"1",
            }
        self.reports = {name: NodeReport(name, 1, True, {self.uuid: {}}, {self.uuid: {}})
                        for name in self.names}  # fmt: skip
        for place, row in zip(places, rows, strict=True):
            for name in row:
                state = PartitionState.ACTIVE if name == row[0] else PartitionState.REPLICA
                standing = Standing(place, state, 1, 1, 10_000, 10_000, 1, True, True)
                self.reports[name].copies[self.uuid][place] = CopyReport(standing, key)
            part = PartReport("active", Floor(1, 10_000), key)
            self.reports[row[0]].parts[self.uuid][place] = part

    @property
    def state_bytes(self) -> int:
        """Return the size of a read of the whole state."""
        return sum(len(path) + len(data) + 40 for path, data in self.elements.items())


def simulated(count: int) -> Figures:
    """Return what an idle cluster of so many nodes costs the orchestrator, and a node."""
    scene, memory = Simulated(count), Memory()
    elements = {path: Element(Version(1, 1, 3), data) for path, data in scene.elements.items()}
    requests = [
        OrdersRequest((Order("report", "cd" * 16, name, scene.token),)) for name in scene.names
    ]
    replies = [
        msgspec.json.encode(OrdersReply((Reply("is"),), "p", 1, scene.reports[name]))
        for name in scene.names
    ]
    sent = [msgspec.json.encode(one) for one in requests]

    def step() -> None:
        state = state_from_elements(elements, scene.token)
        for one, reply in zip(requests, replies, strict=True):
            msgspec.json.encode(one)
            said = from_peer(reply, OrdersReply)
            assert said.report is not None
            memory.hear(said.report)
        view = View(scene.names[0], scene.token, state, True, frozenset(scene.names), 100_000,
                    1_100_000, 0, 7)  # fmt: skip
        decision = decide(view, memory)
        assert not decision.orders, f"an idle cluster: {decision}"
        assert decision.write is None, f"an idle cluster: {decision}"

    name = scene.names[0]
    known = Known("cd" * 16, name, 1, scene.token, None, None)

    def answer() -> None:
        for order in msgspec.json.decode(sent[0], type=OrdersRequest).orders:
            judge_order(order, known)
        msgspec.json.encode(OrdersReply((Reply("is"),), "p", 1, scene.reports[name]))

    steps_per_s, beats_per_s = 1000 / REPORT_INTERVAL_MS, 1000 / SESSION_BEAT_MS
    followers = min(2 * (COPIES - 1), count - 1)
    asked = statistics.mean(map(len, sent)) + statistics.mean(map(len, replies)) + HTTP_BYTES
    beside = BEAT_BYTES * beats_per_s + CONTACT_BYTES * CONTACTS_PER_S * followers
    return {
        "nodes": count,
        "orchestrator_ms_per_s": _median_ms(step) * steps_per_s,
        "node_ms_per_s": _median_ms(answer) * steps_per_s,
        "orchestrator_bytes_per_s": (asked * count + scene.state_bytes) * steps_per_s,
        "node_bytes_per_s": asked * steps_per_s + beside,
    }


def _median_ms(work: Callable[[], None]) -> float:
    """Return the processor time of a step."""
    times = []
    for _ in range(STEPS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times) * 1000


# ---- queries over nodes


def measure_gathering(directory: Path) -> Figures:
    """Measure view queries over one node, three and six."""
    found = {}
    for count in INDEX_NODES:
        at = directory / f"over-{count}"
        at.mkdir()
        with ExitStack() as stack:
            found[str(count)] = _queries(cluster_of(stack, at, count, 0))
    return found


def _queries(nodes: Sequence[Member]) -> Figures:
    with millstream.connect([node.kv for node in nodes], timeout_s=60.0) as client:
        for first in range(0, DOCUMENTS, 1000):
            keys = range(first, first + 1000)
            client.apply_many([(f"d{n}", {"n": n, "of": n % 100}) for n in keys]).raise_first()
    connection = http.client.HTTPConnection("127.0.0.1", nodes[0].ports["http"], timeout=WAIT_S)
    views = {"by_n": {"map": "function (d) { emit(d.n, d.of) }", "reduce": "_sum"}}
    _ask(connection, "PUT", "/default/_design/q", {"views": views})
    view = "/default/_design/q/_view/by_n"
    rows = until(lambda: _ask(connection, "GET", f"{view}?reduce=true")["rows"], "no view answers")
    assert rows[0]["value"] == sum(n % 100 for n in range(DOCUMENTS)), rows
    return {
        "one row": _times(connection, lambda n: f"{view}?reduce=false&key={n % DOCUMENTS}"),
        "100 rows": _times(
            connection, lambda n: f"{view}?reduce=false&limit=100&startkey={n % 10_000}"
        ),
        "one sum": _times(connection, lambda _: f"{view}?reduce=true"),
    }


def _ask(
    connection: http.client.HTTPConnection, method: str, path: str, content: Any = None
) -> Any:
    body = None if content is None else json.dumps(content)
    connection.request(method, path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status >= 300:
        raise ValueError(f"{path}: {answer.status} {text.decode()}")
    return json.loads(text)


def _times(connection: http.client.HTTPConnection, path: Callable[[int], str]) -> Figures:
    times = []
    for number in range(QUERIES):
        began = time.perf_counter()
        _ask(connection, "GET", f"{path(number * 37)}&update=false")
        times.append(time.perf_counter() - began)
    times.sort()
    return {
        "p50_ms": times[len(times) // 2] * 1000,
        "p99_ms": times[len(times) * 99 // 100] * 1000,
    }


# ---- a lost copy


def measure_redundancy(directory: Path, size: int = COPY_BYTES) -> Figures:
    """Measure how long the copies of a lost node take to be made anew."""
    with ExitStack() as stack:
        first = stack.enter_context(Member(directory, "n1"))
        first.say("cluster", "init", "--name", "bench")
        how = ["-o", "fill", "-c", 4, "-P", 100, "-v", VALUE_BYTES, "-k", size // VALUE_BYTES]
        how += ["-b", "default", "-p", PARTITIONS, "127.0.0.1", first.ports["kv"]]
        run_program("loadgen", *how)
        first.settle()
        second = stack.enter_context(Member(directory, "n2"))
        to = f"127.0.0.1:{first.ports['http']}"
        second.say("cluster", "join", to)
        first.say("bucket", "set", "default", "--replicas", "1")
        until_copied(first, 2)
        third = stack.enter_context(Member(directory, "n3"))
        third.say("cluster", "join", to)
        _until_coordinated(first)
        second.kill()
        began = time.monotonic()
        first.say("cluster", "remove", "n2", "--now", "--yes")
        until_copied(first, 2)
        seconds = time.monotonic() - began
        plain_s = _plain_copy_s(directory, size)
    return {"bytes": size, "seconds": seconds, "plain_copy_s": plain_s}


def until_copied(node: Member, count: int) -> None:
    """Wait until so many members have everything."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        with suppress(RuntimeError):
            found = node.status()
            holders = [
                one for one in found["nodes"] if (one["active"] or 0) + (one["replica"] or 0)
            ]
            bucket = found["buckets"][0]
            if (
                not found["plan"]
                and len([one for one in holders if one["state"] == "in"]) == count
                and bucket["partitions"] == bucket["whole"] == bucket["served"]
            ):
                return
        time.sleep(0.05)
    raise RuntimeError(f"the copies are not made: {node.status()}")


def _until_coordinated(node: Member) -> None:
    end = time.monotonic() + WAIT_S
    while (node.status().get("coordination") or {"may_fail": 0})["may_fail"] < 1:
        if time.monotonic() > end:
            raise RuntimeError("three nodes do not coordinate")
        time.sleep(0.1)


def _plain_copy_s(directory: Path, size: int) -> float:
    """Return how long a file takes through a socket into another file, synced."""
    source, target = directory / "source", directory / "target"
    with source.open("wb") as file:
        for _ in range(size // PIECE_BYTES):
            file.write(os.urandom(PIECE_BYTES))

    def receive(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, target.open("wb") as file:
            while data := connection.recv(PIECE_BYTES):
                file.write(data)
            file.flush()
            os.fsync(file.fileno())

    with socket.create_server(("127.0.0.1", 0)) as server:
        receiver = threading.Thread(target=receive, args=(server,))
        receiver.start()
        began = time.monotonic()
        with socket.create_connection(server.getsockname()) as sender, source.open("rb") as file:
            sender.sendfile(file)
        receiver.join()
    assert target.stat().st_size == size
    return time.monotonic() - began


# ---- docs/benchmarks.md


def manager_lines(found: Figures) -> Iterator[str]:
    """Yield the table of the idle cost."""
    rows = {
        "three single nodes": found["single"],
        "three nodes of a cluster, 64 partitions, two replicas": found["cluster"],
    }
    simulated_ = found["simulated"]
    name = f"{simulated_['nodes']} nodes, {SIMULATED_PARTITIONS:,} partitions, two replicas"
    for who in ("node", "orchestrator"):
        rows[f"{name}, manager alone, computed: {'a node' if who == 'node' else 'the orchestrator, besides'}"] = {  # noqa: E501
            "cpu_ms_per_s": simulated_[f"{who}_ms_per_s"],
            "bytes_per_s": simulated_[f"{who}_bytes_per_s"],
        }  # fmt: skip
    yield ""
    yield "An idle node, all its processes. Bytes are those that it sends, over loopback."
    yield ""
    yield "| | processor per second | bytes/s |"
    yield "| --- | --- | --- |"
    for text, one in rows.items():
        yield f"| {text} | {one['cpu_ms_per_s']:.2f} ms | {one['bytes_per_s']:,.0f} |"


def gathering_lines(found: Figures) -> Iterator[str]:
    """Yield the table of queries over nodes."""
    yield ""
    yield (
        f"A view query (`update=false`, {DOCUMENTS:,} documents) at one node. Its index has parts "
        "on so many nodes, all on this machine. p50, p99."
    )
    yield ""
    yield f"| query | {' | '.join(f'{count} nodes' for count in found)} |"
    yield "| --- |" + " --- |" * len(found)
    for query in ("one row", "100 rows", "one sum"):
        cells = [
            f"{one[query]['p50_ms']:.1f} ms, {one[query]['p99_ms']:.1f} ms"
            for one in found.values()
        ]
        yield f"| {query} | {' | '.join(cells)} |"


def redundancy_lines(found: Figures) -> Iterator[str]:
    """Yield the table of a lost copy."""
    yield ""
    size = f"{found['bytes'] / (1 << 30):.1f} GiB"
    yield f"| {size} of documents of {VALUE_BYTES} bytes | time | MB/s |"
    yield "| --- | --- | --- |"
    for name, key in (
        ("a lost node's copies made anew, two copies, 64 partitions", "seconds"),
        ("a file through a socket into a file, synced", "plain_copy_s"),
    ):
        rate = found["bytes"] / found[key] / 1e6
        yield f"| {name} | {found[key]:.1f} s | {rate:.0f} |"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="idle-", dir=sys.argv[1]) as folder:
        print(json.dumps(idle(Path(folder))))
