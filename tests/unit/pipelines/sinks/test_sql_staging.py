"""What tasks copy and report; without a database (with one: `test_sql_target`)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from millstream.errors import UnavailableError
from millstream.pipelines.sinks import sql_staging
from millstream.pipelines.sinks.change_rows import table_of
from millstream.pipelines.sinks.repairing import OP_ROLLBACK, OP_SWEEP, Row, StagedChanges
from millstream.pipelines.sinks.sql_staging import Stage, key_of_sql, reported_from, sql_key

pytest.importorskip("psycopg", reason="the extra postgres is not installed")

ROLLBACK = Row(OP_ROLLBACK, 1, 3, 7, rev=2)
SWEEP = Row(OP_SWEEP, 0, 1, 0, rev=1)
ROWS = [
    Row("put", 0, 1, 1, "a", value=b"1"), Row("expire", 0, 2, 2, "b"), ROLLBACK,
    Row("put", 1, 3, 8, "c", value=b"1"), SWEEP,
]  # fmt: skip


class Connections:
    """Databases that lose the first connections at their first copy."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.pieces: dict[int, list[Row]] = {}
        self.open = 0
        self.closed = False

    def connect(self, _: str) -> Connections:
        self.open += 1
        self.closed = False
        return self

    def copy(self, _: Any, table: str, piece: int, rows: list[Row]) -> None:
        self.pieces[piece] = rows
        if self.failures:
            self.failures -= 1
            self.close()
            raise UnavailableError("told to", code="table_unreachable")

    def commit(self) -> None:
        pass

    def close(self) -> None:
        self.open -= not self.closed
        self.closed = True


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Connections:
    made = Connections(0)
    monkeypatch.setattr(sql_staging, "connected", made.connect)
    monkeypatch.setattr(sql_staging, "copy_rows", made.copy)
    return made


def run(reconnect_s: float) -> sql_staging.Reported:
    batches = iter(table_of(ROWS).to_batches(max_chunksize=3))
    return reported_from(pa.Table.from_batches(Stage("", "t", reconnect_s).run(batches)))


def test_marks_and_numbers_are_reported(connections: Connections) -> None:
    reported = run(0.0)
    assert reported.marks == [ROLLBACK, SWEEP]
    assert reported.changes == {0: StagedChanges(2, 1, 1), 1: StagedChanges(3, 1, 0)}
    assert reported.row_count == 3
    assert set(reported.pieces) == connections.pieces.keys()
    assert connections.open == 0


def test_a_copy_whose_end_is_unknown_is_another_piece(connections: Connections) -> None:
    connections.failures = 1
    reported = run(60.0)
    assert reported.row_count == 3
    assert len(connections.pieces) == 3
    assert len(reported.pieces) == 2
    connections.failures = 1
    with pytest.raises(UnavailableError, match="told to"):
        run(0.0)
    assert connections.open == 0


@pytest.mark.parametrize("key", ["a", "a\0b", "\0", "\\xff00", "é", "_x\\x"])
def test_every_key_comes_back(key: str) -> None:
    assert "\0" not in sql_key(key)
    assert key_of_sql(sql_key(key)) == key
