"""A table of PostgreSQL in a real session: rows from tasks, undone after a crash of the node."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from millstream.pipelines import SqlTarget, apply_changes, changes
from support.node.node_process import NodeProcess
from support.pipelines.postgres import IS_INSTALLED, Postgres
from support.pipelines.spark_bucket import TIMEOUT_S, BucketUnderTest

pytest.importorskip("psycopg", reason="the extra postgres is not installed")
pytestmark = pytest.mark.skipif(not IS_INSTALLED, reason="PostgreSQL is not installed")
KEYS = [f"k{n}" for n in range(400)]
NAMES = {"AA": "American", "UA": "United", "DL": "Delta"}
CARRIERS = [*NAMES, "ZZ", None]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.close()


def late(document: dict[str, Any]) -> dict[str, Any] | None:
    """What the pipeline under test makes of a document, in other words."""
    if document["delay"] is None or document["delay"] <= 15 or document["carrier"] not in NAMES:
        return None
    return {"name": NAMES[document["carrier"]], "seconds": document["delay"] * 60}


@pytest.mark.slow
def test_tables_and_groups_are_those_of_the_documents_after_a_crash_they_were_ahead_of(
    spark: Any, own_node: Callable[..., NodeProcess], tmp_path: Path, server: Postgres
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
    table, groups = SqlTarget(server.address, "late"), SqlTarget(server.address, "totals")
    raw, options = SqlTarget(server.address, "raw"), source.options(rollback="rows")

    def write(keys: list[str], *, gone: float = 0.2) -> None:
        made = {
            key: None
            if rng.random() < gone
            else json.dumps(
                {"carrier": rng.choice(CARRIERS), "delay": rng.choice([None, *range(30)])}
            ).encode()
            for key in keys
        }
        source.write(made)

    def take(batch: Any, batch_id: int) -> None:
        apply_changes(batch, batch_id, raw, options)

    def run() -> None:
        plain = spark.readStream.format("millstream").options(**options).load().writeStream
        plain = plain.foreachBatch(take).trigger(availableNow=True)
        queries = [
            delays.to(table, tmp_path / "c-late", availableNow=True),
            totals.to(groups, tmp_path / "c-totals", availableNow=True),
            plain.option("checkpointLocation", str(tmp_path / "c-raw")).start(),
        ]
        for query in queries:
            assert query.awaitTermination(TIMEOUT_S), "the query does not end"

    def check() -> None:
        with source.client() as client:
            present = {key: found.data for key, found in client.get_many(KEYS).items()}
        documents = {key: json.loads(data) for key, data in present.items()}
        wanted = {key: row for key, doc in documents.items() if (row := late(doc))}
        rows = {row["_id"]: row.asDict() for row in delays.read(table).collect()}
        for row in rows.values():
            del row["_id"]
        assert rows == wanted
        sums: dict[str | None, list[int]] = {}
        for document in documents.values():
            if document["delay"] is not None:
                sums.setdefault(document["carrier"], []).append(document["delay"])
        found = {row.carrier: (row.n, row.minutes) for row in totals.read(groups).collect()}
        assert found == {carrier: (len(all_), sum(all_)) for carrier, all_ in sums.items()}
        held = raw.table().to_pydict()
        plain = dict(zip(held["key"], held["value"], strict=True))
        assert {key: value for key, value in plain.items() if key in KEYS} == present

    write(KEYS, gone=0)
    with source.client() as client:
        for p in range(4):
            client.upsert(f"flush{p}", {"carrier": None, "delay": None}, durability="persisted")
    run()
    check()
    for _ in range(2):
        write(rng.sample(KEYS, 150))
        run()
        check()
        node.kill()
        node.start()
        write(rng.sample(KEYS, 40))
        run()
        check()
    other = delays.to(table, tmp_path / "c-other", availableNow=True)
    with pytest.raises(StreamingQueryException, match="another checkpoint"):
        other.awaitTermination(TIMEOUT_S)
    check()


@pytest.mark.slow
def test_a_step_that_makes_rows_of_other_keys_or_several_of_one_is_refused(
    spark: Any, bucket: BucketUnderTest, tmp_path: Path, server: Postgres
) -> None:
    bucket.write({"a": b'{"n": 1}', "b": b'{"n": 2}'})
    twice = spark.createDataFrame([(1, "x"), (1, "y")], "n int, t string")
    documents = changes(spark, "n int", **bucket.options())
    wrong = {
        "several rows of this document": documents.join(twice, "n"),
        "a step has changed _id": documents.map(lambda f: f.selectExpr("'c' as _id", "n")),
    }
    for number, (why, steps) in enumerate(wrong.items()):
        target = SqlTarget(server.address, f"wrong{number}")
        query = steps.to(target, tmp_path / f"c{number}", availableNow=True)
        with pytest.raises(StreamingQueryException, match=why):
            query.awaitTermination(TIMEOUT_S)
        assert target.table().num_rows == 0
