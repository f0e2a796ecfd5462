"""`millstream pipeline run views` but for the run itself, which is in tests/pipelines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from millstream.errors import ConditionError, UnavailableError
from millstream.pipelines import session
from millstream.pipelines.index import setup
from millstream.pipelines.index.mapping import MapSpec
from millstream.pipelines.index.offered import OfferedBuilds
from millstream.pipelines.index.on_spark import CycleReport, IndexPipeline
from millstream.pipelines.index.shard import IndexAddress, IndexState
from millstream.pipelines.index.writer import Cycle
from millstream.pipelines.runs import read_progress
from support.node.waiting import until

AUTHORITY = Path(__file__).parents[3] / "e2e" / "tls" / "authority.pem"
REPORT = CycleReport("d", 7, 0.5, 20, 4, 0, [3, 4], is_first=False, lag={0: 1})


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_STATE", str(tmp_path))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was looked for; every name is found."""
    asked: list[Any] = []

    def find(source: Any, designs: Any, modules: Any, may_lack: bool) -> list[MapSpec]:
        asked.append((source.hosts, source.bucket, list(designs), modules))
        return [
            MapSpec(
                source=source,
                address=IndexAddress(host="h", port=1, bucket=source.bucket, design=name),
                bucket_uuid="ab" * 16, design=b"{}", signature="cd" * 16, fence=0, is_first=False,
            )
            for name in designs
        ]  # fmt: skip

    monkeypatch.setattr(setup, "find_specs", find)
    return asked


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was run, instead of running it."""
    made: list[Any] = []

    class FalseSpark:
        def stop(self) -> None:
            made.append("stopped")

    def run(self: IndexPipeline, spark: Any, *, once: bool) -> None:
        assert self.checkpoint.is_absolute()
        made.append((self.design, self.rows_max, self.is_loop, once, self.source_options))
        self.on_cycle(REPORT)

    monkeypatch.setattr(session, "local_session", lambda *_, **__: FalseSpark())
    monkeypatch.setattr(IndexPipeline, "run", run)
    return made


@pytest.mark.parametrize(("word", "once"), [("--once", True), ("--follow", False)])
def test_run_hands_its_options_on_and_ends_with_the_pipeline(
    call: Any, found: list[Any], runs: list[Any], word: str, once: bool
) -> None:
    words = ["--ddoc", "d", "--rows-per-commit", "7", "--loop", word, "--tls-ca", str(AUTHORITY)]
    code, out, err = call("pipeline", "run", "views", "b", "--connect", "h:1", *words)
    assert (code, out) == (0, b"")
    assert found == [("h:1", "b", ["d"], ())]
    assert runs == [("d", 7, True, once, {"tlsCa": str(AUTHORITY)}), "stopped"]
    assert "d commit 7: 20 changes, 7 rows in the index" in err
    progress = read_progress("views-b-d")
    assert (progress.row_count, progress.lag) == (20, {"0": 1})


def test_several_design_documents_tell_lines(call: Any, found: list[Any], runs: list[Any]) -> None:
    words = ["--ddoc", "d", "--ddoc", "e", "--once", "--json"]
    lines = call("pipeline", "run", "views", "b", *words).out.splitlines()
    assert [json.loads(line)["commit"] for line in lines] == [7, 7]
    assert {run[0] for run in runs if run != "stopped"} == {"d", "e"}


def test_a_failure_is_told_and_kept(
    call: Any, found: list[Any], runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the one that failed; the other one ends because of it, and says nothing."""

    def fenced(self: IndexPipeline, spark: Any, *, once: bool) -> None:
        if self.design == "d":
            raise ConditionError("another one keeps it", code="index_fenced")
        until(lambda: self.is_stopping)

    monkeypatch.setattr(IndexPipeline, "run", fenced)
    code, _, err = call("pipeline", "run", "views", "b", "--ddoc", "d", "--ddoc", "e")
    assert code == 1
    assert "another one keeps it" in err
    assert read_progress("views-b-d").error == "another one keeps it"
    assert read_progress("views-b-e").error == ""


def test_each_pipeline_keeps_its_own_failure(
    call: Any, found: list[Any], runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: IndexPipeline, spark: Any, *, once: bool) -> None:
        raise Py4JNetworkError(f"no answer for {self.design}")

    monkeypatch.setattr(IndexPipeline, "run", fails)
    code, _, err = call("pipeline", "run", "views", "b", "--ddoc", "d", "--ddoc", "e")
    assert (code, "Spark failed: no answer for d" in err) == (1, True)
    for design in "de":
        assert read_progress(f"views-b-{design}").error == f"Spark failed: no answer for {design}"


def test_what_ends_all_is_kept_by_all(
    call: Any, found: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_java(*_: Any, **__: Any) -> None:
        raise UnavailableError("no Java", code="no_java")

    monkeypatch.setattr(session, "local_session", no_java)
    assert call("pipeline", "run", "views", "b", "--ddoc", "d", "--ddoc", "e").code == 1
    assert {read_progress(f"views-b-{design}").error for design in "de"} == {"no Java"}


def test_an_unreachable_node(call: Any) -> None:
    code, _, err = call("pipeline", "run", "views", "b", "--connect", "127.0.0.1:1")
    assert code == 1
    assert "127.0.0.1:1" in err


def test_a_pipeline_that_follows_takes_builds_that_nodes_offer(
    call: Any, found: list[Any], runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = IndexAddress(host="h", port=1, bucket="b", design="large")
    state = IndexState(
        signature="s", engine="node", writer="w", fence=1, commit=1, committed_ms=0,
        is_empty=False, trees=1, rows=[5], states={}, positions={},
    )  # fmt: skip

    def run(self: OfferedBuilds, spark: Any) -> None:
        runs.append((self._index_nodes, self._task_count))
        self._on_build(address, Cycle(state, 9, 4, True), 2.0)
        self._on_failure(address, ConditionError("no such function", code="unknown_function"))

    monkeypatch.setattr(OfferedBuilds, "run", run)
    words = ["--index-node", "i:7", "--tasks", "3"]
    code, _, err = call("pipeline", "run", "views", "b", *words)
    assert code == 0, err
    assert (("i:7",), 3) in runs
    assert "large first build: 9 changes, 5 rows in the index" in err
    assert "no such function" in err
    runs.clear()
    for words in (["--once", "--ddoc", "d"], ["--ddoc", "d"]):
        assert call("pipeline", "run", "views", "b", *words).code == 0
    assert (("i:7",), 3) not in runs
    assert len(runs) == 4, "two pipelines that end, no builds"
