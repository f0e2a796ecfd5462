"""`changes` in a real session: filter, map, join and groups, rightly undone after a crash."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import UsageError
from millstream.pipelines import BucketTarget, ParquetTarget, changes
from support.node.node_process import NodeProcess
from support.pipelines.spark_bucket import TIMEOUT_S, BucketUnderTest

KEYS = [f"k{n}" for n in range(400)]
NAMES = {"AA": "American", "UA": "United", "DL": "Delta"}
CARRIERS = [*NAMES, "ZZ", None]


def late(document: dict[str, Any]) -> dict[str, Any] | None:
    """What the pipeline under test makes of a document, in other words."""
    if document["delay"] is None or document["delay"] <= 15 or document["carrier"] not in NAMES:
        return None
    return {"name": NAMES[document["carrier"]], "seconds": document["delay"] * 60}


@pytest.mark.slow
def test_tables_and_groups_are_those_of_the_documents_after_a_crash_they_were_ahead_of(
    spark: Any, bucket: BucketUnderTest, own_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = own_node("--bucket", "b:4", "--flush-interval", "600000")
    source, rng = BucketUnderTest(node.ready["kv"], "b"), random.Random(3)
    names = spark.createDataFrame(list(NAMES.items()), "carrier string, name string")
    flights = changes(spark, "carrier string, delay int", **source.options(numPartitions=2))
    delays = (
        flights.filter("delay > 15")
        .join(names, "carrier")
        .map(lambda frame: frame.withColumn("seconds", frame.delay * 60))
        .select("name", "seconds")
    )
    totals = flights.filter("delay is not null").aggregate(
        "carrier", "count(*) as n", "sum(delay) as minutes", state=tmp_path / "state"
    )
    table, copy = ParquetTarget(tmp_path / "late"), BucketTarget(bucket.options(), name="totals")

    def write(keys: list[str], *, gone: float = 0.2) -> None:
        source.write(
            {
                key: None
                if rng.random() < gone
                else json.dumps(
                    {"carrier": rng.choice(CARRIERS), "delay": rng.choice([None, *range(30)])}
                ).encode()
                for key in keys
            }
        )

    def run() -> None:
        started = [
            delays.to(table, tmp_path / "late.checkpoint", availableNow=True),
            totals.to(copy, tmp_path / "totals.checkpoint", availableNow=True),
        ]
        for query in started:
            assert query.awaitTermination(TIMEOUT_S), "the query does not end"

    def check() -> None:
        with source.client() as client:
            present = {key: json.loads(found.data) for key, found in client.get_many(KEYS).items()}
        rows = {row._id: row.asDict() for row in delays.read(table).collect()}
        expected = {key: late(document) for key, document in present.items()}
        assert rows == {key: {"_id": key, **row} for key, row in expected.items() if row}
        groups: dict[str | None, list[int]] = {}
        for document in present.values():
            if document["delay"] is not None:
                groups.setdefault(document["carrier"], []).append(document["delay"])
        with bucket.client() as client:
            found = client.get_many([json.dumps([carrier]) for carrier in CARRIERS])
        assert {json.loads(key)[0]: json.loads(doc.data) for key, doc in found.items()} == {
            carrier: {"carrier": carrier, "n": len(all_of), "minutes": sum(all_of)}
            for carrier, all_of in groups.items()
        }

    source.write({"_private": b'{"carrier": "AA", "delay": 20}', "text": b"no JSON"})
    write(KEYS, gone=0)
    with source.client() as client:
        for p in range(4):
            client.upsert(f"flush{p}", b"{}", durability="persisted")
    run()
    check()
    write(rng.sample(KEYS, 200))
    run()
    check()
    node.kill()
    node.start()
    write(rng.sample(KEYS, 50))
    run()
    check()
    copy.close()


def test_steps_make_documents_that_read_back_and_groups_of_them(
    spark: Any, tmp_path: Path
) -> None:
    names = spark.createDataFrame(list(NAMES.items()), "carrier string, name string")
    flights = changes(spark, "carrier string, delay int, at timestamp", bucket="b")
    derived = (
        flights.filter("delay is null or delay > 15")
        .join(names, "carrier", "left")
        .select("name", "delay / 2 as half", "at", "array(delay) as delays", "'x' as `a.b`")
    )
    documents = {
        "k1": b'{"carrier": "AA", "delay": 31, "at": "2013-01-01T05:15:00Z"}',
        "k2": b'{"carrier": "AA", "delay": 3}',
        "k3": b'{"delay": "late", "carrier": "DL"}',
        "k4": b"no JSON",
        "k5": b'{"carrier": "UA", "delay": 17}',
    }
    made = derived._frames.derive(documents)
    assert sorted(made) == ["k1", "k3", "k4", "k5"]
    assert json.loads(made["k1"]) == {
        "name": "American",
        "half": 15.5,
        "at": "2013-01-01T05:15:00Z",
        "delays": [31],
        "a.b": "x",
    }
    assert (json.loads(made["k3"])["name"], json.loads(made["k3"])["half"]) == ("Delta", None)
    stored = derived._frames.stored(list(made.values()))
    halves = {
        row.name: (row.half, row.delays) for row in stored.where("name is not null").collect()
    }
    assert halves == {
        "American": (15.5, [31]),
        "Delta": (None, [None]),
        "United": (8.5, [17]),
    }
    groups = derived.aggregate(
        ["a.b", "name"], "count(*) as n", "max(at) as newest", state=tmp_path
    )._frames
    whole = groups.results(stored, None)
    assert sorted(json.loads(name)[1] or "" for name in whole) == [
        "",
        "American",
        "Delta",
        "United",
    ]
    assert json.loads(whole['["x",null]'] or b"") == {
        "a.b": "x",
        "name": None,
        "n": 1,
        "newest": None,
    }
    gone = made["k1"].replace(b"American", b"Gone")
    touched = groups.results(stored, [made["k1"], made["k4"], gone])
    assert touched == {
        '["x","American"]': whole['["x","American"]'],
        '["x",null]': whole['["x",null]'],
        '["x","Gone"]': None,
    }


def test_impossible_settings_are_refused_at_once(spark: Any, tmp_path: Path) -> None:
    one = changes(spark, "carrier string, delay int", bucket="b")
    with pytest.raises(UsageError, match="column _id, the key of each document, has to be among"):
        one.map(lambda frame: frame.select("carrier"))
    with pytest.raises(UsageError, match="cannot be written: column _x"):
        one.select("delay as _x")
    with pytest.raises(UsageError, match="not by city"):
        one.aggregate("city", "count(*) as n", state=tmp_path)
    with pytest.raises(UsageError, match="names no columns"):
        changes(spark, "int", bucket="b")
    twice = spark.createDataFrame([("AA", 1), ("AA", 2)], "carrier string, n int")
    documents = {"k1": b'{"carrier": "AA"}', "k2": b'{"carrier": "UA"}'}
    with pytest.raises(UsageError, match="document 'k1': a step made several rows"):
        one.join(twice, "carrier")._frames.derive(documents)
    with pytest.raises(UsageError, match="a step has changed _id"):
        one.map(lambda frame: frame.selectExpr("upper(_id) as _id"))._frames.derive(documents)


def test_large_documents_pass_through_the_driver_a_few_at_a_time(
    spark: Any, bucket: BucketUnderTest, tmp_path: Path
) -> None:
    """With all of them in one batch, 24 of 10 MB ended a driver with 1 GB."""
    for number in range(8):
        bucket.write({f"k{number}": {"n": number, "fill": "x" * 10_000_000}})
    numbers = changes(spark, "n int", **bucket.options(numPartitions=2)).filter("n >= 0")
    table = ParquetTarget(tmp_path / "numbers")
    query = numbers.to(table, tmp_path / "checkpoint", availableNow=True)
    assert query.awaitTermination(TIMEOUT_S)
    assert sum(row.n for row in numbers.read(table).collect()) == sum(range(8))
    rows = [progress["numInputRows"] for progress in query.recentProgress]
    assert max(rows) <= 3 + 4, rows  # 32 MiB, and a mark of each partition
