"""The record of pipelines on this machine: what runs, where, and how to stop it.

One directory per pipeline name below the state directory holds `run.json` and a lock that the
running process keeps.

Invariants:
1. A pipeline runs iff its lock is held: no process id is trusted without it.
2. Two runs of one pipeline never share a checkpoint: the second is refused.

The state directory is `MILLSTREAM_STATE`, else `XDG_STATE_HOME/millstream`, else
`~/.local/state/millstream`.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from millstream.errors import ConditionError, UnavailableError

__all__ = ["RunRecord", "list_runs", "lock_run", "read_run", "state_directory", "stop_run"]

_RECORD: Final = "run.json"
_LOCK: Final = "run.lock"


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a pipeline; `started` in Unix seconds."""

    name: str
    kind: str
    bucket: str
    ddoc: str
    address: str
    checkpoint: str
    pid: int
    started: int
    is_running: bool = False


def state_directory() -> Path:
    """Return where records and default checkpoints are kept."""
    given = os.environ.get("MILLSTREAM_STATE")
    if given:
        return Path(given) / "pipelines"
    root = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(root) / "millstream" / "pipelines"


@contextmanager
def lock_run(record: RunRecord) -> Iterator[None]:
    """Record a run, and hold its lock while the block runs.

    Raises:
        ConditionError: `already_running`.
        UnavailableError: `bad_state_directory`.
    """
    directory = state_directory() / record.name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / _LOCK).open("a")
    except OSError as error:
        raise UnavailableError(
            f"cannot write {error.filename}: {error.strerror}; set MILLSTREAM_STATE to another "
            "directory",
            code="bad_state_directory",
            retry="never",
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConditionError(
                f"pipeline {record.name} runs already (millstream pipeline stop {record.name})",
                code="already_running",
            ) from error
        (directory / _RECORD).write_bytes(msgspec.json.encode(record))
        yield


def list_runs() -> list[RunRecord]:
    """Return all pipelines known on this machine, by name."""
    root = state_directory()
    names = sorted(path.parent.name for path in root.glob(f"*/{_RECORD}"))
    return [read_run(name) for name in names]


def read_run(name: str) -> RunRecord:
    """Return what is known of a pipeline.

    Raises:
        ConditionError: `unknown_pipeline`.
    """
    directory = state_directory() / name
    try:
        fields: dict[str, Any] = msgspec.json.decode((directory / _RECORD).read_bytes())
        fields["is_running"] = _is_locked(directory / _LOCK)
        return msgspec.convert(fields, RunRecord)
    except (FileNotFoundError, msgspec.MsgspecError) as error:
        raise ConditionError(
            f"no pipeline {name!r} on this machine; `millstream pipeline list` shows them",
            code="unknown_pipeline",
        ) from error


def stop_run(name: str) -> bool:
    """Ask a pipeline to stop after the batch in work; False if it does not run."""
    record = read_run(name)
    if record.is_running:
        os.kill(record.pid, signal.SIGTERM)
    return record.is_running


def _is_locked(path: Path) -> bool:
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
