"""`millstream demo`, the main job, and its cluster, on the first flights of the file."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

FLIGHTS = 1000
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A Java that lives for a minute: half the time of its start is its compiler's."""


@pytest.mark.slow
def test_the_first_flights(tmp_path: Path) -> None:
    work = tmp_path / "work"
    words = ["demo", "--flights", str(FLIGHTS), "--workdir", str(work), "--keep"]
    done = subprocess.run(
        [sys.executable, "-m", "millstream", *words],
        env={"JDK_JAVA_OPTIONS": JAVA, **os.environ, "COLUMNS": "120"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((work / "figures.json").read_text())
    assert figures["is_right"]
    assert figures["rows_streamed"] < figures["changes_written"]
    assert figures["updates_of_applied_rows"] > 0
    assert figures["deletes_of_applied_rows"] > 0
    assert {check["name"] for check in figures["checks"]} >= {
        "rows of flights/delay_by_carrier", "rows of flights/flights_by_hour",
        "rows of routes/delay_by_route", "documents in the bucket",
        "crash: rows of the table that the node lost",
        "crash: rows that differ after the next batch",
    }  # fmt: skip
    assert "WRONG" not in done.stdout
    page = (work / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert (work / "state").exists()
    try:
        (console,) = re.findall(r"http://[^/]+/_console/", done.stderr)
        with urlopen(console) as answer:
            assert b"<title>" in answer.read()
    finally:
        (pid,) = re.findall(r"`kill (\d+)`", done.stderr)
        os.kill(int(pid), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cluster_whose_nodes_die_come_and_go(tmp_path: Path) -> None:
    work = tmp_path / "work"
    words = ["demo", "--cluster", "--flights", str(FLIGHTS), "--workdir", str(work), "--no-plots"]
    done = subprocess.run(
        [sys.executable, "-m", "millstream", *words],
        env={"JDK_JAVA_OPTIONS": JAVA, **os.environ, "COLUMNS": "120"},
        cwd=tmp_path,  # PouchDB is not found there
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((work / "figures.json").read_text())
    assert figures["is_right"]
    assert {step["name"] for step in figures["steps"]} >= {"fail-over", "return", "add", "remove"}
    assert {check["name"] for check in figures["checks"]} >= {
        "documents that differ", "rows of the Spark table that differ",
        "copies that differ from the active one", "rows of routes/delay_by_route",
        "view answers that were short",
    }  # fmt: skip
    nodes = {name for one in figures["timeline"]["moments"] for name in one["active"]}
    assert nodes == {"n1", "n2", "n3", "n4"}
    assert not (work / "nodes").exists()
