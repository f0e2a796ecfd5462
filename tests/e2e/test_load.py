"""`millstream load` as a process of its own: interrupted, it goes on and misses nothing."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import millstream
from node_process import NodeProcess

ROWS = 60_000


def test_interrupted_load_goes_on(node: NodeProcess, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        file.writelines(json.dumps({"id": f"k{n}", "x": "y" * 100}) + "\n" for n in range(ROWS))
    words = ["load", "default", str(path), "--json", "--connect", node.ready["kv"]]
    command = [sys.executable, "-m", "millstream", *words]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with millstream.connect(node.ready["kv"], timeout_s=30) as client:
        until = time.monotonic() + 60
        while not client.exists("k5000"):
            assert time.monotonic() < until
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
        assert running.returncode == 1
        assert not client.exists(f"k{ROWS - 1}")
        done = subprocess.run(command, capture_output=True, timeout=120, check=True)
        assert json.loads(done.stdout)["rows"] <= ROWS
        assert len(client.get_many(f"k{n}" for n in range(ROWS))) == ROWS
    assert [found.name for found in tmp_path.glob("rows*")] == ["rows.jsonl"]
