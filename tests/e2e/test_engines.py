"""`serve --engines N`: several engines of one machine, as clients and operators meet them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millstream import connect
from millstream.client.http import HttpClient
from millstream.model.addresses import parse_address
from support.cluster.managed_nodes import run
from support.node.node_process import FREE, NodeProcess
from support.node.waiting import until

Make = Callable[..., NodeProcess]
PARTITIONS = 16
PORTS = [word for name in ("kv", "http", "coord", "peer") for word in (f"--{name}", FREE)]


def machine(make_node: Make, engines: int) -> NodeProcess:
    """Start a machine with as many engines, over the same directory each time."""
    return make_node("--no-memcached", *PORTS, "--engines", str(engines)).start()


def engines_of(node: NodeProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.ready["engines"]
    return found


def asked(engine: dict[str, Any], method: str, path: str, content: Any = None) -> dict[str, Any]:
    host, port = parse_address(engine["http"], default_port=0)
    http = HttpClient(host, port, user=None, password="", tls=None, timeout_s=30.0)
    return http.request(method, path, content)


def actives(node: NodeProcess) -> list[int]:
    """Return how many partitions each engine serves, once all are where they belong."""
    status: dict[str, Any] = {}

    def is_whole() -> bool:
        status.update(asked(engines_of(node)[0], "GET", "/_millstream/cluster"))
        return not status["plan"] and all(
            one["partitions"] == one["whole"] == one["served"] for one in status["buckets"]
        )

    until(is_whole, lambda: (status, node.log()[-3000:]))
    assert len({one["zone"] for one in status["nodes"]} - {""}) == 1
    return sorted(int(one["active"]) for one in status["nodes"])


def pid_of(node: NodeProcess, number: int) -> int:
    """Return the process of an engine."""
    for pid in node.pids():
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        label = f"MILLSTREAM_LOG_LABEL=engine-{number}\0".encode()
        if b"engine_process" in command and label in Path(f"/proc/{pid}/environ").read_bytes():
            return pid
    raise AssertionError(f"no engine {number}: {node.log()[-3000:]}")


def write(node: NodeProcess, known: dict[str, int], count: int) -> None:
    """Write further documents, by kv and by HTTP at every engine."""
    engines = engines_of(node) if "engines" in node.ready else [node.ready]
    with connect(str(engines[-1]["kv"]), bucket="default") as client:
        for number in range(count):
            key = f"k{len(known)}"
            if number % 2:
                client.upsert(key, {"n": number}, durability="majority_persisted")
            else:
                asked(engines[number % len(engines)], "PUT", f"/default/{key}", {"n": number})
            known[key] = number


def check(node: NodeProcess, known: dict[str, int]) -> None:
    """Fail unless all documents are there, by kv and by HTTP at every engine."""
    with connect(str(engines_of(node)[0]["kv"]), bucket="default", timeout_s=30.0) as client:
        for key, number in known.items():
            found = client.get(key)
            assert found is not None, key
            assert found.value["n"] == number
    for engine in engines_of(node):
        page = asked(engine, "GET", "/default/_all_docs")
        assert {row["id"] for row in page["rows"]} == set(known)


def test_a_node_gets_more_engines_that_share_its_partitions_and_lose_nothing(
    make_node: Make,
) -> None:
    known: dict[str, int] = {}
    node = make_node("--bucket", f"default:{PARTITIONS}").start()
    write(node, known, 40)
    assert node.stop() == 0

    node = machine(make_node, 2)
    assert actives(node) == [8, 8]
    write(node, known, 40)
    check(node, known)

    os.kill(pid_of(node, 2), signal.SIGKILL)
    until(lambda: "engine 2 was killed by signal 9" in node.log(), node.log)
    until(lambda: node.log().count("engine 2 is ready") == 2, node.log)
    assert actives(node) == [8, 8]
    check(node, known)
    assert node.stop() == 0

    node = machine(make_node, 3)
    assert actives(node) == [5, 5, 6]
    write(node, known, 12)
    check(node, known)
    text = run("status", "--connect", str(engines_of(node)[2]["kv"])).stdout
    assert ": up, engine 3 of 3\n" in text
    assert node.stop() == 0

    refused = run("serve", "--data", str(node.data_dir), "--engines", "2")
    assert refused.returncode == 2
    assert "millstream cluster remove" in refused.stderr
    checked = run("check", str(node.data_dir))
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count("bucket default: ok") == 3
