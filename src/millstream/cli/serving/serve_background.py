"""`millstream serve --background`: a node that goes on when the command has ended.

Invariants:
1. The command ends with success only when every listener answers. If the node does not come so
   far, the command says why and leaves no node behind.
2. The node is in a session of its own: neither the terminal nor its Ctrl-C ends it.

Elsewhere: the node (`node.processes.supervisor`), the options (`cli.serving.serve`).
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from millstream.errors import MillstreamError, UnavailableError, UsageError

__all__ = ["log_beside", "start", "words_of"]

READY_S_MAX: Final = 3600.0
"""Longest wait for a node that reads its log after a crash."""
STOP_S_MAX: Final = 60.0
"""Longest wait for a node that is to end because the command was interrupted."""
LOG_BYTES_SHOWN_MAX: Final = 64 * 1024
"""End of the log in which the reason is looked for."""
_MODE: Final = 0o600
_EXIT_USAGE: Final = 2
_SAID: Final = "millstream: "
COMMAND: Final = (sys.executable, "-m", "millstream", "serve")


def log_beside(data: Path) -> Path:
    """Return where the log of a node goes, by its data directory.

    >>> log_beside(Path("/srv/data")).as_posix()
    '/srv/data.log'
    """
    return data.absolute().with_name(f"{data.absolute().name}.log")


def words_of(given: Mapping[str, Any]) -> list[str]:
    """Return options as words of a command line.

    >>> words_of({"kv": "h:1", "bucket": ["a", "b"], "no-http": True})
    ['--kv=h:1', '--bucket=a', '--bucket=b', '--no-http']
    """
    words = []
    for name, value in given.items():
        if value is True:
            words.append(f"--{name}")
        else:
            values = value if isinstance(value, list) else [value]
            words += [f"--{name}={one}" for one in values]
    return words


def start(words: Sequence[str], log: Path, *, command: Sequence[str] = COMMAND) -> dict[str, Any]:
    """Start a node and wait until it is ready; return its ready line, with the log's name.

    Args:
        words: options of `serve`.
        log: file that the node's log is added to.
        command: starts it in the foreground.

    Raises:
        UsageError: `bad_file`: the log cannot be written; or the node refuses its options.
        UnavailableError: the node did not start.
    """
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _MODE)
    except OSError as error:
        raise UsageError(
            f"cannot write the log {log}: {error.strerror}; --log-file names another one",
            code="bad_file",
        ) from error
    with open(descriptor, "ab") as file:
        began = file.tell()
        node = subprocess.Popen(
            [*command, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file,
            start_new_session=True,
        )  # fmt: skip
    assert node.stdout is not None, "it is a pipe"
    with node.stdout:
        try:
            line = _first_line(node.stdout, node.pid, log)
        except BaseException:  # also when interrupted: nobody knows that there is a node
            _end(node)
            raise
    if not line:
        raise _failure(node.wait(), log, began)
    node.returncode = 0  # it is not waited for
    ready: dict[str, Any] = msgspec.json.decode(line)
    return {**ready, "log": str(log)}


def _first_line(out: IO[bytes], pid: int, log: Path) -> bytes:
    """Return the line that says that the node is ready, empty if it has ended before."""
    until = time.monotonic() + READY_S_MAX
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([out], [], [], max(0.0, until - time.monotonic()))[0]:
            raise UnavailableError(
                f"the node (pid {pid}) is not ready after {READY_S_MAX:g} s and was stopped; its "
                f"log is {log}",
                code="timeout",
            )
        piece = os.read(out.fileno(), 4096)
        if not piece:
            return b""
        line += piece
    return line


def _end(node: subprocess.Popen[bytes]) -> None:
    node.terminate()
    try:
        node.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()


def _failure(code: int, log: Path, began: int) -> MillstreamError:
    """Return why a node did not start, by what it wrote last."""
    with log.open("rb") as file:
        file.seek(max(began, log.stat().st_size - LOG_BYTES_SHOWN_MAX))
        lines = file.read().decode("utf-8", "replace").splitlines()
    said = [line.removeprefix(_SAID) for line in lines if line.startswith(_SAID)]
    why = said[-1] if said else f"the node ended with exit code {code}"
    kind = UsageError if code == _EXIT_USAGE else UnavailableError
    return kind(f"{why} (log: {log})", code="not_started")
