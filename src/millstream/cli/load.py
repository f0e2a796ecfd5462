"""`millstream load BUCKET FILE...`: JSON lines, CSV or Parquet into a bucket, resumable.

Invariants:
1. The place of a row is kept once its write and all before it are persisted, so a load that goes
   on after any crash misses no row. Rows of the last second may be written twice.
2. The places are removed when all files are loaded.

Elsewhere: files (`cli.load_rows`), places (`cli.load_state`), writing (`client.kv`).

Source: docs/reference/load.md.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from millstream.cli.connect import (
    CONNECT_DEFAULT,
    BucketArgument,
    ConnectOption,
    JsonOption,
    PasswordFileOption,
    TlsCaOption,
    UserOption,
    client_of,
)
from millstream.cli.load_rows import Row, RowError, RowReader, format_of, open_rows
from millstream.cli.load_state import LoadState
from millstream.cli.progress import progress_of
from millstream.client.kv import Client
from millstream.errors import MillstreamError, UsageError
from millstream.model.limits import KEY_BYTES_MAX

__all__ = ["command"]

BATCH_ROWS: Final = 5000
BATCH_BYTES: Final = 8 * 1024 * 1024
"""Text read for one batch, in bytes; Parquet files are bounded by rows."""
SAVE_EVERY_S: Final = 1.0
PERSIST_TIMEOUT_S: Final = 60.0

_STDIN: Final = Path("-")
FilesArgument = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help=".jsonl, .csv, .tsv or .parquet; - for standard input"),
]
KeyOption = Annotated[
    str, typer.Option("--key", metavar="FIELD", help="The member or column that is the key.")
]
StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="Where to keep the places reached; beside each file by default.",
    ),
]
TextOption = Annotated[
    bool, typer.Option("--text", help="CSV: keep every cell as text, numbers too.")
]


class _Total(NamedTuple):
    rows: int
    seconds: float


def command(
    bucket: BucketArgument,
    files: FilesArgument,
    key: KeyOption = "id",
    state: StateOption = None,
    text: TextOption = False,
    address: ConnectOption = CONNECT_DEFAULT,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    tls_ca: TlsCaOption = None,
    json: JsonOption = False,
) -> None:
    """Load documents from files; the same command goes on after an interruption.

    - is standard input, as JSON lines; it is kept in a temporary file first.
    """
    if _STDIN in files:
        if len(files) > 1 or state is not None:
            raise UsageError("- is loaded alone, and without --state", code="bad_arguments")
        with TemporaryDirectory(prefix="millstream-load-") as folder:
            copy = Path(folder, "stdin.jsonl")
            with copy.open("wb") as target:
                shutil.copyfileobj(sys.stdin.buffer, target)
            command(bucket, [copy], key, None, text, address, user, password_file, tls_ca, json)
        return
    for file in files:
        format_of(file)
    if state is not None and not state.is_dir():
        raise UsageError(f"--state {state}: no such directory", code="bad_state_dir")
    started_at = time.monotonic()
    with client_of(
        bucket, address=address, user=user, password_file=password_file, tls_ca=tls_ca
    ) as client:
        states = [LoadState(file, bucket, client.cluster_map.bucket_uuid, state) for file in files]
        try:
            row_count = _load_all(client, files, states, key=key, keeps_text=text, is_quiet=json)
        except KeyboardInterrupt:
            print("stopped; the same command goes on where this one was", file=sys.stderr)
            raise typer.Exit(1) from None
    for done in states:
        done.remove()
    _report(bucket, len(files), _Total(row_count, time.monotonic() - started_at), json=json)


def _load_all(
    client: Client,
    files: list[Path],
    states: list[LoadState],
    *,
    key: str,
    keeps_text: bool,
    is_quiet: bool,
) -> int:
    row_count = 0
    with _progress(is_quiet) as progress:
        for file, state in zip(files, states, strict=True):
            reader = open_rows(file, state.place, keeps_text=keeps_text)
            bar = progress.add_task(file.name, total=max(reader.size, 1), completed=reader.done)
            try:
                if not state.is_done:
                    for count in _load_one(client, file, reader, state, key):
                        row_count += count
                        progress.update(bar, completed=reader.done)
                progress.update(bar, completed=max(reader.size, 1))
            finally:
                reader.close()
    return row_count


def _progress(is_quiet: bool) -> Progress:
    return progress_of(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        is_quiet=is_quiet,
    )


def _load_one(
    client: Client, file: Path, reader: RowReader, state: LoadState, key: str
) -> Iterator[int]:
    """Write batch by batch; yield their row counts."""
    items = _items(file, reader, key)
    saved_at = time.monotonic()
    while True:
        batch, error = _next_batch(items, reader)
        result = client.apply_many(batch)
        if result.failures:
            raise _refused(file, result.failures[0].item[2], result.failures[0].error)
        if error is not None:
            raise error
        if not batch:
            break
        yield len(batch)
        if time.monotonic() - saved_at >= SAVE_EVERY_S:
            _keep(client, state, reader)
            saved_at = time.monotonic()
    _keep(client, state, reader, is_done=True)


def _keep(client: Client, state: LoadState, reader: RowReader, *, is_done: bool = False) -> None:
    """Keep the place of the row written last, once everything up to it is on disk."""
    client.wait_persisted(PERSIST_TIMEOUT_S)
    state.save(reader.place, is_done=is_done)


def _next_batch(
    items: Iterator[tuple[str, Any, int]], reader: RowReader
) -> tuple[list[tuple[str, Any, int]], RowError | None]:
    """Return the next rows, and the error that cut them short."""
    batch: list[tuple[str, Any, int]] = []
    done_max = reader.done + BATCH_BYTES
    try:
        for item in items:
            batch.append(item)
            if len(batch) >= BATCH_ROWS or reader.done >= done_max:
                break
    except RowError as error:
        return batch, error
    return batch, None


def _items(file: Path, reader: RowReader, key: str) -> Iterator[tuple[str, Any, int]]:
    """Yield (key, value, line) of every row."""
    for row in reader.rows():
        yield _key_of(file, row, key), row.value, row.line


def _key_of(file: Path, row: Row, field: str) -> str:
    found = row.fields.get(field)
    if isinstance(found, int) and not isinstance(found, bool):
        found = str(found)
    if not isinstance(found, str) or not 0 < len(found.encode()) <= KEY_BYTES_MAX:
        what = "is missing" if field not in row.fields else f"is {found!r}"
        raise RowError(
            f"{file}, line {row.line}: the key {field!r} {what}; it has to be a text of 1 to "
            f"{KEY_BYTES_MAX} bytes or a whole number. --key names another field"
        )
    return found


def _refused(file: Path, line: int, error: MillstreamError) -> MillstreamError:
    return RowError(f"{file}, line {line}: {error}", code=error.code)


def _report(bucket: str, file_count: int, total: _Total, *, json: bool) -> None:
    if json:
        members = {
            "bucket": bucket,
            "files": file_count,
            "rows": total.rows,
            "seconds": round(total.seconds, 3),
        }
        print(msgspec.json.encode(members).decode())
        return
    rate = total.rows / total.seconds if total.seconds else 0
    print(
        f"{total.rows} rows of {file_count} files are in bucket {bucket!r} "
        f"({total.seconds:.1f} s, {rate:,.0f} rows/s)",
        file=sys.stderr,
    )
