"""`millstream pipeline`: run Spark pipelines, and look after those of this machine.

Invariants:
1. SIGTERM and Ctrl-C end a pipeline at the edge of a batch, with exit code 0.
2. Progress goes to stderr; stdout carries what was asked for, with `--json` as JSON lines.

Elsewhere: the pipeline itself (`pipelines.views`), the record of runs (`pipelines.runs`).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from millstream.cli import pipeline_backup
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
from millstream.errors import UsageError
from millstream.pipelines.runs import (
    RunRecord,
    list_runs,
    lock_run,
    read_run,
    state_directory,
    stop_run,
)

if TYPE_CHECKING:
    from millstream.pipelines.views import BatchReport, ViewsPipeline

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, add_completion=False)
run_app = typer.Typer(no_args_is_help=True, help="Run a pipeline in the foreground.")
app.add_typer(run_app, name="run")
pipeline_backup.add_to(run_app)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="As `list` shows it.")]
DdocOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ddoc",
        metavar="FILE|NAME",
        help="Design document: a JSON file, or the name of one in the bucket. May be repeated.",
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option("--master", help="Spark master; default local with all processors."),
]
CheckpointOption = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="DIR", help="Where Spark's state and offsets are kept."),
]
OnceOption = Annotated[
    bool,
    typer.Option("--once/--follow", help="Stop at the present end of the stream, or follow it."),
]
ModuleOption = Annotated[
    list[str] | None,
    typer.Option(
        "--python-module",
        metavar="MODULE",
        help="Module that registers Python functions; also imported on executors.",
    ),
]
RowsOption = Annotated[
    int | None,
    typer.Option("--rows-per-batch", min=1, help="Changes wanted in one batch."),
]
MemoryOption = Annotated[
    str, typer.Option("--driver-memory", help="Heap of the Java process, such as 2g.")
]


@run_app.command("views")
def run_views(
    bucket: BucketArgument,
    ddoc: DdocOption = None,
    master: MasterOption = None,
    checkpoint: CheckpointOption = None,
    once: OnceOption = False,
    python_module: ModuleOption = None,
    rows_per_batch: RowsOption = None,
    driver_memory: MemoryOption = "2g",
    address: ConnectOption = CONNECT_DEFAULT,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    tls_ca: TlsCaOption = None,
    json: JsonOption = False,
) -> None:
    """Keep the views of design documents current in the bucket BUCKET-views."""
    from millstream.pipelines.bucket_changes import Endpoint
    from millstream.pipelines.view_setup import (
        check_functions,
        ensure_store,
        find_design,
        load_modules,
    )

    who = who_of(user, password_file)
    endpoint = Endpoint(address, who.user, who.password, tls_of(tls_ca))
    modules = tuple(python_module or ())
    files = load_modules(modules)
    wanted: list[str | None] = list(ddoc) if ddoc else [None]
    designs = [find_design(endpoint, bucket, name) for name in wanted]
    for design in designs:
        check_functions(design)
    with endpoint.client(bucket) as client:
        bucket_uuid = client.cluster_map.bucket_uuid
    ensure_store(endpoint, bucket)
    from millstream.pipelines.views import ROWS_PER_BATCH, ViewsPipeline, checkpoint_name

    given = {"passwordFile": password_file, "tlsCa": tls_ca}
    source_options = {name: str(path.absolute()) for name, path in given.items() if path}
    console = Console(stderr=True)
    with ExitStack() as stack:
        pipelines: list[ViewsPipeline] = []
        for design in designs:
            name = f"views-{bucket}-{design.name}"
            directory = checkpoint or state_directory() / name
            directory = directory.absolute() / checkpoint_name(bucket, bucket_uuid, design)
            record = RunRecord(
                name=name, kind="views", bucket=bucket, ddoc=design.name, address=address,
                checkpoint=str(directory), pid=os.getpid(), started=time.time_ns() // 10**9,
            )  # fmt: skip
            stack.enter_context(lock_run(record))
            pipelines.append(
                ViewsPipeline(
                    endpoint, bucket, design, directory,
                    modules=modules,
                    source_options=source_options,
                    rows_per_batch=rows_per_batch or ROWS_PER_BATCH,
                    on_batch=partial(_tell, console, as_json=json),
                )
            )  # fmt: skip
        _run(pipelines, console, files, master=master, memory=driver_memory, once=once)


def _run(
    pipelines: list[ViewsPipeline],
    console: Console,
    files: list[Path],
    *,
    master: str | None,
    memory: str,
    once: bool,
) -> None:
    from millstream.pipelines.session import STATE_SETTINGS, local_session

    def stop(*_: object) -> None:
        for pipeline in pipelines:
            pipeline.is_stopping = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    settings = {**STATE_SETTINGS, **({"spark.master": master} if master else {})}
    with console.status("starting Spark"):
        spark = local_session("millstream views", driver_memory=memory, settings=settings)
    try:
        for file in files:
            spark.sparkContext.addPyFile(str(file))
        for pipeline in pipelines:
            console.print(f"following {pipeline.bucket}, design document {pipeline.design.name}")
        with ThreadPoolExecutor(len(pipelines)) as pool:
            runs = [pool.submit(pipeline.run, spark, once=once) for pipeline in pipelines]
            wait(runs, return_when=FIRST_EXCEPTION)
            if any(run.done() and run.exception() for run in runs):
                stop()
        for run in runs:
            run.result()
    finally:
        spark.stop()


def _tell(console: Console, report: BatchReport, *, as_json: bool) -> None:
    if as_json:
        # One write per line: two design documents may report at the same moment.
        sys.stdout.write(msgspec.json.encode(asdict(report)).decode() + "\n")
        sys.stdout.flush()
        return
    errors = f", [red]{report.map_errors:,} map errors[/]" if report.map_errors else ""
    console.print(
        f"{report.ddoc} batch {report.batch_id}: {report.rows_streamed:,} changes seen, "
        f"{report.documents:,} documents, {report.rows:,} rows "
        f"({report.changed:,} written, {report.deleted:,} deleted){errors}, "
        f"{report.seconds:.1f} s",
        highlight=False,
    )


@app.command("list")
def list_pipelines(json: JsonOption = False) -> None:
    """Show the pipelines known on this machine."""
    records = list_runs()
    if json:
        _print_json([msgspec.to_builtins(record) for record in records])
        return
    table = Table("name", "state", "bucket", "node", "pid")
    for record in records:
        state = "running" if record.is_running else "stopped"
        pid = str(record.pid) if record.is_running else ""
        table.add_row(record.name, state, record.bucket, record.address, pid)
    Console().print(table)


@app.command()
def status(
    name: NameArgument,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    tls_ca: TlsCaOption = None,
    json: JsonOption = False,
) -> None:
    """Show how far a pipeline is."""
    record = read_run(name)
    header = _header_of(record, user, password_file, tls_ca)
    offset = header.get("offset") or {}
    shown: dict[str, Any] = {
        "name": name,
        "state": "running" if record.is_running else "stopped",
        "pid": record.pid if record.is_running else None,
        "checkpoint": record.checkpoint,
        **{
            member: header.get(member)
            for member in ("signature", "batch", "documents", "rows_streamed", "updates",
                           "deletes", "rows", "map_errors", "error_samples")
        },
        "seqnos": sum(entry[1] for entry in offset.get("p", {}).values()),
    }  # fmt: skip
    if json:
        _print_json(shown)
        return
    table = Table(show_header=False)
    for member, value in shown.items():
        table.add_row(member, f"{value:,}" if isinstance(value, int) else str(value))
    Console().print(table)


@app.command()
def offsets(
    name: NameArgument,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    tls_ca: TlsCaOption = None,
    json: JsonOption = False,
) -> None:
    """Show the position of each partition up to which the views are true."""
    header = _header_of(read_run(name), user, password_file, tls_ca)
    entries = (header.get("offset") or {}).get("p", {})
    if json:
        _print_json(header.get("offset"))
        return
    table = Table("partition", "uuid", "seqno", "snap start", "snap end", "branch")
    for partition_id in sorted(entries, key=int):
        table.add_row(partition_id, *(str(member) for member in entries[partition_id][:5]))
    Console().print(table)


@app.command()
def stop(name: NameArgument) -> None:
    """Ask a pipeline to stop after the batch in work."""
    if not stop_run(name):
        raise UsageError(f"pipeline {name} does not run", code="not_running")


@app.command("java-home")
def java_home() -> None:
    """Print the directory of the Java that pipelines use."""
    from millstream.pipelines.java import find_java_home

    sys.stdout.write(f"{find_java_home()}\n")


def _header_of(
    record: RunRecord, user: str | None, password_file: Path | None, tls_ca: Path | None
) -> dict[str, Any]:
    from millstream.pipelines.bucket_changes import Endpoint
    from millstream.pipelines.view_reading import read_header
    from millstream.pipelines.view_store import STORE_SUFFIX

    who = who_of(user, password_file)
    endpoint = Endpoint(record.address, who.user, who.password, tls_of(tls_ca))
    with endpoint.client(record.bucket + STORE_SUFFIX) as client:
        return read_header(client, record.ddoc)


def _print_json(value: Any) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
