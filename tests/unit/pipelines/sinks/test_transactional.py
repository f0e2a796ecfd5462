"""The transactional writer driven as Spark drives it, in one process and without a session."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle as pickle
from pyspark.sql import datasource as spark_api
from pyspark.sql.types import StringType, StructType

from millstream.errors import UnavailableError, UsageError
from millstream.pipelines.sinks import transactional
from millstream.pipelines.sinks.sink_options import SINK_PREFIX
from millstream.pipelines.sinks.transactional import StagedMessage, TransactionalStreamWriter
from millstream.pipelines.source import MillstreamDataSource
from support.pipelines.sink_bucket import SinkBucketDouble

SCHEMA = StructType().add("key", StringType()).add("value", StringType())


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> SinkBucketDouble:
    found = SinkBucketDouble()
    monkeypatch.setattr(transactional, "open_client", lambda options: found)
    monkeypatch.setattr(transactional, "open_again", lambda options: found)
    return found


class ContextDouble:
    """What Spark tells a task."""

    def __init__(self, batch: int, query: str) -> None:
        self.properties = {"streaming.sql.batchId": str(batch), "sql.streaming.queryId": query}

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)

    def partitionId(self) -> int:
        return 3

    def attemptNumber(self) -> int:
        return 1


def rows(**documents: str) -> Iterator[pa.RecordBatch]:
    return iter(
        [pa.RecordBatch.from_pydict({"key": list(documents), "value": list(documents.values())})]
    )


def writer(schema: StructType = SCHEMA) -> Any:
    """A new writer, as Spark builds one for each commit."""
    source = MillstreamDataSource({"bucket": "b", "transactional": "true", "sinkId": "s"})
    return pickle.loads(pickle.dumps(source.streamWriter(schema, False)))


def test_names_and_parameters_are_those_of_spark() -> None:
    for name in ("write", "commit", "abort"):
        ours = inspect.signature(getattr(TransactionalStreamWriter, name))
        theirs = inspect.signature(getattr(spark_api.DataSourceStreamArrowWriter, name))
        assert [*ours.parameters] == [*theirs.parameters]


def test_rows_are_seen_when_the_batch_is_committed(bucket: SinkBucketDouble) -> None:
    made = writer()
    messages = [made.write(rows(a="1")), made.write(rows(b="2")), made.write(iter([]))]
    lost = made.write(rows(a="9", z="1"))
    assert not bucket.own_documents()
    writer().commit([pickle.loads(pickle.dumps(message)) for message in messages], 0)
    assert bucket.own_documents() == {b"a": b"1", b"b": b"2"}
    writer().commit(messages, 0)
    writer().abort([lost, None], 0)
    assert [*bucket.documents(SINK_PREFIX.encode())] == [SINK_PREFIX.encode() + b"s"]


def test_a_segment_is_named_by_what_spark_says_and_never_twice(
    bucket: SinkBucketDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        transactional.TaskContext, "get", staticmethod(lambda: ContextDouble(7, "query"))
    )
    first, second = writer().write(rows(a="1")), writer().write(rows(a="1"))
    assert isinstance(first, StagedMessage)
    assert first.query_id == "query"
    assert first.segment.name.startswith("7.3.1.")
    assert first.segment.name != second.segment.name


def test_another_checkpoint_is_refused(
    bucket: SinkBucketDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    for query in ("one", "two"):
        monkeypatch.setattr(
            transactional.TaskContext,
            "get",
            staticmethod(lambda query=query: ContextDouble(0, query)),
        )
        messages = [writer().write(rows(a=f'"{query}"'))]
        if query == "one":
            writer().commit(messages, 0)
    with pytest.raises(UsageError, match="written by the query one"):
        writer().commit(messages, 0)


def test_invalid_rows_are_refused_while_staging(bucket: SinkBucketDouble) -> None:
    with pytest.raises(UsageError, match="row 'a': value is no JSON"):
        writer().write(rows(a="{"))
    with pytest.raises(UsageError, match="columns key and value"):
        writer(StructType().add("n", StringType()))


def test_a_commit_waits_for_an_unavailable_node(
    bucket: SinkBucketDouble,
) -> None:
    """Whatever the commit was doing then; the node comes back without what was not persisted."""
    for number, effect in enumerate(range(0, 24, 2)):
        messages = [writer().write(rows(a=str(number), **{f"k{number}": "1"}))]
        bucket.break_at(effect, loses=True, times=2)
        writer().commit(messages, number)
        bucket.before_effect = []
        bucket.crash()
        expected = {b"a": b"%d" % number} | {b"k%d" % n: b"1" for n in range(number + 1)}
        assert bucket.own_documents() == expected


def test_an_abort_without_a_reachable_node_is_not_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(options: object) -> SinkBucketDouble:
        raise UnavailableError("nobody answers")

    monkeypatch.setattr(transactional, "open_client", unreachable)
    writer().abort([], 0)
    assert "expires by itself: nobody answers" in capsys.readouterr().err
