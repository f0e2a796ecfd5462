"""`apply_changes` in a real session: the node dies with changes that the pipeline has applied."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from millstream.pipelines import BucketTarget, ParquetTarget, apply_changes
from millstream.pipelines.sinks.repairing import Applied
from support.node.node_process import NodeProcess
from support.pipelines.spark_bucket import TIMEOUT_S, BucketUnderTest

KEYS = [f"k{n}" for n in range(3_000)]


def present(bucket: BucketUnderTest) -> dict[str, bytes]:
    with bucket.client() as client:
        return {key: bytes(found.data) for key, found in client.get_many(KEYS).items()}


def test_a_second_checkpoint_changes_nothing(
    spark: Any, bucket: BucketUnderTest, tmp_path: Path
) -> None:
    options = bucket.options(rollback="rows")
    table = ParquetTarget(tmp_path / "table")

    def run(checkpoint: str) -> None:
        frame = spark.readStream.format("millstream").options(**options).load()
        query = (
            frame.writeStream.foreachBatch(lambda b, n: apply_changes(b, n, table, options))
            .trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .start()
        )
        try:
            assert query.awaitTermination(TIMEOUT_S), "the query does not end"
        finally:
            query.stop()

    bucket.write({"k1": b"1"})
    run("one")
    bucket.write({"k1": b"2"})
    with pytest.raises(StreamingQueryException, match="which has another checkpoint"):
        run("two")
    assert table.table().column("value").to_pylist() == [b"1"]
    run("one")
    assert table.table().column("value").to_pylist() == [b"2"]


@pytest.mark.slow
def test_a_table_and_a_second_bucket_are_right_after_a_crash_that_they_were_ahead_of(
    spark: Any, bucket: BucketUnderTest, own_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = own_node("--bucket", "b:4", "--flush-interval", "600000")
    source = BucketUnderTest(node.ready["kv"], "b")
    options = source.options(rollback="rows", maxRowsPerBatch=1_000, numPartitions=2)
    table, copy = ParquetTarget(tmp_path / "table"), BucketTarget(bucket.options(), name="copy")
    did: list[Applied] = []
    fails_at = 3

    def take(batch: Any, batch_id: int) -> None:
        nonlocal fails_at
        did.append(apply_changes(batch, batch_id, table, options))
        if batch_id == fails_at:
            fails_at = -1
            raise RuntimeError("told to fail between the two sinks")
        apply_changes(batch, batch_id, copy, options)

    def run() -> None:
        frame = spark.readStream.format("millstream").options(**options).load()
        writer = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            assert query.awaitTermination(TIMEOUT_S), "the query does not end"
        finally:
            query.stop()

    def check() -> None:
        expected = present(source)
        rows = table.read(spark).where("key like 'k%'").select("key", "value").collect()
        assert {row.key: bytes(row.value) for row in rows} == expected
        assert present(bucket) == expected

    rng = random.Random(7)
    source.write(dict.fromkeys(KEYS, b"durable"))
    source.write(dict.fromkeys(rng.sample(KEYS, 500)))
    with source.client() as client:
        for p in range(4):
            client.upsert(f"flush{p}", 1, durability="persisted")
    with pytest.raises(StreamingQueryException, match="told to fail"):
        run()
    run()
    check()
    for turn in range(2):
        source.write(dict.fromkeys(rng.sample(KEYS, 800), b"lost %d" % turn))
        source.write(dict.fromkeys(rng.sample(KEYS, 300)))
        run()
        check()
        node.kill()
        node.start()
        source.write(dict.fromkeys(rng.sample(KEYS, 200), b"after %d" % turn))
        before = len(did)
        run()
        check()
        assert sum(batch.rollbacks for batch in did[before:]) == 4
        assert sum(batch.fetched for batch in did[before:]) > 500
    assert all(batch.sweeps == 0 or batch.rollbacks == 0 for batch in did)
    copy.close()
