"""The record of pipelines on a machine."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import structs

from millstream.errors import ConditionError, UnavailableError
from millstream.pipelines import runs
from millstream.pipelines.change_stream.offsets import Offset, OffsetEntry, offset_to_json
from millstream.pipelines.runs import (
    BATCHES_KEPT_MAX,
    ERROR_CHARS_MAX,
    Batch,
    ProgressWriter,
    RunRecord,
    begin_run,
    list_runs,
    lock_run,
    read_progress,
    read_run,
    state_directory,
    stop_run,
)


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


@contextmanager
def begun(subject, **changed):
    with begin_run(structs.replace(record("lake-b"), subject=subject, **changed)) as held:
        yield held


def test_pipelines_of_one_bucket_have_names_of_their_own(tmp_path):
    """A lake beside another one, at another node, of another bucket that is called so."""
    (tmp_path / "kept").mkdir()
    kept = {"checkpoint": str(tmp_path / "kept")}
    with begun("/x", **kept) as first, begun("/y", **kept) as second:
        assert (first.name, second.name) == ("lake-b", "lake-b-2")
        assert [run.name for run in list_runs() if run.is_running] == ["lake-b", "lake-b-2"]
        with pytest.raises(ConditionError, match="stop lake-b-2"), begun("/y", **kept):
            pass
        with begun("/x", kind="other") as third:
            assert third.name == "lake-b-3"
    for subject, name in (("/y", "lake-b-2"), ("/x", "lake-b"), ("/z", "lake-b-3")):
        with begun(subject, **kept) as again:
            assert again.name == name


def test_a_name_is_free_when_nothing_is_left_of_its_run(tmp_path):
    gone = {"checkpoint": str(tmp_path / "gone")}
    with begun("/x", **gone), begun("/y", **gone) as second:
        assert second.name == "lake-b-2"
    with begun("/z", **gone) as other, begun("/y", **gone) as mine:
        assert (other.name, mine.name) == ("lake-b", "lake-b-2")


def test_a_name_is_that_of_a_directory(tmp_path):
    with begin_run(structs.replace(record("views-b-x/y z"), checkpoint="leaf")) as held:
        assert held.name == "views-b-x_y_z"
        assert held.checkpoint == str(tmp_path / "pipelines" / held.name / "leaf")


def test_stopping_signals_only_what_runs(monkeypatch):
    signalled = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signalled.append(pid))
    with lock_run(record()):
        assert stop_run("views-b-d")
    assert not stop_run("views-b-d")
    assert signalled == [os.getpid()]


def left_behind(pid):
    """A run that was killed; its process id is somebody else's by now."""
    with lock_run(structs.replace(record(), pid=pid)):
        pass
    directory = state_directory() / "views-b-d"
    (directory / "run.lock").write_text(f"{pid}\n")
    return directory / "run.lock"


def test_looking_at_a_run_does_not_start_it():
    """Two of them at a time, nor do they change what its holder wrote."""
    lock = left_behind(1234)
    with lock.open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not read_run("views-b-d").is_running
        assert not stop_run("views-b-d")
    assert lock.read_text() == "1234\n"


def test_the_process_that_has_the_lock_is_signalled_whatever_the_record_says(monkeypatch):
    """As it is between the lock and the record of a new run."""
    signalled = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signalled.append(pid))
    with lock_run(structs.replace(record(), pid=1234)):
        assert stop_run("views-b-d")
    assert signalled == [os.getpid()]


@pytest.mark.parametrize("told", ["1", "4194305", "", "x"])
def test_a_process_without_the_lock_is_not_signalled(monkeypatch, told):
    """Between the lock and what its holder writes into it; of another machine or user."""
    signalled = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signalled.append(pid))
    monkeypatch.setattr(runs, "LOOKING_S", 0.0)
    lock = left_behind(1234)
    lock.write_text(told)
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert read_run("views-b-d").is_running
        with pytest.raises(UnavailableError, match="not visible") as caught:
            stop_run("views-b-d")
    assert caught.value.code == "unseen_process"
    assert not signalled


@pytest.mark.parametrize("torn", ["", '{"name": "lake', "null", "{}"])
def test_a_record_that_cannot_be_read_stops_no_other_pipeline(torn):
    broken = state_directory() / "lake-b" / "run.json"
    broken.parent.mkdir(parents=True)
    broken.write_text(torn)
    with lock_run(record()):
        assert [run.name for run in list_runs()] == ["views-b-d"]
    with pytest.raises(ConditionError, match="no pipeline 'lake-b'"):
        read_run("lake-b")
    with begin_run(record("lake-b")) as again:
        assert read_run(again.name).is_running
    assert len(list_runs()) == 2


def test_a_record_is_replaced_whole(monkeypatch):
    """The new one cannot be written: the old one is there."""
    with lock_run(record()):
        pass

    def no_space(path, data):
        os.truncate(path, 0) if path.exists() else path.touch()
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", no_space)
    with pytest.raises(UnavailableError), lock_run(record()):
        pass
    assert read_run("views-b-d").started == 1


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


def offset(*seqnos):
    entries = {p: OffsetEntry(1, seqno, seqno, seqno, 5) for p, seqno in enumerate(seqnos)}
    return json.dumps(offset_to_json(Offset("b", "ff", entries)))


def report(batch_id, rows, **changed):
    source = {"endOffset": offset(5, 7), "latestOffset": offset(9, 7, 4)}
    return {
        "runId": "r", "batchId": batch_id, "numInputRows": rows, "batchDuration": 500,
        "sources": [source], **changed,
    }  # fmt: skip


def test_progress_of_a_query_is_told_once_a_batch():
    with lock_run(record()):
        progress = ProgressWriter("views-b-d")
        progress.query(None)
        progress.query(report(3, 0))
        assert read_progress("views-b-d").batch_count == 0
        progress.query(report(3, 100))
        progress.query(report(3, 100))
        progress.query(report(4, 50), figures={"documents": 7})
    told = read_progress("views-b-d")
    assert (told.batch_count, told.row_count, told.rows_per_s) == (2, 150, 150.0)
    assert told.batches == [Batch(3, 100, 0.5), Batch(4, 50, 0.5)]
    assert told.lag == {"0": 4, "1": 0, "2": 4}
    assert told.figures == {"documents": 7}
    assert told.updated > 0


@pytest.mark.parametrize("text", ["null", "7", "none", ""])
def test_a_source_without_offsets_of_ours_has_no_lag(text):
    progress = ProgressWriter("n")
    progress.batch(0, 1, 1.0, lag={1: 2})
    progress.query(report(1, 1, sources=[{"endOffset": text, "latestOffset": offset(1)}]))
    assert read_progress("n").lag == {"1": 2}


def test_an_error_stays_until_a_batch_ends():
    progress = ProgressWriter("n")
    progress.failed(ValueError("no " * 1000))
    assert read_progress("n").error == ("no " * 1000)[:ERROR_CHARS_MAX]
    for number in range(BATCHES_KEPT_MAX + 5):
        progress.batch(number, 2, 0.5, figures={"at": number})
    told = read_progress("n")
    assert (told.error, told.figures) == ("", {"at": BATCHES_KEPT_MAX + 4})
    assert [batch.batch_id for batch in told.batches] == list(range(5, BATCHES_KEPT_MAX + 5))
    assert told.batch_count == BATCHES_KEPT_MAX + 5
    ProgressWriter("n")
    assert read_progress("n").batch_count == 0


def test_progress_that_cannot_be_read_or_written_stops_nothing(tmp_path):
    assert read_progress("nobody").rows_per_s == 0.0
    directory = state_directory() / "n"
    (directory / "progress.json").mkdir(parents=True)
    progress = ProgressWriter("n")
    progress.batch(1, 1, 1.0)
    assert read_progress("n").batch_count == 0
