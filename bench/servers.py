"""The servers a benchmark measures, and the C programs that load them.

Invariants:
1. Cost is processor time, user and system, of the server's whole process family.
2. Server and load have a processor each where the machine has two.
3. Every process started here is gone when the `with` block ends.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parent
BUILD = HERE / "build"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CPUS = sorted(os.sched_getaffinity(0))
SERVER_CPUS = CPUS[-1:]
LOAD_CPUS = CPUS[:-1] or CPUS
READY_S = 60.0
SETTLE_S = 20.0
POSTGRES_DRIVER = Path("/usr/share/java/postgresql.jar")
"""Of Debian's libpostgresql-jdbc-java."""


def build_programs() -> None:
    """Compile the C programs that are older than their sources."""
    BUILD.mkdir(exist_ok=True)
    sources = [*HERE.glob("*.h"), *HERE.glob("*.c")]
    newest = max(source.stat().st_mtime for source in sources)
    for name in ("loadgen", "sink", "latency", "redstream", "coordgen", "primgen"):
        program = BUILD / name
        if program.exists() and program.stat().st_mtime > newest:
            continue
        subprocess.run(
            ["cc", "-O2", "-Wall", "-Wextra", "-std=gnu11", "-pthread",
             "-o", str(program), str(HERE / f"{name}.c")],
            check=True,
        )  # fmt: skip


def run_program(name: str, *arguments: object) -> dict[str, Any]:
    """Run a C program beside the server and return the figures it prints; see `figures_of`."""
    return figures_of(start_program(name, *arguments))


def start_program(name: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a C program on the processors that the server leaves."""
    return subprocess.Popen(
        on_cpus(LOAD_CPUS, [str(BUILD / name), *map(str, arguments)]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def figures_of(program: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a program and return the figures it prints.

    Raises:
        RuntimeError: it found replies out of order, errors or misses.
    """
    out, err = program.communicate()
    if program.returncode != 0:
        raise RuntimeError(f"{program.args}: {err.strip() or out}")
    figures: dict[str, Any] = json.loads(out)
    wrong = {k: figures[k] for k in ("errors", "misses", "disorder") if figures.get(k)}
    if wrong:
        raise RuntimeError(f"{program.args}: {wrong} {figures.get('error', '')}")
    return figures


def machine_cpu_s() -> float:
    """Return the processor time that everything on the machine has used, in seconds."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _wait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


class Server:
    """A process family whose processor time can be read."""

    has_ready_line = False
    """Whether its standard output is read."""

    def __init__(self, command: list[str], log: Path, *, pinned: bool = True) -> None:
        self.command, self.log, self.pinned = command, log, pinned
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start and wait until it serves."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                on_cpus(SERVER_CPUS if self.pinned else CPUS, self.command),
                stdout=subprocess.PIPE if self.has_ready_line else log,
                stderr=log,
                start_new_session=True,
            )

    def ready_line(self) -> bytes:
        """Return the first line of its standard output, which says that it is ready."""
        assert self.process is not None
        assert self.process.stdout is not None
        line: bytes = self.process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"it did not start; see {self.log}:\n{self.log.read_text()[-2000:]}"
            )
        return line

    def stop(self) -> None:
        """Stop cleanly; by force after a minute."""
        process, self.process = self.process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def kill(self) -> None:
        """End the whole family as a kill -9 does; `stop` does nothing then."""
        process, self.process = self.process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def pids(self) -> list[int]:
        """Return the process ids of the family."""
        assert self.process is not None
        return _family(self.process.pid)

    def cpu_s(self) -> float:
        """Return user + system time of the family so far, in seconds (10 ms steps)."""
        return _ticks(self.pids()) / TICKS_PER_S

    def resident_bytes(self) -> int:
        """Return the resident memory of the family."""
        page = os.sysconf("SC_PAGE_SIZE")
        return page * sum(
            int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids()
        )

    def settle(self) -> None:
        """Wait until work left behind (flushes, index updates) is done: 0.2 s nearly idle."""
        until = time.monotonic() + SETTLE_S
        before = self.cpu_s()
        while time.monotonic() < until:
            time.sleep(0.2)
            after = self.cpu_s()
            if after - before <= 0.01:
                return
            before = after


class Memcached(Server):
    """Debian's memcached with one worker thread and a raised request limit per event."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        command = ["memcached", "-l", "127.0.0.1", "-p", str(self.port), "-t", "1", "-R", "200",
                   "-m", "2048", "-I", "4m"]  # fmt: skip
        if os.geteuid() == 0:
            command += ["-u", "nobody"]
        super().__init__(command, directory / "memcached.log")

    @staticmethod
    def is_installed() -> bool:
        """Whether there is a memcached to compare with."""
        return shutil.which("memcached") is not None

    def start(self) -> None:
        super().start()
        _wait_for(self.port)


class Redis(Server):
    """Debian's redis-server; its file is only appended to.

    Args:
        fsync: `always` syncs a write before its answer, `everysec` each second.
    """

    def __init__(self, directory: Path, *, fsync: str = "always") -> None:
        self.port = free_port()
        data = directory / "redis"
        data.mkdir()
        super().__init__(
            ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(data),
             "--save", "", "--appendonly", "yes", "--appendfsync", fsync,
             "--auto-aof-rewrite-percentage", "0"],
            directory / "redis.log",
        )  # fmt: skip

    @staticmethod
    def is_installed() -> bool:
        """Whether there is a Redis to compare with."""
        return shutil.which("redis-server") is not None

    def start(self) -> None:
        super().start()
        _wait_for(self.port)


class Node(Server):
    """One Millstream node on free ports."""

    has_ready_line = True

    def __init__(self, directory: Path, *options: str, pinned: bool = True) -> None:
        command = [sys.executable, "-m", "millstream", "serve", "--data", str(directory / "data")]
        for listener in ("kv", "memcached", "http", "coord", "ninep", "peer"):
            command += [f"--{listener}", "127.0.0.1:0"]
        super().__init__([*command, *options], directory / "node.log", pinned=pinned)
        self.kv_port = self.memcached_port = self.http_port = 0
        self.ready: dict[str, str] = {}
        """Where it listens, by the name of the listener."""

    def start(self) -> None:
        super().start()
        self.ready = json.loads(self.ready_line())
        self.kv_port = int(self.ready["kv"].rpartition(":")[2])
        self.memcached_port = int(self.ready["memcached"].rpartition(":")[2])
        self.http_port = int(self.ready["http"].rpartition(":")[2])


class Postgres(Server):
    """Debian's PostgreSQL on a port of loopback, with an empty database of its own.

    It refuses to run as root, and runs as the user `postgres` then. Its one user `postgres` has
    the password `password`.
    """

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.password = secrets.token_hex(16)
        self._data = directory / "postgres"
        self._as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        if os.geteuid() != 0:
            self._as_user = []
        command = [str(self._programs() / "postgres"), "-D", str(self._data),
                   "-h", "127.0.0.1", "-p", str(self.port), "-k", "", "-c", "shared_buffers=1GB",
                   "-c", "fsync=off", "-c", "max_wal_size=4GB"]  # fmt: skip
        super().__init__([*self._as_user, *command], directory / "postgres.log", pinned=False)

    @classmethod
    def is_installed(cls) -> bool:
        """Whether there are a PostgreSQL and its driver for Java to compare with."""
        return POSTGRES_DRIVER.exists() and (cls._programs() / "initdb").exists()

    @staticmethod
    def _programs() -> Path:
        return max(Path("/usr/lib/postgresql").glob("*/bin"), default=Path("/nonexistent"))

    def start(self) -> None:
        secret = self.log.with_name("postgres-password")
        self._data.mkdir(mode=0o700)
        secret.touch(mode=0o600)
        secret.write_text(self.password)
        if self._as_user:
            self._data.parent.chmod(0o711)
            for path in (self._data, secret):
                shutil.chown(path, "postgres", "postgres")
        initdb = [str(self._programs() / "initdb"), "-D", str(self._data), "-U", "postgres",
                  "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync", "--encoding=UTF8",
                  "--locale=C"]  # fmt: skip
        subprocess.run([*self._as_user, *initdb], check=True, stdout=subprocess.DEVNULL, cwd="/")
        super().start()
        _wait_for(self.port)


def family_times(pid: int) -> dict[int, float]:
    """Return user + system time of a process and all under it, in seconds by process id."""
    return {one: _ticks([one]) / TICKS_PER_S for one in _family(pid)}


def cpu_s_since(before: dict[int, float], pid: int) -> float:
    """Return what a family has used since `family_times`; of what ended since, nothing."""
    return sum(used - before.get(one, 0.0) for one, used in family_times(pid).items())


def _family(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        for path in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):  # a thread that has ended
                found += [int(word) for word in path.read_text().split()]
    return found


def _ticks(pids: list[int]) -> int:
    ticks = 0
    for pid in pids:
        with suppress(OSError):  # it has ended
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks


def on_cpus(cpus: list[int], command: list[str]) -> list[str]:
    """Return a command that runs another one on some processors."""
    return ["taskset", "-c", ",".join(map(str, cpus)), *command]


def _wait_for(port: int) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise RuntimeError(f"nothing answers on port {port}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
