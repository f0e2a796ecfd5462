"""`millstream pipeline run lake`: a table, Parquet or Delta, that is always the bucket's state.

Invariants:
1. SIGTERM and Ctrl-C end the run at the edge of a batch, with exit code 0.

Elsewhere: table and log (`pipelines.lake.following`), the other pipelines
(`cli.pipelines.pipeline`).
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from millstream.cli.connect import (
    BucketArgument,
    NodeOptions,
    at_node,
)
from millstream.cli.pipelines.run import (
    MEMORY_DEFAULT,
    MasterOption,
    MemoryOption,
    OnceOption,
    check_node,
    file_options,
    recorded,
    source_options,
    spark_session,
)

__all__ = ["add_to"]


class TableFormat(StrEnum):
    """Forms that a table may have."""

    parquet = "parquet"
    delta = "delta"


TableOption = Annotated[
    Path, typer.Option("--to", metavar="DIR", help="Directory of table, log and checkpoint.")
]
FormatOption = Annotated[
    TableFormat,
    typer.Option("--format", help="Of the table; delta needs the package deltalake."),
]
RowsOption = Annotated[
    int | None,
    typer.Option("--rows-per-batch", min=1, help="Changes wanted in one batch."),
]


def add_to(run_app: typer.Typer) -> None:
    """Add the command to those of `millstream pipeline run`."""
    run_app.command("lake")(run_lake)


@at_node
def run_lake(
    bucket: BucketArgument,
    to: TableOption,
    once: OnceOption = False,
    form: FormatOption = TableFormat.parquet,
    rows_per_batch: RowsOption = None,
    master: MasterOption = None,
    driver_memory: MemoryOption = MEMORY_DEFAULT,
    *,
    at: NodeOptions,
) -> None:
    """Keep a Parquet or Delta table equal to a bucket, and a log of its changes beside it."""
    if form is TableFormat.delta:
        from millstream.pipelines.sinks.delta_target import delta_package

        delta_package()  # says what to install, before Spark is started
    check_node(source_options(bucket, at))
    from millstream.pipelines.lake.table_query import ROWS_PER_BATCH, TableQuery

    to = to.absolute()
    source = {"hosts": at.address, "bucket": bucket} | ({"user": at.user} if at.user else {})
    source |= file_options(at)
    with recorded("lake", bucket, checkpoint=to / "checkpoint", subject=str(to), at=at) as run:
        query = TableQuery(
            source, to, rows_per_batch=rows_per_batch or ROWS_PER_BATCH,
            form=form.value, on_progress=run.progress.query,
        )  # fmt: skip
        with spark_session(run, query.stop, master=master, memory=driver_memory) as spark:
            Console(stderr=True).print(f"keeping {to}/table equal to {bucket}", highlight=False)
            query.run(spark, once=once)
