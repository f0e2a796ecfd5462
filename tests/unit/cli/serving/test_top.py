"""`millstream top` on a real node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import millstream
from millstream.cli.serving import top
from millstream.cli.serving.node_figures import NodeFigures
from millstream.errors import UnavailableError
from millstream.node.embedded import EmbeddedNode

WIDTH = 80


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    path: Path = tmp_path_factory.mktemp("top") / "d"
    with EmbeddedNode(path, buckets=["orders:4", "a-very-long-name-of-a-bucket:4"]) as node:
        yield node


@pytest.fixture
def run(node: EmbeddedNode, call: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run for three frames; fifty documents are written in each."""
    frames = iter(range(3))

    def sleep(_: float) -> None:
        if next(frames, None) is None:
            raise KeyboardInterrupt
        with millstream.connect(str(node.kv), bucket="orders") as client:
            client.upsert_many((f"k{number}", {}) for number in range(50)).raise_first()

    monkeypatch.setattr(top.time, "sleep", sleep)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    return lambda *words: call("top", *words, "--connect", str(node.kv))


def test_one_frame_has_the_rates_of_each_bucket(run: Any) -> None:
    outcome = run("--once", "--json")
    assert outcome.code == 0
    (frame,) = map(json.loads, outcome.out.splitlines())
    rates = {bucket["name"]: bucket["writes"] for bucket in frame["buckets"]}
    assert rates["orders"] == pytest.approx(50 / frame["seconds"], rel=0.01)
    assert rates["a-very-long-name-of-a-bucket"] == 0


def test_a_pipe_gets_frame_after_frame_until_ctrl_c_which_is_no_failure(run: Any) -> None:
    outcome = run()
    assert outcome.code == 0
    lines = outcome.out.decode().splitlines()
    assert sum(line.startswith("orders ") for line in lines) == 3
    assert max(map(len, lines)) <= WIDTH
    assert "\x1b" not in outcome.out.decode()


def test_frames_of_json_are_lines(run: Any) -> None:
    assert len([json.loads(line) for line in run("--json").out.splitlines()]) == 3


def test_at_a_terminal_a_node_that_is_away_is_waited_for(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, failures = NodeFigures.read, [UnavailableError("it is away"), None, None, None]

    def read_some(self: NodeFigures) -> Any:
        failure = failures.pop() if failures else None
        if failure is not None:
            raise failure
        return read(self)

    monkeypatch.setattr(NodeFigures, "read", read_some)
    monkeypatch.setattr(
        top, "Console", lambda **_: Console(force_terminal=True, width=WIDTH, _environ={})
    )
    outcome = run()
    assert outcome.code == 0
    assert "it is away; trying again" in outcome.out.decode()


def test_what_is_not_known_is_no_number() -> None:
    now = {
        "connect": "h:1", "version": "1", "uptime": 1, "curr_connections": 1,
        "buckets": [
            {"name": "hidden", "uuid": "u", "state": "ready"},
            {"name": "broken", "uuid": "v", "state": "failed", "reason": "the disk"},
        ],
    }  # fmt: skip
    console = Console(width=WIDTH, record=True)
    console.print(top.frame_of({}, now, 1.0))
    lines = console.export_text().splitlines()
    assert lines[3].split() == ["hidden", *"-" * 8]
    assert lines[4].split() == ["broken", "failed"]
    assert "broken is not served: the disk" in lines[5]
