"""Spark in processes of its own: a server of Spark Connect, a master with two workers, a job.

Invariants:
1. No process here gets this suite's `PYTHONPATH`: the package comes to it as the test says.
2. Everything listens on loopback, at a port that was free or that Spark chose.
3. What was started is gone when its `with` ends, the children included.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pyspark

import millstream
from millstream.pipelines.java import find_java_home
from support.node.node_process import free_port
from support.node.waiting import until

__all__ = [
    "JOBS", "SOURCE", "ConnectServer", "Job", "Processes", "StandaloneCluster", "bare_python",
    "environment", "package_archive", "packed_python", "without_traces",
]  # fmt: skip

SOURCE = Path(millstream.__file__).parent.parent
JOBS = Path(__file__).parents[2] / "clusters"
PACKAGES = (
    "millstream", "pyspark_millstream", "pyspark_millstream_view", "pyspark_millstream_meta",
)  # fmt: skip
EXECUTOR_LIBRARIES = ("msgspec", "numpy", "pyarrow")
QUICK = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
JOB_S = 480.0
# Java that lives for a minute: half the time of a start is its compiler's.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_OURS = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_REMOTE")


def environment(directory: Path, **more: str) -> dict[str, str]:
    """Return the environment of a process of Spark, which writes to `directory` only."""
    env = {name: value for name, value in os.environ.items() if name not in _OURS}
    env |= {
        "SPARK_HOME": str(spark_home(directory)),
        "JAVA_HOME": str(find_java_home()),
        "JDK_JAVA_OPTIONS": _JAVA_OPTIONS,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "spill"),
        "SPARK_LOG_DIR": str(directory / "log"),
        "SPARK_PID_DIR": str(directory),
    }
    return env | more


def spark_home(directory: Path) -> Path:
    """Make a home of links to the installed Spark, since a local-cluster works in its home."""
    home = directory / "spark"
    if not home.is_dir():
        home.mkdir()
        for entry in Path(pyspark.__file__).parent.iterdir():
            if entry.name != "work":
                (home / entry.name).symlink_to(entry)
    return home


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


def packed_python(directory: Path) -> Path:
    """Make DIRECTORY/env, an environment with what executors need, and pack it."""
    made = directory / "env"
    venv.create(made, symlinks=True)
    purelib = Path(sysconfig.get_path("purelib", vars={"base": str(made), "platbase": str(made)}))
    for name in EXECUTOR_LIBRARIES:
        installed = Path(str(importlib.util.find_spec(name).origin)).parent  # type: ignore[union-attr]
        _copy(installed, purelib / name)
        if (beside := installed.with_name(f"{name}.libs")).is_dir():
            _copy(beside, purelib / beside.name)
    for name in PACKAGES:
        _copy(SOURCE / name, purelib / name)
    archive = directory / "env.tar.gz"
    command = ["tar", "--use-compress-program", "gzip -1", "-cf", str(archive), "-C", str(made)]
    subprocess.run([*command, "."], check=True)
    return archive


def package_archive(directory: Path) -> Path:
    """Make the archive for `--py-files`: the package alone."""
    package = directory / "package"
    for name in PACKAGES:
        _copy(SOURCE / name, package / name)
    return Path(shutil.make_archive(str(directory / "millstream"), "zip", package))


def _copy(package: Path, target: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "tests", "include")
    shutil.copytree(package, target, ignore=ignored)


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

    def program(self, path: str) -> str:
        """Return a program of Spark's."""
        return str(spark_home(self.directory) / path)

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
        with contextlib.suppress(ProcessLookupError):  # it has ended, and all of its group
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def pid(self, name: str) -> int:
        """Return its process id."""
        return self._started[name].pid

    def wait(self, name: str, wait_s: float) -> None:
        """Wait for its end; it has to end well."""
        process = self._started[name]
        until(lambda: process.poll() is not None, lambda: self.log(name)[-4000:], wait_s)
        assert process.returncode == 0, without_traces(self.log(name))

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
            script = self.program("sbin/start-connect-server.sh")
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


class StandaloneCluster(Processes):
    """A master and two workers of one core each, started with `spark-class`."""

    workers = ("worker1", "worker2")

    def __enter__(self) -> Self:
        try:
            self._start("master", "master.Master", "--port", "0")
            self.address = self.said("master", r"Starting Spark master at (spark://\S+)")
            for name in self.workers:
                words = ["--work-dir", str(self.directory / name), "--cores", "1"]
                self._start(name, "worker.Worker", *words, "--memory", "1g", self.address)
            for name in self.workers:
                self.said(name, "(Successfully registered with master)")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, name: str, kind: str, *words: str) -> None:
        command = [self.program("bin/spark-class"), f"org.apache.spark.deploy.{kind}"]
        common = ["--host", "127.0.0.1", "--webui-port", "0"]
        self.start(name, [*command, *common, *words], SPARK_DAEMON_MEMORY="256m")

    def worker_of(self, pid: int) -> str:
        """Return the worker that a Python of a task belongs to."""
        above = {*ancestors(pid)}
        (name,) = (name for name in self.workers if self.pid(name) in above)
        return name

    def executor_of(self, pid: int) -> int:
        """Return the process id of the executor that it belongs to."""
        above = [*ancestors(pid)]
        return above[above.index(self.pid(self.worker_of(pid))) - 1]


class Job(Processes):
    """`cluster_job.py`, given to spark-submit."""

    def submit(
        self, master: str, addresses: tuple[str, str], *words: str, held: tuple[str, ...] = (),
        **env: str,
    ) -> None:  # fmt: skip
        """Start it; `words` are options of spark-submit."""
        chosen = settings({"spark.master": master})
        self.start(
            "job",
            [
                self.program("bin/spark-submit"), *chosen, "--driver-memory", "1g", *words,
                str(JOBS / "cluster_job.py"), *addresses, str(self.directory), *held,
            ],
            **env,
        )  # fmt: skip

    def stopped_in(self, part: str) -> int:
        """Wait until a task of that part stopped; return its process id."""
        mark = self.directory / part
        until(mark.exists, lambda: without_traces(self.log("job")), JOB_S)
        return int(mark.read_text())

    def found(self) -> dict[str, Any]:
        """Wait for the end; return what it found."""
        self.wait("job", JOB_S)
        found: dict[str, Any] = json.loads((self.directory / "found.json").read_text())
        return found


def ancestors(pid: int) -> Iterator[int]:
    """Yield the process ids above one, the nearest first."""
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid
