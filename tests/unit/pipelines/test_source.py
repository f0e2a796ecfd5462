"""The data source driven as Spark drives it, in one process and without a session."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark import cloudpickle as pickle
from pyspark.sql import datasource as spark_api
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import LongType, StringType, StructField, StructType

from millstream.errors import UsageError
from millstream.pipelines import source
from millstream.pipelines.change_stream import control, reading
from millstream.pipelines.source import (
    MillstreamDataSource,
    MillstreamReader,
    MillstreamStreamReader,
)
from pyspark_millstream import DefaultSource
from support.pipelines.node_double import ROW_BYTES, FalseClient, FalseNode, FalseRanges

SCHEMA = StructType([StructField("op", StringType()), StructField("key", StringType())])


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> FalseNode:
    node = FalseNode(3)
    for p in range(3):
        for key in range(4):
            node.write(p, key, key)
    ranges = FalseRanges(node)
    monkeypatch.setattr(control, "open_client", lambda _: FalseClient(node))
    monkeypatch.setattr(reading.NodeRanges, "stream", lambda _, wanted: ranges.stream(wanted))
    return node


def data_source(**options: str) -> MillstreamDataSource:
    return MillstreamDataSource(CaseInsensitiveDict({"bucket": "b", "pollMs": "0", **options}))


def rows(reader: Any, partitions: Sequence[InputPartition]) -> list[tuple[str, str]]:
    executor = pickle.loads(pickle.dumps(reader))
    sent = [pickle.loads(pickle.dumps(partition)) for partition in partitions]
    return [
        (row["op"], row["key"])
        for partition in sent
        for batch in executor.read(partition)
        for row in batch.to_pylist()
    ]


def test_spark_finds_the_source_by_its_module_and_name() -> None:
    assert DefaultSource is MillstreamDataSource
    assert DefaultSource.name() == "millstream"
    assert DefaultSource.__init__ is spark_api.DataSource.__init__


@pytest.mark.parametrize(
    ("own", "base"),
    [
        (MillstreamDataSource, spark_api.DataSource),
        (MillstreamReader, spark_api.DataSourceReader),
        (MillstreamStreamReader, spark_api.DataSourceStreamReader),
    ],
)
def test_parameters_are_named_as_spark_names_them(own: type, base: type) -> None:
    for name in vars(own).keys() & vars(base).keys():
        if inspect.isfunction(vars(own)[name]) and not name.startswith("__"):
            ours, theirs = (inspect.signature(vars(of)[name]) for of in (own, base))
            assert list(ours.parameters) == list(theirs.parameters), name


def test_wrong_options_are_told_as_early_as_possible() -> None:
    with pytest.raises(UsageError, match="unknown option foo"):
        data_source(foo="1").schema()
    with pytest.raises(UsageError, match="a stream has no end"):
        data_source(endingOffsets='{"v":1,"bucket":"b","bucket_uuid":"","p":{}}').streamReader(
            SCHEMA
        )


@pytest.mark.usefixtures("node")
def test_a_batch_is_shared_out_and_read() -> None:
    reader = data_source(numPartitions="2").reader(SCHEMA)
    partitions = reader.partitions()
    assert isinstance(partitions, list)
    assert len(partitions) == 2
    assert rows(reader, partitions) == [("put", str(key)) for key in range(4)] * 3
    assert rows(reader, [InputPartition(None)]) == []


def test_filters_are_left_to_spark() -> None:
    """One that were taken would be applied to later queries of the DataFrame, too."""
    assert MillstreamReader.pushFilters is spark_api.DataSourceReader.pushFilters


def test_a_stream_is_followed_offset_by_offset(node: FalseNode) -> None:
    reader = data_source(maxRowsPerBatch="4", numPartitions="2").streamReader(SCHEMA)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(4)
    seen: list[tuple[str, str]] = []
    start = reader.initialOffset()
    assert reader.partitions(start, start) == []
    while (end := reader.latestOffset(start, limit)) != start:
        json.dumps(end)
        seen += rows(reader, reader.partitions(start, end))
        reader.commit(end)
        start = end
    assert sorted(row for row in seen if row[0] == "put") == sorted(
        [("put", str(key)) for key in range(4)] * 3
    )
    assert [row for row in seen if row[0] != "put"] == [("sweep", None)] * 3
    latest = reader.reportLatestOffset()
    assert latest is not None
    assert latest["p"]["0"][1] == 4
    reader.stop()
    reader.stop()


def test_the_limit_that_spark_gives_counts(node: FalseNode) -> None:
    reader = data_source(maxRowsPerBatch="1").streamReader(SCHEMA)
    start = reader.initialOffset()

    def moved(limit: object) -> int:
        entries = reader.latestOffset(start, limit)["p"].values()
        return sum(entry[1] for entry in entries)

    assert moved(ReadAllAvailable()) == 12
    assert moved(ReadMaxBytes(12 * ROW_BYTES)) == 1  # the option counts, too
    assert moved(ReadMaxRows(3)) == 3
    assert data_source().streamReader(SCHEMA).getDefaultReadLimit() == ReadAllAvailable()
    in_bytes = data_source(maxBytesPerBatch="600").streamReader(SCHEMA)
    assert in_bytes.getDefaultReadLimit() == ReadMaxBytes(600)
    reader.stop()


@pytest.mark.usefixtures("node")
def test_available_now_is_prepared_for() -> None:
    reader = data_source().streamReader(SCHEMA)
    assert isinstance(reader, SupportsTriggerAvailableNow)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["p"]["2"][1] == 4
    reader.stop()


def test_a_reader_leaves_its_query_behind_when_it_is_sent_away(node: FalseNode) -> None:
    reader = data_source().streamReader(SCHEMA)
    reader.initialOffset()
    copy = pickle.loads(pickle.dumps(reader))
    assert copy._query is None
    copy.stop()
    reader.stop()


def test_register_hands_the_class_over_under_its_own_name_or_another() -> None:
    given: list[type[MillstreamDataSource]] = []

    class Registry:
        dataSource: Any = None

        def register(self, kind: type[MillstreamDataSource]) -> None:
            given.append(kind)

    session = Registry()
    session.dataSource = session
    source.register(session)  # type: ignore[arg-type]
    assert [kind.name() for kind in given] == ["millstream", "millstream.view", "millstream.meta"]
    assert given[0] is MillstreamDataSource
    source.register(session, "mine")  # type: ignore[arg-type]
    source.register(session, "yours")  # type: ignore[arg-type]
    assert [kind.name() for kind in given[3:]] == ["mine", "yours"]
    assert issubclass(given[4], MillstreamDataSource)


def test_columns_of_other_types_are_refused() -> None:
    schema = StructType([StructField("key", LongType())])
    with pytest.raises(UsageError, match="column key bigint is not one of"):
        data_source().reader(schema)
