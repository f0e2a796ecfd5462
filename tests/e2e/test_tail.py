"""`millstream tail` as a process of its own: places, rollback, and how it ends."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from support.node.node_process import NodeProcess, kept_ports

MakeNode = Callable[..., NodeProcess]
MEMBERS = [
    "partition", "uuid", "branch", "seqno", "op", "key", "cas", "rev", "expiry", "flags",
    "datatype", "value",
]  # fmt: skip


def address_of(node: NodeProcess) -> str:
    return str(node.ready["kv"])


def command(node: NodeProcess, *words: str) -> list[str]:
    words = ("tail", "default", *words, "--connect", address_of(node))
    return [sys.executable, "-m", "millstream", *words]


def tail(node: NodeProcess, *words: str) -> list[Any]:
    done = subprocess.run(command(node, *words), capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


class Tail:
    """A tail that goes on; `take(n)` waits for its next n lines."""

    def __init__(self, node: NodeProcess, *words: str) -> None:
        self.process = subprocess.Popen(
            command(node, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def take(self, count: int) -> list[Any]:
        assert self.process.stdout is not None
        return [json.loads(self.process.stdout.readline()) for _ in range(count)]

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        return code


@pytest.fixture
def node(shared_node: NodeProcess) -> NodeProcess:
    return shared_node


@pytest.fixture
def start_tail() -> Iterator[Callable[..., Tail]]:
    made: list[Tail] = []

    def start(node: NodeProcess, *words: str) -> Tail:
        made.append(Tail(node, *words))
        return made[-1]

    yield start
    for running in made:
        if running.process.poll() is None:
            running.end(signal.SIGKILL)


def write(node: NodeProcess, documents: dict[str, Any], **options: Any) -> None:
    with millstream.connect(address_of(node), timeout_s=30) as client:
        client.upsert_many(documents, **options).raise_first()


def test_from_start_until_now(node: NodeProcess) -> None:
    write(node, {f"k{number}": {"n": number} for number in range(300)})
    found = tail(node, "--from-start", "--until-now")
    assert {line["key"]: line["value"]["n"] for line in found} == {f"k{n}": n for n in range(300)}
    assert all(list(line) == MEMBERS for line in found)
    assert tail(node, "--until-now") == []


def test_a_barrier_says_that_all_that_was_there_has_been_printed(
    node: NodeProcess, start_tail: Callable[..., Tail]
) -> None:
    write(node, {f"k{number}": {"n": number} for number in range(300)})
    running = start_tail(node, "--from-start", "--barrier")
    *changes, barrier = running.take(301)
    assert {line["key"] for line in changes} == {f"k{n}" for n in range(300)}
    assert list(barrier) == ["event", "reached"]
    newest = {str(line["partition"]): [line["uuid"], line["seqno"]] for line in changes}
    reached = {p: place for p, place in barrier["reached"].items() if place[1]}
    assert reached == newest  # the newest change of a partition is the last of its lines
    write(node, {"later": 1})
    assert running.take(1)[0]["key"] == "later"
    assert running.end(signal.SIGTERM) == 0
    *changes, barrier = tail(node, "--from-start", "--until-now", "--barrier")
    assert len(changes) == 301
    assert barrier["event"] == "barrier"


def test_place_is_kept(node: NodeProcess, tmp_path: Path) -> None:
    words = ("--from-start", "--until-now", "--checkpoint", str(tmp_path / "place"))
    write(node, {"a": 1, "b": 2})
    assert len(tail(node, *words)) == 2
    assert tail(node, *words) == []
    write(node, {"b": 3, "c": 4})
    assert sorted(line["key"] for line in tail(node, *words)) == ["b", "c"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_being_stopped_is_no_failure_and_keeps_the_place(
    node: NodeProcess, tmp_path: Path, start_tail: Callable[..., Tail], number: int
) -> None:
    place = ("--checkpoint", str(tmp_path / "place"), "--from-start")
    running = start_tail(node, *place)
    write(node, {"a": 1})
    assert running.take(1)[0]["key"] == "a"
    assert running.end(number) == 0
    write(node, {"b": 1})
    assert [line["key"] for line in tail(node, *place, "--until-now")] == ["b"]


def test_rollback_is_told_and_the_lines_agree_with_the_bucket(
    make_node: MakeNode, tmp_path: Path, start_tail: Callable[..., Tail]
) -> None:
    options = ("--bucket", "default:4", "--flush-interval", "600000", *kept_ports())
    node = make_node(*options).start()
    write(node, {f"k{n}": "kept" for n in range(40)}, durability="persisted")
    running = start_tail(node, "--from-start", "--checkpoint", str(tmp_path / "place"))
    lines = running.take(40)
    write(node, {f"k{n}": "lost" for n in range(20, 60)})
    lines += running.take(40)
    node.kill()
    node.start()
    write(node, {f"k{n}": "new" for n in range(50, 70)}, durability="persisted")
    while sum(line.get("value") == "new" for line in lines) < 20:
        lines += running.take(1)
    assert running.end(signal.SIGTERM) == 0
    rollbacks = [line for line in lines if "event" in line]
    assert {line["partition"] for line in rollbacks} == set(range(4))
    assert len(rollbacks) == 4
    with millstream.connect(address_of(node)) as client:
        expected = {
            key: found.value for key, found in client.get_many(f"k{n}" for n in range(70)).items()
        }
    assert replayed(lines) == expected


def replayed(lines: list[Any]) -> dict[str, Any]:
    """Return the documents that the lines amount to, for a reader who kept them all."""
    kept: list[Any] = []
    for line in lines:
        if "event" in line:
            kept = [
                old
                for old in kept
                if old["partition"] != line["partition"] or old["seqno"] <= line["seqno"]
            ]
        else:
            kept.append(line)
    newest = {line["key"]: line for line in kept}
    return {key: line["value"] for key, line in newest.items() if line["op"] == "put"}


def test_reader_that_has_seen_enough(node: NodeProcess) -> None:
    write(node, {f"k{number}": "x" * 1000 for number in range(2000)})
    words = " ".join(command(node, "--from-start", "--until-now"))
    done = subprocess.run(
        f"{words} | head -n 3", shell=True, capture_output=True, timeout=60, check=True
    )
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr == b""
