"""`millstream cluster up`: nodes on this machine that are one cluster."""

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

from millstream.cli.main import EXIT_FAILED
from millstream.cli.serving import cluster_up
from millstream.client.http import HttpClient
from millstream.errors import UnavailableError
from millstream.model.addresses import parse_address
from support.node.waiting import until

READY_S = 240.0
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


def asked(node: dict[str, Any], method: str, path: str, content: Any = None) -> dict[str, Any]:
    host, port = parse_address(node["http"], default_port=0)
    http = HttpClient(host, port, user=None, password="", tls=None, timeout_s=READY_S)
    return http.request(method, path, content)


def is_served(node: dict[str, Any]) -> bool:
    try:
        return bool(asked(node, "GET", "/default"))
    except UnavailableError:
        return False


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
def test_three_nodes_are_one_cluster_also_after_a_restart_on_other_ports(tmp_path: Path) -> None:
    with cluster(tmp_path / "nodes") as (_, said):
        nodes = said["nodes"]
        for node in nodes:
            asked(node, "PUT", f"/default/{node['pid']}", {"greeting": "hello"})
        before = asked(nodes[0], "GET", "/_millstream/cluster")
        assert {node["state"] for node in before["nodes"]} == {"in"}
        (bucket,) = before["buckets"]
        assert (bucket["name"], bucket["replicas"]) == ("default", 1)
        assert bucket["whole"] == bucket["served"] == bucket["partitions"]
        assert len({node["active"] for node in before["nodes"]} - {0}) > 0
    with cluster(tmp_path / "nodes") as (_, said):
        after = asked(said["nodes"][1], "GET", "/_millstream/cluster")
        assert after["cluster"]["uuid"] == before["cluster"]["uuid"]
        assert {one["id"] for one in after["nodes"]} == {one["id"] for one in before["nodes"]}
        for node in nodes:
            found = asked(said["nodes"][2], "GET", f"/default/{node['pid']}")
            assert found["greeting"] == "hello"


@pytest.mark.slow
def test_it_goes_on_while_a_majority_lives_and_says_so(tmp_path: Path) -> None:
    with cluster(tmp_path / "nodes", code=EXIT_FAILED) as (process, said):
        nodes = said["nodes"]
        assert process.stderr is not None
        os.kill(nodes[2]["pid"], signal.SIGKILL)
        told = next(line for line in process.stderr if b"has stopped" in line).decode()
        assert f"node {nodes[2]['pid']} has stopped with code -9" in told
        assert f"millstream serve --data {nodes[2]['data']} " in told
        until(lambda: is_served(nodes[0]))
        assert process.poll() is None
        os.kill(nodes[1]["pid"], signal.SIGKILL)
        process.wait(STOP_S)
        assert b"most nodes have stopped" in process.stderr.read()
