"""A table that follows a real node in a real session, which loses a tail that the table had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.pipelines.lake.following import TableForm, newest_rows, table_of_form
from millstream.pipelines.lake.table_query import TableQuery
from support.node.node_process import NodeProcess
from support.pipelines.spark_bucket import BucketUnderTest

FORMS: tuple[TableForm, ...] = ("parquet", "delta")
KEYS = [f"k{n}" for n in range(300)]


@pytest.mark.slow
def test_tables_and_logs_are_right_after_a_crash_that_they_were_ahead_of(
    spark: Any, own_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = own_node("--bucket", "b:4", "--flush-interval", "600000")
    source = BucketUnderTest(node.ready["kv"], "b")
    reports: list[Any] = []

    def check() -> None:
        options = {"hosts": source.address, "bucket": "b", "numPartitions": "2"}
        with source.client() as client:
            expected = {key: bytes(d.data) for key, d in client.get_many(KEYS).items()}
        for form in FORMS:
            path = tmp_path / form
            TableQuery(options, path, form=form, on_progress=reports.append).run(spark, once=True)
            rows = table_of_form(path / "table", form).table().to_pylist()
            assert {row["key"]: row["value"] for row in rows} == expected
            logged = newest_rows(path)
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
    for form in FORMS:
        assert len(list((tmp_path / form / "log").glob("*.parquet"))) >= 2
    assert reports
