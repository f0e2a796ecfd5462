"""The first program in the README runs as it stands there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from support.node.node_process import free_port

README = Path(__file__).parents[2] / "README.md"


def test_the_taste_in_the_readme_runs(tmp_path: Path) -> None:
    program = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert program is not None
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.group(1)],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "Changes(" in run.stdout
    assert "order::1" in run.stdout


def test_the_quick_start_pasted_as_one_block_works(tmp_path: Path) -> None:
    """Each shell block up to Spark's, in order, in one shell; ports are others, so tests go on."""
    text = README.read_text().split("## Quick start")[1].split("In Spark:")[0]
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    script = "\n".join(blocks).replace("make setup && . .venv/bin/activate", "")
    kv, http = free_port(), free_port()
    script = script.replace("127.0.0.1:5984", f"127.0.0.1:{http}")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MILLSTREAM_CONNECT": f"127.0.0.1:{kv}",
        "MILLSTREAM_SERVE_KV": f"127.0.0.1:{kv}",
        "MILLSTREAM_SERVE_HTTP": f"127.0.0.1:{http}",
        "MILLSTREAM_SERVE_NO_MEMCACHED": "true",
        "MILLSTREAM_SERVE_NO_COORD": "true",
        "MILLSTREAM_SERVE_NO_NINEP": "true",
        "MILLSTREAM_SERVE_NO_PEER": "true",
    }
    run = subprocess.run(
        ["bash", "-c", f"set -e; trap 'kill $(jobs -p); wait' EXIT\n{script}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False, env=environment,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    said = run.stdout
    assert '{"total": 12, "city": "Wien"}' in said
    rows = [json.loads(line) for line in said.splitlines() if line.startswith('{"partition"')]
    assert {row["key"] for row in rows} == {"order::1", "order::3", "order::4"}
    assert "Graz" in said
    assert '"ok":true,"id":"order::2"' in said
    assert (tmp_path / "here.json").exists()
