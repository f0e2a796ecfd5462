"""What `changes` refuses and passes on; what Spark makes of it is in tests/pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from millstream.errors import UnavailableError, UsageError
from millstream.pipelines import documents
from millstream.pipelines.documents import Documents, changes
from millstream.pipelines.sinks import applying
from millstream.pipelines.sinks.change_rows import table_of
from millstream.pipelines.sinks.repairing import Row
from support.pipelines.node_double import FalseNode
from support.pipelines.spark_rows import struct_of
from support.streams.keyed_double import DictTarget, FalseOrigin, false_row

SCHEMA: Any = struct_of("carrier string, delay int")


class Frames:
    """Stands for the work of Spark: values are written twice."""

    def __init__(self, spark: Any, schema: Any, steps: Any) -> None:
        self.schema = schema
        self.steps = list(steps)

    def derive(self, values: Mapping[str, bytes]) -> Mapping[str, bytes]:
        return {key: value * 2 for key, value in values.items()}


class Spark:
    """A session, a stream and its writer as far as they are used; runs each batch at once."""

    isStreaming = False

    def __init__(self, batches: list[list[Row]] | None = None) -> None:
        self.batches = batches or []
        self.called: dict[str, Any] = {}
        self.readStream = self.writeStream = self

    def format(self, name: str) -> Spark:
        self.called["format"] = name == self.registered
        return self

    def options(self, **options: str) -> Spark:
        self.called["options"] = options
        return self

    def load(self) -> Spark:
        return self

    def foreachBatch(self, take: Callable[[Any, int], None]) -> Spark:
        self.take = take
        return self

    def option(self, name: str, value: str) -> Spark:
        self.called[name] = value
        return self

    def queryName(self, name: str) -> Spark:
        self.called["name"] = name
        return self

    def trigger(self, **trigger: Any) -> Spark:
        self.called["trigger"] = trigger
        return self

    def start(self) -> str:
        for number, rows in enumerate(self.batches):
            self.take(Batch(rows), number)
        return "query"


class Batch:
    """A micro-batch."""

    sparkSession = SimpleNamespace(
        sparkContext=SimpleNamespace(getLocalProperty={"sql.streaming.queryId": "q"}.get)
    )

    def __init__(self, rows: list[Row]) -> None:
        self.table = table_of(rows)
        self.columns = self.table.schema.names

    def select(self, *names: str) -> Batch:
        return self

    def toArrow(self) -> Any:
        return self.table


class Origin(FalseOrigin):
    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "DocumentFrames", Frames)
    monkeypatch.setattr(
        documents, "register", lambda spark, name: setattr(spark, "registered", name)
    )
    monkeypatch.setattr(applying, "BucketOrigin", lambda _: Origin(FalseNode(1)))


def made(spark: Any = None, **options: object) -> Documents:
    return changes(spark or Spark(), SCHEMA, **{"bucket": "b", **options})


def test_a_query_reads_with_the_options_given_and_undoes_what_is_lost(tmp_path: Path) -> None:
    spark, target = Spark([[false_row(0, 1, 1, 1, 4)]]), DictTarget()
    found = made(spark, pollMs=50, durableOnly=True).to(
        target, tmp_path / "c", name="late", availableNow=True
    )
    assert found == "query"
    assert spark.called == {
        "format": True,
        "options": {
            "bucket": "b",
            "pollMs": "50",
            "durableOnly": "true",
            "rollback": "rows",
            "maxRowsPerBatch": str(documents.BATCH_ROWS_MAX),
            "maxBytesPerBatch": str(documents.BATCH_BYTES_MAX),
        },
        "checkpointLocation": str(tmp_path / "c"),
        "name": "late",
        "trigger": {"availableNow": True},
    }
    assert target.live(0) == {"1": b"44"}
    assert target.committed == [0]


def test_explicit_options_win_and_no_others_are_set(tmp_path: Path) -> None:
    spark = Spark()
    made(spark, maxRowsPerBatch=7, rollback="fail").to(DictTarget(), tmp_path)
    assert spark.called["options"]["maxRowsPerBatch"] == "7"
    assert spark.called["options"]["rollback"] == "rows"
    assert spark.called.keys() == {"format", "options", "checkpointLocation"}


@pytest.mark.parametrize(
    ("options", "code"),
    [({"noValue": True}, "bad_option"), ({"nonsense": 1}, "unknown_option")],
)
def test_options_are_checked_at_once(options: dict[str, object], code: str) -> None:
    with pytest.raises(UsageError) as refused:
        made(**options)
    assert refused.value.code == code


def test_reserved_members_are_not_columns() -> None:
    with pytest.raises(UsageError, match="_rev: members that begin with _"):
        changes(Spark(), struct_of("_rev string, a int"), bucket="b")  # type: ignore[arg-type]


def test_joins_that_make_other_rows_are_refused() -> None:
    other: Any = Spark()
    with pytest.raises(UsageError, match="'full' makes rows that are no documents"):
        made().join(other, "carrier", "full")
    other.isStreaming = True
    with pytest.raises(UsageError, match="is a stream"):
        made().join(other, "carrier")


def test_steps_do_not_change_what_they_are_added_to() -> None:
    first = made()
    second = first.map(lambda frame: frame)
    third = second.map(lambda frame: frame)
    counts = [len(one._frames.steps) for one in (first, second, third)]  # type: ignore[attr-defined]
    assert counts == [0, 1, 2]


def test_a_frame_that_a_function_makes_is_made_anew_for_each_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A frame itself keeps the files that were there when it was made."""
    made_frames: list[Any] = []

    def table() -> Any:
        made_frames.append(Spark())
        return made_frames[-1]

    class Frame:
        def join(self, other: Any, on: Any, how: str) -> Any:
            return other, on, how

    (step,) = made().join(table, ["carrier"], "left")._frames.steps  # type: ignore[attr-defined]
    for _ in range(2):
        assert step(Frame()) == (made_frames[-1], ["carrier"], "left")
    assert len({id(frame) for frame in made_frames}) == len(made_frames) >= 2
    monkeypatch.setattr(Spark, "isStreaming", True)
    with pytest.raises(UsageError, match="is a stream"):
        made().join(table, "carrier")


def test_a_target_of_groups_that_is_away_is_given_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Table:
        def __init__(self, state: Any) -> None:
            self.touched: list[bytes] = []

    class Groups:
        updated: ClassVar[list[int]] = []

        def __init__(self, *_: Any) -> None:
            self.schema = SCHEMA

        def update(self, batch_id: int, query_id: str) -> None:
            assert query_id == "q"
            self.updated.append(batch_id)
            if len(self.updated) == 1:
                raise UnavailableError("the node restarts", code="connection_closed")

    applied: list[int] = []
    monkeypatch.setattr(documents, "StateTable", Table)
    monkeypatch.setattr(documents, "GroupFrames", Groups)
    monkeypatch.setattr(documents, "GroupingSink", Groups)
    monkeypatch.setattr(
        documents, "apply_changes", lambda _, batch_id, *__: applied.append(batch_id)
    )
    monkeypatch.setattr(documents.F, "expr", lambda text: text)
    made(Spark([[], []])).aggregate("carrier", "count(*) as n", state=tmp_path).to(
        DictTarget(), tmp_path / "c"
    )
    assert Groups.updated == [0, 0, 1]
    assert applied == [0, 1]
