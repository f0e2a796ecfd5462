"""`millstream demo`: the main job on real data, checked against an independent computation.

Elsewhere: what it does (`demo.run`), pictures and page (`demo.report`).
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

__all__ = ["command"]

FlightsOption = Annotated[
    int | None,
    typer.Option("--flights", min=1, metavar="N", help="The first N rows of the file; all."),
]
WorkdirOption = Annotated[
    Path,
    typer.Option("--workdir", metavar="DIR", help="For data, logs and the report."),
]
KeepOption = Annotated[
    bool, typer.Option("--keep", help="Keep the node's data and Spark's state afterwards.")
]
NoPlotsOption = Annotated[bool, typer.Option("--no-plots", help="Draw nothing.")]


def command(
    flights: FlightsOption = None,
    workdir: WorkdirOption = Path("demo-out"),
    keep: KeepOption = False,
    no_plots: NoPlotsOption = False,
) -> None:
    """Load the flights of New York 2013, follow them with Spark, and check every view row."""
    _require(with_plots=not no_plots)
    from millstream.demo.report import table_of, write_report
    from millstream.demo.run import run_demo

    console = Console(highlight=False)
    console.print(
        "[bold]Millstream demo[/]: flights in, change stream out, Spark views, checked\n"
    )
    outcome = run_demo(console, workdir.absolute(), flights=flights, keep=keep)
    page = write_report(outcome, workdir.absolute(), with_plots=not no_plots)
    console.print()
    console.print(table_of(outcome))
    for check in outcome.checks:
        for sample in check.samples:
            console.print(f"  [red]{check.name}[/]: {sample}", markup=True)
    console.print(
        f"{outcome.written:,} changes written, {outcome.streamed:,} rows streamed (fewer: the "
        f"stream de-duplicates), {outcome.updates:,} updates and {outcome.deletes:,} deletes of "
        "rows already applied"
    )
    console.print(f"report: {page}")
    if not outcome.is_right:
        raise typer.Exit(1)


def _require(*, with_plots: bool) -> None:
    """Import what the demo needs at its very end, before it works for minutes.

    Raises:
        ImportError: a package is missing; the command line names its extra.
    """
    import_module("millstream.pipelines.spark_version")
    if with_plots:
        import_module("matplotlib")
