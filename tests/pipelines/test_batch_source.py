"""Batch reads through a real session from a real node."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from support.node.node_process import NodeProcess
from support.pipelines.spark_bucket import BucketUnderTest

VALUE_BYTES_MAX = 20 * 1024 * 1024


@pytest.fixture
def _writer(bucket: BucketUnderTest) -> Iterator[None]:
    """Overwrite the keys 0 to 1,999 for as long as the test lasts."""
    bucket.write({f"k{n}": {"n": n} for n in range(2_000)})
    stopped = threading.Event()

    def write() -> None:
        turn = 0
        while not stopped.is_set():
            turn += 1
            bucket.write({f"k{n}": {"n": n, "turn": turn} for n in range(2_000)})

    thread = threading.Thread(target=write)
    thread.start()
    yield
    stopped.set()
    thread.join()


@pytest.mark.usefixtures("_writer")
def test_a_count_is_exact_while_writers_go_on(spark: Any, bucket: BucketUnderTest) -> None:
    for _ in range(3):
        rows = bucket.batch(spark, "key string, seqno long, partition int").collect()
        assert len(rows) == 2_000
        assert len({row.key for row in rows}) == 2_000


def test_every_column_says_what_was_written(spark: Any, bucket: BucketUnderTest) -> None:
    with bucket.client() as client:
        stored = client.upsert("a", {"x": 1}, flags=7, expiry=4_000_000_000)
        client.upsert("gone", b"1")
        gone = client.remove("gone")
        branches = {p.partition_id: p.branch for p in client.positions()}
    assert [row.key for row in bucket.batch(spark).collect()] == ["a"]
    assert bucket.batch(spark).count() == 1
    rows = {row.key: row for row in bucket.batch(spark, tombstones=True).collect()}
    a, deleted = rows.pop("a"), rows.pop("gone")
    assert not rows
    assert (a.op, a.partition, a.seqno) == ("put", stored.partition_id, stored.seqno)
    assert (a.cas, a.rev, a.flags, a.expiry) == (stored.cas, 1, 7, 4_000_000_000)
    assert (bytes(a.value), a.datatype, a.meta) == (b'{"x":1}', 1, None)
    assert a.branch == branches[a.partition]
    assert int(a.ts.timestamp()) == stored.cas // 10**9
    assert (deleted.op, deleted.seqno, deleted.value) == ("delete", gone.seqno, None)


def test_keys_and_values_that_a_client_can_write_can_be_read(
    spark: Any, bucket: BucketUnderTest
) -> None:
    odd = {
        b"\xff\x00\xfe": "\\xff00fe",
        b"\\x41": "\\x5c783431",
        b"line\nfeed": "line\nfeed",
        b"\x00": "\x00",
        "žluťoučký".encode(): "žluťoučký",
        b"k" * 250: "k" * 250,
    }
    with bucket.client() as client:
        for key in odd:
            client.upsert(key, b"\xff\xfe", flags=0xFFFFFFFF)
        client.upsert("empty", b"")
        client.upsert("late", b"1", expiry=0xFFFFFFFE)
        client.upsert("huge", bytes(VALUE_BYTES_MAX))
        client.upsert("huge too", bytes(VALUE_BYTES_MAX))
    rows = {row.key: row for row in bucket.batch(spark).collect()}
    assert set(rows) == {*odd.values(), "empty", "late", "huge", "huge too"}
    assert {rows[text].flags for text in odd.values()} == {0xFFFFFFFF}
    assert {bytes(rows[text].value) for text in odd.values()} == {b"\xff\xfe"}
    assert bytes(rows["empty"].value) == b""
    assert rows["late"].expiry == 0xFFFFFFFE
    assert len(rows["huge"].value) == len(rows["huge too"].value) == VALUE_BYTES_MAX


def test_columns_partitions_and_keys_can_be_chosen(spark: Any, bucket: BucketUnderTest) -> None:
    bucket.write({f"{kind}{n}": {"n": n} for n in range(50) for kind in ("a", "b")})
    chosen = bucket.batch(spark, "key string, partition int, seqno long")
    assert chosen.columns == ["key", "partition", "seqno"]
    assert chosen.count() == 100
    some = bucket.batch(spark, partitions="0,2-3").collect()
    assert {row.partition for row in some} == {0, 2, 3}
    prefixed = bucket.batch(spark, keyPrefix="b", noValue="true", numPartitions=1).collect()
    assert {row.key for row in prefixed} == {f"b{n}" for n in range(50)}
    assert {row.value for row in prefixed} == {None}
    assert {row.datatype for row in prefixed} == {1}


def test_a_read_begins_where_another_ended(spark: Any, bucket: BucketUnderTest) -> None:
    bucket.write({f"k{n}": b"1" for n in range(100)})
    first = bucket.batch(spark).collect()
    offset = present_offset(bucket)
    bucket.write({"k1": b"2", "new": b"1"})
    since = bucket.batch(spark, startingOffsets=offset).collect()
    assert {row.key for row in since} == {"k1", "new"}
    until = bucket.batch(spark, endingOffsets=offset).collect()
    assert {row.seqno for row in until} <= {row.seqno for row in first}
    assert bucket.batch(spark, startingOffsets="latest").count() == 0


def test_a_filtered_query_changes_no_later_one(spark: Any, bucket: BucketUnderTest) -> None:
    """Nor with Spark's setting: what a source took of `where` would be used for all of them."""
    bucket.write({f"k{n}": b"1" for n in range(100)})
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        rows = bucket.batch(spark)
        assert rows.where("key = 'k7'").count() == 1
        assert rows.count() == 100
        few = rows.where("partition = 1 and seqno > 5").select("key")
        assert rows.join(few, "key").count() == few.count() < rows.count()
        said = "option pushdown 'true': PySpark keeps the filters of one query"
        with pytest.raises((PySparkException, Py4JJavaError), match=said):
            bucket.batch(spark, pushdown="true").count()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def present_offset(bucket: BucketUnderTest) -> str:
    with bucket.client() as client:
        entries = {
            str(p.partition_id): [
                f"{p.uuid:012x}", p.high_seqno, p.high_seqno, p.high_seqno, p.branch,
                None, 1, None,
            ]
            for p in client.positions()
        }  # fmt: skip
        bucket_uuid = client.cluster_map.bucket_uuid
    return json.dumps({"v": 1, "bucket": bucket.name, "bucket_uuid": bucket_uuid, "p": entries})


def test_a_bucket_without_changes_has_no_rows(spark: Any, bucket: BucketUnderTest) -> None:
    assert bucket.batch(spark).collect() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bukket": "b"}, r"unknown option bukket(.|\n)*startingOffsets"),
        ({"numPartitions": "some"}, "option numPartitions 'some': write a whole number from 1"),
        ({"startingOffsets": "yesterday"}, "write earliest, latest, or an offset as JSON"),
        ({"startingOffsets": '{"v": 9}'}, "version 9 is not known"),
        ({"partitions": "0-99"}, "has the partitions 0 to 3, not 99"),
        ({"hosts": "127.0.0.1:1", "reconnectTimeout": "0"}, "cannot connect to 127.0.0.1:1"),
        ({"bucket": "nosuch"}, "no bucket 'nosuch'"),
        ({"user": "ann", "passwordFile": "/nosuch"}, "passwordFile '/nosuch': cannot be read"),
    ],
)
def test_wrong_options_are_clear_errors(
    spark: Any, bucket: BucketUnderTest, options: dict[str, str], said: str
) -> None:
    with pytest.raises((PySparkException, Py4JJavaError), match=said):
        bucket.batch(spark, **options).count()


def test_a_wrong_column_is_a_clear_error(spark: Any, bucket: BucketUnderTest) -> None:
    with pytest.raises((PySparkException, Py4JJavaError), match="column seqno string is not one"):
        bucket.batch(spark, "key string, seqno string").count()


def test_a_password_is_checked(
    spark: Any, own_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = own_node("--user", "ann:right", "--bucket", "b:2")
    wanted = BucketUnderTest(node.ready["kv"], "b")
    secret = tmp_path / "secret"
    secret.write_text("right\n")
    assert wanted.batch(spark, user="ann", passwordFile=secret).count() == 0
    with pytest.raises((PySparkException, Py4JJavaError), match="user 'ann'"):
        wanted.batch(spark, user="ann", password="wrong").count()
    with pytest.raises((PySparkException, Py4JJavaError), match=r"no bucket 'b'|log in"):
        wanted.batch(spark).count()
