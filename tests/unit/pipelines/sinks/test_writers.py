"""The writers driven as Spark drives them, in one process and without a session."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle as pickle
from pyspark.sql import datasource as spark_api
from pyspark.sql.types import LongType, StringType, StructType

from millstream.client.writes import Write
from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.pipelines.sinks import writers
from millstream.pipelines.sinks.writers import BatchWriter, TaskMessage, UpsertStreamWriter
from millstream.pipelines.sinks.writing import Written, write_all
from millstream.pipelines.source import MillstreamDataSource
from support.pipelines.sink_bucket import SinkBucketDouble

SCHEMA = StructType().add("key", StringType()).add("value", StringType())


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> SinkBucketDouble:
    found = SinkBucketDouble()
    monkeypatch.setattr(writers, "open_again", lambda options: found)
    monkeypatch.setattr(writers, "plan_batch", lambda options: [])
    monkeypatch.setattr(writers, "pinned_batches", lambda *_: scan(found))
    return found


def scan(bucket: SinkBucketDouble) -> Iterator[pa.RecordBatch]:
    """All keys, tombstones too, as the source gives them."""
    for key, entry in bucket.entries.items():
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "op": "put" if entry.data is not None else "delete",
                    "partition": bucket._of(key),
                    "seqno": entry.seqno,
                    "key": key.decode(),
                    "cas": entry.cas,
                }
            ]
        )


def batch(**documents: str) -> Iterator[pa.RecordBatch]:
    return iter(
        [pa.RecordBatch.from_pydict({"key": list(documents), "value": list(documents.values())})]
    )


def writer(*, overwrite: bool, **options: str) -> BatchWriter:
    made = MillstreamDataSource({"bucket": "b", **options}).writer(SCHEMA, overwrite)
    return pickle.loads(pickle.dumps(made))  # type: ignore[no-any-return]


def stream_writer(**options: str) -> Any:
    made = MillstreamDataSource({"bucket": "b", **options}).streamWriter(SCHEMA, False)
    return pickle.loads(pickle.dumps(made))


def test_names_and_parameters_are_those_of_spark() -> None:
    for ours, theirs in (
        (BatchWriter, spark_api.DataSourceArrowWriter),
        (UpsertStreamWriter, spark_api.DataSourceStreamArrowWriter),
    ):
        for name in ("write", "commit", "abort"):
            assert [*inspect.signature(getattr(ours, name)).parameters] == [
                *inspect.signature(getattr(theirs, name)).parameters
            ]
    for name in ("writer", "streamWriter"):
        assert [*inspect.signature(getattr(MillstreamDataSource, name)).parameters] == [
            *inspect.signature(getattr(spark_api.DataSource, name)).parameters
        ]


def test_append_inserts_and_overwrite_upserts(bucket: SinkBucketDouble) -> None:
    message = writer(overwrite=False).write(batch(a="1", b="2"))
    assert message == TaskMessage(Written(written=2))
    with pytest.raises(ConditionError, match="'a'"):
        writer(overwrite=False).write(batch(a="3"))
    writer(overwrite=True).write(batch(a="3"))
    assert bucket.documents() == {b"a": b"3", b"b": b"2"}
    skipped = writer(overwrite=False, onConflict="skip").write(batch(a="9", c="9"))
    assert skipped == TaskMessage(Written(written=1, skipped=1))


def test_impossible_options_are_refused_before_the_job(bucket: SinkBucketDouble) -> None:
    with pytest.raises(UsageError, match="idField"):
        writer(overwrite=True, idField="nothing")
    with pytest.raises(UsageError, match="only where a batch is written"):
        stream_writer(truncate="true")


def test_truncate_deletes_only_existing_documents(bucket: SinkBucketDouble) -> None:
    write_all(bucket, [Write(k, b"0") for k in (b"old", b"kept", b"_design/x", b"gone", b"mine")
                       if not k.startswith(b"_design")])  # fmt: skip
    write_all(bucket, [Write(b"_own", b"0"), Write(b"gone", None)])
    job = writer(overwrite=True, truncate="true")
    messages = [job.write(batch(kept="1")), job.write(batch(new="1"))]
    write_all(bucket, [Write(b"mine", b"changed"), Write(b"theirs", b"1")])
    assert b"old" in bucket.documents()
    pickle.loads(pickle.dumps(job)).commit(messages)
    bucket.crash()
    assert bucket.documents() == {
        b"kept": b"1", b"new": b"1", b"mine": b"changed", b"theirs": b"1", b"_own": b"0",
    }  # fmt: skip


def test_truncate_keeps_concurrent_changes(bucket: SinkBucketDouble) -> None:
    write_all(bucket, [Write(b"old", b"0")])
    job = writer(overwrite=True, truncate="true")
    write_late = [lambda: None] * 2 + [lambda: bucket._done(Write(b"old", b"late"))]
    bucket.before_effect = write_late
    job.commit([])
    assert bucket.documents() == {b"old": b"late"}
    assert not bucket.before_effect


def test_truncate_deletes_nothing_if_new_rows_may_be_lost(bucket: SinkBucketDouble) -> None:
    write_all(bucket, [Write(b"old", b"0")])
    job = writer(overwrite=True, truncate="true")
    job.write(batch(new="1"))
    bucket.crash(1)
    with pytest.raises(UnavailableError, match="nothing was deleted") as failed:
        job.commit([])
    assert failed.value.code == "history_lost"
    assert b"old" in bucket.documents()


def test_truncate_needs_all_partitions(
    bucket: SinkBucketDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "positions", lambda: SinkBucketDouble(1).positions())
    with pytest.raises(UnavailableError, match="no node serves partition 1"):
        writer(overwrite=True, truncate="true")


def test_a_stream_upserts_and_is_persisted_with_each_task(bucket: SinkBucketDouble) -> None:
    made = stream_writer(checkpointLocation="/c")
    message = made.write(batch(a="1", b="1"))
    bucket.crash()
    assert bucket.documents() == {b"a": b"1", b"b": b"1"}
    stream_writer().commit([message], 0)
    assert made.write(batch(a="1")) == TaskMessage(Written(written=1))


def test_an_aborted_job_says_what_stays(
    bucket: SinkBucketDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    job = writer(overwrite=True)
    job.commit([])
    job.abort([job.write(batch(a="1")), None])
    assert "bucket 'b' failed. Tasks that ended before it did have 1 written" in (
        capsys.readouterr().err
    )
    stream_writer().abort([None], 4)
    assert "have 0 written" in capsys.readouterr().err


def test_a_version_decides_what_a_stream_writes(bucket: SinkBucketDouble) -> None:
    source = MillstreamDataSource({"bucket": "b", "idField": "key", "versionField": "at"})
    schema = StructType().add("key", StringType()).add("at", LongType())

    def write(*rows: tuple[str, int | None]) -> TaskMessage:
        found = pa.table({"key": [k for k, _ in rows], "at": [at for _, at in rows]})
        writer = pickle.loads(pickle.dumps(source.streamWriter(schema, False)))
        message: TaskMessage = writer.write(iter(found.to_batches()))
        return message

    write(("a", 2), ("b", 2))
    assert write(("a", 1), ("b", 3)) == TaskMessage(Written(written=1, skipped=1))
    assert bucket.documents() == {b"a": b'{"key":"a","at":2}', b"b": b'{"key":"b","at":3}'}
    with pytest.raises(UsageError, match="row 'a': its version at is null"):
        write(("a", None))
    with pytest.raises(UsageError, match="column at is string; a version is a whole number"):
        source.streamWriter(StructType().add("key", StringType()).add("at", StringType()), False)
    with pytest.raises(UsageError, match="versionField names 'at', the columns are key"):
        source.streamWriter(StructType().add("key", StringType()), False)
