"""How the query ends, against a session that is none; a real one is in tests/pipelines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from millstream.errors import UnavailableError
from millstream.pipelines.lake import table_query
from millstream.pipelines.lake.table_query import TableQuery


class FalseQuery:
    """A streaming query that runs `batches` batches and ends; one that fails ends it."""

    def __init__(self, take: Callable[[Any, int], None], batches: int) -> None:
        self.take, self.left, self.done = take, batches, 0
        self.is_stopped = False
        self.lastProgress: dict[str, Any] | None = None
        self.status = {"isTriggerActive": False}

    def awaitTermination(self, timeout: float) -> bool:
        if not self.left:
            return True
        try:
            self.take("frame", self.done)
        except Exception as error:
            raise StreamingQueryException(str(error)) from error
        self.left, self.done = self.left - 1, self.done + 1
        self.lastProgress = {"batchId": self.done}
        return False

    def stop(self) -> None:
        self.is_stopped = True


class FalseSession:
    """What of a session the query uses: every step of the builders returns the same object."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.asked: dict[str, Any] = {}
        self.query: FalseQuery | None = None

    readStream = writeStream = property(lambda self: self)

    def format(self, name: str) -> FalseSession:
        self.asked["format"] = name
        return self

    def options(self, **options: str) -> FalseSession:
        self.asked |= options
        return self

    def load(self) -> FalseSession:
        return self

    def foreachBatch(self, take: Callable[[Any, int], None]) -> FalseSession:
        self.take = take
        return self

    def option(self, name: str, value: str) -> FalseSession:
        self.asked[name] = value
        return self

    def trigger(self, **how: bool) -> FalseSession:
        self.asked |= how
        return self

    def start(self) -> FalseQuery:
        self.query = FalseQuery(self.take, self.batches)
        return self.query


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    monkeypatch.setattr(table_query, "register", lambda *_: None)
    monkeypatch.setattr(
        table_query, "apply_changes", lambda _, batch_id, *__: found.append(batch_id)
    )
    return found


def test_it_runs_to_the_end(tmp_path: Path, applied: list[int]) -> None:
    spark, told = FalseSession(3), []
    query = TableQuery({"bucket": "b"}, tmp_path / "d", rows_per_batch=5, on_progress=told.append)
    query.run(spark, once=True)  # type: ignore[arg-type]
    assert applied == [0, 1, 2]
    assert told[-1] == {"batchId": 3}
    assert spark.query is not None
    assert spark.query.is_stopped
    assert spark.asked["availableNow"] is True
    assert (spark.asked["rollback"], spark.asked["maxRowsPerBatch"]) == ("rows", "5")
    assert spark.asked["checkpointLocation"] == str(tmp_path / "d" / "checkpoint")


def test_it_stops_when_the_batch_in_work_is_applied_and_applies_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a trigger is always active: the stream brings one batch after the other."""
    spark, applied, has_begun, may_end = FalseSession(0), [], Event(), Event()

    def apply(_: Any, batch_id: int, *__: Any) -> None:
        has_begun.set()
        assert may_end.wait(20)
        applied.append(batch_id)

    class BusyQuery(FalseQuery):
        def awaitTermination(self, timeout: float) -> bool:
            self.status["isTriggerActive"] = True
            assert has_begun.wait(20)
            query.is_stopping = True
            Timer(0.05, may_end.set).start()
            return False

    def start() -> FalseQuery:
        spark.query = BusyQuery(spark.take, 0)
        threads.append(Thread(target=spark.take, args=("frame", 0)))
        threads[0].start()
        return spark.query

    threads: list[Thread] = []
    monkeypatch.setattr(spark, "start", start)
    monkeypatch.setattr(table_query, "register", lambda *_: None)
    monkeypatch.setattr(table_query, "apply_changes", apply)
    query = TableQuery({}, tmp_path, on_progress=lambda _: None)
    query.run(spark)  # type: ignore[arg-type]
    assert applied == [0]
    with pytest.raises(UnavailableError, match="being stopped"):
        spark.take("frame", 1)
    threads[0].join()
    assert "availableNow" not in spark.asked


def test_a_batch_that_takes_too_long_is_cut_off(
    tmp_path: Path, applied: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_query, "STOP_WAIT_S", 0.01)
    spark = FalseSession(9)
    query = TableQuery({}, tmp_path, on_progress=lambda _: None)
    query.is_stopping = True
    with query._in_batch:
        monkeypatch.setattr(FalseQuery, "awaitTermination", lambda *_: False)
        query.run(spark)  # type: ignore[arg-type]
    assert spark.query is not None
    assert spark.query.is_stopped
    assert applied == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnavailableError("no disk", code="mine"), "mine"),
        (ZeroDivisionError("odd"), "query_failed"),
    ],
)
def test_a_batch_that_fails_is_told_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(table_query, "register", lambda *_: None)
    monkeypatch.setattr(table_query, "apply_changes", fails)
    spark: Any = FalseSession(1)
    with pytest.raises(UnavailableError) as failed:
        TableQuery({}, tmp_path, on_progress=lambda _: None).run(spark)
    assert failed.value.code == code
    assert spark.query.is_stopped
