"""`millstream pipeline` but for the runs themselves, which are in tests/pipelines."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.cli import pipeline
from millstream.pipelines import session, view_setup
from millstream.pipelines.bucket_changes import Endpoint
from millstream.pipelines.runs import RunRecord, lock_run
from millstream.pipelines.views import ViewsPipeline

HEADER = {
    "signature": "s", "batch": 3, "documents": 5, "rows_streamed": 9, "updates": 2, "deletes": 1,
    "rows": 4, "map_errors": {}, "error_samples": [],
    "offset": {"p": {"0": ["ab", 7, 7, 7, 1, None, 1, None], "10": ["cd", 2, 2, 2, 1, 5, 1, 0]}},
}  # fmt: skip

AUTHORITY = Path(__file__).parents[2] / "e2e" / "tls" / "authority.pem"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_STATE", str(tmp_path))
    monkeypatch.setattr(pipeline, "_header_of", lambda *_: HEADER)


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
    found = json.loads(call("pipeline", "status", "views-b-d", "--json").out)
    assert (found["state"], found["documents"], found["seqnos"]) == ("stopped", 5, 9)
    assert "rows_streamed" in call("pipeline", "status", "views-b-d").out.decode()


def test_offsets(call: Any, run: RunRecord) -> None:
    assert json.loads(call("pipeline", "offsets", "views-b-d", "--json").out) == HEADER["offset"]
    lines = call("pipeline", "offsets", "views-b-d").out.decode().splitlines()
    assert [line.split()[1] for line in lines[3:5]] == ["0", "10"]


def test_what_does_not_run_cannot_be_stopped(call: Any, run: RunRecord) -> None:
    code, _, err = call("pipeline", "stop", "views-b-d")
    assert code == 2
    assert "does not run" in err
    assert call("pipeline", "stop", "nobody").code == 1


def test_a_design_that_does_not_compile_is_refused_before_spark(call: Any, tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_text('{"views":{"v":{"map":"function ("}}}')
    code, _, err = call("pipeline", "run", "views", "b", "--ddoc", str(path))
    assert code == 2
    assert "does not compile" in err


def test_an_unreachable_node(call: Any, tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_text('{"views":{"v":{"map":"d => emit(1)"}}}')
    words = ["pipeline", "run", "views", "b", "--ddoc", str(path), "--connect", "127.0.0.1:1"]
    code, _, err = call(*words)
    assert code == 1
    assert "127.0.0.1:1" in err


@pytest.mark.parametrize(("word", "once"), [("--once", True), ("--follow", False)])
def test_run_hands_its_options_on_and_ends_with_the_pipeline(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, once: bool
) -> None:
    (tmp_path / "d.json").write_text('{"views": {"v": {"map": "d => emit(1)"}}}')
    runs: list[Any] = []

    class FalseSpark:
        def stop(self) -> None:
            runs.append("stopped")

    def run(self: ViewsPipeline, spark: Any, *, once: bool) -> None:
        runs.append((self.bucket, self.rows_per_batch, once, self.source_options))

    bucket = nullcontext(SimpleNamespace(cluster_map=SimpleNamespace(bucket_uuid="ab" * 16)))
    monkeypatch.setattr(Endpoint, "client", lambda *_: bucket)
    monkeypatch.setattr(view_setup, "ensure_store", lambda *_: None)
    monkeypatch.setattr(session, "local_session", lambda *_, **__: FalseSpark())
    monkeypatch.setattr(ViewsPipeline, "run", run)
    monkeypatch.setattr(pipeline.signal, "signal", lambda *_: None)
    words = ["--ddoc", str(tmp_path / "d.json"), "--rows-per-batch", "7", word]
    words += ["--tls-ca", str(AUTHORITY)]
    assert call("pipeline", "run", "views", "b", *words).code == 0
    assert runs == [("b", 7, once, {"tlsCa": str(AUTHORITY)}), "stopped"]
