"""Spark in processes of its own: a server of Spark Connect, a master with two workers, a job.

Invariants:
1. No process here gets this suite's `PYTHONPATH`: the package comes to it as the test says.
2. Everything listens on loopback, at a port that was free or that Spark chose.
3. What was started is gone when its `with` ends, the children included.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Self

import pyspark

import millstream
from millstream.pipelines.java import find_java_home
from node_process import free_port
from waiting import until

__all__ = ["JOBS", "SOURCE", "ConnectServer", "Processes", "environment"]

SOURCE = Path(millstream.__file__).parent.parent
JOBS = Path(__file__).with_name("clusters")
PACKAGES = (
    "millstream", "pyspark_millstream", "pyspark_millstream_view", "pyspark_millstream_meta",
)  # fmt: skip
SPARK_HOME = Path(pyspark.__file__).parent
QUICK = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
# Java that lives for a minute: half the time of a start is its compiler's.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_OURS = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_REMOTE")


def environment(directory: Path, **more: str) -> dict[str, str]:
    """Return the environment of a process of Spark, which writes to `directory` only."""
    env = {name: value for name, value in os.environ.items() if name not in _OURS}
    env |= {
        "SPARK_HOME": str(SPARK_HOME),
        "JAVA_HOME": str(find_java_home()),
        "JDK_JAVA_OPTIONS": _JAVA_OPTIONS,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "spill"),
        "SPARK_LOG_DIR": str(directory / "log"),
        "SPARK_PID_DIR": str(directory),
    }
    return env | more


def settings(given: dict[str, str]) -> list[str]:
    """Return settings as words of a command."""
    return [
        word for name, value in (QUICK | given).items() for word in ("--conf", f"{name}={value}")
    ]


def bare_python(directory: Path) -> Path:
    """Make a Python that has all libraries, but neither this package nor what tests need."""
    made = directory / "bare"
    venv.create(made, symlinks=True)
    python = made / "bin" / "python"
    purelib = sysconfig.get_path("purelib", vars={"base": str(made), "platbase": str(made)})
    libraries = [path for path in sys.path if path.endswith("-packages")]
    Path(purelib, "libraries.pth").write_text("\n".join(libraries))
    return python


def package_archive(directory: Path) -> Path:
    """Make the archive for `--py-files`: the package alone."""
    package = directory / "package"
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(SOURCE / name, package / name, ignore=ignored)
    return Path(shutil.make_archive(str(directory / "millstream"), "zip", package))


def without_traces(log: str) -> str:
    """Return the end of a log without the stacks of Java."""
    lines = (line for line in log.splitlines() if not line.lstrip().startswith("at "))
    return "\n".join(lines)[-6000:]


class Processes:
    """Processes with a log each, in process groups of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*self._started]:
            self.kill(name)

    def start(self, name: str, command: list[str], **env: str) -> None:
        """Start one; its log is NAME.log."""
        with (self.directory / f"{name}.log").open("wb") as log:
            self._started[name] = subprocess.Popen(
                command, cwd=self.directory, env=environment(self.directory, **env),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        """SIGKILL the process and its group."""
        process = self._started.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log(self, name: str) -> str:
        """Return what it has written."""
        return (self.directory / f"{name}.log").read_text()

    def said(self, name: str, pattern: str) -> str:
        """Wait until the log has what the pattern's group is; return that."""
        found = until(lambda: re.findall(pattern, self.log(name)), lambda: self.log(name)[-4000:])
        return str(found[0])


class ConnectServer(Processes):
    """A server of Spark Connect whose Python has the package by its path."""

    def __enter__(self) -> Self:
        try:
            port = free_port()
            self.address = f"sc://127.0.0.1:{port}"
            where = {
                "spark.connect.grpc.binding.address": "127.0.0.1",
                "spark.connect.grpc.binding.port": str(port),
                "spark.sql.warehouse.dir": str(self.directory / "tables"),
            }
            script = str(SPARK_HOME / "sbin" / "start-connect-server.sh")
            words = ["--wait", "--master", "local[2,4]", "--driver-memory", "1g"]
            self.start(
                "connect", [script, *words, *settings(where)], PYTHONPATH=str(SOURCE),
                PYSPARK_PYTHON=str(bare_python(self.directory)),
            )  # fmt: skip
            self.said("connect", "(Spark Connect server started at)")
        except BaseException:
            self.__exit__()
            raise
        return self
