"""A real node in a process of its own, for the suites that test from outside.

Invariants:
1. Every listener takes a free port, those for coordination if a test asks for them; the ready
   line says which. One that has to keep its port over restarts takes it from `free_port`.
2. Whatever a test started is gone when the test ends, the supervisor's children included: the node
   has a process group of its own.
3. A node that does not come up, or does not stop, fails the test with the end of its log.
"""

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Self

from support.node.waiting import until

READY_S = 60.0
STOP_S = 60.0
FREE = "127.0.0.1:0"
LISTENERS = ("kv", "memcached", "http")
COORDINATION = ("coord", "ninep", "peer")
"""Closed unless a test opens them: a process less."""


PORTS_OF_A_WORKER = 1_000
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_ports = count(secrets.randbelow(PORTS_OF_A_WORKER))


def free_port() -> int:
    """Return a port that is free, and that neither the system nor another worker gives away.

    It stays so while nobody listens there, as when a node is stopped and started again.
    """
    while True:
        port = 10_000 + _worker % 20 * PORTS_OF_A_WORKER + next(_ports) % PORTS_OF_A_WORKER
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def kept_ports() -> tuple[str, ...]:
    """Return the options of a node that is found under its addresses when it is started again."""
    return ("--kv", f"127.0.0.1:{free_port()}", "--http", f"127.0.0.1:{free_port()}")


def is_gone(pid: int) -> bool:
    """Whether a process has ended, its files and sockets with it; nobody may have reaped it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


class NodeProcess:
    """`python -m millstream serve`, started by `start`; options as on the command line.

    `prefix` is a command that becomes the node by exec.
    """

    def __init__(
        self,
        data_dir: Path,
        *options: str,
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.data_dir = data_dir
        self.options = options
        self.env = env or {}
        self.prefix = prefix
        self.log_path = data_dir.parent / f"{data_dir.name}.log"
        self.ready: dict[str, Any] = {}
        self.ready_s = READY_S
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> Self:
        """Start and wait for the ready line."""
        self.launch()
        try:
            self.ready = json.loads(self._first_line())
        except BaseException:  # also an interrupted test leaves no node behind
            self.kill()
            raise
        return self

    def launch(self) -> None:
        """Start and wait for nothing."""
        assert self._process is None, "the node runs already"
        command = [*self.prefix, sys.executable, "-m", "millstream", "serve"]
        command += ["--data", str(self.data_dir)]
        for listener in LISTENERS:
            if f"--no-{listener}" not in self.options and f"--{listener}" not in self.options:
                command += [f"--{listener}", FREE]
        for listener in COORDINATION:
            if f"--{listener}" not in self.options:
                command.append(f"--no-{listener}")
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *self.options],
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self.env},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        assert self._process is not None, "the node does not run"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the supervisor lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def has_ended(self) -> bool:
        """Whether it was started and ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def address(self, listener: str) -> tuple[str, int]:
        """Host and port of an open listener."""
        host, _, port = str(self.ready[listener]).rpartition(":")
        return host, int(port)

    @property
    def kv(self) -> tuple[str, int]:
        """Host and port of the kv listener."""
        return self.address("kv")

    @property
    def memcached(self) -> tuple[str, int]:
        """Host and port of the memcached listener."""
        return self.address("memcached")

    @property
    def http(self) -> str:
        """Base URL of the HTTP listener."""
        return f"http://{self.ready['http']}"

    def log(self) -> str:
        """Return what the node has written to its log so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def pids(self) -> list[int]:
        """Return the ids of the supervisor and all its descendants."""
        found = [self.pid]
        for pid in found:
            for path in Path(f"/proc/{pid}/task").glob("*/children"):
                with contextlib.suppress(OSError):  # it has just ended
                    found += [int(word) for word in path.read_text().split()]
        return found

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Let all its processes stand still."""
        pids = self.pids()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def resident_bytes(self) -> int:
        """Return the resident memory of the whole family."""
        pages = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):  # it has just ended
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> int:
        """SIGTERM, wait, return the exit code (0 for a clean stop)."""
        assert self._process is not None, "the node does not run"
        self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Wait for the end of a node that ends by itself; return the exit code."""
        process = self._process
        assert process is not None, "the node does not run"
        try:
            code = process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"no stop within {STOP_S:g} s; log:\n{self.log()[-4000:]}"
            ) from None
        self._forget()
        return code

    def kill(self) -> None:
        """SIGKILL the whole family, its ports are free then; harmless if nothing runs."""
        process = self._process
        if process is None:
            return
        family = self.pids()  # some have sessions of their own
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pid in family[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        until(lambda: all(map(is_gone, family)), lambda: f"{family}: one of them does not end")
        self._forget()

    def _forget(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def _first_line(self) -> bytes:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        line = b""
        end = time.monotonic() + self.ready_s
        while not line.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise AssertionError(
                    f"no ready line within {self.ready_s:g} s; log:\n{self.log()[-4000:]}"
                )
            byte = os.read(process.stdout.fileno(), 65536)
            if not byte:
                code = process.wait()
                raise AssertionError(f"the node ended with {code}; log:\n{self.log()[-4000:]}")
            line += byte
        return line
