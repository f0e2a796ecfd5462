from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.pipelines import lake as pipeline_lake
from millstream.errors import UnavailableError
from millstream.pipelines.lake.table_query import TableQuery
from millstream.pipelines.runs import read_progress

AUTHORITY = Path(__file__).parents[3] / "e2e" / "tls" / "authority.pem"


@pytest.fixture(autouse=True)
def reachable(no_spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_lake, "check_node", lambda _: None)


def test_run_lake_hands_its_options_on(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Any] = []

    def run(self: TableQuery, spark: Any, *, once: bool) -> None:
        runs.append((self._source, self._path, self._form, once))

    monkeypatch.setattr(TableQuery, "run", run)
    words = ["--to", str(tmp_path / "d"), "--connect", "h:1", "--rows-per-batch", "7"]
    words += ["--once", "--tls-ca", str(AUTHORITY)]
    assert call("pipeline", "run", "lake", "b", *words).code == 0
    source = {
        "hosts": "h:1", "bucket": "b", "tlsCa": str(AUTHORITY), "rollback": "rows",
        "meta": "true", "maxRowsPerBatch": "7",
        "maxBytesPerBatch": str(32 * 1024 * 1024),
    }  # fmt: skip
    words += ["--format", "delta"]
    assert call("pipeline", "run", "lake", "b", *words).code == 0
    assert runs == [(source, tmp_path / "d", form, True) for form in ("parquet", "delta")]


def test_a_delta_table_without_its_package(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    words = ["pipeline", "run", "lake", "b", "--to", str(tmp_path / "d"), "--format", "delta"]
    code, _, err = call(*words)
    assert (code, "pip install 'millstream[delta]'" in err) == (2, True)
    assert not (tmp_path / "d").exists()


def test_a_failed_batch_is_recorded(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: TableQuery, spark: Any, *, once: bool) -> None:
        raise UnavailableError("no disk")

    monkeypatch.setattr(TableQuery, "run", run)
    code, _, err = call("pipeline", "run", "lake", "b", "--to", str(tmp_path / "d"))
    assert (code, "no disk" in err) == (1, True)
    assert read_progress("lake-b").error == "no disk"
