"""`millstream pipeline offsets` without Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from millstream.pipelines.change_stream import query
from millstream.pipelines.change_stream.offsets import Offset, OffsetEntry, offset_to_json
from millstream.pipelines.runs import RunRecord, lock_run

OFFSET = Offset("b", "ff", {0: OffsetEntry(1, 7, 7, 7, 5), 1: OffsetEntry(1, 8, 4, 9, 5, 77)})


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_STATE", str(tmp_path / "state"))


def written(path: Path, offset: Offset) -> str:
    path.write_text(json.dumps(offset_to_json(offset)))
    return str(path)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint"
    for name in ("offsets", "commits"):
        (path / name).mkdir(parents=True)
    (path / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(offset_to_json(OFFSET))}")
    (path / "commits" / "0").write_text("v1\n{}")
    return path


def record(checkpoint: Path) -> RunRecord:
    return RunRecord(
        name="lake-b", kind="lake", bucket="b", address="h:1", checkpoint=str(checkpoint),
        pid=os.getpid(), started=1,
    )  # fmt: skip


def test_show(call: Any, checkpoint: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "o.json", OFFSET)
    for where in (str(checkpoint), file):
        found = call("pipeline", "offsets", "show", where, "--json").out
        assert json.loads(found) == offset_to_json(OFFSET)
    lines = call("pipeline", "offsets", "show", str(checkpoint)).out.decode()
    assert "complete" in lines
    assert "4-9" in lines
    with lock_run(record(checkpoint)):
        named = call("pipeline", "offsets", "show", "lake-b", "--json").out
        assert json.loads(named) == offset_to_json(OFFSET)


def test_diff(call: Any, tmp_path: Path) -> None:
    entries = {0: OffsetEntry(1, 5, 5, 5, 6, load=2), 2: OffsetEntry(1, 3, 3, 3, 5)}
    words = ["pipeline", "offsets", "diff", written(tmp_path / "a", OFFSET)]
    words.append(written(tmp_path / "b", OFFSET._replace(entries=entries)))
    rows = json.loads(call(*words, "--json").out)
    assert [(row["partition"], row["seqnos"]) for row in rows] == [(0, -2), (1, -8), (2, 3)]
    assert [row["is_other_branch"] for row in rows] == [True, False, False]
    assert "another branch and load" in call(*words).out.decode()
    words[-1] = written(tmp_path / "c", OFFSET._replace(bucket_uuid="aa"))
    code, _, err = call(*words)
    assert (code, "the other of" in err) == (2, True)


@pytest.mark.parametrize("at", ["earliest", "latest", "file"])
def test_make(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    made: list[Any] = []

    class FalseQuery:
        def __init__(self, options: Any) -> None:
            made.append((options.bucket, options.hosts, options.starting_offsets))

        def initial_offset(self) -> dict[str, Any]:
            return offset_to_json(OFFSET)

        def stop(self) -> None:
            made.append("stopped")

    monkeypatch.setattr(query, "Query", FalseQuery)
    file = written(tmp_path / "o.json", OFFSET)
    words = ["pipeline", "offsets", "make", "b", "--connect", "h:1"]
    found = call(*words, "--at", file if at == "file" else at).out
    assert json.loads(found) == offset_to_json(OFFSET)
    assert made == [("b", "h:1", OFFSET if at == "file" else at), "stopped"]


def test_reset(call: Any, checkpoint: Path, tmp_path: Path) -> None:
    entries = {0: OffsetEntry(1, 2, 2, 2, 5)}
    file = written(tmp_path / "o.json", OFFSET._replace(entries=entries))
    words = ["pipeline", "offsets", "reset", str(checkpoint), "--to", file]
    with lock_run(record(checkpoint)):
        code, _, err = call(*words)
        assert (code, "millstream pipeline stop lake-b" in err) == (1, True)
    assert call(*words).code == 0
    found = json.loads(call("pipeline", "offsets", "show", "lake-b", "--json").out)
    assert found["p"] == json.loads(Path(file).read_text())["p"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "nowhere"], "not a checkpoint, a pipeline or a file"),
        (["reset", "nowhere", "--to", "x"], "is not a checkpoint, and not a pipeline"),
        (["show", "."], "is not a checkpoint of a streaming query"),
        (["show", "bad"], "is not JSON"),
        (["show", "newer"], "version 9 is not known"),
    ],
)
def test_what_is_no_offset(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad").write_text("{")
    Path("newer").write_text('{"v": 9}')
    code, _, err = call("pipeline", "offsets", *words)
    assert code == 2
    assert said in " ".join(err.split())
