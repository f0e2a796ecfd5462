"""The processes of the demonstration: nodes, and the pipeline that follows them.

Invariants:
1. What is started is stopped when the block ends, whatever ended it.
2. What is started ends with this process, even where this one is killed (`tethered`).
3. Each process writes its log to a file of the work directory, whose end is in every error.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from millstream.errors import UnavailableError

__all__ = ["READY_S", "Child", "serve_words", "start_node", "start_pipeline"]

READY_S: Final = 60.0
STOP_S: Final = 60.0
_LOG_LINES: Final = 12
_POLL_S: Final = 0.05
_FREE: Final = "127.0.0.1:0"
_FUNCTIONS: Final = "millstream.demo.views"
"""Registers the map functions in Python."""


class Child:
    """A `millstream` command in a process of its own; output and log go to files."""

    def __init__(self, work_dir: Path, name: str, arguments: list[str]) -> None:
        self.name = name
        self.out = work_dir / f"{name}.jsonl"
        self.log = work_dir / f"{name}.log"
        with self.out.open("wb") as out, self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "millstream.demo.tethered", str(os.getpid()), *arguments],
                stdin=subprocess.PIPE, stdout=out, stderr=log,
                env={**os.environ, "MILLSTREAM_STATE": str(work_dir / "state")},
                start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def lines(self) -> list[dict[str, Any]]:
        """Return what the process has printed, whole JSON lines."""
        text = self.out.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        return [msgspec.json.decode(line) for line in whole.splitlines() if line.strip()]

    def check(self) -> None:
        """Raise if the process has ended.

        Raises:
            UnavailableError: `child_ended`, with the end of its log.
        """
        code = self._process.poll()
        if code is not None:
            raise UnavailableError(
                f"the {self.name} ended with code {code}:\n{self._end_of_log()}",
                code="child_ended",
            )

    def wait_for_lines(self, count: int, wait_s: float) -> list[dict[str, Any]]:
        """Wait until the process has printed `count` lines.

        Raises:
            UnavailableError: `child_ended`, `timeout`.
        """
        deadline = time.monotonic() + wait_s
        while len(lines := self.lines()) < count:
            self.check()
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"the {self.name} said nothing for {wait_s:.0f} s:\n{self._end_of_log()}",
                    code="timeout",
                )
            time.sleep(_POLL_S)
        return lines

    def stop(self) -> int:
        """Stop the process cleanly and return its exit code; kill it if it does not obey."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        code = self._process.wait()
        tether = self._process.stdin
        assert tether is not None
        tether.close()
        return code

    def kill(self) -> None:
        """Kill the process and what it has started, as a machine that loses power does."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self.stop()

    def _end_of_log(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:]) + f"\n(the whole log: {self.log})"


def start_node(
    work_dir: Path, bucket: str, *options: str, address: str = _FREE
) -> tuple[Child, str]:
    """Start a node on free ports; return it with the HOST:PORT of its kv listener.

    `options`: more of `serve`. `address`: HOST:PORT for its kv listener.
    """
    arguments = serve_words(work_dir / "node", {"kv": address, "http": _FREE})
    arguments += ["--bucket", bucket, "--no-coord", "--no-peer", *options]
    node = Child(work_dir, "node", arguments)
    try:
        ready = node.wait_for_lines(1, READY_S)[0]
    except BaseException:  # also when interrupted: no child is left running
        node.stop()
        raise
    return node, str(ready["kv"])


def serve_words(data: Path, listeners: Mapping[str, str]) -> list[str]:
    """Return the words that start a node: its directory, and HOST:PORT of its listeners."""
    words = ["serve", "--data", str(data), "--no-memcached", "--no-ninep"]
    for name, address in listeners.items():
        words += [f"--{name}", address]
    return [*words, "--python-module", _FUNCTIONS]


def start_pipeline(work_dir: Path, address: str, bucket: str, designs: list[str]) -> Child:
    """Start the views pipeline; it prints one line per batch."""
    arguments = ["pipeline", "run", "views", bucket, "--connect", address, "--json", "--follow"]
    arguments += ["--python-module", _FUNCTIONS, "--driver-memory", "1g"]
    for name in designs:
        arguments += ["--ddoc", name]
    return Child(work_dir, "pipeline", arguments)
