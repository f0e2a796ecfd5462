from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import cloudpickle as pickle
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from millstream.errors import UsageError
from millstream.pipelines.views import source as view_source
from millstream.pipelines.views.answer import ViewRow
from millstream.pipelines.views.source import ViewDataSource, ViewReader
from pyspark_millstream_view import DefaultSource

GIVEN = {"bucket": "b", "ddoc": "d", "view": "v"}


def schema(*names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])


def source(**given: str) -> ViewDataSource:
    return ViewDataSource(CaseInsensitiveDict({**GIVEN, **given}))


def answering(monkeypatch: pytest.MonkeyPatch, pieces: list[list[ViewRow]]) -> list[Any]:
    asked: list[Any] = []

    def rows(_: object, share: object) -> Iterator[list[ViewRow]]:
        asked.append(share)
        yield from pieces

    monkeypatch.setattr(view_source, "view_rows_of", rows)
    monkeypatch.setattr(view_source, "shares_of", lambda _: [[0, 2], None])
    return asked


def test_spark_finds_the_source_by_module_and_name() -> None:
    assert DefaultSource is ViewDataSource
    assert (DefaultSource.name(), source().schema()) == (
        "millstream.view", "key string, value string, id string",
    )  # fmt: skip


def test_each_task_yields_its_rows_as_spark_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, [[ViewRow("1", "2", "a")], [], [ViewRow("null", "{}", None)]])
    reader = source().reader(schema("key", "value", "id"))
    sent: ViewReader = pickle.loads(pickle.dumps(reader))
    for part in reader.partitions():
        (batch,) = sent.read(pickle.loads(pickle.dumps(part)))
        assert batch.schema.equals(to_arrow_schema(schema("key", "value", "id"), timezone="UTC"))
        assert batch.to_pylist() == [
            {"key": "1", "value": "2", "id": "a"}, {"key": "null", "value": "{}", "id": None},
        ]  # fmt: skip
    assert asked == [[0, 2], None]
    assert list(sent.read(InputPartition(None))) == []


def test_fewer_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, [[ViewRow("1", "2", "a")]])
    reader = source().reader(schema("id", "key"))
    (batch,) = reader.read(reader.partitions()[0])
    assert batch.to_pydict() == {"id": ["a"], "key": ["1"]}
    with pytest.raises(UsageError, match=r"column doc string is not one of the millstream\.view"):
        source().reader(schema("doc"))


def test_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_source, "BATCH_BYTES", 100)
    monkeypatch.setattr(view_source, "BATCH_ROWS", 7)
    answering(
        monkeypatch, [[ViewRow("1", "2", "a")] * 3] * 10 + [[ViewRow("1", "2" * 90, "a")]] * 3
    )
    reader = source().reader(schema("key"))
    sizes = [batch.num_rows for batch in reader.read(reader.partitions()[0])]
    assert sizes == [9, 9, 9, 5, 1]


def test_options_are_checked_when_the_schema_is_asked_for() -> None:
    with pytest.raises(UsageError, match="unknown option colour"):
        source(colour="red").schema()
