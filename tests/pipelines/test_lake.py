"""A table that follows a real node in a real session, which loses a tail that the table had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from millstream.pipelines.lake.following import newest_rows
from millstream.pipelines.lake.table_query import TableQuery
from millstream.pipelines.sinks.parquet_target import ParquetTarget
from node_process import NodeProcess
from spark_bucket import BucketUnderTest

KEYS = [f"k{n}" for n in range(300)]


def test_table_and_log_are_right_after_a_crash_that_they_were_ahead_of(
    spark: Any, own_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = own_node("--bucket", "b:4", "--flush-interval", "600000")
    source = BucketUnderTest(node.ready["kv"], "b")
    reports: list[Any] = []

    def check() -> None:
        options = {"hosts": source.address, "bucket": "b", "numPartitions": "2"}
        query = TableQuery(options, tmp_path / "lake", on_progress=reports.append)
        query.run(spark, once=True)
        with source.client() as client:
            expected = {key: bytes(d.data) for key, d in client.get_many(KEYS).items()}
        rows = ParquetTarget(tmp_path / "lake" / "table").table().to_pylist()
        assert {row["key"]: row["value"] for row in rows} == expected
        logged = newest_rows(tmp_path / "lake")
        assert {key: row["value"] for (_, key), row in logged.items()} == expected

    with source.client() as client:
        client.upsert_many({key: {"n": 1} for key in KEYS[:200]}, durability="persisted")
    source.write({key: {"n": 2} for key in KEYS[:50]} | dict.fromkeys(KEYS[50:80]))
    source.write({key: {"n": 3} for key in KEYS[200:]})
    check()
    node.kill()
    node.start()
    source.write({key: {"n": 4} for key in KEYS[40:60]})
    check()
    assert len(list((tmp_path / "lake" / "log").glob("*.parquet"))) >= 2
    assert reports
