"""What a session is asked for; that it then works is shown in tests/pipelines."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from millstream.errors import UsageError
from millstream.pipelines import session


class FalseBuilder:
    settings: ClassVar[dict[str, str]] = {}

    def config(self, name: str, value: str) -> Self:
        self.settings[name] = value
        return self

    def appName(self, name: str) -> Self:
        return self.config("name", name)

    def master(self, master: str) -> Self:
        return self.config("master", master)

    def getOrCreate(self) -> Any:
        return self

    @property
    def sparkContext(self) -> Self:
        return self

    def setLogLevel(self, level: str) -> None:
        self.settings["level set"] = level


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "another")
    monkeypatch.setattr(session, "use_java", lambda: Path("/java"))
    monkeypatch.setattr(session.SparkSession, "Builder", FalseBuilder)
    FalseBuilder.settings = {}
    return FalseBuilder.settings


def test_a_session_is_local_quiet_and_of_this_python(
    asked: dict[str, str], tmp_path: Path
) -> None:
    session.local_session("app", cores=3, driver_memory="2g", work_dir=tmp_path)
    assert asked["master"] == "local[3,4]"
    assert asked["name"] == "app"
    assert asked["spark.driver.memory"] == "2g"
    assert asked["spark.driver.bindAddress"] == "127.0.0.1"
    assert asked["spark.local.dir"] == str(tmp_path / "spill")
    assert asked["level set"] == "ERROR"
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable


@pytest.mark.parametrize(
    ("master", "is_all_here"), [("local[3]", True), ("spark://far:7077", False), ("yarn", False)]
)
def test_settings_of_one_machine_are_used_only_where_all_of_spark_is_here(
    asked: dict[str, str], tmp_path: Path, master: str, is_all_here: bool
) -> None:
    session.local_session(work_dir=tmp_path, settings={"spark.master": master})
    assert ("spark.driver.host" in asked) == is_all_here
    assert ("spark.driver.bindAddress" in asked) == is_all_here
    assert ("spark.sql.streaming.checkpointFileManagerClass" in asked) == is_all_here


def test_explicit_settings_win(asked: dict[str, str], tmp_path: Path) -> None:
    more = {"spark.log.level": "WARN", **session.STATE_SETTINGS}
    session.local_session(work_dir=tmp_path, settings=more)
    assert asked["level set"] == "WARN"
    assert "RocksDB" in asked["spark.sql.streaming.stateStore.providerClass"]


def test_without_a_work_directory_one_is_made_and_goes_at_exit(
    asked: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    at_exit: list[Any] = []
    monkeypatch.setattr(session.atexit, "register", lambda *call, **more: at_exit.append(call))
    monkeypatch.setattr(session.tempfile, "mkdtemp", lambda prefix: str(tmp_path / prefix))
    session.local_session()
    assert asked["spark.local.dir"].startswith(str(tmp_path / "millstream-spark-"))
    assert at_exit[0][1] == tmp_path / "millstream-spark-"


def test_the_log_goes_to_a_file_that_is_bounded(asked: dict[str, str], tmp_path: Path) -> None:
    session.local_session(work_dir=tmp_path / "spill", log_file=tmp_path / "run" / "spark.log")
    option = asked["spark.driver.extraJavaOptions"]
    assert option == f"-Dlog4j2.configurationFile=file:{tmp_path}/spill/log4j2.properties"
    form = (tmp_path / "spill" / "log4j2.properties").read_text()
    assert f"fileName = {tmp_path}/run/spark.log\n" in form
    assert "%d{yyyy" in form
    assert "size = 10MB" in form
    assert (tmp_path / "run").is_dir()


@pytest.mark.parametrize(
    ("settings", "env"),
    [({"spark.master": "sc://far"}, ""), ({"spark.remote": "sc://far"}, ""), ({}, "sc://far")],
)
def test_a_server_of_spark_connect_is_refused(
    asked: dict[str, str], monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], env: str
) -> None:
    if env:
        monkeypatch.setenv("SPARK_REMOTE", env)
    with pytest.raises(UsageError, match="over Spark Connect"):
        session.local_session(settings=settings)
    assert not asked
