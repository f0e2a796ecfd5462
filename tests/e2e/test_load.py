"""`millstream load` as a process of its own: interrupted, it goes on and misses nothing."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import millstream
from support.node.node_process import NodeProcess

ROWS = (60_000, 240_000, 960_000)
DEFAULT_SIGNALS = ("env", "--default-signal=INT")
"""Whoever runs the tests in the background of a shell has interruptions ignored."""
"""More each time the load had ended before it could be interrupted."""
QUOTA_ROWS = 50_000
MakeNode = Callable[..., NodeProcess]


def test_interrupted_load_goes_on(node: NodeProcess, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    words = ["load", "default", str(path), "--json", "--connect", node.ready["kv"]]
    command = [sys.executable, "-m", "millstream", *words]
    with millstream.connect(node.ready["kv"], timeout_s=30) as client:
        for rows in ROWS:
            with path.open("w") as file:
                file.writelines(
                    json.dumps({"id": f"{rows}:{n}", "x": "y" * 100}) + "\n" for n in range(rows)
                )
            if _interrupted(command, client, f"{rows}:5000") == 1:
                break
        else:
            raise AssertionError("the load was always quicker than the interruption")
        assert not client.exists(f"{rows}:{rows - 1}")
        done = subprocess.run(command, capture_output=True, timeout=300, check=True)
        assert json.loads(done.stdout)["rows"] <= rows
        assert len(client.get_many(f"{rows}:{n}" for n in range(rows))) == rows
    assert [found.name for found in tmp_path.glob("rows*")] == ["rows.jsonl"]


@pytest.mark.nightly
def test_load_of_four_times_the_memory_quota(make_node: MakeNode, tmp_path: Path) -> None:
    """The load is slowed, nothing is refused; no row is missed."""
    node = make_node("--memory-quota", "16MiB", "--flush-interval", "5000").start()
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        file.writelines(
            json.dumps({"id": f"k{n}", "x": "y" * 1200}) + "\n" for n in range(QUOTA_ROWS)
        )
    words = ["load", "default", str(path), "--json", "--connect", node.ready["kv"]]
    command = [sys.executable, "-m", "millstream", *words]
    done = subprocess.run(command, capture_output=True, timeout=300, check=True)
    assert json.loads(done.stdout)["rows"] == QUOTA_ROWS
    with millstream.connect(node.ready["kv"], timeout_s=30) as client:
        found = client.get_many(f"k{n}" for n in range(QUOTA_ROWS))
        assert len(found) == QUOTA_ROWS
    assert "its memory quota is exhausted" not in node.log(), "something was refused"


def _interrupted(command: list[str], client: millstream.Client, key: str) -> int:
    """Run a load, interrupt it once it has written `key`, and return its exit status."""
    running = subprocess.Popen(
        [*DEFAULT_SIGNALS, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 60
    while not client.exists(key):
        assert time.monotonic() < until
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    return running.returncode
