"""The commands of backups but for the work itself, which is in tests/unit/pipelines/lake."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.pipelines import backup as pipeline_backup
from millstream.cli.pipelines import run
from millstream.client.http import HttpClient
from millstream.errors import ConditionError, StreamError, UnavailableError
from millstream.model.position import FailoverEntry, Position
from millstream.pipelines.change_stream import control
from millstream.pipelines.lake import backup, restore
from millstream.pipelines.lake import verify as lake_verify
from millstream.pipelines.lake.comparing import Compared
from millstream.pipelines.lake.manifest import DataFile, Manifest, Part, manifest_to_json
from millstream.pipelines.lake.restore import Restored
from millstream.pipelines.lake.tasks import Watch
from millstream.pipelines.runs import list_runs, read_progress, read_run

MADE = Manifest(
    id=3, parent=2, created="", bucket="b", bucket_uuid="b0", partition_count=1,
    parts=(
        Part(
            partition=0, kind="branched", position=Position(1, 9, 9, 9), branch=1, purge_seqno=0,
            failover_log=(FailoverEntry(1, 0, 1),), rollback_to=4,
            files=(DataFile(path="x", row_count=5, byte_count=70, sha256=""),),
        ),
    ),
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("no_spark")


@pytest.fixture
def reachable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    asked: list[Any] = []

    class FalseClient:
        def close(self) -> None: ...

    def open_client(options: Any) -> FalseClient:
        asked.append(options)
        return FalseClient()

    def no_http(*_: Any) -> HttpClient:
        raise UnavailableError("no HTTP listener", code="no_http")

    monkeypatch.setattr(control, "open_client", open_client)
    monkeypatch.setattr(run, "http_at", no_http)  # the run goes on all the same
    return asked


@pytest.fixture
def backed_up(tmp_path: Path) -> Path:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "manifest-000003.json").write_bytes(manifest_to_json(MADE))
    return tmp_path / "d"


def test_backup_hands_its_options_on_and_says_what_was_made(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reachable: list[Any]
) -> None:
    calls: list[Any] = []

    def back_up(
        spark: Any, options: Any, directory: Any, *, watch: Watch, **more: Any
    ) -> Manifest:
        watch.tell(5, 0.5, {1: 7})
        calls.append((options.bucket, options.hosts, directory.path, more))
        return MADE

    monkeypatch.setattr(backup, "back_up", back_up)
    words = ["pipeline", "run", "backup", "b", "--to", str(tmp_path / "d"), "--connect", "h:1"]
    made = json.loads(call(*words, "--json").out)
    assert (made["manifest"], made["parent"], made["rows"], made["bytes"]) == (3, 2, 5, 70)
    assert (made["branched"], made["full"]) == (1, 0)
    said = call(*words, "--incremental").out.decode()
    assert "manifest 3: 5 rows, 70 bytes, on top of 2; 1 partitions had to be rolled" in said
    assert calls == [
        ("b", "h:1", tmp_path / "d", {"is_incremental": flag}) for flag in (False, True)
    ]
    told = read_progress("backup-b")
    assert (told.row_count, told.lag) == (5, {"1": 7})
    assert read_run("backup-b").checkpoint == str(tmp_path / "d")
    assert reachable


def test_a_failed_backup_is_recorded(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reachable: list[Any]
) -> None:
    def back_up(*_: Any, **__: Any) -> Manifest:
        raise StreamError("no lease holds", code="lease_lost")

    monkeypatch.setattr(backup, "back_up", back_up)
    code, _, err = call("pipeline", "run", "backup", "b", "--to", str(tmp_path / "d"))
    assert (code, "no lease holds" in err) == (1, True)
    assert read_progress("backup-b").error == "no lease holds"


def test_a_backup_that_is_stopped_says_what_to_do(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reachable: list[Any]
) -> None:
    def back_up(*_: Any, watch: Watch, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        watch.check()

    monkeypatch.setattr(backup, "back_up", back_up)
    code, out, err = call("pipeline", "run", "backup", "b", "--to", str(tmp_path / "d"))
    assert (code, out) == (1, b"")
    assert "does not count, what was there is as it was; run it again" in " ".join(err.split())
    assert "does not count" in read_progress("backup-b").error


def test_an_unreachable_node_is_told_before_spark_starts(call: Any, tmp_path: Path) -> None:
    words = ["pipeline", "run", "backup", "b", "--to", str(tmp_path / "d")]
    code, _, err = call(*words, "--connect", "127.0.0.1:1")
    assert (code, "127.0.0.1:1" in err) == (1, True)


@pytest.mark.parametrize(
    "words", [("run", "compact", "."), ("run", "restore", ".", "b"), ("verify", "nowhere")]
)
def test_what_needs_a_backup_says_that_there_is_none(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reachable: list[Any],
    words: tuple[str, ...],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    code, _, err = call("pipeline", *words)
    assert (code, "no backup in" in err) == (2, True)
    assert list_runs() == []


def test_compact(call: Any, backed_up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "compact", lambda *_, **__: MADE)
    assert call("pipeline", "run", "compact", str(backed_up)).out.startswith(b"manifest 3")
    assert [run.kind for run in list_runs()] == ["compact"]


class FalseDatabase:
    def __init__(self) -> None:
        self.designs: dict[str, Any] = {"_design/there": {}}

    def get(self, key: str) -> Any:
        if key not in self.designs:
            raise ConditionError("none", code="not_found")
        return self.designs[key]

    def put_back(self, key: str, content: Any) -> None:
        self.designs[key] = content


def test_restore_writes_design_documents_where_they_are_checked(
    call: Any, backed_up: Path, monkeypatch: pytest.MonkeyPatch, reachable: list[Any]
) -> None:
    calls: list[Any] = []
    designs = {"_design/there": b'{"new":1}', "_design/d": b"{}"}

    def restored(
        spark: Any, options: Any, directory: Any, *, watch: Watch, **more: Any
    ) -> Restored:
        calls.append((options.bucket, directory.path, more))
        return Restored(3, 1200, 1, designs, 4, frozenset([bytes(32)]))

    database = FalseDatabase()
    monkeypatch.setattr(restore, "restore", restored)
    monkeypatch.setattr(pipeline_backup, "database_of", lambda *_, **__: database)
    words = ["pipeline", "run", "restore", str(backed_up), "b", "--manifest", "3"]
    said = call(*words, "--key-prefix", "u:").out.decode()
    assert "manifest 3: 1,200 documents written, and 1 design documents, 4 attachments; 2" in said
    assert "1 attachments are not in this backup" in said
    assert "0" * 64 in said
    assert database.designs == {"_design/there": {}, "_design/d": {}}
    made = json.loads(call(*words, "--overwrite", "--json").out)
    assert made.pop("missing_attachments") == ["0" * 64]
    assert made.pop("too_large") == []
    assert made == {"manifest": 3, "written": 1200, "kept": 1, "designs": 2, "attachments": 4}
    assert database.designs["_design/there"] == {"new": 1}
    assert calls == [
        ("b", backed_up, {"manifest": 3, "key_prefix": prefix, "overwrites": flag})
        for prefix, flag in (("u:", False), ("", True))
    ]


def test_a_restore_names_the_documents_that_are_too_large_for_one_request(
    call: Any, backed_up: Path, monkeypatch: pytest.MonkeyPatch, reachable: list[Any]
) -> None:
    done = Restored(3, 7, 0, {}, too_large=("big", "a"))
    monkeypatch.setattr(restore, "restore", lambda *_, **__: done)
    words = ["pipeline", "run", "restore", str(backed_up), "b"]
    for more in ([], ["--json"]):
        code, out, err = call(*words, *more)
        assert (code, b"7" in out) == (1, True)
        assert "2 documents were not written" in err
        assert err.endswith("a, big\n")


def test_verify_ends_with_an_error_where_something_is_wrong(
    call: Any, backed_up: Path, monkeypatch: pytest.MonkeyPatch, reachable: list[Any]
) -> None:
    found = [Compared(equal=7, changed=2, incomparable=1)]
    problems: list[str] = []
    monkeypatch.setattr(lake_verify, "verify_files", lambda *_, **__: (4, problems))
    monkeypatch.setattr(lake_verify, "verify_bucket", lambda *_, **__: found[0])
    words = ["pipeline", "verify", str(backed_up)]
    assert call(*words).out == b"4 files checked\n"
    code, out, _ = call(*words, "--bucket", "b")
    assert (code, b"7 documents equal, 2 keys changed since" in out) == (0, True)
    assert b"1 partitions were not compared" in out
    found[0] = Compared(equal=7, missing=1, samples=("k",))
    code, out, err = call(*words, "--bucket", "b")
    assert (code, b"such as k" in out, "are not the same" in err) == (1, True, True)
    assert json.loads(call(*words, "--bucket", "b", "--json").out)["missing"] == 1
    problems.append("data-x is damaged")
    code, out, err = call(*words, "--bucket", "b")
    assert (code, out.splitlines()[0], "is damaged" in err) == (1, b"data-x is damaged", True)
    assert "is damaged" in read_progress("verify-d-2").error
