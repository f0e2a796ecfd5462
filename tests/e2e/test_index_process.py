"""The index process in its family: killed, orphaned, stopped; and its indexes afterwards."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millstream import EmbeddedNode
from node_process import NodeProcess

MakeNode = Callable[..., NodeProcess]
WAIT_S = 30.0
DESIGN = {
    "views": {
        "by_kind": {"map": "function (doc) { emit(doc.kind, doc.n); }", "reduce": "_sum"},
    }
}


def call(base: str, method: str, path: str, content: object = None) -> tuple[int, Any]:
    """Return status and JSON of an HTTP request."""
    data = None if content is None else json.dumps(content).encode()
    asked = urllib.request.Request(
        base + path, data, {"Content-Type": "application/json"}, method=method
    )
    try:
        with urllib.request.urlopen(asked, timeout=WAIT_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def until(condition: Callable[[], Any]) -> Any:
    """Return what the condition returns once it is true."""
    end = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.02)
    return found


def children_of(pid: int, what: str) -> list[int]:
    """Return the descendants of a process whose command names `what`."""
    found, family = [], [pid]
    for each in family:
        for path in Path(f"/proc/{each}/task").glob("*/children"):
            family += [int(word) for word in path.read_text().split()]
    for each in family[1:]:
        try:
            if what in Path(f"/proc/{each}/cmdline").read_text():
                found.append(each)
        except FileNotFoundError:
            continue
    return found


def index_pid(node: NodeProcess) -> int:
    return until(lambda: children_of(node.pid, "node.index_child"))[0]


def engine_pid(node: NodeProcess) -> int:
    return children_of(node.pid, "node.engine_process")[0]


def is_gone(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def put_design(base: str, bucket: str = "default", name: str = "d") -> None:
    status, answer = call(base, "PUT", f"/{bucket}/_design/{name}", DESIGN)
    assert status == 201, answer


def info(base: str) -> tuple[int, Any]:
    return call(base, "GET", "/default/_design/d/_info")


def test_killed_it_comes_back_and_nobody_else_notices(node: NodeProcess) -> None:
    assert not children_of(node.pid, "node.index_child"), "nothing needs it yet"
    put_design(node.http)
    first, engine = index_pid(node), engine_pid(node)
    assert info(node.http)[0] == 200, (info(node.http), node.log())
    os.kill(first, signal.SIGKILL)
    until(lambda: is_gone(first))
    until(lambda: info(node.http)[0] == 200)
    assert index_pid(node) != first
    assert engine_pid(node) == engine
    assert "starting it again" in node.log()
    assert node.stop() == 0


def test_it_ends_with_the_engine_and_comes_back_with_it(node: NodeProcess) -> None:
    put_design(node.http)
    index, engine = index_pid(node), engine_pid(node)
    os.kill(engine, signal.SIGKILL)
    until(lambda: is_gone(engine) and is_gone(index))
    until(lambda: children_of(node.pid, "node.index_child"))
    until(lambda: info(node.http)[0] == 200)


def test_it_ends_with_the_supervisor(node: NodeProcess) -> None:
    put_design(node.http)
    index, engine = index_pid(node), engine_pid(node)
    os.kill(node.pid, signal.SIGKILL)
    until(lambda: is_gone(engine) and is_gone(index))


def test_it_stops_with_the_node_and_starts_with_it_where_there_are_views(
    make_node: MakeNode,
) -> None:
    node = make_node().start()
    put_design(node.http)
    index = index_pid(node)
    assert node.stop() == 0
    assert is_gone(index)
    assert "killed" not in node.log()
    assert list((node.data_dir / "run").iterdir()) == []
    node.start()
    index_pid(node)  # nobody asked a view
    assert node.stop() == 0


def test_where_the_path_is_too_long_for_sockets_views_work_all_the_same(
    make_node: MakeNode,
) -> None:
    node = make_node(name="/".join(["d" * 60] * 3))
    node.data_dir.parent.mkdir(parents=True)
    node.start()
    put_design(node.http)
    assert info(node.http)[0] == 200, (info(node.http), node.log())
    elsewhere = Path((node.data_dir / "run" / "elsewhere").read_text())
    assert (elsewhere / "kv.sock").is_socket()
    node.kill()
    node.start()
    assert not elsewhere.exists()
    assert info(node.http)[0] == 200, (info(node.http), node.log())
    assert node.stop() == 0


def test_an_embedded_node_has_one_too(tmp_path: Path) -> None:
    with EmbeddedNode(tmp_path / "node", buckets=["default"]) as node:
        base = f"http://{node.http}"
        assert not children_of(os.getpid(), "node.index_child")
        put_design(base)
        assert info(base)[0] == 200
        (index,) = children_of(os.getpid(), "node.index_child")
    assert is_gone(index)


def test_it_ends_with_the_program_around_an_embedded_node(tmp_path: Path) -> None:
    program = (
        "import sys, time, json, urllib.request as u\n"
        "from millstream import EmbeddedNode\n"
        "node = EmbeddedNode(sys.argv[1], buckets=['default']); node.start()\n"
        "print(node.http, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "node")], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        base = f"http://{process.stdout.readline().decode().strip()}"
        put_design(base)
        (index,) = until(lambda: children_of(process.pid, "node.index_child"))
        process.kill()
        until(lambda: is_gone(index))
