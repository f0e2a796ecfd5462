"""What the query asks of Spark; a real session is in tests/pipelines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import ConditionError, UsageError
from millstream.pipelines.lake import table_query
from millstream.pipelines.lake.directory import only_writer
from millstream.pipelines.lake.following import FollowedTable
from millstream.pipelines.lake.table_query import TableQuery
from millstream.pipelines.sinks.parquet_target import ParquetTarget
from millstream.pipelines.sinks.repairing import RepairingSink
from millstream.upr.core.repair import LoadState
from support.pipelines.node_double import FalseNode
from support.streams.keyed_double import FalseOrigin, false_row


class FalseSession:
    """Session, builders and query in one: each batch is applied when the query is waited for."""

    def __init__(self, batches: int) -> None:
        self.left = batches
        self.done = 0
        self.asked: dict[str, Any] = {}
        self.lastProgress: dict[str, Any] | None = None

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

    def start(self) -> FalseSession:
        return self

    def awaitTermination(self, timeout: float) -> bool:
        if self.done == self.left:
            return True
        self.take("frame", self.done)
        self.done += 1
        self.lastProgress = {"batchId": self.done}
        return False

    def stop(self) -> None:
        self.asked["stopped"] = True


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    monkeypatch.setattr(table_query, "register", lambda *_: None)
    monkeypatch.setattr(
        table_query, "apply_changes", lambda _, batch_id, *__: found.append(batch_id)
    )
    return found


def test_it_runs_to_the_end(tmp_path: Path, applied: list[int]) -> None:
    spark: Any = FalseSession(3)
    told: list[Any] = []
    query = TableQuery({"bucket": "b"}, tmp_path / "d", rows_per_batch=5, on_progress=told.append)
    query.run(spark, once=True)
    assert applied == [0, 1, 2]
    assert told[-1] == {"batchId": 3}
    assert spark.asked["availableNow"] is True
    assert (spark.asked["rollback"], spark.asked["maxRowsPerBatch"]) == ("rows", "5")
    assert spark.asked["checkpointLocation"] == str(tmp_path / "d" / "checkpoint")


def test_it_stops_at_the_next_edge(tmp_path: Path, applied: list[int]) -> None:
    spark: Any = FalseSession(9)
    query = TableQuery({}, tmp_path / "d", on_progress=lambda _: query.stop())
    query.run(spark)
    assert applied == [0]
    assert spark.asked["stopped"]
    assert "availableNow" not in spark.asked


def test_two_do_not_write_one_directory(tmp_path: Path, applied: list[int]) -> None:
    spark: Any = FalseSession(1)
    with only_writer(tmp_path), pytest.raises(ConditionError, match="writes into"):
        TableQuery({}, tmp_path, on_progress=lambda _: None).run(spark)
    assert applied == []


@pytest.mark.parametrize("batch_id", [0, 130])
def test_a_filled_table_is_not_followed_without_its_checkpoint(
    tmp_path: Path, applied: list[int], batch_id: int
) -> None:
    """Its versions may be those of another bucket: newer ones would be taken for older."""
    sink = RepairingSink(FollowedTable(tmp_path), FalseOrigin(FalseNode(1)))
    sink.apply([false_row(0, 1, 1, 1, 10, 1)], 0)
    spark: Any = FalseSession(1)
    query = TableQuery({}, tmp_path, on_progress=lambda _: None)
    with pytest.raises(UsageError, match="begin with another directory") as caught:
        query.run(spark)
    assert caught.value.code == "other_checkpoint"
    assert applied == []
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / f".{batch_id}.crc").touch()
    with pytest.raises(UsageError):
        query.run(spark)
    (offsets / str(batch_id)).touch()  # Spark keeps the newest hundred
    query.run(spark)
    assert applied == [0]


def test_a_table_of_an_older_release_is_not_followed_without_its_checkpoint(
    tmp_path: Path, applied: list[int]
) -> None:
    table = ParquetTarget(tmp_path / "table")
    table.begin([5], 8)
    table.set_state(5, LoadState())
    table.commit(0)
    spark: Any = FalseSession(1)
    with pytest.raises(UsageError, match="begin with another directory"):
        TableQuery({}, tmp_path, on_progress=lambda _: None).run(spark)
    assert applied == []
