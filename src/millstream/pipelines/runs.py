"""The record of pipelines on this machine: what runs, where, and how to stop it.

One directory per pipeline name below the state directory holds `run.json`, a lock that the
running process keeps, and `progress.json`, what it did last. Every kind of pipeline runs so:

    with begin_run(wanted) as record:
        progress = ProgressWriter(record.name)
        ... each time Spark has ended a batch: progress.query(query.lastProgress)
        ... or, without a streaming query: progress.batch(batch_id, rows, seconds, lag=...)
        ... when it ends with an error: progress.failed(error)

Invariants:
1. A pipeline runs iff its lock is held; only the process that holds it is signalled.
2. Two runs of one pipeline never share a checkpoint: the second is refused.
3. A run keeps its name, and no two pipelines have one, whatever nodes and directories they have.
4. Records and progress are replaced whole; a record that cannot be read all the same is that of
   no pipeline, and stops no other one. Nothing relies on progress: a pipeline whose progress
   cannot be written goes on.

The state directory is `MILLSTREAM_STATE`, else `XDG_STATE_HOME/millstream`, else
`~/.local/state/millstream`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from millstream.errors import ConditionError, MillstreamError, UnavailableError
from millstream.pipelines.change_stream.offsets import lag_between, offset_from_json
from millstream.runtime.process import FileLock, lock_holder

__all__ = [
    "Batch",
    "ProgressWriter",
    "RunProgress",
    "RunRecord",
    "begin_run",
    "lag_of_report",
    "list_runs",
    "lock_run",
    "read_progress",
    "read_run",
    "state_directory",
    "stop_run",
]

BATCHES_KEPT_MAX: Final = 20
ERROR_CHARS_MAX: Final = 2_000
RUNS_MAX: Final = 1_000
"""Names of runs that would have the same one."""
NAMING_S: Final = 10.0
"""How long a run waits while others find their names."""
LOOKING_S: Final = 0.5
"""Longer than it takes others to look whether a run has its lock, and a run to sign it."""
_LOOK_STEP_S: Final = 0.05
_RECORD: Final = "run.json"
_LOCK: Final = "run.lock"
_NAMES: Final = "names.lock"
_UNSAFE: Final = re.compile(r"[^\w.-]")
_PROGRESS: Final = "progress.json"


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a pipeline; `started` in Unix seconds.

    `subject`: what tells it from others of its kind and bucket: the directory that it writes, the
    node that it asks. `checkpoint`: the directory that goes on existing when it ends. `pid`: while
    it runs, of the process that holds its lock; 0 if that cannot be told.
    """

    name: str
    kind: str
    bucket: str
    ddoc: str = ""
    address: str
    checkpoint: str
    pid: int
    started: int
    subject: str = ""
    is_running: bool = False

    def is_same(self, other: RunRecord) -> bool:
        """Whether both are runs of one pipeline, which has one name."""
        return all(
            getattr(self, member) == getattr(other, member)
            for member in ("kind", "bucket", "ddoc", "subject")
        )

    @property
    def is_over(self) -> bool:
        """Whether the run has ended and cannot be resumed."""
        return not self.is_running and not Path(self.checkpoint).exists()


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """One batch: its number, its rows of the change stream, and how long it took in seconds."""

    batch_id: int
    rows: int
    seconds: float


class RunProgress(msgspec.Struct, kw_only=True):
    """What a run did; `updated` in Unix seconds.

    `batches` are the last ones, oldest first. `lag`: partition -> changes that were there and not
    yet read when the last batch ended. `figures`: what this kind of pipeline tells besides.
    `is_over`: the run has ended, with `error` or well.
    """

    updated: int = 0
    batch_count: int = 0
    row_count: int = 0
    batches: list[Batch] = msgspec.field(default_factory=list)
    lag: dict[str, int] = msgspec.field(default_factory=dict)
    figures: dict[str, Any] = msgspec.field(default_factory=dict)
    error: str = ""
    is_over: bool = False

    @property
    def rows_per_s(self) -> float:
        """Rows a second of the last batches."""
        seconds = sum(batch.seconds for batch in self.batches)
        return sum(batch.rows for batch in self.batches) / seconds if seconds else 0.0


class ProgressWriter:
    """Keeps the progress of one run.

    Args:
        name: of the run, whose lock is held.
        tell: is told, too, each time that something is written.
    """

    def __init__(self, name: str, tell: Callable[[RunProgress], None] | None = None) -> None:
        self._tell = tell
        self._path = state_directory() / name / _PROGRESS
        self._progress = RunProgress()
        self._query_batch: tuple[str, int] | None = None
        self._write()

    def batch(
        self,
        batch_id: int,
        rows: int,
        seconds: float,
        *,
        lag: Mapping[int, int] | None = None,
        figures: Mapping[str, Any] | None = None,
    ) -> None:
        """Tell that a batch has ended; `lag` and `figures` stay as they were where not given."""
        now = self._progress
        now.batch_count += 1
        now.row_count += rows
        now.batches = [*now.batches, Batch(batch_id, rows, seconds)][-BATCHES_KEPT_MAX:]
        if lag is not None:
            now.lag = {str(partition_id): behind for partition_id, behind in sorted(lag.items())}
        now.figures.update(figures or {})
        now.error = ""
        self._write()

    def query(
        self, report: Mapping[str, Any] | None, *, figures: Mapping[str, Any] | None = None
    ) -> None:
        """Tell what a streaming query says of itself (`lastProgress`), as often as one likes.

        A report that was told already, one of an idle query, and None are passed over.
        """
        if report is None:
            return
        told = (str(report["runId"]), int(report["batchId"]))
        if told == self._query_batch or not report["numInputRows"]:
            return
        self._query_batch = told
        seconds = report["batchDuration"] / 1000
        lag = lag_of_report(report)
        self.batch(told[1], report["numInputRows"], seconds, lag=lag, figures=figures)

    def failed(self, error: BaseException | str) -> None:
        """Tell why the run, or its last batch, failed; the next batch that ends takes it back."""
        self._progress.error = (str(error) or repr(error))[:ERROR_CHARS_MAX]
        self._write()

    def ended(self) -> None:
        """Tell that the run is over."""
        self._progress.is_over = True
        self._write()

    def show(self, figures: Mapping[str, Any]) -> None:
        """Tell what is known besides batches."""
        self._progress.figures.update(figures)
        self._write()

    def _write(self) -> None:
        self._progress.updated = time.time_ns() // 10**9
        if self._tell is not None:
            self._tell(self._progress)
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _replace(self._path, self._progress)


def _replace(path: Path, content: msgspec.Struct) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(msgspec.json.encode(content))
    beside.replace(path)


def lag_of_report(report: Mapping[str, Any]) -> dict[int, int] | None:
    """Return the lag that a streaming query's report shows of this source; None: it shows none."""
    lag: dict[int, int] = {}
    for source in report["sources"]:
        if not source["endOffset"] or not source["latestOffset"]:
            continue
        with suppress(ValueError, MillstreamError):
            ends = [offset_from_json(json.loads(source[n])) for n in ("endOffset", "latestOffset")]
            lag.update(lag_between(*ends))
    return lag or None


def read_progress(name: str) -> RunProgress:
    """Return what a pipeline did in its last run; nothing, if it was none or cannot be read."""
    try:
        data = (state_directory() / name / _PROGRESS).read_bytes()
        return msgspec.json.decode(data, type=RunProgress)
    except (OSError, msgspec.MsgspecError):
        return RunProgress()


def state_directory() -> Path:
    """Return where records and default checkpoints are kept."""
    given = os.environ.get("MILLSTREAM_STATE")
    if given:
        return Path(given) / "pipelines"
    root = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(root) / "millstream" / "pipelines"


class _RunLock(FileLock):
    """The right to run a pipeline, or to give names."""

    def refusal(self, path: Path, holder: str) -> ConditionError:
        """Return `already_running`."""
        name = path.parent.name
        return ConditionError(
            f"pipeline {name} runs already (millstream pipeline stop {name})",
            code="already_running",
        )


@contextmanager
def begin_run(wanted: RunRecord) -> Iterator[RunRecord]:
    """Record a run under a name of its own, and hold its lock; yields the record.

    The name is the one it had before; else the wanted one, or with `-2`, `-3` behind it: the first
    that no other run has. A name is free again when its run has ended and its directory is gone.

    Args:
        wanted: `name` as it should be; a `checkpoint` that is relative is below the run's own
            directory.

    Raises:
        ConditionError: `already_running`.
        UnavailableError: `bad_state_directory`.
    """
    root = state_directory()
    with ExitStack() as stack:
        with _writable(), ExitStack() as naming:
            root.mkdir(parents=True, exist_ok=True)
            naming.enter_context(_RunLock(root / _NAMES, patience_s=NAMING_S))
            name = _own_name(wanted)
            checkpoint = str(root / name / wanted.checkpoint)
            record = msgspec.structs.replace(wanted, name=name, checkpoint=checkpoint)
            stack.enter_context(lock_run(record))
        yield record


@contextmanager
def lock_run(record: RunRecord) -> Iterator[None]:
    """Record a run, and hold its lock while the block runs.

    Raises:
        ConditionError: `already_running`.
        UnavailableError: `bad_state_directory`.
    """
    directory = state_directory() / record.name
    with ExitStack() as stack:
        with _writable():
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_RunLock(directory / _LOCK, patience_s=LOOKING_S))
            _replace(directory / _RECORD, record)
        yield


@contextmanager
def _writable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"cannot write {error.filename}: {error.strerror}; set MILLSTREAM_STATE to another "
            "directory",
            code="bad_state_directory",
            retry="never",
        ) from error


def _own_name(wanted: RunRecord) -> str:
    base = _UNSAFE.sub("_", wanted.name)
    names = [base, *(f"{base}-{number}" for number in range(2, RUNS_MAX + 1))]
    known = {record.name: record for record in list_runs()}
    mine = [name for name in names if name in known and known[name].is_same(wanted)]
    free = (name for name in names if name not in known or known[name].is_over)
    return mine[0] if mine else next(free, base)


def list_runs() -> list[RunRecord]:
    """Return all pipelines known on this machine, by name; none whose record cannot be read."""
    root = state_directory()
    names = sorted(path.parent.name for path in root.glob(f"*/{_RECORD}"))
    records: list[RunRecord] = []
    for name in names:
        with suppress(ConditionError):  # one that cannot be read
            records.append(read_run(name))
    return records


def read_run(name: str) -> RunRecord:
    """Return what is known of a pipeline.

    Raises:
        ConditionError: `unknown_pipeline`.
    """
    directory = state_directory() / name
    try:
        record = msgspec.json.decode((directory / _RECORD).read_bytes(), type=RunRecord)
    except (FileNotFoundError, msgspec.MsgspecError) as error:
        raise ConditionError(
            f"no pipeline {name!r} on this machine; `millstream pipeline list` shows them",
            code="unknown_pipeline",
        ) from error
    holder = lock_holder(directory / _LOCK)
    if holder is None:
        return msgspec.structs.replace(record, is_running=False)
    return msgspec.structs.replace(record, is_running=True, pid=holder)


def stop_run(name: str) -> bool:
    """Ask a pipeline to stop after the batch in work; False if it does not run.

    Raises:
        ConditionError: `unknown_pipeline`.
        UnavailableError: `unseen_process`.
    """
    until = time.monotonic() + LOOKING_S
    while (record := read_run(name)).is_running and not record.pid:
        if time.monotonic() >= until:
            raise UnavailableError(
                f"pipeline {name} runs, but its process is not visible here; stop it as the "
                "user, and on the machine, that started it",
                code="unseen_process",
                retry="never",
            )
        time.sleep(_LOOK_STEP_S)
    if record.is_running:
        os.kill(record.pid, signal.SIGTERM)
    return record.is_running
