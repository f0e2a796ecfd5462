"""`millstream cluster up`: nodes on this machine that coordinate as one group."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.connect import Who
from millstream.cli.coordination.coord import Coordination, ask_primary
from millstream.cli.main import EXIT_FAILED
from millstream.cli.serving import cluster_up

READY_S = 90.0
STOP_S = 40.0


@contextmanager
def cluster(
    data: Path, *options: str, code: int = 0
) -> Iterator[tuple[subprocess.Popen[bytes], Any]]:
    """Run the command until it is interrupted, and see that it ends well, or so."""
    command = [sys.executable, "-m", "millstream", "cluster", "up", "--data", str(data)]
    process = subprocess.Popen(
        [*command, "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert select.select([process.stdout], [], [], READY_S)[0], "it is not ready in time"
        yield process, json.loads(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(STOP_S)
        process.stdout.close()
        process.stderr.close()
    assert process.returncode == code


def asked(node: dict[str, Any], *words: str) -> Any:
    with Coordination(node["coord"], Who(None, "")) as here:
        return ask_primary(here, *words)


def test_addresses_are_shown_whole_however_narrow_the_window_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    names = ("kv", "http", "coord", "peer")
    node = {"data": "x" * 60} | {name: f"127.0.0.1:{41000 + i}" for i, name in enumerate(names)}
    cluster_up._show([node, node], is_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[:5] == [[node["data"]], *([name, node[name]] for name in names)]
    assert lines[5:10] == lines[:5]


@pytest.mark.slow
def test_three_nodes_are_one_group_also_after_a_restart_on_other_ports(tmp_path: Path) -> None:
    with cluster(tmp_path / "nodes") as (_, said):
        nodes = said["nodes"]
        assert asked(nodes[0], "SET", "greeting", "hello") == b"OK"
        entry = asked(nodes[2], "VDS")[b"1"]
        assert sorted(member.decode() for member in entry[b"members"]) == sorted(
            node["coord"] for node in nodes
        )
        assert entry[b"epoch"] == 1
    with cluster(tmp_path / "nodes") as (_, said):
        again = said["nodes"]
        assert asked(again[1], "GET", "greeting") == b"hello"
        assert asked(again[1], "VDS")[b"1"][b"epoch"] == 1


@pytest.mark.slow
def test_it_goes_on_while_a_majority_lives_and_says_so(tmp_path: Path) -> None:
    with cluster(tmp_path / "nodes", code=EXIT_FAILED) as (process, said):
        nodes = said["nodes"]
        assert process.stderr is not None
        os.kill(nodes[2]["pid"], signal.SIGKILL)
        told = process.stderr.readline().decode()
        assert f"node {nodes[2]['pid']} has stopped with code -9" in told
        assert f"millstream serve --data {nodes[2]['data']} " in told
        assert asked(nodes[0], "SET", "greeting", "hello") == b"OK"
        assert process.poll() is None
        os.kill(nodes[1]["pid"], signal.SIGKILL)
        process.wait(STOP_S)
        assert b"most nodes have stopped" in process.stderr.read()
