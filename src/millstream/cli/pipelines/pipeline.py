"""`millstream pipeline`: run Spark pipelines, and look after those of this machine.

Invariants:
1. stdout carries what was asked for, with `--json` as JSON lines.

Elsewhere: the runs (`cli.pipelines.views`, `cli.pipelines.backup`), their record
(`pipelines.runs`), offsets (`cli.pipelines.offsets`).
"""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Column, Table

from millstream.cli.connect import JsonOption
from millstream.cli.pipelines import backup as pipeline_backup
from millstream.cli.pipelines import lake as pipeline_lake
from millstream.cli.pipelines import offsets as pipeline_offsets
from millstream.cli.pipelines import views as pipeline_views
from millstream.cli.pipelines.run import print_json
from millstream.errors import UsageError
from millstream.pipelines.runs import (
    RunProgress,
    RunRecord,
    list_runs,
    read_progress,
    read_run,
    stop_run,
)

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, add_completion=False)
run_app = typer.Typer(no_args_is_help=True, help="Run a pipeline in the foreground.")
app.add_typer(run_app, name="run")
pipeline_views.add_to(run_app)
pipeline_backup.add_to(app, run_app)
pipeline_lake.add_to(run_app)
app.add_typer(pipeline_offsets.app, name="offsets")

LAGS_SHOWN_MAX: Final = 5

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="As `list` shows it.")]


@app.command("list")
def list_pipelines(json: JsonOption = False) -> None:
    """Show the pipelines known on this machine."""
    records = list_runs()
    if json:
        print_json([msgspec.to_builtins(record) for record in records])
        return
    table = Table(Column("name", no_wrap=True), "state", Column("on", overflow="fold"))
    for header in ("rows", "rows/s", "lag"):
        table.add_column(header, justify="right")
    for record in records:
        done = read_progress(record.name)
        figures = [done.row_count, round(done.rows_per_s), sum(done.lag.values())]
        on = record.subject or record.address
        table.add_row(record.name, _state(record, done), on, *(f"{n:,}" for n in figures))
    Console().print(table)


@app.command()
def status(name: NameArgument, json: JsonOption = False) -> None:
    """Show what a pipeline did last: batches, rows a second, lag, the last error."""
    record, done = read_run(name), read_progress(name)
    shown: dict[str, Any] = {
        "name": name,
        "kind": record.kind,
        "state": _state(record, done),
        "pid": (record.pid or None) if record.is_running else None,
        "bucket": record.bucket,
        "node": record.address,
        "checkpoint": record.checkpoint,
        "started": record.started,
        "updated": done.updated,
        "batches": done.batch_count,
        "rows": done.row_count,
        "rows_per_s": round(done.rows_per_s, 1),
        "last_batches": [msgspec.to_builtins(batch) for batch in done.batches],
        "lag": done.lag,
        "error": done.error,
        **done.figures,
    }
    if json:
        print_json(shown)
        return
    table = Table(show_header=False)
    for member, value in (shown | _in_words(record, done)).items():
        table.add_row(member, f"{value:,}" if isinstance(value, int) else str(value))
    Console().print(table)


def _state(record: RunRecord, done: RunProgress) -> str:
    return "running" if record.is_running else "failed" if done.error else "stopped"


def _in_words(record: RunRecord, done: RunProgress) -> dict[str, str]:
    """Return for people what is too long, or a number: batch times, lags, moments, the process."""
    times = [batch.seconds for batch in done.batches]
    span = f"{min(times):.2f} to {max(times):.2f} s, last {times[-1]:.2f} s" if times else "none"
    behind = sorted(done.lag.items(), key=lambda item: -item[1])[:LAGS_SHOWN_MAX]
    most = ", ".join(f"partition {partition}: {lag:,}" for partition, lag in behind if lag)
    return {
        "pid": str(record.pid or "not seen from here") if record.is_running else "",
        "started": _moment(record.started),
        "updated": _moment(done.updated),
        "last_batches": span,
        "lag": f"{sum(done.lag.values()):,}{f' ({most})' if most else ''}",
    }


def _moment(unix_s: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(unix_s)) if unix_s else "never"


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
