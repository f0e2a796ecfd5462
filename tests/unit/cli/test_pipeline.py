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
    progress = ProgressWriter(run.name)
    progress.batch(3, 9, 0.5, lag={0: 4}, figures={"index_rows": 5})
    found = json.loads(call("pipeline", "status", "views-b-d", "--json").out)
    assert (found["state"], found["index_rows"], found["rows"]) == ("stopped", 5, 9)
    assert "rows_per_s" in call("pipeline", "status", "views-b-d").out.decode()


def test_offsets(call: Any, run: RunRecord) -> None:
    found = json.loads(call("pipeline", "offsets", "views-b-d", "--json").out)
    assert found == {"0": ["ab", 7, 7, 7], "10": ["cd", 2, 2, 2]}
    lines = call("pipeline", "offsets", "views-b-d").out.decode().splitlines()
    assert [line.split()[1] for line in lines[3:5]] == ["0", "10"]


def test_what_does_not_run_cannot_be_stopped(call: Any, run: RunRecord) -> None:
    code, _, err = call("pipeline", "stop", "views-b-d")
    assert code == 2
    assert "does not run" in err
    assert call("pipeline", "stop", "nobody").code == 1
