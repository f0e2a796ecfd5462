r"""Rows on their way into PostgreSQL: connections, and tasks that copy rows to a staging table.

    reports = rows.mapInArrow(stage.run, REPORT)        # on the executors
    reported = reported_from(reports.toArrow())         # on the driver: numbers, and mark rows

A piece is what one task copied at once, in a transaction of its own. What counts of a staging
table is the pieces that tasks reported: rows of attempts that failed are of other pieces.

Invariants:
1. A task holds one Arrow batch at a time. The driver gets a row for each piece and partition, and
   mark rows.
2. A piece whose end nobody saw is copied again under another number.
3. PostgreSQL's text has no NUL: a key with one is stored as `\x` + hex, as keys are that are no
   text.

Elsewhere: statements (`sinks.sql_text`), how staged rows are applied (`sinks.sql_target`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple

import pyarrow as pa

from millstream.errors import UnavailableError, UsageError
from millstream.model.partitions import key_from_text, text_of_key
from millstream.pipelines.change_stream.patience import again
from millstream.pipelines.sinks.change_rows import rows_from
from millstream.pipelines.sinks.repairing import (
    OP_DELETE,
    OP_PUT,
    OP_ROLLBACK,
    OP_SWEEP,
    Row,
    StagedChanges,
)
from millstream.pipelines.sinks.sql_text import Statements

__all__ = ["REPORT", "Reported", "Stage", "connected", "copy_rows", "reported_from", "sql_key"]

REPORT: Final = (
    "op string, partition int, branch bigint, seqno bigint, load bigint, piece bigint, "
    "row_count bigint"
)
"""Columns of what tasks report: mark rows, and how many puts and deletions a piece has."""
_REPORT_SCHEMA: Final = pa.schema(
    [("op", pa.string()), ("partition", pa.int32())]
    + [(name, pa.int64()) for name in ("branch", "seqno", "load", "piece", "row_count")]
)
_COPIED: Final = ["int8", "text", "int4", "int8", "int8", "text", "int8", "int8", "int8", "int8",
                  "int4", "bytea", "int8", "bytea"]  # fmt: skip
"""Types of the columns of a staging table; `ts` travels as the number that it is."""
_EPOCH_US: Final = 946_684_800_000_000
"""Midnight of 2000-01-01, from which PostgreSQL counts."""
_PIECE_BITS: Final = 62
_CONNECTION: Final = {
    "connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10,
    "keepalives_count": 3, "tcp_user_timeout": 60_000, "application_name": "millstream",
}  # fmt: skip
"""So that a server that is gone is noticed within a minute; the address may say otherwise."""


class Reported(NamedTuple):
    """What the tasks of a batch report."""

    marks: Sequence[Row]
    changes: Mapping[int, StagedChanges]
    """By partition."""
    pieces: Sequence[int]
    row_count: int


class Stage:
    """The work of a task: copy rows to a staging table. It travels to the executors.

    Args:
        address: of the database, as libpq takes it.
        table: of staged rows.
        reconnect_s: how long a database that is away is waited for, in seconds.
    """

    def __init__(self, address: str, table: str, reconnect_s: float) -> None:
        self._address = address
        self._table = table
        self._reconnect_s = reconnect_s
        self._connection: Any = None

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy the rows of a task; yield a report of each piece.

        Raises:
            UnavailableError: `table_unreachable`, for longer than `reconnect_s`.
            UsageError: `missing_package`.
        """
        try:
            for batch in batches:
                rows = list(rows_from(batch))
                marks = [row for row in rows if row.op in (OP_ROLLBACK, OP_SWEEP)]
                changes = [row for row in rows if row.op not in (OP_ROLLBACK, OP_SWEEP)]
                piece = again(partial(self._copy, changes), self._reconnect_s) if changes else 0
                yield _report(marks, changes, piece)
        finally:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _copy(self, rows: Sequence[Row]) -> int:
        """Copy rows; return the number of the piece."""
        if self._connection is None or self._connection.closed:
            self._connection = connected(self._address)
        piece = secrets.randbits(_PIECE_BITS)
        with unreachable_told(self._table):
            copy_rows(self._connection, self._table, piece, rows)
            self._connection.commit()
        return piece


def connected(address: str) -> Any:
    """Return a connection of `psycopg`.

    Raises:
        UsageError: `missing_package`; `bad_option`: what is given is no address.
        UnavailableError: `table_unreachable`.
    """
    try:
        psycopg = import_module("psycopg")
    except ImportError as error:
        raise UsageError(
            "a table of PostgreSQL needs the package psycopg: pip install 'millstream[postgres]'",
            code="missing_package",
        ) from error
    try:
        given = psycopg.conninfo.conninfo_to_dict(address)
    except psycopg.ProgrammingError as error:
        raise UsageError(
            "the address of the database is not understood: write it as libpq has it, such as "
            "postgresql://user@host:5432/database",
            code="bad_option",
        ) from error
    with unreachable_told("the database"):
        return psycopg.connect(**(_CONNECTION | given))


@contextmanager
def unreachable_told(what: str) -> Iterator[None]:
    """Tell a database that does not answer as `UnavailableError`, `table_unreachable`."""
    psycopg = import_module("psycopg")
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise UnavailableError(
            f"{what}: another query is writing this table; let one query write it",
            code="target_changed",
        ) from error
    except psycopg.errors.UndefinedTable as error:
        raise staging_lost(what) from error
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise UnavailableError(
            f"{what} cannot be read or written: {error}", code="table_unreachable"
        ) from error


def staging_lost(what: str) -> UnavailableError:
    """Return the error of a batch whose staged rows are not all there: it is staged again."""
    return UnavailableError(
        f"{what}: staged rows are gone; was the database restarted, or has another query begun "
        "to write this table? The batch is staged again",
        code="staging_lost",
    )


def copy_rows(connection: Any, table: str, piece: int, rows: Sequence[Row]) -> None:
    """Copy rows to a staging table, in the transaction of the connection."""
    with connection.cursor() as cursor, cursor.copy(Statements.copy(table)) as copy:
        copy.set_types(_COPIED)
        for row in rows:
            *before, ts, meta = row._replace(key=sql_key(row.key))
            copy.write_row((piece, *before, ts - _EPOCH_US, meta))


def sql_key(key: str) -> str:
    """Return a key as the table has it (invariant 3)."""
    return "\\x" + key_from_text(key).hex() if "\0" in key else key


def key_of_sql(stored: str) -> str:
    """Return the key that the table has as `stored`."""
    return text_of_key(key_from_text(stored)) if stored.startswith("\\x") else stored


def _report(marks: Sequence[Row], changes: Sequence[Row], piece: int) -> pa.RecordBatch:
    counts: dict[tuple[str, int], tuple[int, int]] = {}
    for row in changes:
        kind = (OP_DELETE if row.is_deleted else OP_PUT), row.partition
        branch, count = counts.get(kind, (0, 0))
        counts[kind] = max(branch, row.branch), count + 1
    lines = [(row.op, row.partition, row.branch, row.seqno, row.rev, 0, 0) for row in marks]
    lines += [(op, p, branch, 0, 0, piece, n) for (op, p), (branch, n) in counts.items()]
    columns = zip(*lines, strict=True) if lines else ([] for _ in _REPORT_SCHEMA)
    arrays = [
        pa.array(list(column), field.type)
        for column, field in zip(columns, _REPORT_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_REPORT_SCHEMA)


def reported_from(table: pa.Table) -> Reported:
    """Return what tasks reported."""
    marks: list[Row] = []
    changes: dict[int, StagedChanges] = {}
    pieces: set[int] = set()
    total = 0
    for line in table.to_pylist():
        op, p, branch, count = line["op"], line["partition"], line["branch"], line["row_count"]
        if op in (OP_ROLLBACK, OP_SWEEP):
            marks.append(Row(op, p, branch, line["seqno"], rev=line["load"]))
            continue
        had = changes.get(p, StagedChanges())
        is_put = op == OP_PUT
        changes[p] = StagedChanges(
            max(had.branch, branch),
            had.puts + count * is_put,
            had.deletions + count * (not is_put),
        )
        pieces.add(line["piece"])
        total += count
    return Reported(marks, changes, sorted(pieces), total)
