"""`millstream pipeline` but for the runs themselves, which are in tests/pipelines."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.pipelines.index import setup
from millstream.pipelines.runs import ProgressWriter, RunRecord, lock_run

POSITIONS = {0: ["ab", 7, 7, 7], 10: ["cd", 2, 2, 2]}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_STATE", str(tmp_path))
    found = SimpleNamespace(positions=POSITIONS)
    monkeypatch.setattr(setup, "index_state_of", lambda source, design: found)


@pytest.fixture
def run() -> RunRecord:
    record = RunRecord(
        name="views-b-d", kind="views", bucket="b", ddoc="d", address="h:1", checkpoint="/c",
        pid=os.getpid(), started=1,
    )  # fmt: skip
    with lock_run(record):
        pass
    return record


def test_list(call: Any, run: RunRecord) -> None:
    (found,) = json.loads(call("pipeline", "list", "--json").out)
    assert (found["name"], found["is_running"]) == ("views-b-d", False)
    with lock_run(run):
        assert "running" in call("pipeline", "list").out.decode()


def test_status(call: Any, run: RunRecord) -> None:
    def status() -> Any:
        return json.loads(call("pipeline", "status", "views-b-d", "--json").out)

    assert (status()["state"], status()["batches"], status()["error"]) == ("stopped", 0, "")
    assert "none" in call("pipeline", "status", "views-b-d").out.decode()
    progress = ProgressWriter("views-b-d")
    progress.batch(3, 100, 0.5, lag={0: 7, 1: 0, 2: 1000}, figures={"index_rows": 5})
    progress.batch(4, 300, 1.5)
    found = status()
    assert (found["batches"], found["rows"], found["rows_per_s"]) == (2, 400, 200.0)
    assert (found["last_batches"], found["index_rows"]) == ([[3, 100, 0.5], [4, 300, 1.5]], 5)
    assert found["lag"] == {"0": 7, "1": 0, "2": 1000}
    shown = " ".join(call("pipeline", "status", "views-b-d").out.decode().split())
    assert "0.50 to 1.50 s, last 1.50 s" in shown
    assert "1,007 (partition 2: 1,000, partition 0: 7)" in shown
    assert "1,007" in call("pipeline", "list").out.decode()
    progress.failed("the node is gone")
    assert status()["error"] == "the node is gone"
    assert "failed" in call("pipeline", "list").out.decode()


def test_offsets(call: Any, run: RunRecord) -> None:
    found = json.loads(call("pipeline", "offsets", "index", "views-b-d", "--json").out)
    assert found == {"0": ["ab", 7, 7, 7], "10": ["cd", 2, 2, 2]}
    lines = call("pipeline", "offsets", "index", "views-b-d").out.decode().splitlines()
    assert [line.split()[1] for line in lines[3:5]] == ["0", "10"]


def test_what_does_not_run_cannot_be_stopped(call: Any, run: RunRecord) -> None:
    code, _, err = call("pipeline", "stop", "views-b-d")
    assert code == 2
    assert "does not run" in err
    assert call("pipeline", "stop", "nobody").code == 1
