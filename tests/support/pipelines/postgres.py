"""A PostgreSQL of Debian for tests: a directory and a port of its own, gone with the test.

It refuses to run as root, and runs as the user `postgres` then.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from support.node.node_process import free_port

PROGRAMS = max(Path("/usr/lib/postgresql").glob("*/bin"), default=Path("/nonexistent"))
IS_INSTALLED = (PROGRAMS / "initdb").exists()


class Postgres:
    """A server with an empty database; `kill` and `start` leave what it has committed."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="millstream-postgres-"))
        self.port = free_port()
        self.address = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._data = self.directory / "data"
        self._as_user: list[str] = []
        if os.geteuid() == 0:
            self._as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            shutil.chown(self.directory, "postgres", "postgres")
        self._run("initdb", "-U", "postgres", "--auth=trust", "--no-sync", "--encoding=UTF8",
                  "--locale=C")  # fmt: skip
        self.start()

    def start(self) -> None:
        self._control("start", f"-l{self.directory / 'log'}",
                      f"-o-h 127.0.0.1 -p {self.port} -k '' -c fsync=off")  # fmt: skip

    def stop(self, mode: str = "immediate") -> None:
        """End it; `immediate` is as a crash: tables that are not logged are emptied."""
        self._control("stop", f"-m{mode}")

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.directory)

    def _control(self, *words: str) -> None:
        self._run("pg_ctl", "-w", *words)

    def _run(self, program: str, *words: str) -> None:
        command = [*self._as_user, str(PROGRAMS / program), "-D", str(self._data), *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")
