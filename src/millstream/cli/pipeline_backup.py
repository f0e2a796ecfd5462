"""`millstream pipeline run backup / compact`: backups of buckets in Parquet.

Invariants:
1. What is told of a run goes to stderr; stdout has one line, or with `--json` one object.
2. A backup that is stopped or fails leaves nothing behind that counts.

Elsewhere: the work (`pipelines.lake`), the other pipelines (`cli.pipeline`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from millstream.cli.connect import (
    CONNECT_DEFAULT,
    BucketArgument,
    ConnectOption,
    JsonOption,
    PasswordFileOption,
    TlsCaOption,
    UserOption,
    tls_of,
    who_of,
)
from millstream.errors import MillstreamError
from millstream.pipelines.runs import ProgressWriter, RunRecord, lock_run

if TYPE_CHECKING:
    from millstream.pipelines.lake.manifest import Manifest
    from millstream.pipelines.options import SourceOptions

__all__ = ["add_to"]

DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the backup.")]
ToOption = Annotated[Path, typer.Option("--to", metavar="DIR", help="Directory of the backup.")]
MasterOption = Annotated[
    str | None,
    typer.Option("--master", help="Spark master; default local with all processors."),
]
MemoryOption = Annotated[
    str, typer.Option("--driver-memory", help="Heap of the Java process, such as 2g.")
]
IncrementalOption = Annotated[
    bool,
    typer.Option("--incremental", help="Read only what changed since the newest backup in DIR."),
]


def add_to(run_app: typer.Typer) -> None:
    """Add the commands to those of `millstream pipeline run`."""
    run_app.command("backup")(run_backup)
    run_app.command("compact")(run_compact)


def run_backup(
    bucket: BucketArgument,
    to: ToOption,
    incremental: IncrementalOption = False,
    master: MasterOption = None,
    driver_memory: MemoryOption = "1g",
    address: ConnectOption = CONNECT_DEFAULT,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    tls_ca: TlsCaOption = None,
    json: JsonOption = False,
) -> None:
    """Back a bucket up into Parquet files, as of one moment for each partition."""
    options = source_options(bucket, address, user, password_file, tls_ca)
    check_node(options)
    from millstream.pipelines.lake.backup import back_up
    from millstream.pipelines.lake.directory import BackupDirectory

    with _recorded("backup", bucket, address, to) as progress, _spark(master, driver_memory) as s:
        started = time.monotonic()
        made = back_up(s, options, BackupDirectory(to.absolute()), is_incremental=incremental)
        progress.batch(made.id, made.row_count, time.monotonic() - started)
    _tell(made, time.monotonic() - started, as_json=json)


def run_compact(
    directory: DirectoryArgument,
    master: MasterOption = None,
    driver_memory: MemoryOption = "1g",
    json: JsonOption = False,
) -> None:
    """Write the newest backup of a directory as a full one; needs no node."""
    from millstream.pipelines.lake.backup import compact
    from millstream.pipelines.lake.directory import BackupDirectory

    with _spark(master, driver_memory) as spark:
        started = time.monotonic()
        made = compact(spark, BackupDirectory(directory.absolute()))
    _tell(made, time.monotonic() - started, as_json=json)


def source_options(
    bucket: str,
    address: str,
    user: str | None,
    password_file: Path | None,
    tls_ca: Path | None,
) -> SourceOptions:
    """Return what executors connect with.

    Raises:
        UsageError: an option is wrong.
    """
    from millstream.pipelines.options import SourceOptions

    who = who_of(user, password_file)
    tls_of(tls_ca)  # says what is wrong with it
    return SourceOptions(
        hosts=address, bucket=bucket, user=who.user, password=who.password if who.user else None,
        tls_authority=tls_ca.read_text() if tls_ca else "",
    )  # fmt: skip


def check_node(options: SourceOptions) -> None:
    """Connect once, since Spark takes its time to start; raises as `millstream.connect`."""
    from millstream.pipelines.control import open_client

    open_client(options).close()


@contextmanager
def _recorded(kind: str, bucket: str, address: str, to: Path) -> Iterator[ProgressWriter]:
    """Keep the record of a run, and what it failed with."""
    record = RunRecord(
        name=f"{kind}-{bucket}", kind=kind, bucket=bucket, address=address,
        checkpoint=str(to.absolute()), pid=os.getpid(), started=time.time_ns() // 10**9,
    )  # fmt: skip
    with lock_run(record):
        progress = ProgressWriter(record.name)
        try:
            yield progress
        except MillstreamError as error:
            progress.failed(error)
            raise


@contextmanager
def _spark(master: str | None, memory: str) -> Iterator[Any]:
    from millstream.pipelines.session import local_session

    settings = {"spark.master": master} if master else {}
    with Console(stderr=True).status("starting Spark"):
        session = local_session("millstream backup", driver_memory=memory, settings=settings)
    try:
        yield session
    finally:
        session.stop()


def _tell(made: Manifest, seconds: float, *, as_json: bool) -> None:
    kinds = [part.kind for part in made.parts]
    shown: dict[str, Any] = {
        "manifest": made.id, "parent": made.parent, "bucket": made.bucket,
        "rows": made.row_count, "bytes": sum(f.byte_count for p in made.parts for f in p.files),
        "branched": kinds.count("branched"), "full": kinds.count("full"),
        "seconds": round(seconds, 3),
    }  # fmt: skip
    if as_json:
        print_json(shown)
        return
    said = f"manifest {made.id}: {shown['rows']:,} rows, {shown['bytes']:,} bytes"
    if made.parent is not None:
        said += f", on top of {made.parent}"
        if shown["branched"] or shown["full"]:
            said += (
                f"; {shown['branched']} partitions had to be rolled back, "
                f"{shown['full']} to be copied whole"
            )
    sys.stdout.write(f"{said}\n")


def print_json(value: Any) -> None:
    """Print a value on a line of its own."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
