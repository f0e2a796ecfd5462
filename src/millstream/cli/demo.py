"""`millstream demo`: the main job on real data, checked against an independent computation.

Elsewhere: what it does (`demo.run`, `demo.cluster`), pictures and page (`demo.report`).
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from millstream.demo.run import Outcome

__all__ = ["command"]

FlightsOption = Annotated[
    int | None,
    typer.Option(
        "--flights",
        min=1,
        metavar="N",
        help="The first N rows of the file. Default all; with --cluster 20000.",
    ),
]
ClusterOption = Annotated[
    bool,
    typer.Option(
        "--cluster", help="Three nodes: one is killed, one is added, one is removed meanwhile."
    ),
]
WorkdirOption = Annotated[
    Path,
    typer.Option("--workdir", metavar="DIR", help="For data, logs and the report."),
]
KeepOption = Annotated[
    bool,
    typer.Option(
        "--keep",
        help="Keep the node's data and Spark's state afterwards. Without --cluster, a node serves "
        "the data then, and the address of its console is printed.",
    ),
]
NoPlotsOption = Annotated[bool, typer.Option("--no-plots", help="Draw nothing.")]


def command(
    flights: FlightsOption = None,
    workdir: WorkdirOption = Path("demo-out"),
    keep: KeepOption = False,
    no_plots: NoPlotsOption = False,
    cluster: ClusterOption = False,
) -> None:
    """Load the flights of New York 2013, follow them with Spark, and check every view row."""
    _require(with_plots=not no_plots)
    from millstream.demo.report import summary_of, table_of, write_report

    console = Console(highlight=False)
    what = "a cluster that runs itself" if cluster else "Spark views"
    console.print(f"[bold]Millstream demo[/]: flights in, change stream out, {what}, checked\n")
    outcome = _run(console, workdir.absolute(), flights=flights, keep=keep, cluster=cluster)
    page = write_report(outcome, workdir.absolute(), with_plots=not no_plots)
    console.print()
    console.print(table_of(outcome))
    for check in outcome.checks:
        for sample in check.samples:
            console.print(f"  [red]{check.name}[/]: {sample}", markup=True)
    console.print(summary_of(outcome))
    console.print(f"report: {page}")
    if keep and not cluster:
        _serve(workdir.absolute() / "node")
    if not outcome.is_right:
        raise typer.Exit(1)


def _run(
    console: Console, workdir: Path, *, flights: int | None, keep: bool, cluster: bool
) -> Outcome:
    if cluster:
        from millstream.demo.cluster import FLIGHTS_DEFAULT, run_cluster_demo

        return run_cluster_demo(console, workdir, flights=flights or FLIGHTS_DEFAULT, keep=keep)
    from millstream.demo.run import run_demo

    return run_demo(console, workdir, flights=flights, keep=keep)


def _serve(data: Path) -> None:
    """Leave a node running on free ports; it prints where its console is and how to stop it."""
    ports = [word for name in ("kv", "http", "peer") for word in (f"--{name}", "127.0.0.1:0")]
    words = ["serve", "--data", str(data), *ports, "--no-memcached", "--no-coord", "--background"]
    command = [sys.executable, "-m", "millstream", *words]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def _require(*, with_plots: bool) -> None:
    """Import what the demo needs at its very end, before it works for minutes.

    Raises:
        ImportError: a package is missing; the command line names its extra.
    """
    import_module("millstream.pipelines.spark_version")
    if with_plots:
        import_module("matplotlib")
