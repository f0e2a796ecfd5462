"""`millstream pipeline run views`: Spark keeps the indexes of design documents.

Invariants:
1. SIGTERM and Ctrl-C end the pipeline at the edge of a commit, with exit code 0.
2. Progress goes to stderr; stdout carries one JSON line per commit with `--json`.

Elsewhere: the work (`pipelines.index`), the other pipelines (`cli.pipeline`).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
)
from millstream.cli.pipeline_backup import MasterOption, MemoryOption, source_options
from millstream.errors import MillstreamError
from millstream.pipelines.runs import ProgressWriter, RunRecord, lock_run, state_directory

if TYPE_CHECKING:
    from millstream.pipelines.index.on_spark import CycleReport, IndexPipeline

__all__ = ["add_to"]

DdocOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ddoc",
        metavar="FILE|NAME",
        help='Design document: the name of one in the bucket that says "engine": "spark", or a '
        "JSON file, which is put there so. May be repeated; default all that say it.",
    ),
]
CheckpointOption = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="DIR", help="Where Spark's offsets are kept."),
]
OnceOption = Annotated[
    bool,
    typer.Option("--once/--follow", help="Stop when the views have all there is, or go on."),
]
LoopOption = Annotated[
    bool,
    typer.Option("--loop", help="Ask the node for changes instead of running a streaming query."),
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
    typer.Option("--rows-per-commit", min=1, help="Changes of one commit after the first."),
]
TasksOption = Annotated[
    int | None,
    typer.Option("--tasks", min=1, help="Spark tasks of one commit; default the processors."),
]


def add_to(run_app: typer.Typer) -> None:
    """Add the command to those of `millstream pipeline run`."""
    run_app.command("views")(run_views)


def run_views(
    bucket: BucketArgument,
    ddoc: DdocOption = None,
    master: MasterOption = None,
    checkpoint: CheckpointOption = None,
    once: OnceOption = False,
    loop: LoopOption = False,
    python_module: ModuleOption = None,
    rows_per_commit: RowsOption = None,
    tasks: TasksOption = None,
    driver_memory: MemoryOption = "1g",
    address: ConnectOption = CONNECT_DEFAULT,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    tls_ca: TlsCaOption = None,
    json: JsonOption = False,
) -> None:
    """Build and maintain the indexes of design documents that say "engine": "spark"."""
    source = source_options(bucket, address, user, password_file, tls_ca)
    from millstream.pipelines.index.setup import files_of_modules, find_specs
    from millstream.pipelines.index.writer import rows_per_commit as checked_rows

    rows_max = checked_rows(rows_per_commit)
    modules = tuple(python_module or ())
    files = files_of_modules(modules)
    specs = find_specs(source, ddoc or (), modules)
    from millstream.pipelines.index.on_spark import IndexPipeline

    given = {"passwordFile": password_file, "tlsCa": tls_ca}
    options = {name: str(path.absolute()) for name, path in given.items() if path}
    console = Console(stderr=True)
    with ExitStack() as stack:
        pipelines: list[IndexPipeline] = []
        writers: list[ProgressWriter] = []
        for spec in specs:
            name = f"views-{bucket}-{spec.address.design}"
            directory = (checkpoint or state_directory() / name).absolute()
            directory /= f"{spec.address.design}-{spec.bucket_uuid[:8]}-{spec.signature[:12]}"
            record = RunRecord(
                name=name, kind="views", bucket=bucket, ddoc=spec.address.design,
                address=address, checkpoint=str(directory), pid=os.getpid(),
                started=time.time_ns() // 10**9,
            )  # fmt: skip
            stack.enter_context(lock_run(record))
            writers.append(ProgressWriter(name))
            pipelines.append(
                IndexPipeline(
                    spec,
                    directory,
                    task_count=tasks or len(os.sched_getaffinity(0)),
                    rows_max=rows_max,
                    source_options=options,
                    is_loop=loop,
                    on_cycle=partial(_tell, console, writers[-1], as_json=json),
                )
            )
        try:
            first = f"views-{bucket}-{specs[0].address.design}"
            log_file = state_directory() / first / "spark.log"
            _run(
                pipelines, console, files, log_file,
                master=master, memory=driver_memory, once=once,
            )  # fmt: skip
        except MillstreamError as error:
            for progress in writers:
                progress.failed(error)
            raise


def _run(
    pipelines: Sequence[IndexPipeline],
    console: Console,
    files: Sequence[Path],
    log_file: Path,
    *,
    master: str | None,
    memory: str,
    once: bool,
) -> None:
    from millstream.pipelines.session import local_session

    def stop(*_: object) -> None:
        for pipeline in pipelines:
            pipeline.is_stopping = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    settings = {"spark.master": master} if master else {}
    with console.status("starting Spark"):
        spark = local_session(
            "millstream views", driver_memory=memory, log_file=log_file, settings=settings
        )
    console.print(f"Spark's own log: {log_file}", highlight=False)
    try:
        for file in files:
            spark.sparkContext.addPyFile(str(file))
        for pipeline in pipelines:
            console.print(f"keeping the views of design document {pipeline.design}")
        with ThreadPoolExecutor(len(pipelines)) as pool:
            runs = [pool.submit(pipeline.run, spark, once=once) for pipeline in pipelines]
            wait(runs, return_when=FIRST_EXCEPTION)
            if any(run.done() and run.exception() for run in runs):
                stop()
        for run in runs:
            run.result()
    finally:
        spark.stop()


def _tell(
    console: Console, progress: ProgressWriter, report: CycleReport, *, as_json: bool
) -> None:
    figures = {"index_rows": sum(report.rows), "commit": report.commit}
    progress.batch(report.commit, report.changes, report.seconds, lag=report.lag, figures=figures)
    if as_json:
        # One write per line: two design documents may report at the same moment.
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
        sys.stdout.flush()
        return
    kind = "first build" if report.is_first else f"commit {report.commit}"
    left = f", [yellow]{report.left_out} partitions left out[/]" if report.left_out else ""
    console.print(
        f"{report.ddoc} {kind}: {report.changes:,} changes, {sum(report.rows):,} rows in the "
        f"index{left}, {report.seconds:.1f} s",
        highlight=False,
    )
