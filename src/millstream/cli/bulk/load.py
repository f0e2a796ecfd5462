"""`millstream load BUCKET FILE...`: JSON, CSV, Parquet and changes into a bucket, resumable.

Invariants:
1. The place of a row is kept once its write and all before it are persisted, so a load that goes
   on after any crash misses no row. Rows of the last second may be written twice.
2. The places are removed when all files are loaded.
3. What is there as it is to be written is not written again.
4. Of several rows with one key the last one counts.

Elsewhere: files (`cli.bulk.load_rows`), what a row writes (`cli.bulk.load_changes`), places
(`cli.bulk.load_state`), writing (`client.kv`).

Source: docs/reference/load.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
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

from millstream.cli.bulk.load_changes import is_mark, is_unchanged, write_of_row
from millstream.cli.bulk.load_rows import RowError, RowReader, format_of, open_rows
from millstream.cli.bulk.load_state import LoadState, NoState
from millstream.cli.bulk.load_stream import STDIN, StreamReader
from millstream.cli.connect import (
    BucketArgument,
    JsonOption,
    NodeOptions,
    at_node,
    client_of,
)
from millstream.cli.designs import database_of
from millstream.cli.progress import progress_of
from millstream.client.databases import DESIGN, Database
from millstream.client.documents import Stored
from millstream.client.kv import Client
from millstream.client.writes import Write
from millstream.errors import AccessError, MillstreamError, UsageError

__all__ = ["command"]

BATCH_ROWS: Final = 5000
BATCH_BYTES: Final = 8 * 1024 * 1024
"""Text read for one batch, in bytes; Parquet files are bounded by rows."""
SAVE_EVERY_S: Final = 1.0
PERSIST_TIMEOUT_S: Final = 60.0

_GOES_ON: Final = "the same command goes on where this one was"
_ANY_KEY: Final = b"millstream"
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


class _Count(NamedTuple):
    """Rows, and how many of their keys were unchanged or deleted."""

    rows: int = 0
    unchanged: int = 0
    deleted: int = 0

    def plus(self, other: _Count) -> _Count:
        """Return both together."""
        return _Count(*map(sum, zip(self, other, strict=True)))


class _Item(NamedTuple):
    """The operation of a row, and its place in the input."""

    write: Write
    line: int


class _Target(NamedTuple):
    """Where rows go; `database` finds who has a design document.

    `is_new`: nothing was ever written there before, so that there is nothing to compare with.
    `may_read`: the user may; who may not writes everything.
    """

    client: Client
    database: Callable[[str], Database]
    may_read: bool
    is_new: bool = False


@at_node
def command(
    bucket: BucketArgument,
    files: FilesArgument,
    key: KeyOption = "id",
    state: StateOption = None,
    text: TextOption = False,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Load documents from files; the same command goes on after an interruption.

    - is standard input, as JSON lines or an array, loaded as it comes. What is there unchanged is
    not written again.
    """
    if STDIN in files and (len(files) > 1 or state is not None):
        raise UsageError("- is loaded alone, and without --state", code="bad_arguments")
    for file in files:
        if file != STDIN:
            format_of(file)
    if state is not None and not state.is_dir():
        raise UsageError(f"--state {state}: no such directory", code="bad_state_dir")

    def database(key: str) -> Database:
        return database_of(bucket, key, **at.options)

    started_at = time.monotonic()
    with client_of(bucket, **at.options) as client:
        uuid = client.cluster_map.bucket_uuid
        states = [
            NoState() if file == STDIN else LoadState(file, bucket, uuid, state) for file in files
        ]
        target = _Target(client, database, _may_read(client))
        try:
            count = _load_all(target, files, states, key=key, keeps_text=text, is_quiet=json)
        except KeyboardInterrupt:
            what = "what was read is loaded" if STDIN in files else _GOES_ON
            print(f"stopped; {what}", file=sys.stderr)
            raise typer.Exit(1) from None
    for done in states:
        done.remove()
    _report(bucket, len(files), count, time.monotonic() - started_at, json=json)


def _load_all(
    target: _Target,
    files: list[Path],
    states: Sequence[LoadState | NoState],
    *,
    key: str,
    keeps_text: bool,
    is_quiet: bool,
) -> _Count:
    total = _Count()
    with _progress(is_quiet) as progress:
        for file, state in zip(files, states, strict=True):
            reader: RowReader
            if file == STDIN:
                reader = StreamReader(sys.stdin.buffer)
            else:
                reader = open_rows(file, state.place, keeps_text=keeps_text)
            bar = progress.add_task(file.name, total=max(reader.size, 1), completed=reader.done)
            is_new = not any(place.high_seqno for place in target.client.positions())
            here = target._replace(is_new=is_new)
            try:
                if not state.is_done:
                    for count in _load_one(here, file, reader, state, key):
                        total = total.plus(count)
                        progress.update(bar, completed=reader.done)
                progress.update(bar, completed=max(reader.size, 1))
            finally:
                reader.close()
    return total


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
    target: _Target, file: Path, reader: RowReader, state: LoadState | NoState, key: str
) -> Iterator[_Count]:
    """Write batch by batch; yield their counts."""
    items = _items(file, reader, key)
    saved_at = time.monotonic()
    while True:
        batch, error = _next_batch(items, reader)
        count = _write(target, file, batch)
        if error is not None:
            raise error
        if not batch:
            break
        yield count
        if time.monotonic() - saved_at >= SAVE_EVERY_S:
            _keep(target.client, state, reader)
            saved_at = time.monotonic()
    _keep(target.client, state, reader, is_done=True)


def _write(target: _Target, file: Path, batch: list[_Item]) -> _Count:
    """Write what is not there as it is to be.

    Raises:
        RowError: the first row that was refused; others of the batch may be written.
    """
    last = {item.write.key: item for item in batch}
    compared = {
        key: item.write
        for key, item in last.items()
        if target.may_read and (not target.is_new or item.write.value is None)
    }
    same = _unchanged(target.client, compared)
    changed = [item.write for key, item in last.items() if key not in same]
    failures: dict[int, MillstreamError] = {}
    for write, result in _write_each(target, changed):
        if isinstance(result, MillstreamError):
            failures[last[write.key].line] = result
    if failures:
        line = min(failures)
        raise _refused(file, line, failures[line])
    deleted = sum(write.value is None for write in changed)
    return _Count(len(batch), len(same), deleted)


def _may_read(client: Client) -> bool:
    try:
        client.exists(_ANY_KEY)
    except AccessError:
        return False
    return True


def _unchanged(client: Client, wanted: Mapping[bytes, Write]) -> set[bytes]:
    """Return the keys of documents that are as they are to be written (invariant 3).

    Values are compared first: the node reads them faster than all that is known of a document.
    """
    equal, known = [], set()
    for key, found in client.each(wanted):
        known.add(key)
        if wanted[key].value == found.data:
            equal.append(key)
    there = client.get_versioned_many(equal)
    same = {key for key in equal if is_unchanged(wanted[key], there.get(key))}
    return same | {
        key for key, write in wanted.items() if write.value is None and key not in known
    }


def _write_each(
    target: _Target, writes: list[Write]
) -> Iterator[tuple[Write, Stored | MillstreamError | None]]:
    """Write and delete; yield what became of each."""
    plain = []
    for write in writes:
        if not write.key.startswith(DESIGN.encode()):
            plain.append(write)
            continue
        try:
            _put_design(target, write)
        except MillstreamError as error:
            yield write, error
        else:
            yield write, None
    yield from target.client.write_each(plain)


def _put_design(target: _Target, write: Write) -> None:
    key = write.key.decode()
    database = target.database(key)
    if write.value is None:
        database.delete(key)
        return
    try:
        content = msgspec.json.decode(write.value, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError("a design document is a JSON object", code="bad_design") from error
    database.put(key, content)


def _keep(
    client: Client, state: LoadState | NoState, reader: RowReader, *, is_done: bool = False
) -> None:
    """Keep the place of the row written last, once everything up to it is on disk."""
    client.wait_persisted(PERSIST_TIMEOUT_S)
    state.save(reader.place, is_done=is_done)


def _next_batch(
    items: Iterator[_Item | None], reader: RowReader
) -> tuple[list[_Item], MillstreamError | None]:
    """Return the next rows, and the error that cut them short."""
    batch: list[_Item] = []
    done_max = reader.done + BATCH_BYTES
    try:
        for item in items:
            if item is None:
                if batch:
                    break
                continue
            batch.append(item)
            if len(batch) >= BATCH_ROWS or reader.done >= done_max:
                break
    except RowError as error:
        return batch, error
    return batch, None


def _items(file: Path, reader: RowReader, key: str) -> Iterator[_Item | None]:
    """Yield what each row writes, None where no more is there yet; raises RowError."""
    for row in reader.rows():
        if row is None:
            yield None
            continue
        try:
            if is_mark(row.fields):
                continue
            write = write_of_row(row.fields, row.value, key, time.time_ns() // 10**9)
        except UsageError as error:
            raise _refused(file, row.line, error) from error
        yield _Item(write, row.line)


def _refused(file: Path, line: int, error: MillstreamError) -> RowError:
    where = "standard input" if file == STDIN else file
    return RowError(f"{where}, line {line}: {error}", code=error.code)


def _report(bucket: str, file_count: int, count: _Count, seconds: float, *, json: bool) -> None:
    if json:
        members = {
            "bucket": bucket,
            "files": file_count,
            **count._asdict(),
            "seconds": round(seconds, 3),
        }
        print(msgspec.json.encode(members).decode())
        return
    rate = count.rows / seconds if seconds else 0
    said = f"{count.rows} rows of {file_count} files are in bucket {bucket!r}"
    if count.unchanged:
        said += f", {count.unchanged} unchanged"
    if count.deleted:
        said += f", {count.deleted} deleted"
    print(f"{said} ({seconds:.1f} s, {rate:,.0f} rows/s)", file=sys.stderr)
