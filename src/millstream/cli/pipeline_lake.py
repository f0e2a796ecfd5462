"""`millstream pipeline run lake`: a table of Parquet files that is always the bucket's state.

Invariants:
1. SIGTERM and Ctrl-C end the run at the edge of a batch, with exit code 0.

Elsewhere: table and log (`pipelines.lake.following`), the other pipelines (`cli.pipeline`).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from millstream.cli.connect import (
    CONNECT_DEFAULT,
    BucketArgument,
    ConnectOption,
    PasswordFileOption,
    TlsCaOption,
    UserOption,
)
from millstream.cli.pipeline_backup import MasterOption, MemoryOption, check_node, source_options
from millstream.errors import MillstreamError
from millstream.pipelines.runs import ProgressWriter, RunRecord, lock_run

__all__ = ["add_to"]

TableOption = Annotated[
    Path, typer.Option("--to", metavar="DIR", help="Directory of table, log and checkpoint.")
]
OnceOption = Annotated[
    bool,
    typer.Option("--once/--follow", help="Stop at the present end of the stream, or follow it."),
]
RowsOption = Annotated[
    int | None,
    typer.Option("--rows-per-batch", min=1, help="Changes wanted in one batch."),
]


def add_to(run_app: typer.Typer) -> None:
    """Add the command to those of `millstream pipeline run`."""
    run_app.command("lake")(run_lake)


def run_lake(
    bucket: BucketArgument,
    to: TableOption,
    once: OnceOption = False,
    rows_per_batch: RowsOption = None,
    master: MasterOption = None,
    driver_memory: MemoryOption = "1g",
    address: ConnectOption = CONNECT_DEFAULT,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    tls_ca: TlsCaOption = None,
) -> None:
    """Keep a Parquet table equal to a bucket, and a log of its changes beside it."""
    check_node(source_options(bucket, address, user, password_file, tls_ca))
    from millstream.pipelines.lake.table_query import ROWS_PER_BATCH, TableQuery
    from millstream.pipelines.session import local_session

    files = {"passwordFile": password_file, "tlsCa": tls_ca}
    source = {"hosts": address, "bucket": bucket} | ({"user": user} if user else {})
    source |= {name: str(path.absolute()) for name, path in files.items() if path}
    console = Console(stderr=True)
    record = RunRecord(
        name=f"lake-{bucket}", kind="lake", bucket=bucket, address=address,
        checkpoint=str(to.absolute() / "checkpoint"), pid=os.getpid(),
        started=time.time_ns() // 10**9,
    )  # fmt: skip
    with lock_run(record):
        progress = ProgressWriter(record.name)

        def told(report: Mapping[str, Any] | None) -> None:
            progress.query(report)

        query = TableQuery(
            source, to.absolute(), rows_per_batch=rows_per_batch or ROWS_PER_BATCH,
            on_progress=told,
        )  # fmt: skip

        def stop(*_: object) -> None:
            query.is_stopping = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        settings = {"spark.master": master} if master else {}
        with console.status("starting Spark"):
            spark = local_session(
                "millstream lake", driver_memory=driver_memory, settings=settings
            )
        try:
            console.print(f"keeping {to}/table equal to {bucket}", highlight=False)
            query.run(spark, once=once)
        except MillstreamError as error:
            progress.failed(error)
            raise
        finally:
            spark.stop()
