"""The index process in its family: killed, orphaned, stopped; and its indexes afterwards."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream import EmbeddedNode, connect
from support.http.http_calls import call
from support.node.node_process import NodeProcess, is_gone
from support.node.waiting import until

MakeNode = Callable[..., NodeProcess]
DESIGN = {
    "views": {
        "by_kind": {"map": "function (doc) { emit(doc.kind, doc.n); }", "reduce": "_sum"},
    }
}


def children_of(pid: int, what: str) -> list[int]:
    """Return the descendants of a process whose command names `what`."""
    found, family = [], [pid]
    for each in family:
        for path in Path(f"/proc/{each}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # it has just ended
                family += [int(word) for word in path.read_text().split()]
    for each in family[1:]:
        with contextlib.suppress(OSError):
            if what in Path(f"/proc/{each}/cmdline").read_text():
                found.append(each)
    return found


def index_pid(node: NodeProcess) -> int:
    return until(lambda: children_of(node.pid, "node.processes.index_child"))[0]


def engine_pid(node: NodeProcess) -> int:
    return children_of(node.pid, "node.engine_process")[0]


def put_design(base: str, bucket: str = "default", name: str = "d") -> None:
    status, answer = call(base, "PUT", f"/{bucket}/_design/{name}", DESIGN)
    assert status == 201, answer


def info(base: str) -> tuple[int, Any]:
    return call(base, "GET", "/default/_design/d/_info")


def write(node: NodeProcess, numbers: range, kind: str = "a") -> None:
    """Write documents, one in a batch for each number."""
    with connect(node.ready["kv"], bucket="default") as client:
        client.upsert_many((f"k{n}", json.dumps({"kind": kind, "n": 1}).encode()) for n in numbers)


def sums(base: str, **options: Any) -> dict[str, int]:
    """Return what the view answers, by group; waits for an index process that is away."""
    named = "".join(f"&{name}={json.dumps(value)}" for name, value in options.items())
    path = f"/default/_design/d/_view/by_kind?group=true{named}".replace('"', "")
    status, answer = until(lambda: not_away(call(base, "GET", path)))
    assert status == 200, answer
    return {row["key"]: row["value"] for row in answer["rows"]}


def not_away(answer: tuple[int, Any]) -> tuple[int, Any] | None:
    return None if answer[0] == 503 else answer


def test_a_killed_index_process_restarts_without_other_effects(node: NodeProcess) -> None:
    assert not children_of(node.pid, "node.processes.index_child"), "nothing needs it yet"
    put_design(node.http)
    first, engine = index_pid(node), engine_pid(node)
    until(lambda: info(node.http)[0] == 200, node.log)
    os.kill(first, signal.SIGKILL)
    until(lambda: is_gone(first))
    until(lambda: info(node.http)[0] == 200)
    assert index_pid(node) != first
    assert engine_pid(node) == engine
    assert "starting it again" in node.log()
    assert node.stop() == 0


def test_the_index_process_ends_and_restarts_with_the_engine(node: NodeProcess) -> None:
    put_design(node.http)
    index, engine = index_pid(node), engine_pid(node)
    os.kill(engine, signal.SIGKILL)
    until(lambda: is_gone(engine) and is_gone(index))
    until(lambda: children_of(node.pid, "node.processes.index_child"))
    until(lambda: info(node.http)[0] == 200)


def test_the_index_process_ends_with_the_supervisor(node: NodeProcess) -> None:
    put_design(node.http)
    index, engine = index_pid(node), engine_pid(node)
    os.kill(node.pid, signal.SIGKILL)
    until(lambda: is_gone(engine) and is_gone(index))


def test_the_index_process_runs_only_with_views(
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


@pytest.mark.slow
def test_views_work_if_the_path_is_too_long_for_sockets(
    make_node: MakeNode,
) -> None:
    node = make_node(name="/".join(["d" * 60] * 3))
    node.data_dir.parent.mkdir(parents=True)
    node.start()
    put_design(node.http)
    until(lambda: info(node.http)[0] == 200, node.log)
    elsewhere = Path((node.data_dir / "run" / "elsewhere").read_text())
    assert (elsewhere / "kv.sock").is_socket()
    node.kill()
    node.start()
    assert not elsewhere.exists()
    until(lambda: info(node.http)[0] == 200, node.log)
    assert node.stop() == 0


def test_an_embedded_node_has_an_index_process(tmp_path: Path) -> None:
    with EmbeddedNode(tmp_path / "node", buckets=["default"]) as node:
        base = f"http://{node.http}"
        others = set(children_of(os.getpid(), "node.processes.index_child"))  # of shared nodes
        put_design(base)
        until(lambda: info(base)[0] == 200)
        (index,) = {*children_of(os.getpid(), "node.processes.index_child")} - others
    assert is_gone(index)


def test_the_index_process_ends_with_the_embedding_program(tmp_path: Path) -> None:
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
        (index,) = until(lambda: children_of(process.pid, "node.processes.index_child"))
        process.kill()
        until(lambda: is_gone(index))


@pytest.mark.nightly
def test_repeated_kills_during_a_build(make_node: MakeNode) -> None:
    node = make_node("--bucket", "default:8").start()
    write(node, range(30_000))
    put_design(node.http)
    for _ in range(4):
        pid = index_pid(node)
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: is_gone(pid))
        write(node, range(100), "b")
    assert sums(node.http) == {"a": 29_900, "b": 100}
    assert node.stop() == 0


def test_a_stop_during_a_build(make_node: MakeNode) -> None:
    node = make_node("--bucket", "default:8").start()
    write(node, range(30_000))
    put_design(node.http)
    index_pid(node)
    assert node.stop() == 0
    assert "killed" not in node.log()
    node.start()
    assert sums(node.http) == {"a": 30_000}


def test_what_was_built_is_there_after_a_restart(make_node: MakeNode) -> None:
    node = make_node("--bucket", "default:8").start()
    write(node, range(5_000))
    put_design(node.http)
    assert sums(node.http) == {"a": 5_000}
    assert node.stop() == 0
    node.start()
    assert sums(node.http, update="false") == {"a": 5_000}, "from where it stood"
    write(node, range(1_000), "b")
    assert sums(node.http) == {"a": 4_000, "b": 1_000}


def test_an_index_ahead_of_an_engine_that_lost_its_tail_goes_back(make_node: MakeNode) -> None:
    node = make_node("--bucket", "default:8", "--flush-interval", "600000").start()
    with connect(node.ready["kv"], bucket="default") as client:
        write(node, range(2_000))
        client.upsert("last", b'{"kind": "a", "n": 1}', durability="persisted")
    put_design(node.http)
    assert sums(node.http) == {"a": 2_001}
    write(node, range(1_000), "lost")
    assert sums(node.http) == {"a": 1_001, "lost": 1_000}, "the index has what the log has not"
    engine = engine_pid(node)
    os.kill(engine, signal.SIGKILL)
    until(lambda: is_gone(engine))
    after = until(lambda: sums(node.http))
    with connect(node.ready["kv"], bucket="default") as client:
        kinds = [
            json.loads(client.get(key).value)["kind"]
            for key in [*(f"k{n}" for n in range(2_000)), "last"]
            if client.get(key) is not None
        ]
    assert after == {kind: kinds.count(kind) for kind in sorted(set(kinds))}
    assert after["a"] > 1_001, "something was lost, and the index knows it"


def test_a_python_view_comes_from_a_module_that_is_named(
    make_node: MakeNode, tmp_path: Path
) -> None:
    (tmp_path / "my_views.py").write_text(
        "import millstream.views\n"
        "@millstream.views.register('kinds')\n"
        "def kinds(document):\n"
        "    yield document['kind'], document['n']\n"
    )
    environment = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    node = make_node("--python-module", "my_views", env=environment).start()
    write(node, range(10))
    content = {
        "language": "python",
        "views": {"by_kind": {"map": "registered:kinds", "reduce": "_sum"}},
    }
    status, answer = call(node.http, "PUT", "/default/_design/d", content)
    assert status == 201, answer
    assert sums(node.http) == {"a": 10}


def test_an_embedded_node_answers_views(tmp_path: Path) -> None:
    with EmbeddedNode(tmp_path / "node", buckets=["default"]) as node:
        base = f"http://{node.http}"
        put_design(base)
        with connect(node.kv, bucket="default") as client:
            client.upsert("k", b'{"kind": "a", "n": 3}')
        assert sums(base) == {"a": 3}
