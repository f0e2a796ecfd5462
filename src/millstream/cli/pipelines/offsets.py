"""`millstream pipeline offsets`: positions of streaming queries: look, make, compare, set.

    millstream pipeline offsets show CHECKPOINT
    millstream pipeline offsets make BUCKET --at latest > here.json
    millstream pipeline offsets diff CHECKPOINT here.json
    millstream pipeline offsets reset CHECKPOINT --to here.json
    millstream pipeline offsets index NAME

Invariants:
1. Only `reset` changes anything; it refuses while the pipeline runs.
2. stdout carries an offset as one line of JSON, or a table; with `--json` always JSON.

Elsewhere: checkpoints (`pipelines.checkpoints`), what an offset is (docs/guides/spark.md).
"""

from __future__ import annotations

import json as json_text
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from millstream.cli.connect import (
    BucketArgument,
    JsonOption,
    LoginOptions,
    NodeOptions,
    at_node,
)
from millstream.cli.pipelines.run import source_options
from millstream.errors import ConditionError, UsageError
from millstream.pipelines.runs import list_runs, lock_run, read_run

if TYPE_CHECKING:
    from millstream.pipelines.change_stream.offsets import Offset
    from millstream.pipelines.change_stream.options import Edge

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True, help="Look at positions of streaming queries, make and set them."
)

WHERE = "A checkpoint directory, the name of a pipeline, a file with an offset, or - for stdin."
WhereArgument = Annotated[str, typer.Argument(metavar="WHERE", help=WHERE)]
AtOption = Annotated[
    str, typer.Option("--at", metavar="earliest|latest|WHERE", help=f"Which offset. {WHERE}")
]
ToOption = Annotated[str, typer.Option("--to", metavar="WHERE", help=f"Which offset. {WHERE}")]


@app.command()
def show(where: WhereArgument, json: JsonOption = False) -> None:
    """Show an offset; of a checkpoint, the end of its last batch that has ended."""
    offset = _offset_at(where)
    if json:
        _print(offset)
        return
    console = Console()
    console.print(f"bucket {offset.bucket} ({offset.bucket_uuid})", highlight=False)
    table = Table("partition", "branch", "seqno", "snapshot", "load", "lease")
    for partition_id, entry in sorted(offset.entries.items()):
        snapshot = "complete" if entry.is_closed else f"{entry.snap_start}-{entry.snap_end}"
        table.add_row(
            str(partition_id), str(entry.branch), f"{entry.seqno:,}", snapshot, str(entry.load),
            "" if entry.lease_id is None else str(entry.lease_id),
        )  # fmt: skip
    console.print(table)


@app.command()
@at_node
def make(
    bucket: BucketArgument,
    which: AtOption = "latest",
    *,
    at: NodeOptions,
) -> None:
    """Print an offset of a bucket, for startingOffsets, endingOffsets or `reset`."""
    from dataclasses import replace

    from millstream.pipelines.change_stream.query import Query

    options = source_options(bucket, at)
    edge: Edge = "earliest" if which == "earliest" else "latest"
    if which not in ("earliest", "latest"):
        edge = _offset_at(which)
    query = Query(replace(options, starting_offsets=edge))
    try:
        sys.stdout.write(json_text.dumps(query.initial_offset()) + "\n")
    finally:
        query.stop()


@app.command()
def diff(older: WhereArgument, newer: WhereArgument, json: JsonOption = False) -> None:
    """Show, for each partition, how many seqnos lie between two offsets."""
    before, after = _offset_at(older), _offset_at(newer)
    if (before.bucket, before.bucket_uuid) != (after.bucket, after.bucket_uuid):
        raise UsageError(
            f"one is an offset of bucket {before.bucket!r} ({before.bucket_uuid}), the other of "
            f"{after.bucket!r} ({after.bucket_uuid})",
            code="other_bucket",
        )
    rows = []
    for partition_id in sorted({*before.entries, *after.entries}):
        first, second = before.entry(partition_id), after.entry(partition_id)
        rows.append(
            {
                "partition": partition_id, "from": first.seqno, "to": second.seqno,
                "seqnos": second.seqno - first.seqno,
                "is_other_branch": 0 != first.branch != second.branch != 0,
                "is_other_load": first.load != second.load,
            }
        )  # fmt: skip
    if json:
        sys.stdout.write(json_text.dumps(rows) + "\n")
        return
    table = Table("partition", "from", "to", "seqnos", "")
    for row in rows:
        notes = [word for word in ("branch", "load") if row[f"is_other_{word}"]]
        numbers = [f"{row[name]:,}" for name in ("partition", "from", "to", "seqnos")]
        table.add_row(*numbers, f"another {' and '.join(notes)}" if notes else "")
    Console().print(table)


@app.command()
def reset(
    where: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="Its directory, or the pipeline's name.")
    ],
    to: ToOption,
) -> None:
    """Set the offset from which a checkpoint continues. Its query must not run."""
    from millstream.pipelines.checkpoints import read_checkpoint, reset_checkpoint

    path = _checkpoint_at(where)
    if path is None:
        raise UsageError(f"{where} is not a checkpoint, and not a pipeline", code="no_checkpoint")
    wanted = _offset_at(to)
    directory = read_checkpoint(path).directory
    with ExitStack() as stack:
        for run in list_runs():
            if _is_within(directory, Path(run.checkpoint)):
                if run.is_running:
                    raise ConditionError(
                        f"pipeline {run.name} runs with this checkpoint: millstream pipeline stop "
                        f"{run.name}",
                        code="already_running",
                    )
                stack.enter_context(lock_run(run))
        number = reset_checkpoint(path, wanted)
    sys.stderr.write(f"the next batch is {number + 1} and begins at this offset\n")


@app.command()
@at_node
def index(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `pipeline list` shows it.")],
    *,
    at: LoginOptions,
    json: JsonOption = False,
) -> None:
    """Show the position of each partition that a views pipeline's index has reached."""
    from millstream.pipelines.index.setup import index_state_of

    record = read_run(name)
    source = source_options(record.bucket, NodeOptions(record.address, *at))
    positions = index_state_of(source, record.ddoc).positions
    if json:
        sys.stdout.write(json_text.dumps(positions) + "\n")
        return
    table = Table("partition", "uuid", "seqno", "snap start", "snap end")
    for partition_id in sorted(positions):
        table.add_row(str(partition_id), *(str(each) for each in positions[partition_id][:4]))
    Console().print(table)


def _checkpoint_at(where: str) -> Path | None:
    """Return the checkpoint of a path; None if it is not one."""
    path = Path(where)
    if path.is_dir():
        return path.absolute()
    known = [run.name for run in list_runs()]
    return Path(read_run(where).checkpoint) if where in known else None


def _offset_at(where: str) -> Offset:
    from millstream.pipelines.change_stream.offsets import offset_from_json
    from millstream.pipelines.checkpoints import read_checkpoint

    path = _checkpoint_at(where)
    if path is not None:
        checkpoint = read_checkpoint(path)
        if checkpoint.offset is None:
            raise UsageError(f"{where}: no batch has ended yet", code="no_checkpoint")
        return checkpoint.offset
    try:
        text = sys.stdin.read() if where == "-" else Path(where).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{where} is not a checkpoint, a pipeline or a file with an offset: {error}",
            code="bad_file",
        ) from error
    try:
        return offset_from_json(json_text.loads(text))
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}", code="bad_file") from error


def _is_within(directory: Path, other: Path) -> bool:
    return directory == other or other in directory.parents


def _print(offset: Offset) -> None:
    from millstream.pipelines.change_stream.offsets import offset_to_json

    sys.stdout.write(json_text.dumps(offset_to_json(offset)) + "\n")
