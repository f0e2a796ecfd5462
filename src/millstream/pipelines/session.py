"""A local Spark session with settings that start quickly, stay small and stay quiet.

Invariants:
1. The session's Java, Python and addresses are this machine's own: nothing is looked up elsewhere
   and nothing listens beyond loopback.
2. One session per process, as Spark has it: a second call returns the running one.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from millstream.pipelines.spark_version import PYSPARK_MIN  # refuses an older PySpark first

# isort: split
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millstream.errors import UnavailableError
from millstream.pipelines.classic import refusal
from millstream.pipelines.java import use_java

__all__ = ["PYSPARK_MIN", "STATE_SETTINGS", "end_session", "local_session", "spark_in_words"]

TASK_FAILURES_MAX: Final = 4
"""A plain `local[N]` ends a job at the first failed task."""
SHUFFLE_PARTITIONS: Final = 2
LOG_FILE_MB: Final = 10
LOG_FILES_MAX: Final = 3
_LOG_FORM: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {file}
appender.file.filePattern = {file}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = {megabytes}MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = {files}
"""
_LOOPBACK: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Settings if all of Spark is on this machine: executors elsewhere have to find the driver."""
_LOCAL_FILES: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Writes a checkpoint's files by the same steps as Spark's default one (a file beside, renamed),
but on a local disk without starting a program for each: 70 ms less in every micro-batch."""
_STATE: Final = "spark.sql.streaming.stateStore"
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.streaming.minBatchesToRetain": "10",
}
STATE_SETTINGS: Final[Mapping[str, str]] = {
    f"{_STATE}.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
}
"""Settings for queries that keep state in Spark, such as a streaming aggregation."""


def local_session(
    app_name: str = "millstream",
    *,
    cores: int | None = None,
    driver_memory: str = "1g",
    work_dir: Path | None = None,
    log_file: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session in this process, with `format("millstream")` registered.

    Args:
        app_name: shown by Spark.
        cores: tasks at a time; default the processors this process may use.
        driver_memory: heap of the one Java process; counts only where it starts.
        work_dir: where Spark spills and keeps tables; default a directory that goes at exit.
        log_file: where Spark's own log goes, instead of stderr; it is kept within
            `LOG_FILES_MAX` files of `LOG_FILE_MB`. Counts only where the Java process starts.
        settings: more Spark settings, or others than the default ones.

    Raises:
        UnavailableError: `no_java`.
        UsageError: `needs_classic_session`: the settings, or `SPARK_REMOTE`, name a server of
            Spark Connect.
    """
    given = settings or {}
    if (
        given.get("spark.master", "").startswith("sc://")
        or "spark.remote" in given
        or "SPARK_REMOTE" in os.environ
    ):
        raise refusal("local_session")
    use_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    directory = work_dir or _temporary_directory()
    tasks = cores or len(os.sched_getaffinity(0))
    builder = SparkSession.Builder().appName(app_name)
    builder = builder.master(f"local[{tasks},{TASK_FAILURES_MAX}]")
    is_local = given.get("spark.master", "local").startswith("local")
    chosen = {
        **_SETTINGS,
        **(_LOOPBACK | _LOCAL_FILES if is_local else {}),
        "spark.driver.memory": driver_memory,
        "spark.local.dir": str(directory / "spill"),
        "spark.sql.warehouse.dir": str(directory / "tables"),
        **(
            {"spark.driver.extraJavaOptions": _logging_to(log_file, directory)} if log_file else {}
        ),
        **given,
    }
    for name, value in chosen.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(chosen["spark.log.level"])
    return session


def end_session(session: SparkSession) -> None:
    """Stop a session, also one whose Java was killed."""
    with suppress(Py4JError):
        session.stop()


@contextmanager
def spark_in_words() -> Iterator[None]:
    """Turn what Spark, or the connection to its Java, raises into words.

    Raises:
        UnavailableError: `query_failed`.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        said = str(error).strip() or repr(error)
        raise UnavailableError(f"Spark failed: {said}", code="query_failed") from error


def _logging_to(log_file: Path, directory: Path) -> str:
    """Return the option of Java that has Spark's log written to a file."""
    log_file = log_file.absolute()
    log_file.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(parents=True, exist_ok=True)
    form = directory / "log4j2.properties"
    form.write_text(_LOG_FORM.format(file=log_file, megabytes=LOG_FILE_MB, files=LOG_FILES_MAX))
    return f"-Dlog4j2.configurationFile=file:{form}"


def _temporary_directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="millstream-spark-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
