"""`millstream pipeline run views`: Spark keeps the indexes of design documents.

Invariants:
1. SIGTERM and Ctrl-C end the pipeline at the edge of a commit, with exit code 0.
2. Progress goes to stderr; stdout carries one JSON line per commit with `--json`.
3. The record of each design document has its own failure; where one fails, the others are stopped.
   What ends all of them, such as a Spark that does not start, is in all records.

Elsewhere: the work (`pipelines.index`), the other pipelines (`cli.pipelines.pipeline`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from millstream.cli.connect import (
    BucketArgument,
    JsonOption,
    NodeOptions,
    at_node,
)
from millstream.cli.pipelines.run import (
    MEMORY_DEFAULT,
    MasterOption,
    MemoryOption,
    OnceOption,
    Run,
    file_options,
    kept_failure,
    print_json,
    recorded,
    source_options,
    spark_session,
)

if TYPE_CHECKING:
    from millstream.errors import MillstreamError
    from millstream.pipelines.change_stream.options import SourceOptions
    from millstream.pipelines.index.offered import OfferedBuilds
    from millstream.pipelines.index.on_spark import CycleReport, IndexPipeline
    from millstream.pipelines.index.shard import IndexAddress
    from millstream.pipelines.index.writer import Cycle
    from millstream.pipelines.runs import ProgressWriter

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
IndexNodeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--index-node",
        metavar="HOST:PORT",
        help="HTTP address of a node that only indexes, to keep its index, too. May be repeated.",
    ),
]
TasksOption = Annotated[
    int | None,
    typer.Option("--tasks", min=1, help="Spark tasks of one commit; default the processors."),
]


def add_to(run_app: typer.Typer) -> None:
    """Add the command to those of `millstream pipeline run`."""
    run_app.command("views")(run_views)


@at_node
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
    index_node: IndexNodeOption = None,
    driver_memory: MemoryOption = MEMORY_DEFAULT,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Build and maintain the indexes of design documents that say "engine": "spark"."""
    source = source_options(bucket, at)
    from millstream.pipelines.index.setup import files_of_modules, find_specs
    from millstream.pipelines.index.writer import rows_per_commit as checked_rows

    rows_max = checked_rows(rows_per_commit)
    modules = tuple(python_module or ())
    files = files_of_modules(modules)
    takes_offers = not once and not ddoc
    specs = find_specs(source, ddoc or (), modules, may_lack=takes_offers)
    from millstream.pipelines.index.on_spark import IndexPipeline

    task_count, index_nodes = tasks or len(os.sched_getaffinity(0)), tuple(index_node or ())
    options = file_options(at)
    console = Console(stderr=True)
    with ExitStack() as stack:
        pipelines: list[IndexPipeline] = []
        runs: list[Run] = []
        for spec in specs:
            design = spec.address.design
            leaf = f"{design}-{spec.bucket_uuid[:8]}-{spec.signature[:12]}"
            directory = (checkpoint.absolute() / leaf) if checkpoint else Path(leaf)
            run = recorded(
                "views", bucket, checkpoint=directory, subject=at.address, at=at,
                ddoc=design, name=f"{bucket}-{design}",
            )  # fmt: skip
            runs.append(stack.enter_context(run))
            pipelines.append(
                IndexPipeline(
                    spec,
                    Path(runs[-1].record.checkpoint),
                    task_count=task_count,
                    rows_max=rows_max,
                    source_options=options,
                    is_loop=loop,
                    index_nodes=index_nodes,
                    on_cycle=partial(_tell, console, runs[-1].progress, as_json=json),
                )
            )

        offered: OfferedBuilds | None = None
        if takes_offers:
            offered = _offered(
                console, source, as_json=json, modules=modules, index_nodes=index_nodes,
                task_count=task_count,
            )  # fmt: skip
        if not runs:
            run = recorded("views", bucket, checkpoint=Path("offered"), subject=at.address, at=at)
            runs.append(stack.enter_context(run))

        def stop() -> None:
            for pipeline in pipelines:
                pipeline.is_stopping = True
            if offered is not None:
                offered.is_stopping = True

        with spark_session(runs[0], stop, master=master, memory=driver_memory) as spark:
            for file in files:
                spark.sparkContext.addPyFile(str(file))
            kept = list(zip(runs, pipelines, strict=False))  # builds that are offered have none
            failure = _run(spark, kept, offered, console, stop, once=once)
    if failure is not None:  # in its own record by now, and in no other
        raise failure


def _run(
    spark: Any,
    kept: Sequence[tuple[Run, IndexPipeline]],
    offered: OfferedBuilds | None,
    console: Console,
    stop: Callable[[], None],
    *,
    once: bool,
) -> BaseException | None:
    """Run pipelines side by side; the first that fails ends all, and is returned.

    Raises:
        MillstreamError: of the builds that are offered, which have no record of their own.
    """
    from millstream.pipelines.session import spark_in_words

    def keep(run: Run, pipeline: IndexPipeline) -> None:
        with kept_failure(run), spark_in_words():
            pipeline.run(spark, once=once)

    for _, pipeline in kept:
        console.print(f"keeping the views of design document {pipeline.design}")
    with ThreadPoolExecutor(len(kept) + 1) as pool:
        runs = [pool.submit(keep, run, pipeline) for run, pipeline in kept]
        if offered is not None:
            console.print("taking builds that nodes offer")
            runs.append(pool.submit(offered.run, spark))
        wait(runs, return_when=FIRST_EXCEPTION)
        if any(run.done() and run.exception() for run in runs):
            stop()
    for run in runs[: len(kept)]:
        if failure := run.exception():
            return failure
    for run in runs[len(kept) :]:
        run.result()
    return None


def _offered(
    console: Console, source: SourceOptions, *, as_json: bool, **options: Any
) -> OfferedBuilds:
    from millstream.pipelines.index.nodes import shown
    from millstream.pipelines.index.offered import OfferedBuilds
    from millstream.pipelines.index.on_spark import CycleReport

    def tell(address: IndexAddress, cycle: Cycle, seconds: float) -> None:
        state = cycle.state
        report = CycleReport(
            address.design, state.commit, seconds, cycle.changes, cycle.parts,
            len(state.left_out), state.rows, cycle.is_first, {}, shown(address),
        )  # fmt: skip
        _show(console, report, as_json=as_json)

    def note(address: IndexAddress, error: MillstreamError) -> None:
        console.print(
            f"{address.design}: its build is left to the node {shown(address)}: {error}",
            highlight=False,
        )

    return OfferedBuilds(source, tell, note, **options)


def _tell(
    console: Console, progress: ProgressWriter, report: CycleReport, *, as_json: bool
) -> None:
    figures = {"index_rows": sum(report.rows), "commit": report.commit}
    progress.batch(report.commit, report.changes, report.seconds, lag=report.lag, figures=figures)
    _show(console, report, as_json=as_json)


def _show(console: Console, report: CycleReport, *, as_json: bool) -> None:
    if as_json:
        print_json(report)  # one write: two design documents may report at the same moment
        return
    kind = "first build" if report.is_first else f"commit {report.commit}"
    left = f", [yellow]{report.left_out} partitions left out[/]" if report.left_out else ""
    console.print(
        f"{report.ddoc} {kind}: {report.changes:,} changes, {sum(report.rows):,} rows in the "
        f"index{left}, {report.seconds:.1f} s",
        highlight=False,
    )
