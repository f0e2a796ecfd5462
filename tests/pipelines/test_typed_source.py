"""Typed rows (`documentSchema`, `inferSchema`) through a real session from a real node."""

import json
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import col, from_json

from millstream.client.connection import Connection
from millstream.client.statistics import statistics_of
from support.pipelines.spark_bucket import BucketUnderTest

SCHEMA = (
    "s string, b boolean, i int, l bigint, d double, n decimal(8,2), day date, "
    "list array<bigint>, m map<string,double>, st struct<x:bigint,y:string>"
)


def _value(chance: random.Random) -> Any:
    choices = [
        None, True, False, 0, -7, 2**31, 2**40, 1.5, -0.25, "", "text", "2013-02-03",
        "2013-13-99", [], [1, 2], [None], ["a"], {}, {"x": 1, "y": "z"}, {"x": "no"}, {"a": 0.5},
    ]  # fmt: skip
    return chance.choice(choices)


def run_noop(frame: Any) -> None:
    query = frame.writeStream.format("noop").trigger(availableNow=True).start()
    assert query.awaitTermination(120)


def test_typed_rows_are_those_of_sparks_own_parser(spark: Any, bucket: BucketUnderTest) -> None:
    """Where a member does not fit, Spark's parser may lose more than that member; ours never."""
    chance = random.Random(5)
    names = ["s", "b", "i", "l", "d", "n", "day", "list", "m", "st"]
    written = {
        f"k{n}": {name: _value(chance) for name in names if chance.random() < 0.12}
        for n in range(400)
    }
    bucket.write(written)
    typed = bucket.batch(spark, documentSchema=f"{SCHEMA}, _corrupt_record string")
    rows = {row["_id"]: row.asDict(recursive=True) for row in typed.collect()}
    assert rows.keys() == written.keys()
    plain = bucket.batch(spark).select(
        "key", from_json(col("value").cast("string"), SCHEMA).alias("doc")
    )
    expected = {row.key: row.doc.asDict(recursive=True) for row in plain.collect()}
    compared = 0
    for key, row in rows.items():
        if row.pop("_corrupt_record") is None:
            row.pop("_id")
            assert row == expected[key], written[key]
            compared += 1
            continue
        for name in names:  # what Spark's parser kept is what ours kept
            if expected[key][name] is not None and name not in ("list", "m", "st"):
                assert row[name] == expected[key][name], (name, written[key])
    assert compared > 50


def test_columns_can_be_chosen_and_meta_tells_of_the_change(
    spark: Any, bucket: BucketUnderTest
) -> None:
    bucket.write({f"k{n}": {"a": n, "b": str(n)} for n in range(50)})
    bucket.write({"k7": None})
    frame = bucket.batch(spark, documentSchema="a int, b string")
    assert frame.columns == ["_id", "a", "b"]
    assert frame.where("a > 40").count() == 9
    assert frame.count() == 49  # a query before it filtered
    chosen = bucket.batch(spark, "b string", documentSchema="a int, b string")
    assert {row.b for row in chosen.collect()} == {str(n) for n in range(50) if n != 7}
    told = bucket.batch(spark, documentSchema="a int", includeMeta="true", tombstones="true")
    rows = {row["_id"]: row for row in told.collect()}
    assert rows["k7"]["_meta"].op == "delete"
    assert rows["k7"].a is None
    assert rows["k8"]["_meta"].op == "put"
    assert rows["k8"]["_meta"].cas > 0


def test_an_inferred_schema_is_told_and_can_be_pinned(spark: Any, bucket: BucketUnderTest) -> None:
    bucket.write({f"k{n}": {"n": n, "name": f"x{n}", "at": {"lat": n / 2}} for n in range(30)})
    frame = bucket.batch(spark, inferSchema="true")
    assert frame.dtypes == [
        ("_id", "string"), ("at", "struct<lat:double>"), ("n", "bigint"), ("name", "string"),
    ]  # fmt: skip
    assert frame.agg({"n": "sum"}).first()[0] == sum(range(30))
    with pytest.raises(PySparkException, match="`n` bigint, `name` string"):
        run_noop(bucket.stream(spark, inferSchema="true"))


def test_a_stream_of_typed_rows_has_deletions_in_meta(
    spark: Any, bucket: BucketUnderTest, tmp_path: Path
) -> None:
    bucket.write({"a": {"n": 1}, "b": {"n": 2}})
    with pytest.raises(PySparkException, match="includeMeta"):
        run_noop(bucket.stream(spark, documentSchema="n int"))
    frame = bucket.stream(spark, documentSchema="n int", includeMeta="true")
    state: dict[str, int] = {}

    def apply(batch: Any, _: int) -> None:
        for row in batch.orderBy("_meta.seqno").collect():
            if row["_meta"].op == "put":
                state[row["_id"]] = row.n
            elif row["_meta"].op in ("delete", "expire"):
                state.pop(row["_id"], None)

    def run() -> None:
        query = (
            frame.writeStream.foreachBatch(apply)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    run()
    assert state == {"a": 1, "b": 2}
    bucket.write({"a": None, "c": {"n": 3}})
    run()
    assert state == {"b": 2, "c": 3}


def test_a_table_in_sql_reads_documents(spark: Any, bucket: BucketUnderTest) -> None:
    bucket.write({f"k{n}": {"carrier": "AA" if n % 2 else "UA", "delay": n} for n in range(10)})
    options = bucket.options(documentSchema="carrier string, delay int")
    listed = ", ".join(f"{name} {json.dumps(value)}" for name, value in options.items())
    name = f"documents_{bucket.name}"
    spark.sql(f"create temporary view {name} using millstream options ({listed})")
    rows = spark.sql(f"select carrier, sum(delay) as s from {name} group by carrier").collect()
    assert {row.carrier: row.s for row in rows} == {"AA": 25, "UA": 20}
    spark.sql(f"drop view {name}")


def test_a_selector_saves_bytes_and_gives_the_rows_of_a_filter(
    spark: Any, bucket: BucketUnderTest
) -> None:
    """Also of documents that the node does not judge, and while others are overwritten."""
    padding = "x" * 400
    documents: dict[str, Any] = {f"k{n}": {"n": n, "pad": padding} for n in range(2000)}
    documents |= {f"text{n}": {"n": "1990", "pad": padding} for n in range(10)}
    documents |= {f"large{n}": {"n": 1000 + n, "pad": "y" * 70_000} for n in (1, 991)}
    bucket.write(documents)
    bucket.write({"k1985": {"n": 3}, "k3": {"n": 1986}, "k1987": None})
    selector = json.dumps({"n": {"$gt": 1980}})

    def sent() -> int:
        host, port = bucket.address.split(":")
        with closing(Connection(host, int(port), bucket=bucket.name)) as connection:
            return int(statistics_of(connection)["readers_sent_bytes_total"])

    def rows(**options: str) -> tuple[list[Any], int]:
        before = sent()
        frame = bucket.batch(spark, documentSchema="n int", **options).where("n > 1980")
        found = sorted(tuple(row) for row in frame.collect())
        return found, sent() - before

    all_rows, all_bytes = rows()
    some_rows, some_bytes = rows(selector=selector)
    assert some_rows == all_rows
    assert ("large991", 1991) in some_rows
    assert ("k3", 1986) in some_rows
    assert all_bytes > 1_000_000
    assert 140_000 < some_bytes < all_bytes / 5  # the large ones are sent
    frame = bucket.batch(spark, selector=selector)
    assert frame.where("key = 'k1999'").count() == 1
    assert frame.count() == len(all_rows) + 10  # texts are above numbers
    keys = bucket.batch(spark, "key string", selector='{"_id": "k3"}', noValue="true")
    assert [row.key for row in keys.collect()] == ["k3"]


def test_a_selector_is_refused_where_rows_would_be_missed(
    spark: Any, bucket: BucketUnderTest
) -> None:
    with pytest.raises(PySparkException, match="option selector: a stream has documents"):
        run_noop(bucket.stream(spark, selector='{"n": 1}'))
    with pytest.raises(PySparkException, match="set tombstones to false"):
        bucket.batch(spark, selector='{"n": 1}', startingOffsets="latest").count()
    with pytest.raises(PySparkException, match="Invalid operator: \\$no"):
        bucket.batch(spark, selector='{"n": {"$no": 1}}').count()
