"""What all runs share, with a session that is none."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from millstream.cli.connect import NodeOptions
from millstream.cli.pipelines.run import file_options, recorded, spark_session
from millstream.errors import StreamError, UnavailableError
from millstream.pipelines import session
from millstream.pipelines.runs import read_progress, read_run, state_directory


class FalseSession:
    def __init__(self, name: str, **settings: Any) -> None:
        self.name, self.settings = name, settings
        self.is_stopped = False
        # As PySpark does.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def stop(self) -> None:
        self.is_stopped = True


@pytest.fixture(autouse=True)
def no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_STATE", str(tmp_path))
    monkeypatch.setattr(session, "local_session", FalseSession)


def test_a_session_ends_with_its_run_and_both_signals_only_ask(tmp_path: Path) -> None:
    asked: list[str] = []
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with recorded(
        "lake", "b", checkpoint=tmp_path / "d", subject="d", at=NodeOptions("h:1")
    ) as run:
        with spark_session(run, lambda: asked.append("stop"), master=None, memory="2g") as spark:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            assert read_run("lake-b").is_running
        assert asked == ["stop", "stop"]
        assert spark.is_stopped
        log = state_directory() / "lake-b" / "spark.log"
        assert spark.settings == {"driver_memory": "2g", "log_file": log, "settings": {}}
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    record = read_run("lake-b")
    assert (record.is_running, record.address, record.subject) == (False, "h:1", "d")


@pytest.mark.parametrize(
    "error", [StreamError("no lease", code="x"), OSError(28, "full"), ValueError()]
)
def test_what_a_run_failed_with_is_kept(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)), recorded("lake", "b", checkpoint=tmp_path, subject="d"):
        raise error
    assert read_progress("lake-b").error == (str(error) or repr(error))


def test_a_java_that_is_killed_ends_a_run_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: FalseSession) -> None:
        raise Py4JNetworkError("nobody listens")

    monkeypatch.setattr(FalseSession, "stop", stop)
    with (
        pytest.raises(UnavailableError, match="Spark failed: no answer") as caught,
        recorded("lake", "b", checkpoint=tmp_path, subject="d") as run,
        spark_session(run, lambda: None, master=None, memory="2g"),
    ):
        raise Py4JNetworkError("no answer")
    assert caught.value.code == "query_failed"
    assert read_progress("lake-b").error == "Spark failed: no answer"


def test_a_query_that_cannot_be_started_is_told_in_words(tmp_path: Path) -> None:
    with (
        pytest.raises(UnavailableError, match="Spark failed: no such option"),
        recorded("lake", "b", checkpoint=tmp_path, subject="d") as run,
        spark_session(run, lambda: None, master=None, memory="2g"),
    ):
        raise PySparkException("no such option")
    assert read_progress("lake-b").error == "Spark failed: no such option"


def test_files_of_the_driver_are_named_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert file_options(NodeOptions(password_file=Path("p"))) == {"passwordFile": "/p"}
    assert file_options(NodeOptions()) == {}
