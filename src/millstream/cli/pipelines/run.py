"""What every `millstream pipeline run` shares: options, record, session, stop.

    with recorded("lake", bucket, checkpoint=to, subject=str(to)) as run:
        with spark_session(run, stop, master=master, memory=driver_memory) as spark:
            ...

Invariants:
1. A run that fails leaves the reason in its record, whatever it is.
2. SIGTERM and Ctrl-C ask the pipeline to stop, also while Spark starts; they end nothing.
3. Spark's own log is a file beside the record; stderr says which.

Elsewhere: records (`pipelines.runs`), settings of the session (`pipelines.session`).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer
from rich.console import Console

from millstream.cli.connect import NodeOptions, awaited
from millstream.cli.pipelines.telling import REQUEST_S, NodeTeller
from millstream.client.http import HttpClient, http_of
from millstream.pipelines.runs import ProgressWriter, RunRecord, begin_run, state_directory

if TYPE_CHECKING:
    from millstream.pipelines.change_stream.options import SourceOptions

__all__ = [
    "MasterOption",
    "MemoryOption",
    "OnceOption",
    "Run",
    "check_node",
    "file_options",
    "http_at",
    "kept_failure",
    "print_json",
    "recorded",
    "source_options",
    "spark_session",
]

MEMORY_DEFAULT = "1g"

MasterOption = Annotated[
    str | None,
    typer.Option("--master", help="Spark master; default local with all processors."),
]
MemoryOption = Annotated[
    str, typer.Option("--driver-memory", help="Heap of the Java process, such as 2g.")
]
OnceOption = Annotated[
    bool,
    typer.Option("--once/--follow", help="Stop when all there is now was read, or go on."),
]


class Run(NamedTuple):
    """A run that is recorded."""

    record: RunRecord
    progress: ProgressWriter

    @property
    def log_file(self) -> Path:
        """Where Spark's own log goes."""
        return state_directory() / self.record.name / "spark.log"


def source_options(bucket: str, at: NodeOptions) -> SourceOptions:
    """Return what executors connect with.

    Raises:
        UsageError: an option is wrong.
    """
    from millstream.pipelines.change_stream.options import SourceOptions

    who, _ = at.who, at.tls  # which says what is wrong with it
    return SourceOptions(
        hosts=at.address, bucket=bucket, user=who.user,
        password=who.password if who.user else None,
        tls_authority=at.tls_ca.read_text() if at.tls_ca else "",
    )  # fmt: skip


def http_at(bucket: str, at: NodeOptions) -> HttpClient:
    """Return the HTTP port of the node that a command was told.

    Raises:
        MillstreamError: as `millstream.connect`; `no_http`.
    """
    from millstream.pipelines.change_stream.control import open_client

    who = at.who
    with open_client(source_options(bucket, at)) as client:
        return http_of(
            client, user=who.user, password=who.password or "", tls=at.tls, timeout_s=REQUEST_S
        )


def file_options(at: NodeOptions) -> dict[str, str]:
    """Return the options of `format("millstream")` that name files of the driver."""
    files = {"passwordFile": at.password_file, "tlsCa": at.tls_ca}
    return {name: str(path.absolute()) for name, path in files.items() if path}


def check_node(options: SourceOptions) -> None:
    """Connect once, since Spark takes its time to start; raises as `millstream.connect`."""
    from millstream.pipelines.change_stream.control import open_client

    awaited(options.hosts, lambda: open_client(options)).close()


@contextmanager
def recorded(
    kind: str,
    bucket: str = "",
    *,
    checkpoint: Path,
    subject: str,
    at: NodeOptions | None = None,
    ddoc: str = "",
    name: str = "",
) -> Iterator[Run]:
    """Keep the record of a run, and what it failed with.

    Args:
        kind: as the command is called.
        bucket: that it reads or writes, if any.
        checkpoint: see `RunRecord`.
        subject: see `RunRecord`.
        at: the node, if any, which is told of the run.
        ddoc: name of the design document, if any.
        name: what its name ends with, if not the bucket.

    Raises:
        ConditionError: `already_running`.
        UnavailableError: `bad_state_directory`.
    """
    address = at.address if at else ""
    wanted = RunRecord(
        name=f"{kind}-{name or bucket}", kind=kind, bucket=bucket, ddoc=ddoc, address=address,
        checkpoint=str(checkpoint), subject=subject, pid=os.getpid(),
        started=time.time_ns() // 10**9,
    )  # fmt: skip
    with begin_run(wanted) as record:
        tell = None
        if at is not None and bucket:
            tell = NodeTeller(record, socket.gethostname(), partial(http_at, bucket, at))
        run = Run(record, ProgressWriter(record.name, tell))
        try:
            with kept_failure(run):
                yield run
        finally:
            run.progress.ended()


@contextmanager
def kept_failure(run: Run) -> Iterator[None]:
    """Keep what the block fails with in the record of a run."""
    try:
        yield
    except Exception as error:
        run.progress.failed(error)
        raise


@contextmanager
def spark_session(
    run: Run, stop: Callable[[], None], *, master: str | None, memory: str
) -> Iterator[Any]:
    """Start Spark for a run, and end it with the block.

    Args:
        run: whose kind is the session's name.
        stop: called, in the main thread, when the process is asked to end.
        master: of Spark; None for one in this process.
        memory: heap of the Java process.

    Raises:
        UnavailableError: `no_java`; `query_failed`: Spark failed, or its Java was killed.
    """
    from millstream.pipelines.session import end_session, local_session, spark_in_words

    console = Console(stderr=True)
    settings = {"spark.master": master} if master else {}
    handlers = _call_when_asked_to_end(stop)
    try:
        with spark_in_words():
            with console.status("starting Spark"):
                session = local_session(
                    f"millstream {run.record.kind}", driver_memory=memory, log_file=run.log_file,
                    settings=settings,
                )  # fmt: skip
            _call_when_asked_to_end(stop)  # again: PySpark has a handler of its own for Ctrl-C
            try:
                console.print(f"Spark's own log: {run.log_file}", highlight=False, soft_wrap=True)
                yield session
            finally:
                end_session(session)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _call_when_asked_to_end(stop: Callable[[], None]) -> dict[int, Any]:
    """Return the handlers there were before."""

    def handle(*_: object) -> None:
        stop()

    return {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}


def print_json(value: Any) -> None:
    """Print a value on a line of its own, by one write."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()
