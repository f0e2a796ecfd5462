"""The commands of backups but for the work itself, which is in tests/unit/pipelines/lake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import StreamError
from millstream.model.position import FailoverEntry, Position
from millstream.pipelines import control, session
from millstream.pipelines.lake import backup
from millstream.pipelines.lake.manifest import DataFile, Manifest, Part
from millstream.pipelines.runs import read_progress

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


class FalseSession:
    def stop(self) -> None: ...


@pytest.fixture(autouse=True)
def no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(session, "local_session", lambda *_, **__: FalseSession())


@pytest.fixture
def reachable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    asked: list[Any] = []

    class FalseClient:
        def close(self) -> None: ...

    def open_client(options: Any) -> FalseClient:
        asked.append(options)
        return FalseClient()

    monkeypatch.setattr(control, "open_client", open_client)
    return asked


def test_backup_hands_its_options_on_and_says_what_was_made(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reachable: list[Any]
) -> None:
    calls: list[Any] = []

    def back_up(spark: Any, options: Any, directory: Any, **more: Any) -> Manifest:
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
    assert read_progress("backup-b").row_count == 5
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


def test_an_unreachable_node_is_told_before_spark_starts(call: Any, tmp_path: Path) -> None:
    words = ["pipeline", "run", "backup", "b", "--to", str(tmp_path / "d")]
    code, _, err = call(*words, "--connect", "127.0.0.1:1")
    assert (code, "127.0.0.1:1" in err) == (1, True)


def test_compact_needs_a_backup(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = call("pipeline", "run", "compact", str(tmp_path))
    assert (code, "no backup in" in err) == (2, True)
    monkeypatch.setattr(backup, "compact", lambda *_: MADE)
    assert call("pipeline", "run", "compact", str(tmp_path)).out.startswith(b"manifest 3")
