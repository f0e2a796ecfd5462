"""A `millstream pipeline run` as a process of its own, with its Java and its workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from support.node.node_process import NodeProcess

START_S = 120.0


class PipelineProcess:
    """A pipeline that runs against a node; its record is in a state directory of the test.

    Args:
        node: which it asks.
        path: for output, log and state.
        words: of the command, behind `pipeline run`.
    """

    def __init__(self, node: NodeProcess, path: Path, *words: str) -> None:
        self.out, self.log = path / "pipeline.out", path / "pipeline.log"
        self.env = {
            **os.environ, "MILLSTREAM_STATE": str(path / "state"),
            "MILLSTREAM_CONNECT": node.ready["kv"],
        }  # fmt: skip
        command = ["pipeline", "run", *words, "--driver-memory", "600m"]
        with self.out.open("ab") as out, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "millstream", *command],
                stdout=out, stderr=log, env=self.env, start_new_session=True,
            )  # fmt: skip

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait while the process runs."""
        deadline = time.monotonic() + START_S
        while not is_so():
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.02)  # another process: asked again

    def kill(self) -> None:
        """SIGKILL the driver, its Java and its workers, at once."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        """Wait for its end; return the exit code."""
        try:
            return self.process.wait(START_S)
        finally:
            self.kill()

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run another command beside it."""
        return subprocess.run(
            [sys.executable, "-m", "millstream", *words], env=self.env, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
