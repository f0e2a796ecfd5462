"""The record of pipelines on a machine."""

from __future__ import annotations

import os

import pytest

from millstream.errors import ConditionError, UnavailableError
from millstream.pipelines import runs
from millstream.pipelines.runs import RunRecord, list_runs, lock_run, read_run, stop_run


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("MILLSTREAM_STATE", str(tmp_path))


def record(name="views-b-d"):
    return RunRecord(
        name=name, kind="views", bucket="b", ddoc="d", address="h:1", checkpoint="/c",
        pid=os.getpid(), started=1,
    )  # fmt: skip


def test_a_run_is_running_while_its_lock_is_held():
    assert list_runs() == []
    with lock_run(record()):
        assert [run.is_running for run in list_runs()] == [True]
    assert not read_run("views-b-d").is_running


def test_a_second_run_is_refused():
    with lock_run(record()), pytest.raises(ConditionError) as caught, lock_run(record()):
        pass
    assert caught.value.code == "already_running"
    with lock_run(record()):
        pass


def test_stopping_signals_only_what_runs(monkeypatch):
    signalled = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signalled.append(pid))
    with lock_run(record()):
        assert stop_run("views-b-d")
    assert not stop_run("views-b-d")
    assert signalled == [os.getpid()]


def test_an_unknown_pipeline():
    with pytest.raises(ConditionError) as caught:
        read_run("nobody")
    assert caught.value.code == "unknown_pipeline"


def test_a_state_directory_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MILLSTREAM_STATE", str(tmp_path / "file"))
    with pytest.raises(UnavailableError) as caught, lock_run(record()):
        pass
    assert caught.value.code == "bad_state_directory"


def test_where_state_is_kept(monkeypatch):
    monkeypatch.delenv("MILLSTREAM_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert str(runs.state_directory()) == "/x/millstream/pipelines"
